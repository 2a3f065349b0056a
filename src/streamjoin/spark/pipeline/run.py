"""Runs a pipeline: sources, join, sink, until it is stopped or all available input is processed.

A stop never loses or repeats rows: the current batch finishes, and a batch that begins
afterwards is run again from the checkpoint at the next start. No message contains secrets of the file.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console

from streamjoin.config.pipeline import Pipeline, PipelineSource, without_secrets
from streamjoin.formats.described import table_sink
from streamjoin.model.binding import bind
from streamjoin.model.errors import (
    CheckpointError,
    InputError,
    PipelineFileError,
    SpecError,
    StateError,
    StreamJoinError,
)
from streamjoin.model.predicates import Equi, Theta
from streamjoin.model.spec import JoinSpec
from streamjoin.model.summary import Summary
from streamjoin.model.window import CountWindow
from streamjoin.spark.batch_lines import SETTING
from streamjoin.spark.columns import quoted
from streamjoin.spark.pipeline.progress import PipelineFigures
from streamjoin.spark.pipeline.sources import SourceFrames, at_line, open_source
from streamjoin.spark.pipeline.view import ROWS_OUT, Totals, shown
from streamjoin.spark.runtime import jars
from streamjoin.spark.runtime.session import Stopping, session_beside, set_meanwhile
from streamjoin.spark.sources import Source
from streamjoin.spark.stages.late import late
from streamjoin.spark.stages.undecided import Undecided
from streamjoin.spark.stream_join import join
from streamjoin.spark.tables import table_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL = 0.2
_ENDS = "end_of_input = true in [join] decides it at the end of a backlog"
_LONGEST = 600
_OURS = re.compile(r"streamjoin\.model\.errors\.\w+: (.+)")
_TRACE = re.compile(r"\s*(?:at |\.\.\. \d+ more|=+ |JVM stacktrace)")


def refused_part(pipeline: Pipeline, rows: Mapping[str, DataFrame]) -> str:
    """The part that does not match the columns of the sources, as a key of `Pipeline.lines`; else `join`."""
    for name, source in pipeline.sides.items():
        for key, column in (("by", source.by), ("position", source.position)):
            if column is not None and column not in rows[name].columns:
                return f"{name}.{key}"
    try:
        left, right = (_schema(rows[name]) for name in ("left", "right" if "right" in rows else "left"))
    except StreamJoinError:
        return "join"
    if any(column not in schema.names for column, schema in zip(_times(pipeline), (left, right), strict=False)):
        return "join.time"
    spec = pipeline.spec
    if isinstance(spec.match, Summary):
        return _refused_summary(spec, left, right)
    # The join fails with any condition, for example because of the window's unit.
    if not _binds(replace(spec, on=Theta("1 = 1")), left, right):
        return _refused_length(spec, left, right)
    for number, term in enumerate(spec.predicate.terms()):
        if not _binds(replace(spec, on=term), left, right):
            return f"on.{number}"
    return "join.columns" if pipeline.join.columns is not None else "join"


def _refused_summary(spec: JoinSpec, left: pa.Schema, right: pa.Schema) -> str:
    """Which part of a join with summaries is refused."""
    plain = replace(spec, window=CountWindow(1), match=None, lateness=None)
    for number, term in enumerate(spec.predicate.terms()):
        if not isinstance(term, Equi) or not _binds(replace(plain, on=term), left, right):
            return f"on.{number}"
    return "join.summary"


def _refused_length(spec: JoinSpec, left: pa.Schema, right: pa.Schema) -> str:
    """Which of the lengths of time does not fit the time columns; else `join`."""
    plain = replace(spec, on=Theta("1 = 1"), window=CountWindow(1), match=None, lateness=None)
    lengths: dict[str, dict[str, Any]] = {"lateness": {"lateness": spec.lateness}}
    if spec.match is None:
        lengths = {"window": {"window": spec.window}} | lengths
    else:
        lengths = {"match": {"match": spec.match, "window": None}} | lengths
    if _binds(plain, left, right):
        for key, changes in lengths.items():
            if not _binds(replace(plain, **changes), left, right):
                return f"join.{key}"
    return "join"


def _times(pipeline: Pipeline) -> tuple[str, ...]:
    return tuple(pipeline.spec.time_columns or ())


def _schema(frame: DataFrame) -> pa.Schema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    except PySparkException as error:
        raise InputError(str(error)) from error


def _binds(spec: JoinSpec, left: pa.Schema, right: pa.Schema) -> bool:
    try:
        bind(spec, left, right)
    except StreamJoinError:
        return False
    return True


def run(pipeline: Pipeline, console: Console, *, spark: SparkSession | None = None) -> Totals:
    """Run until SIGINT or SIGTERM, or with `trigger = "available now"` until everything there is joined.

    Uses `spark`, or starts a session and stops it.

    Raises:
        PipelineFileError: Spark can't take something the file says; the message names the line.
        SetupError: Spark can't start, or the Kafka connector can't be had.
        StreamJoinError: the pipeline failed while it ran.
        KeyboardInterrupt: a second signal came before the batch ended.
    """
    own = spark is None
    with Stopping() as stopping, contextlib.ExitStack() as scratch:
        # Removed once the session has stopped: until then its listeners write to the checkpoint of a query that ended.
        checkpoint = pipeline.checkpoint or scratch.enter_context(tempfile.TemporaryDirectory(prefix="streamjoin-"))
        started = _session(pipeline, console) if spark is None else spark
        try:
            if stopping.asked:
                return Totals()
            # Figures are shown here.
            with (
                PipelineFigures(started, pipeline.progress, console) as figures,
                set_meanwhile(started, {SETTING: "false"}),
            ):
                queries = _start(started, pipeline, checkpoint)
                return _watch(pipeline, queries, checkpoint, console, stopping, figures)
        finally:
            if own:
                started.stop()


def _session(pipeline: Pipeline, console: Console) -> SparkSession:
    conf = pipeline.conf
    if pipeline.needs_kafka:
        conf = jars.with_connector(conf, lambda line: console.print(line, highlight=False))
    return session_beside(pipeline.name, pipeline.master, config=conf, memory=pipeline.memory, storage=pipeline.storage)


def _start(spark: SparkSession, pipeline: Pipeline, checkpoint: str) -> list[StreamingQuery]:
    """The join's query, and one per source that stores its malformed records."""
    streams = {name: open_source(spark, pipeline, name) for name in pipeline.sides}
    joined = join_streams(pipeline, {name: frames.rows for name, frames in streams.items()})
    started: list[StreamingQuery] = []
    try:
        started.append(_write(joined, pipeline, checkpoint))
        for side, source in pipeline.sides.items():
            if source.malformed is not None:
                started.append(_write_malformed(streams[side], pipeline, side, source.malformed, checkpoint))
    except CheckpointError as error:
        raise CheckpointError(f"the pipeline {pipeline.file} did not start: {error}") from error
    except BaseException:
        for query in started:
            query.stop()
        raise
    return started


