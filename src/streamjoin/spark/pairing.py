"""Finding the pairs of sorted probes and sorted segments, and testing what the index leaves open.

Within a range each pair is found once: left arrivals probe the right rows that the range owns, stored and new, and
right arrivals probe the stored left rows that it owns. So a pair with a new left row is found in the range that
owns the right row's word, and a pair of a new right row with a stored left one in the range of the left row's.

Whether two tuples are in each other's window depends on their times alone. With the earlier one on the left it
is r - l <= left window, else l - r <= right window: seen from a probe, one interval of ticks of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.kernels.sweep import sweep_run
from streamjoin.model.evaluation import evaluate, from_arrow, truth
from streamjoin.model.expression import Expression
from streamjoin.spark.segments import Segment

Array = np.ndarray[Any, np.dtype[Any]]

CAPACITY = 1 << 18
"""Candidates held at once; results leave in batches of at most this many rows."""

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_places = np.arange(1 << 16, dtype=np.int64)


@dataclass(frozen=True)
class Probes:
    """New rows sorted by word, with the intervals of words, of open terms and of ticks that they match."""

    rows: Segment
    lo: Array
    hi: Array
    bounds: tuple[tuple[Array, Array], ...]
    least: Array
    most: Array


def tick_bounds(ticks: Array, back: int, ahead: int) -> tuple[Array, Array]:
    """The ticks less `back` and more `ahead`, held at the ends of int64."""
    least = np.where(ticks < _LEAST + back, _LEAST, ticks - back)
    most = np.where(ticks > _MOST - ahead, _MOST, ticks + ahead)
    return least, most


def matches(probes: Probes, segment: Segment) -> Iterator[tuple[Array, Array]]:
    """(probe, place in the segment) of every pair that the words and times allow, in batches."""
    n = probes.lo.size
    if n == 0 or segment.n == 0:
        return
    places = _numbered(segment.n)
    numbers = _numbered(n)
    anything = np.zeros(n, np.int64)
    cursor = np.array([0, 0, -1], np.int64)
    out_probe, out_place = np.empty(CAPACITY, np.int64), np.empty(CAPACITY, np.int64)
    while cursor[0] < n:
        held = sweep_run(
            probes.lo, probes.hi, numbers, anything, segment.words, places,
            cursor, n, out_probe, out_place, 0,
        )  # fmt: skip
        pairs = _tested(probes, segment, out_probe[:held], out_place[:held])
        if pairs[0].size:
            yield pairs


def _tested(probes: Probes, segment: Segment, probe: Array, place: Array) -> tuple[Array, Array]:
    ticks = segment.ticks[place]
    keep = (ticks >= probes.least[probe]) & (ticks <= probes.most[probe])
    for (lo, hi), words in zip(probes.bounds, segment.terms, strict=True):
        word = words[place]
        keep &= (word >= lo[probe]) & (word <= hi[probe])
    if segment.ids is not None and probes.rows.ids is not None:
        keep &= segment.ids[place] != probes.rows.ids[probe]
    return probe[keep], place[keep]


def holds(residual: Expression, left: pa.Table, right: pa.Table) -> Array:
    """Which rows of two tables of equal length satisfy `residual`."""
    values = {
        column: from_arrow((left if column.qualifier == "l" else right).column(column.name))
        for column in residual.columns
    }
    return truth(evaluate(residual, values), (left.num_rows,))


def _numbered(n: int) -> Array:
    """0, 1, ..., n - 1: the same memory for all that ask."""
    global _places
    if n > _places.size:
        _places = np.arange(1 << (n - 1).bit_length(), dtype=np.int64)
    return _places[:n]
