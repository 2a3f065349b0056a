"""Finds the pairs of sorted probes and sorted segments, and tests the terms that the index does not decide.

Within a range each pair is found once: left arrivals probe the right rows that the range stores, old and new, and
right arrivals probe the old left rows. So a pair with a new left row is found in the range that owns the right
row, and a pair of a new right row with a stored left one in the range of the left row.

Without a gate, whether two tuples are in each other's window depends on their times alone. With the earlier one on
the left it is r - l <= left window, else l - r <= right window: seen from a probe, one interval of ticks of the
other. After a gate the earlier tuple must be in the window of the later one, by time or by count: a probe matches
earlier tuples only, so of two new rows either may be the probe.

In a join on intervals words are where intervals begin. A probe looks up the rows of each class by length as a band.
Without a gate it is not known how far new rows reach back, so a pair of two new rows is found in the range that owns
the one that begins later, or the right one if both begin at the same word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.batch.sweep import age_blocks, sweep_within
from streamjoin.model.expression.evaluation import Values, from_arrow, grid_holds, holds
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.storage.ranges import MOST
from streamjoin.storage.segments import Segment
from streamjoin.windows.clock import minus, plus
from streamjoin.windows.encoding import read_only
from streamjoin.windows.intervals import NO_CLASS, by_class, low_ends

CAPACITY = 1 << 18
"""Candidates in memory at once; results leave in batches of at most this many rows."""

_TILE_PROBES, _TILE_STORED = 64, 4096


@dataclass(frozen=True)
class SortedProbes:
    """New rows sorted by word, with the intervals of words, of open terms and of ticks that they match.

    After a gate, `upto` is how many tuples of the other side come before each row, and `first` the position of the
    first of them in the row's count window.
    """

    rows: Segment
    lo: Array
    hi: Array
    bounds: tuple[tuple[Array, Array], ...]
    since: Array
    until: Array
    first: Array | None = None
    upto: Array | None = None

    def chosen(self, own: Array) -> SortedProbes:
        """The rows where `own` is true; a slice if they are adjacent."""
        if own.all():
            return self
        places = np.flatnonzero(own)
        n = places.size
        if n and int(places[-1] - places[0]) + 1 == n:
            begin = int(places[0])
            return self._at(slice(begin, begin + n), self.rows.part(begin, begin + n))
        return self._at(places, self.rows.take(places))

    def _at(self, places: Any, rows: Segment) -> SortedProbes:
        return replace(
            self,
            rows=rows,
            lo=self.lo[places],
            hi=self.hi[places],
            bounds=tuple((lo[places], hi[places]) for lo, hi in self.bounds),
            since=self.since[places],
            until=self.until[places],
            first=None if self.first is None else self.first[places],
            upto=None if self.upto is None else self.upto[places],
        )

    def ages(self, segment: Segment) -> Ages:
        """The intervals of ticks and of positions in which stored rows are in the window."""
        if self.first is None or self.upto is None:
            return Ages(self.since, self.until, self.since, self.until, segment.ticks, segment.ticks)
        if segment.seqs is None:
            raise AssertionError("rows behind a gate without their numbers")
        return Ages(self.since, self.until, self.first, self.upto - 1, segment.ticks, segment.seqs)


class Ages(NamedTuple):
    """Intervals of ticks and positions, one of each per probe, and the ticks and positions of the stored rows.

    Without a gate there are no positions, and the ticks take their place.
    """

    since: Array
    until: Array
    first: Array
    last: Array
    ticks: Array
    seqs: Array

    def hold(self, probe: Array, place: Array) -> Array:
        """Whether each pair is within the window."""
        ticks, seqs = self.ticks[place], self.seqs[place]
        timely = (ticks >= self.since[probe]) & (ticks <= self.until[probe])
        return timely & (seqs >= self.first[probe]) & (seqs <= self.last[probe])

    def may_hold(self, probes: slice, stored: slice) -> bool:
        """Whether a pair of some of the probes and some of the stored rows may be within the window."""
        ticks, seqs = self.ticks[stored], self.seqs[stored]
        timely = ticks.max() >= self.since[probes].min() and ticks.min() <= self.until[probes].max()
        return bool(timely and seqs.max() >= self.first[probes].min() and seqs.min() <= self.last[probes].max())


@dataclass(frozen=True)
class ResidualTest:
    """The residual test of a candidate, which may be the whole condition."""

    residual: Expression | None
    indexed: bool
    probes_left: bool
    by_class: bool = False
    """Whether rows are looked up by the classes of their intervals, instead of by the probes' own low ends."""


def tick_bounds(ticks: Array, back: int, ahead: int) -> tuple[Array, Array]:
    """The ticks minus `back` and plus `ahead`, limited to int64."""
    return minus(ticks, back), plus(ticks, ahead)


