"""Finding the pairs of sorted probes and sorted segments, and testing what the index leaves open.

Within a range each pair is found once: left arrivals probe the right rows that the range stores, old and new, and
right arrivals probe the old left rows. So a pair with a new left row is found in the range that owns the right
row, and a pair of a new right row with a stored left one in the range of the left row.

Without a gate, whether two tuples are in each other's window depends on their times alone. With the earlier one on
the left it is r - l <= left window, else l - r <= right window: seen from a probe, one interval of ticks of the
other. Behind a gate every stored tuple comes before every new one, so it must be within reach of the probe; of two
new ones the later must reach back to the earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
_TILE_PROBES, _TILE_STORED = 64, 4096
_places = np.arange(1 << 16, dtype=np.int64)


@dataclass(frozen=True)
class Reach:
    """Behind a gate: how many tuples of the other side come before each probe, and how far back it reaches.

    A tuple of the other side is in its window if its number is at least `least_seq` and its time at least `least`.
    """

    upto: Array
    least_seq: Array
    least: Array

    def take(self, places: Array | slice) -> Reach:
        """The same of some probes."""
        return Reach(self.upto[places], self.least_seq[places], self.least[places])


@dataclass(frozen=True)
class Probes:
    """New rows sorted by word, with the intervals of words, of open terms and of ticks that they match."""

    rows: Segment
    lo: Array
    hi: Array
    bounds: tuple[tuple[Array, Array], ...]
    least: Array
    most: Array
    reach: Reach | None = None

    def chosen(self, own: Array) -> Probes:
        """The rows where `own` is true; a slice where they lie side by side."""
        if own.all():
            return self
        places = np.flatnonzero(own)
        n = places.size
        if n and int(places[-1] - places[0]) + 1 == n:
            begin = int(places[0])
            return self._at(slice(begin, begin + n), self.rows.part(begin, begin + n))
        return self._at(places, self.rows.take(places))

    def _at(self, places: Any, rows: Segment) -> Probes:
        return replace(
            self,
            rows=rows,
            lo=self.lo[places],
            hi=self.hi[places],
            bounds=tuple((lo[places], hi[places]) for lo, hi in self.bounds),
            least=self.least[places],
            most=self.most[places],
            reach=None if self.reach is None else self.reach.take(places),
        )


@dataclass(frozen=True)
class Condition:
    """What is left to test of a candidate: the residual, which may be all there is."""

    residual: Expression | None
    indexed: bool
    probes_left: bool


def tick_bounds(ticks: Array, back: int, ahead: int) -> tuple[Array, Array]:
    """The ticks less `back` and more `ahead`, held at the ends of int64."""
    least = np.where(ticks < _LEAST + back, _LEAST, ticks - back)
    most = np.where(ticks > _MOST - ahead, _MOST, ticks + ahead)
    return least, most


def matches(probes: Probes, stored: Segment | Probes, condition: Condition) -> Iterator[tuple[Array, Array]]:
    """(probe, place among the stored) of every pair that is a result, in batches.

    New rows as the stored ones are given as `Probes`, as they may be the later ones.
    """
    segment = stored.rows if isinstance(stored, Probes) else stored
    n = probes.lo.size
    if n == 0 or segment.n == 0:
        return
    if not condition.indexed:
        yield from _in_tiles(probes, stored, condition)
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
        probe, place = _tested(probes, stored, out_probe[:held], out_place[:held])
        if condition.residual is not None and probe.size:
            keep = _holds(condition, probes.rows.rows, segment.rows, probe, place)
            probe, place = probe[keep], place[keep]
        if probe.size:
            yield probe, place


def _tested(probes: Probes, stored: Segment | Probes, probe: Array, place: Array) -> tuple[Array, Array]:
    segment = stored.rows if isinstance(stored, Probes) else stored
    keep = _in_windows(probes, stored, probe, place)
    for (lo, hi), words in zip(probes.bounds, segment.terms, strict=True):
        word = words[place]
        keep &= (word >= lo[probe]) & (word <= hi[probe])
    if segment.ids is not None and probes.rows.ids is not None:
        keep &= segment.ids[place] != probes.rows.ids[probe]
    return probe[keep], place[keep]


def _in_windows(probes: Probes, stored: Segment | Probes, probe: Array, place: Array) -> Array:
    segment = stored.rows if isinstance(stored, Probes) else stored
    ticks = segment.ticks[place]
    if probes.reach is None:
        return (ticks >= probes.least[probe]) & (ticks <= probes.most[probe])
    if segment.seqs is None or probes.rows.seqs is None:
        raise AssertionError("rows behind a gate without their numbers")
    seqs = segment.seqs[place]
    reached = _reached(probes.reach, probe, seqs, ticks)
    if isinstance(stored, Probes) and stored.reach is not None:
        reached |= _reached(stored.reach, place, probes.rows.seqs[probe], probes.rows.ticks[probe])
    return reached


def _reached(reach: Reach, later: Array, seqs: Array, ticks: Array) -> Array:
    return (seqs < reach.upto[later]) & (seqs >= reach.least_seq[later]) & (ticks >= reach.least[later])


def _in_tiles(probes: Probes, stored: Segment | Probes, condition: Condition) -> Iterator[tuple[Array, Array]]:
    """No word decides anything: evaluate the condition for tiles of probes and stored tuples."""
    segment = stored.rows if isinstance(stored, Probes) else stored
    for begin in range(0, probes.lo.size, _TILE_PROBES):
        rows = np.arange(begin, min(begin + _TILE_PROBES, probes.lo.size))
        found = []
        for first in range(0, segment.n, _TILE_STORED):
            places = np.arange(first, min(first + _TILE_STORED, segment.n))
            probe, place = np.repeat(rows, places.size), np.tile(places, rows.size)
            holds = _grid(condition, probes.rows.rows, segment.rows, rows, places).reshape(-1)
            found.append(_tested(probes, stored, probe[holds], place[holds]))
        probe, place = (np.concatenate(column) for column in zip(*found, strict=True))
        if probe.size:
            yield probe, place


def _grid(condition: Condition, probing: pa.Table, found: pa.Table, rows: Array, places: Array) -> Array:
    shape = (rows.size, places.size)
    if condition.residual is None:
        return np.ones(shape, np.bool_)
    values = {}
    for column in condition.residual.columns:
        probes = (column.qualifier == "l") == condition.probes_left
        table, chosen, fold = (probing, rows, (-1, 1)) if probes else (found, places, (1, -1))
        part = table.column(column.name).slice(int(chosen[0]), chosen.size)
        values[column] = from_arrow(part).reshape(*fold)
    return truth(evaluate(condition.residual, values), shape)


def _holds(condition: Condition, probing: pa.Table, found: pa.Table, probe: Array, place: Array) -> Array:
    if condition.residual is None:
        raise AssertionError("nothing is left to test")
    values = {}
    for column in condition.residual.columns:
        probes = (column.qualifier == "l") == condition.probes_left
        table, chosen = (probing, probe) if probes else (found, place)
        values[column] = from_arrow(table.column(column.name).take(pa.array(chosen)))
    return truth(evaluate(condition.residual, values), (probe.size,))


def _numbered(n: int) -> Array:
    """0, 1, ..., n - 1: the same memory for all that ask."""
    global _places
    if n > _places.size:
        _places = np.arange(1 << (n - 1).bit_length(), dtype=np.int64)
    return _places[:n]
