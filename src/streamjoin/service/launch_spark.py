"""Starts Spark and an engine on it from a `ServiceConfig`."""

from __future__ import annotations

from functools import partial
from typing import Any

from streamjoin.adhoc.engine.engine import Engine
from streamjoin.model.errors import PipelineFileError, SchemaError, StreamJoinError
from streamjoin.service.config import ServiceConfig
from streamjoin.service.launch import Report, RunningEngine, SourceOutage, register_all, start_engine
from streamjoin.spark.pipeline.sources import open_marked
from streamjoin.spark.runtime import jars
from streamjoin.spark.runtime.session import session


def launch_on_spark(config: ServiceConfig, report: Report) -> RunningEngine:
    """Start Spark, and the engine on it; see `launch`."""
    spark = _session(config, report)
    try:
        return start_engine(config, spark, partial(register_on_spark, spark, config))
    except BaseException:
        spark.stop()
        raise


def _session(config: ServiceConfig, report: Report) -> Any:
    conf: dict[str, str] = dict(config.conf)
    if config.needs_kafka and not jars.brings_connector(conf):
        if jars.present() is None:
            report("fetching Spark's Kafka connector (once) ...")
        conf |= jars.classpath_setting(conf, jars.fetch())
    return session("streamjoin serve", config.master, config=conf, memory=config.memory, storage=config.storage)


def register_streams(engine: Engine, spark: Any, config: ServiceConfig) -> dict[str, StreamJoinError]:
    """Register the streams of the file; returns the streams of the checkpoint that can't be opened now."""
    return register_all(engine, config, partial(register_on_spark, spark, config))


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
