"""The runner of most algorithms: one driver thread joins whatever is waiting.

While the driver joins, sources put their tuples into a queue; then it takes all of them at once. Batches are therefore
small when the join is idle, which keeps latency low, and large when it is busy, which makes it fast. Invariants: calls
of one source are processed in their order; the queue and the gate together hold a bounded number of tuples, and the
source for which the gate waits always finds room in the gate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.joins.live.driven_join import Call, DrivenJoin, JoinedRows
from streamjoin.joins.live.latency import Histogram
from streamjoin.joins.live.row_bytes import RowBytes
from streamjoin.joins.live.runner import Deliver, Delivery, Fail, Setup, Stopped
from streamjoin.model.errors import BackPressureError


class DrivenRunner:
    """Runs any algorithm behind one driver thread."""

    in_order = True

    def __init__(self, setup: Setup, schemas: tuple[pa.Schema, pa.Schema]) -> None:
        self.join = DrivenJoin(setup, schemas)
        self._most_rows, self._most_bytes = setup.queue_rows, setup.queue_bytes
        self._row_bytes = [RowBytes(schema) for schema in schemas]
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._calls: list[Call] = []
        self._rows = self._bytes = 0
        # Rows and bytes that the driver is joining, and that wait in the gate as of its newest round.
        self._taken = self._gate = (0, 0)
        self._all_rows = self._all_bytes = 0
        self._holder: tuple[int, str] | None = None
        self._asleep = False
        self._sources_wait = 0
        self._ending = self._stopped = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._queued = Histogram()
        self._busy = self._idle = self._delivering = 0.0
        self._rounds = 0

    def start(self, deliver: Deliver, fail: Fail) -> None:
        """Start the driver."""
        self._deliver, self._fail = deliver, fail
        self._thread = threading.Thread(target=self._run, name="streamjoin-driver", daemon=True)
        self._thread.start()

    # -- sources -------------------------------------------------------------------------------------------

    def push(self, side: int, name: str, rows: pa.Table, arrived: int, timeout: float | None = None) -> None:
        """Put tuples into the queue; waits while it is full."""
        n, nbytes = rows.num_rows, self._row_bytes[side].of(rows)
        call = Call("push", side, name, arrived, rows)
        with self._lock:
            if self._stopped or not self._has_room(side, name):
                self._wait_for_room(side, name, timeout)
            self._calls.append(call)
            self._rows += n
            self._bytes += nbytes
            if self._asleep:
                self._asleep = False
                self._filled.notify()

    def add_source(self, side: int, name: str) -> None:
        """Open a source."""
        self._put(Call("add", side, name, 0))

    def advance(self, side: int, name: str, time: int) -> None:
        """Declare that a source has no tuples before `time`."""
        self._put(Call("advance", side, name, 0, None, time))

    def finish(self, side: int, name: str) -> None:
        """Declare that a source has ended."""
        self._put(Call("finish", side, name, 0))

    def rest(self, side: int, name: str) -> None:
        """Stop waiting for a source until its next tuples."""
        self._put(Call("rest", side, name, 0))

    def _put(self, call: Call) -> None:
        with self._lock:
            if self._stopped:
                raise Stopped("this live join has ended")
            self._calls.append(call)
            if self._asleep:
                self._asleep = False
                self._filled.notify()

    def _has_room(self, side: int, name: str) -> bool:
        rows = self._rows + self._taken[0] + self._gate[0]
        nbytes = self._bytes + self._taken[1] + self._gate[1]
        if rows < self._most_rows and nbytes < self._most_bytes:
            return True
        # One push at a time of the source that the gate waits for: only it can empty the gate.
        return not self._rows and self._holder == (side, name)

    def _wait_for_room(self, side: int, name: str, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        self._sources_wait += 1
        try:
            while not (self._stopped or self._has_room(side, name)):
                left = None if deadline is None else deadline - time.monotonic()
                if timeout is not None and left is not None and left <= 0:
                    raise BackPressureError(self._fullness(timeout))
                self._room.wait(left)
        finally:
            self._sources_wait -= 1
        if self._stopped:
            raise Stopped("this live join has ended")

    def _fullness(self, timeout: float) -> str:
        gate = ""
        if self._gate[0]:
            behind = "a side without a source" if self._holder is None else f"source {self._holder[1]!r}"
            gate = f", {self._gate[0]:,} in the gate, which waits for {behind}"
        return (
            f"no room for more tuples within {timeout:g} s: {self._rows + self._taken[0]:,} wait for the join{gate}; "
            "push them again later, read the results faster, or open the join with larger queue_rows= and queue_bytes="
        )

    # -- the driver ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (calls := self._next()) is not None:
                self._process(calls)
            if not self._stopped:
                self._deliver_all(self.join.end())
        except Stopped:
            pass
        except BaseException as error:
            self._fail(error)
        finally:
            self.join._end()
            self._ended.set()

    def _next(self) -> list[Call] | None:
        """Everything that waits; None at the end."""
        begin = time.perf_counter()
        with self._lock:
            while not (self._calls or self._ending or self._stopped):
                self._asleep = True
                self._filled.wait()
            self._asleep = False
            if self._stopped or not self._calls:
                return None
            calls, self._calls = self._calls, []
            self._taken = self._rows, self._bytes
            self._all_rows += self._rows
            self._all_bytes += self._bytes
            self._rows = self._bytes = 0
        self._idle += time.perf_counter() - begin
        return calls

    def _process(self, calls: list[Call]) -> None:
        begin, delivering = time.perf_counter(), self._delivering
        now = time.monotonic_ns()
        self._queued.add(now - np.array([call.arrived for call in calls if call.rows is not None], np.int64))
        self._deliver_all(self.join.run(calls))
        self._rounds += 1
        gate_rows, holder = self.join.gate_rows, self.join.holder
        with self._lock:
            # Counting the bytes of every waiting table would take longer than joining them.
            self._gate = gate_rows, gate_rows * self._all_bytes // max(1, self._all_rows)
            self._taken, self._holder = (0, 0), holder
            if self._sources_wait:
                self._room.notify_all()
        self._busy += time.perf_counter() - begin - (self._delivering - delivering)

    def _deliver_all(self, steps: Iterator[JoinedRows]) -> None:
        for step in steps:
            begin = time.perf_counter()
            rows = step.rows
            self._deliver(Delivery(rows, step.later, np.arange(rows.num_rows), step.arrived, step.reached, step.time))
            self._delivering += time.perf_counter() - begin

    # -- the end -------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Join everything that waits, and end the driver."""
        with self._lock:
            self._ending = True
            self._filled.notify()
        self._ended.wait()

    def stop(self) -> None:
        """End the driver at once."""
        with self._lock:
            self._stopped = True
            self._calls.clear()
            self._filled.notify()
            self._room.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def late(self) -> pa.Table:
        """Rows that were late or without a time since the last call."""
        return self.join.late()

    def metrics(self) -> Mapping[str, Any]:
        """The join's figures, the queue and the driver's time."""
        figures = self.join.metrics()
        with self._lock:
            queued, gate = self._rows + self._taken[0], self._gate[0]
        return {
            **figures,
            "waiting": queued + figures["waiting"],
            "queued": queued,
            "gate": gate,
            "rounds": self._rounds,
            "latency": {"queue": self._queued.figures(), "gate": self.join.released.figures()},
            "threads": {
                "driver": {"join": self._busy, "deliver": self._delivering, "wait": self._idle},
            },
        }
