"""From a `ServiceConfig` to a running engine on Spark, and back to nothing.

A start that fails leaves nothing running; `Running.stop` lets the batch that runs end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from streamjoin.adhoc.settings import Settings
from streamjoin.adhoc.sink_specs import NamedSink
from streamjoin.model.errors import PipelineFileError, SchemaError, SpecError
from streamjoin.service.config import ServiceConfig
from streamjoin.spark import jars
from streamjoin.spark.pipeline_sources import open_marked
from streamjoin.spark.session import session

if TYPE_CHECKING:
    from streamjoin.adhoc.engine import Engine

Told = Callable[[str], None]


@dataclass(frozen=True)
class Running:
    """An engine that runs, and its session."""

    engine: Engine
    spark: Any
    config: ServiceConfig

    def sink(self, name: str, query: str) -> Any:
        """The engine's sink for a query, from a sink of the file."""
        return NamedSink(name, named_sink(self.config, name, query))

    def stop(self) -> None:
        """Let the batch that runs end, and stop everything."""
        try:
            self.engine.stop()
        finally:
            self.spark.stop()


def named_sink(config: ServiceConfig, name: str, query: str) -> Any:
    """What a sink of the file is for a query. The engine keeps the name alone, so that no secret is in the checkpoint.

    Raises:
        SpecError: the file has no such sink.
    """
    from streamjoin.adhoc import KafkaSink, ParquetSink

    given = config.sinks.get(name)
    if given is None:
        raise SpecError(
            f"query {query!r} writes to the sink {name!r}, which is no more in {config.file}: put it back, start again "
            "and resume the query, or drop it"
        )
    if given.format == "parquet":
        return ParquetSink((given.path or "").replace("{query}", query))
    options = {key: text for key, text in given.options.items() if key not in ("kafka.bootstrap.servers", "topic")}
    topic = given.options["topic"].replace("{query}", query)
    return KafkaSink(given.options["kafka.bootstrap.servers"], topic, key=given.key, options=options)


def launch(config: ServiceConfig, told: Told) -> Running:
    """Start Spark, register the streams, start the engine; queries of the checkpoint come back.

    Raises:
        PipelineFileError: Spark can't take something the file says; the message names the line.
        SetupError: Spark can't start, or the Kafka connector can't be had.
        CheckpointError: the checkpoint belongs to other streams, or is damaged.
    """
    spark = _session(config, told)
    try:
        engine = _engine(spark, config)
    except BaseException:
        spark.stop()
        raise
    return Running(engine, spark, config)


def _session(config: ServiceConfig, told: Told) -> Any:
    conf: dict[str, str] = dict(config.conf)
    if config.needs_kafka and not jars.brings_connector(conf):
        if jars.present() is None:
            told("fetching Spark's Kafka connector (once) ...")
        conf |= jars.classpath_setting(conf, jars.fetch())
    return session("streamjoin serve", config.master, config=conf, memory=config.memory)


def _engine(spark: Any, config: ServiceConfig) -> Engine:
    from streamjoin.adhoc.engine import Engine

    lateness = {name: stream.lateness for name, stream in config.streams.items()}
    settings = Settings(sharing=config.sharing, lateness=lateness, newest_rows=config.limits.rows_kept)  # type: ignore[arg-type]
    engine = Engine(
        spark, config.checkpoint, settings, config.trigger, config.partitions, sinks=partial(named_sink, config)
    )
    register_streams(engine, spark, config)
    engine.start()
    return engine


def register_streams(engine: Engine, spark: Any, config: ServiceConfig) -> None:
    """Make the streams of the file known to the engine.

    Raises:
        PipelineFileError: Spark or the engine can't take one; the message names the line.
    """
    for name, stream in config.streams.items():
        found = open_marked(spark, config, name)
        try:
            engine.register(name, found.frame, stream.time, stream.lateness, found.mark)
        except SchemaError as error:
            raise PipelineFileError(f"{config.file}, line {config.lines[name]}: {error}") from error
