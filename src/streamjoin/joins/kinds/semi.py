"""Semi joins: each matched left tuple once, at the place of its first pair."""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.kinds.base import MISSING, KindRows, PositionBuffer, StoredChunk, Tail
from streamjoin.kernels.kinds.marks import keep_first, take_firsts
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.store import SideStore

_NONE = (1 << 63) - 1


class SemiLayer:
    """The rows of a semi join: pairs of tuples that came out already are dropped as they are found."""

    gives_pairs = False

    def __init__(self, bound: BoundSpec, stores: tuple[SideStore, SideStore]) -> None:
        self._self_join = bound.spec.self_join
        self._store, self._window = stores[0], bound.windows[0]
        # The rank of each left tuple's first pair; -1 once the tuple came out.
        self._firsts = PositionBuffer(np.int64, _NONE)
        self._rank = 0

    def begin(self, chunk: StoredChunk) -> None:
        """Add a chunk's left tuples."""
        self._firsts.extend(chunk.chunk.left.n)

    def reduce(self, chunk: StoredChunk, probes: Array, seqs: Array) -> tuple[Array, Array]:
        """Keep the pairs that may be the first of their left tuple."""
        fresh, count = np.empty(probes.size, np.int64), np.zeros(1, np.int64)
        self._firsts.note(fresh, _NONE, count)
        n = keep_first(
            probes, seqs, chunk.chunk.is_right, chunk.chunk.own_seq, self._self_join, self._rank,
            self._firsts.values, self._firsts.base, fresh, count,
        )  # fmt: skip
        return probes[:n], seqs[:n]

    def rows(self, chunk: StoredChunk, probes: Array, left: Array, right: Array) -> KindRows:  # noqa: ARG002
        """The left tuples that match for the first time."""
        keep = np.empty(left.size, np.bool_)
        take_firsts(self._firsts.values, self._firsts.base, left, chunk.place_of(probes) + self._rank, keep)
        self._rank += chunk.n
        return KindRows(left[keep], np.full(int(keep.sum()), MISSING, np.int64), chunk.place_of(probes[keep]))

    def end(self, tail: Tail) -> KindRows:  # noqa: ARG002
        """Nothing: a tuple without a match does not come out."""
        return KindRows(np.empty(0, np.int64), np.empty(0, np.int64))

    def earliest(self, tick: int) -> int:
        """The time of the oldest left tuple that a later one can match."""
        oldest = self._store.time_at(self._store.base)
        if self._window.kind == "time":
            oldest = max(oldest, tick - self._window.size)
        return min(tick, oldest)

    def needed_from(self, side: int, live: int) -> int:  # noqa: ARG002
        """The windows decide."""
        return live

    def forget(self, left_min: int, right_min: int) -> None:  # noqa: ARG002
        """Drop the state of left tuples that have left."""
        self._firsts.forget(left_min)

    def saved(self) -> Restore:
        """Return a function that restores the tuples' state."""
        firsts, rank = self._firsts.saved(), self._rank

        def restore() -> None:
            firsts()
            self._rank = rank

        return restore
