"""Many small random joins by `scalejoin`, against the oracle, with threads that come and go; a program as well."""

from __future__ import annotations

import sys
import threading
from itertools import pairwise

import numpy as np
import pyarrow as pa

import streamjoin as sj
from streamjoin.scalejoin import join as scalejoin
from streamjoin.testing import oracle

SCHEMA = pa.schema([("id", pa.int64()), ("t", pa.int64()), ("x", pa.int32()), ("y", pa.int32())])
CONDITIONS = {
    "band": (
        sj.Band("x", "x", 3) & sj.Band("y", "y", 3),
        lambda l, r: abs(l["x"] - r["x"]) <= 3 >= abs(l["y"] - r["y"]),
    ),
    "key": (sj.Equi("x", "x"), lambda l, r: l["x"] == r["x"]),
    "theta": (sj.Theta("l.x + r.y < 4"), lambda l, r: l["x"] + r["y"] < 4),
    "band and theta": (
        sj.Band("x", "x", 2) & sj.Theta("l.y <> r.y"),
        lambda l, r: abs(l["x"] - r["x"]) <= 2 and l["y"] != r["y"],
    ),
}


def events(rng: np.random.Generator, n: int) -> list[oracle.Event]:
    times = np.sort(rng.integers(0, n, n))
    return [
        oracle.Event(bool(right), {"id": i, "t": int(t), "x": int(x), "y": int(y)}, int(t))
        for i, (right, t, x, y) in enumerate(
            zip(rng.integers(0, 2, n), times, rng.integers(0, 12, n), rng.integers(0, 12, n), strict=True)
        )
    ]


def table(rows: list[oracle.Event]) -> pa.Table:
    columns = [[event.row[name] for event in rows] for name in SCHEMA.names]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


def check_run(seed: int, n: int, indexed: bool) -> None:
    """One random join: condition, window, index, number of threads, which another thread keeps changing."""
    rng = np.random.default_rng(seed)
    name = list(CONDITIONS)[seed % len(CONDITIONS)]
    on, match = CONDITIONS[name]
    size = int(rng.integers(1, n))
    counted = bool(rng.integers(0, 2))
    window = sj.CountWindow(size) if counted else sj.TimeWindow(size)
    usable: dict[str, list[str | None]] = {
        "band": [None, "pim_tree", "btree"],
        "key": [None, "hashed"],
        "theta": [None],
    }
    indexes = usable.get(name, [None, "btree"])
    index = indexes[int(rng.integers(0, len(indexes)))] if indexed else None
    stream = events(rng, n)
    limits = ("count" if counted else "time", size)
    found = oracle.join(stream, match, limits, limits)
    lefts, rights = ([e for e in stream if e.right is side] for side in (False, True))
    wanted = [(lefts[a].row["id"], rights[b].row["id"]) for a, b in found]
    cuts = sorted({0, n, *rng.integers(0, n, 3).tolist()})
    spec = sj.JoinSpec(on=on, window=window, time="t", order="arrival")
    got: list[tuple[int, int]] = []
    with sj.open(
        spec, "scalejoin", int(rng.integers(1, 9)), index=index, left_schema=SCHEMA, right_schema=SCHEMA
    ) as join:
        over = threading.Event()
        changing = threading.Thread(target=_change, args=(join, over, seed))
        changing.start()
        try:
            for begin, end in pairwise(cuts):
                part = stream[begin:end]
                out = join.push(
                    table([e for e in part if not e.right]), table([e for e in part if e.right]),
                    interleave=pa.array([e.right for e in part], pa.bool_()),
                )  # fmt: skip
                got += zip(out["id_left"].to_pylist(), out["id_right"].to_pylist(), strict=True)
        finally:
            over.set()
            changing.join()
    assert got == wanted, (seed, name, index, window)


def _change(join: sj.Join, over: threading.Event, seed: int) -> None:
    """Another number of threads, over and over."""
    rng = np.random.default_rng([seed, 1])
    while not over.is_set():
        join.set_workers(int(rng.integers(1, 9)))
        over.wait(0.0005)


def check_runs(seeds: range, n: int = 120, indexed: bool = True) -> None:
    """Small pieces, so that threads come and go within a push."""
    before, scalejoin._PIECE = scalejoin._PIECE, 8
    try:
        for seed in seeds:
            check_run(seed, n, indexed)
    finally:
        scalejoin._PIECE = before


if __name__ == "__main__":
    # Indexes have no shared words, and compiling them for a test build takes longer than all the runs.
    check_runs(range(int(sys.argv[1])), indexed=False)
    print("held")
