"""The streams of an engine: those its log knows, those registered in this run, and what reads them.

The invariant: a stream that the journal holds tuples of is only ever read from where the journal ends, and as it was
but for its lateness and for further columns. A stream that fails says so in its figures and in the log of the process,
and is tried again; only the end of what the executor runs on ends the engine.
"""

from __future__ import annotations

import json
import logging
import numbers
import threading
import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from streamjoin.joins.engine.inputs import as_table
from streamjoin.joins.engine.lossless import lossless
from streamjoin.model.errors import (
    CheckpointError,
    InputError,
    SchemaError,
    SetupError,
    SpecError,
    StateError,
    StreamJoinError,
)
from streamjoin.model.plain_types import plain_table
from streamjoin.queries.core.settings import Lateness, Settings
from streamjoin.queries.engine.catalog import Catalog
from streamjoin.queries.engine.executor import Executor, PushedFeed, StreamFeed, StreamInput
from streamjoin.queries.engine.inbox import Inbox, SourceBatch
from streamjoin.queries.engine.journal import Journal, Position
from streamjoin.queries.engine.loop import BatchLoop
from streamjoin.queries.engine.stored import EngineChange, StreamDefinition
from streamjoin.queries.language.plan import Stream
from streamjoin.queries.language.sql import parse
from streamjoin.windows.clock import to_ticks

_log = logging.getLogger("streamjoin.adhoc")


