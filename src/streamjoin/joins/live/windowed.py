"""The windows of a running join: positions and stored tuples on the way in, result rows on the way out.

`Operator.step` does both in one call. Here the intake stores tuples and sends them on as chunks, and the collector
gathers rows for the pairs that come back, from another thread. A chunk is *open* until all its pairs are found; stored
tuples are dropped only when no open chunk can match them. Invariant: `lock` is held wherever stored tuples are read or
written.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.engine.operator import Operator
from streamjoin.joins.engine.ordered import Work
from streamjoin.joins.engine.push_plan import EncodedPush, PushPlan
from streamjoin.joins.engine.refine import Refinement, TimeReach, reading
from streamjoin.joins.registry import AlgorithmChoice
from streamjoin.kernels.gather import place_pairs
from streamjoin.kernels.positions import OPS, OWN_SEQ
from streamjoin.model.binding import BoundSpec
from streamjoin.model.expression.evaluation import holds as residual_holds
from streamjoin.windows.buffer import Buffer
from streamjoin.windows.workers import Workers

I64 = npt.NDArray[np.int64]
Stored = tuple[Chunk | None, TimeReach | None, EncodedPush | None]
"""Stored tuples: with their positions, what limits them by time, and as words; see `SentChunk`."""

# A larger push takes longer than the calls of the general way.
_MOST_PUSHED = 1 << 12
# Positions are dropped in steps, since each costs a few calls per column.
_LEAST_DROPPED = 1024


@dataclass(slots=True, eq=False)
class SentChunk:
    """Tuples that were sent into the join together, at gate positions `begin` to `end`."""

    begin: int
    end: int
    chunk: Chunk | None
    """The tuples; None where the flow takes `block` instead."""
    refine: Refinement | None
    """Tests their pairs; None if nothing is left to test."""
    block: EncodedPush | None
    """The tuples as words, where compiled steps stored them."""
    dropped: tuple[int, int]
    """Positions of each side below which no later chunk looks."""
    time: int | None
    """The bound of the gate after this chunk."""
    mark: I64 = field(default_factory=lambda: np.full(2, -1, np.int64))
    """Where the flow is done with the chunk, on each side or in all; below 0 until the flow has sent it."""

    @property
    def counts(self) -> tuple[int, int]:
        """How many left and right tuples there are."""
        if self.chunk is not None:
            return self.chunk.left.n, self.chunk.right.n
        if self.block is None:
            raise AssertionError("tuples that are neither a chunk nor a block")
        return self.block.counts

    @property
    def tests(self) -> Refinement:
        """What tests the pairs of a chunk."""
        if self.refine is None:
            raise AssertionError("a chunk without its tests")
        return self.refine

    @property
    def tuples(self) -> Chunk:
        """The chunk, for flows that take no blocks."""
        if self.chunk is None:
            raise AssertionError("a block without its chunk")
        return self.chunk


@dataclass(frozen=True)
class ResultRows:
    """Gathered rows with the columns of a `Delivery`."""

    rows: pa.Table
    later: I64
    earlier: I64
    arrived: I64


class LiveOperator(Operator):
    """One running join over ordered input; see the module."""

    def __init__(self, bound: BoundSpec, choice: AlgorithmChoice, workers: int, counts: Counts) -> None:
        super().__init__(bound, choice, Workers(workers), counts)
        # The join's own threads have the cores: storing and gathering take one.
        self._workers = Workers(1)
        self.lock = threading.Lock()
        self.tests = bool(self._open_terms) or self.bound.residual is not None
        """Whether pairs must be tested; in arrival order from the first time on that positions alone do not decide."""
        if self.plan is not None:
            # Compiling takes as long as for the join's own kernels; general steps would hold up all other threads.
            self.plan.begin()
        self._takes_pushes = not (
            self._self_join
            or bound.spec.order == "event_time"
            or self.stores[0].timed
            or any(store.arrow_names or not store.schema.names for store in self.stores)
        )
        self.builds_chunks = True
        """Whether the flow needs chunks of tuples that are encoded as blocks."""
        self._bounds = (0, 0)
        self._was_compiled = False
        # Per gate position from `_first` on: the position in its own stream, doubled, plus 1 for the right side; when
        # the tuple arrived.
        self._own, self._arrived = Buffer(np.int64), Buffer(np.int64)
        self._first = 0

    @property
    def index_row(self) -> int:
        """The row of the index words in a block; -1 if there is none."""
        return -1 if self.plan is None else self.plan.index_row

    def send(self, work: Work, begin: int, most: int, bounds: tuple[int | None, int | None]) -> SentChunk:
        """Store at most `most` of the next tuples and give them positions, the first one gate position `begin`.

        `bounds` are those of the gate before and after the work.
        """
        first, arrived = work.begin, work.ordered.arrived
        if arrived is None:
            raise AssertionError("tuples of a live join without times of arrival")
        with self.lock:
            chunk, reach, block = self._store_next(work, most)
            self.tests = self.tests or reach is not None
            refine, own, arrived = None, None, arrived[first : work.begin]
            if chunk is not None:
                own = chunk.own_seq << 1 | chunk.is_right
                refine = Refinement(
                    self.bound, self.stores, self._payload, chunk, self._open_terms, reach, guard=self.lock
                )
            elif block is not None:
                own = block.words[OWN_SEQ] << 1 | block.words[OPS] & 1
            if own is None:
                raise AssertionError("tuples that are neither a chunk nor a block")
            self._own.append(own)
            # A tuple of a self-join has two gate positions, one for each of its roles.
            self._arrived.append(np.repeat(arrived, 2) if self._self_join else arrived)
        return SentChunk(begin, begin + own.size, chunk, refine, block, self._bounds, bounds[work.waiting == 0])

    def send_push(self, side: int, rows: pa.Table | pa.RecordBatch, arrived: int, begin: int) -> SentChunk | None:
        """`send` for one push of one side, by few calls; None, with nothing changed, if it needs the general way."""
        compiled, n = self.plan, rows.num_rows
        if compiled is None or self.builds_chunks or self.tests or not self._takes_pushes:
            return None
        if n > _MOST_PUSHED or not compiled.is_ready:
            return None
        if len(self.stores[side].schema) != rows.num_columns:
            # Some columns are not stored.
            return None
        with self.lock:
            own, arrivals = self._own.room_for(n), self._arrived.room_for(n)
            block = None
            try:
                block = compiled.take_push(side, rows, own, arrivals, arrived)
            finally:
                if block is None:
                    self._own.truncate(len(self._own) - n)
                    self._arrived.truncate(len(self._arrived) - n)
        if block is None:
            return None
        if side:
            self.counts.tuples_right += n
        else:
            self.counts.tuples_left += n
        self._was_compiled = True
        bound = max(self._bounds[side], self.stores[side].count - self.bound.windows[side].size)
        self._bounds = (self._bounds[0], bound) if side else (bound, self._bounds[1])
        return SentChunk(begin, begin + n, None, None, block, self._bounds, None)

    def reserve(self, n: int) -> tuple[I64, I64]:
        """Room for the next `n` gate positions, whose tuples a kernel stores: see `place_pairs`."""
        self._was_compiled = True
        return self._own.room_for(n), self._arrived.room_for(n)

    def expire(self, horizons: tuple[int, int] | None = None) -> None:
        """Find out which positions no later tuple looks up, after tuples were stored."""
        left, right = (max(self._bounds[side], self._forget_bound(side, horizons)) for side in (0, 1))
        self._bounds = (min(left, right),) * 2 if self._self_join else (left, right)

    @property
    def dropped(self) -> tuple[int, int]:
        """Positions of each side below which no later tuple looks."""
        return self._bounds

    def rows(self, later: Array, seqs: Array) -> ResultRows:
        """The rows of pairs: gate positions of the later tuples, stream positions of the earlier."""
        left, right, arrived = (np.empty(later.size, np.int64) for _ in range(3))
        with self.lock:
            self.counts.results += later.size
            place_pairs(later, seqs, self._first, self._own.values, self._arrived.values, left, right, arrived)
            table = self._gather(left, right)
        if self._self_join:
            return ResultRows(table, later >> 1, seqs << 1 | later & 1, arrived)
        return ResultRows(table, later, seqs, arrived)

    def tested(self, sent: SentChunk, later: Array, seqs: Array, holds: bool) -> tuple[Array, Array]:
        """The pairs of a chunk's tuples for which the conditions hold that the flow has not decided."""
        if sent.refine is None:
            return later, seqs
        probes, seqs = sent.refine(later - sent.begin, seqs, holds)
        return probes + sent.begin, seqs

    def holding(self, later: Array, seqs: Array) -> tuple[Array, Array]:
        """The pairs for which the residual holds, tested on the stored rows."""
        residual = self.bound.residual
        if residual is None or not later.size:
            return later, seqs
        left, right, arrived = (np.empty(later.size, np.int64) for _ in range(3))
        with self.lock:
            place_pairs(later, seqs, self._first, self._own.values, self._arrived.values, left, right, arrived)
        keep = residual_holds(residual, reading(residual, self._payload, left, right, self.lock), later.size)
        return later[keep], seqs[keep]

    @property
    def no_result(self) -> ResultRows:
        """A delivery without rows."""
        none = np.empty(0, np.int64)
        return ResultRows(self.bound.schema.empty_table(), none, none, none)

    def close_chunk(self, sent: SentChunk) -> None:
        """All rows of a chunk and of those before it are gathered: drop what no later chunk can match."""
        with self.lock:
            for buffer in (self._own, self._arrived):
                buffer.forget(sent.end - self._first)
            if sent.refine is not None:
                self.counts.compared += sum(sent.refine.compared)
            self._first = sent.end
            for side in (0, 1):
                if sent.dropped[side] - self.stores[side].base >= _LEAST_DROPPED:
                    dropped = self.stores[side].forget(sent.dropped[side])
                    self.counts.expired += dropped if side == 0 or not self._self_join else 0

    def _gather(self, left: Array, right: Array) -> pa.Table:
        if self.plan is None or not self._was_compiled:
            return self._rows_at(left, right)
        # Every pair as if its left tuple came later.
        words = np.zeros((max(OPS, OWN_SEQ) + 1, left.size), np.int64)
        words[OWN_SEQ] = left
        return self.plan.gather(EncodedPush(words, left.size), np.arange(left.size), right, in_order=True)

    def _store_next(self, work: Work, most: int) -> Stored:
        """Store at most `most` of the next tuples."""
        n = work.ordered.is_right.size
        end = min(n, work.begin + most)
        work.tried = end - work.begin
        stored = None
        if self.plan is not None and work.tried == n and self.plan.is_due():
            stored = self._store_compiled(self.plan, work)
        if stored is None:
            stored = self._store_chunk(work, end)
        self.expire(work.horizons if end == n else None)
        work.begin = end
        return stored

    def _store_compiled(self, compiled: PushPlan, work: Work) -> Stored | None:
        """Store all tuples of some work by kernels; None, with nothing changed, if they need the general way."""
        if any(self._descent[side] > self.stores[side].base for side in (0, 1)):
            return None
        with self.counts.step("encode"):
            block = compiled.encode(work.ordered.tables)
        if block is None:
            return None
        with self.counts.step("store"):
            if not compiled.store(block, work.ordered, (0, 0), False):
                return None
            builds = self.builds_chunks or self.tests or block.reach is not None
            chunk = compiled.chunk(block, work.ordered.is_right) if builds else None
        self._was_compiled = True
        work.at = list(block.counts)
        return chunk, block.reach, block

    def _store_chunk(self, work: Work, end: int) -> Stored:
        """Store the tuples up to `end`, column by column."""
        ordered, encoded = work.ordered, self._encoded(work)
        is_right = ordered.is_right[work.begin : end]
        rights = int(np.count_nonzero(is_right))
        counts = (work.tried, work.tried) if self._self_join else (work.tried - rights, rights)
        stored = []
        with self.counts.step("store"):
            for side, (at, n) in enumerate(zip(work.at, counts, strict=True)):
                rows = ordered.tables[side].slice(at, n)
                stored.append(self._store(side, rows, encoded[side], slice(at, at + n), ordered.ticks[side]))
            chunk, reach = self._chunk(is_right, stored)
        work.at = [at + n for at, n in zip(work.at, counts, strict=True)]
        return chunk, reach, None
