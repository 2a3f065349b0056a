"""Starts an engine on Spark from a `ServiceConfig`, and stops it.

A start that fails leaves nothing running; `RunningEngine.stop` waits for the running batch. A stream in the checkpoint
was valid before: if its source can't be opened now, the service starts without it and tries again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.engine.executor import FIRST_PAUSE, LONGEST_PAUSE
from streamjoin.adhoc.sinks.specs import NamedSink
from streamjoin.model.errors import PipelineFileError, SchemaError, SpecError, StreamJoinError
from streamjoin.service.config import ServiceConfig
from streamjoin.spark.pipeline.sources import open_marked
from streamjoin.spark.runtime import jars
from streamjoin.spark.runtime.session import session

if TYPE_CHECKING:
    from streamjoin.adhoc.engine.engine import Engine
    from streamjoin.adhoc.sinks.base import Sink

Told = Callable[[str], None]
_LOG = logging.getLogger("streamjoin.service")


@dataclass(frozen=True)
class RunningEngine:
    """A running engine and its session."""

    engine: Engine
    spark: Any
    config: ServiceConfig
    absent: AbsentStreams | None = None
    """Streams that could not be opened at the start."""

    def sink(self, name: str, query: str) -> NamedSink:
        """The engine's sink for a query, from a sink of the file."""
        return NamedSink(name, named_sink(self.config, name, query))

    def stop(self) -> None:
        """Wait for the running batch, and stop everything."""
        if self.absent is not None:
            self.absent.stop()
        try:
            self.engine.stop()
        finally:
            self.spark.stop()


def named_sink(config: ServiceConfig, name: str, query: str) -> Sink:
    """The engine's sink for a query, from a sink of the file. The checkpoint has only its name, and no secrets.

    Raises:
        SpecError: the file has no such sink.
    """
    from streamjoin.adhoc import KafkaSink, ParquetSink

    sink = config.sinks.get(name)
    if sink is None:
        raise SpecError(
            f"query {query!r} writes to the sink {name!r}, which is no longer in {config.file}: add it again, "
            "restart and resume the query, or drop the query"
        )
    if sink.format == "parquet":
        return ParquetSink((sink.path or "").replace("{query}", query))
    options = {key: text for key, text in sink.options.items() if key not in ("kafka.bootstrap.servers", "topic")}
    topic = sink.options["topic"].replace("{query}", query)
    return KafkaSink(sink.options["kafka.bootstrap.servers"], topic, key=sink.key, options=options)


def launch(config: ServiceConfig, told: Told) -> RunningEngine:
    """Start Spark, register the streams and start the engine, which restores the queries of the checkpoint.

    Raises:
        PipelineFileError: Spark rejects part of the file; the message names the line.
        SetupError: Spark can't start, or the Kafka connector can't be fetched.
        CheckpointError: the checkpoint belongs to other streams, or is damaged.
    """
    spark = _session(config, told)
    try:
        engine, absent = _engine(spark, config)
    except BaseException:
        spark.stop()
        raise
    return RunningEngine(engine, spark, config, absent)


def _session(config: ServiceConfig, told: Told) -> Any:
    conf: dict[str, str] = dict(config.conf)
    if config.needs_kafka and not jars.brings_connector(conf):
        if jars.present() is None:
            told("fetching Spark's Kafka connector (once) ...")
        conf |= jars.classpath_setting(conf, jars.fetch())
    return session("streamjoin serve", config.master, config=conf, memory=config.memory)


def _engine(spark: Any, config: ServiceConfig) -> tuple[Engine, AbsentStreams | None]:
    from streamjoin.adhoc.engine.engine import Engine

    lateness = {name: stream.lateness for name, stream in config.streams.items()}
    settings = Settings(sharing=config.sharing, lateness=lateness, newest_rows=config.limits.rows_kept)  # type: ignore[arg-type]
    engine = Engine(
        spark, config.checkpoint, settings, config.trigger, config.partitions, sinks=partial(named_sink, config)
    )
    failures = register_streams(engine, spark, config)
    engine.start()
    return engine, AbsentStreams(engine, partial(_register, engine, spark, config), failures) if failures else None


def register_streams(engine: Engine, spark: Any, config: ServiceConfig) -> dict[str, StreamJoinError]:
    """Register the streams of the file; returns the streams of the checkpoint that can't be opened now.

    Raises:
        PipelineFileError: Spark or the engine rejects one; the message names the line.
    """
    registered = {stream.name for stream in engine.streams()}
    failures: dict[str, StreamJoinError] = {}
    for name in config.streams:
        try:
            _register(engine, spark, config, name)
        except PipelineFileError as error:
            if name not in registered or not _is_outage(error):
                raise
            failures[name] = error
    return failures


def _is_outage(error: PipelineFileError) -> bool:
    """Whether the source is temporarily unavailable, rather than described wrongly in the file."""
    cause: Any = error.__cause__
    condition = cause.getCondition() if hasattr(cause, "getCondition") else None
    return condition == "PATH_NOT_FOUND" or type(cause).__name__ == "UnknownException"


def _register(engine: Engine, spark: Any, config: ServiceConfig, name: str) -> None:
    stream = config.streams[name]
    source = open_marked(spark, config, name)
    try:
        engine.register(name, source.frame, stream.time, stream.lateness, source.mark)
    except SchemaError as error:
        raise PipelineFileError(f"{config.file}, line {config.lines[name]}: {error}") from error


class AbsentStreams:
    """Retries streams that could not be opened at the start; the pauses double up to one minute."""

    def __init__(
        self, engine: Engine, register: Callable[[str], None], failures: Mapping[str, StreamJoinError]
    ) -> None:
        self._engine, self._register = engine, register
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._reopen, args=item, daemon=True, name=f"opening {item[0]}")
            for item in failures.items()
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop retrying."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _reopen(self, name: str, error: StreamJoinError) -> None:
        pause = FIRST_PAUSE
        while True:
            self._engine.unavailable(name, f"stream {name!r} can't be opened: {error}", time.time() + pause)
            _LOG.error("stream %r can't be opened: %s; trying again in %g s", name, error, pause)
            if self._stopping.wait(pause):
                return
            try:
                self._register(name)
            except StreamJoinError as failure:
                error, pause = failure, min(2 * pause, LONGEST_PAUSE)
            else:
                _LOG.warning("stream %r is read again", name)
                return
