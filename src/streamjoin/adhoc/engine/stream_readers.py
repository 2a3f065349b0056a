"""The streams of an engine: those its log knows, those registered in this run, and what reads them.

The invariant: a stream that the log holds tuples of is only ever read as it was, and from where the log ends. A stream
that fails is told by its figures and by the log of the process, and tried again; only Spark's own end ends the engine.
"""

from __future__ import annotations

import logging
import threading
import time as clock
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from streamjoin.adhoc.core.settings import Lateness, Settings
from streamjoin.adhoc.engine.catalog import Catalog
from streamjoin.adhoc.engine.inbox import ChangeRequest, Inbox
from streamjoin.adhoc.engine.journal import Journal
from streamjoin.adhoc.engine.loop import BatchLoop
from streamjoin.adhoc.engine.stored import StreamDefinition
from streamjoin.adhoc.executors.spark_feed import Feed, stream_of
from streamjoin.adhoc.language.plan import Stream
from streamjoin.model.errors import SchemaError, SetupError, SpecError, StateError, StreamJoinError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
        trigger: str | None,
        fail: Callable[[StreamJoinError], None],
    ) -> None:
        self.streams = {name: figures.stream for name, figures in catalog.streams.items()}
        self._lateness = {name: figures.lateness for name, figures in catalog.streams.items()}
        self._feeds: dict[str, Feed] = {}
        self._running = False
        self._settings, self._journal, self._catalog, self._loop = settings, journal, catalog, loop
        self._inbox, self._trigger, self._fail = inbox, trigger, fail
        self.failures: dict[str, StreamJoinError] = {}
        """Why streams can't be read at this moment, by name."""
        self._lock = threading.Lock()

    def register(
        self, name: str, frame: DataFrame, time: str, lateness: Lateness | None, mark: str | None = None
    ) -> Stream:
        """Make a stream known, and read it if the engine runs; see `Engine.register`."""
        stream = stream_of(name, frame, time, mark)
        settings = self._settings if lateness is None else Settings(lateness=lateness)
        ticks = settings.lateness_of(stream)
        with self._lock:
            if name in self._feeds:
                if not self._feeds[name].failed:
                    raise StateError(f"stream {name!r} is registered already")
                self._feeds[name].stop()
            request = None
            if name in self.streams:
                self._check_same(stream, ticks)
            else:
                request = ChangeRequest("register", name, stream=StreamDefinition(stream, ticks))
                self._inbox.submit(request)
                self.streams[name], self._lateness[name] = stream, ticks
            place = self._journal.spark_checkpoint(name)
            feed = Feed(stream, frame, self._inbox, place, self._trigger, self, mark)
            self._feeds[name] = feed
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

    # What feeds tell ----------------------------------------------------------------------------------------------

    def stream_failed(self, feed: Feed, error: StreamJoinError, pause: float) -> bool:
        """Show that a stream fails; whether it is to be tried again."""
        name = feed.stream.name
        if self._feeds.get(name) is not feed or self._inbox.closed:
            return False
        if feed.session_gone:
            self._fail(StateError(f"Spark has stopped: {error}"))
            return False
        self._catalog.streams[name].fail(str(error), clock.time() + pause)
        self.failures[name] = error
        _log.error("%s; trying again in %g s", error, pause)
        return True

    def stream_restarts(self, feed: Feed) -> None:
        """Let a stream go on where the log ends.

        Raises:
            CheckpointError: a part of the stream's checkpoint is gone.
        """
        name = feed.stream.name
        feed.consumed = self._loop.consumed.get(name, -1)
        self._journal.check_spark(name, feed.consumed)

    def stream_recovered(self, feed: Feed) -> None:
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
                if feed.consumed < 0:
                    # It was never read: this is a mistake of whoever registered it.
                    raise
                feed.start_later(error)
        for name in self.streams.keys() - self._feeds.keys():
            self._catalog.streams[name].error = f"stream {name!r} is in the checkpoint, but not registered in this run"

    def _begin(self, feed: Feed) -> None:
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


def _short(value: object) -> str:
    if isinstance(value, pa.Schema):
        return ", ".join(f"{column.name} {column.type}" for column in value)
    return str(value)
