"""The limit of the hand-over between Java and Python, beside `spark.join` and `transformWithState`.

The plans below the join have functions that do nothing: rows arrive in Python as they do in the join, and as many
result rows as the join gives leave it, each made of an input row without a copy. They differ in how rows get there:

- *same plan*: two Python stages with packed rows in the shuffle between them, as `spark.join` has on a cluster.
- *names*: the first stage writes its rows to a file, the shuffle has only its name, the second stage maps it, as in
  `spark.join` on one host. *spark.join, shuffled* is the join without that.
- *one stage*: one Python stage and no shuffle, which no join by ranges can have.
- *Spark routes*: Spark's expressions find the range, Spark shuffles single rows, and one Python stage follows.

What the join takes more than the same plan is its own; what that plan takes more than one stage is the second crossing.
"""

from __future__ import annotations

import dataclasses
import statistics
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, human, judge_aim
from benchmarks.spark.spark_band import FILL, Load, Plan
from benchmarks.spark.spark_state import ROCKSDB, by_state
from benchmarks.spark.spark_workaround import run_files
from streamjoin.model.binding import bind
from streamjoin.spark import session
from streamjoin.spark.runtime.internals import map_in_arrow
from streamjoin.spark.stages.parts import DDL, Part, opened
from streamjoin.spark.stream_join import Options, _arrow_schema, _output_schema, build
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.merging import MergePolicy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOIN, ORDERED, STATE = "spark.join", "spark.join, ordered", "transformWithState"
SHUFFLED = "spark.join, shuffled"
SAME, NAMES, ONE, ROUTED, NOTHING = "same plan", "names", "one stage", "Spark routes", "Spark alone"
LIMITS = (SAME, NAMES, ONE, ROUTED)
MATCHES = 2
_TINY, _MEDIUM, _LARGE = 20, 100_000, 1_000_000
_AIM_SPEED, _AIM_MEDIUM, _AIM_TINY, _AIM_ORDERED = 2e6, 1.3, 1.2, 1.5
_WARM_UP, _NEVER = 5_000, 1 << 62
_MEMORY = "4g"

SAME_SETTINGS = {
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
}
"""What a join sets in its own query, for plans that are compared with it."""


def plan(batch: int, quick: bool) -> Plan:
    """The batches that are measured, and those before them that let Java compile."""
    if quick:
        return Plan(2, 1)
    return Plan(20, 8) if batch < _LARGE else Plan(6, 4)


