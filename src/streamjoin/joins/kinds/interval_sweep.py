"""`interval`: the sweep for conditions on intervals, such as `l.t BETWEEN r.lo AND r.hi`.

Each tuple has an interval of words, or a point, which is one of length 0. The stored tuples of a side are in classes by
the length of their intervals (`windows/intervals.py`), each in sorted runs by start, and a probe looks up a band of
each class. Candidates are few whatever the mix of lengths; the exact terms decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.indexes.sorted_runs import SortedRun, SortedRuns, settle
from streamjoin.joins.base import Chunk, Pairs, Refine, SidePart
from streamjoin.joins.batch.packed_pairs import PackedPairs, PairOrder, ordered
from streamjoin.joins.batch.sweep import LEAST_PART, Sweep
from streamjoin.joins.registry import register_algorithm
from streamjoin.kernels.batch.sorting import sort_entries, tops_of
from streamjoin.kernels.batch.sweep import arrange, sweep_batch, sweep_run
from streamjoin.model.binding import BoundSpec, IntervalPlan
from streamjoin.windows.buffer import Restore
from streamjoin.windows.intervals import by_class, ends, length_classes, low_ends
from streamjoin.windows.workers import Workers, cuts


@dataclass(frozen=True)
class _ClassProbes:
    """Tuples of one side of a chunk, sorted by the starts of their intervals, as probes of one class of the other."""

    words: Array
    lo: Array
    hi: Array
    probes: Array
    live: Array
    seqs: Array

    def over_run(self, part: tuple[int, int], run: SortedRun, base: int, pairs: PackedPairs) -> None:
        """Sweep some of the tuples over a run."""
        cursor = np.array([part[0], -1], np.int64)
        while cursor[0] < part[1]:
            pairs.n = sweep_run(
                self.lo, self.hi, self.probes, self.live, run.words, run.seqs, run.tops, base,
                cursor, part[1], pairs.block, pairs.n,
            )  # fmt: skip
            if cursor[0] < part[1]:
                pairs.flush()

    def over(self, part: tuple[int, int], chunk: Chunk, other: _ClassProbes, pairs: PackedPairs) -> None:
        """Sweep some of the tuples over the other side of the chunk."""
        cursor, tops = np.array([part[0], -1], np.int64), tops_of(other.words)
        while cursor[0] < part[1]:
            pairs.n = sweep_batch(
                self.lo, self.hi, self.probes, self.seqs, chunk.min_seq, chunk.upto, other.words, other.probes,
                other.seqs, tops, pairs.order.bases, cursor, part[1], pairs.block, pairs.n,
            )  # fmt: skip
            if cursor[0] < part[1]:
                pairs.flush()


class _Intervals:
    """One side's tuples of a chunk, sorted by the start of their intervals."""

    def __init__(self, part: SidePart, min_seq: Array, plan: IntervalPlan) -> None:
        start, end = ends(part.encoded.terms, plan)
        places = part.valid_places()
        self.words, places = sort_entries(start[places], places)
        unused, self.end, self.probes, self.live, self.seqs = (np.empty(places.size, np.int64) for _ in range(5))
        arrange(
            places, start, end, part.at, min_seq, part.first_seq, unused, self.end, self.probes, self.live, self.seqs
        )
        self.classes = length_classes(self.words, self.end)

    def reaching(self, length_class: int) -> _ClassProbes:
        """As probes of the intervals of one class."""
        low = low_ends(self.words, length_class)
        return _ClassProbes(self.words, low, self.end, self.probes, self.live, self.seqs)


class IntervalSweep(Sweep):
    """The sweep over classes of intervals."""

    name: ClassVar[str] = "interval"

    def __init__(self, bound: BoundSpec, workers: Workers) -> None:
        super().__init__(bound, workers)
        if bound.intervals is None:
            raise AssertionError("no interval to look up")
        self._plan = bound.intervals
        self._stored: tuple[dict[int, SortedRuns], dict[int, SortedRuns]] = ({}, {})
        self.decides = frozenset()

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Pair the chunk with both windows and with itself, then add it to them."""
        sides = [_Intervals(part, chunk.min_seq, self._plan) for part in (chunk.left, chunk.right)]
        order = PairOrder(chunk, (sides[0].live, sides[1].live), refine, self._workers)
        collected = [PackedPairs(order)] if chunk.stored_only else self._sweep(chunk, order, sides)
        for side, stored in zip(sides, self._stored, strict=True):
            for kind, places in by_class(side.classes):
                runs = stored.setdefault(kind, SortedRuns())
                runs.add(side.words[places], side.seqs[places], int(side.seqs[places].max()))
        return ordered(order, [block for pairs in collected for block in pairs.blocks])

    def _sweep(self, chunk: Chunk, order: PairOrder, sides: list[_Intervals]) -> list[PackedPairs]:
        left, right = sides
        stored = [
            (side.reaching(kind), run, base)
            for side, others, base in (
                (left, self._stored[1], order.bases[1]),
                (right, self._stored[0], order.bases[0]),
            )
            for kind, runs in others.items()
            for run in runs.runs
        ]
        arriving = []
        for kind, places in by_class(right.classes):
            others = _ClassProbes(
                right.words[places], right.words[places], right.end[places], right.probes[places], right.live[places],
                right.seqs[places],
            )  # fmt: skip
            arriving.append((left.reaching(kind), others))
        parts = max(1, min(self._workers.n, max(left.words.size, right.words.size) // LEAST_PART))

        def sweep_part(part: int) -> PackedPairs:
            pairs = PackedPairs(order).open()
            for probes, run, base in stored:
                probes.over_run(_share(probes, parts, part), run, base, pairs)
            for probes, others in arriving:
                probes.over(_share(probes, parts, part), chunk, others, pairs)
            pairs.close()
            return pairs

        return self._workers.map(sweep_part, range(parts))

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        for stored, least in zip(self._stored, (left_min, right_min), strict=True):
            for kind, runs in list(stored.items()):
                runs.forget(least)
                settle([runs], self._workers)
                if not runs.runs:
                    del stored[kind]

    def saved(self) -> Restore:
        """Return a function that restores both windows."""
        stored = self._stored
        kept = tuple(dict(side) for side in stored)
        parts = [runs.saved() for side in kept for runs in side.values()]

        def restore() -> None:
            for side, before in zip(stored, kept, strict=True):
                side.clear()
                side.update(before)
            for part in parts:
                part()

        return restore

    def counters(self) -> dict[str, int]:
        """Merges, runs and classes."""
        all_runs = [runs for side in self._stored for runs in side.values()]
        return {
            "merges": sum(runs.merges for runs in all_runs),
            "runs": sum(len(runs.runs) for runs in all_runs),
            "classes": len(all_runs),
        }

    @property
    def nbytes(self) -> int:
        """Bytes held by the runs of both sides."""
        return sum(runs.nbytes for side in self._stored for runs in side.values())


def _share(probes: _ClassProbes, parts: int, part: int) -> tuple[int, int]:
    ranges = cuts(probes.words.size, parts)
    return ranges[part] if part < len(ranges) else (0, 0)


register_algorithm(
    IntervalSweep.name,
    lambda bound, _, workers: IntervalSweep(bound, workers),
    needs_interval=True,
    kernel=lambda _: sweep_run,
)
