"""A source of a live join: a handle that any thread may push to.

Calls on one source take turns; sources do not wait for each other. Invariant: a push is taken completely or not at all.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from streamjoin.joins.live.runner import Runner
from streamjoin.joins.live.waiting import WaitingInput
from streamjoin.model.errors import BackPressureError, StateError

# How often an asynchronous push looks for room, in seconds: at first, and at the most.
_FIRST_LOOK, _LAST_LOOK = 0.0005, 0.02


class Owner(Protocol):
    """What a source uses of its live join."""

    def prepare(self, side: int, data: object) -> pa.Table:
        """Pushed data as a table of the side's schema; raises an error if it does not fit."""
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
            self._owner.attempt(lambda runner: runner.advance(self._side, self._name, ticks))
            self._wake()

    def finish(self) -> None:
        """Declare that this source has ended: the join stops waiting for it. May be called twice."""
        with self._lock:
            if self._finished:
                return
            self._owner.attempt(lambda runner: runner.finish(self._side, self._name))
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
            self._owner.attempt(lambda runner: runner.rest(self._side, self._name))
            self._resting = True
            return None
        finally:
            self._lock.release()

    def end(self) -> None:
        """Take no more: the input has ended. Waits for the call that is under way."""
        with self._lock:
            self._finished = self._input_ended = True

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