@dataclass(frozen=True)
class Pack:
    """The first stage: equal parts of every batch for both ranges, without a look at the rows."""

    side: int
    partitions: int
    directory: str | None = None
    """Where to write the rows, if only their names are sent."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send every range its part."""
        for number, batch in enumerate(batches):
            rows = -(-batch.num_rows // self.partitions)
            for target in range(self.partitions):
                part = batch.slice(target * rows, rows)
                if self.directory is not None:
                    part = pa.record_batch([[self._written(part)]], names=["name"])
                yield from Part(target, self.side, 0, number, part).packed()

    def _written(self, part: pa.RecordBatch) -> str:
        name = f"{self.directory}/{uuid.uuid4().hex}.arrow"
        with pa.OSFile(name, "wb") as file, pa.ipc.new_file(file, part.schema) as writer:
            writer.write_batch(part)
        return name


@dataclass(frozen=True)
class Unpack:
    """The second stage: result rows without a join."""

    input_schema: pa.Schema
    schema: pa.Schema
    named: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn the received rows into result rows."""
        parts = opened(list(batches))[1]
        for _, _, _, body in parts:
            if not self.named:
                yield from _results(pa.ipc.read_record_batch(body, self.input_schema), self.schema)
                continue
            name = pa.ipc.read_record_batch(body, pa.schema([("name", pa.string())])).column(0)[0].as_py()
            with pa.memory_map(name) as file:
                for batch in pa.ipc.open_file(file).read_all().to_batches():
                    yield from _results(batch, self.schema)
            Path(name).unlink()


@dataclass(frozen=True)
class Widen:
    """The only stage of a plan: result rows from input rows."""

    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn rows into result rows."""
        for batch in batches:
            yield from _results(batch, self.schema)


def _results(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Two rows for each, with the columns of a join's result, without a copy."""
    ts, key, payload = batch.columns
    ts = ts.cast(schema.field(0).type)
    for _ in range(MATCHES):
        yield pa.RecordBatch.from_arrays([ts, key, payload, ts, key, payload, ts], schema=schema)


def limit(system: str, left: DataFrame, right: DataFrame, load: Load, directory: str) -> DataFrame:
    """The plan of `system`, whose functions do nothing."""
    from pyspark.sql import functions as f

    partitions = int(left.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    schemas = [_arrow_schema(name, side) for name, side in (("left", left), ("right", right))]
    blueprint = Blueprint(bind(load.spec, *schemas), "limit", partitions)
    output, results = _output_schema(blueprint, [left, right]), blueprint.bound.schema
    if system == ONE:
        return map_in_arrow(left.union(right), Widen(results), output, "widen")
    if system == ROUTED:
        width, band = load.data.domain // partitions, load.data.band
        last = f.lit(partitions - 1)
        ranges = [f.least((key / width).cast("int"), last) for key in (left["key"] - band, left["key"] + band)]
        routed = left.withColumn("partition", f.explode(f.sequence(f.greatest(ranges[0], f.lit(0)), ranges[1])))
        stored = right.withColumn("partition", f.least((right["key"] / width).cast("int"), last))
        both = routed.union(stored)
        ranged = both.repartitionById(partitions, both["partition"]).drop("partition")
        return map_in_arrow(ranged, Widen(results), output, "widen")
    target = directory if system == NAMES else None
    sides = [map_in_arrow(side, Pack(i, partitions, target), DDL, "pack") for i, side in enumerate((left, right))]
    parts = sides[0].union(sides[1])
    ranged = parts.repartitionById(partitions, parts["partition"])
    return map_in_arrow(ranged, Unpack(schemas[0], results, system == NAMES), output, "unpack")


class SparkLimit(Experiment):
    """Rows a second of the join and of plans that do nothing."""

    title = "spark_limit: the join on Spark beside plans that hand as many rows over and do nothing"
    measure = "rows_per_s"
    unit = "rows/s"
    repeats = 1
    warmups = 0
    against: ClassVar = {"system": SAME}

    def __init__(self) -> None:
        self._spark: SparkSession | None = None

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every plan with every batch; ordered output and Spark alone for small ones, the shuffle for large ones."""
        batches = (_TINY, 20_000) if quick else (_TINY, _MEDIUM, _LARGE)
        small, large = (ORDERED, NOTHING), (SHUFFLED,)
        return [
            {"batch": batch, "system": system}
            for batch in batches
            for system in (SAME, JOIN, STATE, *LIMITS[1:], *(small if batch == _TINY else large))
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run the query over the cell's files."""
        if self._spark is None:
            self._warm_up(context)
        return self._run(cell, context)

    def _run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        system, batch = cell["system"], cell["batch"]
        load = Load({"window": _WARM_UP if context.quick else _MEDIUM, "batch": batch}, context)
        plan_, spec = plan(batch, context.quick), load.spec
        directory = context.scratch / "rows"
        directory.mkdir(exist_ok=True)
        builds: dict[str, tuple[Callable[..., DataFrame], Mapping[str, str]]] = {
            JOIN: (lambda left, right: sj.spark.join(left, right, spec), {}),
            SHUFFLED: (lambda left, right: build(left, right, spec, Options(spool=_NEVER), MergePolicy()), {}),
            ORDERED: (lambda left, right: sj.spark.join(left, right, spec, ordered=True), {}),
            STATE: (lambda left, right: by_state(left, right, spec, load.data.domain), ROCKSDB),
            NOTHING: (lambda left, right: left.union(right), SAME_SETTINGS),
        }
        builds |= {
            name: (lambda left, right, name=name: limit(name, left, right, load, str(directory)), SAME_SETTINGS)
            for name in LIMITS
        }
        plan_of, settings = builds[system]
        sides = load.directories(plan_.settling + plan_.measured)
        checkpoint = load.fresh(system.replace(" ", "-"))
        ran = run_files(
            self._session(), plan_of, *sides, checkpoint=checkpoint, skip=FILL + plan_.settling, settings=settings
        )
        return {
            "rows_per_s": ran.rows_per_second,
            "batch_ms": 1000 * statistics.median(batch.seconds for batch in ran.steady),
            "match_rate": sum(b.results for b in ran.steady) / sum(b.rows for b in ran.steady),
        }

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = session("spark_limit", memory=_MEMORY, config={"spark.ui.enabled": False})
        return self._spark

    def _warm_up(self, context: Context) -> None:
        """Every plan once over little, so that none pays for being first in a young Java."""
        self._session()
        for system in (*LIMITS, JOIN, STATE):
            cell = {"batch": 2 * _WARM_UP, "system": system}
            self._run(cell, dataclasses.replace(context, quick=True))

    def close(self) -> None:
        """Stop Spark, if a run started it."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """The time of a batch by plan, one chart for each size."""
        batches = sorted({row["batch"] for row in rows})
        for axes, batch in zip(figure.subplots(1, len(batches), squeeze=False)[0], batches, strict=True):
            own = [row for row in rows if row["batch"] == batch]
            axes.barh([row["system"] for row in own], [row["batch_ms"] for row in own])
            axes.set(title=f"{batch:,} rows", xlabel="ms a batch")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The aims, each beside what the hand-over alone takes."""
        at = {(row["batch"], row["system"]): row for row in rows}
        return [finding for batch in sorted({batch for batch, _ in at}) for finding in _of_batch(batch, at) if finding]

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The findings, and every plan's time by size."""
        lines = super().verdict(rows)
        for batch in sorted({row["batch"] for row in rows}):
            times = ", ".join(f"{row['system']} {row['batch_ms']:.0f} ms" for row in rows if row["batch"] == batch)
            lines.append(f"a batch of {batch:,} rows: {times}")
        return lines


def _of_batch(batch: int, at: Mapping[tuple[int, str], Row]) -> Iterator[Finding]:
    def times(system: str, other: str = SAME) -> float:
        return float(at[batch, system]["batch_ms"] / at[batch, other]["batch_ms"])

    least = min(at[batch, system]["batch_ms"] for system in LIMITS)
    own = f"{times(JOIN):.2f} times the same plan that does nothing, {at[batch, JOIN]['batch_ms'] / least:.2f} times "
    own += f"the fastest that does nothing, {times(JOIN, STATE):.2f} times transformWithState"
    if (batch, SHUFFLED) in at:
        own += f", {times(JOIN, SHUFFLED):.2f} times the join with rows in the shuffle"
    aim = {_TINY: _AIM_TINY, _MEDIUM: _AIM_MEDIUM}.get(batch)
    if aim is not None:
        yield judge_aim(f"a batch of {batch:,} rows", own, f"at most {aim} times the same plan", times(JOIN) <= aim)
    if batch >= _LARGE:
        speed = at[batch, JOIN]["rows_per_s"]
        said = f"{human(speed)} rows/s; {own}"
        yield judge_aim(f"batches of {batch:,} rows", said, f"at least {human(_AIM_SPEED)} rows/s", speed >= _AIM_SPEED)
    if (batch, ORDERED) in at:
        said = f"{times(ORDERED):.2f} times the plan of an unordered join that does nothing"
        rule = f"at most {_AIM_ORDERED}"
        yield judge_aim(f"ordered output, {batch} rows", said, rule, times(ORDERED) <= _AIM_ORDERED)


EXPERIMENT = SparkLimit()
