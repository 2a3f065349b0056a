"""Sums and best values of ranges of rows that lie next to each other.

Either is made once, of rows that never change, and answers for any ranges: a sum is the difference of two prefix sums,
which are exact, and the best value is found on a ladder. So the cost does not depend on how long ranges are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.exact import Layout, accumulate, differences, take_away
from streamjoin.kernels.kinds.ladder import RUNGS, best_of_ranges, climb
from streamjoin.kernels.kinds.summary import NONE


@dataclass(frozen=True)
class Ranges:
    """Ranges of rows, none of them empty: the first and the last one of each, and one between that does not count."""

    first: Array
    last: Array
    hole: Array

    @classmethod
    def whole(cls, first: Array, last: Array) -> Ranges:
        """Ranges in which all rows count."""
        return cls(first, last, np.full(first.size, NONE, np.int64))

    def keep(self, places: Array) -> Ranges:
        """Some of the ranges."""
        return Ranges(self.first[places], self.last[places], self.hole[places])

    @property
    def sizes(self) -> Array:
        """How many rows count in each."""
        sizes: Array = self.last - self.first + 1 - (self.hole != NONE)
        return sizes


class RangeCounts:
    """How many rows of a range there are, where each stands for a number of them."""

    def __init__(self, counts: Array) -> None:
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def of(self, ranges: Ranges) -> Array:
        """The number of each range."""
        before = self._before
        counts: Array = before[ranges.last + 1] - before[ranges.first]
        holes = np.flatnonzero(ranges.hole != NONE)
        places = ranges.hole[holes]
        counts[holes] -= before[places + 1] - before[places]
        return counts

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self._before.nbytes)


class RangeSums:
    """Exact sums."""

    def __init__(self, rows: Array, layout: Layout) -> None:
        """Begin with the sums of the single rows."""
        self.layout = layout
        self._before = np.concatenate([layout.rows(1), rows])
        accumulate(self._before, layout.head)

    def of(self, ranges: Ranges) -> Array:
        """The sum of each range, as rows of the layout."""
        head, out = self.layout.head, self.layout.rows(ranges.first.size)
        differences(self._before, ranges.last + 1, ranges.first, head, out)
        holes = np.flatnonzero(ranges.hole != NONE)
        if holes.size:
            own, places = self.layout.rows(holes.size), ranges.hole[holes]
            differences(self._before, places + 1, places, head, own)
            take_away(own, holes, out, head)
        return out

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self._before.nbytes)


class RangeBests:
    """The rows with the least words."""

    def __init__(self, words: Array, present: Array) -> None:
        self._ladder = np.empty((words.size, RUNGS), np.int64)
        climb(words, present, self._ladder)

    def of(self, ranges: Ranges) -> Array:
        """The place of the best row of each range; NONE where no row is present."""
        out = np.empty(ranges.first.size, np.int64)
        best_of_ranges(self._ladder, ranges.first, ranges.last, ranges.hole, out)
        return out

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self._ladder.nbytes)
