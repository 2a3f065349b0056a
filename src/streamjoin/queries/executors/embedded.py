"""The executor without Spark: tuples are pushed, or read by a thread for each source, and this process joins.

The invariant: a source's position moves on only when the journal has its tuples. A source that fails is read again from
there, after a pause that doubles with each failure.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

import pyarrow as pa

from streamjoin.model import durations
from streamjoin.model.errors import SpecError, StateError, StreamJoinError
from streamjoin.model.plain_types import plain_schema
from streamjoin.queries.engine.executor import (
    STOP_PATIENCE,
    FeedKeeper,
    PushedFeed,
    StreamFeed,
    StreamInput,
    pause_after,
)
from streamjoin.queries.engine.inbox import Inbox, SourceBatch, Staging, plain_position
from streamjoin.queries.engine.journal import Journal, Position
from streamjoin.queries.language.plan import Stream
from streamjoin.queries.sources.base import SourceReader, TupleSource, is_behind

IDLE = 0.05
"""Seconds after which a source that had nothing is asked again, unless a trigger says otherwise."""

AHEAD = 0.01
"""Seconds before a trigger at which a source says that it is about to be read, for one batch to take all of them."""

SOON = 0.01
"""Seconds after which a source that is still fetching is asked again, where somebody waits for it."""

_log = logging.getLogger("streamjoin.adhoc")


class EmbeddedExecutor:
    """Reads streams with threads of this process, at most once per `trigger`, and computes all rows in it."""

    adds_columns = True
    gone = False

    def __init__(self, journal: Journal, trigger: str | None = None) -> None:
        self._journal = journal
        self._every = durations.nanoseconds(trigger) / 1e9 if trigger is not None else 0.0

    def describe(self, name: str, given: StreamInput, time: str) -> Stream:
        """The stream of a schema or of a source.

        Raises:
            SpecError: something else was given.
            SchemaError: it has no such time column.
        """
        if given.frame is not None or given.malformed is not None:
            raise SpecError(
                f"stream {name!r} is a DataFrame, but this engine has no Spark session: make it with "
                "Engine(spark, checkpoint), or register the stream with schema= and push its tuples"
            )
        if (given.schema is None) == (given.source is None):
            raise SpecError(f"stream {name!r} needs schema=, whose tuples are pushed, or source=, which is read")
        schema = given.source.schema if given.source is not None else given.schema
        if not hasattr(schema, "__arrow_c_schema__"):
            raise SpecError(
                f"the schema of stream {name!r} is a pyarrow.Schema such as pa.schema({{'ts': pa.timestamp('us')}}), "
                f"not {schema!r}"
            )
        return Stream(name, plain_schema(pa.schema(schema)), time)

    def origin(self, given: StreamInput) -> str | None:
        """Where the tuples come from: pushes, or what the source says of itself."""
        return "pushes" if given.source is None else getattr(given.source, "origin", None)

    def feed(self, stream: Stream, given: StreamInput, inbox: Inbox, keeper: FeedKeeper) -> StreamFeed:
        """What reads the stream's source, or takes what is pushed."""
        if given.source is None:
            return PushedFeed(stream)
        return SourceFeed(stream, given.source, inbox, keeper, self._journal, self._every)

    def check_position(self, stream: str, position: Position | None) -> None:
        """Positions are in the journal alone: nothing can disagree."""


