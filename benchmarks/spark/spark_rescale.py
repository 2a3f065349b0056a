"""Partitions changed from 2 to 8 to 3 while a query runs, beside the same query left alone.

STRETCH reports pauses under 40 ms when threads are added; on Spark a batch boundary is the floor. The pause is what the
first batch with the new number takes more than the batches around it. Both queries must give the same rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import streamjoin as sj
from benchmarks.harness import Cell, Context, Figure, Row
from benchmarks.spark.spark_runs import SIDES, Files, SparkExperiment, Timed, speed, steady
from benchmarks.workload import BandWorkload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESCALED, FIXED = "rescaled", "fixed"
STEPS = (2, 8, 3)


class SparkRescale(SparkExperiment):
    """Rows a second of a query that is rescaled."""

    title = "spark_rescale: partitions 2 to 8 to 3 in mid-stream"
    measure = "rows_per_s"

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[str, list[int]] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:  # noqa: ARG002 - only the batches differ
        """Rescaled, and left at the first number."""
        return [{"system": RESCALED}, {"system": FIXED}]

    def baseline(self, cell: Cell) -> Cell | None:
        """The query that is left alone."""
        return {"system": FIXED} if cell["system"] == RESCALED else None

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run one query; rescaled, it asks for another number after a third and two thirds of its batches."""
        window, rows, batches = (5_000, 2_000, 12) if context.quick else (500_000, 50_000, 30)
        data = BandWorkload(window, seed=context.seed)
        files = Files(context, "rescale").write(
            lambda side: [data.timed_table(side, i * rows, rows, 1_000) for i in range(batches)]
        )
        spec = sj.JoinSpec(
            sj.Band("key", "key", data.band), sj.TimeWindow(timedelta(milliseconds=window)), time="ts",
            order="event_time",
        )  # fmt: skip
        changes = {batches // 3: STEPS[1], 2 * batches // 3: STEPS[2]} if cell["system"] == RESCALED else {}
        ran = self._run(spec, files, context, changes)
        self._results[cell["system"]] = [batch.results for batch in ran]
        if len({tuple(results) for results in self._results.values()}) > 1:
            raise AssertionError(f"rows by batch differ: {self._results}")
        # A wish that is made after batch b is seen by the first task of b + 1 and holds from b + 2 on.
        pauses = [_pause(ran, at + 2) for at in changes]
        return {"rows_per_s": speed(steady(ran, 2)), "pause_ms": max(pauses, default=0.0), "batches": len(ran)}

    def _run(self, spec: sj.JoinSpec, files: Files, context: Context, changes: Mapping[int, int]) -> list[Timed]:
        self._runs += 1
        checkpoint = context.scratch / f"checkpoint-{self._runs}"
        reader = self.spark.readStream.schema("ts timestamp, key long, payload long").option("maxFilesPerTrigger", 1)
        left, right = (reader.parquet(str(files.directory(side))) for side in SIDES)
        joined = sj.spark.join(left, right, spec, partitions=STEPS[0], most_partitions=max(STEPS))
        results: list[int] = []

        def take(frame: DataFrame, batch: int) -> None:
            results.append(frame.count())
            if batch in changes:
                sj.spark.rescale(checkpoint, changes[batch])

        writer = joined.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()
        return [
            Timed(int(p["numInputRows"]), n, p["durationMs"]["triggerExecution"] / 1000, {})
            for p, n in zip(query.recentProgress, results, strict=False)
        ]

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Two bars."""
        axes = figure.subplots()
        axes.bar([row["system"] for row in rows], [row["rows_per_s"] for row in rows])
        axes.set(ylabel="rows/s")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The pause, and that no row is lost."""
        rescaled = next(row for row in rows if row["system"] == RESCALED)
        steps, pause = " to ".join(map(str, STEPS)), f"{rescaled['pause_ms']:.0f} ms"
        return [
            f"partitions {steps}: the longer pause is {pause}, at a batch boundary (STRETCH: under 40 ms on threads)",
            "both queries gave the same number of rows in every batch: none was lost",
        ]


def _pause(batches: Sequence[Timed], at: int) -> float:
    """What batch `at` takes more than those around it, in milliseconds."""
    around = [batch.seconds for i, batch in enumerate(batches) if 0 < abs(i - at) <= 3]
    return max(0.0, 1000 * (batches[at].seconds - statistics.median(around)))


EXPERIMENT = SparkRescale()
