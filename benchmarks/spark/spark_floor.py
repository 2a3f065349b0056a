"""The time of a nearly empty batch, by part, beside the same Spark plan with functions that do nothing.

The plan of a join is two Python stages with a shuffle between them. *identity* has the same stages and shuffle and
passes a handful of rows through; what the join takes more is its own: reading the manifest, writing and syncing pieces.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import streamjoin as sj
from benchmarks.harness import Cell, Context, Figure, Row, met
from benchmarks.spark.spark_runs import SCHEMA, Files, SparkExperiment, steady
from benchmarks.workload import BandWorkload
from streamjoin.spark.runtime.internals import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JOIN, GATED, IDENTITY, NOTHING = "spark.join", "spark.join, ordered", "identity", "Spark alone"
PARTS = ("latestOffset", "walCommit", "queryPlanning", "getBatch", "addBatch", "commitOffsets")
_ROWS, _AIM = 10, 1.5


def _pass(batches: Any) -> Any:
    """Rows as they are."""
    yield from batches


def identity(left: DataFrame, right: DataFrame) -> DataFrame:
    """The stages and the shuffle of a join without what they do."""
    from pyspark.sql import functions as f

    sides = [map_in_arrow(side, _pass, SCHEMA, "identity") for side in (left, right)]
    both = sides[0].union(sides[1]).withColumn("partition", f.pmod("payload", f.lit(2)).cast("int"))
    ranged = both.repartitionById(2, both["partition"]).drop("partition")
    return map_in_arrow(ranged, _pass, SCHEMA, "identity")


class SparkFloor(SparkExperiment):
    """Batches a second when there is nothing to do."""

    title = "spark_floor: a batch of 20 rows on Spark, by part"
    measure = "batches_per_s"
    unit = "batches/s"
    # Small queries all pay for being first in a young Java.
    warmups = 1

    def cells(self, quick: bool) -> Sequence[Cell]:  # noqa: ARG002 - only the batches differ
        """Each plan once; the quick form runs fewer batches."""
        return [{"system": name} for name in (JOIN, GATED, IDENTITY, NOTHING)]

    def baseline(self, cell: Cell) -> Cell | None:
        """The plan that does nothing."""
        return {"system": IDENTITY} if cell["system"] in (JOIN, GATED) else None

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run small batches and take the median of each part."""
        data, batches = BandWorkload(1_000, seed=context.seed), 8 if context.quick else 40
        files = Files(context, "floor").write(
            lambda side: [data.timed_table(side, i * _ROWS, _ROWS, 1_000) for i in range(batches)]
        )
        spec = sj.JoinSpec(sj.Band("key", "key", data.band), sj.TimeWindow("1 second"), time="ts", order="event_time")
        builds = {
            JOIN: lambda left, right: sj.spark.join(left, right, spec, partitions=2),
            GATED: lambda left, right: sj.spark.join(left, right, spec, partitions=2, ordered=True),
            IDENTITY: identity,
            NOTHING: lambda left, right: left.union(right),
        }
        ran = steady(self.timed(builds[cell["system"]], files, context.scratch / "checkpoint"), 3)
        seconds = statistics.median(batch.seconds for batch in ran)
        parts = {part: statistics.median(batch.parts.get(part, 0.0) for batch in ran) for part in PARTS}
        return {"batches_per_s": 1 / seconds, "batch_ms": 1000 * seconds, **{p: 1000 * s for p, s in parts.items()}}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Stacked bars by part."""
        axes = figure.subplots()
        below = [0.0] * len(rows)
        for part in PARTS:
            axes.barh([row["system"] for row in rows], [row[part] for row in rows], left=below, label=part)
            below = [b + row[part] for b, row in zip(below, rows, strict=True)]
        axes.set(xlabel="ms a batch")
        axes.legend()

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """How many times the empty plan a batch takes, and the aim."""
        at = {row["system"]: row for row in rows}
        times = at[JOIN]["batch_ms"] / at[IDENTITY]["batch_ms"]
        own = at[JOIN]["addBatch"] - at[IDENTITY]["addBatch"]
        whole = (
            f"a batch of {2 * _ROWS} rows takes {at[JOIN]['batch_ms']:.0f} ms with the join and "
            f"{at[IDENTITY]['batch_ms']:.0f} ms with the same plan that does nothing: {times:.2f} times; aim {_AIM}: "
            f"{met(times <= _AIM)}"
        )
        return [
            whole,
            f"{own:.0f} ms of it are the join's own; Spark without any Python takes {at[NOTHING]['batch_ms']:.0f} ms",
            f"behind a gate, with ordered output, a batch takes {at[GATED]['batch_ms']:.0f} ms",
        ]


EXPERIMENT = SparkFloor()
