"""The cost of a row against the size of the window, at a fixed match rate: it should hardly grow.

A batch is swept over sorted runs, so a larger window costs a logarithm more a row, and more misses. The state on disk
is printed beside it, as a multiple of the window's own bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import streamjoin as sj
from benchmarks.harness import Cell, Context, Figure, Row, human, met
from benchmarks.spark.spark_runs import ROW_BYTES, Files, SparkExperiment, speed, state_bytes, steady
from benchmarks.workload import BandWorkload

_AIM_STATE, _AIM_COST = 1.5, 1.5


class SparkWindowGrowth(SparkExperiment):
    """Rows a second by window."""

    title = "spark_window_growth: rows/s on Spark by window, match rate 2"
    measure = "rows_per_s"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Windows of the left and of the right side, by tens."""
        return [
            {"window": window} for window in ((10_000, 50_000) if quick else (10_000, 100_000, 1_000_000, 10_000_000))
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """The smallest window."""
        return {"window": 10_000} if cell["window"] > 10_000 else None

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the window in steps, then measure batches of one size."""
        window, rows = cell["window"], 5_000 if context.quick else 100_000
        data = BandWorkload(window, seed=context.seed)
        fill, measured = 8, 4 if context.quick else 8
        sizes = [-(-window // fill)] * fill + [rows] * (2 + measured)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        files = Files(context, f"window {window}").write(
            lambda side: [data.timed_table(side, at, n, 1_000) for at, n in zip(starts, sizes, strict=True)]
        )
        spec = sj.JoinSpec(
            sj.Band("key", "key", data.band), sj.TimeWindow(timedelta(milliseconds=window)), time="ts",
            order="event_time",
        )  # fmt: skip
        checkpoint = context.scratch / "checkpoint"
        ran = steady(self.timed(lambda left, right: sj.spark.join(left, right, spec), files, checkpoint), fill + 2)
        state = state_bytes(self.spark, self.checkpoint) / (2 * window * ROW_BYTES)
        return {"rows_per_s": speed(ran), "state": state}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Cost a row by window."""
        axes = figure.subplots()
        axes.plot([row["window"] for row in rows], [1e6 / row["rows_per_s"] for row in rows], marker="o")
        axes.set(xscale="log", xlabel="window (tuples a side)", ylabel="µs a row", ylim=(0, None))

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """Cost and state by window."""
        lines = [
            f"window {human(row['window'])}: a row costs {1 / row['ratio']:.2f} times what it does at 10 k; aim, about "
            f"flat ({_AIM_COST}): {met(1 / row['ratio'] <= _AIM_COST)}"
            for row in rows
            if "ratio" in row
        ]
        largest = max(rows, key=lambda row: row["window"])
        judged = met(largest["state"] <= _AIM_STATE)
        lines.append(
            f"state on disk at {human(largest['window'])}: {largest['state']:.2f} times its rows, of {ROW_BYTES} "
            f"bytes; aim {_AIM_STATE}: {judged}"
        )
        return lines


EXPERIMENT = SparkWindowGrowth()
