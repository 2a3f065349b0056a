"""`sweep` against window and batch size: a band join of 16-byte tuples, result rows gathered into Arrow.

Every system joins the same two streams by |l.key - r.key| <= d, with d set so that a tuple meets two partners
in a full window; at the target also 0.1 and 10. Baselines beside it: our nested loop; what people do without a stream
join, a micro-batch re-join of the window with DuckDB; and a C++ join over B+-trees, one thread, with 24-byte tuples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.hardware import explained
from benchmarks.harness import Cell, Context, Experiment, Figure, Row, human, met
from benchmarks.rivals.btree_rival import RIVAL, compiler, run_rival
from benchmarks.workload import BandWorkload

Push = Callable[[pa.Table, pa.Table], int]

_FILL = 1 << 17
_SECONDS = 1.0
_POOL = 16
_LARGEST_REJOIN = 20
_TARGET = {"window": 1 << 20, "batch": 1 << 16}
_RATES = (2.0, 0.1, 10.0)
# Windows and, for one worker and for two, the aims in times the C++ join.
_RIVAL_AIMS = {20: (12, 20), 23: (12, 20)}
_RIVAL_BAND, _RIVAL_PUSHES = 500, 4


class DuckDBRejoin:
    """A window kept as Arrow and joined anew with every batch: three range joins a push, in one thread."""

    def __init__(self, window: int, band: int) -> None:
        self._window, self._band = window, band
        self._sides: list[pa.Table | None] = [None, None]
        self._db = duckdb.connect()
        self._db.execute("SET threads = 1")

    def push(self, left: pa.Table, right: pa.Table) -> int:
        """Join the batch with the window and with itself; how many rows that gave."""
        rows = self._rows(left, right)
        if self._sides[0] is not None:
            rows += self._rows(left, self._sides[1]) + self._rows(self._sides[0], right)
        for side, batch in enumerate((left, right)):
            held = batch if self._sides[side] is None else pa.concat_tables([self._sides[side], batch])
            self._sides[side] = held.slice(max(0, held.num_rows - self._window)).combine_chunks()
        return rows

    def fill(self, left: pa.Table, right: pa.Table) -> None:
        """Take the window's content without joining it."""
        self._sides = [left, right]

    def _rows(self, left: pa.Table | None, right: pa.Table | None) -> int:
        self._db.register("l", left)
        self._db.register("r", right)
        d = self._band
        found = self._db.sql(
            f"SELECT l.key, l.payload, r.key, r.payload FROM l JOIN r ON r.key BETWEEN l.key - {d} AND l.key + {d}"
        )
        return int(found.to_arrow_table().num_rows)


