"""A side's window as a few sorted runs, which the sweep reads.

Each chunk adds one run, as new tuples go to PIM-Tree's T_I. A run is merged with the one before it once it is no
longer much smaller, and expired entries are dropped, as T_I is merged into T_S (PIM-Tree, section 3.3). Run sizes
decrease geometrically, so there are O(log(window / chunk)) runs and each tuple is moved that often.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from streamjoin._arrays import Array
from streamjoin.kernels.batch.sorting import lower_bound, merged_entries


@dataclass(frozen=True)
class SortedRun:
    """Entries (word, seq) sorted by word, equal words by seq; `newest` is the largest seq."""

    words: Array
    seqs: Array
    newest: int


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

    def due(self) -> bool:
        """Whether the two newest runs should become one."""
        return len(self.runs) > 1 and self.runs[-2].words.size <= self._ratio * self.runs[-1].words.size

    def pieces(self, parts: int) -> list[tuple[int, int, int, int]]:
        """The two newest runs cut at common words into `parts` ranges that can be merged independently."""
        older, newer = self.runs[-2], self.runs[-1]
        edges = [(0, 0)]
        for part in range(1, parts):
            a = older.words.size * part // parts
            # Equal words must not straddle a cut; otherwise the older run's entries would not come first.
            a = lower_bound(older.words, older.words[a]) if a < older.words.size else a
            b = lower_bound(newer.words, older.words[a]) if a < older.words.size else newer.words.size
            edges.append((a, b))
        edges.append((older.words.size, newer.words.size))
        return [(a, a2, b, b2) for (a, b), (a2, b2) in pairwise(edges)]

    def merge_piece(self, piece: tuple[int, int, int, int]) -> tuple[Array, Array]:
        """Merge the live entries of one piece; pieces can be merged in parallel."""
        a, a2, b, b2 = piece
        older, newer = self.runs[-2], self.runs[-1]
        return merged_entries(
            (older.words[a:a2], older.seqs[a:a2]), (newer.words[b:b2], newer.seqs[b:b2]), self._min_seq
        )

    def replace_merged(self, words: Array, seqs: Array) -> None:
        """Replace the two newest runs by the merged entries."""
        newest = max(self.runs[-1].newest, self.runs[-2].newest)
        del self.runs[-2:]
        self.merges += 1
        self.merged_entries += words.size
        if words.size:
            self.runs.append(SortedRun(words, seqs, newest))

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
        return sum(run.words.nbytes + run.seqs.nbytes for run in self.runs)
