"""A side's window as a few sorted runs, which the sweep reads.

Each chunk adds one run, as new tuples go to PIM-Tree's T_I. A run is merged with the one before it once it is no
longer much smaller, and expired entries are dropped, as T_I is merged into T_S (PIM-Tree, section 3.3). Run sizes
decrease geometrically, so there are O(log(window / chunk)) runs and each tuple is moved that often.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from streamjoin._arrays import Array
from streamjoin.kernels.batch.sorting import count_live, cut_runs, merge_live
from streamjoin.kernels.batch.sweep import tops_of
from streamjoin.windows.workers import Workers

# Fewer entries of the larger run are not worth a thread of their own.
_LEAST_PART = 1 << 13
_MOST_HELD = 1.25


@dataclass(frozen=True)
class SortedRun:
    """Entries (word, seq) sorted by word, equal words by seq; `newest` is the largest seq."""

    words: Array
    seqs: Array
    newest: int
    tops: Array = field(init=False)
    """The last word of every block."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tops", tops_of(self.words))


class SortedRuns:
    """Sorted runs, oldest and largest first."""

    def __init__(self, ratio: int = 4) -> None:
        self.runs: list[SortedRun] = []
        self.merges = 0
        self.merged_entries = 0
        self._ratio = ratio
        self._min_seq = 0

    def add(self, words: Array, seqs: Array, newest: int) -> None:
        """Add sorted entries as the newest run. `settle` keeps the number of runs small afterwards."""
        if words.size:
            self.runs.append(SortedRun(words, seqs, newest))

    def settle(self, workers: Workers) -> None:
        """Merge until run sizes decrease geometrically again, and few of the entries have expired."""
        while len(self.runs) > 1 and (
            self.runs[-2].words.size <= self._ratio * self.runs[-1].words.size or self._holds_too_many()
        ):
            self._merge(workers)

    def _holds_too_many(self) -> bool:
        held = sum(run.words.size for run in self.runs)
        live = max(run.newest for run in self.runs) + 1 - self._min_seq
        return held > _MOST_HELD * live

    def _merge(self, workers: Workers) -> None:
        """Merge the live entries of the two newest runs; they are cut at common words, two ranges for each worker."""
        older, newer = self.runs[-2:]
        parts = max(1, min(workers.n, older.words.size // _LEAST_PART))
        edges = cut_runs(older.words, newer.words, 2 * parts)

        def count(part: int) -> None:
            for k in (2 * part, 2 * part + 1):
                (a, b, _), (a_end, b_end, _) = edges[k], edges[k + 1]
                edges[k + 1, 2] = count_live(older.seqs[a:a_end], self._min_seq)
                edges[k + 1, 2] += count_live(newer.seqs[b:b_end], self._min_seq)

        workers.map(count, range(parts))
        edges[:, 2] = edges[:, 2].cumsum()
        live = int(edges[-1, 2])
        words, seqs = workers.memory.take(live), workers.memory.take(live)

        def merge(part: int) -> None:
            merge_live(
                older.words, older.seqs, newer.words, newer.seqs, edges[2 * part : 2 * part + 3], self._min_seq,
                words, seqs,
            )  # fmt: skip

        workers.map(merge, range(parts))
        del self.runs[-2:]
        self.merges += 1
        self.merged_entries += live
        self.add(words, seqs, max(older.newest, newer.newest))

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
