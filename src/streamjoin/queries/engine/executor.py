"""What an engine needs from its executor: reading the streams, and computing the rows of a batch.

Streams are read by threads of this process (`executors/embedded.py`) or by Spark queries (`executors/spark.py`). Rows
are computed in this process, or in cells that hold the tuples (`executors/distributed`). Changes, recovery, sinks and
figures are the engine's own, the same for all.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from streamjoin.model.errors import InputError, StreamJoinError
from streamjoin.queries.core.arrivals import Arrived
from streamjoin.queries.core.changes import Change, LiveQuery
from streamjoin.queries.core.explain import Explanation, QueryCost, StepPosition, TaskFigures
from streamjoin.queries.core.groups.feeds import WaitingState
from streamjoin.queries.core.row_lists import ListedRows
from streamjoin.queries.core.shared import Snapshot
from streamjoin.queries.engine.inbox import Inbox
from streamjoin.queries.engine.journal import Position
from streamjoin.queries.language.plan import Stream

if TYPE_CHECKING:
    from streamjoin.queries.sources.base import TupleSource

FIRST_PAUSE = 1.0
"""Seconds between the first failure of a stream and the next try; they double with each failure."""
LONGEST_PAUSE = 60.0
STOP_PATIENCE = 10.0
"""Seconds that a stop waits for a source that does not answer, such as a file system whose server is gone."""

Outputs = tuple[dict[str, ListedRows], dict[str, InputError]]
"""The rows by query, and the queries whose rows can't be computed."""


def pause_after(failures: int) -> float:
    """Seconds to wait after a failure; `failures` in a row came before it."""
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


@dataclass(frozen=True)
class TaskReport:
    """How a batch was computed: how many tasks the next one has, what each of this one did, and what that led to.

    It is empty where the engine's process computes rows.
    """

    partitions: int = 0
    tasks: tuple[TaskFigures, ...] = ()
    decided: tuple[str, ...] = ()


class QueryCore(Protocol):
    """Many queries over the same streams, one batch at a time; `Shared` says what each method does."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Make changes, in force from the next batch on."""

    def add_stream(self, stream: Stream, lateness: int | None = None) -> None:
        """Register one more stream; `lateness` is in ticks."""

    def change_stream(self, stream: Stream, lateness: int) -> dict[str, InputError]:
        """Give a stream another lateness, in ticks, or further columns; returns the queries that can't be run then."""

    @property
    def queries(self) -> Mapping[str, LiveQuery]:
        """The queries, by name."""

    def arrive(self, batch_id: int, tables: Mapping[str, Any]) -> Arrived:
        """What feeds handed in, by stream, as buckets; nothing changes until `finish`."""

    def time_to_idle(self) -> int | None:
        """In how many nanoseconds silence may decide what waits, 0 if it does already; None if only tuples can."""

    def position(self) -> StepPosition | None:
        """Where a batch is now; from any thread. None where no join runs, or other processes compute."""

    def largest(self) -> dict[str, InputError]:
        """The queries whose results take most of the batch, and what to say of them where memory has run out."""

    def heaviest(self, excess: int) -> dict[str, InputError]:
        """The queries that hold most tuples, so that without them `excess` bytes less are held."""

    @property
    def held_share(self) -> float:
        """What the last batch took of the engine's budget, 0 to 1."""

    def finish(self, arrived: Arrived, failures: Mapping[str, InputError]) -> dict[str, InputError]:
        """Make a batch part of the state; queries that failed are paused. Returns those that failed, here too."""

    def snapshot(self) -> Snapshot:
        """The state after the last batch."""

    def restore(self, snapshot: Snapshot) -> dict[str, InputError]:
        """Go over to a state; returns the queries that can't be run, which are paused in it."""

    def explain(self) -> Explanation:
        """The plan in force."""

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes held, by what holds them."""

    def costs(self) -> Mapping[str, QueryCost]:
        """What each query cost in the last batch, and holds after it; nothing where that is not known."""


class TupleCore(QueryCore, Protocol):
    """A core that holds the tuples, and so computes the rows."""

    def results(self, arrived: Arrived) -> Outputs:
        """The rows that each query gains, and the queries whose rows can't be computed."""

    def interrupt(self) -> None:
        """Have the results that are computed, or the next, stop with `InterruptedBatchError`; from any thread."""

    def take_waiting(self, batch: int, waiting: Mapping[str, WaitingState]) -> None:
        """Take over what waits after a batch that was computed elsewhere."""

    @property
    def waiting(self) -> Mapping[str, WaitingState]:
        """What waits after the batch whose rows were computed last."""


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
        """Stop; what is being handed in is still taken."""

    def process_all_available(self) -> None:
        """Return when all that is in the source now is in the engine."""


class PushedFeed:
    """A stream whose tuples are pushed, one batch at a time."""

    failed = False

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.position: Position | None = None
        self.lock = threading.Lock()
        """Held while tuples are on their way."""

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

    def stream_progress(self, feed: StreamFeed, done: float, left: float) -> None:
        """How much of its source was handed in, and how much is left, in the unit of the source."""


class Executor(Protocol):
    """Reads streams."""

    adds_columns: bool
    """Whether a stream of the checkpoint may have got further columns."""

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

    def check_position(self, stream: str, position: Position | None) -> None:
        """Refuse a checkpoint whose parts disagree about how far a stream was read.

        Raises:
            CheckpointError: they do.
        """

    @property
    def gone(self) -> bool:
        """Whether what it runs on has stopped, so that no stream can be read any more."""
