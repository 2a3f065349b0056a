"""ScaleJoin as in the paper: sources feed a gate, threads read it, and their matches meet in a second gate.

Nothing between sources and second gate needs the interpreter: a source encodes its tuples and adds them to the gate in
its own thread (`inlets.py`), and each processing thread is one compiled loop (`kernels/scalegate/scan.py`). The
collector is one more reader of the first gate: it copies the rows that the threads compare into the stores, in gate
order, takes matches from the second gate and gathers their rows. The intake's thread only takes up what found no room.

This way is for event-time order, one or two exact terms and columns of fixed width; `shares.py` has the others.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.scalegate import ScaleGate
from streamjoin.joins.engine.compiled_step import CompiledStep
from streamjoin.joins.engine.intake import SIDES
from streamjoin.joins.live.flow import POLL, Flow, TakenPairs, in_result_order
from streamjoin.joins.live.inbox import Call, fullness
from streamjoin.joins.live.inlets import GateInlets, SetAside
from streamjoin.joins.live.runner import Setup
from streamjoin.joins.live.running import FlowRunner
from streamjoin.joins.live.windowed import LiveOperator, SentChunk
from streamjoin.joins.parallel.scalejoin import ScaleJoin
from streamjoin.kernels.rows import NO_COLUMN
from streamjoin.kernels.scalegate.gate import peek, read, release
from streamjoin.kernels.scalegate.nodes import BOUND_TIME, EVER, reader_at
from streamjoin.kernels.scalegate.rings import (
    COLLECTORS_BELL,
    MOST_TERMS,
    READERS_BELL,
    await_results,
    copy_out,
    least_clock,
    ring,
)
from streamjoin.kernels.scalegate.scan import (
    AT,
    COMPARED,
    NEEDS_PAIRS,
    NEEDS_STORE,
    STATE_WORDS,
    ScanGroup,
    ScanPairs,
    ScanPlan,
    ScanShare,
    grown,
    make_group,
    make_pairs,
    make_share,
    scan,
)
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import BackPressureError, StateError
from streamjoin.windows.clock import NEVER

_RESULT_RING = 1 << 13
_BLOCK = 1 << 14
_STORED = 1 << 12
_LEAST_SHARE, _LEAST_PAIRS = 1 << 12, 1 << 14
# Microseconds that the collector sleeps at the most; while rows come it looks for more no sooner than after so many
# seconds, and leaves the interpreter to the sources.
_NAP_US = 20_000
_LEAST_ROUND = 0.0005
# Seconds after which the intake's thread looks for room again.
_NEXT_TRY = 0.002


@dataclass
class _Scan:
    """One processing thread's arrays."""

    plan: ScanPlan
    share: ScanShare
    group: ScanGroup
    pairs: ScanPairs
    state: Array


