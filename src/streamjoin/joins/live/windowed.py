"""The windows of a running join: positions and stored tuples on the way in, result rows on the way out.

`Operator` does both in one call. Here the intake stores tuples and sends them on as chunks, and the collector gathers
rows for the pairs that come back, from another thread. A chunk is *open* until all its pairs are found; stored tuples
are dropped only when no open chunk can match them. Invariant: `lock` is held wherever stored tuples are read or
written.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Refine
from streamjoin.joins.engine.compiled_step import CompiledStep, EncodedPush
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.engine.operator import Operator
from streamjoin.joins.engine.ordered import Work
from streamjoin.joins.engine.refine import Refinement
from streamjoin.joins.registry import AlgorithmChoice
from streamjoin.kernels.positions import OPS, OWN_SEQ
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Buffer
from streamjoin.windows.workers import Workers

I64 = npt.NDArray[np.int64]

# Positions are dropped in steps, since each costs a few calls per column.
_LEAST_DROPPED = 1024


@dataclass(frozen=True)
class SentChunk:
    """Tuples that were sent into the join together, at gate positions `begin` to `end`."""

    begin: int
    end: int
    chunk: Chunk
    refine: Refinement
    dropped: tuple[int, int]
    """Positions of each side below which no later chunk looks."""
    time: int | None
    """The bound of the gate after this chunk."""
    mark: list[int] = field(default_factory=list)
    """Where the flow is done with the chunk; set by the flow when it is sent."""


@dataclass(frozen=True)
class ResultRows:
    """Gathered rows with the columns of a `Delivery`."""

    rows: pa.Table
    later: I64
    earlier: I64
    arrived: I64


class LockedRefine:
    """The tests of a chunk's pairs for threads of the flow, which may not read stored tuples that the intake moves."""

    def __init__(self, refine: Refine, lock: threading.Lock) -> None:
        self._refine, self._lock = refine, lock

    @property
    def tests(self) -> bool:
        """Whether a pair may be refused."""
        return self._refine.tests

    def count(self, n: int) -> None:
        """Count `n` pairs that need no test."""
        with self._lock:
            self._refine.count(n)

    def __call__(self, probes: Array, seqs: Array) -> tuple[Array, Array]:
        """The pairs that satisfy the conditions."""
        with self._lock:
            return self._refine(probes, seqs)

    def grid(self, probes: Array, seqs: Array) -> Array:
        """Whether the residual holds, one row per probe."""
        with self._lock:
            return self._refine.grid(probes, seqs)


