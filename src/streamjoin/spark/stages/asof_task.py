"""As-of joins in one range: the nearest right row of each left row that the gate has released.

No closer right row can follow a released left row, so each is matched once, in the range that owns it, and its row
leaves in the same batch. By key, the range of a key has all right rows of that key; it stores the newest one before the
times of later left rows, and all newer ones. By any other condition the owner of a left row tests all right rows within
the tolerance: stored ones in the log, also those of other ranges, and new ones, of which it has copies.

Positions of right rows ascend with their times. The nearest row behind is therefore the one with the largest position,
the nearest ahead the one with the smallest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.model.binding import BoundAsOf
from streamjoin.spark.stages.kind_task import RangeRows, found, parts_of, seqs_of
from streamjoin.spark.stages.marks import less
from streamjoin.spark.stages.output import FoundPairs, GatheredRows, TaskRows
from streamjoin.storage.segments import Segment, merged

_NONE = -1


class Nearest(Protocol):
    """The partner of each left row: rows of several segments."""

    @property
    def segments(self) -> Sequence[Segment]:
        """The right rows."""

    @property
    def partner(self) -> tuple[Array, Array]:
        """For each left row the segment of its partner, or -1, and its place there."""


class AsOfRange:
    """One range of an as-of join in one batch; later left rows are not before `low`."""

    def __init__(self, rows: RangeRows, low: int) -> None:
        match = rows.blueprint.bound.match
        if match is None:
            raise AssertionError("an as-of join without a match")
        self._rows = rows
        self._how = rows.blueprint.bound.spec.how
        self.newest = _ByKey(rows, match, low) if match.by_equalities else None
        """The right rows by key, if keys decide."""
        self._nearest: Nearest = self.newest or _ByCondition(rows, match)

    def rows(self) -> Iterator[TaskRows]:
        """The rows of all left rows of the batch."""
        left, keyless = self._rows.new[0].owned.rows, self._rows.new[0].keyless
        of, place = self._nearest.partner
        if self._how != "anti":
            for number, segment in enumerate(self._nearest.segments):
                for some in parts_of(np.flatnonzero(of == number)):
                    own, partners = left.take(some), segment.take(place[some])
                    ticks = np.maximum(own.ticks, partners.ticks)
                    yield GatheredRows(own.rows, partners.rows, ticks, _places(seqs_of(own)))
        if self._how != "inner":
            for some in parts_of(np.flatnonzero(of == _NONE)):
                own = left.take(some)
                yield GatheredRows(own.rows, None, own.ticks, _places(seqs_of(own)))
            if keyless is not None and keyless.ticks.size:
                yield GatheredRows(keyless.rows, None, keyless.ticks, _places(keyless.seqs))


def _places(seqs: Array) -> tuple[Array, Array, Array]:
    nothing = np.zeros(seqs.size, np.int64)
    return seqs, nothing, nothing


class _ByKey:
    """The nearest right row of the same key."""

    def __init__(self, rows: RangeRows, match: BoundAsOf, low: int) -> None:
        self._match = match
        self._low = low
        left = rows.new[0].owned.rows
        right = merged([*rows.old[1], rows.new[1].owned.rows])
        numbers = KeyNumbers(rows.blueprint.bound)
        keys = numbers.number(1, right.rows)
        order = np.argsort(seqs_of(right))
        self._order = order[keys[order] != _NONE]
        self._ticks = right.ticks[self._order]
        # Key and place in one number: sorted, the places of one key are adjacent and ascend.
        self._width = self._order.size + 1
        self._entries = np.sort(keys[self._order] * self._width + np.arange(self._order.size))
        self.segments = (right,)
        self.partner = self._choose(numbers.number(0, left.rows), left.ticks)

    @property
    def kept(self) -> Segment:
        """The right rows that later left rows may match, sorted by word."""
        match, right = self._match, self.segments[0]
        first = int(np.searchsorted(self._ticks, self._low))
        needed = np.zeros(self._order.size, np.bool_)
        needed[first:] = True
        if match.direction != "forward":
            keys, places = self._entries // self._width, self._entries % self._width
            keys, places = keys[places < first], places[places < first]
            last = np.ones(keys.size, np.bool_)
            last[:-1] = keys[1:] != keys[:-1]
            newest = places[last]
            if match.tolerance is not None:
                newest = newest[self._ticks[newest] >= less(self._low, match.tolerance)]
            needed[newest] = True
        return right.take(np.sort(self._order[needed]))

    def _choose(self, keys: Array, ticks: Array) -> tuple[Array, Array]:
        match, known = self._match, keys != _NONE
        behind = ahead = np.full(keys.size, _NONE)
        if match.direction != "forward":
            upto = np.searchsorted(self._ticks, ticks, side="right" if match.exact else "left")
            behind = self._entry(keys, np.searchsorted(self._entries, keys * self._width + upto) - 1)
        if match.direction != "backward":
            since = np.searchsorted(self._ticks, ticks, side="left" if match.exact else "right")
            ahead = self._entry(keys, np.searchsorted(self._entries, keys * self._width + since))
        behind, ahead = (np.where(known, places, _NONE) for places in (behind, ahead))
        place = _chosen(match, ticks, self._ticks, behind, ahead)
        partner = np.where(place == _NONE, _NONE, 0)
        return partner, self._order[place] if self._order.size else place

    def _entry(self, keys: Array, at: Array) -> Array:
        """The places of the entries at `at`, where they have the key."""
        inside = (at >= 0) & (at < self._entries.size)
        if not inside.any():
            return np.full(at.size, _NONE)
        entries = self._entries[np.where(inside, at, 0)]
        return np.where(inside & (entries // self._width == keys), entries % self._width, _NONE)


def _chosen(match: BoundAsOf, ticks: Array, right_ticks: Array, behind: Array, ahead: Array) -> Array:
    """Of the neighbours, as places in `right_ticks`, the one that the match takes, or -1."""
    distances = []
    for places in (behind, ahead):
        if not right_ticks.size:
            return np.full(ticks.size, _NONE)
        # Unsigned: a distance may be longer than half of all times.
        theirs = right_ticks[places].astype(np.uint64)
        own = ticks.astype(np.uint64)
        distances.append(own - theirs if places is behind else theirs - own)
    if match.tolerance is not None:
        behind, ahead = (
            np.where(distance <= np.uint64(match.tolerance), places, _NONE)
            for places, distance in zip((behind, ahead), distances, strict=True)
        )
    closer = (behind == _NONE) | ((ahead != _NONE) & (distances[1] < distances[0]))
    return np.where(closer, ahead, behind)


class _ByCondition:
    """The nearest of the right rows within the tolerance for which the condition holds."""

    def __init__(self, rows: RangeRows, match: BoundAsOf) -> None:
        left, right = rows.new[0].owned, rows.new[1].probes
        self.segments: list[Segment] = []
        n = left.rows.n
        # For the nearest behind and ahead: its position, its segment, its place there, and its time.
        self._best = [[np.full(n, _NONE) for _ in range(4)] for _ in range(2)]
        reaching = rows.reaching(left)
        everywhere, outside = np.arange(n), np.flatnonzero(reaching)
        for segment in (*rows.old[1], right.rows):
            for pairs in found(rows.blueprint, left, segment, 0):
                self._note(pairs, everywhere, match)
        for pairs in rows.pairs_beside(0, left.chosen(reaching)):
            self._note(pairs, outside, match)
        behind, ahead = self._best
        ticks = np.concatenate([behind[3], ahead[3]])
        places = [np.where(best[0] == _NONE, _NONE, np.arange(n) + n * i) for i, best in enumerate(self._best)]
        place = _chosen(match, left.rows.ticks, ticks, places[0], places[1])
        of, at = (np.concatenate([behind[i], ahead[i]]) for i in (1, 2))
        self.partner = (np.where(place == _NONE, _NONE, of[place]), at[place]) if n else (of, at)

    def _note(self, pairs: FoundPairs, rows: Array, match: BoundAsOf) -> None:
        """Take the pairs that are nearer than those before them; `rows` are the left rows of the probes."""
        stored, left = pairs.stored, rows[pairs.probe]
        if not self.segments or self.segments[-1] is not stored:
            self.segments.append(stored)
        seqs, ticks = seqs_of(stored)[pairs.place], stored.ticks[pairs.place]
        own = pairs.probes.rows.ticks[pairs.probe]
        for sign, timely in ((1, ticks < own), (-1, ticks > own)):
            best = self._best[0 if sign > 0 else 1]
            good = timely | ((ticks == own) & match.exact)
            known = best[0][left]
            good &= (known == _NONE) | (sign * seqs > sign * known)
            at = np.flatnonzero(good)
            at = at[np.lexsort((sign * seqs[at], left[at]))]
            last = np.ones(at.size, np.bool_)
            last[:-1] = left[at[1:]] != left[at[:-1]]
            at = at[last]
            for values, array in zip(
                (seqs, np.full(seqs.size, len(self.segments) - 1), pairs.place, ticks), best, strict=True
            ):
                array[left[at]] = values[at]
