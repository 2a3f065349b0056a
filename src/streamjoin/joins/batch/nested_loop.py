"""`nested_loop`: compares every tuple with every live tuple of the other side, for any predicate.

Up to two exact terms are tested inside the blocked kernel, 16 or 8 tuples per instruction; the other conditions are
tested on the candidates. Words that fit 32 bits on both sides are stored in 32 bits.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Keep, PairBuffer, Pairs, Refine, SidePart
from streamjoin.joins.batch.stored_words import StoredWords, live_places
from streamjoin.kernels.batch.nested import nested_one, nested_two
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.words import unsigned_words
from streamjoin.windows.workers import Workers, cuts

# A tile's intermediate results stay in the second-level cache.
_TILE_PROBES = 64
_TILE_STORED = 2048


class NestedLoop:
    """The nested loop in cache-sized blocks."""

    name: ClassVar[str] = "nested_loop"

    def __init__(self, bound: BoundSpec, workers: Workers) -> None:
        self._workers = workers
        self.decides = frozenset(range(min(2, len(bound.terms))))
        self._narrow = all(bound.terms[t].narrow for t in self.decides)
        dtype = np.uint32 if self._narrow else np.uint64
        self._left = StoredWords(len(self.decides), dtype)
        # A self-join whose roles have the same words stores a tuple once, for both.
        self._shared = bound.has_equal_roles
        self._right = self._left if self._shared else StoredWords(len(self.decides), dtype)
        self._compared = 0

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Store the chunk, then scan, for each tuple, the positions that it may match."""
        return self.share(chunk, refine, (chunk.left.valid_places(), chunk.right.valid_places()))

    def share(self, chunk: Chunk, refine: Refine, stored: tuple[Array, Array]) -> Pairs:
        """Store only the tuples at these places of each side, then scan for each tuple of the chunk."""
        terms = {False: self._terms(chunk.left), True: self._terms(chunk.right)}
        self._left.append(chunk.left, [word for word, _, _ in terms[False]], stored[0])
        if not self._shared:
            self._right.append(chunk.right, [word for word, _, _ in terms[True]], stored[1])
        pieces: list[tuple[Array, Array]] = []
        for side, part, other in ((False, chunk.left, self._right), (True, chunk.right, self._left)):
            pieces += self._scan(chunk, part, terms[side], other, refine)
        probe = np.concatenate([p for p, _ in pieces])
        seq = np.concatenate([s for _, s in pieces])
        # Each side's pairs are in order already; a stable sort by probe only merges the two.
        order = np.argsort(probe, kind="stable")
        return Pairs(probe[order], seq[order])

    def _terms(self, part: SidePart) -> list[tuple[Array, Array, Array]]:
        return [unsigned_words(part.encoded.terms[t], self._narrow) for t in sorted(self.decides)]

    def _scan(
        self,
        chunk: Chunk,
        part: SidePart,
        terms: list[tuple[Array, Array, Array]],
        other: StoredWords,
        refine: Refine,
    ) -> list[tuple[Array, Array]]:
        seqs = other.seqs.values
        first, last = live_places(chunk, part, seqs, self.decides)
        compared = int((last - first).sum())
        self._compared += compared
        words = [buffer.values for buffer in other.words]
        if not terms:
            return self._scan_grid(part, seqs, first, last, refine)

        def scan_part(cut: tuple[int, int]) -> tuple[list[Array], list[Array]]:
            buffer = PairBuffer(_by_position(refine, part.at, seqs), min(compared, PairBuffer.CAPACITY))
            p = cut[0]
            while p < cut[1]:
                p = _fill(words, terms, first, last, p, cut[1], buffer)
            return buffer.take()

        pieces = self._workers.map(scan_part, cuts(part.n, self._workers.n if part.n > 1 else 1))
        empty = (np.empty(0, np.int64), np.empty(0, np.int64))
        return [empty, *(pair for probes, seqs in pieces for pair in zip(probes, seqs, strict=True))]

    def _scan_grid(
        self, part: SidePart, seqs: Array, first: Array, last: Array, refine: Refine
    ) -> list[tuple[Array, Array]]:
        """Without exact terms: evaluate the condition for tiles of probes and stored tuples."""

        def tile_row(begin: int) -> tuple[Array, Array]:
            rows = slice(begin, min(begin + _TILE_PROBES, part.n))
            low, high = int(first[rows].min()), int(last[rows].max())
            pieces = [(np.empty(0, np.int64), np.empty(0, np.int64))]
            for place in range(low, high, _TILE_STORED):
                places = np.arange(place, min(place + _TILE_STORED, high))
                holds = refine.grid(part.at[rows], seqs[places])
                holds &= (first[rows, None] <= places) & (places < last[rows, None])
                hit_probe, hit_place = np.nonzero(holds)
                pieces.append((begin + hit_probe, places[hit_place]))
            probe, place_ = (np.concatenate(column) for column in zip(*pieces, strict=True))
            order = np.lexsort((place_, probe))
            return refine(part.at[probe[order]], seqs[place_[order]])

        return self._workers.spread(tile_row, range(0, part.n, _TILE_PROBES)) or [
            (np.empty(0, np.int64), np.empty(0, np.int64))
        ]

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        self._left.forget(min(left_min, right_min) if self._shared else left_min)
        if not self._shared:
            self._right.forget(right_min)

    def saved(self) -> Restore:
        """Return a function that restores both windows."""
        left, right, compared = self._left.saved(), self._right.saved(), self._compared

        def restore() -> None:
            left()
            right()
            self._compared = compared

        return restore

    def held(self, side: int) -> list[Array]:
        """One side's positions and words of each term, oldest first."""
        store = (self._left, self._right)[side]
        return [buffer.values for buffer in (store.seqs, *store.words)]

    def refill(self, side: int, columns: list[Array]) -> None:
        """Store the tuples of another instance; `columns` are as `held` returns them."""
        store = (self._left, self._right)[side]
        if side and self._shared:
            return
        for buffer, values in zip((store.seqs, *store.words), columns, strict=True):
            buffer.append(values)

    def close(self) -> None:
        """Do nothing: the algorithm has no threads of its own."""

    def counters(self) -> dict[str, int]:
        """Pairs compared."""
        return {"compared": self._compared}

    @property
    def nbytes(self) -> int:
        """Bytes held for the words of both sides."""
        return self._left.nbytes + (0 if self._shared else self._right.nbytes)


def _by_position(refine: Refine, at: Array, seqs: Array) -> Keep:
    """Map (place on this side, place among the stored) to (place in the chunk, position in the stream) first."""

    def translated(probes: Array, places: Array) -> tuple[Array, Array]:
        return refine(at[probes], seqs[places])

    return translated


def _fill(
    words: list[Array],
    terms: list[tuple[Array, Array, Array]],
    first: Array,
    last: Array,
    p: int,
    end: int,
    buffer: PairBuffer,
) -> int:
    """Scan probes from p on until the block is full or the end is reached, refine, and return the next probe."""
    largest = int(last[p] - first[p])
    if largest > buffer.probe.size:
        buffer.probe, buffer.seq = np.empty(largest, np.int64), np.empty(largest, np.int64)
    out = (first, last, p, end, buffer.probe, buffer.seq)
    if len(terms) == 1:
        p, buffer.n = nested_one(words[0], terms[0][1], terms[0][2], *out)
    else:
        p, buffer.n = nested_two(words[0], words[1], terms[0][1], terms[0][2], terms[1][1], terms[1][2], *out)
    buffer.flush()
    return int(p)