def matches(probes: SortedProbes, stored: Segment, condition: ResidualTest) -> Iterator[tuple[Array, Array]]:
    """(probe, position among the stored rows) of every result pair, in batches."""
    if probes.lo.size == 0 or stored.n == 0:
        return
    if condition.by_class:
        pairs = _swept_by_class(probes, stored)
    else:
        pairs = _swept(probes, stored) if condition.indexed else _in_tiles(probes, stored, condition)
    for probe, place in pairs:
        probe, place = _tested(probes, stored, probe, place)
        if condition.indexed and condition.residual is not None and probe.size:
            keep = _holds(condition, probes.rows.rows, stored.rows, probe, place)
            probe, place = probe[keep], place[keep]
        if probe.size:
            yield probe, place


def _swept_by_class(probes: SortedProbes, stored: Segment) -> Iterator[tuple[Array, Array]]:
    """The pairs in each other's window whose intervals may meet."""
    if stored.classes is None or probes.rows.classes is None:
        raise AssertionError("rows of a join on intervals without their classes")
    for length_class, places in by_class(stored.classes):
        if length_class == NO_CLASS:
            continue
        begins = probes.rows.words
        lo = np.where(probes.rows.classes == NO_CLASS, 1, low_ends(begins, length_class))
        if isinstance(places, slice):
            yield from _swept(replace(probes, lo=lo), stored)
            continue
        seqs = None if stored.seqs is None else stored.seqs[places]
        of_class = replace(stored, words=stored.words[places], ticks=stored.ticks[places], seqs=seqs)
        for probe, place in _swept(replace(probes, lo=lo), of_class):
            yield probe, places[place]


def after_begin(probes: SortedProbes, *, strictly: bool) -> SortedProbes:
    """`probes` of intervals, which match rows that begin where they begin or later, or `strictly` later."""
    begins = probes.rows.words
    if not strictly:
        return replace(probes, lo=begins)
    # Nothing begins after the last word.
    end = begins == MOST
    return replace(probes, lo=begins + ~end, hi=np.where(end, begins - 1, probes.hi))


def _swept(probes: SortedProbes, stored: Segment) -> Iterator[tuple[Array, Array]]:
    """The pairs in each other's window whose words match."""
    ages, blocks = Ages(*map(read_only, probes.ages(stored))), age_blocks(stored.words.size)
    lo, hi, words = map(read_only, (probes.lo, probes.hi, stored.words))
    cursor = np.array([0, 0, -1], np.int64)
    out_probe, out_place = np.empty(CAPACITY, np.int64), np.empty(CAPACITY, np.int64)
    while cursor[0] < lo.size:
        count = sweep_within(lo, hi, *ages[:4], words, ages.ticks, ages.seqs, *blocks, cursor, out_probe, out_place)
        yield out_probe[:count], out_place[:count]


def _tested(probes: SortedProbes, stored: Segment, probe: Array, place: Array) -> tuple[Array, Array]:
    """The pairs whose other terms match too, without pairs of a tuple with itself."""
    if not probes.bounds and stored.ids is None:
        # The arrays are reused.
        return probe.copy(), place.copy()
    keep = np.ones(probe.size, np.bool_)
    for (lo, hi), words in zip(probes.bounds, stored.terms, strict=True):
        word = words[place]
        keep &= (word >= lo[probe]) & (word <= hi[probe])
    if stored.ids is not None and probes.rows.ids is not None:
        keep &= stored.ids[place] != probes.rows.ids[probe]
    # Always copies, because the arrays are reused.
    return probe[keep], place[keep]


def _in_tiles(probes: SortedProbes, stored: Segment, condition: ResidualTest) -> Iterator[tuple[Array, Array]]:
    """Without an index: evaluate the condition on tiles of probes and stored tuples that are close enough in age."""
    ages = probes.ages(stored)
    for begin in range(0, probes.lo.size, _TILE_PROBES):
        rows = slice(begin, min(begin + _TILE_PROBES, probes.lo.size))
        pairs = []
        for first in range(0, stored.n, _TILE_STORED):
            places = slice(first, min(first + _TILE_STORED, stored.n))
            if ages.may_hold(rows, places):
                probe, place = np.nonzero(_grid(condition, probes.rows.rows, stored.rows, rows, places))
                probe, place = probe + begin, place + first
                keep = ages.hold(probe, place)
                pairs.append((probe[keep], place[keep]))
        if pairs:
            probe, place = (np.concatenate(column) for column in zip(*pairs, strict=True))
            yield probe, place


def _grid(condition: ResidualTest, probing: pa.Table, stored: pa.Table, rows: slice, places: slice) -> Array:
    shape = (rows.stop - rows.start, places.stop - places.start)
    if condition.residual is None:
        return np.ones(shape, np.bool_)
    first = "l" if condition.probes_left else "r"

    def read(column: Column) -> Values:
        table, part = (probing, rows) if column.qualifier == first else (stored, places)
        return from_arrow(table.column(column.name).slice(part.start, part.stop - part.start))

    return grid_holds(condition.residual, read, first, shape)


def _holds(condition: ResidualTest, probing: pa.Table, stored: pa.Table, probe: Array, place: Array) -> Array:
    if condition.residual is None:
        raise AssertionError("nothing is left to test")
    first = "l" if condition.probes_left else "r"

    def read(column: Column) -> Values:
        table, places = (probing, probe) if column.qualifier == first else (stored, place)
        return from_arrow(table.column(column.name).take(pa.array(places)))

    return holds(condition.residual, read, probe.size)
