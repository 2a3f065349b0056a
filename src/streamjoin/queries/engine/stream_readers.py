"""The streams of an engine: those its log knows, those registered in this run, and what reads them.

The invariant: a stream that the journal holds tuples of is only ever read as it was, and from where the journal ends. A
stream that fails says so in its figures and in the log of the process, and is tried again; only the end of what the
executor runs on ends the engine.
"""

from __future__ import annotations

import json
import logging
import threading
import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from streamjoin.adhoc.core.settings import Lateness, Settings
from streamjoin.adhoc.engine.catalog import Catalog
from streamjoin.adhoc.engine.executor import Executor, PushedFeed, StreamFeed, StreamInput
from streamjoin.adhoc.engine.inbox import Inbox, Portion
from streamjoin.adhoc.engine.journal import Journal, Position
from streamjoin.adhoc.engine.loop import BatchLoop
from streamjoin.adhoc.engine.pushing import as_time, as_tuples
from streamjoin.adhoc.engine.stored import EngineChange, StreamDefinition
from streamjoin.adhoc.language.plan import Stream
from streamjoin.model.errors import (
    CheckpointError,
    InputError,
    SchemaError,
    SetupError,
    SpecError,
    StateError,
    StreamJoinError,
)

_log = logging.getLogger(__name__)


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
        self._running = False
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
            if name in self.streams:
                self._check_same(stream, ticks)
            self._check_origin(name, self._executor.origin(given))
            if before is not None:
                before.stop()
            request = None
            if name not in self.streams:
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

    def known(self, name: str) -> Stream:
        """A stream by its name.

        Raises:
            SpecError: there is none.
        """
        if name not in self.streams:
            raise SpecError(f"there is no stream {name!r}; registered: {', '.join(sorted(self.streams)) or 'none'}")
        return self.streams[name]

    def _check_same(self, stream: Stream, lateness: int) -> None:
        """Refuse a stream that differs from the one that the log holds tuples of."""
        known = self.streams[stream.name]
        for what, before, now in (
            ("columns", known.schema, stream.schema),
            ("time column", known.time, stream.time),
            ("lateness in ticks", self._lateness[stream.name], lateness),
        ):
            if before != now:
                raise SchemaError(
                    f"stream {stream.name!r} is in the checkpoint with other {what}: {_short(before)}, now "
                    f"{_short(now)}. Register it as it was, or under another name, or begin with a new checkpoint"
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
                [Portion(name, self._next_position(name, rows, positions), rows) for name, rows in tables.items()]
            )

    def advance(self, time: object, stream: str | None) -> None:
        """Move the clocks of pushed streams; see `Engine.advance`."""
        pushed = [name for name, feed in self._feeds.items() if isinstance(feed, PushedFeed)]
        names = pushed if stream is None else [self._pushed(stream).stream.name]
        ticks = {name: as_time(self.streams[name], time) for name in names}
        with self._held(names):
            self._hand(
                [
                    Portion(name, self._loop.positions.get(name, 0), self.streams[name].schema.empty_table(), None, at)
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
        """While the portions of these streams are on their way: the inbox takes one of each at a time."""
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

    def _hand(self, portions: Sequence[Portion]) -> None:
        if portions:
            self._inbox.put(*portions)
            for portion in portions:
                portion.done.result()

    # What feeds report ----------------------------------------------------------------------------------------------

    def stream_failed(self, feed: StreamFeed, error: StreamJoinError, pause: float) -> bool:
        """Show that a stream fails; whether it is to be tried again."""
        name = feed.stream.name
        if self._feeds.get(name) is not feed or self._inbox.closed:
            return False
        if self._executor.gone:
            self._fail(StateError(f"Spark has stopped: {error}"))
            return False
        self._catalog.streams[name].fail(str(error), clock.time() + pause)
        self.failures[name] = error
        _log.error("%s; trying again in %g s", error, pause)
        return True

    def stream_restarts(self, feed: StreamFeed) -> None:
        """Let a stream go on where the log ends.

        Raises:
            CheckpointError: a part of the stream's checkpoint is gone.
        """
        name = feed.stream.name
        feed.position = self._loop.positions.get(name)
        self._executor.check_position(self._journal, name, feed.position)

    def stream_recovered(self, feed: StreamFeed) -> None:
        """A stream that failed is read again."""
        name = feed.stream.name
        if self._feeds.get(name) is feed:
            self.failures.pop(name, None)
            self._catalog.streams[name].recover()
            _log.warning("stream %r is read again", name)

    # Reading ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let all streams flow; those of the log that nobody registered say so."""
        with self._lock:
            self._running = True
            feeds = list(self._feeds.values())
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
        """Stop reading; portions that are being handed in are still taken."""
        with self._lock:
            self._running = False
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
