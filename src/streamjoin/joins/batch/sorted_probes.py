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
from streamjoin.kernels.batch.sorting import count_leading, extent, partition_entries, tops_of
from streamjoin.kernels.batch.sweep import HI, LO, WORD, sort_probes
from streamjoin.kernels.calls import Cut, Each, KernelCalls, Row
from streamjoin.windows.workers import Workers, cuts

# A range of fewer tuples is not worth a thread of its own.
_LEAST_PART = 8192
_BUCKET_BITS = 9


@dataclass(frozen=True)
class SweepProbes:
    """Tuples of one side of a chunk, sorted by word: the rows that `kernels.batch.sweep` names."""

    rows: Array
    entries: Array
    newest: int
    tops: Array = field(init=False)
    """The last word of every block."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tops", tops_of(self.entries[WORD]))

    @property
    def n(self) -> int:
        """The number of tuples."""
        return int(self.rows.shape[1])


def sorted_probes(parts: Sequence[SidePart], min_seq: Array, workers: Workers) -> list[SweepProbes]:
    """Both sides of a chunk."""
    n = max(1, sum(part.n for part in parts))
    shares = [max(1, min(workers.n * part.n // n, part.n // _LEAST_PART)) for part in parts]
    sides = [_SortingSide(part, min_seq, share, workers) for part, share in zip(parts, shares, strict=True)]
    if max(shares) > 1:
        workers.call(count_leading, *(side.counting() for side in sides))
        for side in sides:
            side.lay_out()
        workers.call(partition_entries, *(side.partitioning() for side in sides))
    workers.call(sort_probes, *(side.sorting() for side in sides))
    return [side.probes() for side in sides]


class _SortingSide:
    """One side while it is sorted by `parts` workers."""

    def __init__(self, part: SidePart, min_seq: Array, parts: int, workers: Workers) -> None:
        if part.encoded.index is None:
            raise AssertionError("sweep needs an index word")
        self._part, self._min_seq, self._index = part, min_seq, part.encoded.index
        self._tags = part.valid_places()
        self.n = self._tags.size
        self._words = self._index.word if self.n == part.n else self._index.word[self._tags]
        self._rows = workers.memory.take(4 * self.n).reshape(4, self.n)
        # In memory of their own: they become a run.
        self._entries = workers.memory.take(2 * self.n).reshape(2, self.n)
        self._cuts: list[tuple[int, int]] = []
        self._workers = workers
        self._ranges = [(0, self.n)]
        self._ends: Array = np.array([[1, 0]] * parts)
        if parts > 1:
            self._cuts = cuts(self.n, parts)
            self._counts = np.zeros((len(self._cuts), 1 << _BUCKET_BITS), np.int64)
            self._least, most = extent(self._words) if self.n else (0, 0)
            self._shift = max(0, (int(most) - int(self._least)).bit_length() - _BUCKET_BITS)

    def counting(self) -> KernelCalls:
        """The calls that count the words of each bucket, part by part."""
        if not self._cuts:
            return KernelCalls(0)
        return KernelCalls(len(self._cuts), self._cut(self._words), self._least, self._shift, Row(self._counts))

    def _cut(self, array: Array) -> Cut:
        return Cut(array, *np.array(self._cuts).T)

    def lay_out(self) -> None:
        """Decide where each part writes the tuples of each bucket, and which buckets each worker sorts."""
        if not self._cuts:
            return
        counts = self._counts
        ends = counts.T.cumsum().reshape(counts.shape[::-1]).T
        self._counts = ends - counts
        edges = np.append(self._counts[0], self.n)
        self._ranges = [(int(edges[a]), int(edges[b])) for a, b in bucket_ranges(edges, len(self._cuts))]
        self._buckets = self._workers.memory.take(2 * self.n).reshape(2, self.n)

    def partitioning(self) -> KernelCalls:
        """The calls that write tuples to their buckets, part by part."""
        if not self._cuts:
            return KernelCalls(0)
        entries = self._cut(self._words), self._cut(self._tags)
        return KernelCalls(len(self._cuts), *entries, self._least, self._shift, Row(self._counts), *self._buckets)

    def sorting(self) -> KernelCalls:
        """The calls that sort ranges of buckets."""
        words, tags = (self._words, self._tags) if len(self._ranges) == 1 else self._buckets
        begins, ends = np.array(self._ranges).T
        return KernelCalls(
            len(self._ranges), Cut(words, begins, ends), Cut(tags, begins, ends), self._index.lo, self._index.hi,
            self._part.at, self._min_seq, self._part.first_seq, Each(begins), self._rows, self._entries,
            Row(self._ends),
        )  # fmt: skip

    def probes(self) -> SweepProbes:
        """The sorted tuples."""
        self._join_ranges(self._rows[LO], self._rows[HI])
        return SweepProbes(self._rows, self._entries, self._part.first_seq + self._part.n - 1)

    def _join_ranges(self, lo: Array, hi: Array) -> None:
        """Make the low ends of ranges ascend that do so each by itself."""
        least = 2**63 - 1
        for k in range(len(self._ranges) - 1, -1, -1):
            begin, end = self._ranges[k]
            first, last = self._ends[k].tolist()
            if first > last:
                # No interval of these is other than empty.
                continue
            if last > least:
                too_high = (lo[begin:end] > least) & (lo[begin:end] <= hi[begin:end])
                lo[begin:end][too_high] = least
            least = min(least, first)
