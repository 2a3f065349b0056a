"""`sweep`: sorts the chunk and sweeps it over the window's sorted runs and over itself.

The algorithm for batches. Each side's valid tuples are sorted by word once; the sorted words are the probes over the
other side's runs and over the other side of the chunk, and then become the newest run. With several workers, each
takes a range of the sorted probes, and merges are cut at common words.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.indexes.sorted_runs import SortedRuns, settle
from streamjoin.joins.base import Chunk, Pairs, Refine
from streamjoin.joins.batch.packed_pairs import PackedPairs, PairOrder, ordered
from streamjoin.joins.batch.sorted_probes import sorted_probes
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.batch.sweep import LIVE, RUN_FIELDS, SEQ, SLACK, WORD, sweep_chunk
from streamjoin.kernels.calls import KernelCalls, Row
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.workers import Workers

# Below this many probes a second thread does not pay.
LEAST_PART = 4096
_STEPS = ("sort", "sweep", "order_pairs", "merge")


class Sweep:
    """The sweep over sorted runs."""

    name: ClassVar[str] = "sweep"

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
