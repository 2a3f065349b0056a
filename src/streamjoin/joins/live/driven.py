"""The runner of most algorithms: one driver thread joins whatever is waiting.

While the driver joins, sources put their tuples into the inbox; then it takes all of them at once. Batches are
therefore small when the join is idle, which keeps latency low, and large when it is busy, which makes it fast.
Invariant: calls of one source are processed in their order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.joins.live.driven_join import DrivenJoin, JoinedRows
from streamjoin.joins.live.inbox import Call, SourceInbox
from streamjoin.joins.live.latency import Histogram
from streamjoin.joins.live.runner import Deliver, Delivery, Fail, Setup, Stopped


class DrivenRunner:
    """Runs any algorithm behind one driver thread."""

    in_order = True

    def __init__(self, setup: Setup, schemas: tuple[pa.Schema, pa.Schema]) -> None:
        self.join = DrivenJoin(setup, schemas)
        self._inbox = SourceInbox(setup.queue_rows, setup.queue_bytes, schemas)
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
        """Put tuples into the inbox; waits while it is full."""
        self._inbox.push(Call("push", side, name, arrived, rows), timeout)

    def add_source(self, side: int, name: str) -> None:
        """Open a source."""
        self._inbox.put(Call("add", side, name, 0))

    def advance(self, side: int, name: str, time: int) -> None:
        """Declare that a source has no tuples before `time`."""
        self._inbox.put(Call("advance", side, name, 0, None, time))

    def finish(self, side: int, name: str) -> None:
        """Declare that a source has ended."""
        self._inbox.put(Call("finish", side, name, 0))

    def rest(self, side: int, name: str) -> None:
        """Stop waiting for a source until its next tuples."""
        self._inbox.put(Call("rest", side, name, 0))

    # -- the driver ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (calls := self._next()) is not None:
                self._process(calls)
            if not self._inbox.stopped:
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
        calls = self._inbox.take()
        self._idle += time.perf_counter() - begin
        return calls

    def _process(self, calls: list[Call]) -> None:
        begin, delivering = time.perf_counter(), self._delivering
        now = time.monotonic_ns()
        self._queued.add(now - np.array([call.arrived for call in calls if call.rows is not None], np.int64))
        self._deliver_all(self.join.run(calls))
        self._rounds += 1
        self._inbox.release(self.join.gate_rows, self.join.holders)
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
        self._inbox.end()
        self._ended.wait()

    def stop(self) -> None:
        """End the driver at once."""
        self._inbox.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def late(self) -> pa.Table:
        """Rows that were late or without a time since the last call."""
        return self.join.late()

    def metrics(self) -> Mapping[str, Any]:
        """The join's figures, the queue and the driver's time."""
        figures = self.join.metrics()
        queued, gate = self._inbox.sizes()
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