class GateFlow(Flow):
    """The threads between the two gates, and the sources in front of them."""

    in_order = True
    refined = True

    def __init__(self, join: ScaleJoin, bound: BoundSpec, compiled: CompiledStep, set_aside: SetAside) -> None:
        self.crew = join.crew
        self.threads = join.shares.n
        self.inlets = GateInlets(bound, compiled, self.threads + 1, set_aside)
        self._results = ScaleGate(self.threads, ring=_RESULT_RING)
        for k in range(self.threads):
            self._results.add_source(k)
        dtype = np.uint32 if all(term.narrow for term in bound.terms) else np.uint64
        sizes = bound.windows[0].size, bound.windows[1].size
        timed = bound.windows[0].kind == "time", bound.windows[1].kind == "time"
        self._scans = [
            _Scan(
                ScanPlan(k, self.threads, len(bound.terms), sizes, timed),
                make_share(_LEAST_SHARE, dtype),
                make_group(dtype),
                make_pairs(_LEAST_PAIRS),
                np.zeros(STATE_WORDS, np.int64),
            )
            for k in range(self.threads)
        ]
        self._columns = tuple(np.empty(_BLOCK, np.int64) for _ in range(3))
        self._complete = 0
        self._held: TakenPairs | None = None
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
            code = scan(
                inlets.mem, self._results.mem, inlets.bells, self.crew.words, inlets.sources, own.plan, own.share,
                own.group, own.pairs, own.state,
            )  # fmt: skip
            if code == NEEDS_STORE:
                own.share = grown(own.share)
            elif code == NEEDS_PAIRS:
                own.pairs = make_pairs(2 * own.pairs.probe.shape[1])
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
        seen = self._complete if open_chunks else self.stored
        await_results(self._results.mem, self.threads, self.inlets.bells, self.crew.words, seen, _NAP_US)
        self._looked = time.perf_counter()

    def take(self, oldest: SentChunk) -> TakenPairs | None:  # noqa: ARG002 - for chains
        """Read the second gate, up to what all threads have passed and the collector has stored."""
        complete = min(least_clock(self._results.mem, self.threads), self.stored)
        pieces, reached = self._read_results()
        complete = min(complete, reached)
        moved, self._complete = complete > self._complete, max(complete, self._complete)
        if not pieces and not moved:
            return None
        if self._held is not None:
            pieces.insert(0, (self._held.later, self._held.seqs))
        empty = np.empty(0, np.int64)
        later, seqs = (np.concatenate([empty, *(piece[i] for piece in pieces)]) for i in (0, 1))
        ready = later < self._complete
        self._held = None if ready.all() else TakenPairs(later[~ready], seqs[~ready])
        return in_result_order(TakenPairs(later[ready], seqs[ready]), False)

    def _read_results(self) -> tuple[list[tuple[Array, Array]], int]:
        """One block of the ready matches, and the gate position before which none is left.

        Not all of them: rows that are complete should leave while the threads find more.
        """
        slots, seqs, later = self._columns
        n = read(self._results.mem, 0, slots, seqs, later)
        pieces = [(later[:n].copy(), seqs[:n].copy())] if n else []
        return pieces, int(later[n - 1]) if n == _BLOCK else EVER

    def reached(self, sent: SentChunk) -> bool:
        """Whether all threads have passed the chunk."""
        return sent.end <= self._complete

    def forget(self, sent: SentChunk) -> None:
        """Do nothing: each thread drops the tuples of its own share."""

    def counters(self) -> dict[str, int]:
        """The pairs compared."""
        return {"compared": sum(int(own.state[COMPARED]) for own in self._scans)}

    def work(self) -> dict[str, dict[str, int]]:
        """The tuples that each thread has read, and what it has compared."""
        return {
            f"thread {k}": {"tuples": int(own.state[AT]), "compared": int(own.state[COMPARED])}
            for k, own in enumerate(self._scans)
        }

    @property
    def nbytes(self) -> int:
        """Bytes held by all shares, the rings and the second gate."""
        arrays = sum(array.nbytes for own in self._scans for array in (*own.share, *own.group, *own.pairs))
        return int(arrays) + self.inlets.nbytes + int(self._results.mem.nbytes)


