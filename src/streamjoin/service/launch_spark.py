"""Starts Spark and an engine on it from a `ServiceConfig`."""

from __future__ import annotations

from functools import partial
from typing import Any

from streamjoin.model.errors import PipelineFileError, SchemaError
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.engine.assembly import executor_kind
from streamjoin.queries.engine.engine import Engine
from streamjoin.queries.engine.journal import stored_executor
from streamjoin.service.config import ServiceConfig
from streamjoin.service.launch import Report, RunningEngine, SourceOutage, start_engine
from streamjoin.spark.pipeline.sources import open_marked
from streamjoin.spark.runtime import jars
from streamjoin.spark.runtime.session import session


def launch_on_spark(config: ServiceConfig, report: Report) -> RunningEngine:
    """Start Spark, and the engine on it; see `launch`."""
    spark = _session(config, report)
    try:
        report(executor_words(config, spark))
        return start_engine(config, spark, partial(register_on_spark, spark, config))
    except BaseException:
        spark.stop()
        raise


def executor_words(config: ServiceConfig, spark: Any) -> str:
    """Where Spark joins, and why; from before the engine begins its checkpoint."""
    kind = executor_kind(spark, config.checkpoint, Settings(sharing=config.sharing), config.executor)  # type: ignore[arg-type]
    where = "in cells on Spark's executors" if kind == "distributed" else "in the driver's process"
    if config.executor is not None:
        why = f"executor = {config.executor!r} in {config.file}"
    elif stored_executor(config.checkpoint) is not None:
        why = f"the checkpoint {config.checkpoint} was begun so"
    elif config.sharing == "nothing":
        why = 'sharing = "nothing"'
    else:
        why = f"Spark's master is {spark.sparkContext.master}"
    return f"queries are joined {where}: {why}"


def _session(config: ServiceConfig, report: Report) -> Any:
    conf = jars.with_connector(config.conf, report) if config.needs_kafka else config.conf
    return session("streamjoin serve", config.master, config=conf, memory=config.memory, storage=config.storage)


def register_on_spark(spark: Any, config: ServiceConfig, engine: Engine, name: str) -> None:
    """Register a stream that Spark reads.

    Raises:
        PipelineFileError: Spark or the engine rejects it; the message names the line.
    """
    stream = config.streams[name]
    try:
        source = open_marked(spark, config, name)
    except PipelineFileError as error:
        if _is_outage(error):
            raise SourceOutage(str(error)) from error.__cause__
        raise
    try:
        engine.register(name, source.frame, stream.time, stream.lateness, source.mark)
    except SchemaError as error:
        raise PipelineFileError(f"{config.file}, line {config.lines[name]}: {error}") from error


def _is_outage(error: PipelineFileError) -> bool:
    """Whether the source is temporarily unavailable, rather than described wrongly in the file."""
    cause: Any = error.__cause__
    condition = cause.getCondition() if hasattr(cause, "getCondition") else None
    return condition == "PATH_NOT_FOUND" or type(cause).__name__ == "UnknownException"
