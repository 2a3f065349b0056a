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
from streamjoin.indexes.sorted_runs import SortedRun, SortedRuns
from streamjoin.joins.base import Chunk, Pairs, Refine
from streamjoin.joins.batch.packed_pairs import PackedPairs, PairOrder, ordered
from streamjoin.joins.batch.sorted_probes import SweepProbes, sorted_probes
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.batch.sweep import sweep_batch, sweep_run
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.workers import Workers, cuts

# Below this many probes a second thread does not pay.
LEAST_PART = 2048
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
        parts = max(1, min(self._workers.n, max(left.words.size, right.words.size) // LEAST_PART))
        tasks = list(zip(cuts(left.words.size, parts), cuts(right.words.size, parts), strict=False))
        tasks += [((a, b), (0, 0)) for a, b in cuts(left.words.size, parts)[len(tasks) :]]
        tasks += [((0, 0), (a, b)) for a, b in cuts(right.words.size, parts)[len(tasks) :]]

        order = PairOrder(chunk, (left.live, right.live), refine, self._workers)

        def sweep_part(task: tuple[tuple[int, int], tuple[int, int]]) -> PackedPairs:
            pairs = PackedPairs(order).open()
            for run in self._right.runs:
                self._over_run(left, task[0], run, order.bases[1], pairs)
            for run in self._left.runs:
                self._over_run(right, task[1], run, order.bases[0], pairs)
            self._over_each_other(left, task[0], chunk, right, pairs)
            return pairs.closed()

        collected = self._workers.map(sweep_part, tasks)
        clock.append(perf_counter_ns())
        for runs, probes in zip(self._windows, (left, right), strict=False):
            runs.add(probes.words, probes.seqs, probes.newest)
        pairs = ordered(order, collected)
        clock.append(perf_counter_ns())
        self._spent[:-1] += np.diff(clock)
        return pairs

    def _over_run(
        self, side: SweepProbes, part: tuple[int, int], run: SortedRun, base: int, pairs: PackedPairs
    ) -> None:
        cursor = np.array([part[0], -1], np.int64)
        while cursor[0] < part[1]:
            pairs.n = sweep_run(
                side.lo, side.hi, side.probes, side.live, run.words, run.seqs, run.tops, base,
                cursor, part[1], pairs.block, pairs.n,
            )  # fmt: skip
            if cursor[0] < part[1]:
                pairs.flush()

    def _over_each_other(
        self, side: SweepProbes, part: tuple[int, int], chunk: Chunk, other: SweepProbes, pairs: PackedPairs
    ) -> None:
        cursor = np.array([part[0], -1], np.int64)
        while cursor[0] < part[1]:
            pairs.n = sweep_batch(
                side.lo, side.hi, side.probes, side.seqs, chunk.min_seq, chunk.upto, other.words, other.probes,
                other.seqs, other.tops, pairs.order.bases, cursor, part[1], pairs.block, pairs.n,
            )  # fmt: skip
            if cursor[0] < part[1]:
                pairs.flush()

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        begin = perf_counter_ns()
        self._left.forget(left_min)
        self._right.forget(right_min)
        # Only now: merging before would keep what has just expired.
        for runs in self._windows:
            runs.settle(self._workers)
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
