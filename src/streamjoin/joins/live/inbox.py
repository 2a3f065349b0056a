"""The inbox of a live join: what sources have sent and the join has not taken, with a limit on it.

A push waits, or raises an error, while the tuples of the inbox and those that the join holds in its gate are too many.
Invariants: calls of one source are taken in their order; the source for which the gate waits always finds room, one
push at a time, since only it can empty the gate; every wait ends when the join stops.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

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
    """Takes the calls of all sources, from any thread; one thread empties it."""

    def __init__(self, most_rows: int, most_bytes: int, schemas: tuple[pa.Schema, pa.Schema]) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._row_bytes = [RowBytes(schema) for schema in schemas]
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._calls: list[Call] = []
        self._rows = self._bytes = 0
        # Rows and bytes that the join has taken and works on, and that wait in its gate.
        self._taken = self._gate = (0, 0)
        self._all_rows = self._all_bytes = 0
        self._holder: tuple[int, str] | None = None
        self._asleep = False
        self._sources_wait = 0
        self._ended = False
        self.stopped = False

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

    def take(self) -> list[Call] | None:
        """Everything that waits, once there is something; None at the end."""
        with self._lock:
            while not (self._calls or self._ended or self.stopped):
                self._asleep = True
                self._filled.wait()
            self._asleep = False
            if self.stopped or not self._calls:
                return None
            calls, self._calls = self._calls, []
            self._taken = self._rows, self._bytes
            self._all_rows += self._rows
            self._all_bytes += self._bytes
            self._rows = self._bytes = 0
        return calls

    def release(self, gate_rows: int, holder: tuple[int, str] | None) -> None:
        """Record that the taken calls are processed; `gate_rows` tuples wait in the gate, for source `holder`."""
        with self._lock:
            # Counting the bytes of every waiting table would take longer than joining them.
            self._gate = gate_rows, gate_rows * self._all_bytes // max(1, self._all_rows)
            self._taken, self._holder = (0, 0), holder
            if self._sources_wait:
                self._room.notify_all()

    def end(self) -> None:
        """End the input: `take` returns None when all calls are taken."""
        with self._lock:
            self._ended = True
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

    def _wake(self) -> None:
        if self._asleep:
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
        return not self._rows and self._holder == (call.side, call.source)

    def _wait_for_room(self, call: Call, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        self._sources_wait += 1
        try:
            while not (self.stopped or self._has_room(call)):
                left = None if deadline is None else deadline - time.monotonic()
                if timeout is not None and left is not None and left <= 0:
                    raise BackPressureError(self._fullness(timeout))
                self._room.wait(left)
        finally:
            self._sources_wait -= 1
        self._check()

    def _fullness(self, timeout: float) -> str:
        gate = ""
        if self._gate[0]:
            behind = "a side without a source" if self._holder is None else f"source {self._holder[1]!r}"
            gate = f", {self._gate[0]:,} in the gate, which waits for {behind}"
        return (
            f"no room for more tuples within {timeout:g} s: {self._rows + self._taken[0]:,} wait for the join{gate}; "
            "push them again later, read the results faster, or open the join with larger queue_rows= and queue_bytes="
        )
