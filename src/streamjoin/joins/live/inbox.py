"""The inbox of a live join: what sources have sent and the join has not taken, with a limit on it.

A push waits, or raises an error, while the tuples of the inbox and those that the join holds in its gate are too many.
Invariants: calls of one source are taken in their order; a source for which the gate waits always finds room, one push
at a time, since only it can empty the gate; every wait ends when the join stops, or its input is about to end. The gate
waits for all sources that are at its least time: one thread may push to several of them, and does not know in which
order they are waited for. If all are idle, it goes on with whichever comes first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import groupby

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.decisions import Key
from streamjoin.gate.merge import EventTimeGate
from streamjoin.joins.live.runner import Call, Stopped
from streamjoin.model.errors import BackPressureError
from streamjoin.windows.interrupts import wait


class RowBytes:
    """Counts the bytes of tables of one schema, without looking at them where all columns have a fixed width.

    Arrow's own count visits every buffer and takes longer than a small push.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._width: int | None = 0
        for type_ in schema.types:
            try:
                self._width = None if self._width is None else self._width + -(-type_.bit_width // 8)
            except ValueError:
                self._width = None

    def of(self, rows: pa.Table | pa.RecordBatch) -> int:
        """The bytes of `rows`."""
        return int(rows.nbytes) if self._width is None else self._width * int(rows.num_rows)


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
        # One thread waits, and all are notified: an interrupt inside `notify` leaves a place that has been woken, and
        # the next `notify` would wake that one again and no other.
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
        self._admits = False
        # Who works on what was taken: a token, and its thread.
        self._worker: object = None
        self._works_in = 0
        self._left = False
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
        size = self._size(call)
        with self._lock:
            if self.stopped or not self._has_room(call):
                self._wait_for_room(call, timeout)
            self._append(call, size)

    def put(self, call: Call) -> None:
        """Put a call into the inbox, whether there is room for its tuples or not."""
        size = self._size(call)
        with self._lock:
            self._check()
            self._append(call, size)

    def admit(self) -> None:
        """Have room for every push from now on."""
        with self._lock:
            self._admits = True
            self._room.notify_all()

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
            self._filled.notify_all()

    def take(self) -> list[Call] | None:
        """Everything that waits, once there is something and no other thread works; None at the end.

        The calls take up room until `release`.
        """
        with self._lock:
            while not self._is_due():
                self._asleep = True
                self._filled.wait()
                self._asleep = False
            if self.stopped or not self._calls:
                return None
            calls = list(self._calls)
            self._calls.clear()
            self._taken = self._count(self._rows, self._bytes)
            self._worker = self
        return calls

    def claim(self, call: Call) -> bool:
        """Let the caller work on a push itself, if nothing waits and no thread works; then `release` follows."""
        with self._lock:
            over = self.ended or self.stopped or self._left
            if over or self._worker is not None or self._calls or not self._has_room(call):
                return False
            self._works_in = threading.get_ident()
            self._worker = call
            return True

    def take_some(self, most: int) -> tuple[list[Call], int]:
        """The next calls, until they have `most` tuples, and how many tuples they have; they make room at once."""
        calls: list[Call] = []
        rows = nbytes = 0
        with self._lock:
            while self._calls and rows < most:
                call = self._calls.popleft()
                calls.append(call)
                size = self._size(call)
                rows += size[0]
                nbytes += size[1]
            self._count(rows, nbytes)
            if self._sources_wait:
                self._room.notify_all()
        return calls, rows

    def release(self, gate_rows: int, holders: tuple[Key, ...], joined: Call | None = None) -> bool:
        """Record that the taken calls, or the claimed one that was `joined`, are processed.

        `gate_rows` tuples wait in the gate, for sources `holders`. Returns whether the caller has to end the join,
        since `leave` came meanwhile.
        """
        with self._lock:
            if joined is not None:
                rows, nbytes = self._size(joined)
                self._all_rows += rows
                self._all_bytes += nbytes
            # Counting the bytes of every waiting table would take longer than joining them.
            self._gate = gate_rows, gate_rows * self._all_bytes // max(1, self._all_rows)
            self._taken, self._holders, self._worker = (0, 0), holders, None
            if self._sources_wait or self.stopped:
                self._room.notify_all()
            if self._asleep and self._is_due():
                self._filled.notify_all()
                self._asleep = False
            return self._left

    def leave(self) -> bool:
        """Take no more; returns whether the join can be ended, or another thread that works does so at `release`."""
        with self._lock:
            self._left = True
            if self._worker is self:
                self._worker = None
            return self._worker is None

    def await_worker(self) -> None:
        """Wait until no other thread works, after `stop`."""
        with self._lock:
            while self._worker is not None and self._works_in != threading.get_ident():
                wait(self._room)

    def end(self) -> None:
        """End the input: `take` returns None when all calls are taken."""
        with self._lock:
            self.ended = True
            self._filled.notify_all()

    def stop(self) -> None:
        """Drop the calls, and end every wait."""
        with self._lock:
            self.stopped = True
            self._calls.clear()
            self._filled.notify_all()
            self._room.notify_all()

    def sizes(self) -> tuple[int, int]:
        """The number of tuples in the inbox or being worked on, and in the gate as of the newest round."""
        with self._lock:
            return self._rows + self._taken[0], self._gate[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the tuples in the inbox."""
        return self._bytes

    def _size(self, call: Call) -> tuple[int, int]:
        """The tuples of a call, and their bytes."""
        return (0, 0) if call.rows is None else (call.rows.num_rows, self._row_bytes[call.side].of(call.rows))

    def _append(self, call: Call, size: tuple[int, int]) -> None:
        self._rows += size[0]
        self._bytes += size[1]
        # Last: an interrupt comes behind a call, and finds the counts right.
        self._calls.append(call)
        if self._asleep and self._wakes and self._worker is None:
            self._filled.notify_all()
            self._asleep = False

    def _count(self, rows: int, nbytes: int) -> tuple[int, int]:
        """Take these numbers off the inbox's counts."""
        self._all_rows += rows
        self._all_bytes += nbytes
        self._rows -= rows
        self._bytes -= nbytes
        return rows, nbytes

    def _is_due(self) -> bool:
        """Whether the thread that empties the inbox has something to do."""
        return self.stopped or (self._worker is None and bool(self._calls or self.ended))

    def _check(self) -> None:
        if self.stopped:
            raise Stopped("this live join has ended")

    def _has_room(self, call: Call) -> bool:
        rows = self._rows + self._taken[0] + self._gate[0]
        nbytes = self._bytes + self._taken[1] + self._gate[1]
        if self._admits or (rows < self._most_rows and nbytes < self._most_bytes):
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
                wait(self._room, left)
        finally:
            self._sources_wait -= 1
        self._check()


def fullness(timeout: float, waiting: int, in_gate: int, holders: tuple[Key, ...]) -> str:
    """Why a push was refused: how many tuples wait for the join and in its gate, and for which sources."""
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
        self._pushes = [(call, table) for call in calls if (table := call.table) is not None]
        self.sizes = [table.num_rows for _, table in self._pushes]

    def tables(self, side: int) -> list[pa.Table]:
        """The tables of one side."""
        return [table for call, table in self._pushes if call.side == side]

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
