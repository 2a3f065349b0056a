"""The band join on Spark's own `transformWithState`: ranges as keys, the window in RocksDB, this project's kernels.

What `spark.join` does, on the state store instead of the window log. Rows are routed to a range by the same code and
travel packed; a range is a key of the operator and keeps each batch's sorted rows as one value of a map; probing is
that of the join. So what differs is where the window lies and how rows get there: from RocksDB through the JVM and a
socket for every batch. Its ranges are cut once, evenly over the known domain, which uniform keys favour.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import streamjoin as sj
from streamjoin.model.binding import bind
from streamjoin.spark.runtime.internals import map_in_arrow
from streamjoin.spark.stages.arrivals import arrivals
from streamjoin.spark.stages.output import FoundPairs, plain
from streamjoin.spark.stages.pairing import ResidualTest, SortedProbes, matches
from streamjoin.spark.stages.parts import DDL, SCHEMA, Part, unpack
from streamjoin.spark.stages.route import by_range, conformed
from streamjoin.spark.stream_join import _arrow_schema, _output_schema
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.ranges import SplitPoints
from streamjoin.storage.segments import Segment, block_rows, layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def by_state(left: DataFrame, right: DataFrame, spec: sj.JoinSpec, domain: int) -> DataFrame:
    """The join of two sides whose keys are spread evenly over [0, domain)."""
    spark = left.sparkSession
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    schemas = [_arrow_schema(name, side) for name, side in (("left", left), ("right", right))]
    blueprint = Blueprint(bind(spec, *schemas), "by_state", partitions)
    words = np.array([domain * i // partitions for i in range(1, partitions)], np.int64)
    points = SplitPoints(words, np.zeros(words.size, np.int64))
    names = spread_keys(spark, partitions)
    sides = [map_in_arrow(side, Send(blueprint, i, points, names), DDL, "send") for i, side in enumerate((left, right))]
    keyed = sides[0].union(sides[1]).groupBy("partition")
    with warnings.catch_warnings():
        # Spark's own operator, which rows go through in frames of pandas: what it warns of is not used.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        return keyed.transformWithStateInPandas(
            BandState(blueprint),
            outputStructType=_output_schema(blueprint, [left, right]),
            outputMode="Append",
            timeMode="None",
        )


def spread_keys(spark: SparkSession, partitions: int) -> tuple[int, ...]:
    """For each partition an integer that Spark's hash sends there: 0, 1, ... themselves would share some."""
    from pyspark.sql import functions as f

    number = f.col("id").cast("int")
    rows = spark.range(64 * partitions).select(number, f.pmod(f.hash(number), f.lit(partitions))).collect()
    found = {int(target): int(key) for key, target in reversed(rows)}
    return tuple(found[i] for i in range(partitions))


@dataclass(frozen=True)
class Send:
    """The stage that sends each row to its range, and copies to others that it can match."""

    blueprint: Blueprint
    side: int
    points: SplitPoints
    names: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut every batch into parts."""
        from pyspark import TaskContext

        context = TaskContext.get()
        source = context.partitionId() if context else 0
        seen = 0
        for number, batch in enumerate(batches):
            rows = conformed(batch, self.blueprint.schema(self.side))
            for target, kind, part in by_range(self.blueprint, self.side, rows, self.points, seen):
                yield from Part(self.names[target], self.side + kind, source, number, part).packed()
            seen += batch.num_rows


class BandState(StatefulProcessor):
    """One range: its sorted runs by number, for each side, and what new rows find in them."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint

    def init(self, handle: Any) -> None:
        """The state of a range: runs by number, with their newest ticks."""
        self._runs = [handle.getMapState(f"side{i}", "run long", "rows binary, newest long") for i in (0, 1)]

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002
        """Join the new rows of one range with its runs, then keep them as another."""
        plan = self._blueprint
        batches = [pa.RecordBatch.from_pandas(frame, schema=SCHEMA, preserve_index=False) for frame in rows]
        _, received = unpack(batches, (plan.schema(0), plan.schema(1)))
        left, right = (arrivals(plan, side, received[side], None) for side in (0, 1))
        runs = [list(self._stored(side)) for side in (0, 1)]
        for batch in plain(plan, self._found(left.probes, right, runs)):
            yield batch.to_pandas()
        self._keep((left.owned, right.owned), runs)

    def close(self) -> None:
        """Nothing is held."""

    def _stored(self, side: int) -> Iterator[tuple[int, int, Segment]]:
        plan = layout(self._blueprint, side)
        for (number,), (body, newest) in self._runs[side].iterator():
            batch = pa.ipc.read_record_batch(pa.py_buffer(body), plan.schema)
            yield number, newest, plan.segment(batch, numbered=False)

    def _found(
        self, left: SortedProbes, right: Any, runs: list[list[tuple[int, int, Segment]]]
    ) -> Iterator[FoundPairs]:
        for _, _, segment in runs[1]:
            yield from self._pairs(left, segment, probes_left=True)
        yield from self._pairs(left, right.owned.rows, probes_left=True)
        for _, _, segment in runs[0]:
            yield from self._pairs(right.probes, segment, probes_left=False)

    def _pairs(self, probes: SortedProbes, stored: Segment, *, probes_left: bool) -> Iterator[FoundPairs]:
        for probe, place in matches(probes, stored, ResidualTest(None, True, probes_left)):
            yield FoundPairs(probes, stored, probe, place, probes_left)

    def _keep(self, new: tuple[SortedProbes, SortedProbes], runs: list[list[tuple[int, int, Segment]]]) -> None:
        newest = [
            max([last for _, last, _ in runs[side]] + ([int(new[side].rows.ticks.max())] if new[side].rows.n else []))
            if runs[side] or new[side].rows.n
            else None
            for side in (0, 1)
        ]
        horizon = self._blueprint.horizons(newest)
        for side in (0, 1):
            for number, last, _ in runs[side]:
                if last < horizon[side]:
                    self._runs[side].removeKey((number,))
            live = new[side].rows.since(horizon[side], counted=False)
            first = 1 + max((number for number, _, _ in runs[side]), default=-1)
            for i, block in enumerate(block_rows(live, layout(self._blueprint, side))):
                self._runs[side].updateValue(
                    (first + i,), (block.batch.serialize().to_pybytes(), int(live.ticks.max()))
                )
