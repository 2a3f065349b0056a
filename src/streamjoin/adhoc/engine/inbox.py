"""What waits for the next batch boundary: changes, at most one portion of tuples a stream, and questions.

Any thread may put something in; one thread takes everything at once. The invariants: changes are taken in the order
they came; a feed that hands in a portion waits until it is safe in the engine's journal, so that no source commits
what the engine does not have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from streamjoin.adhoc.engine.journal import Position
from streamjoin.adhoc.engine.stored import EngineChange
from streamjoin.model.errors import StateError

LINGER: Final = 0.25
"""Seconds that a batch waits for streams whose tuples are being read at this moment."""


@dataclass(frozen=True, eq=False)
class Portion:
    """Tuples of a stream that are read or pushed together, and the records that could not be decoded.

    `position` says where the stream goes on after them. `until` is the time, in ticks, that the stream has reached
    whether or not a tuple says so. `safe` is resolved when the journal has them, `done` when their rows are out.
    By the monotonic clock: `handed_at` is when they were handed in, `read_at` when reading them began, `looked_at` when
    the source was looked into before that; where nothing is read, all three are the same.
    """

    stream: str
    position: Position
    table: pa.Table
    malformed: pa.Table | None = None
    until: int | None = None
    safe: Future[None] = field(default_factory=Future, repr=False)
    done: Future[None] = field(default_factory=Future, repr=False)
    handed_at: float = field(default_factory=time.monotonic)
    read_at: float | None = None
    looked_at: float | None = None


@dataclass(frozen=True, eq=False)
class Question:
    """Something to be done between two batches."""

    asked: Callable[[], Any]
    answer: Future[Any] = field(default_factory=Future, repr=False)

    def reply(self) -> None:
        """Do it; an error goes to who asked. Nobody waits for one that was cancelled."""
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
    portions: dict[str, Portion]
    questions: list[Question]

    def fail(self, error: BaseException) -> None:
        """Tell all who still wait."""
        requests = [request.done for request in self.requests]
        portions = [future for portion in self.portions.values() for future in (portion.safe, portion.done)]
        for waiting in (*requests, *portions, *(question.answer for question in self.questions)):
            if not waiting.done():
                waiting.set_exception(error)


class Inbox:
    """Collects changes, portions and questions from any thread until the next batch takes them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: list[EngineChange] = []
        self._portions: dict[str, Portion] = {}
        self._questions: list[Question] = []
        self._reading: set[str] = set()
        self._taken: list[EngineChange] = []
        self._closed = False
        self._failure: BaseException | None = None

    # Putting in ---------------------------------------------------------------------------------------------------

    def submit(self, request: EngineChange) -> None:
        """Ask for a change.

        Raises:
            StateError: the engine has stopped.
        """
        with self._changed:
            self._refuse_when_closed()
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

    @contextmanager
    def reading(self, stream: str) -> Iterator[None]:
        """While a stream's tuples are read, a batch waits for them a moment."""
        with self._changed:
            self._reading.add(stream)
        try:
            yield
        finally:
            with self._changed:
                self._reading.discard(stream)
                self._changed.notify_all()

    def hand(self, portion: Portion) -> None:
        """Give a portion and wait until it is safe.

        Raises:
            StateError: the engine has stopped, or it failed.
        """
        self.put(portion)
        portion.safe.result()

    def put(self, *portions: Portion) -> None:
        """Give portions that belong in one batch; the one before it of the same stream must be safe."""
        with self._changed:
            self._refuse_when_closed()
            for portion in portions:
                if portion.stream in self._portions:
                    raise StateError(f"a portion of stream {portion.stream!r} waits already")
            self._portions |= {portion.stream: portion for portion in portions}
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
            while not (self._requests or self._portions or self._questions or self._closed):
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return BatchWork([], {}, [])
                self._changed.wait(left)
            until = time.monotonic() + LINGER
            while self._portions and self._reading - self._portions.keys() and not self._closed:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            work = BatchWork(self._requests, self._portions, self._questions)
            self._taken = self._requests
            self._requests, self._portions, self._questions = [], {}, []
            return work if work.requests or work.portions or work.questions else None

    @property
    def handed(self) -> dict[str, float]:
        """The streams whose tuples wait for a batch, and since when by the monotonic clock."""
        with self._changed:
            return {name: portion.handed_at for name, portion in self._portions.items()}

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
                left = BatchWork(self._requests, self._portions, self._questions)
                self._requests, self._portions, self._questions = [], {}, []
            self._changed.notify_all()
        left.fail(StateError(f"the engine failed: {failure}"))