class StreamReaders:
    """Reads the registered streams and retries those that fail; `fail` ends the engine."""

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        catalog: Catalog,
        loop: BatchLoop,
        inbox: Inbox,
        executor: Executor,
        fail: Callable[[StreamJoinError], None],
    ) -> None:
        self.streams = {name: figures.stream for name, figures in catalog.streams.items()}
        self._lateness = {name: figures.lateness for name, figures in catalog.streams.items()}
        self._feeds: dict[str, StreamFeed] = {}
        self._running = self._stopped = False
        self.begun = threading.Event()
        """Set once the streams are read."""
        self._settings, self._journal, self._catalog, self._loop = settings, journal, catalog, loop
        self._inbox, self._executor, self._fail = inbox, executor, fail
        self.failures: dict[str, StreamJoinError] = {}
        """Why streams can't be read at this moment, by name."""
        self._lock = threading.Lock()

    def register(self, name: str, given: StreamInput, time: str, lateness: Lateness | None) -> Stream:
        """Make a stream known, and read it if the engine runs; see `Engine.register`."""
        stream = self._executor.describe(name, given, time)
        settings = self._settings if lateness is None else Settings(lateness=lateness)
        ticks = settings.lateness_of(stream)
        with self._lock:
            before = self._feeds.get(name)
            if before is not None and not before.failed:
                raise StateError(f"stream {name!r} is registered already")
            changed = name not in self.streams or self._is_changed(stream, ticks)
            self._check_origin(name, self._executor.origin(given))
            if before is not None:
                before.stop()
            request = None
            if changed:
                request = EngineChange("register", name, stream=StreamDefinition(stream, ticks))
                self._inbox.submit(request)
                self.streams[name], self._lateness[name] = stream, ticks
            self._feeds[name] = feed = self._executor.feed(stream, given, self._inbox, self)
            running = self._running
        if running:
            if request is not None:
                request.done.result()
            self._begin(feed)
        return stream

    def unavailable(self, name: str, error: str, retry_at: float) -> None:
        """Show why a stream of the log could not be registered in this run yet, and when that is tried again."""
        if name not in self._feeds:
            self._catalog.streams[self.known(name).name].fail(error, retry_at)
            self._catalog.stir()

    def known(self, name: str) -> Stream:
        """A stream by its name.

        Raises:
            SpecError: there is none.
        """
        if name not in self.streams:
            raise SpecError(f"there is no stream {name!r}; registered: {', '.join(sorted(self.streams)) or 'none'}")
        return self.streams[name]

    def _is_changed(self, stream: Stream, lateness: int) -> bool:
        """Whether a stream differs from the one that the log holds tuples of.

        Raises:
            SchemaError: it differs in more than its lateness and further columns.
        """
        known = self.streams[stream.name]
        kept = pa.schema([column for column in stream.schema if column.name in known.schema.names])
        added = stream.schema.names != kept.names
        what, before, now = "", known.schema, stream.schema
        if kept != known.schema:
            what = "columns"
        elif known.time != stream.time:
            what, before, now = "time column", known.time, stream.time
        elif added and not self._executor.adds_columns:
            what = "columns, which only an engine without Spark can add"
        if what:
            raise SchemaError(
                f"stream {stream.name!r} is in the checkpoint with other {what}: {_short(before)}, now "
                f"{_short(now)}. Register it as it was (another lateness, or further columns, are fine), or under "
                "another name, or begin with a new checkpoint"
            )
        if added:
            self._check_stars(stream)
        return added or self._lateness[stream.name] != lateness

    def _check_stars(self, stream: Stream) -> None:
        """Refuse further columns of a stream that a query takes all columns of: its sink has the ones it began with."""
        streams = {**self.streams, stream.name: stream}
        for name, entry in self._catalog.core.queries.items():
            if parse(entry.query.text, streams, name).schema != entry.query.schema:
                raise SchemaError(
                    f"stream {stream.name!r} has further columns, and query {name!r} takes all columns of it (*): drop "
                    "the query before, and create it again with the columns that it is to have"
                )

    def _check_origin(self, name: str, origin: str | None) -> None:
        """Refuse to read on elsewhere: the position in the log would mean other tuples there."""
        if origin is None:
            return
        before = self._journal.origin(name)
        if before != origin:
            if before is not None and name in self._loop.positions:
                raise CheckpointError(
                    f"stream {name!r} of the checkpoint is read from {before}, and not from {origin}, where its "
                    "position would mean other tuples. Register it as it was (a symbolic link may stand for a "
                    "directory that was moved), or under another name, or begin with a new checkpoint"
                )
            self._journal.write_origin(name, origin)

    # Pushing --------------------------------------------------------------------------------------------------------

    def push(self, data: Mapping[str, object], positions: Mapping[str, Position]) -> None:
        """Put tuples into one batch and wait for its rows; see `Engine.push`."""
        for name in positions:
            if name not in data:
                raise InputError(f"there is a position of stream {name!r}, but no tuples of it")
        tables = {name: as_tuples(self._pushed(name).stream, given) for name, given in data.items()}
        for name, position in positions.items():
            _check_json(name, position)
        with self._held(tables):
            self._hand(
                [SourceBatch(name, self._next_position(name, rows, positions), rows) for name, rows in tables.items()]
            )

    def advance(self, time: object, stream: str | None) -> None:
        """Move the clocks of pushed streams; see `Engine.advance`."""
        pushed = [name for name, feed in self._feeds.items() if isinstance(feed, PushedFeed)]
        names = pushed if stream is None else [self._pushed(stream).stream.name]
        ticks = {name: as_time(self.streams[name], time) for name in names}
        with self._held(names):
            self._hand(
                [
                    SourceBatch(
                        name, self._loop.positions.get(name, 0), self.streams[name].schema.empty_table(), None, at
                    )
                    for name, at in ticks.items()
                ]
            )

    def _pushed(self, name: str) -> PushedFeed:
        feed = self._feeds.get(name)
        if isinstance(feed, PushedFeed):
            return feed
        if feed is not None:
            raise InputError(f"stream {name!r} has a source of its own: nothing can be pushed to it")
        known = " as in the checkpoint" if name in self.streams else ""
        names = ", ".join(sorted(key for key, one in self._feeds.items() if isinstance(one, PushedFeed))) or "none"
        raise InputError(
            f"stream {name!r} is not registered for pushes; register it{known} with schema=. There are: {names}"
        )

    @contextmanager
    def _held(self, names: Iterable[str]) -> Iterator[None]:
        """While tuples of these streams are on their way: the inbox takes one of each at a time."""
        with ExitStack() as locks:
            for name in sorted(names):
                locks.enter_context(self._pushed(name).lock)
            yield

    def _next_position(self, name: str, rows: pa.Table, given: Mapping[str, Position]) -> Position:
        if name in given:
            return given[name]
        before = self._loop.positions.get(name, 0)
        if isinstance(before, bool) or not isinstance(before, int):
            raise InputError(f"the pushes of stream {name!r} had positions so far: give push one now too")
        return before + int(rows.num_rows)

    def _hand(self, given: Sequence[SourceBatch]) -> None:
        if given:
            self._inbox.put(*given)
            for one in given:
                one.done.result()

    # What feeds report ----------------------------------------------------------------------------------------------

    def stream_failed(self, feed: StreamFeed, error: StreamJoinError, pause: float) -> bool:
        """Show that a stream fails; whether it is to be tried again."""
        name = feed.stream.name
        if self._feeds.get(name) is not feed or self._inbox.closed:
            return False
        self._inbox.expect_none(name)
        if self._executor.gone:
            self._fail(StateError(f"Spark has stopped: {error}"))
            return False
        self._catalog.streams[name].fail(str(error), clock.time() + pause)
        self.failures[name] = error
        self._catalog.stir()
        _log.error("%s; trying again in %g s", error, pause)
        return True

    def stream_restarts(self, feed: StreamFeed) -> None:
        """Let a stream go on where the log ends.

        Raises:
            CheckpointError: a part of the stream's checkpoint is gone.
        """
        name = feed.stream.name
        feed.position = self._loop.positions.get(name)
        self._executor.check_position(name, feed.position)

    def stream_recovered(self, feed: StreamFeed) -> None:
        """A stream that failed is read again."""
        name = feed.stream.name
        if self._feeds.get(name) is feed:
            self.failures.pop(name, None)
            self._catalog.streams[name].recover()
            self._catalog.stir()
            _log.warning("stream %r is read again", name)

    def stream_progress(self, feed: StreamFeed, done: float, left: float) -> None:
        """Follow how far a stream is behind its source."""
        if self._feeds.get(feed.stream.name) is feed:
            self._catalog.streams[feed.stream.name].catch_up.note(done, left)

    # Reading ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let all streams flow; those of the log that are not registered say so."""
        with self._lock:
            if self._stopped:
                return
            self._running = True
            feeds = list(self._feeds.values())
        try:
            self._begin_all(feeds)
        finally:
            self.begun.set()

    def _begin_all(self, feeds: Iterable[StreamFeed]) -> None:
        for feed in feeds:
            try:
                self._begin(feed)
            except SetupError as error:
                if feed.position is None:
                    # It was never read: this is a mistake of whoever registered it.
                    raise
                feed.start_later(error)
        for name in self.streams.keys() - self._feeds.keys():
            self._catalog.streams[name].error = f"stream {name!r} is in the checkpoint, but not registered in this run"

    def _begin(self, feed: StreamFeed) -> None:
        name = feed.stream.name
        self.stream_restarts(feed)
        self._catalog.streams[name].recover()
        self.failures.pop(name, None)
        self._catalog.stir()
        feed.start()

    def process_all_available(self) -> None:
        """Return when all that is in the sources now is in the engine.

        Raises:
            StreamJoinError: a stream fails.
        """
        for feed in list(self._feeds.values()):
            feed.process_all_available()
        for failure in list(self.failures.values()):
            raise failure

    def stop(self) -> None:
        """Stop reading; what is being handed in is still taken."""
        with self._lock:
            self._running, self._stopped = False, True
            feeds = list(self._feeds.values())
        stopping = [threading.Thread(target=feed.stop, daemon=True) for feed in feeds]
        for one in stopping:
            one.start()
        for one in stopping:
            one.join()


