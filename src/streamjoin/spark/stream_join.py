"""`join`: joins two sides of streaming DataFrames into one.

Each side is split into ranges of index words, Spark moves the parts to one task per range, and that task joins them
with the window log. If the join needs one order, the tasks decide as a gate, or one comes first; if the output is
ordered, a sort comes last. All arguments are checked here, before a query exists.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from streamjoin.model import durations
from streamjoin.model.binding import BoundSpec, bind, matched_columns, narrowed
from streamjoin.model.comparisons import with_interval_index
from streamjoin.model.errors import InputError, NotSupportedError, SchemaError, SetupError, SpecError
from streamjoin.model.output import check_wanted
from streamjoin.model.spec import JoinSpec
from streamjoin.model.summary import Summary
from streamjoin.model.window import CountWindow
from streamjoin.spark.batch_lines import show_batches
from streamjoin.spark.columns import by_place, check_collations
from streamjoin.spark.result_frame import result_frame
from streamjoin.spark.runtime.checkpoints import expect, joins_in
from streamjoin.spark.runtime.internals import is_connect, map_in_arrow, plan_of, session_id
from streamjoin.spark.sources import Source, needs_gate, source_plans, sources_of
from streamjoin.spark.stages.figures import OBSERVED_DDL, observed, rows_metric
from streamjoin.spark.stages.gate import Collect, Gate
from streamjoin.spark.stages.output import PARTNER, POSITION, PUNCTUATION, OrderTask, result_schema
from streamjoin.spark.stages.parts import DDL
from streamjoin.spark.stages.route import Route
from streamjoin.spark.stages.task import JoinTask
from streamjoin.storage.blueprint import TASK, Blueprint, GatePlan, SourcePlan
from streamjoin.storage.merging import MergePolicy
from streamjoin.storage.places import place
from streamjoin.storage.ranges import MOST_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Side = DataFrame | Source | Sequence[DataFrame | Source]

_WATERMARK = "spark.watermarkDelayMs"
_LEAST_SPOOLED = 1 << 17
_USES_WATERMARK = re.compile(r"Deduplicate|Aggregate|GroupsWithState|TransformWithState|\bJoin\b")


def join(
    left: Side,
    right: Side | None,
    spec: JoinSpec,
    *,
    partitions: int | Literal["auto"] | None = "auto",
    most_partitions: int | None = None,
    ordered: bool = False,
    positions: bool = False,
    punctuate: bool = False,
    idle: str | timedelta | None = None,
    columns: Sequence[str] | None = None,
    late: str | Path | None = None,
    name: str | None = None,
    checkpoint: str | Path | None = None,
    end_of_input: bool = False,
    most_waiting: int | None = None,
) -> DataFrame:
    """Join two sides of streaming DataFrames; any sink can write the result.

    The state is stored under the checkpoint of the query that runs the join. With a sink that writes each batch once
    (files, tables, Kafka transactions, ...) every result is written exactly once, whichever processes are killed.

    Count windows, `ordered=True`, `positions=True`, `idle=`, several sources per side, and joins on intervals that are
    not inner have a gate, which brings all tuples into one order. It releases a tuple once every source has passed its
    time. Tuples that are not released when a query ends, also with the trigger
    `availableNow`, stay in the checkpoint for the next start, and so do tuples of an outer, anti or as-of join that are
    not decided. The end of such a run says how many these are; `end_of_input=True` decides them.

    The join has its own clocks (`lateness`, `spark.punctuations`) and does not use Spark's watermarks: a watermark
    on a side does not carry over to the result. To aggregate results by time, set a watermark on the result's time, for
    example `joined.withWatermark("ts", delay)`. With a delay of the longer window plus the lateness, no result is late.
    After a gate, the results of an inner join come in time order and a delay of 0 is enough; an unmatched row of an
    outer join has its own time and needs the delay of the window, without a gate that of both windows and the lateness.

    Args:
        left: the left side: a streaming DataFrame, a `Source`, or a list of them, one per physical source.
        right: the right side; None for a self-join.
        spec: the join's condition, windows, kind (`how`, `match`) and order; the order is "event_time", the default
            here. A restart may change the names of the result's columns, because the state does not depend on them.
        partitions: the number of tasks that join in parallel. "auto" follows the load, up to
            `spark.sql.shuffle.partitions`; None uses that number. A restart may change it.
        most_partitions: the largest number that `rescale` can set while the query runs; default: `partitions`.
        ordered: whether the rows of each batch are in result order, from the first partition to the last.
        positions: whether the result has two more columns, which define its order: `position`, the later tuple's
            position among all tuples, and `partner`, the earlier tuple's position within its side.
        punctuate: with `ordered=True`, whether each batch ends with a punctuation: a row with `punctuation` true, a
            time before which no later result follows, and NULL in all other columns. In results `punctuation` is
            false. `spark.punctuations` returns the same times for any join with a gate, and without one for all but
            inner joins.
        idle: after how long without rows, in processing time, the gate no longer waits for a source.
        columns: the columns of the result; other columns are neither shuffled nor stored. Default: all.
        late: a directory for late rows as Parquet files, one per batch with late rows, in addition to `spark.late`. The
            file exists when its batch is done. The tasks write it, so all machines need access to the directory.
        name: the directory of the state under the checkpoint. `streamjoin_` followed by the name is the name of the
            join's metrics in Spark's progress. It is needed only if one query has several joins side by side, because
            Spark rejects metrics with equal names. It must stay the same across restarts.
        checkpoint: the checkpoint of the query that will run the join. It is needed only over Spark Connect, if the
            result goes through a view or SQL before `writeStream`; otherwise the join finds it.
        end_of_input: whether the input ends with what is there: a run with the trigger `availableNow` then decides all
            tuples that wait, in one more batch, as `close()` does in `sj.open`. What later runs read is joined as a
            stream of its own. If a query has several joins, it ends the input of all.
        most_waiting: how many rows may wait in the gate after a batch. With more the query fails, names the source that
            they wait for, and has joined nothing of the batch. A restart may change it. Default: any number.

    Raises:
        SpecError: the spec is invalid, does not match the columns, or is not supported on Spark.
        NotSupportedError: the kind of join does not go with the order or an option.
        InputError: a side is not a streaming DataFrame.
        SetupError: pyspark is missing, or the session can't run the join.
        CheckpointError: raised by `writeStream...start()` on the result: the checkpoint belongs to another join, can't
            be written, or is incomplete. Over Spark Connect tasks check it, and `awaitTermination()` raises it.
    """
    options = Options(
        partitions, most_partitions, ordered, positions, idle, columns, _everywhere(late), name, punctuate,
        None if checkpoint is None else str(checkpoint), end_of_input=end_of_input,
        most_waiting=most_waiting,
    )  # fmt: skip
    return build(left, right, spec, options, MergePolicy())


@dataclass(frozen=True)
class Options:
    """The options of `join`; tests also set `spool`, from how many bytes on rows go from task to task in a file."""

    partitions: int | Literal["auto"] | None = "auto"
    most_partitions: int | None = None
    ordered: bool = False
    positions: bool = False
    idle: str | timedelta | None = None
    columns: Sequence[str] | None = None
    late: str | None = None
    name: str | None = None
    punctuate: bool = False
    checkpoint: str | None = None
    spool: int | None = None
    end_of_input: bool = False
    most_waiting: int | None = None


def _everywhere(late: str | Path | None) -> str | None:
    """The absolute location of the late output: tasks, which run in other directories, write it."""
    if late is None:
        return None
    directory = place(str(late))
    return str(directory.absolute() if isinstance(directory, Path) else directory)


def build(left: Side, right: Side | None, spec: JoinSpec, options: Options, policy: MergePolicy) -> DataFrame:
    """`join` with a merge policy, which tests set."""
    spec = _checked(spec)
    sides = _sides(left, right, spec)
    spark = _check_sides(sides)
    _warn_of_watermarks(sides, spec.result_time_name)
    for side, sources in sides.items():
        _check_alike(side, [source.frame for source in sources])
    schemas = [_arrow_schema(side, sources[0].frame) for side, sources in sides.items()]
    plans = [source_plans(side, sides[side], schema) for side, schema in zip(sides, schemas, strict=True)]
    needed = tuple({c for plan in side for c in (plan.by, plan.position) if c is not None} for side in plans)
    bound = narrowed(bind(spec, schemas[0], schemas[-1]), check_wanted(options.columns), (needed[0], needed[-1]))
    if bound.time is not None and pa.types.is_duration(bound.time.type):
        raise NotSupportedError(
            f"time column {bound.time.left!r} is an interval: Spark's watermarks count timestamps; cast it to a "
            "timestamp or to an integer"
        )
    _check_summary(bound)
    for i, (side, sources) in enumerate(sides.items()):
        check_collations(f"the {side} side of the join", sources[0].frame, _compared(bound, i, plans[i]))
    frames = [
        [by_place(source.frame, (bound.right_schema if i else bound.left_schema).names) for source in sources]
        for i, sources in enumerate(sides.values())
    ]
    most, first, auto = _partitions(options, spark)
    gate = _gate(bound, sides, (plans[0], plans[-1]), options)
    blueprint = Blueprint(
        bound,
        _name(options.name, [frame for side in frames for frame in side]),
        most,
        policy,
        gate=gate,
        first=first,
        auto=auto,
        late=options.late,
        unattended=is_connect(spark),
        checkpoint=options.checkpoint,
        spool=_spool(options, spark),
        end_of_input=options.end_of_input,
        former_sources=_former_sources(spec, (plans[0], plans[-1])) if gate is None else None,
    )
    if blueprint.end_of_input and blueprint.unattended:
        raise NotSupportedError(
            "end_of_input=True is not there over Spark Connect, where the client may not reach the checkpoint: use a "
            "classic session"
        )
    _check_columns(blueprint)
    expect(spark, blueprint)
    shown = show_batches(spark)
    alone = blueprint.gate is not None and not blueprint.gate.shared
    parts = _gated(blueprint, frames) if alone else _routed(blueprint, frames)
    ranged = parts.repartitionById(blueprint.partitions, parts["partition"])
    schema = _output_schema(blueprint, [sources[0].frame for sources in sides.values()])
    if blueprint.gate is None or not blueprint.gate.ordered:
        rows = map_in_arrow(ranged, JoinTask(blueprint), schema, f"{TASK}_{blueprint.token}")
        return result_frame(_counted(rows, blueprint) if shown else rows)
    parts_of_results = map_in_arrow(ranged, JoinTask(blueprint), DDL, f"{TASK}_{blueprint.token}")
    partitioned = parts_of_results.repartitionById(blueprint.partitions, parts_of_results["partition"])
    in_order = map_in_arrow(partitioned, OrderTask(blueprint), schema, f"streamjoin_order_{blueprint.token}")
    return result_frame(_counted(in_order, blueprint) if shown else in_order)


def _counted(rows: DataFrame, blueprint: Blueprint) -> DataFrame:
    """`rows`, whose number is observed."""
    from pyspark.sql import functions as f

    return rows.observe(rows_metric(blueprint.name), f.count(f.lit(1)).alias("rows"))


def _routed(blueprint: Blueprint, frames: Sequence[Sequence[DataFrame]]) -> DataFrame:
    name = f"streamjoin_route_{blueprint.token}"
    stages = [
        map_in_arrow(frame, Route(blueprint, side, i), OBSERVED_DDL, name)
        for side, sources in enumerate(frames)
        for i, frame in enumerate(sources)
    ]
    return _timed(blueprint, observed(_union(stages), blueprint.name))


def _gated(blueprint: Blueprint, frames: Sequence[Sequence[DataFrame]]) -> DataFrame:
    stages = [
        map_in_arrow(frame, Collect(blueprint, side, i), DDL, f"streamjoin_collect_{blueprint.token}")
        for side, sources in enumerate(frames)
        for i, frame in enumerate(sources)
    ]
    collected = _timed(blueprint, _union(stages))
    single = collected.repartitionById(1, collected["partition"])
    parts = map_in_arrow(single, Gate(blueprint), OBSERVED_DDL, f"streamjoin_gate_{blueprint.token}")
    return observed(parts, blueprint.name)


def _timed(blueprint: Blueprint, parts: DataFrame) -> DataFrame:
    """The parts with the time of their batch, if a source may be idle."""
    from pyspark.sql import functions as f

    if blueprint.gate is None or blueprint.gate.idle_ms is None:
        return parts
    # Spark records this time with the batch: it is the same when the batch runs again.
    return parts.withColumn("now", f.unix_millis(f.current_timestamp()))


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return functools.reduce(lambda a, b: a.union(b), frames)


def _gate(
    bound: BoundSpec,
    sides: Mapping[str, Sequence[Source]],
    plans: tuple[tuple[SourcePlan, ...], tuple[SourcePlan, ...]],
    options: Options,
) -> GatePlan | None:
    """The gate, if the join needs one."""
    spec = bound.spec
    counted = spec.match is None and any(isinstance(window, CountWindow) for window in spec.windows)
    several = any(needs_gate(sources) for sources in sides.values())
    if options.punctuate and not options.ordered:
        raise SpecError("punctuate=True ends the rows of a batch, which have no end without ordered=True")
    kind = spec.how != "inner" or spec.match is not None
    if kind:
        _check_kind(spec, options)
    # Of two new intervals the one that begins first may reach further than all stored ones, unknown to its range.
    unknown = kind and with_interval_index(bound).intervals is not None
    # The rows of a window are summarised in their order.
    needed = unknown or counted or several or bound.summary is not None
    most = options.most_waiting
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise SpecError(f"most_waiting={most!r}: it is a whole number from 1, or None for no limit")
    if not (needed or options.ordered or options.positions or options.idle is not None):
        if most is not None:
            raise SpecError(f"most_waiting={most:,} limits what waits in a gate, which this join has not: leave it out")
        return None
    # Which ranges a new interval reaches depends on the longest other new one, and rows of a window on all before them.
    shared = with_interval_index(bound).intervals is None and bound.summary is None
    return GatePlan(plans, _idle_ms(options.idle), options.ordered, options.positions, options.punctuate, most, shared)


def _former_sources(
    spec: JoinSpec, plans: tuple[tuple[SourcePlan, ...], tuple[SourcePlan, ...]]
) -> tuple[str, str] | None:
    """The sources of the gate that earlier versions put before every kind of join but inner."""
    if spec.how == "inner" and spec.match is None:
        return None
    left, right = (", ".join(map(str, side)) for side in plans)
    return left, right


def _check_kind(spec: JoinSpec, options: Options) -> None:
    """Reject options that have no meaning for a kind of join other than inner."""
    kind = f"how={spec.how!r}" if spec.match is None else f"match={type(spec.match).__name__}"
    if options.positions:
        raise NotSupportedError(
            f"positions=True numbers the two tuples of a pair, and {kind} gives other rows as well; use ordered=True"
        )
    if options.punctuate and spec.left_only:
        raise NotSupportedError(f"punctuate=True ends a batch with a result time, and {kind} has none")
    counted = [side for side, window in zip(("left", "right"), spec.windows, strict=True) if _is_counted(window)]
    if options.punctuate and spec.match is None and set(counted) & set(spec.preserved):
        raise NotSupportedError(
            f"punctuate=True with {kind} and a CountWindow: an unmatched tuple stays for as long as no others come, so "
            "no time is known before which no result follows; use a TimeWindow"
        )


def _check_summary(bound: BoundSpec) -> None:
    """Reject summaries whose matches lie in the ranges of several keys."""
    if bound.summary is not None and not bound.summary.by_equalities:
        raise NotSupportedError(
            f"match=Summary on {bound.spec.predicate}: on Spark the condition is equalities, or none (on=None), as "
            "one task has all tuples of a key, and none has all those that another condition compares; leave it out, "
            "or join with sj.live or sj.open, which summarise under any condition"
        )


def _is_counted(window: object) -> bool:
    return isinstance(window, CountWindow)


def _idle_ms(idle: str | timedelta | None) -> int | None:
    if idle is None:
        return None
    if not isinstance(idle, (str, timedelta)):
        raise SpecError(f"idle={idle!r}: give a duration such as '10 seconds'")
    milliseconds = durations.nanoseconds(idle) // 1_000_000
    if milliseconds < 1:
        raise SpecError(f"idle={idle!r}: it is at least a millisecond")
    return milliseconds


def _checked(spec: JoinSpec) -> JoinSpec:
    """The spec in event-time order, the only one on Spark."""
    if not isinstance(spec, JoinSpec):
        raise SpecError(f"spec is a streamjoin.JoinSpec, not {spec!r}")
    if spec.time is None:
        raise SpecError("a join on Spark is in the order of event time and needs a time column: add time='...'")
    if spec.order == "arrival":
        raise NotSupportedError(
            "order='arrival' has no meaning on Spark: partitions have no common order of arrival: leave order= out "
            "of the spec, or write order='event_time'"
        )
    return spec.in_order()


def _sides(left: object, right: object, spec: JoinSpec) -> dict[str, list[Source]]:
    if spec.self_join:
        if right is not None and right is not left:
            raise InputError("with self_join=True one stream is both sides: give None for the right one")
        return {"left": sources_of(left)}
    if right is None:
        raise InputError("the right side is missing; for a self-join write self_join=True in the spec")
    return {"left": sources_of(left), "right": sources_of(right)}


def _check_sides(sides: Mapping[str, Sequence[Source]]) -> SparkSession:
    try:
        from pyspark.sql import DataFrame as Frame
    except ImportError as error:
        raise SetupError("pyspark is not installed: pip install 'streamjoin[spark]'") from error
    frames = [(side, source.frame) for side, sources in sides.items() for source in sources]
    for side, frame in frames:
        if not isinstance(frame, Frame):
            raise InputError(f"the {side} side is a {type(frame).__name__}, not a streaming DataFrame")
        if not frame.isStreaming:
            raise InputError(
                f"the {side} side is a batch DataFrame; read it with spark.readStream, or join a table that does not "
                "change with Spark's own DataFrame.join"
            )
    sessions = {session_id(frame.sparkSession) for _, frame in frames}
    if len(sessions) > 1:
        raise InputError("the two sides belong to different Spark sessions; build both with the same one")
    return frames[0][1].sparkSession


def _warn_of_watermarks(sides: Mapping[str, Sequence[Source]], result_time: str | None) -> None:
    """Warn about a watermark that nothing before the join uses; the result does not have it."""
    for side, sources in sides.items():
        for source in sources:
            watermarks = [field.name for field in source.frame.schema if _WATERMARK in field.metadata]
            if watermarks and not _USES_WATERMARK.search(plan_of(source.frame)):
                warnings.warn(
                    f"the {side} side has a watermark on {watermarks[0]!r}, which the join does not use and the result "
                    "does not have. Leave it out; for an aggregation after the join, put one on the result's time: "
                    f"join(...).withWatermark({result_time!r}, ...), with a delay of the window plus the lateness",
                    UserWarning,
                    # join() is two frames up, its caller three.
                    stacklevel=4,
                )


def _check_alike(side: str, frames: Sequence[DataFrame]) -> None:
    """Reject sources of a side that differ in their columns; they may have them in another order."""
    first, *others = ({field.name: field.dataType for field in frame.schema} for frame in frames)
    for types in others:
        names = sorted(n for n in {*first, *types} if first.get(n) != types.get(n))
        if names:
            raise InputError(
                f"the sources of the {side} side differ in {', '.join(map(repr, names))}: all need the same columns "
                "of the same types"
            )


def _compared(bound: BoundSpec, side: int, plans: Sequence[SourcePlan]) -> set[str]:
    """The columns of a side whose values the join compares."""
    names = {(term.right if side else term.left).name for term in bound.keys}
    if bound.residual is not None:
        both = ("l", "r") if bound.spec.self_join else ("r" if side else "l",)
        names |= {column.name for column in bound.residual.columns if column.qualifier in both}
    if isinstance(bound.spec.match, Summary):
        names |= bound.spec.match.columns("r" if side else "l")
        names |= bound.spec.match.columns("r") if bound.spec.self_join else set()
    if bound.spec.self_join:
        names |= {term.right.name for term in bound.keys}
    return names | {plan.by for plan in plans if plan.by is not None}


def _check_columns(blueprint: Blueprint) -> None:
    for side in (0, 1):
        for column in blueprint.schema(side).names:
            if column.startswith("#"):
                raise InputError(f"the column {column!r} begins with #, which is reserved: rename it")
    gate = blueprint.gate
    own = dict.fromkeys((POSITION, PARTNER), "positions") if gate and gate.positions else {}
    own |= {PUNCTUATION: "punctuate"} if gate and gate.punctuated else {}
    for column, option in own.items():
        if column in blueprint.bound.schema.names:
            raise SchemaError(f"with {option}=True the result has a column {column!r} already: rename yours")


def _arrow_schema(side: str, frame: DataFrame) -> pa.Schema:
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    except PySparkTypeError as error:
        raise InputError(f"the {side} side has a column that Arrow doesn't support: {error.getMessage()}") from error


def _name(name: str | None, frames: Sequence[DataFrame]) -> str:
    if name is not None:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
            raise SpecError(f"name={name!r}: up to 64 letters, digits, - and _, as it becomes the name of a directory")
        return name
    below = {t for f in frames for t in joins_in(plan_of(f))}
    return f"join{len(below) + 1}" if below else "join"


def _partitions(options: Options, spark: SparkSession) -> tuple[int, int, bool]:
    """The number of tasks, the initial number of ranges, and whether the load changes that number."""
    usual = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    setting = options.partitions
    auto = setting == "auto"
    first = _number("partitions", usual if setting is None or setting == "auto" else setting)
    most = first if options.most_partitions is None else _number("most_partitions", options.most_partitions)
    if most < first and not auto:
        raise SpecError(f"most_partitions={most} is less than the {first} initial partitions")
    return most, min(first, most), auto


def _spool(options: Options, spark: SparkSession) -> int | None:
    """Files carry rows between tasks only where all of them run on one host."""
    master = "" if is_connect(spark) else spark.conf.get("spark.master", "") or ""
    if master != "local" and not master.startswith("local["):
        return None
    return _LEAST_SPOOLED if options.spool is None else options.spool


def _number(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_PARTITIONS:
        raise SpecError(
            f"{what}={value!r}: it is a whole number from 1 to {MOST_PARTITIONS:,}, or None for "
            "spark.sql.shuffle.partitions"
        )
    return value


def _output_schema(blueprint: Blueprint, frames: Sequence[DataFrame]) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    bound = blueprint.bound
    sources = {"left": frames[0].schema, "right": frames[-1].schema}
    # A row whose key or time is NULL has no match; non-nullable columns save Spark a check per value.
    non_null = {(side, c) for i, side in enumerate(("left", "right")) for c in matched_columns(bound, i)}
    sure = bound.spec.how in ("inner", "semi") and not (blueprint.gate is not None and blueprint.gate.punctuated)
    non_null = non_null if sure else set()
    schemas = {"left": bound.left_schema, "right": bound.right_schema}
    fields = []
    for c, field in zip(bound.columns, bound.schema, strict=False):
        if c.side == "summary":
            fields.append(StructField(c.name, from_arrow_type(field.type)))
            continue
        type_ = sources[c.side][c.source].dataType
        if not field.type.equals(schemas[c.side].field(c.source).type):
            # A key that appears once, in the common type of both sides.
            type_ = from_arrow_type(field.type)
        fields.append(StructField(c.name, type_, (c.side, c.source) not in non_null))
    own = list(result_schema(blueprint))[len(fields) :]
    return StructType([*fields, *(StructField(field.name, from_arrow_type(field.type), False) for field in own)])
