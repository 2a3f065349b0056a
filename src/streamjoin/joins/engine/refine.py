"""The tests that an algorithm leaves undecided: further terms, out-of-order times, the residual expression."""

from __future__ import annotations

import threading

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Keep, Overflow
from streamjoin.kernels.gather import sides_of_pairs
from streamjoin.kernels.positions import filter_terms, filter_ticks
from streamjoin.model.binding import BoundSpec
from streamjoin.model.expression.evaluation import evaluate, from_arrow, truth
from streamjoin.model.expression.nodes import Expression
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers

# Refinement runs inside a worker already.
_ALONE = Workers(1)


class Refinement:
    """Filters the pairs of one chunk by all undecided conditions; see `base.Refine`.

    Every pair is counted here before any row is gathered, so a chunk with more than `limit` pairs fails here.
    """

    def __init__(
        self,
        bound: BoundSpec,
        stores: tuple[SideStore, SideStore],
        payload: tuple[SideStore, SideStore],
        chunk: Chunk,
        open_terms: tuple[int, ...],
        least_ticks: Array | None,
        limit: int | None = None,
        reduce: Keep | None = None,
    ) -> None:
        self._residual = bound.residual
        self._stores = stores
        self._payload = payload
        self._chunk = chunk
        self._open_terms = open_terms
        self._least_ticks = least_ticks
        self._place = np.empty(chunk.n, np.int64)
        self._limit = limit
        self._reduce = reduce
        self._kept = 0
        self._counting = threading.Lock()
        self.tests = bool(open_terms) or any(test is not None for test in (bound.residual, reduce, least_ticks))
        """Whether a pair may be refused."""
        # Several threads count: appending is atomic, adding to a number is not.
        self.compared: list[int] = []
        if open_terms:
            self._place[chunk.left.at] = np.arange(chunk.left.n)
            self._place[chunk.right.at] = np.arange(chunk.right.n)

    def __call__(self, probes: Array, seqs: Array) -> tuple[Array, Array]:
        """The pairs that satisfy the conditions, in the arrays passed in."""
        chunk, (left, right), n = self._chunk, self._stores, probes.size
        self.compared.append(n)
        if self._least_ticks is not None and left.ticks is not None and right.ticks is not None:
            n = filter_ticks(
                probes, seqs, n, chunk.is_right, self._least_ticks,
                left.ticks, right.ticks, left.base, right.base,
            )  # fmt: skip
        for t in self._open_terms:
            a, b = chunk.left.encoded.terms[t], chunk.right.encoded.terms[t]
            n = filter_terms(
                probes, seqs, n, chunk.is_right, self._place, a.lo, a.hi, b.lo, b.hi,
                left.words[t], right.words[t], left.base, right.base,
            )  # fmt: skip
        probes, seqs = probes[:n], seqs[:n]
        if self._residual is not None and n:
            keep = self._holds(self._residual, *positions(chunk, probes, seqs))
            probes, seqs = probes[keep], seqs[keep]
        if self._reduce is not None:
            probes, seqs = self._reduce(probes, seqs)
        if self._limit is not None:
            self._count(probes.size, self._limit)
        return probes, seqs

    def count(self, n: int) -> None:
        """Count `n` pairs that need no test."""
        self.compared.append(n)
        if self._limit is not None:
            self._count(n, self._limit)

    def _count(self, n: int, limit: int) -> None:
        with self._counting:
            self._kept += n
            if self._kept > limit:
                raise Overflow

    def grid(self, probes: Array, seqs: Array) -> Array:
        """The residual alone for all probes and positions at once: columns are read once, not once per pair."""
        if self._residual is None:
            return np.ones((probes.size, seqs.size), np.bool_)
        own = self._chunk.own_seq[probes]
        if self._chunk.is_right[probes[0]]:
            return self._holds(self._residual, seqs, own, (1, -1), (-1, 1))
        return self._holds(self._residual, own, seqs, (-1, 1), (1, -1))

    def _holds(
        self,
        expression: Expression,
        left: Array,
        right: Array,
        left_shape: tuple[int, ...] = (-1,),
        right_shape: tuple[int, ...] = (-1,),
    ) -> Array:
        values = {}
        sides = (("l", self._payload[0], left, left_shape), ("r", self._payload[1], right, right_shape))
        for qualifier, store, seqs, shape in sides:
            columns = [column for column in expression.columns if column.qualifier == qualifier]
            rows = store.gather([column.name for column in columns], seqs, _ALONE)
            values.update({column: from_arrow(rows[column.name]).reshape(*shape) for column in columns})
        probes_first = left.size if left_shape != (1, -1) else right.size
        shape = (left.size,) if len(left_shape) == 1 else (probes_first, left.size + right.size - probes_first)
        return truth(evaluate(expression, values), shape)


class Tally:
    """Counts pairs that need no further test; raises Overflow beyond `limit`."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._kept = 0
        self.compared: list[int] = []
        self.tests = False

    def __call__(self, probes: Array, seqs: Array) -> tuple[Array, Array]:
        """The pairs as they are."""
        self.count(probes.size)
        return probes, seqs

    def count(self, n: int) -> None:
        """Count `n` pairs."""
        self._kept += n
        self.compared.append(n)
        if self._limit is not None and self._kept > self._limit:
            raise Overflow


def positions(chunk: Chunk, probes: Array, seqs: Array) -> tuple[Array, Array]:
    """The left and the right tuple's stream position of each pair."""
    left, right = np.empty(probes.size, np.int64), np.empty(probes.size, np.int64)
    sides_of_pairs(probes, seqs, chunk.is_right, chunk.own_seq, left, right)
    return left, right
