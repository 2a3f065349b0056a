"""What an engine needs from its executor: reading the streams, and computing the rows of a batch.

There are two. `executors/embedded.py` reads and joins in this process; `executors/spark.py` reads with Spark queries
and joins in the driver or in tasks. Changes, journal, recovery, sinks and figures are the engine's own, the same for
both.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from streamjoin.adhoc.core.arrivals import Arrived
from streamjoin.adhoc.core.contract import Core
from streamjoin.adhoc.core.explain import TaskFigures
from streamjoin.adhoc.engine.inbox import Inbox
from streamjoin.adhoc.engine.journal import Journal, Position
from streamjoin.adhoc.language.plan import Stream
from streamjoin.model.errors import InputError, StreamJoinError

if TYPE_CHECKING:
    from streamjoin.adhoc.sources.base import TupleSource

FIRST_PAUSE = 1.0
"""Seconds between the first failure of a stream and the next try; they double with each failure."""
LONGEST_PAUSE = 60.0

Outputs = tuple[dict[str, pa.Table], dict[str, InputError]]
"""The rows by query, and the queries whose rows can't be computed."""


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row, the first of which is number 0."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures, 30))


@dataclass(frozen=True)
class StreamInput:
    """What a stream is read from: a Spark frame, a source of this process, or what is pushed (`schema` alone).

    `malformed` is the frame's column that is not NULL for records that could not be decoded.
    """

    frame: Any = None
    schema: pa.Schema | None = None
    source: TupleSource | None = None
    malformed: str | None = None


class RowsExecutor(Protocol):
    """Computes the rows of a batch."""

    @property
    def partitions(self) -> int:
        """How many tasks the next batch has; 0 where the engine's process computes it."""

    @property
    def stores_first(self) -> bool:
        """Whether tuples must be in the journal before rows are computed."""

    @property
    def tasks(self) -> tuple[TaskFigures, ...]:
        """What each task of the last batch did."""

    def results(self, core: Core, arrived: Arrived) -> Outputs:
        """The rows of a batch and what failed."""

    def decided(self) -> tuple[str, ...]:
        """What the last batch led to, as texts."""


class InProcess:
    """The engine's process computes all rows."""

    partitions = 0
    stores_first = False
    tasks: tuple[TaskFigures, ...] = ()

    def results(self, core: Core, arrived: Arrived) -> Outputs:
        """The rows of a batch and what failed."""
        return core.results(arrived)

    def decided(self) -> tuple[str, ...]:
        """Nothing is ever decided."""
        return ()


class StreamFeed(Protocol):
    """Reads one stream into the inbox."""

    stream: Stream
    position: Position | None
    """Where the journal ends; None where it has nothing of the stream."""

    @property
    def failed(self) -> bool:
        """Whether it can't be read at this moment."""

    def start(self) -> None:
        """Begin to read after `position`.

        Raises:
            SetupError: it can't be read.
        """

    def start_later(self, error: StreamJoinError) -> None:
        """Begin as after a failure."""

    def stop(self) -> None:
        """Stop; a portion that is being handed in is still taken."""

    def process_all_available(self) -> None:
        """Return when all that is in the source now is in the engine."""


class PushedFeed:
    """A stream whose tuples are pushed, one portion at a time."""

    failed = False

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.position: Position | None = None
        self.lock = threading.Lock()
        """Held while a portion is on its way."""

    def start(self) -> None:
        """Nothing to begin."""

    def start_later(self, error: StreamJoinError) -> None:
        """Never fails."""
        raise AssertionError("a pushed stream does not fail") from error

    def stop(self) -> None:
        """Nothing to stop."""

    def process_all_available(self) -> None:
        """A push returns when its rows are out."""


class FeedKeeper(Protocol):
    """What a feed reports its failures to, and asks before it starts again."""

    def stream_failed(self, feed: StreamFeed, error: StreamJoinError, pause: float) -> bool:
        """Its source failed; whether to start it again after `pause` seconds."""

    def stream_restarts(self, feed: StreamFeed) -> None:
        """It is about to start again: `feed.position` is set."""

    def stream_recovered(self, feed: StreamFeed) -> None:
        """It reads again."""


class Executor(Protocol):
    """Reads streams and computes rows."""

    kind: str
    """What the checkpoint says of who reads its streams: "embedded" or "spark"."""

    @property
    def rows(self) -> RowsExecutor:
        """Computes rows."""

    @property
    def session(self) -> Any:
        """The Spark session for sinks that need one, or None."""

    def describe(self, name: str, given: StreamInput, time: str) -> Stream:
        """The stream that an input gives.

        Raises:
            InputError, SchemaError, SpecError: it can't be a stream of this engine.
        """

    def origin(self, given: StreamInput) -> str | None:
        """Where the tuples of an input come from, such as a directory or a topic; None if that can't be said.

        A position belongs to one origin: the same number elsewhere means other tuples.
        """

    def feed(self, stream: Stream, given: StreamInput, inbox: Inbox, keeper: FeedKeeper) -> StreamFeed:
        """What reads the stream."""

    def check_position(self, journal: Journal, stream: str, position: Position | None) -> None:
        """Refuse a checkpoint whose parts disagree about how far a stream was read.

        Raises:
            CheckpointError: they do.
        """

    @property
    def gone(self) -> bool:
        """Whether what it runs on has stopped, so that no stream can be read any more."""
