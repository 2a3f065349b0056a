"""The runner of most algorithms: one driver thread joins whatever is waiting.

While the driver joins, sources put their tuples into the inbox; then it takes all of them at once. Batches are
therefore small when the join is idle, which keeps latency low, and large when it is busy, which makes it fast.
`DrivenJoin` is `Join` with every rule of its gate, windows and lateness; only the way in and the way out differ: the
input of many sources in one call, rows with their gate positions. Invariants: calls of one source are processed in
their order; a call hands out all rows of the tuples it released before the next call begins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.decisions import Key
from streamjoin.joins.base import Overflow
from streamjoin.joins.engine.calls import Begin
from streamjoin.joins.engine.driver import Join
from streamjoin.joins.engine.lossless import known_schema
from streamjoin.joins.engine.operator import Operator
from streamjoin.joins.engine.ordered import Work
from streamjoin.joins.engine.settings import OpenSettings
from streamjoin.joins.live.inbox import PushedRows, SourceInbox, collect
from streamjoin.joins.live.latency import Histogram
from streamjoin.joins.live.runner import Call, Deliver, Delivery, Fail, Setup, Stopped
from streamjoin.model.plain_types import retyped
from streamjoin.windows.interrupts import Deferred

# A push of at most this many tuples is joined in the thread of its source, where the work before it took at most this
# many nanoseconds.
MOST_HERE, MOST_TOOK = 1 << 12, 4_000_000
# A step with too many rows is cut into this many steps.
_CUT = 8
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Rows of some consecutive tuples."""

    rows: pa.Table
    later: Array
    """The gate position of each row's later tuple, or of the tuple with which it comes out."""
    arrived: Array
    """When that tuple was pushed, or when the row was decided without one."""
    reached: int
    """The gate position up to which tuples are joined."""
    time: int | None
    """The time before which no later row's time is."""


