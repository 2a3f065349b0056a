"""As-of joins by any condition: the nearest of the pairs that an algorithm finds within the tolerance.

Only the nearest partner behind and ahead of each left tuple is kept. Times ascend with positions, so the nearest behind
is the pair with the largest right position, the nearest ahead the one with the smallest. In arrival order only tuples
that were there count: the newest is the one with the largest position.
"""

from __future__ import annotations

import threading

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.kinds.base import MISSING, KindRows, PositionBuffer, StoredChunk, Tail
from streamjoin.kernels.gather import sides_of_pairs
from streamjoin.kernels.kinds.asof import choose_nearest, keep_nearest
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.clock import NEVER
from streamjoin.windows.store import SideStore

_NONE = np.empty(0, np.int64)


class AsOfLayer:
    """The rows of an as-of join, from pairs."""

    gives_pairs = False

    def __init__(self, bound: BoundSpec, stores: tuple[SideStore, SideStore]) -> None:
        if bound.match is None:
            raise AssertionError("an as-of join without a match")
        self._match = bound.match
        self._how = bound.spec.how
        self._arrival = bound.spec.order == "arrival"
        self._stores = stores
        self._behind = PositionBuffer(np.int64, MISSING)
        self._ahead = PositionBuffer(np.int64, MISSING)
        self._front = 0
        self._updating = threading.Lock()

    def begin(self, chunk: StoredChunk) -> None:
        """Add a chunk's left tuples."""
        for buffer in (self._behind, self._ahead):
            buffer.extend(chunk.chunk.left.n)

    def reduce(self, chunk: StoredChunk, probes: Array, seqs: Array) -> tuple[Array, Array]:
        """Take the pairs that are nearer than those before them; none is needed after that."""
        if self._arrival:
            there = ~chunk.chunk.is_right[probes]
            probes, seqs = probes[there], seqs[there]
        left, right = np.empty(probes.size, np.int64), np.empty(probes.size, np.int64)
        sides_of_pairs(probes, seqs, chunk.chunk.is_right, chunk.chunk.own_seq, left, right)
        times = self._times()
        behind, ahead = np.empty((left.size, 2), np.int64), np.empty((left.size, 2), np.int64)
        counts = np.zeros(2, np.int64)
        with self._updating:
            self._behind.note(behind[:, 0], behind[:, 1], counts[:1])
            self._ahead.note(ahead[:, 0], ahead[:, 1], counts[1:])
            keep_nearest(
                left, right, *times, self._stores[0].base, self._stores[1].base, self._arrival, self._match.exact,
                self._behind.base, self._behind.values, self._ahead.values, behind, ahead, counts,
            )  # fmt: skip
        return _NONE, _NONE

    def rows(self, chunk: StoredChunk, probes: Array, left: Array, right: Array) -> KindRows:  # noqa: ARG002
        """The left tuples that are decided after a chunk."""
        newest = max((int(ticks[-1]) for ticks in chunk.ticks if ticks is not None and ticks.size), default=NEVER)
        rows = self._decide(newest, self._arrival)
        if not self._arrival:
            return rows
        return KindRows(rows.left, rows.right, chunk.places(0)[rows.left - chunk.first(0)])

    def end(self, tail: Tail) -> KindRows:
        """The left tuples that the end of a call decides."""
        return self._decide(tail.tick, tail.last)

    def _decide(self, tick: int, everything: bool) -> KindRows:
        left_ticks, right_ticks = self._times()
        behind, ahead, base = self._behind.values, self._ahead.values, self._behind.base
        partners = np.empty(self._behind.end - self._front, np.int64)
        tolerance = -1 if self._match.tolerance is None else self._match.tolerance
        n = choose_nearest(
            left_ticks, right_ticks, self._stores[0].base, self._stores[1].base, behind, ahead, base, self._front,
            tick, everything, self._arrival or self._match.direction == "backward",
            not self._arrival and self._match.direction == "forward", tolerance, partners,
        )  # fmt: skip
        positions, partners = np.arange(self._front, self._front + n), partners[:n]
        self._front += n
        for buffer in (self._behind, self._ahead):
            buffer.forget(self._front)
        if self._how == "left":
            return KindRows(positions, partners)
        keep = partners != MISSING if self._how == "inner" else partners == MISSING
        return KindRows(positions[keep], partners[keep])

    def _times(self) -> tuple[Array, Array]:
        left, right = (_NONE if store.ticks is None else store.ticks for store in self._stores)
        return left, right

    def earliest(self, tick: int) -> int:
        """The time of the first left tuple that has not come out."""
        return min(tick, self._stores[0].time_at(self._front))

    def needed_from(self, side: int, live: int) -> int:
        """The first left tuple that has not come out, and the first partner of one."""
        if side == 0:
            return min(live, self._front)
        partners = np.concatenate([self._behind.values, self._ahead.values])
        partners = partners[partners != MISSING]
        return min(live, int(partners.min())) if partners.size else live

    def forget(self, left_min: int, right_min: int) -> None:
        """Do nothing: what is known of a left tuple is dropped when it comes out."""

    def saved(self) -> Restore:
        """Return a function that restores what is known of waiting left tuples."""
        parts = [self._behind.saved(), self._ahead.saved()]
        front = self._front

        def restore() -> None:
            for part in parts:
                part()
            self._front = front

        return restore
