"""What waits for the next batch boundary: changes, at most one batch of tuples a stream, and questions.

Any thread may put something in; one thread takes it out. The invariants: changes are taken in the order they came, and
a boundary makes a bounded number of creates; a feed that hands in tuples waits until they are safe in the engine's
journal, so that no source commits what the engine does not have.

What a source gave together and one batch should not have to take is handed in as slices, each with its own position
(`Staging`). How much a batch takes follows what batches cost (`Pace`): a second is enough, and a quarter of the
engine's budget. The tuples of a read are in no order of arrival, so they are cut in the order of time: none is late for
another. The invariant: the tuples of a read that is cut are in the checkpoint before the first slice is, so that a
restart goes on within it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from streamjoin.model.errors import BackPressureError, StateError
from streamjoin.queries.engine.journal import Position, read_table, write_table
from streamjoin.queries.engine.stored import EngineChange
from streamjoin.storage.places import Place, entries

BATCH_SECONDS: Final = 1.0
"""What a batch should take at most while there is more to read."""
_BUDGET_SHARE: Final = 0.25
"""What a batch should take of the engine's budget."""
_FIRST_ROWS: Final = 1000
"""Of the first batch, when nothing is known of what a tuple costs: with many queries that is much."""
_LEAST_ROWS: Final = 500
_MARK: Final = "staged"


class Pace:
    """How many tuples of a stream one batch takes, at most `most_rows` and `most_bytes`."""

    def __init__(self, most_rows: int = 100_000, most_bytes: int = 64 << 20) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._rows = min(most_rows, _FIRST_ROWS)

    def after(self, rows: int, seconds: float, budget_share: float) -> None:
        """Follow a batch: the most that a stream had in it, how long it took, and what of the engine's budget."""
        load = max(seconds / BATCH_SECONDS, budget_share / _BUDGET_SHARE)
        if load > 1 and rows >= _LEAST_ROWS:
            # Not by more than four at once: one slow batch may have other reasons.
            self._rows = max(min(_LEAST_ROWS, self._most_rows), int(min(rows, self._rows) / min(load, 4.0)))
        elif load < 0.5 and rows >= 0.9 * self._rows:
            self._rows = min(self._most_rows, 2 * self._rows)

    def rows_of(self, rows: int, nbytes: int) -> int:
        """How many of `rows` tuples, which have `nbytes` bytes, a batch takes; one at least."""
        by_bytes = self._most_bytes * rows // nbytes if nbytes > self._most_bytes else rows
        return max(1, min(rows, self._rows, by_bytes))


@dataclass(frozen=True)
class Slice:
    """A part of what a source gave, and where the stream goes on after it."""

    rows: pa.Table
    position: Position
    malformed: pa.Table | None = None


def plain_position(position: Position | None) -> Position | None:
    """The position of the source itself: after all that it gave together, also where that is not all handed on."""
    return position["to"] if _is_staged(position) else position  # type: ignore[index, call-overload]


def _is_staged(position: Position | None) -> bool:
    return isinstance(position, Mapping) and _MARK in position