class DrivenJoin(Join):
    """A join that one driver thread feeds."""

    def __init__(self, setup: Setup, schemas: tuple[pa.Schema, pa.Schema], general_pushes: int | None = None) -> None:
        super().__init__(
            setup.spec,
            OpenSettings(
                setup.request,
                setup.workers,
                schemas,
                max_rows=None,
                columns=setup.columns,
                general_pushes=general_pushes,
            ),
        )
        self._batch_rows = setup.batch_rows
        self._position = 0
        self._time: int | None = None
        self.released = Histogram()
        """How long after their push tuples were ready."""

    def run(self, calls: list[Call]) -> Iterator[JoinedRows]:
        """Process the calls of the sources, and return the rows of the tuples that they made ready."""
        return self._steps(self._receiving(calls))

    def push_whole(self, call: Call) -> JoinedRows | None:
        """Join one push in one step, or leave all as it was; None if it takes several."""
        before = self._position, self._time

        def restore() -> None:
            self._position, self._time = before

        with self._lock:
            self._check_usable()
            operator = self._at_once
            try:
                if operator is not None:
                    operator.save_push()
                    joined = self._guard(partial(self._join_at_once, operator, call), operator.undo_push, restore)
                    if joined is not None:
                        return joined
                return self._attempt(partial(self._join_whole, call), restore)
            except Overflow:
                return None

    def end(self) -> Iterator[JoinedRows]:
        """End the input: the rows of all waiting tuples."""
        return self._steps(self._closing())

    @property
    def gate_rows(self) -> int:
        """The number of tuples that wait in the gate."""
        return self._intake.waiting

    @property
    def is_broken(self) -> bool:
        """Whether a call could be neither completed nor undone."""
        return self._broken is not None

    @property
    def has_gate(self) -> bool:
        """Whether sources are merged by time."""
        return self._intake.gate is not None

    @property
    def holders(self) -> tuple[Key, ...]:
        """The sources for which the gate waits, in event-time order."""
        return () if self._intake.gate is None else self._intake.gate.holders

    def _join_at_once(self, operator: Operator, call: Call) -> JoinedRows | None:
        left, right = (None, call.rows) if call.side else (call.rows, None)
        rows = operator.join_at_once(left, right, self._batch_rows)
        if rows is None or call.rows is None:
            return None
        first, n = self._position, call.rows.num_rows
        self._position += n
        self.released.since(np.full(n, call.arrived))
        return JoinedRows(rows, first + operator.later, np.full(rows.num_rows, call.arrived), self._position, None)

    def _join_whole(self, call: Call) -> JoinedRows:
        work, first = self._ready(self._receiving([call])), self._position
        if work is None or not work.waiting:
            self._time = self._reached_time()
            return JoinedRows(self._joined([]), _NONE, _NONE, self._position, self._time)
        rows = self._step(work, self._batch_rows, None)
        if work.waiting:
            raise Overflow
        return self._joined_rows(work, 0, first, rows)

    def _steps(self, begin: Begin) -> Iterator[JoinedRows]:
        first = self._position
        with self._lock:
            self._check_usable()
            work, rows = self._begin(begin)
        if work is not None and rows is not None:
            yield self._joined_rows(work, 0, first, rows)
        tuples = 0 if work is None else self._next_size(work, rows)
        while work is not None and work.waiting:
            before = work.begin
            try:
                with self._lock:
                    rows = self._attempt(partial(self._step, work, self._limit(tuples), tuples), work.saved())
            except Overflow:
                tuples = max(1, work.tried // _CUT)
                continue
            yield self._joined_rows(work, before, first, rows)
            tuples = self._next_size(work, rows)
        if self._time != self._reached_time():
            # No tuple was ready, but the bound has moved.
            self._time = self._reached_time()
            yield JoinedRows(self._joined([]), _NONE, _NONE, self._position, self._time)

    def _begin(self, begin: Begin) -> tuple[Work | None, pa.Table | None]:
        """The first part of a call and its first step, saved together; without the step if that has too many rows."""

        def both() -> tuple[Work | None, pa.Table | None]:
            work = self._ready(begin)
            return work, None if work is None or not work.waiting else self._step(work, self._batch_rows, None)

        try:
            return self._attempt(both)
        except Overflow:
            return self._attempt(lambda: self._ready(begin)), None

    def _ready(self, begin: Begin) -> Work | None:
        work = begin()
        if work is not None and work.ordered.arrived is not None:
            self.released.since(work.ordered.arrived)
        return work

    def _joined_rows(self, work: Work, before: int, first: int, rows: pa.Table) -> JoinedRows:
        """The rows of the step that began at tuple `before` of some work, whose first tuple has position `first`."""
        places = before + self._operator.later
        arrived = work.ordered.arrived
        if before == work.ordered.is_right.size:
            # Rows that the end of the call decides come out with the next tuple, or before it.
            arrived = np.full(rows.num_rows, time.monotonic_ns())
        else:
            arrived = np.zeros(rows.num_rows, np.int64) if arrived is None else arrived[places]
        if not work.waiting:
            self._time = self._reached_time()
        self._position = first + work.begin
        return JoinedRows(rows, first + places, arrived, self._position, self._time)

    def _reached_time(self) -> int | None:
        """The time before which no later row's time is, in event-time order."""
        gate = self._intake.gate
        return None if gate is None else self._operator.earliest(gate.tick)

    def _next_size(self, work: Work, rows: pa.Table | None) -> int:
        """How many tuples the next step may have, by what the newest one gave."""
        if rows is None:
            return max(1, work.waiting // _CUT)
        return work.tried * (_CUT if _CUT * rows.num_rows <= self._batch_rows else 1)

    def _limit(self, tuples: int) -> int | None:
        # A single tuple has at most one row per tuple of the other window.
        return self._batch_rows if tuples > 1 else None

    def _receiving(self, calls: list[Call]) -> Begin:
        if self.spec.order == "event_time":
            return lambda: self._collect(calls)
        return lambda: self._feed(calls)

    def _feed(self, calls: list[Call]) -> Work | None:
        """In arrival order: the tuples of all sources as they were pushed."""
        pushes = PushedRows(calls)
        if not pushes.sizes:
            return None
        tables = [self._one_table(side, pushes.tables(side)) for side in (0, 1)]
        self._learn_schemas(tables)
        tables = [self._fitted(side, table) for side, table in enumerate(tables)]
        is_right = pushes.is_right
        n_left = 0 if tables[0] is None else tables[0].num_rows
        left_first = not is_right[:n_left].any()
        work = self._intake.feed(tables, is_right, "", left_first=left_first, arrived=pushes.arrived)
        self._at_once = self._operator.at_once(self._schemas)
        return work

    def _collect(self, calls: list[Call]) -> Work | None:
        """In event-time order: everything into the gate, then one release."""
        gate = self._intake.gate
        if gate is None:
            raise AssertionError("event-time order without a gate")
        collect(gate, calls, self._collect_pushes)
        return self._intake.release()

    def _collect_pushes(self, side: int, source: str, pushes: PushedRows) -> None:
        tables: list[pa.Table | None] = [None, None]
        tables[side] = self._one_table(side, pushes.tables(side))
        self._learn_schemas(tables)
        self._intake.collect(side, source, self._fitted(side, tables[side]), pushes.arrived)

    def _one_table(self, side: int, parts: list[pa.Table]) -> pa.Table | None:
        """The tuples of several pushes as one table; columns that were all NULL take the first type that came."""
        if not parts:
            return None
        known = self._schemas[side]
        if known is None:
            raise AssertionError("tuples before the schema is known")
        if any(part.schema is not known and not part.schema.equals(known) for part in parts):
            for part in parts:
                known = known_schema(known, part.schema)
            parts = [retyped(part, known) for part in parts]
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts)

    def _fitted(self, side: int, table: pa.Table | None) -> pa.Table | None:
        """The stored columns of the tuples, each in one piece."""
        if table is None or self._bound is None:
            return table
        names = (self._bound.left_schema, self._bound.right_schema)[side].names
        table = table if table.num_columns == len(names) else table.select(names)
        return table if table.column(0).num_chunks == 1 else table.combine_chunks()


class DrivenRunner:
    """Runs any algorithm behind one driver thread."""

    in_order = True

    def __init__(self, setup: Setup, schemas: tuple[pa.Schema, pa.Schema]) -> None:
        self.join = DrivenJoin(setup, schemas)
        self._inbox = SourceInbox(setup.queue_rows, setup.queue_bytes, schemas)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._queued = Histogram()
        self._busy = self._idle = self._delivering = self._in_sources = 0.0
        self._rounds = self._by_sources = 0
        self._has_room = setup.has_room
        # When the newest work ended, and how long it took, in nanoseconds. The first is the driver's: it may compile.
        self._ended_at, self._took = 0, 1 << 62

    def start(self, deliver: Deliver, fail: Fail) -> None:
        """Start the driver."""
        self._deliver, self._fail = deliver, fail
        self._thread = threading.Thread(target=self._run, name="streamjoin-driver", daemon=True)
        self._thread.start()

    # -- sources -------------------------------------------------------------------------------------------

    def push(
        self, side: int, name: str, rows: pa.Table | pa.RecordBatch, arrived: int, timeout: float | None = None
    ) -> None:
        """Join tuples in this thread if the join is idle, or put them into the inbox; waits while that is full."""
        call = Call("push", side, name, arrived, rows)
        if rows.num_rows <= MOST_HERE and self._is_rare(arrived):
            # An interrupt in the middle would leave everybody else waiting.
            with Deferred():
                if self._inbox.claim(call) and self._join_here(call):
                    return
        self._inbox.push(call, timeout)

    def submit(self, call: Call) -> None:
        """Put a call into the inbox, whether it is full or not; in arrival order only tuples count."""
        if self.join.has_gate or call.rows is not None:
            self._inbox.put(call)

    adopt = submit

    def admit(self) -> None:
        """Let in the pushes that wait for room."""
        self._inbox.admit()

    def _is_rare(self, arrived: int) -> bool:
        """Whether a push comes after a pause at least as long as the join worked before it, and that was not long.

        Others are better joined beside their sources, many at once.
        """
        return self._took <= min(MOST_TOOK, arrived - self._ended_at)

    def _join_here(self, call: Call) -> bool:
        """Join a push that was claimed; False, with nothing changed, if it is for the driver. It fails as a whole."""
        joined = None
        try:
            self._queued.since(np.array([call.arrived], np.int64))
            joined = self.join.push_whole(call) if self._has_room() else None
            if joined is not None:
                self._deliver_joined(joined)
        except BaseException as error:
            if self.join.is_broken:
                self._fail(error)
            raise
        finally:
            self._note(call.arrived)
            self._by_sources += joined is not None
            self._in_sources += self._took / 1e9
            if self._inbox.release(self.join.gate_rows, self.join.holders, None if joined is None else call):
                self.join._end()
        return joined is not None

    def _deliver_joined(self, joined: JoinedRows) -> None:
        try:
            self._deliver_all([joined])
        except Stopped:
            raise
        except BaseException as error:
            # The tuples are joined, so the push can't be undone.
            self._fail(error)

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
            if self._inbox.leave():
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
        self._queued.since(np.array([call.arrived for call in calls if call.rows is not None], np.int64))
        self._deliver_all(self.join.run(calls))
        self._rounds += 1
        self._note(now)
        self._inbox.release(self.join.gate_rows, self.join.holders)
        self._busy += time.perf_counter() - begin - (self._delivering - delivering)

    def _note(self, begun: int) -> None:
        """Record when the newest work ended, and how long it took."""
        self._ended_at = time.monotonic_ns()
        self._took = self._ended_at - begun

    def _deliver_all(self, steps: Iterable[JoinedRows]) -> None:
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
        if self._thread is None:
            self.join._end()
        elif self._thread is not threading.current_thread():
            self._thread.join()
            self._inbox.await_worker()

    def set_workers(self, n: int) -> None:
        """Change the number of the algorithm's threads."""
        self.join.set_workers(n)

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
            "joined_by_sources": self._by_sources,
            "latency": {"queue": self._queued.figures(), "gate": self.join.released.figures()},
            "threads": {
                "driver": {"join": self._busy, "deliver": self._delivering, "wait": self._idle},
                "sources": {"join": self._in_sources},
            },
        }
