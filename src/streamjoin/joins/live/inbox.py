"""The inbox of a live join: what sources have sent and the join has not taken, with a limit on it.

A push waits, or raises an error, while the tuples of the inbox and those that the join holds in its gate are too many.
Invariants: calls of one source are taken in their order; a source for which the gate waits always finds room, one push
at a time, since only it can empty the gate; every wait ends when the join stops. The gate waits for all sources that
are at its least time: one thread may push to several of them, and does not know in which order they are waited for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.decisions import Key
from streamjoin.gate.merge import EventTimeGate
from streamjoin.joins.live.row_bytes import RowBytes
from streamjoin.joins.live.runner import Stopped
from streamjoin.model.errors import BackPressureError

Event = Literal["add", "push", "advance", "finish", "rest"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a source."""

    event: Event
    side: int
    source: str
    arrived: int
    rows: pa.Table | None = None
    """The tuples of a push."""
    time: int = 0
    """The ticks of an `advance`."""


class SourceInbox:
    """Takes the calls of all sources, from any thread; one thread at a time empties it."""

    def __init__(
        self, most_rows: int, most_bytes: int, schemas: tuple[pa.Schema, pa.Schema], *, wakes: bool = True
    ) -> None:
        """`wakes`: a call wakes the thread that waits for one; otherwise only `wake` does."""
        self._wakes = wakes
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._row_bytes = [RowBytes(schema) for schema in schemas]
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._calls: deque[Call] = deque()
        self._rows = self._bytes = 0
        # Rows and bytes that the join has taken and works on, and that wait in its gate.
        self._taken = self._gate = (0, 0)
        self._all_rows = self._all_bytes = 0
        self._holders: tuple[Key, ...] = ()
        self._asleep = False
        self._sources_wait = 0
        self.ended = self.stopped = False

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def rows(self) -> int:
        """The number of tuples in the inbox."""
        return self._rows

    def push(self, call: Call, timeout: float | None) -> None:
        """Put tuples into the inbox; waits while there is no room for them.

        Raises:
            BackPressureError: there was no room for `timeout` seconds; nothing was taken.
            Stopped: the join has ended.
        """
        rows = call.rows
        if rows is None:
            raise AssertionError("a push without rows")
        n, nbytes = rows.num_rows, self._row_bytes[call.side].of(rows)
        with self._lock:
            if self.stopped or not self._has_room(call):
                self._wait_for_room(call, timeout)
            self._calls.append(call)
            self._rows += n
            self._bytes += nbytes
            self._wake()

    def put(self, call: Call) -> None:
        """Put a call without tuples into the inbox."""
        with self._lock:
            self._check()
            self._calls.append(call)
            self._wake()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until there is a call, or the end, or for so long; whether there is."""
        with self._lock:
            if not (self._calls or self.ended or self.stopped):
                self._asleep = True
                self._filled.wait(seconds)
                self._asleep = False
            return bool(self._calls or self.ended or self.stopped)

    def wake(self) -> None:
        """Have the thread that waits for calls look."""
        with self._lock:
            self._filled.notify()

    def take(self) -> list[Call] | None:
        """Everything that waits, once there is something; None at the end. They take up room until `release`."""
        while not self.wait():
            pass
        with self._lock:
            if self.stopped or not self._calls:
                return None
            calls = list(self._calls)
            self._calls.clear()
            self._taken = self._count(self._rows, self._bytes)
        return calls

    def take_some(self, most: int) -> tuple[list[Call], int]:
        """The next calls, until they have `most` tuples, and how many tuples they have; they make room at once."""
        calls: list[Call] = []
        rows = nbytes = 0
        with self._lock:
            while self._calls and rows < most:
                call = self._calls.popleft()
                calls.append(call)
                if call.rows is not None:
                    rows += call.rows.num_rows
                    nbytes += self._row_bytes[call.side].of(call.rows)
            self._count(rows, nbytes)
            if self._sources_wait:
                self._room.notify_all()
        return calls, rows

    def release(self, gate_rows: int, holders: tuple[Key, ...]) -> None:
        """Record that the taken calls are processed; `gate_rows` tuples wait in the gate, for sources `holders`."""
        with self._lock:
            # Counting the bytes of every waiting table would take longer than joining them.
            self._gate = gate_rows, gate_rows * self._all_bytes // max(1, self._all_rows)
            self._taken, self._holders = (0, 0), holders
            if self._sources_wait:
                self._room.notify_all()

    def end(self) -> None:
        """End the input: `take` returns None when all calls are taken."""
        with self._lock:
            self.ended = True
            self._filled.notify()

    def stop(self) -> None:
        """Drop the calls, and end every wait."""
        with self._lock:
            self.stopped = True
            self._calls.clear()
            self._filled.notify()
            self._room.notify_all()

    def sizes(self) -> tuple[int, int]:
        """The number of tuples in the inbox or being worked on, and in the gate as of the newest round."""
        with self._lock:
            return self._rows + self._taken[0], self._gate[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the tuples in the inbox."""
        return self._bytes

    def _count(self, rows: int, nbytes: int) -> tuple[int, int]:
        """Take so much off the inbox."""
        self._all_rows += rows
        self._all_bytes += nbytes
        self._rows -= rows
        self._bytes -= nbytes
        return rows, nbytes

    def _wake(self) -> None:
        if self._asleep and self._wakes:
            self._asleep = False
            self._filled.notify()

    def _check(self) -> None:
        if self.stopped:
            raise Stopped("this live join has ended")

    def _has_room(self, call: Call) -> bool:
        rows = self._rows + self._taken[0] + self._gate[0]
        nbytes = self._bytes + self._taken[1] + self._gate[1]
        if rows < self._most_rows and nbytes < self._most_bytes:
            return True
        return not self._rows and (call.side, call.source) in self._holders

    def _wait_for_room(self, call: Call, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        self._sources_wait += 1
        try:
            while not (self.stopped or self._has_room(call)):
                left = None if deadline is None else deadline - time.monotonic()
                if timeout is not None and left is not None and left <= 0:
                    raise BackPressureError(
                        fullness(timeout, self._rows + self._taken[0], self._gate[0], self._holders)
                    )
                self._room.wait(left)
        finally:
            self._sources_wait -= 1
        self._check()


def fullness(timeout: float, waiting: int, in_gate: int, holders: tuple[Key, ...]) -> str:
    """Why a push was refused: so many tuples wait for the join and in its gate, which waits for these sources."""
    gate = ""
    if in_gate:
        behind = f"source {holders[0][1]!r}" if holders else "a side without a source"
        gate = f", {in_gate:,} in the gate, which waits for {behind}"
    return (
        f"no room for more tuples within {timeout:g} s: {waiting:,} wait for the join{gate}; push them again later, "
        "read the results faster, or open the join with larger queue_rows= and queue_bytes="
    )


class PushedRows:
    """The tuples of the pushes among some calls, in their order."""

    def __init__(self, calls: list[Call]) -> None:
        self._pushes = [(call, call.rows) for call in calls if call.rows is not None]
        self.sizes = [rows.num_rows for _, rows in self._pushes]

    def tables(self, side: int) -> list[pa.Table]:
        """The tables of one side."""
        return [rows for call, rows in self._pushes if call.side == side]

    def table(self, side: int) -> pa.Table | None:
        """The tuples of one side as one table; None without any."""
        tables = self.tables(side)
        return pa.concat_tables(tables) if len(tables) > 1 else tables[0] if tables else None

    @property
    def is_right(self) -> Array:
        """The side of each tuple."""
        return np.repeat(np.array([call.side == 1 for call, _ in self._pushes], np.bool_), self.sizes)

    @property
    def arrived(self) -> Array:
        """When each tuple was pushed."""
        return np.repeat(np.array([call.arrived for call, _ in self._pushes], np.int64), self.sizes)


def collect(gate: EventTimeGate, calls: list[Call], take: Callable[[int, str, PushedRows], None]) -> None:
    """Make the calls of sources at a gate, source by source; `take` gets consecutive pushes of one at once."""
    by_source: dict[Key, list[Call]] = {}
    for call in calls:
        by_source.setdefault((call.side, call.source), []).append(call)
    others = {"add": gate.add, "finish": gate.leave, "rest": gate.rest}
    for (side, name), own in by_source.items():
        for is_push, run in groupby(own, lambda call: call.rows is not None):
            if is_push:
                take(side, name, PushedRows(list(run)))
                continue
            for call in run:
                if call.event == "advance":
                    gate.advance(side, name, call.time)
                else:
                    others[call.event](side, name)