class GatedRunner(FlowRunner):
    """The runner of a ScaleJoin whose sources feed the gate themselves."""

    def __init__(self, setup: Setup, operator: LiveOperator, join: ScaleJoin, compiled: CompiledStep) -> None:
        self._gates = GateFlow(join, setup.bound, compiled, self._set_aside)
        super().__init__(setup, operator, self._gates)
        self._inlets = self._gates.inlets
        self._queued = self._inlets.queued
        self._row_width = max(1, *(sum(f.type.bit_width // 8 for f in store.schema) for store in operator.stores))
        self._reader = self._gates.threads
        self._most_rows, self._most_bytes = setup.queue_rows, setup.queue_bytes
        # Notified when there is room; the intake's thread is, when something waits for room.
        lock = threading.Lock()
        self._room, self._blocked = threading.Condition(lock), threading.Condition(lock)
        self._sources_wait = 0
        self._columns = tuple(np.empty(_STORED, np.int64) for _ in range(3))
        terms = len(setup.bound.terms)
        self._n_columns = np.array([len(store.schema) for store in operator.stores], np.int64)
        self._time_rows = self._n_columns + terms

    # -- calls of sources ----------------------------------------------------------------------------------

    def push(self, side: int, name: str, rows: pa.Table, arrived: int, timeout: float | None = None) -> None:
        """Add tuples of one source to the gate; waits while there is no room for them."""
        if self._is_over_limit(side, name):
            self._wait_for_room(side, name, timeout)
        self._submit(Call("push", side, name, arrived, rows))

    def _submit(self, call: Call) -> None:
        self._check()
        try:
            if self._inlets.submit(call):
                return
        except StateError:
            raise
        except BaseException as error:
            self._crew.stop(error)
            self._wake()
            if not isinstance(error, Exception):
                raise
            raise StateError(f"the live join was ended by {type(error).__name__}: {error}") from error
        with self._blocked:
            self._blocked.notify()

    def _in_gates(self) -> int:
        """How many tuples are in the gate and not stored."""
        return max(0, self._inlets.added - self._gates.stored)

    def _is_over_limit(self, side: int, name: str) -> bool:
        waiting = self._inlets.waiting + self._in_gates()
        if waiting < self._most_rows and waiting * self._row_width < self._most_bytes:
            return False
        if (side, name) not in self._inlets.holders:
            return True
        # Once everything that is ready is stored, only this source, and others at its time, can empty the gate.
        stored = NEVER if self._sent_time is None else self._sent_time
        return stored < self._inlets.clock((side, name))

    def _wait_for_room(self, side: int, name: str, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        while self._is_over_limit(side, name):
            rest = POLL if until is None else min(POLL, until - time.monotonic())
            if rest <= 0 and timeout is not None:
                inlets = self._inlets
                raise BackPressureError(fullness(timeout, inlets.waiting, self._in_gates(), inlets.holders))
            with self._room:
                self._sources_wait += 1
                self._room.wait(rest)
                self._sources_wait -= 1
            self._check()

    def _set_aside(self, side: int, source: str, reason: str, rows: pa.Table) -> None:
        with self._ordering:
            self._late.trim()
            if reason == "late":
                self._counts.late += rows.num_rows
            else:
                self._counts.rejected += rows.num_rows
            self._late.add(SIDES[side], source, reason, rows)

    def _end_input(self) -> None:
        with self._blocked:
            self._input_ended = True
            self._blocked.notify()

    # -- the intake's thread: what found no room -----------------------------------------------------------

    def _take_in(self) -> None:
        finishes = False
        while not self._stopped():
            is_free = self._inlets.take_up()
            if is_free and finishes:
                self._flow.end()
                return
            if self._input_ended and not finishes:
                finishes = True
                self._inlets.finish_all()
                continue
            with self._blocked:
                # The collector notifies when it has made room; the other readers may be behind it.
                if not self._input_ended or finishes:
                    self._blocked.wait(POLL if is_free else _NEXT_TRY)

    # -- the collector's thread ----------------------------------------------------------------------------

    def _await_sent(self) -> None:
        """Return at once: `_store_ready` waits."""

    def _store_ready(self) -> None:
        """Copy the rows that are ready from the sources' rings to the stores."""
        self._gates.await_more(bool(self._open))
        while not self._stopped():
            n, limit = self._store_some()
            bound = None if limit == NEVER else limit
            if not n and bound == self._sent_time:
                return
            self._sent_time = bound
            self._open.append(self._chunk(self._sent, bound))
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
        with operator.lock, self._counts.step("store"):
            own, arrived = operator.reserve(n)
            for store in stores:
                store.block.reserve(n)
            while True:
                counts = np.array([store.count for store in stores], np.int64)
                ends = np.array([store.block.end for store in stores], np.int64)
                column = copy_out(
                    inlets.sources, inlets.layouts, slots, places, times, n, self._n_columns,
                    (stores[0].layout(), stores[1].layout()), ends, counts, self._time_rows, own, arrived,
                )  # fmt: skip
                if column == NO_COLUMN:
                    break
                store = stores[column & 1]
                store.mark_nulls([store.schema.names[column >> 1]])
            for store, count in zip(stores, counts.tolist(), strict=True):
                store.include({}, count - store.count)
            operator.expire()
        release(inlets.mem, self._reader, head)
        self._released.add(time.monotonic_ns() - arrived)
        self._sent += n
        self._gates.stored = self._sent
        return n, limit

    def _chunk(self, end: int, bound: int | None) -> SentChunk:
        return SentChunk(end, end, None, None, None, self._operator.dropped, bound)

    # -- what there is to see ------------------------------------------------------------------------------

    def _sizes(self) -> tuple[int, int, int]:
        self._counts.tuples_left, self._counts.tuples_right = self._inlets.tuples
        waiting = self._inlets.waiting
        return waiting, self._in_gates(), waiting * self._row_width


def gated(setup: Setup, operator: LiveOperator, join: ScaleJoin) -> GatedRunner | None:
    """The runner of a ScaleJoin whose sources feed the gate; None where tuples need the interpreter on their way."""
    bound, compiled = setup.bound, operator.compiled
    is_plain = (
        bound.spec.order == "event_time"
        and not bound.spec.self_join
        and join.shares.scans
        and 1 <= len(bound.terms) <= MOST_TERMS
        and not operator.tests
        and not any(store.arrow_names or not store.schema.names for store in operator.stores)
    )
    if compiled is None or not is_plain:
        return None
    return GatedRunner(setup, operator, join, compiled)
