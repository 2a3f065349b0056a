"""Random streams through live joins whose sources feed the gate themselves, against `sj.open`; a program as well.

Eight sources push from a thread each. Their tuples are out of order within the lateness, some are late, some have no
time or no key. Rows, order and late tuples have to be those of one caller that pushes source after source.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import streamjoin as sj
from streamjoin.joins.live.running import FlowRunner
from streamjoin.scalejoin.live_gate import GateIntake
from tests.deadlock import no_deadlock

SPEC = sj.JoinSpec(on=sj.Band("x", "x", 2) & sj.Equi("k"), window=sj.TimeWindow(20), time="t", order="event_time")
TYPES = pa.schema(
    [
        ("z", pa.string()),
        ("id", pa.int64()),
        ("t", pa.int64()),
        ("x", pa.float64()),
        ("b", pa.bool_()),
        ("k", pa.int16()),
        ("w", pa.string()),
    ]
)
SOURCES = 8
CONDITIONS = (
    SPEC.on,
    sj.Band("x", "x", 2),
    sj.Equi("k"),
    sj.Equi("w"),
    # More terms than find pairs; the words of some are made column by column.
    sj.Equi("k") & sj.Band("x", "x", 6) & sj.Band("id", "id", 4000),
    sj.Equi("b") & sj.Band("x", "x", 3) & sj.Equi("k"),
    # Programs, alone and behind terms; one whose numbers may be too large.
    sj.Theta("abs(l.x - r.x) + l.k < 2 and l.b"),
    sj.Equi("k") & sj.Theta("l.x + r.x < 9 and l.id <> r.t"),
    sj.Band("x", "x", 1) & sj.Equi("k") & sj.Theta("l.id * r.id * 10000000000000 > 5000 or r.b is null"),
    sj.Theta("l.id * r.id * 10000000000000 > 5000 and l.x = r.x and l.k = 1"),
    # Conditions without a program, behind words that decide and words that do not.
    sj.Equi("k") & sj.Band("x", "x", 1) & sj.Theta("l.z < r.z"),
    sj.Equi("w") & sj.Band("x", "x", 2),
    # Roles that differ.
    sj.Theta("l.k < r.k and l.x = r.x"),
    sj.Band("id", "t", 40) & sj.Band("x", "x", 4),
)


def opened(spec: sj.JoinSpec = SPEC, workers: int = 2, **options: Any) -> sj.Live:
    """A live join of `rows_of`."""
    return sj.live(spec, "scalejoin", workers, left_schema=TYPES, right_schema=TYPES, **options)


def intake_of(join: sj.Live) -> GateIntake:
    """The intake of a live join."""
    runner = join._runner
    assert isinstance(runner, FlowRunner)
    assert isinstance(runner._intake, GateIntake)
    return runner._intake


def rows_of(times: Iterable[int], first: int = 0) -> pa.Table:
    """Tuples that match all others, at these times, numbered from `first` on."""
    t = np.array([*times], np.int64)
    ids = np.arange(first, first + t.size)
    columns = {"z": [f"row {n}" for n in ids], "id": ids, "t": t, "x": np.zeros(t.size), "b": ids % 2 == 0}
    return pa.table({**columns, "k": np.zeros(t.size, np.int16), "w": ["w"] * t.size}, schema=TYPES)


def stream(rng: np.random.Generator, source: int, n: int, lateness: int) -> pa.Table:
    """The tuples of one source."""
    t = np.sort(rng.integers(0, 4 * n, n)) + rng.integers(-lateness, 2, n) + np.where(rng.random(n) < 0.02, -40, 0)
    ids = np.arange(n) + source * n
    columns = {
        "z": pa.array([f"row {number}" for number in ids], mask=rng.random(n) < 0.1),
        "b": pa.array(ids % 2 == 0, mask=ids % 5 == 0),
        "id": pa.array(ids),
        "t": pa.array(t, mask=rng.random(n) < 0.02),
        "x": pa.array(rng.integers(0, 12, n).astype(np.float64), mask=rng.random(n) < 0.05),
        "k": pa.array(rng.integers(0, 3, n).astype(np.int16)),
        "w": pa.array([f"word {number}" for number in rng.integers(0, 5, n)], mask=rng.random(n) < 0.1),
    }
    return pa.table(columns, schema=TYPES)


def check(runs: int, seed: int, n: int = 900, *, indexed: bool = True, conditions: Sequence[Any] = CONDITIONS) -> None:
    """Draw joins and compare them; `n` tuples a source."""
    for run in range(runs):
        rng = np.random.default_rng([seed, run])
        lateness = int(rng.choice([0, 15]))
        self_join = bool(rng.random() < 0.35)
        sizes: tuple[Any, ...] = (sj.TimeWindow(20), sj.CountWindow(70), sj.CountWindow(1), sj.TimeWindow(0))
        chosen = rng.integers(0, 4 if rng.random() < 0.2 else 2, 2).tolist()
        window = (sizes[chosen[0]], sizes[chosen[1]])
        on = conditions[int(rng.integers(0, len(conditions)))]
        spec = sj.JoinSpec(on=on, window=window, time="t", order="event_time", lateness=lateness, self_join=self_join)
        feeds = [stream(rng, source, n, lateness) for source in range(SOURCES)]
        names = rng.permutation([f"s{source}" for source in range(SOURCES)]).tolist()
        sides = ("left", "left") if self_join else ("left", "right")
        keys = [(sides[source % 2], names[source]) for source in range(SOURCES)]
        cuts = [np.unique(rng.integers(0, n + 1, int(rng.integers(1, 40)))).tolist() for _ in feeds]
        index = _index_of(rng, spec) if indexed else None
        rows, late = _live(spec, feeds, keys, cuts, int(rng.integers(1, 4)), index)
        wanted, wanted_late = _pushed(spec, feeds, keys)
        assert rows == wanted, (run, seed, spec, index)
        assert late == wanted_late, (run, seed, spec)


def _index_of(rng: np.random.Generator, spec: sj.JoinSpec) -> str | None:
    """One that the condition can be looked up in, or none."""
    if isinstance(spec.on, sj.Theta):
        return None
    kinds = [None, "btree", "pim_tree", *(["hashed"] * isinstance(spec.on, sj.Equi))]
    return kinds[int(rng.integers(0, len(kinds)))]


def _live(
    spec: sj.JoinSpec,
    feeds: list[pa.Table],
    keys: list[tuple[str, str]],
    cuts: list[list[int]],
    workers: int,
    index: str | None,
) -> tuple[list[object], list[object]]:
    known = {"left_schema": TYPES} if spec.self_join else {"left_schema": TYPES, "right_schema": TYPES}
    with sj.live(spec, "scalejoin", workers, index=index, queue_rows=1 << 12, **known) as join:
        intake_of(join)
        sources = [join.source(*key) for key in keys]

        def feed(number: int) -> None:
            with sources[number] as source:
                for begin, end in zip([0, *cuts[number]], [*cuts[number], feeds[number].num_rows], strict=True):
                    source.push(feeds[number].slice(begin, end - begin))

        threads = [threading.Thread(target=feed, args=(number,)) for number in range(SOURCES)]

        def close() -> None:
            for thread in threads:
                thread.join()
            join.close()

        closer = threading.Thread(target=close)
        for thread in (*threads, closer):
            thread.start()
        rows = [pair for batch in join for pair in _pairs(batch)]
        closer.join()
        return rows, _late(join.late())


def _pushed(spec: sj.JoinSpec, feeds: list[pa.Table], keys: list[tuple[str, str]]) -> tuple[list[object], list[object]]:
    sides = ("left",) if spec.self_join else ("left", "right")
    names = {own: [name for side, name in keys if side == own] for own in sides}
    known = {f"{side}_schema": TYPES for side in sides}
    with sj.open(spec, sources=names, **known) as join:
        rows: list[object] = []
        for (side, name), table in zip(keys, feeds, strict=True):
            rows += _pairs(join.push(**{side: table}, source=name))
        rows += _pairs(join.close())
        return rows, _late(join.late())


def _pairs(rows: pa.Table | pa.RecordBatch) -> list[object]:
    names = [f"{name}_{side}" for side in ("left", "right") for name in ("id", "z", "b")]
    return list(zip(*(rows[name].to_pylist() for name in names if name in rows.schema.names), strict=True))


def _late(rows: pa.Table) -> list[object]:
    if not rows.num_rows:
        return []
    late: list[object] = []
    late += sorted((row["side"], row["source"], row["reason"], row[f"id_{row['side']}"]) for row in rows.to_pylist())
    return late


if __name__ == "__main__":
    with no_deadlock(500):
        # Compiling indexes for a test build takes longer than all the runs.
        check(int(sys.argv[1]), int(sys.argv[2]), indexed=False)
    print("held")
