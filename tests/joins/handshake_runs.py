"""Small random joins through both handshake joins, against the oracle; run as a program as well.

Each run draws a condition, windows, an interleaving, cuts, a number of nodes and a driver's batch.
"""

from __future__ import annotations

import hashlib
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

import streamjoin as sj
from streamjoin.testing import oracle
from tests.deadlock import no_deadlock

CONDITIONS: tuple[tuple[str, sj.Band | sj.Equi | Any, oracle.Match], ...] = (
    ("band", sj.Band("x", "x", 2), lambda a, b: abs(a["x"] - b["x"]) <= 2),
    ("key", sj.Equi("x"), lambda a, b: a["x"] == b["x"]),
    (
        "two bands", sj.Band("x", "x", 4) & sj.Band("y", "y", 3),
        lambda a, b: abs(a["x"] - b["x"]) <= 4 and abs(a["y"] - b["y"]) <= 3,
    ),
    ("theta", sj.Theta("l.x < r.y"), lambda a, b: a["x"] < b["y"]),
)  # fmt: skip
WINDOWS = (sj.CountWindow(1), sj.CountWindow(7), sj.CountWindow(40), sj.TimeWindow(0), sj.TimeWindow(12))
SYSTEMS: tuple[tuple[str, str | None], ...] = (
    ("handshake", None), ("low_latency_handshake", None),
    ("low_latency_handshake", "hashed"), ("low_latency_handshake", "pim_tree"),
)  # fmt: skip
IdPair = tuple[int, int]


def events_of(rng: np.random.Generator, n: int) -> list[oracle.Event]:
    values = rng.integers(0, 16, (n, 2)).tolist()
    times = np.sort(rng.integers(0, n, n)).tolist()
    sides = (rng.random(n) < rng.uniform(0.1, 0.9)).tolist()
    return [
        oracle.Event(side, {"x": x, "y": y, "t": t, "id": i}, t)
        for i, (side, (x, y), t) in enumerate(zip(sides, values, times, strict=True))
    ]


def table(events: list[oracle.Event], right: bool) -> pa.Table:
    rows = [event.row for event in events if event.right == right]
    return pa.table({name: pa.array([row[name] for row in rows], pa.int64()) for name in ("x", "y", "t", "id")})


def joined(
    system: tuple[str, str | None],
    spec: sj.JoinSpec,
    events: list[oracle.Event],
    cuts: list[int],
    nodes: int,
    batch: int,
) -> list[IdPair]:
    found: list[IdPair] = []
    with sj.open(spec, system[0], nodes, index=system[1], options={"batch": batch}) as join:
        join.push(table([], False), table([], True))
        for begin, end in pairwise([0, *cuts, len(events)]):
            part = events[begin:end]
            sides = pa.array([event.right for event in part], pa.bool_())
            rows = join.push(table(part, False), table(part, True), interleave=sides)
            found += zip(rows["id_left"].to_pylist(), rows["id_right"].to_pylist(), strict=True)
    return found


def wanted(spec: sj.JoinSpec, match: oracle.Match, events: list[oracle.Event]) -> list[IdPair]:
    left, right = (("count", w.n) if isinstance(w, sj.CountWindow) else ("time", w.length) for w in spec.windows)
    lefts, rights = ([e for e in events if e.right == side] for side in (False, True))
    return [(lefts[a].row["id"], rights[b].row["id"]) for a, b in oracle.join(events, match, left, right)]


def check(runs: int, seed: int, systems: tuple[tuple[str, str | None], ...] = SYSTEMS) -> str:
    """Go through `runs` random joins and return a digest of all that came out."""
    rng = np.random.default_rng(seed)
    digest = hashlib.sha256()
    for run in range(runs):
        name, on, match = CONDITIONS[rng.integers(len(CONDITIONS))]
        spec = sj.JoinSpec(
            on=on, window=(WINDOWS[rng.integers(5)], WINDOWS[rng.integers(5)]), time="t", order="arrival"
        )
        events = events_of(rng, int(rng.integers(0, 90)))
        cuts = sorted(rng.integers(0, len(events) + 1, 3).tolist())
        expected = wanted(spec, match, events)
        digest.update(repr(expected).encode())
        able = [s for s in systems if s[1] is None or (s[1] == "hashed" and name == "key") or
                (s[1] == "pim_tree" and name != "theta")]  # fmt: skip
        for system in able:
            nodes, batch = int(rng.integers(1, 9)), int(rng.choice([1, 4, 64]))
            found = joined(system, spec, events, cuts, nodes, batch)
            assert found == expected, (run, system, name, spec, nodes, batch)
    return digest.hexdigest()


if __name__ == "__main__":
    with no_deadlock(500):
        # One index tells of the nodes' rules what two do, and is compiled in half the time.
        check(int(sys.argv[1]), int(sys.argv[2]), SYSTEMS[:3])
    print("held")
