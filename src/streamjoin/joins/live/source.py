"""A source of a live join: a handle that any thread may push to.

Calls on one source take turns; sources do not wait for each other. Invariant: a push is taken completely or not at all.

What sources push before the schemas of both sides are known is kept in order (`WaitingInput`), and handed to the runner
then. Invariant: `hand_over` does not wait but for the few lines of other calls there. A runner adopts what was kept
without asking for room (`Runner.adopt`), since the room may depend on the very call that binds the join, or on those
that wait for the locks held meanwhile.

A source is idle once it has neither pushed nor advanced for a given time, by the clock of the join (`IdleWatch`). A
push that waits for room counts as activity. The clock is passed in, so a test turns it by hand.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from streamjoin.joins.live.runner import Call, Runner
from streamjoin.model.errors import BackPressureError, StateError
from streamjoin.windows.interrupts import wait

# How often an asynchronous push looks for room, in seconds: at first, and at the most.
_FIRST_LOOK, _LAST_LOOK = 0.0005, 0.02


class Replaced(Exception):  # noqa: N818 - never leaves the live join
    """The runner is known now: call it instead."""


class WaitingInput:
    """Takes the calls of sources until there is a runner."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._changed = threading.Condition()
        self._calls: list[Call] = []
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self.rows = 0
        self._bytes = 0
        self._replaced = False

    def push(
        self, side: int, name: str, rows: pa.Table | pa.RecordBatch, arrived: int, timeout: float | None = None
    ) -> None:
        """Keep tuples; waits while there are too many."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (self.rows >= self._most_rows or self._bytes >= self._most_bytes) and not self._replaced:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    other = ("right", "left")[side]
                    raise BackPressureError(
                        f"{self.rows:,} tuples wait until the columns of the {other} side are known: push it, or give "
                        f"{other}_schema= to live"
                    )
                wait(self._changed, left)
            self._keep(Call("push", side, name, arrived, rows))
            self.rows += rows.num_rows
            self._bytes += int(rows.nbytes)

    def submit(self, call: Call) -> None:
        """Keep a call that is not a push."""
        with self._changed:
            self._keep(call)

    def hand_over(self, runner: Runner, switch: Callable[[], None]) -> None:
        """Give the calls that were kept to the runner, then call `switch`; every later call raises Replaced."""
        with self._changed:
            for call in self._calls:
                runner.adopt(call)
            self._calls = []
            self.rows = self._bytes = 0
            switch()
            self._replaced = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Have the calls that wait for room raise Replaced: the join has ended."""
        with self._changed:
            self._replaced = True
            self._changed.notify_all()

    def _keep(self, call: Call) -> None:
        if self._replaced:
            raise Replaced
        self._calls.append(call)


class Owner(Protocol):
    """What a source uses of its live join."""

    def prepare(self, side: int, data: object) -> pa.Table | pa.RecordBatch:
        """Pushed data in the side's schema; raises an error if it does not fit."""
        ...

    def attempt(self, call: Callable[[Runner | WaitingInput], None]) -> None:
        """Call the runner; raises an error if the join takes no more input."""
        ...

    def ticks(self, side: int, time: object) -> int:
        """A value of a side's time column in ticks."""
        ...

    def now(self) -> float:
        """The join's clock."""
        ...

    def woken(self) -> None:
        """A source that rested is active again."""
        ...

    def left(self, source: LiveSource) -> None:
        """A source has finished."""
        ...