class LiveOperator(Operator):
    """One running join over ordered input; see the module."""

    def __init__(self, bound: BoundSpec, choice: AlgorithmChoice, workers: int, counts: Counts) -> None:
        super().__init__(bound, choice, Workers(workers), counts)
        # The join's own threads have the cores: storing and gathering take one.
        self._workers = Workers(1)
        self.lock = threading.Lock()
        self.tests = bool(self._open_terms) or self.bound.residual is not None
        """Whether pairs must be tested; from the first time on that times in arrival order go back, they must."""
        self._stored: tuple[Chunk, Array | None]
        self._bounds = (0, 0)
        self._was_compiled = False
        # Per gate position from `_first` on: the position in its own stream, doubled, plus 1 for the right side; when
        # the tuple arrived.
        self._own, self._arrived = Buffer(np.int64), Buffer(np.int64)
        self._first = 0

    def send(self, work: Work, begin: int, most: int, bounds: tuple[int | None, int | None]) -> SentChunk:
        """Store at most `most` of the next tuples and give them positions, the first one gate position `begin`.

        `bounds` are those of the gate before and after the work.
        """
        first, arrived = work.begin, work.ordered.arrived
        if arrived is None:
            raise AssertionError("tuples of a live join without times of arrival")
        with self.lock:
            self.step(work, None, most)
            chunk, least = self._stored
            self._own.append(chunk.own_seq << 1 | chunk.is_right)
            # A tuple of a self-join has two gate positions, one for each of its roles.
            self._arrived.append(np.repeat(arrived[first : work.begin], 2 if self._self_join else 1))
            refine = Refinement(self.bound, self.stores, self._payload, chunk, self._open_terms, least)
            self.tests = self.tests or least is not None
        return SentChunk(begin, begin + chunk.n, chunk, refine, self._bounds, bounds[work.waiting == 0])

    def rows(self, pieces: list[tuple[SentChunk | None, Array, Array]]) -> ResultRows:
        """The rows of pairs (gate position of the later tuple, position of the earlier).

        Pairs that must be tested come with the chunk of their later tuples.
        """
        with self.lock:
            tested = [self._tested(*piece) for piece in pieces]
            later, seqs = (np.concatenate([np.empty(0, np.int64), *(pair[i] for pair in tested)]) for i in (0, 1))
            own = self._own.values[later - self._first]
            is_right, own_seq = (own & 1).astype(np.bool_), own >> 1
            left, right = np.where(is_right, seqs, own_seq), np.where(is_right, own_seq, seqs)
            self.counts.results += later.size
            arrived = self._arrived.values[later - self._first]
            table = self._rows_at(left, right)
        if self._self_join:
            return ResultRows(table, later >> 1, seqs << 1 | is_right, arrived)
        return ResultRows(table, later, seqs, arrived)

    @property
    def no_result(self) -> ResultRows:
        """A delivery without rows."""
        none = np.empty(0, np.int64)
        return ResultRows(self.bound.schema.empty_table(), none, none, none)

    def locked(self, refine: Refinement) -> Refine:
        """The tests of a chunk for a thread of the flow."""
        return LockedRefine(refine, self.lock) if self.tests else refine

    def _tested(self, sent: SentChunk | None, later: Array, seqs: Array) -> tuple[Array, Array]:
        if sent is None:
            return later, seqs
        probes, seqs = sent.refine(later - sent.begin, seqs)
        return probes + sent.begin, seqs

    def close_chunk(self, sent: SentChunk) -> None:
        """All rows of a chunk and of those before it are gathered: drop what no later chunk can match."""
        with self.lock:
            for buffer in (self._own, self._arrived):
                buffer.forget(sent.end - self._first)
            self.counts.compared += sum(sent.refine.compared)
            self._first = sent.end
            for side in (0, 1):
                if sent.dropped[side] - self.stores[side].base >= _LEAST_DROPPED:
                    dropped = self.stores[side].forget(sent.dropped[side])
                    self.counts.expired += dropped if side == 0 or not self._self_join else 0

    def _rows_at(self, left: Array, right: Array) -> pa.Table:
        if self._compiled is None or not self._was_compiled or self._self_join:
            return super()._rows_at(left, right)
        # Every pair as if its left tuple came later.
        words = np.zeros((max(OPS, OWN_SEQ) + 1, left.size), np.int64)
        words[OWN_SEQ] = left
        return self._compiled.gather(EncodedPush(words, left.size, True, ()), np.arange(left.size), right)

    # -- what `step` calls in place of pairing and dropping ------------------------------------------------

    def _step_compiled(self, compiled: CompiledStep, work: Work, limit: int | None) -> pa.Table | None:
        del limit
        if any(self._descent[side] > self.stores[side].base for side in (0, 1)):
            return None
        with self.counts.step("encode"):
            block = compiled.encode(work.ordered.tables)
        if block is None:
            return None
        with self.counts.step("store"):
            if not compiled.store(block, work.ordered, (0, 0), False):
                return None
            self._stored = compiled.chunk(block, work.ordered.is_right), None
        self._was_compiled = True
        self._forget(work.horizons)
        work.begin, work.at = work.tried, list(block.counts)
        return self.no_rows

    def _process_chunk(self, is_right: Array, parts: list[Any], limit: int | None) -> pa.Table:
        del limit
        with self.counts.step("store"):
            stored = [self._store(side, *parts[side]) for side in (0, 1)]
            self._stored = self._chunk(is_right, stored)
        return self.no_rows

    def _forget(self, horizons: tuple[int, int] | None) -> None:
        left, right = (max(self._bounds[side], self._forget_bound(side, horizons)) for side in (0, 1))
        self._bounds = (min(left, right),) * 2 if self._self_join else (left, right)
