"""Starts an engine from a `ServiceConfig`, in this process or on Spark, and stops it.

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
from pathlib import Path
from typing import Any

from streamjoin.config.table import together
from streamjoin.formats.described import table_sink
from streamjoin.model.errors import PipelineFileError, SchemaError, SpecError, StreamJoinError
from streamjoin.queries.core.budgets import Budget
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.engine.engine import Engine
from streamjoin.queries.engine.executor import STOP_PATIENCE, pause_after
from streamjoin.queries.language.plan import Stream
from streamjoin.queries.sinks.base import Sink
from streamjoin.queries.sinks.specs import NamedSink
from streamjoin.queries.sources.described import described_source
from streamjoin.service.config import ServiceConfig

Report = Callable[[str], None]
_LOG = logging.getLogger("streamjoin.service")


@dataclass(frozen=True)
class RunningEngine:
    """A running engine and, on Spark, its session."""

    engine: Engine
    config: ServiceConfig
    spark: Any = None
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
            if self.spark is not None:
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
    table = table_sink(sink, query)
    if table is not None:
        return table
    if sink.format == "parquet":
        return ParquetSink((sink.path or "").replace("{query}", query))
    options = {key: text for key, text in sink.options.items() if key not in ("kafka.bootstrap.servers", "topic")}
    topic = sink.options["topic"].replace("{query}", query)
    return KafkaSink(sink.options["kafka.bootstrap.servers"], topic, key=sink.key, options=options)


def launch(config: ServiceConfig, report: Report) -> RunningEngine:
    """Register the streams and start the engine, which restores the queries of the checkpoint.

    Raises:
        PipelineFileError: a part of the file is wrong; the message names the line.
        SetupError: Spark can't start, or a client or connector for Kafka is missing.
        CheckpointError: the checkpoint belongs to other streams or to another kind of engine, or is damaged.
    """
    if config.engine == "embedded":
        return start_engine(config, None, partial(register_embedded, config))
    from streamjoin.service.launch_spark import launch_on_spark

    return launch_on_spark(config, report)


Register = Callable[[Engine, str], None]
"""Registers a stream of the file by its name."""


def start_engine(config: ServiceConfig, spark: Any, register: Register) -> RunningEngine:
    """Start the engine of a file, with all its streams."""
    lateness = {name: stream.lateness for name, stream in config.streams.items()}
    limits = config.limits
    # Those of one name are the engine's to keep.
    own = {name: value for name, value in vars(limits).items() if name in Settings.__dataclass_fields__}
    settings = Settings(
        sharing=config.sharing,  # type: ignore[arg-type]
        lateness=lateness,
        newest_rows=limits.rows_kept,
        **own,
    )
    budget = Budget(limits.query_candidates, limits.query_rows, limits.query_bytes)
    sinks = partial(named_sink, config)
    engine = Engine(
        spark,
        config.checkpoint,
        settings,
        config.trigger,
        config.partitions,
        sinks,
        budget,
        config.quarantine,
        limits.queries,
        config.executor,
        storage=config.storage if spark is None else None,
    )
    try:
        failures = register_all(engine, config, register)
        engine.start()
    except BaseException:
        engine.stop()
        raise
    absent = AbsentStreams(engine, partial(register, engine), failures) if failures else None
    return RunningEngine(engine, config, spark, absent)


class SourceOutage(PipelineFileError):  # noqa: N818
    """A source that is described well enough, and can't be opened now."""


def register_all(engine: Engine, config: ServiceConfig, register: Register) -> dict[str, StreamJoinError]:
    """Register the streams of the file; returns the streams of the checkpoint that can't be opened now.

    Raises:
        PipelineFileError: one is wrong, or was never there; the message names the line.
    """
    registered = {stream.name for stream in engine.streams()}
    failures: dict[str, StreamJoinError] = {}
    for name in config.streams:
        try:
            register(engine, name)
        except SourceOutage as error:
            if name not in registered:
                raise
            failures[name] = error
    return failures


def register_embedded(config: ServiceConfig, engine: Engine, name: str) -> None:
    """Register a stream that this process reads.

    Raises:
        PipelineFileError: the file is wrong, or the directory is missing (`SourceOutage`).
    """
    stream = config.streams[name]
    source = described_source(config, name)
    path = stream.source.path
    line = f"{config.file}, line {config.lines[name]}"
    if path is not None and "://" not in path and not Path(path).exists():
        raise SourceOutage(f"{line}: there is no directory {path}")
    try:
        engine.register(name, time=stream.time, lateness=stream.lateness, source=source)
    except SchemaError as error:
        raise PipelineFileError(f"{line}: {error}") from error


def check_streams(config: ServiceConfig) -> None:
    """Check the streams of an embedded engine without reading them: columns, `select`, `where`, time.

    Raises:
        PipelineFileError: one is wrong; the message names the line.
    """
    mistakes: list[PipelineFileError] = []
    for name, stream in config.streams.items():
        try:
            described = Stream(name, described_source(config, name).schema, stream.time)
            Settings(lateness=stream.lateness).lateness_of(described)
        except PipelineFileError as error:
            mistakes.append(error)
        except (SchemaError, SpecError) as error:
            mistakes.append(PipelineFileError(f"{config.file}, line {config.lines[name]}: {error}"))
    if mistakes:
        raise together(mistakes)


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
        """Stop retrying; a source that does not answer is left behind."""
        self._stopping.set()
        until = time.monotonic() + STOP_PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _reopen(self, name: str, error: StreamJoinError) -> None:
        failures = 0
        while True:
            pause = pause_after(failures)
            self._engine.unavailable(name, f"stream {name!r} can't be opened: {error}", time.time() + pause)
            _LOG.error("stream %r can't be opened: %s; trying again in %g s", name, error, pause)
            if self._stopping.wait(pause):
                return
            try:
                self._register(name)
            except StreamJoinError as failure:
                error, failures = failure, failures + 1
            else:
                _LOG.warning("stream %r is read again", name)
                return
