"""The tuples of a chunk as probes of a sweep: each side sorted by word.

With several workers each side is partitioned once, by the leading bits of its words, and a range of them is one
worker's from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import SidePart
from streamjoin.joins.batch.packed_pairs import bucket_ranges
from streamjoin.kernels.batch.sorting import count_leading, extent, partition_entries, sort_entries
from streamjoin.kernels.batch.sweep import arrange, make_ascending, tops_of
from streamjoin.windows.workers import Workers, cuts

# A range of fewer tuples is not worth a thread of its own.
_LEAST_PART = 8192
_BUCKET_BITS = 9


@dataclass(frozen=True)
class SweepProbes:
    """Tuples of one side of a chunk, sorted by word."""

    words: Array
    lo: Array
    hi: Array
    probes: Array
    live: Array
    seqs: Array
    newest: int = 0
    tops: Array = field(init=False)
    """The last word of every block."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tops", tops_of(self.words))


def sorted_probes(parts: Sequence[SidePart], min_seq: Array, workers: Workers) -> list[SweepProbes]:
    """Both sides of a chunk."""
    sides = [_SortingSide(part, min_seq) for part in parts]
    n = max(1, sum(side.n for side in sides))
    shares = [max(1, min(workers.n * side.n // n, side.n // _LEAST_PART)) for side in sides]
    if max(shares) == 1:
        workers.map(_SortingSide.sort_alone, sides)
    else:
        tasks = [(side, k) for side, share in zip(sides, shares, strict=True) for k in range(share)]
        workers.map(lambda side: side.begin(shares[side is sides[1]]), sides)
        workers.map(lambda task: task[0].count(task[1]), tasks)
        for side in sides:
            side.lay_out()
        workers.map(lambda task: task[0].partition(task[1]), tasks)
        workers.map(lambda task: task[0].sort(task[1]), tasks)
    return [side.probes() for side in sides]


class _SortingSide:
    """One side while it is sorted."""

    def __init__(self, part: SidePart, min_seq: Array) -> None:
        if part.encoded.index is None:
            raise AssertionError("sweep needs an index word")
        self._part, self._min_seq, self._index = part, min_seq, part.encoded.index
        self._places = part.valid_places()
        self.n = self._places.size
        self._given = self._index.word if self.n == part.n else self._index.word[self._places]
        self._words: Array
        self._columns: list[Array] = []
        self._ranges: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int] | None] = []

    def sort_alone(self) -> None:
        """Sort all tuples in this thread."""
        self._words, places = sort_entries(self._given, self._places)
        self._columns = [np.empty(self.n, np.int64) for _ in range(5)]
        self._arrange(places, slice(0, self.n))

    def begin(self, parts: int) -> None:
        """Make room for partitioning the tuples by `parts` workers."""
        least, most = extent(self._given) if self.n else (0, 0)
        self._least, self._shift = least, max(0, (int(most) - int(least)).bit_length() - _BUCKET_BITS)
        self._cuts = [slice(*cut) for cut in cuts(self.n, parts)]
        self._counts = np.zeros((len(self._cuts), 1 << _BUCKET_BITS), np.int64)
        self._words, self._unsorted, self._tags, *self._columns = (np.empty(self.n, np.int64) for _ in range(8))

    def count(self, k: int) -> None:
        """Count the words of each bucket in part k."""
        count_leading(self._given[self._cuts[k]], self._least, self._shift, self._counts[k])

    def lay_out(self) -> None:
        """Decide where each part writes the tuples of each bucket, and which buckets each worker sorts."""
        counts = self._counts
        ends = counts.T.cumsum().reshape(counts.shape[::-1]).T
        self._counts = ends - counts
        edges = np.append(self._counts[0], self.n)
        self._ranges = [(int(edges[a]), int(edges[b])) for a, b in bucket_ranges(edges, len(self._cuts))]
        self._ends = [None] * len(self._ranges)

    def partition(self, k: int) -> None:
        """Write the tuples of part k to their buckets."""
        cut = self._cuts[k]
        partition_entries(
            self._given[cut], self._places[cut], self._least, self._shift, self._counts[k], self._unsorted, self._tags
        )

    def sort(self, k: int) -> None:
        """Sort the k-th range of buckets."""
        if k >= len(self._ranges) or self._ranges[k][0] == self._ranges[k][1]:
            return
        cut = slice(*self._ranges[k])
        words, places = sort_entries(self._unsorted[cut], self._tags[cut])
        self._words[cut] = words
        self._arrange(places, cut)
        lo, hi = self._columns[0][cut], self._columns[1][cut]
        ends = lo[lo <= hi]
        if ends.size:
            self._ends[k] = int(ends[0]), int(ends[-1])

    def _arrange(self, places: Array, cut: slice) -> None:
        part, columns = self._part, [column[cut] for column in self._columns]
        arrange(places, self._index.lo, self._index.hi, part.at, self._min_seq, part.first_seq, *columns)
        make_ascending(columns[0], columns[1])

    def probes(self) -> SweepProbes:
        """The sorted tuples."""
        lo, hi, probes, live, seqs = self._columns
        self._join_ranges(lo, hi)
        return SweepProbes(self._words, lo, hi, probes, live, seqs, self._part.first_seq + self._part.n - 1)

    def _join_ranges(self, lo: Array, hi: Array) -> None:
        """Make the low ends of ranges ascend that do so each by itself."""
        least = 2**63 - 1
        for (begin, end), ends in zip(reversed(self._ranges), reversed(self._ends), strict=True):
            if ends is None:
                continue
            if ends[1] > least:
                too_high = (lo[begin:end] > least) & (lo[begin:end] <= hi[begin:end])
                lo[begin:end][too_high] = least
            least = min(least, ends[0])
