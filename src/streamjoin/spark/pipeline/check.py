"""`streamjoin run --check`: checks a pipeline file with Spark and the join; no row is read and nothing written.

The sources are replaced by streams with the same columns that read nothing, so no brokers or cluster are needed. A
local Spark parses types and expressions, and the join is bound to the columns. Of this machine's files it is checked
that they are what a run needs: sources that are there, a checkpoint of the same join, places that can be written. Other
machines are not asked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from streamjoin.config.pipeline import Pipeline
from streamjoin.config.table import together
from streamjoin.formats.described import table_sink
from streamjoin.formats.iceberg import IcebergSink
from streamjoin.model.errors import CheckpointError, PipelineFileError, SpecError, StateError
from streamjoin.spark.pipeline.run import join_streams, sent
from streamjoin.spark.pipeline.sources import checked_source
from streamjoin.spark.runtime.checkpoints import joins_of
from streamjoin.spark.runtime.session import session
from streamjoin.spark.runtime.starts import DIRECTORY, check_known, check_offsets, newest_number
from streamjoin.spark.tables import table_writer
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import check_description

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Made = TypeVar("_Made")

_SQL = "spark.sql."
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_ELSEWHERE = ("spark.sql.catalog", "spark.sql.extensions", "spark.sql.warehouse", "spark.sql.hive")
"""Settings that a check ignores, because they need classes or locations."""


def check_pipeline(pipeline: Pipeline, spark: SparkSession | None = None) -> str:
    """The columns of the result. Uses `spark`, or starts a session and stops it.

    Raises:
        PipelineFileError: Spark or the join rejects parts of the file; the message names the lines.
        SetupError: there is no pyspark or no Java.
    """
    started = checking_session(pipeline) if spark is None else spark
    try:
        mistakes = list(_wrong_places(pipeline))

        def noted(check: Callable[..., _Made], *arguments: Any) -> _Made | None:
            try:
                return check(*arguments)
            except PipelineFileError as error:
                mistakes.append(error)
                return None

        rows = {name: noted(checked_source, started, pipeline, name) for name in pipeline.sides}
        read = {name: frame for name, frame in rows.items() if frame is not None}
        # Without one of the sources nothing can be said of the join.
        joined = noted(join_streams, pipeline, read) if len(read) == len(rows) else None
        if joined is not None:
            noted(_check_checkpoint, pipeline, joins_of(joined))
            rows_out = noted(sent, joined, pipeline)
            if rows_out is not None:
                noted(_check_table, pipeline, rows_out)
        if joined is None or mistakes:
            raise together(mistakes)
        return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in joined.schema)
    finally:
        if spark is None:
            started.stop()


def planned_join(pipeline: Pipeline, spark: SparkSession) -> Blueprint:
    """The join of a pipeline as its tasks would get it; no row is read.

    Raises:
        PipelineFileError: Spark or the join rejects parts of the file; the message names the lines.
    """
    rows = {name: checked_source(spark, pipeline, name) for name in pipeline.sides}
    return joins_of(join_streams(pipeline, rows))[0]


def _wrong_places(pipeline: Pipeline) -> Iterator[PipelineFileError]:
    """Sources that are not there, and places where nothing can be written."""
    for name, source in pipeline.sides.items():
        path = None if source.path is None else _local(source.path)
        # Spark takes patterns too.
        if path is not None and not path.exists() and not any(path.parent.glob(path.name)):
            yield _mistake(pipeline, f"{name}.path", f"path = {source.path!r}: there is no such file or directory")
    written = {"sink.path": pipeline.sink.path, "checkpoint": pipeline.checkpoint, "join.late": pipeline.join.late}
    for key, location in written.items():
        path = None if location is None else _local(location)
        there = next((p for p in (path, *path.parents) if p.exists()), path) if path is not None else None
        if there is not None and not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            reason = "can't be written" if there.is_dir() else "is not a directory"
            yield _mistake(pipeline, key, f"{key.rpartition('.')[2]} = {location!r}: {there} {reason}")


def _check_checkpoint(pipeline: Pipeline, joins: Sequence[Blueprint]) -> None:
    """Refuse a checkpoint that the join can't continue from, as its start would."""
    checkpoint = None if pipeline.checkpoint is None else _local(pipeline.checkpoint)
    if checkpoint is None:
        return
    committed = newest_number(checkpoint / "commits")
    for join in joins:
        root = checkpoint / DIRECTORY / join.name
        try:
            check_offsets(checkpoint, root)
            check_known(checkpoint, join.name, committed)
            check_description(root, join.description, join.former_description)
        except CheckpointError as error:
            raise _mistake(pipeline, "checkpoint", str(error)) from None


def _check_table(pipeline: Pipeline, rows: DataFrame) -> None:
    """Refuse a table whose catalog is not described, or, on this machine, one with other columns."""
    table = table_sink(pipeline.sink)
    try:
        if isinstance(table, IcebergSink):
            table.check_catalog()
        elif table is not None:
            path = _local(table.path)
            if path is not None and (path / "_delta_log").is_dir():
                table_writer(table).check(rows)
    except (SpecError, StateError) as error:
        raise _mistake(pipeline, "sink", str(error)) from None


def _local(location: str) -> Path | None:
    """The path of a location on this machine."""
    if location.startswith("file:"):
        return Path(re.sub(r"^file:/*", "/", location))
    return None if _SCHEME.match(location) else Path(location)


def _mistake(pipeline: Pipeline, key: str, what: str) -> PipelineFileError:
    return PipelineFileError(f"{pipeline.file}, line {pipeline.lines[key]}: {what}")


def checking_session(pipeline: Pipeline) -> SparkSession:
    """A local session with one core and the settings of a pipeline that need no classes or locations."""
    conf = {
        key: value for key, value in pipeline.conf.items() if key.startswith(_SQL) and not key.startswith(_ELSEWHERE)
    }
    return session(f"{pipeline.name}: check", "local[1]", config={"spark.ui.enabled": False, **conf})