class Sweep(Experiment):
    """Throughput of `sweep` beside its baselines."""

    title = "sweep: band join throughput, match rate 2, 16-byte tuples, rows gathered"
    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 3
    warmups = 1

    def cells(self, quick: bool) -> Sequence[Cell]:
        """All windows at the target batch, and all batches at the target window."""
        windows = (14, 16) if quick else range(14, 24)
        batches = (12,) if quick else range(10, 19)
        target_w, target_b = (16, 12) if quick else (20, 16)
        points = dict.fromkeys([(w, target_b) for w in windows] + [(target_w, b) for b in batches])
        cells: list[Cell] = []
        for w, b in points:
            at = {"window": 1 << w, "batch": 1 << b, "match_rate": 2.0}
            if w <= _LARGEST_REJOIN:
                cells.append({**at, "system": "duckdb re-join", "workers": 1})
            if w <= 17:
                cells.append({**at, "system": "nested_loop", "workers": 1})
            cells += [{**at, "system": "sweep", "workers": workers} for workers in (1, 2)]
            if b == target_b and (w in _RIVAL_AIMS or quick) and compiler() is not None:
                cells.append({**at, "system": RIVAL, "workers": 1})
        others = ({"window": 1 << target_w, "batch": 1 << target_b, "match_rate": rate} for rate in _RATES[1:])
        for at in others:
            cells += [{**at, "system": "sweep", "workers": workers} for workers in (1, 2)]
            cells += [{**at, "system": RIVAL, "workers": 1}] if compiler() is not None else []
        return cells

    def baseline(self, cell: Cell) -> Cell | None:
        """DuckDB on the same point, as long as it gets there in seconds."""
        if cell["system"] in ("duckdb re-join", RIVAL) or cell["window"] > 1 << _LARGEST_REJOIN:
            return None
        if cell["match_rate"] != _RATES[0]:
            return None if compiler() is None else {**cell, "system": RIVAL, "workers": 1}
        return {**cell, "system": "duckdb re-join", "workers": 1}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill both windows, then push batches for about a second."""
        window, batch = cell["window"], cell["batch"]
        load = BandWorkload(window, match_rate=cell["match_rate"], seed=context.seed)
        if cell["system"] == RIVAL:
            spread = max(1, round(window * (2 * _RIVAL_BAND + 1) / cell["match_rate"]))
            seconds, rows = run_rival(
                context.scratch, window, batch, _RIVAL_PUSHES, band=_RIVAL_BAND, spread=spread, seed=context.seed
            )
            tuples = 2 * batch * _RIVAL_PUSHES
            return {"tuples_per_s": tuples / seconds, "rows_per_tuple": rows / tuples}
        if cell["system"] == "duckdb re-join":
            rejoin = DuckDBRejoin(window, load.band)
            rejoin.fill(load.table("left", 0, window), load.table("right", 0, window))
            return _measure(rejoin.push, load, window, batch)
        spec = sj.JoinSpec(on=sj.Band("key", "key", load.band), window=sj.CountWindow(window))
        with sj.open(spec, cell["system"], cell["workers"]) as join:
            step = min(_FILL, window)
            for at in range(0, window, step):
                join.push(load.table("left", at, step), load.table("right", at, step))
            found = _measure(lambda *pair: join.push(*pair).num_rows, load, window, batch)
            return {**found, "bytes": join.metrics()["bytes"]}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Throughput against the window, and against the batch."""
        rows = [row for row in rows if row["match_rate"] == _RATES[0]]
        named = [{**row, "system": f"{row['system']} x{row['workers']}"} for row in rows]
        left, right = figure.subplots(1, 2)
        batches = {row["batch"] for row in rows}
        target_b = _TARGET["batch"] if _TARGET["batch"] in batches else max(batches)
        target_w = (
            _TARGET["window"] if any(r["window"] == _TARGET["window"] for r in rows) else max(r["window"] for r in rows)
        )
        for axes, x, fixed, at in ((left, "window", "batch", target_b), (right, "batch", "window", target_w)):
            for color, system in enumerate(sorted({row["system"] for row in named})):
                points = sorted((r[x], r["tuples_per_s"]) for r in named if r["system"] == system and r[fixed] == at)
                if points:
                    axes.plot(*zip(*points, strict=True), marker="o", color=f"C{color}", label=system)
            axes.set(xscale="log", yscale="log", xlabel=f"{x} (tuples a side), {fixed} {at:,}", ylabel="tuples/s")
            axes.set_xscale("log", base=2)
            axes.grid(True, alpha=0.3)
        left.legend(fontsize="small")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aims at the target point."""
        at = [r for r in rows if all(r[k] == v for k, v in _TARGET.items()) and r["match_rate"] == _RATES[0]]
        speed = {(r["system"], r["workers"]): r["tuples_per_s"] for r in at}
        if ("sweep", 2) not in speed:
            return ["the aims are set at a window of 2^20 and batches of 2 x 65,536: run without --quick"]
        one, two = speed["sweep", 1], speed["sweep", 2]
        rejoin = speed["duckdb re-join", 1]
        return [
            f"one worker: {human(one)} tuples/s; aim 8 M: {met(one >= 8e6)}",
            f"two workers: {two / one:.2f} times one; aim 1.7: {explained(two / one, 1.7)}",
            f"one worker is {one / rejoin:.0f} times the DuckDB re-join beside it",
            *_over_rival(rows),
        ]


def _over_rival(rows: Sequence[Row]) -> list[str]:
    lines = []
    speeds = {(r["window"], r["match_rate"], r["system"], r["workers"]): r["tuples_per_s"] for r in rows
              if r["batch"] == _TARGET["batch"]}  # fmt: skip
    for power, aims in _RIVAL_AIMS.items():
        for rate in _RATES:
            rival = speeds.get((1 << power, rate, RIVAL, 1))
            for workers, aim in zip((1, 2), aims, strict=True):
                ours = speeds.get((1 << power, rate, "sweep", workers))
                if ours is not None and rival is not None:
                    lines.append(
                        f"w = 2^{power}, match rate {rate:g}, {workers} worker(s): {ours / rival:.1f} times the C++ "
                        f"B+-tree join; aim {aim}: {met(ours >= aim * rival)}"
                    )
    return lines


def _measure(push: Push, load: BandWorkload, start: int, batch: int) -> dict[str, Any]:
    pool = [(load.table("left", start + i * batch, batch), load.table("right", start + i * batch, batch))
            for i in range(_POOL)]  # fmt: skip
    push(*pool[0])
    pushes, rows = 0, 0
    latencies = []
    begin = time.perf_counter()
    while (now := time.perf_counter()) - begin < _SECONDS or pushes == 0:
        rows += push(*pool[(pushes + 1) % _POOL])
        latencies.append(time.perf_counter() - now)
        pushes += 1
    took = time.perf_counter() - begin
    tuples = 2 * batch * pushes
    return {
        "tuples_per_s": tuples / took,
        "rows_per_tuple": rows / tuples,
        "p50_ms": float(np.median(latencies)) * 1e3,
    }


EXPERIMENT = Sweep()