class LiveSource:
    """One physical source. Use it as a context manager to finish it at the end of a block."""

    def __init__(self, owner: Owner, side: int, name: str) -> None:
        self._owner = owner
        self._side = side
        self._name = name
        self._lock = threading.Lock()
        self._active_at = owner.now()
        self._resting = False
        self._finished = False
        self._input_ended = False
        self.tuples = 0
        """The number of tuples pushed."""

    @property
    def side(self) -> str:
        """The side: "left" or "right"."""
        return ("left", "right")[self._side]

    @property
    def name(self) -> str:
        """The name it was opened with."""
        return self._name

    def push(self, data: object, *, timeout: float | None = None, wait: bool = True) -> None:
        """Hand over tuples; returns before they are joined.

        Args:
            data: a RecordBatch or Table, or anything else that `Join.push` takes.
            timeout: how many seconds to wait at the most while the join has no room; None for as long as it takes.
            wait: False is the same as `timeout=0`.

        Raises:
            BackPressureError: the join had no room in time; nothing was taken.
        """
        arrived = time.monotonic_ns()
        if wait and timeout is None:
            with self._lock:
                self._push(data, arrived, None)
            return
        timeout = max(0.0, timeout or 0.0) if wait else 0.0
        if not self._lock.acquire(timeout=timeout):
            raise BackPressureError(f"another push to source {self._name!r} has waited for room for {timeout:g} s")
        try:
            self._push(data, arrived, timeout)
        finally:
            self._lock.release()

    def _push(self, data: object, arrived: int, timeout: float | None) -> None:
        self._check_open()
        rows = self._owner.prepare(self._side, data)
        self._active_at = self._owner.now()
        if rows.num_rows:
            self._owner.attempt(lambda runner: runner.push(self._side, self._name, rows, arrived, timeout))
            self.tuples += rows.num_rows
            self._wake()

    async def push_async(self, data: object) -> None:
        """`push` for coroutines: waits for room without blocking the event loop."""
        rows = self._owner.prepare(self._side, data)
        pause = _FIRST_LOOK
        while True:
            try:
                self.push(rows, timeout=0)
            except BackPressureError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_LOOK)
            else:
                return

    def advance(self, time: object) -> None:
        """Declare that no tuples before `time`, a value of the time column, will come; in event-time order."""
        ticks = self._owner.ticks(self._side, time)
        with self._lock:
            self._check_open()
            call = Call("advance", self._side, self._name, time=ticks)
            self._owner.attempt(lambda runner: runner.submit(call))
            self._wake()

    def finish(self) -> None:
        """Declare that this source has ended: the join stops waiting for it. May be called twice."""
        with self._lock:
            if self._finished:
                return
            self._owner.attempt(lambda runner: runner.submit(Call("finish", self._side, self._name)))
            self._finished = True
        self._owner.left(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Without the join's own error hiding the one that ended the block.
        if kind is None:
            self.finish()
        else:
            try:
                self.finish()
            except StateError:
                return

    def __repr__(self) -> str:
        return f"<{self.side} source {self._name!r}: {self.tuples:,} tuples{', finished' if self._finished else ''}>"

    # -- what the join uses --------------------------------------------------------------------------------

    def rest_if_idle(self, now: float, idle: float) -> float | None:
        """Rest if the source has been silent for `idle` seconds; returns when to look again."""
        if not self._lock.acquire(blocking=False):
            # A call is under way: not silent.
            return now + idle
        try:
            if self._finished or self._resting:
                return None
            if now - self._active_at < idle:
                return self._active_at + idle
            self._owner.attempt(lambda runner: runner.submit(Call("rest", self._side, self._name)))
            self._resting = True
            return None
        finally:
            self._lock.release()

    def end(self) -> None:
        """Take no further calls: the input ends. Returns at once; a call that is under way goes on."""
        self._input_ended = True

    def await_call(self) -> None:
        """Wait for the call that is under way, after `end`; it must not have to wait for room."""
        with self._lock:
            self._finished = True

    def _check_open(self) -> None:
        if self._input_ended:
            raise StateError("the input of this live join has ended: close() was called; open a new join")
        if self._finished:
            raise StateError(f"source {self._name!r} has finished and takes no more tuples; open another one")

    def _wake(self) -> None:
        self._active_at = self._owner.now()
        if self._resting:
            self._resting = False
            self._owner.woken()


class WaitClock(Protocol):
    """A clock for waiting."""

    def now(self) -> float:
        """Seconds since some moment; never falls."""
        ...

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait until `condition`, which is held, is notified, or for `seconds` of this clock."""
        ...


class MonotonicClock:
    """The system's monotonic clock."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait on `condition`."""
        condition.wait(seconds)


class IdleWatch:
    """Has the gate stop waiting for sources that have fallen silent; in a thread of its own."""

    def __init__(
        self,
        idle: float,
        clock: WaitClock,
        sources: Callable[[], Iterable[LiveSource]],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._idle = idle
        self._clock = clock
        self._sources = sources
        self._fail = fail
        self._changed = threading.Condition()
        self._news = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="streamjoin-idle", daemon=True)
        self._thread.start()

    def look_again(self) -> None:
        """Look at the sources once more: one has come, or has woken."""
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:
            self._fail(error)

    def _watch(self) -> None:
        while not self._stopped:
            with self._changed:
                self._news = False
            now = self._clock.now()
            looks = [source.rest_if_idle(now, self._idle) for source in self._sources()]
            next_look = min((at for at in looks if at is not None), default=None)
            with self._changed:
                # A clock that was turned meanwhile has notified no thread: compare before waiting.
                while not (self._stopped or self._news or (next_look is not None and self._clock.now() >= next_look)):
                    self._clock.wait(self._changed, None if next_look is None else next_look - self._clock.now())
