"""The tests that an algorithm leaves undecided: further terms, times, the residual expression.

Times are tested where positions alone do not decide which of them a tuple reaches. In event-time order what came before
a tuple is no newer, and a window is a range of positions. In arrival order a window is two-sided: an earlier tuple may
be too new as well as too old. While a side's times ascend, the one is a search at the end of its positions, as the
other is at their begin; where they do not, candidates are tested by time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Keep, Overflow
from streamjoin.kernels.gather import first_beyond, sides_of_pairs
from streamjoin.kernels.positions import filter_terms, filter_ticks
from streamjoin.model.binding import BoundSpec
from streamjoin.model.expression.evaluation import Read, from_arrow, grid_holds
from streamjoin.model.expression.evaluation import holds as residual_holds
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.expression.values import Values
from streamjoin.windows.clock import FOREVER, NEVER, plus
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers

# Refinement runs inside a worker already.
_ALONE = Workers(1)
_FREE = nullcontext()


class TimeReach:
    """The least and the greatest time that each tuple of a chunk matches, and the position before which these are."""

    def __init__(self, upto: Array) -> None:
        self.least = np.full(upto.size, NEVER, np.int64)
        self.most = np.full(upto.size, FOREVER, np.int64)
        self.ends = upto.copy()

    def limit(self, at: Array, ends: Array, most: Array) -> None:
        """Set the end of the positions, and the greatest time, for the tuples at some places."""
        self.ends[at], self.most[at] = ends, most


def too_new(store: SideStore, ticks: Array, size: int, upto: Array, at: Array) -> Array | None:
    """For the tuples at some places, where what came before them gets newer than they reach; None if it nowhere does.

    The times of the store ascend; `ticks` are those of the tuples, `upto` the positions that came before, by place.
    """
    stored = store.ticks
    if stored is None:
        raise AssertionError("a time window without ticks")
    # One look is enough for streams that keep pace.
    if not stored.size or not ticks.size or int(stored[-1]) - int(ticks.min()) <= size:
        return None
    ends = upto[at]
    return ends if first_beyond(stored, plus(ticks, size), store.base, ends) else None


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
        reach: TimeReach | None,
        limit: int | None = None,
        reduce: Keep | None = None,
        guard: AbstractContextManager[Any] = _FREE,
    ) -> None:
        """`guard` is held while stored tuples are read, and not while conditions are evaluated."""
        self._guard = guard
        self._residual = bound.residual
        self._stores = stores
        self._payload = payload
        self._chunk = chunk
        self._open_terms = open_terms
        self._reach = reach
        self._place = np.empty(chunk.n, np.int64)
        self._limit = limit
        self._reduce = reduce
        self._kept = 0
        self._counting = threading.Lock()
        self.tests = bool(open_terms) or any(test is not None for test in (bound.residual, reduce, reach))
        """Whether a pair may be refused."""
        # Several threads count: appending is atomic, adding to a number is not.
        self.compared: list[int] = []
        if open_terms:
            self._place[chunk.left.at] = np.arange(chunk.left.n)
            self._place[chunk.right.at] = np.arange(chunk.right.n)

    def __call__(self, probes: Array, seqs: Array, holds: bool = False) -> tuple[Array, Array]:
        """The pairs that satisfy the conditions, in the arrays passed in."""
        chunk, n = self._chunk, probes.size
        self.compared.append(n)
        if self._reach is not None or self._open_terms:
            with self._guard:
                n = self._filter(probes, seqs)
        probes, seqs = probes[:n], seqs[:n]
        if self._residual is not None and n and not holds:
            keep = residual_holds(self._residual, self._reading(self._residual, *positions(chunk, probes, seqs)), n)
            probes, seqs = probes[keep], seqs[keep]
        if self._reduce is not None:
            probes, seqs = self._reduce(probes, seqs)
        if self._limit is not None:
            self._count(probes.size, self._limit)
        return probes, seqs

    def _filter(self, probes: Array, seqs: Array) -> int:
        """Move the pairs that satisfy times and terms to the front; returns how many."""
        chunk, (left, right), n = self._chunk, self._stores, probes.size
        if self._reach is not None and left.ticks is not None and right.ticks is not None:
            n = filter_ticks(
                probes, seqs, n, chunk.is_right, self._reach.least, self._reach.most,
                left.ticks, right.ticks, left.base, right.base,
            )  # fmt: skip
        for t in self._open_terms:
            a, b = chunk.left.encoded.terms[t], chunk.right.encoded.terms[t]
            n = filter_terms(
                probes, seqs, n, chunk.is_right, self._place, a.lo, a.hi, b.lo, b.hi,
                left.words[t], right.words[t], left.base, right.base,
            )  # fmt: skip
        return n

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

    def own(self, side: int, columns: Sequence[Column]) -> Mapping[Column, Values]:
        """Columns of the chunk's tuples of one side."""
        part = self._chunk.right if side else self._chunk.left
        names = list(dict.fromkeys(column.name for column in columns))
        with self._guard:
            rows = self._payload[side].gather(names, part.first_seq + np.arange(part.n), _ALONE)
        return {column: from_arrow(rows[column.name]) for column in columns}

    def grid(self, probes: Array, seqs: Array) -> Array:
        """The residual alone for all probes and positions at once: columns are read once, not once per pair."""
        if self._residual is None:
            return np.ones((probes.size, seqs.size), np.bool_)
        own, is_right = self._chunk.own_seq[probes], bool(self._chunk.is_right[probes[0]])
        read = self._reading(self._residual, *((seqs, own) if is_right else (own, seqs)))
        return grid_holds(self._residual, read, "r" if is_right else "l", (probes.size, seqs.size))

    def _reading(self, expression: Expression, left: Array, right: Array) -> Read:
        return reading(expression, self._payload, left, right, self._guard)


def reading(
    expression: Expression,
    payload: tuple[SideStore, SideStore],
    left: Array,
    right: Array,
    guard: AbstractContextManager[Any] = _FREE,
) -> Read:
    """The columns of an expression at positions of both sides, each side gathered at once."""
    values = {}
    for qualifier, store, seqs in (("l", payload[0], left), ("r", payload[1], right)):
        columns = [column for column in expression.columns if column.qualifier == qualifier]
        with guard:
            rows = store.gather([column.name for column in columns], seqs, _ALONE)
        values.update({column: from_arrow(rows[column.name]) for column in columns})
    return values.__getitem__


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