def join_streams(pipeline: Pipeline, rows: Mapping[str, DataFrame]) -> DataFrame:
    """The join of a pipeline's sources.

    Raises:
        PipelineFileError: it does not fit their columns; the message names the line.
    """
    try:
        sides = [_side(pipeline.side(side), rows) for side in ("left", "right")]
        return join(sides[0], sides[1] or None, pipeline.spec, **asdict(pipeline.join))
    except (SpecError, InputError) as error:
        line = pipeline.lines[refused_part(pipeline, rows)]
        raise PipelineFileError(f"{pipeline.file}, line {line}: {_one_line(error)}") from error


def _side(sources: Mapping[str, PipelineSource], rows: Mapping[str, DataFrame]) -> list[Source]:
    return [
        Source(rows[name], source.name, source.by, source.position, source.values) for name, source in sources.items()
    ]


def _one_line(error: Exception) -> str:
    """The error message without the excerpt of the condition's text."""
    return str(error).partition("\n")[0]


def _write(joined: DataFrame, pipeline: Pipeline, checkpoint: str) -> StreamingQuery:
    from pyspark.sql import functions as F  # noqa: N812

    sink = pipeline.sink
    counted = joined.observe(ROWS_OUT, F.count(F.lit(1)).alias("rows"))
    rows = sent(counted, pipeline)
    table = table_sink(sink)
    with at_line(pipeline, "sink"):
        if table is None:
            writer = rows.writeStream.format(sink.format).options(**sink.options)
        else:
            batches = table_writer(table, checkpoint)
            try:
                batches.check(rows)
            except (SpecError, StateError) as error:
                raise PipelineFileError(f"{pipeline.file}, line {pipeline.lines['sink']}: {error}") from error
            writer = rows.writeStream.foreachBatch(batches)
        writer = writer.option("checkpointLocation", checkpoint).queryName(sink.name or pipeline.name)
        if sink.path is not None and table is None:
            writer = writer.option("path", sink.path)
        query: StreamingQuery = _triggered(writer, pipeline).start()
        return query