def _check_json(name: str, position: object) -> None:
    try:
        if json.loads(json.dumps(position, allow_nan=False)) != position:
            raise ValueError("it changes on its way through JSON")
    except (TypeError, ValueError) as error:
        raise InputError(f"the position of stream {name!r} must be a JSON value, not {position!r}: {error}") from error


def _short(value: object) -> str:
    if isinstance(value, pa.Schema):
        return ", ".join(f"{column.name} {column.type}" for column in value)
    return str(value)


def as_tuples(stream: Stream, data: object) -> pa.Table:
    """`data` with the columns and types of the stream.

    Raises:
        InputError: it is no table, or a column is missing, unexpected, or would lose a value.
    """
    if isinstance(data, pa.Table) and data.schema.equals(stream.schema):
        return data
    table = as_table(data, f"stream {stream.name!r}", stream.schema.names)
    if not table.num_columns and not table.num_rows:
        return stream.schema.empty_table()
    if table.schema.equals(stream.schema):
        return table
    doubled = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    for what, names in (
        ("have more than one column", doubled),
        ("have no column", [name for name in stream.schema.names if name not in table.column_names]),
        ("have an unexpected column", [name for name in table.column_names if name not in stream.schema.names]),
    ):
        if names:
            raise InputError(
                f"the tuples of stream {stream.name!r} {what} {names[0]!r}; its columns are: "
                f"{', '.join(stream.schema.names)}"
            )
    table = plain_table(table)
    columns = []
    for column in stream.schema:
        cast = lossless(table.column(column.name), column.type)
        if cast is None:
            raise InputError(
                f"column {column.name!r} of stream {stream.name!r} is {column.type}; these tuples have "
                f"{table.schema.field(column.name).type}, which can't be cast without loss: cast it before pushing"
            )
        columns.append(cast)
    return pa.Table.from_arrays(columns, schema=stream.schema)


def as_time(stream: Stream, time: object) -> int:
    """A time of the stream's time column in ticks.

    Raises:
        InputError: it is no such time.
    """
    type_ = stream.time_type
    time = time.as_py() if isinstance(time, pa.Scalar) else time
    try:
        if pa.types.is_integer(type_) and (isinstance(time, bool) or not isinstance(time, numbers.Integral)):
            raise TypeError("it is no whole number")
        column = pa.chunked_array([pa.array([time], type_)])
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise InputError(
            f"{time!r} is no time of stream {stream.name!r}: its time column {stream.time!r} is {type_}"
        ) from error
    ticks, bad = to_ticks(column, stream.tick_ns or 1)
    if bad is not None and bad.any():
        raise InputError(f"{time!r} is no time of stream {stream.name!r}: it is NULL or out of range")
    return int(ticks[0])
