"""`sweep`: sorts the chunk and sweeps it over the window's sorted runs and over itself.

The algorithm for batches. Each side's valid tuples are sorted by word once; the sorted words are the probes over the
other side's runs and over the other side of the chunk, and then become the newest run. With several workers, each
takes a range of the sorted probes, and merges are cut at common words. Then each side is partitioned once, by the
leading bits of its words, and a range of them is one worker's from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.indexes.sorted_runs import SortedRuns, settle
from streamjoin.jit.calls import Cut, Each, KernelCalls, Row
from streamjoin.joins.base import AlgorithmCapabilities, Chunk, Pairs, Refine, SidePart
from streamjoin.joins.batch.packed_pairs import PackedPairs, PairOrder, bucket_ranges, ordered
from streamjoin.joins.registry import register_algorithm
from streamjoin.kernels.batch.sorting import count_leading, least_and_most, partition_entries, sort_entries, tops_of
from streamjoin.kernels.batch.sweep import HI, LIVE, LO, RUN_FIELDS, SEQ, SLACK, WORD, sort_probes, sweep_chunk
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.workers import Workers, cuts

# Below this many probes a second thread does not pay.
LEAST_PART = 4096
_STEPS = ("sort", "sweep", "order_pairs", "merge")


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
            self._least, most = least_and_most(self._words) if self.n else (0, 0)
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


class Sweep:
    """The sweep over sorted runs."""

    name: ClassVar[str] = "sweep"
    capabilities: ClassVar[AlgorithmCapabilities] = AlgorithmCapabilities(shares_no_small_chunks=True)

    def __init__(self, bound: BoundSpec, workers: Workers) -> None:
        self._workers = workers
        # A self-join whose roles have the same words keeps its tuples once.
        self._windows = (SortedRuns(),) if bound.has_equal_roles else (SortedRuns(), SortedRuns())
        self._left, self._right = self._windows[0], self._windows[-1]
        self.decides = bound.settled
        self._spent = np.zeros(len(_STEPS), np.int64)

    def fill(self, side: int, words: Array, seqs: Array) -> None:
        """Store one side's tuples of another algorithm as one run."""
        if side < len(self._windows):
            self._windows[side].add(*sort_entries(words, seqs), newest=int(seqs[-1]))

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Pair the chunk with both windows and with itself, then add it to them."""
        clock = [perf_counter_ns()]
        left, right = sorted_probes((chunk.left, chunk.right), chunk.min_seq, self._workers)
        clock.append(perf_counter_ns())
        order = PairOrder(chunk, (left.rows[LIVE], right.rows[LIVE]), refine, self._workers)
        table = self._table()

        parts = max(1, min(self._workers.n, max(left.n, right.n) // LEAST_PART))
        edges = np.arange(parts + 1) * np.array([[left.n], [right.n]]) // parts
        first = table[0, 0] if len(table) else 0
        ranges = np.ascontiguousarray(np.stack([edges[:, :-1], edges[:, 1:]], 2).swapaxes(0, 1))
        states = np.stack([np.zeros(parts, np.int64), ranges[:, first, 0], np.full(parts, -1)], 1)
        collected = [PackedPairs(order) for _ in range(parts)]
        unfinished = np.arange(parts)
        while unfinished.size:
            pairs = [collected[k] for k in unfinished]
            capacity = PackedPairs.CAPACITY + SLACK
            room = self._workers.memory.take(len(pairs) * capacity).reshape(-1, capacity)
            state = np.ascontiguousarray(states[unfinished])
            sizes = self._workers.call(
                sweep_chunk,
                KernelCalls(
                    len(pairs), left.rows, right.rows, left.entries[SEQ], right.entries, right.tops, table,
                    Row(np.ascontiguousarray(ranges[unfinished])), chunk.min_seq, chunk.upto, order.bases, Row(state),
                    Row(room), 0,
                ),
            )  # fmt: skip
            for each, block, size in zip(pairs, room, sizes, strict=True):
                each.block, each.n = block, size
            self._close(pairs, refine)
            states[unfinished] = state
            unfinished = unfinished[state[:, 0] <= len(table)]
        clock.append(perf_counter_ns())
        for runs, probes in zip(self._windows, (left, right), strict=False):
            runs.add(probes.entries[WORD], probes.entries[SEQ], probes.newest, probes.tops)
        in_order = ordered(order, [block for pairs in collected for block in pairs.blocks])
        clock.append(perf_counter_ns())
        self._spent[:-1] += np.diff(clock)
        return in_order

    def _close(self, blocks: list[PackedPairs], refine: Refine) -> None:
        """Test the pairs of each part; without tests that is no work to share."""
        if refine.tests:
            self._workers.map(PackedPairs.close, blocks)
        else:
            for pairs in blocks:
                pairs.close()

    def _table(self) -> Array:
        """Where the runs of both sides are, for `sweep_chunk`: those of the right are for left probes."""
        rows = [
            (side, *(array.ctypes.data for array in (run.words, run.seqs, run.tops)), run.words.size, run.tops.size)
            for side, runs in enumerate((self._right, self._left))
            for run in runs.runs
        ]
        return np.array(rows, np.int64).reshape(-1, RUN_FIELDS)

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        begin = perf_counter_ns()
        self._left.forget(left_min)
        self._right.forget(right_min)
        # Only now: merging before would keep what has just expired.
        settle(self._windows, self._workers)
        self._spent[-1] += perf_counter_ns() - begin

    def saved(self) -> Restore:
        """Return a function that restores both windows."""
        parts = [runs.saved() for runs in self._windows]

        def restore() -> None:
            for part in parts:
                part()

        return restore

    def close(self) -> None:
        """Do nothing: the algorithm has no threads of its own."""

    def counters(self) -> dict[str, int]:
        """Merges, runs, and the nanoseconds of each step."""
        return {
            "merges": sum(runs.merges for runs in self._windows),
            "merged_entries": sum(runs.merged_entries for runs in self._windows),
            "runs": sum(len(runs.runs) for runs in self._windows),
            **{f"{step}_ns": int(spent) for step, spent in zip(_STEPS, self._spent, strict=True)},
        }

    @property
    def nbytes(self) -> int:
        """Bytes held by the runs of both sides."""
        return sum(runs.nbytes for runs in self._windows)


register_algorithm(
    Sweep.name, lambda bound, _, workers: Sweep(bound, workers), needs_word=True, kernel=lambda _: sweep_chunk
)