def sent(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The rows as the sink takes them: for Kafka one JSON object each, NULLs included.

    Raises:
        PipelineFileError: the sink's `select` or `key` does not fit them; the message names the line.
    """
    from pyspark.sql import functions as F  # noqa: N812

    sink = pipeline.sink
    if sink.select:
        with at_line(pipeline, "sink.select"):
            rows = rows.selectExpr(*sink.select)
    if sink.format != "kafka":
        return rows
    value = F.to_json(F.struct(*map(quoted, rows.columns)), {"ignoreNullFields": "false"}).alias("value")
    with at_line(pipeline, "sink.key"):
        # A field of a struct, unless there is a column of that very name.
        name = quoted(sink.key) if sink.key in rows.columns else sink.key
        key = [] if name is None else [F.col(name).cast("string").alias("key")]
        return rows.select(*key, value)


def _write_malformed(
    streams: SourceFrames, pipeline: Pipeline, side: str, path: str, checkpoint: str
) -> StreamingQuery:
    if streams.malformed is None:
        raise PipelineFileError(f"{pipeline.file}, line {pipeline.lines[side]}: nothing of this source is decoded")
    with at_line(pipeline, side):
        writer = streams.malformed.writeStream.format("parquet").option("path", path)
        writer = writer.option("checkpointLocation", f"{checkpoint}/malformed/{side}")
        query: StreamingQuery = _triggered(writer.queryName(f"{pipeline.name} malformed {side}"), pipeline).start()
        return query


def _triggered(writer: Any, pipeline: Pipeline) -> Any:
    trigger = pipeline.trigger
    if trigger.available_now:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=trigger.every) if trigger.every else writer


def _watch(
    pipeline: Pipeline,
    queries: list[StreamingQuery],
    checkpoint: str,
    console: Console,
    stopping: Stopping,
    figures: PipelineFigures,
) -> Totals:
    """Show the progress of the queries until they end or are stopped; then print a summary."""
    totals = Totals(pipeline.spec.self_join)
    main = queries[0]
    try:
        with shown(console, totals, wanted=pipeline.conf.get(SETTING, "true").lower() != "false") as show:
            while any(query.isActive for query in queries) and not stopping.asked:
                time.sleep(_POLL)
                show(totals.take(main.recentProgress))
                figures.take(main)
                _raise_failure(pipeline, queries)
            if stopping.asked:
                for query in queries:
                    _let_the_batch_end(query)
            show(totals.take(main.recentProgress))
        _raise_failure(pipeline, queries)
    finally:
        for query in queries:
            query.stop()
    figures.take(main, last=True)
    totals.take(main.recentProgress)
    waiting = getattr(main, "undecided", ())
    _report(pipeline, totals, checkpoint, console, waiting, stopped=stopping.asked)
    return totals


def _let_the_batch_end(query: StreamingQuery) -> None:
    """Wait until the running batch is committed; Spark has no call for this."""
    before = query.lastProgress
    while query.isActive and query.status["isTriggerActive"]:
        now = query.lastProgress
        if now is not None and (before is None or now["batchId"] != before["batchId"]):
            return
        time.sleep(_POLL / 4)


def _raise_failure(pipeline: Pipeline, queries: list[StreamingQuery]) -> None:
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise StreamJoinError(f"the pipeline {pipeline.file} stopped: {cause(str(failure), pipeline)}")


def cause(message: str, pipeline: Pipeline) -> str:
    """The part of a failed query's message that is useful to a user."""
    ours = _OURS.findall(message)
    reason = ours[-1] if ours else _java_cause(message)
    options = [each for source in pipeline.sides.values() for each in (source.options, source.decode_options)]
    return without_secrets(reason, pipeline.conf, pipeline.sink.options, *options)


def _java_cause(message: str) -> str:
    innermost = message.rsplit("Caused by: ", 1)[-1]
    lines = itertools.takewhile(lambda line: line.strip() and not _TRACE.match(line), innermost.strip().splitlines())
    cause = " ".join(line.strip() for line in lines) or "Spark gave no reason"
    return cause if len(cause) <= _LONGEST else cause[:_LONGEST] + " ..."


def _report(
    pipeline: Pipeline,
    totals: Totals,
    checkpoint: str,
    console: Console,
    waiting: Sequence[tuple[str, Undecided]],
    *,
    stopped: bool,
) -> None:
    lines = [f"{'stopped' if stopped else 'done'}: {totals}"]
    kept = "the next start goes on with what waits" if pipeline.checkpoint else "without a checkpoint that is lost"
    lines += [f"{tuples}; {kept}. {_ENDS}" for _, tuples in waiting]
    if totals.batches:
        # A query that was stopped in its first batch has no log yet.
        with contextlib.suppress(StreamJoinError):
            rows = late(checkpoint).num_rows
            if rows:
                lines.append(
                    f"late: {rows:,} rows since the first start; streamjoin.spark.stages.late({checkpoint!r}) has them"
                )
    for side, count in totals.malformed.items():
        if count:
            place = pipeline.sides[side].malformed
            table = f"[source.{side.partition('-')[0]}]"
            where = f"in {place}" if place else f"only counted; to store them, set malformed = in {table}"
            lines.append(f"malformed: {count:,} value{'s' * (count != 1)} on the {side}, {where}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
