"""ScaleJoin as in the paper: sources feed a gate, threads read it, and their matches meet in a second gate.

Nothing between sources and second gate needs the interpreter: a source encodes its tuples and adds them to the gate in
its own thread (`inlets.py`), and each processing thread is one compiled loop (`scalejoin/kernels/scan.py`). The
collector is one more reader of the first gate: it copies the rows that the threads compare into the stores, in gate
order, takes matches from the second gate and gathers their rows. The intake's thread only takes up what found no room.

This way is for event-time order, and for conditions that find pairs by words or by a program; the driver thread has the
others (`joins/live/driven.py`). What neither decides of a condition the collector tests on the rows.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.decisions import Key
from streamjoin.indexes.base import Index
from streamjoin.indexes.registry import INDEXES
from streamjoin.jit.machine import I64
from streamjoin.joins.auto import choose
from streamjoin.joins.engine.intake import SIDES
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.live.flow import POLL, Flow, HeldPairs, TakenPairs
from streamjoin.joins.live.inbox import fullness
from streamjoin.joins.live.latency import Histogram
from streamjoin.joins.live.runner import Call, Setup
from streamjoin.joins.live.running import FlowRunner, Run
from streamjoin.joins.live.windowed import LiveOperator, SentChunk
from streamjoin.kernels.rows import NO_COLUMN
from streamjoin.kernels.times import length_word
from streamjoin.model.errors import BackPressureError, StateError
from streamjoin.scalejoin.carried import can_travel
from streamjoin.scalejoin.gate import GateArena
from streamjoin.scalejoin.inlets import GateInlets
from streamjoin.scalejoin.join import ScaleJoin
from streamjoin.scalejoin.kernels.gate import peek, read, release
from streamjoin.scalejoin.kernels.nodes import BOUND_TIME, EVER, reader_at
from streamjoin.scalejoin.kernels.rings import (
    COLLECTORS_BELL,
    READERS_BELL,
    SIDE,
    await_results,
    copy_out,
    least_clock,
    ring,
)
from streamjoin.scalejoin.kernels.scan import (
    AT,
    COMPARED,
    NEEDS_LEFT,
    NEEDS_PAIRS,
    NEEDS_RIGHT,
    NEEDS_STORE,
    STATE_WORDS,
    UNDECIDED,
    ScanGroup,
    ScanPairs,
    ScanPlan,
    ScanShare,
    ScanTests,
    grown,
    make_group,
    make_pairs,
    make_share,
    make_tests,
    scan,
    scan_by,
)
from streamjoin.scalejoin.lines import LineEncoder
from streamjoin.windows.clock import NEVER
from streamjoin.windows.conditions import Condition
from streamjoin.windows.interrupts import wait
from streamjoin.windows.store import is_fixed

_RESULT_RING = 1 << 13
_BLOCK = 1 << 14
_STORED = 1 << 12
_LEAST_SHARE, _LEAST_PAIRS = 1 << 12, 1 << 14
# Microseconds that the collector sleeps at most. While rows come, it waits for at least `_LEAST_ROUND` seconds before
# it looks for more, and leaves the interpreter to the sources.
_NAP_US = 20_000
_LEAST_ROUND = 0.0005
_NO_INDEX = np.empty(0, np.int64)
# Seconds after which the intake's thread looks for room again.
_NEXT_TRY = 0.002


@dataclass
class _Scan:
    """One processing thread's arrays."""

    plan: ScanPlan
    share: ScanShare
    group: ScanGroup
    pairs: ScanPairs
    tests: ScanTests
    indexes: tuple[Index, Index] | None
    state: Array

    @property
    def arenas(self) -> tuple[I64, I64]:
        """Those of the indexes; they are others when an index has grown."""
        return (_NO_INDEX, _NO_INDEX) if self.indexes is None else (self.indexes[0].mem, self.indexes[1].mem)


class MatchGate:
    """The second gate: the matches of all threads meet in it, with a source for each thread; the collector reads it."""

    def __init__(self, threads: int, ring: int, block: int, *, self_join: bool) -> None:
        self.gate = GateArena(threads, ring=ring)
        self.slots = [self.gate.add_source(k) for k in range(threads)]
        self._columns = tuple(np.empty(block, np.int64) for _ in range(3))
        self._held = HeldPairs(self_join)
        self._has_read = False
        self.complete = 0
        """The gate position up to which all matches were taken."""

    def read(self) -> int:
        """Read one block of the ready matches; returns the gate position before which none is left."""
        slots, seqs, later = self._columns
        n = read(self.gate.mem, 0, slots, seqs, later)
        if not n:
            return EVER
        self._has_read = True
        self._held.add(TakenPairs(later[:n].copy(), seqs[:n].copy()))
        return int(later[n - 1]) if n == slots.size else EVER

    def has_news(self, complete: int) -> bool:
        """Whether matches were read since the last `take`, or are complete further than then."""
        return self._has_read or complete > self.complete

    def take(self, complete: int) -> TakenPairs | None:
        """The matches that were read and lie before `complete`; None without news."""
        if not self.has_news(complete):
            return None
        self._has_read, self.complete = False, max(complete, self.complete)
        return self._held.take(self.complete)


