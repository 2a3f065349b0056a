"""Tuples per second through `sj.live`, by the size of a push, beside `push` in large batches.

A band join over windows of 65,536 tuples with payload columns; each tuple finds about 0.75 partners. Two sources push
from threads of their own, one consumer reads. The baseline is `sj.open` with 131,072 tuples per call in the same
process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Row, human, met

_LARGE = 1 << 16
_PUSH, _LIVE = "push", "live"
_AIMS = {64: 1.5e6, 1_024: 5e6}
_SHARE = 0.8


class LiveRate(Experiment):
    """Tuples per second of both ways in."""

    title = "sj.live: tuples per second by the size of a push, beside sj.open in large batches"
    measure = "tuples_per_s"
    unit = "tuples/s"
    against: ClassVar = {"system": _PUSH, "rows": _LARGE, "sources": 2}
    repeats = 5
    across, lines, log = "rows", ("system", "sources"), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Pushes of 64 tuples to many."""
        window, tuples = (1 << 12, 1 << 16) if quick else (1 << 16, 1 << 22)
        common = {"algorithm": "auto", "window": window, "tuples": tuples, "sources": 2}
        rows = (64, 1_024) if quick else (64, 256, 1_024, 16_384)
        live = [{**common, "system": _LIVE, "rows": n} for n in rows]
        many = [] if quick else [{**common, "system": _LIVE, "rows": n, "sources": 8} for n in rows[:3]]
        return [{**common, "system": _PUSH, "rows": _LARGE}, *live, *many]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the windows, then join the tuples."""
        rng = np.random.default_rng(context.seed)
        window, each = cell["window"], cell["tuples"] // cell["sources"]

        def stream(n: int) -> pa.Table:
            return pa.table(
                {"k": rng.integers(0, 4 * window, n), "t": np.arange(n), "v": rng.random(n), "w": rng.random(n)}
            )

        spec = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(window))
        first = stream(window), stream(window)
        feeds = [stream(each).to_batches(max_chunksize=cell["rows"]) for _ in range(cell["sources"])]
        if cell["system"] == _PUSH:
            return _pushed(spec, cell, first, feeds)
        return _live(spec, cell, first, feeds)

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aims by size of a push, and at saturation."""
        lines = []
        for row in rows:
            aim = _AIMS.get(row["rows"]) if row["system"] == _LIVE and row["sources"] == 2 else None
            if aim is not None:
                speed = row[self.measure]
                lines.append(
                    f"pushes of {row['rows']:,} tuples: {human(speed)} tuples/s; aim {human(aim)}: {met(speed >= aim)}"
                )
        ratios = [row["ratio"] for row in rows if "ratio" in row]
        if ratios:
            best = max(ratios)
            lines.append(f"at saturation {best:.2f} of push in large batches; aim {_SHARE}: {met(best >= _SHARE)}")
        return lines


def _pushed(
    spec: sj.JoinSpec, cell: Cell, first: tuple[pa.Table, pa.Table], feeds: Sequence[Sequence[pa.RecordBatch]]
) -> Mapping[str, Any]:
    with sj.open(spec, cell["algorithm"]) as join:
        join.push(*first)
        begin, rows = time.perf_counter(), 0
        for left, right in zip(*feeds, strict=True):
            rows += join.push(left, right).num_rows
        took = time.perf_counter() - begin
    return {"tuples_per_s": cell["tuples"] / took, "rows_per_tuple": rows / cell["tuples"]}


def _live(
    spec: sj.JoinSpec, cell: Cell, first: tuple[pa.Table, pa.Table], feeds: Sequence[Sequence[pa.RecordBatch]]
) -> Mapping[str, Any]:
    with sj.live(spec, cell["algorithm"]) as join:
        sources = [join.source(("left", "right")[n % 2], str(n)) for n in range(cell["sources"])]
        count = [0]

        def read() -> None:
            count[0] = sum(rows.num_rows for rows in join)

        reader = threading.Thread(target=read)
        reader.start()
        for source, table in zip(sources, first, strict=False):
            source.push(table)
        while join.metrics().get("reached", 0) < 2 * cell["window"]:
            join.wait(0.005)
        before = join.metrics()["rows"]

        def feed(source: Any, batches: Sequence[pa.RecordBatch]) -> None:
            for batch in batches:
                source.push(batch)

        threads = [threading.Thread(target=feed, args=pair) for pair in zip(sources, feeds, strict=True)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        join.close()
        reader.join()
        took = time.perf_counter() - begin
        figures = join.metrics()
    return {
        "tuples_per_s": cell["tuples"] / took,
        "rows_per_tuple": (count[0] - before) / cell["tuples"],
        "p50_ms": figures["latency"]["delivery"].get("p50", 0.0),
    }


EXPERIMENT = LiveRate()
