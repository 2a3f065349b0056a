"""`sweep`: sorts the chunk and sweeps it over the window's sorted runs and over itself.

The algorithm for batches. Each side's valid tuples are sorted by word once; the sorted words are the probes over the
other side's runs and over the other side of the chunk, and then become the newest run. With several workers, each
takes a range of the sorted probes, and merges are cut at common words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.indexes.sorted_runs import SortedRun, SortedRuns
from streamjoin.joins.base import Chunk, PairBuffer, Pairs, Refine, SidePart
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.batch.sweep import arrange, count_before, make_ascending, order_pairs, sweep_batch, sweep_run
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.workers import Workers, cuts

# Below this many probes a second thread does not pay.
LEAST_PART = 2048


@dataclass(frozen=True)
class SweepProbes:
    """Tuples of one side of a chunk, sorted by word."""

    words: Array
    lo: Array
    hi: Array
    probes: Array
    live: Array
    seqs: Array


class _Probes(SweepProbes):
    """One side of a chunk, sorted by its index words."""

    newest: int

    def __init__(self, part: SidePart, min_seq: Array) -> None:
        index = part.encoded.index
        if index is None:
            raise AssertionError("sweep needs an index word")
        places = part.valid_places()
        words = index.word if places.size == part.n else index.word[places]
        words, places = sort_entries(words, places)
        lo, hi, probes, live, seqs = (np.empty(places.size, np.int64) for _ in range(5))
        arrange(places, index.lo, index.hi, part.at, min_seq, part.first_seq, lo, hi, probes, live, seqs)
        make_ascending(lo, hi)
        super().__init__(words, lo, hi, probes, live, seqs)
        object.__setattr__(self, "newest", part.first_seq + part.n - 1)


class Sweep:
    """The sweep over sorted runs."""

    name: ClassVar[str] = "sweep"

    def __init__(self, bound: BoundSpec, workers: Workers) -> None:
        self._workers = workers
        # A self-join whose roles have the same words keeps its tuples once.
        self._windows = (SortedRuns(),) if bound.has_equal_roles else (SortedRuns(), SortedRuns())
        self._left, self._right = self._windows[0], self._windows[-1]
        self.decides = bound.settled

    def fill(self, side: int, words: Array, seqs: Array) -> None:
        """Store one side's tuples of another algorithm as one run."""
        if side < len(self._windows):
            self._windows[side].add(*sort_entries(words, seqs), newest=int(seqs[-1]))

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Pair the chunk with both windows and with itself, then add it to them."""
        left, right = self._workers.map(lambda part: _Probes(part, chunk.min_seq), [chunk.left, chunk.right])
        parts = max(1, min(self._workers.n, max(left.words.size, right.words.size) // LEAST_PART))
        tasks = list(zip(cuts(left.words.size, parts), cuts(right.words.size, parts), strict=False))
        tasks += [((a, b), (0, 0)) for a, b in cuts(left.words.size, parts)[len(tasks) :]]
        tasks += [((0, 0), (a, b)) for a, b in cuts(right.words.size, parts)[len(tasks) :]]

        def sweep_part(task: tuple[tuple[int, int], tuple[int, int]]) -> tuple[list[Array], list[Array]]:
            buffer = PairBuffer(refine)
            for run in self._right.runs:
                self._over_run(left, task[0], run, buffer)
            for run in self._left.runs:
                self._over_run(right, task[1], run, buffer)
            self._over_each_other(left, task[0], chunk, right, buffer)
            return buffer.take()

        pieces = self._workers.map(sweep_part, tasks)
        for runs, probes in zip(self._windows, (left, right), strict=False):
            runs.add(probes.words, probes.seqs, probes.newest)
        self._settle()
        return self._ordered(pieces, chunk.n)

    def _over_run(self, side: SweepProbes, part: tuple[int, int], run: SortedRun, buffer: PairBuffer) -> None:
        cursor = np.array([part[0], 0, -1], np.int64)
        while cursor[0] < part[1]:
            buffer.n = sweep_run(
                side.lo, side.hi, side.probes, side.live, run.words, run.seqs,
                cursor, part[1], buffer.probe, buffer.seq, buffer.n,
            )  # fmt: skip
            if buffer.n == buffer.CAPACITY:
                buffer.flush()

    def _over_each_other(
        self, side: SweepProbes, part: tuple[int, int], chunk: Chunk, other: SweepProbes, buffer: PairBuffer
    ) -> None:
        cursor = np.array([part[0], 0, -1], np.int64)
        while cursor[0] < part[1]:
            buffer.n = sweep_batch(
                side.lo, side.hi, side.probes, side.seqs, chunk.min_seq, chunk.upto, other.words, other.probes,
                other.seqs, cursor, part[1], buffer.probe, buffer.seq, buffer.n,
            )  # fmt: skip
            if buffer.n == buffer.CAPACITY:
                buffer.flush()

    def _settle(self) -> None:
        """Merge until run sizes decrease geometrically again."""
        for runs in self._windows:
            self._settle_runs(runs)

    def _settle_runs(self, runs: SortedRuns) -> None:
        while runs.due():
            parts = max(1, min(self._workers.n, runs.runs[-2].words.size // (4 * LEAST_PART)))
            pieces = runs.pieces(parts)
            merged = self._workers.map(runs.merge_piece, pieces)
            if len(merged) == 1:
                runs.replace_merged(*merged[0])
            else:
                runs.replace_merged(*(np.concatenate(column) for column in zip(*merged, strict=True)))

    def _ordered(self, results: list[tuple[list[Array], list[Array]]], n_probes: int) -> Pairs:
        """Sort the workers' pairs into result order; each worker sorts a range of probes."""
        pieces = [[piece for part in results for piece in part[i]] for i in (0, 1)]
        probes, seqs = (p[0] if len(p) == 1 else np.concatenate([np.empty(0, np.int64), *p]) for p in pieces)
        ranges = cuts(n_probes, max(1, min(self._workers.n, probes.size // LEAST_PART)))
        places = [*count_before(probes, np.array([begin for begin, _ in ranges])).tolist(), probes.size]
        out_probe, out_seq = np.empty(probes.size, np.int64), np.empty(probes.size, np.int64)

        def order(part: int) -> None:
            at = slice(places[part], places[part + 1])
            order_pairs(probes, seqs, *ranges[part], out_probe[at], out_seq[at])

        self._workers.map(order, range(len(ranges)))
        return Pairs(out_probe, out_seq)

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        self._left.forget(left_min)
        self._right.forget(right_min)

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
        """Merges and runs."""
        return {
            "merges": sum(runs.merges for runs in self._windows),
            "merged_entries": sum(runs.merged_entries for runs in self._windows),
            "runs": sum(len(runs.runs) for runs in self._windows),
        }

    @property
    def nbytes(self) -> int:
        """Bytes held by the runs of both sides."""
        return sum(runs.nbytes for runs in self._windows)
