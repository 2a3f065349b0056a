"""Intervals as words: where one begins and ends, and its class by length.

Class k holds the intervals that are from 2^(k-1) to 2^k - 1 words long, class 0 points. An interval of class k that
meets another begins at most 2^k - 1 words before it and not behind its end. So the intervals of one class, sorted by
where they begin, are looked up as a band, and on average at least half of the candidates match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.binding import IntervalPlan
from streamjoin.windows.words import TermWords

NO_CLASS = 255
"""The class of a tuple without an interval: a NULL or NaN is one of its ends, and it meets nothing."""

_MIN = np.int64(-(1 << 63))


def ends(terms: Sequence[TermWords], plan: IntervalPlan) -> tuple[Array, Array]:
    """The begins and ends of the intervals that the two terms of `plan` bound.

    Of l.a <= r.d and l.b >= r.c the left interval is from a to b, the right one from c to d. One that ends before it
    begins may match too, where a condition is not about intervals; turned round it finds the same candidates.
    """
    upper, lower = terms[plan.upper].word, terms[plan.lower].word
    return np.minimum(upper, lower), np.maximum(upper, lower)


def length_classes(begin: Array, end: Array) -> Array:
    """The class of each interval: the number of bits of its length."""
    # Unsigned: the distance of two int64 may not fit an int64.
    lengths = (end - begin).view(np.uint64)
    bits = np.minimum(np.frexp(lengths.astype(np.float64))[1], 64).astype(np.uint8)
    # Rounding to a float may reach the next power of two.
    too_long = (bits > 0) & (lengths < np.left_shift(np.uint64(1), (np.maximum(bits, 1) - 1).astype(np.uint64)))
    return np.where(too_long, bits - 1, bits).astype(np.uint8)


def low_ends(begin: Array, length_class: int) -> Array:
    """The earliest begins of intervals of a class, or of a shorter one, that meet what begins at `begin`."""
    reach = np.uint64((1 << length_class) - 1)
    before = (begin.view(np.uint64) ^ np.uint64(1 << 63)) < reach
    return np.where(before, _MIN, (begin.view(np.uint64) - reach).view(np.int64))


@dataclass(frozen=True)
class Lookups:
    """What an index by classes costs: the classes of both sides, and the share of the other side that a tuple meets."""

    classes: int
    share: float

    @staticmethod
    def of(samples: Sequence[tuple[Array, Array]]) -> Lookups | None:
        """Estimate from some intervals of each side, as begins and ends; None if a side has none."""
        if not all(begin.size for begin, _ in samples):
            return None
        number, candidates = 0, 0
        for (begin, end), (other, other_end) in (samples, samples[::-1]):
            classes = length_classes(other, other_end)
            for kind in np.unique(classes).tolist():
                others = other[classes == kind]
                # As `IntervalSweep` looks them up: those that begin between the earliest begin and the end of a probe.
                low = low_ends(begin, kind)
                candidates += int(np.count_nonzero((low[:, None] <= others) & (others <= end[:, None])))
                number += 1
        return Lookups(number, candidates / (2 * samples[0][0].size * samples[1][0].size))


def by_class(classes: Array) -> Iterator[tuple[int, Array | slice]]:
    """Each class and the places of its tuples, in their order; a slice if all are of one class."""
    if classes.size and classes.min() == classes.max():
        yield int(classes[0]), slice(None)
        return
    order = np.argsort(classes, kind="stable")
    sizes = np.bincount(classes, minlength=1)
    begin = 0
    for number in np.flatnonzero(sizes).tolist():
        yield number, order[begin : begin + sizes[number]]
        begin += sizes[number]