class SourceFeed:
    """Reads a source on a thread of its own."""

    def __init__(
        self,
        stream: Stream,
        source: TupleSource,
        inbox: Inbox,
        keeper: FeedKeeper,
        journal: Journal,
        every: float,
    ) -> None:
        self.stream = stream
        self.position: Position | None = None
        self.failed = False
        self._source, self._inbox, self._keeper, self._journal, self._every = source, inbox, keeper, journal, every
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._looked_at = 0.0
        """When the last read began, by the monotonic clock."""
        self._empty_reads = 0
        """Reads that found nothing, for who waits until a source is read to its end."""
        self._wanted = 0
        self._staging = Staging(journal.staged(stream.name))
        """What was read and is not handed in yet."""
        self._last_left = 0.0
        """What the source had left before the last read, as it knows since then."""
        self._thread: threading.Thread | None = None
        self._asked_at: float | None = None
        """Since when the source has been asked for something, by the monotonic clock; None while it is not."""
        self._given_up = False

    def start(self) -> None:
        """Begin to read after `position`.

        Raises:
            SetupError: the source can't be opened.
        """
        reader = self._source.open(self._journal.source_notes(self.stream.name))
        self._begin(reader, None)

    def start_later(self, error: StreamJoinError) -> None:
        """Begin as after a failure."""
        self._begin(None, error)

    def _begin(self, reader: SourceReader | None, error: StreamJoinError | None) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(reader, error), daemon=True, name=f"source {self.stream.name}"
        )
        self._thread.start()

    def _run(self, reader: SourceReader | None, error: StreamJoinError | None) -> None:
        failures = 0
        resuming = True
        while not self._stopping.is_set():
            try:
                if error is not None:
                    pause, failures, self.failed = pause_after(failures), failures + 1, True
                    self._waken()
                    if not self._keeper.stream_failed(self, error, pause) or self._stopping.wait(pause):
                        break
                    self._keeper.stream_restarts(self)
                    error, resuming = None, True
                if resuming:
                    self._staging.resume(self.position)
                    resuming = False
                if reader is None:
                    with self._asking():
                        reader = self._source.open(self._journal.source_notes(self.stream.name))
                handed = self._read_once(reader)
                failures = 0
                self._wait_for_more(handed)
            except Exception as failure:
                if self._inbox.closed:
                    break
                error = StateError(f"stream {self.stream.name!r} failed: {_reason(failure)}")
                _close(reader)
                reader = None
        _close(reader)
        self._waken()

    def _read_once(self, reader: SourceReader) -> bool:
        """Hand in what there is, or as much of it as a batch takes; whether there was something."""
        looked_at, self._looked_at = self._looked_at, time.monotonic()
        if not self._staging.has_more:
            with self._inbox.reading(self.stream.name), self._asking():
                found = reader.read(self.position)
                # Now, for many a source finds out in a read what there is.
                self._last_left = _left(reader, self.position)
                if found is not None:
                    rows = found.rows.cast(self.stream.schema)
                    self._staging.begin(rows, found.malformed, found.position, self.stream.time)
        if self.failed:
            # Before its tuples come out: who sees one of them sees no failure.
            self.failed = False
            self._keeper.stream_recovered(self)
        begun = self._looked_at
        if not self._staging.has_more:
            self._inbox.expect_none(self.stream.name)
            self._keeper.stream_progress(self, 0.0, 0.0)
            self._found_nothing(reader)
            return False
        before = self._staging.share_left
        given = self._staging.next(self._inbox.pace)
        if given.rows.num_rows < self._staging.rows_left:
            # The batches of a long read may take long, the first one too.
            self._tell_progress(reader, given.position, 0.0)
        self._inbox.hand(
            SourceBatch(
                self.stream.name,
                given.position,
                given.rows,
                given.malformed,
                read_at=begun,
                looked_at=looked_at or begun,
            )
        )
        self._staging.handed(given)
        self.position = given.position
        self._tell_progress(reader, given.position, before - self._staging.share_left)
        return True

    def _tell_progress(self, reader: SourceReader, position: Position, share: float) -> None:
        """Say how much of what the source has is done, if it can count that; `share` is of what was read last."""
        after = _left(reader, plain_position(position))
        # After a restart within a read its size is not known.
        whole = max(self._last_left - after, 0.0) or 1.0
        self._keeper.stream_progress(self, share * whole, after + self._staging.share_left * whole)

    def _found_nothing(self, reader: SourceReader) -> None:
        with self._changed:
            waited_for = self._wanted > self._empty_reads
        if waited_for and is_behind(reader):
            self._stopping.wait(SOON)
            return
        with self._changed:
            self._empty_reads += 1
            self._changed.notify_all()

    def _wait_for_more(self, handed: bool) -> None:
        if self._staging.has_more or (handed and not self._every):
            return
        period = self._every if handed else max(self._every, IDLE)
        if not self._every:
            self._wait_until(time.monotonic() + period)
            return
        look = next_look(self._looked_at, period)
        self._wait_until(look - AHEAD)
        self._inbox.expect(self.stream.name)
        self._wait_until(look)

    def _wait_until(self, moment: float) -> None:
        """Wait, unless somebody wants to know what there is, or the engine stops."""
        with self._changed:
            while not self._stopping.is_set() and self._wanted <= self._empty_reads:
                left = moment - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _waken(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def process_all_available(self) -> None:
        """Return when a read that began after this call found nothing more."""
        with self._changed:
            # The read that runs now may have begun before.
            self._wanted = wanted = self._empty_reads + 2
            self._changed.notify_all()
            while self._alive and not self.failed and self._empty_reads < wanted:
                self._changed.wait(1.0)

    @property
    def _alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """While the source is asked; raises StateError if it answers after the stop has given up."""
        self._asked_at = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                self._asked_at = None
        if self._given_up:
            raise StateError("the engine has stopped without this answer")

    def stop(self) -> None:
        """Stop reading; what is being handed in is still taken, and a source that does not answer is left behind."""
        self._stopping.set()
        self._waken()
        if self._thread is None or self._thread is threading.current_thread():
            return
        begun = time.monotonic()
        while self._thread.is_alive() and not self._give_up(begun):
            self._thread.join(STOP_PATIENCE / 10)

    def _give_up(self, begun: float) -> bool:
        """Whether the source has not answered since a stop began long ago; its answer comes to nothing then."""
        with self._changed:
            asked = self._asked_at
            if asked is None or time.monotonic() < max(begun, asked) + STOP_PATIENCE:
                return False
            self._given_up = True
        _log.error(
            "stream %r is not read to its end: its source has not answered for %.0f s, and the engine stops without it",
            self.stream.name, time.monotonic() - asked,
        )  # fmt: skip
        return True


def next_look(begun: float, period: float) -> float:
    """When a source is looked into again: all of them at the same moments, so that one batch takes what each has.

    >>> [next_look(begun, 2.0) for begun in (10.1, 11.9, 12.0)]
    [12.0, 12.0, 14.0]
    """
    return (begun // period + 1) * period


def _left(reader: SourceReader, position: Position | None) -> float:
    """How much the source has after a position, in whatever it counts; 0 if it can't say."""
    left = getattr(reader, "left", None)
    return 0.0 if left is None else float(left(position) or 0)


def _close(reader: SourceReader | None) -> None:
    if reader is not None:
        # What it failed with is told already.
        with contextlib.suppress(Exception):
            reader.close()


def _reason(failure: Exception) -> str:
    if isinstance(failure, StreamJoinError):
        return str(failure)
    lines = str(failure).strip().splitlines()
    return f"{type(failure).__name__}: {lines[0] if lines else 'no reason given'}"