class Staging:
    """What a source gave and is not handed on yet; `directory` keeps it, None where nothing survives the process."""

    def __init__(self, directory: Place | None) -> None:
        self._directory = directory
        self._rows: pa.Table | None = None
        self._malformed: pa.Table | None = None
        self._done = 0
        self._name: str | None = None
        self._to: Position = 0

    @property
    def has_more(self) -> bool:
        """Whether something is to be handed on."""
        return self._rows is not None

    @property
    def rows_left(self) -> int:
        """How many tuples are to be handed on."""
        return 0 if self._rows is None else int(self._rows.num_rows) - self._done

    @property
    def share_left(self) -> float:
        """Which share of what the source gave last is to be handed on."""
        if self._rows is None or not self._rows.num_rows:
            return 0.0
        return self.rows_left / int(self._rows.num_rows)

    def resume(self, position: Position | None) -> None:
        """Go on at a position of the journal.

        Raises:
            CheckpointError: the position is within a read that the checkpoint does not have any more.
        """
        packed: Any = position if _is_staged(position) else None
        if packed is None:
            self._rows = self._malformed = self._name = None
            self._remove(None)
            return
        self._done, self._to = int(packed["rows"]), packed["to"]
        if packed[_MARK] != self._name and self._directory is not None:
            self._rows, self._name = read_table(self._directory / packed[_MARK]), packed[_MARK]
            self._remove(self._name)

    def begin(self, rows: pa.Table, malformed: pa.Table | None, to: Position, time_column: str) -> None:
        """Take what a source gave, after which it goes on at `to`."""
        # What is read together has no order of its own: a tuple is not late because of its neighbours.
        self._rows, self._malformed, self._done, self._to = rows.sort_by(time_column), malformed, 0, to

    def next(self, pace: Pace) -> Slice:
        """What the next batch takes."""
        if self._rows is None:
            raise AssertionError("nothing is there to be handed on")
        total = self._rows.num_rows
        count = pace.rows_of(total - self._done, self._rows.nbytes * (total - self._done) // max(1, total))
        if self._done + count >= total:
            return Slice(self._rows.slice(self._done), self._to, self._malformed)
        if self._name is None:
            self._name = uuid.uuid4().hex
            if self._directory is not None:
                write_table(self._directory / self._name, self._rows)
        position = {_MARK: self._name, "rows": self._done + count, "to": self._to}
        return Slice(self._rows.slice(self._done, count), position, self._malformed)

    def handed(self, given: Slice) -> None:
        """The journal has a slice."""
        self._malformed = None
        self._done += given.rows.num_rows
        if not _is_staged(given.position):
            self._rows = None
            if self._name is not None:
                self._remove(None)
                self._name = None

    def _remove(self, kept: str | None) -> None:
        if self._directory is not None:
            for entry in entries(self._directory):
                if entry.name != kept:
                    entry.unlink(missing_ok=True)


LINGER: Final = 0.25
"""Seconds that a batch waits for streams whose tuples are being read at this moment."""
MOST_CREATES: Final = 64
"""Queries that one boundary creates: tuples and other requests wait for no more than that."""
MOST_WAITING: Final = 1000
"""Creates that may wait while the engine runs; one more is refused."""


@dataclass(frozen=True, eq=False)
class SourceBatch:
    """Tuples of a stream that are read or pushed together, and the records that could not be decoded.

    `position` says where the stream goes on after them. `until` is the time, in ticks, that the stream has reached
    whether or not a tuple says so. `safe` is resolved when the journal has them, `done` when their rows are out.
    By the monotonic clock: `handed_at` is when they were handed in, `read_at` when reading them began, `looked_at` when
    the source was looked into before that; where nothing is read, all three are the same.
    """

    stream: str
    position: Position
    tuples: Sized | None = None
    """A table, or the files that tasks wrote of them; None where silence alone makes a batch."""
    malformed: pa.Table | None = None
    until: int | None = None
    safe: Future[None] = field(default_factory=Future, repr=False)
    done: Future[None] = field(default_factory=Future, repr=False)
    handed_at: float = field(default_factory=time.monotonic)
    read_at: float | None = None
    looked_at: float | None = None

    @property
    def rows(self) -> int:
        """How many tuples there are."""
        return 0 if self.tuples is None else len(self.tuples)


@dataclass(frozen=True, eq=False)
class Question:
    """Something to be done between two batches."""

    asked: Callable[[], Any]
    answer: Future[Any] = field(default_factory=Future, repr=False)

    def reply(self) -> None:
        """Do it; an error goes to the caller. A cancelled one is not done."""
        if not self.answer.set_running_or_notify_cancel():
            return
        try:
            self.answer.set_result(self.asked())
        except BaseException as error:
            self.answer.set_exception(error)


@dataclass(frozen=True)
class BatchWork:
    """What one batch boundary takes."""

    requests: list[EngineChange]
    given: dict[str, SourceBatch]
    questions: list[Question]

    def fail(self, error: BaseException) -> None:
        """Tell all who still wait."""
        requests = [request.done for request in self.requests]
        given = [future for one in self.given.values() for future in (one.safe, one.done)]
        for waiting in (*requests, *given, *(question.answer for question in self.questions)):
            if not waiting.done():
                waiting.set_exception(error)


def _those_of_one_boundary(requests: Sequence[EngineChange]) -> int:
    """How many of the requests a boundary takes: in their order, up to a number of creates."""
    creates = accumulate(request.action == "create" for request in requests)
    return sum(1 for count in creates if count <= MOST_CREATES)


class Inbox:
    """Collects changes, tuples and questions from any thread until the next batch takes them."""

    def __init__(self, pace: Pace | None = None) -> None:
        self.pace = pace or Pace()
        """How much of a stream a batch may have, where its source has more."""
        self._changed = threading.Condition()
        self._requests: list[EngineChange] = []
        self._given: dict[str, SourceBatch] = {}
        self._questions: list[Question] = []
        self._reading: set[str] = set()
        self._taken: list[EngineChange] = []
        self._closed = False
        self._failure: BaseException | None = None

    # Putting in ---------------------------------------------------------------------------------------------------

    def submit(self, request: EngineChange, *, bounded: bool = False) -> None:
        """Ask for a change.

        Raises:
            StateError: the engine has stopped.
            BackPressureError: with `bounded`, too many changes wait already.
        """
        with self._changed:
            self._refuse_when_closed()
            if bounded and len(self._requests) >= MOST_WAITING:
                raise BackPressureError(
                    f"{len(self._requests):,} changes wait for the engine, which is the limit; try again soon"
                )
            self._requests.append(request)
            self._changed.notify_all()

    def ask(self, asked: Callable[[], Any]) -> Future[Any]:
        """Have something done between two batches, when nothing changes."""
        question = Question(asked)
        with self._changed:
            self._refuse_when_closed()
            self._questions.append(question)
            self._changed.notify_all()
        return question.answer

    def expect(self, stream: str) -> None:
        """A batch waits a moment for the tuples of a stream, until they are given or there are none."""
        with self._changed:
            self._reading.add(stream)

    def expect_none(self, stream: str) -> None:
        """A stream has no tuples for the next batch."""
        with self._changed:
            self._reading.discard(stream)
            self._changed.notify_all()

    @contextmanager
    def reading(self, stream: str) -> Iterator[None]:
        """While a stream's tuples are read, and until they are given, a batch waits for them a moment."""
        self.expect(stream)
        try:
            yield
        except BaseException:
            self.expect_none(stream)
            raise

    def hand(self, one: SourceBatch) -> None:
        """Give tuples and wait until they are safe.

        Raises:
            StateError: the engine has stopped, or it failed.
        """
        self.put(one)
        one.safe.result()

    def put(self, *given: SourceBatch) -> None:
        """Give tuples of streams that belong in one batch; what came before it of the same stream must be safe."""
        with self._changed:
            self._refuse_when_closed()
            for one in given:
                if one.stream in self._given:
                    raise StateError(f"a batch of stream {one.stream!r} waits already")
            self._given |= {one.stream: one for one in given}
            self._reading -= self._given.keys()
            self._changed.notify_all()

    def _refuse_when_closed(self) -> None:
        if self._failure is not None:
            raise StateError(f"the engine failed: {self._failure}") from self._failure
        if self._closed:
            raise StateError("the engine has stopped; make a new one with the same checkpoint to go on")

    # Taking out ---------------------------------------------------------------------------------------------------

    def take(self, patience: float | None = None) -> BatchWork | None:
        """Everything there is, when there is something; None once it is closed and empty.

        After `patience` seconds, if that is given, it is nothing.
        """
        with self._changed:
            end = None if patience is None else time.monotonic() + patience
            while not (self._requests or self._given or self._questions or self._closed):
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return BatchWork([], {}, [])
                self._changed.wait(left)
            until = time.monotonic() + LINGER
            while self._given and self._reading - self._given.keys() and not self._closed:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            count = _those_of_one_boundary(self._requests)
            self._taken, self._requests = self._requests[:count], self._requests[count:]
            work = BatchWork(self._taken, self._given, self._questions)
            self._given, self._questions = {}, []
            return work if work.requests or work.given or work.questions else None

    @property
    def handed(self) -> dict[str, float]:
        """The streams whose tuples wait for a batch, and since when by the monotonic clock."""
        with self._changed:
            return {name: one.handed_at for name, one in self._given.items()}

    @property
    def waiting(self) -> list[EngineChange]:
        """The changes that are not yet in force."""
        with self._changed:
            return [request for request in (*self._taken, *self._requests) if not request.done.done()]

    @property
    def closed(self) -> bool:
        """Whether nothing is taken in any more."""
        return self._closed

    def close(self, failure: BaseException | None = None) -> None:
        """Take nothing in any more; what is there can still be taken out, unless there was a failure."""
        with self._changed:
            self._closed, self._failure = True, self._failure or failure
            left = BatchWork([], {}, [])
            if failure is not None:
                left = BatchWork(self._requests, self._given, self._questions)
                self._requests, self._given, self._questions = [], {}, []
            self._changed.notify_all()
        left.fail(StateError(f"the engine failed: {failure}"))
