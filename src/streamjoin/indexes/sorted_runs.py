"""A side's window as a few sorted runs, which the sweep reads.

Each chunk adds one run, as new tuples go to PIM-Tree's T_I. A run is merged with the one before it once it is no
longer much smaller, and expired entries are dropped, as T_I is merged into T_S (PIM-Tree, section 3.3). Run sizes
decrease geometrically, so there are O(log(window / chunk)) runs and each tuple is moved that often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.calls import Cut, KernelCalls
from streamjoin.kernels.batch.sorting import BLOCK, count_ranges, cut_runs, merge_live, tops_of
from streamjoin.windows.memory import Memory
from streamjoin.windows.workers import Workers

# In percent, how large a run may be, against the newer one, to be merged with it.
_SLACK = 400
# Fewer entries of the larger run are not worth a thread of their own.
_LEAST_PART = 1 << 15
# Entries held for each live one, at most; directories take another three hundredths.
_MOST_HELD = 1.21


def first_merged(sizes: Sequence[int], slack: int, most: float = math.inf, least: int = 0) -> int:
    """The first of some runs, given their sizes from the oldest on, from which on all should become one.

    From the newest backwards a run is merged while it is not larger than all newer ones together, or than `least`, by
    `slack` percent of them, and all together are not more than `most`. Sizes then fall geometrically. The sweep, the
    window log and the streams of ad-hoc queries all merge in this order; what they count, and when they do it, differs.
    """
    first, total = len(sizes) - 1, sizes[-1]
    newer = max(total, least)
    while first and sizes[first - 1] * 100 <= newer * slack and total + sizes[first - 1] <= most:
        first -= 1
        newer += sizes[first]
        total += sizes[first]
    return first


@dataclass(frozen=True)
class SortedRun:
    """Entries (word, seq) sorted by word, equal words by seq; `newest` is the largest seq."""

    words: Array
    seqs: Array
    newest: int
    tops: Array
    """The last word of every block."""


class Merge:
    """Two runs on their way to one. Each part has two ranges, which one thread merges at a time."""

    def __init__(self, older: SortedRun, newer: SortedRun, min_seq: int, parts: int) -> None:
        self._older, self._newer, self._min_seq = older, newer, min_seq
        self._edges = cut_runs(older.words, newer.words, 2 * parts)
        self._parts = parts
        self.words: Array
        self.seqs: Array
        self.tops: Array

    def counting(self) -> KernelCalls:
        """The calls that count the live entries, part by part."""
        return KernelCalls(self._parts, self._older.seqs, self._newer.seqs, self._cut(), self._min_seq)

    def _cut(self) -> Cut:
        begins = np.arange(0, 2 * self._parts, 2)
        return Cut(self._edges, begins, begins + 3)

    def lay_out(self, memory: Memory) -> None:
        """Make room for the entries; after all were counted."""
        self._edges[:, 2] = self._edges[:, 2].cumsum()
        live = int(self._edges[-1, 2])
        self.words, self.seqs, self.tops = memory.take(live), memory.take(live), memory.take(live // BLOCK)

    def writing(self) -> KernelCalls:
        """The calls that merge, part by part."""
        runs = self._older.words, self._older.seqs, self._newer.words, self._newer.seqs
        return KernelCalls(self._parts, *runs, self._cut(), self._min_seq, self.words, self.seqs, self.tops)


def settle(sides: Sequence[SortedRuns], workers: Workers) -> None:
    """Merge the runs of both sides at the same time until none are due."""
    while due := [runs for runs in sides if runs.due()]:
        shares = [max(1, min(workers.n // len(due), runs.runs[-2].words.size // _LEAST_PART)) for runs in due]
        merges = [runs.merge(share) for runs, share in zip(due, shares, strict=True)]
        with workers.sharing(sum(run.words.size for runs in due for run in runs.runs[-2:])):
            workers.call(count_ranges, *(merge.counting() for merge in merges))
            for merge in merges:
                merge.lay_out(workers.memory)
            workers.call(merge_live, *(merge.writing() for merge in merges))
        for runs, merge in zip(due, merges, strict=True):
            runs.replace_merged(merge)


class SortedRuns:
    """Sorted runs, oldest and largest first."""

    def __init__(self) -> None:
        self.runs: list[SortedRun] = []
        self.merges = 0
        self.merged_entries = 0
        self._min_seq = 0

    def add(self, words: Array, seqs: Array, newest: int, tops: Array | None = None) -> None:
        """Add sorted entries as the newest run. `settle` keeps the number of runs small."""
        if words.size:
            self.runs.append(SortedRun(words, seqs, newest, tops_of(words) if tops is None else tops))

    def due(self) -> bool:
        """Whether the two newest runs should become one: sizes no longer fall geometrically, or much has expired."""
        if len(self.runs) < 2:
            return False
        sizes = [run.words.size for run in self.runs]
        live = max(run.newest for run in self.runs) + 1 - self._min_seq
        return first_merged(sizes[-2:], _SLACK) == 0 or sum(sizes) > _MOST_HELD * live

    def merge(self, parts: int) -> Merge:
        """A merge of the live entries of the two newest runs, cut at common words."""
        return Merge(self.runs[-2], self.runs[-1], self._min_seq, parts)

    def replace_merged(self, merge: Merge) -> None:
        """Replace the two newest runs by what was merged."""
        newest = max(run.newest for run in self.runs[-2:])
        del self.runs[-2:]
        self.merges += 1
        self.merged_entries += merge.words.size
        self.add(merge.words, merge.seqs, newest, merge.tops)

    def forget(self, min_seq: int) -> None:
        """Expire entries below `min_seq`: a run without live entries is dropped at once, others at the next merge."""
        self._min_seq = max(self._min_seq, min_seq)
        self.runs = [run for run in self.runs if run.newest >= self._min_seq]

    def saved(self) -> Callable[[], None]:
        """Return a function that restores these runs; a run never changes."""
        state = self.merges, self.merged_entries, self._min_seq
        runs = list(self.runs)

        def restore() -> None:
            self.runs = list(runs)
            self.merges, self.merged_entries, self._min_seq = state

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held by all runs."""
        return sum(run.words.nbytes + run.seqs.nbytes + run.tops.nbytes for run in self.runs)