class GateFlow(Flow):
    """The threads between the two gates, and the sources in front of them."""

    in_order = True
    refined = True

    def __init__(
        self,
        join: ScaleJoin,
        operator: LiveOperator,
        lines: LineEncoder,
        condition: Condition | None,
        inlets: GateInlets,
    ) -> None:
        bound, self._operator = operator.bound, operator
        self.crew = join.crew
        self.threads = join.shares.n
        self.inlets = inlets
        self._roles = lines.roles
        self._is_tested = bound.residual is None or condition is not None
        self._matches = MatchGate(self.threads, _RESULT_RING, _BLOCK, self_join=bound.spec.self_join)
        self._shares = join.shares
        self._scan = scan if join.shares.index is None else scan_by(join.shares.index, INDEXES[join.shares.index].task)
        dtype = np.uint32 if lines.narrow else np.uint64
        others = lines.terms.size - lines.finding
        # The tuple of a self-join that looks for matches is one of a window of tuples.
        sizes = [length_word(w.size) - int(bound.spec.self_join and w.kind == "count") for w in bound.windows]
        timed = [window.kind == "time" for window in bound.windows]
        self._scans = [
            _Scan(
                ScanPlan(
                    k, self.threads, lines.roles, bound.has_equal_roles, lines.terms.size, lines.finding,
                    (sizes[0], sizes[1]), (timed[0], timed[1]),
                ),
                make_share(_LEAST_SHARE, dtype, lines.finding, others, lines.columns),
                make_group(dtype, others, lines.columns, indexed=join.shares.index is not None),
                make_pairs(_LEAST_PAIRS),
                make_tests(None if condition is None else condition.programs),
                join.shares.indexes(k),
                np.zeros(STATE_WORDS, np.int64),
            )
            for k in range(self.threads)
        ]  # fmt: skip
        self.stored = 0
        """The gate position up to which the collector has stored tuples."""
        self._looked = 0.0

    def send(self, sent: SentChunk) -> None:
        """Do nothing: the threads read the gate."""

    def end(self) -> None:
        """Let every thread return behind the last tuple."""
        self.inlets.close()

    def run(self, k: int) -> None:
        """Thread k."""
        own, inlets = self._scans[k], self.inlets
        while True:
            code = self._scan(
                inlets.mem, self._matches.gate.mem, inlets.bells, self.crew.words, inlets.sources, own.arenas,
                own.plan, own.share, own.group, own.pairs, own.tests, own.state,
            )  # fmt: skip
            if code == NEEDS_STORE:
                own.share = grown(own.share)
            elif code == NEEDS_PAIRS:
                own.pairs = make_pairs(2 * own.pairs.probe.shape[1])
            elif own.indexes is not None and code in (NEEDS_LEFT, NEEDS_RIGHT):
                own.indexes[code - NEEDS_LEFT].maintain()
            else:
                return

    def wake(self) -> None:
        """Wake all threads."""
        ring(self.inlets.bells, READERS_BELL)
        ring(self.inlets.bells, COLLECTORS_BELL)

    # -- the collector's ------------------------------------------------------------------------------------

    def await_more(self, open_chunks: bool) -> None:
        """Sleep until the threads are further, or for a while."""
        spent = time.perf_counter() - self._looked
        if spent < _LEAST_ROUND:
            time.sleep(_LEAST_ROUND - spent)
        seen = self._matches.complete if open_chunks else self.stored
        await_results(self._matches.gate.mem, self.threads, self.inlets.bells, self.crew.words, seen, _NAP_US)
        self._looked = time.perf_counter()

    def take(self, oldest: SentChunk) -> TakenPairs | None:  # noqa: ARG002 - for chains
        """Read the second gate, up to what all threads have passed and the collector has stored.

        One block of it: rows that are complete should leave while the threads find more.
        """
        complete = min(least_clock(self._matches.gate.mem, self.threads), self.stored)
        complete = min(complete, self._matches.read())
        # Both roles of a tuple are complete together.
        pairs = self._matches.take(complete - complete % self._roles)
        if pairs is None or (self._is_tested and not any(own.state[UNDECIDED] for own in self._scans)):
            return pairs
        return TakenPairs(*self._operator.holding(pairs.later, pairs.seqs))

    def reached(self, sent: SentChunk) -> bool:
        """Whether all threads have passed the chunk."""
        return sent.end <= self._matches.complete

    def forget(self, sent: SentChunk) -> None:
        """Do nothing: each thread drops the tuples of its own share."""

    def counters(self) -> dict[str, int]:
        """The pairs compared, and the steps of indexes."""
        return {**self._shares.counters(), "compared": sum(int(own.state[COMPARED]) for own in self._scans)}

    def work(self) -> dict[str, dict[str, int]]:
        """The tuples that each thread has read, and what it has compared."""
        return {
            f"thread {k}": {"tuples": int(own.state[AT]), "compared": int(own.state[COMPARED])}
            for k, own in enumerate(self._scans)
        }

    @property
    def nbytes(self) -> int:
        """Bytes held by all shares, the rings and the second gate."""
        arrays = sum(array.nbytes for own in self._scans for array in (*own.share, *own.group, *own.pairs, *own.tests))
        return int(arrays) + self._shares.nbytes + self.inlets.nbytes + int(self._matches.gate.mem.nbytes)


