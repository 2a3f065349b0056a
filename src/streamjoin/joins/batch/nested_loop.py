"""`nested_loop`: compares every tuple with every live tuple of the other side, for any predicate.

Up to two exact terms are tested inside the blocked kernel, 16 or 8 tuples per instruction; the other conditions are
tested on the candidates. Words that fit 32 bits on both sides are stored in 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Keep, PairBuffer, Pairs, Refine, SidePart
from streamjoin.joins.batch.packed_pairs import ordered_pieces
from streamjoin.joins.batch.stored_words import StoredWords, live_places
from streamjoin.kernels.batch.nested import GROUP, nested_one, nested_two
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.words import unsigned_words
from streamjoin.windows.workers import Workers, cuts

# A tile's intermediate results stay in the second-level cache.
_TILE_PROBES = 64
_TILE_STORED = 2048
# More than one, so that a worker that is done early finds more to do.
_SCANS_PER_WORKER = 4
_FEW_PAIRS = 1 << 15

Terms = list[tuple[Array, Array, Array]]
Scan = Callable[[], list[tuple[Array, Array]]]


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
        stored = chunk.left.valid_places(), chunk.right.valid_places()
        return self.share(chunk, refine, stored, (self.terms(chunk.left), self.terms(chunk.right)))

    def share(self, chunk: Chunk, refine: Refine, stored: tuple[Array, Array], terms: tuple[Terms, Terms]) -> Pairs:
        """Store only the tuples at these places of each side, then scan for each tuple of the chunk."""
        self._left.append(chunk.left, [word for word, _, _ in terms[0]], stored[0])
        if not self._shared:
            self._right.append(chunk.right, [word for word, _, _ in terms[1]], stored[1])
        scans = [
            self._scan(chunk, chunk.left, terms[0], self._right, refine),
            self._scan(chunk, chunk.right, terms[1], self._left, refine),
        ]
        pieces = [piece for part in self._workers.map(lambda scan: scan(), [*chain(*scans)]) for piece in part]
        if sum(probes.size for probes, _ in pieces) > _FEW_PAIRS:
            return ordered_pieces(chunk, pieces, self._workers)
        probe, seq = (np.concatenate([np.empty(0, np.int64), *(piece[i] for piece in pieces)]) for i in (0, 1))
        # Each side's pairs are in order already; a stable sort by probe only merges the two.
        order = np.argsort(probe, kind="stable")
        return Pairs(probe[order], seq[order])

    def terms(self, part: SidePart) -> Terms:
        """The words of one side's tuples and the intervals that they match, for each tested term."""
        return [unsigned_words(part.encoded.terms[t], self._narrow) for t in sorted(self.decides)]

    def _scan(
        self,
        chunk: Chunk,
        part: SidePart,
        terms: Terms,
        other: StoredWords,
        refine: Refine,
    ) -> list[Scan]:
        """The scans of one side's tuples: each gives the pairs of a range of them, in order."""
        seqs = other.seqs.values
        first, last = live_places(chunk, part, seqs, self.decides)
        compared = int((last - first).sum())
        self._compared += compared
        words = [buffer.values for buffer in other.words]
        if not terms:
            rows = range(0, part.n, _TILE_PROBES)
            return [partial(self._scan_tiles, part, seqs, first, last, refine, begin) for begin in rows]

        def scan_part(begin: int, end: int) -> list[tuple[Array, Array]]:
            buffer = PairBuffer(_by_position(refine, part.at, seqs), min(compared, PairBuffer.CAPACITY))
            p = begin
            while p < end:
                p = _fill(words, terms, first, last, p, end, buffer)
            return list(zip(*buffer.take(), strict=True))

        parts = min(_SCANS_PER_WORKER * self._workers.n, -(-part.n // GROUP)) if self._workers.n > 1 else 1
        return [partial(scan_part, *cut) for cut in cuts(part.n, parts)]

    def _scan_tiles(
        self, part: SidePart, seqs: Array, first: Array, last: Array, refine: Refine, begin: int
    ) -> list[tuple[Array, Array]]:
        """Without exact terms: evaluate the condition for a group of probes, tile by tile of stored tuples."""
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
        return [refine(part.at[probe[order]], seqs[place_[order]])]

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
    terms: Terms,
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