class GateIntake:
    """The intake of a ScaleJoin whose sources feed the gate themselves."""

    def __init__(self, run: Run, setup: Setup, flow: GateFlow) -> None:
        self._run, self._operator, self._flow = run, run.operator, flow
        self._inlets, self._roles = flow.inlets, 2 if setup.bound.spec.self_join else 1
        self.queued, self.released = flow.inlets.queued, Histogram()
        stores = run.operator.stores
        self._fixed_width: int = max(
            1, *(sum(f.type.bit_width // 8 for f in store.schema if is_fixed(f.type)) for store in stores)
        )
        self._reader = flow.threads
        self._most_rows, self._most_bytes = setup.queue_rows, setup.queue_bytes
        # Notified when there is room; the intake's thread is, when something waits for room.
        lock = threading.Lock()
        self._room, self._blocked = threading.Condition(lock), threading.Condition(lock)
        self._sources_wait = 0
        self._admits = False
        self._columns = tuple(np.empty(_STORED, np.int64) for _ in range(3))
        self._n_columns = np.array([len(store.schema) for store in stores], np.int64)
        self._time_rows = self._n_columns + len(setup.bound.terms)

    # -- calls of sources ----------------------------------------------------------------------------------

    def push(self, call: Call, timeout: float | None) -> None:
        """Add tuples of one source to the gate; waits while there is no room for them."""
        key = call.side, call.source
        if self._is_over_limit(key):
            self._wait_for_room(key, timeout)
        self.submit(call)

    def submit(self, call: Call) -> None:
        """Make a call at the gate; what finds no room there waits in front of it."""
        try:
            if self._inlets.submit(call):
                return
        except StateError:
            raise
        except BaseException as error:
            self._run.fail(error)
        with self._blocked:
            self._blocked.notify()

    adopt = submit

    def admit(self) -> None:
        """Let in the pushes that wait for room."""
        with self._room:
            self._admits = True
            self._room.notify_all()

    @property
    def _row_width(self) -> float:
        return self._fixed_width + self._inlets.carried.row_bytes

    def _in_gates(self) -> int:
        """How many tuples are in the gate and not stored."""
        return max(0, self._inlets.added - self._flow.stored // self._roles)

    def _is_over_limit(self, key: Key) -> bool:
        waiting = self._inlets.waiting + self._in_gates()
        if self._admits or (waiting < self._most_rows and waiting * self._row_width < self._most_bytes):
            return False
        if key not in self._inlets.holders:
            return True
        # Once everything that is ready is stored, only this source, and others at its time, can empty the gate.
        stored = NEVER if self._run.sent_time is None else self._run.sent_time
        return stored < self._inlets.clock(key)

    def _wait_for_room(self, key: Key, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        while self._is_over_limit(key):
            rest = POLL if until is None else min(POLL, until - time.monotonic())
            if rest <= 0 and timeout is not None:
                inlets = self._inlets
                raise BackPressureError(fullness(timeout, inlets.waiting, self._in_gates(), inlets.holders))
            with self._room:
                self._sources_wait += 1
                wait(self._room, rest)
                self._sources_wait -= 1
            self._run.check()

    def end(self) -> None:
        """End the input."""
        with self._blocked:
            self._run.input_ended = True
            self._blocked.notify()

    def wake(self) -> None:
        """Do nothing: those who wait look at the crew."""

    # -- the intake's thread: what found no room -----------------------------------------------------------

    def run(self) -> None:
        """Take up what waits, until the input has ended."""
        finishes = False
        while not self._run.stopped:
            is_free = self._inlets.take_up()
            if is_free and finishes:
                self._flow.end()
                return
            if self._run.input_ended and not finishes:
                finishes = True
                self._inlets.finish_all()
                continue
            with self._blocked:
                # The collector notifies when it has made room; the other readers may be behind it.
                if not self._run.input_ended or finishes:
                    self._blocked.wait(POLL if is_free else _NEXT_TRY)

    # -- the collector's thread ----------------------------------------------------------------------------

    def await_sent(self) -> None:
        """Return at once: `store_ready` waits."""

    def store_ready(self) -> None:
        """Copy the rows that are ready from the sources' rings to the stores."""
        run = self._run
        self._flow.await_more(bool(run.open))
        while not run.stopped:
            n, limit = self._store_some()
            bound = None if limit == NEVER else limit
            if not n and bound == run.sent_time:
                return
            run.sent_time = bound
            run.open.append(SentChunk(run.sent, run.sent, None, None, None, self._operator.dropped, bound))
            with self._room:
                if self._sources_wait:
                    self._room.notify_all()
                if self._inlets.is_blocked:
                    self._blocked.notify()
            if n < _STORED:
                return

    def _store_some(self) -> tuple[int, int]:
        """Store some tuples; returns how many, and the time before which no more come."""
        inlets, operator = self._inlets, self._operator
        slots, places, times = self._columns
        n, head = peek(inlets.mem, self._reader, slots, places, times, 0, _STORED)
        limit = int(times[n - 1]) if n == _STORED else int(inlets.mem[reader_at(inlets.mem, self._reader) + BOUND_TIME])
        if not n:
            return 0, limit
        stores = operator.stores
        with operator.lock, self._run.counts.step("store"):
            own, arrived = operator.reserve(n * self._roles)
            for store in stores:
                store.block.reserve(n)
            while True:
                counts = np.array([store.count for store in stores], np.int64)
                ends = np.array([store.block.end for store in stores], np.int64)
                column = copy_out(
                    inlets.sources, inlets.layouts, slots, places, times, self._n_columns,
                    (stores[0].layout(), stores[1].layout()), ends, counts, self._time_rows, self._roles, own, arrived,
                )  # fmt: skip
                if column == NO_COLUMN:
                    break
                store = stores[column & 1]
                store.mark_nulls([store.schema.names[column >> 1]])
            carried = inlets.carried.take(slots[:n], inlets.sources[slots[:n], SIDE])
            for store, count, columns in zip(stores, counts.tolist(), carried, strict=True):
                store.include(columns, count - store.count)
            operator.expire()
        release(inlets.mem, self._reader, head)
        self.released.add(time.monotonic_ns() - arrived[:: self._roles])
        self._run.sent += n * self._roles
        self._flow.stored = self._run.sent
        return n, limit

    # -- what there is to see ------------------------------------------------------------------------------

    def sizes(self) -> tuple[int, int, int]:
        """The number of tuples in front of the gate and in it, and the bytes of the former."""
        self._run.counts.tuples_left, self._run.counts.tuples_right = self._inlets.tuples
        waiting = self._inlets.waiting
        return waiting, self._in_gates(), int(waiting * self._row_width)


def _set_aside(run: Run, side: int, source: str, reason: str, rows: pa.Table) -> None:
    with run.ordering:
        run.late.trim()
        if reason == "late":
            run.counts.late += rows.num_rows
        else:
            run.counts.rejected += rows.num_rows
        run.late.add(SIDES[side], source, reason, rows)


def run_gated(setup: Setup) -> FlowRunner | None:
    """The runner of a ScaleJoin whose sources feed the gate; None where the driver thread serves as well.

    That is in arrival order, which a gate would not have to find; where only evaluation can find pairs; and where
    columns have no flat values.
    """
    bound, condition = setup.bound, Condition.of(setup.bound)
    choice = choose(bound, setup.request)
    schemas = [bound.left_schema] if bound.spec.self_join else [bound.left_schema, bound.right_schema]
    if bound.spec.order != "event_time" or not all(schema.names and can_travel(schema) for schema in schemas):
        return None
    if not (bound.index or bound.terms or condition):
        return None
    operator = LiveOperator(bound, choice, setup.workers, Counts())
    if not isinstance(operator.algorithm, ScaleJoin):
        raise AssertionError(f"{choice.name} is not a ScaleJoin")
    join = operator.algorithm
    run = Run(operator, join.crew)
    lines = LineEncoder(bound, operator.plan, condition, indexed=join.shares.index is not None)
    inlets = GateInlets(bound, lines, join.shares.n + 1, partial(_set_aside, run))
    flow = GateFlow(join, operator, lines, condition, inlets)
    return FlowRunner(setup, run, flow, GateIntake(run, setup, flow))
