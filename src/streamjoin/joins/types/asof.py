"""As-of joins: which right tuple is the nearest, when that is settled, and which right tuples later left ones need.

Of right tuples with equal times the last in gate order is the nearest behind, the first the nearest ahead; of two that
are equally far the one behind is taken. A tuple of the same time is behind, where only those ahead count it is ahead.

The embedded engine has the same rules as kernels (`kernels/kinds/asof.py`), as it takes tuples in the order of time and
settles each once. Distances are unsigned and bounds saturated: times may be at either end of int64.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.binding import BoundAsOf
from streamjoin.model.window import LONGEST
from streamjoin.windows.clock import apart, less

NONE = -1
"""In place of a right tuple: there is none."""


def span(match: BoundAsOf) -> tuple[int, int]:
    """How far behind and ahead of a left tuple its partner may be."""
    tolerance = LONGEST if match.tolerance is None else match.tolerance
    return 0 if match.direction == "forward" else tolerance, 0 if match.direction == "backward" else tolerance


def oldest(match: BoundAsOf, low: int) -> int:
    """The earliest time of a right tuple that a left one at `low` or later may take."""
    return less(low, span(match)[0])


def settled(match: BoundAsOf, ticks: Array, found: Array, theirs: Array, bound: int) -> Array:
    """Whether no right tuple at `bound` or later can change a left tuple's partner.

    `found` are the places of the left tuples that have a partner so far, `theirs` the times of these partners.
    """
    if match.direction == "backward":
        return ticks < bound if match.exact else ticks <= bound
    done: Array = ticks < less(bound, span(match)[1])
    if match.direction == "forward":
        # What is still to come is not before the partner, and of equal times the first one counts.
        done[found] |= theirs <= bound
    else:
        # What is still to come is ahead, and not nearer than the partner.
        own = ticks[found]
        done[found] |= (own < bound) & (apart(own, theirs) <= apart(own, np.int64(bound)))
    return done


def nearest_pairs(match: BoundAsOf, left: Array, ticks: Array, order: Array, theirs: Array) -> Array:
    """The pairs that the match takes, at most one for each number in `left`: their places, ascending by that number.

    `ticks` and `theirs` are the times of the left and the right tuple of each pair; `order` is the right one's place in
    gate order.
    """
    near = np.flatnonzero(_counts(match, ticks, theirs))
    left, order, away = left[near], order[near], apart(ticks[near], theirs[near])
    ahead = (theirs[near] > ticks[near]) | (match.direction == "forward")
    by_distance = np.lexsort((np.where(ahead, order, -order), ahead, away, left))
    near, left = near[by_distance], left[by_distance]
    first = np.ones(near.size, np.bool_)
    first[1:] = left[1:] != left[:-1]
    return near[first]


def _counts(match: BoundAsOf, ticks: Array, theirs: Array) -> Array:
    """Whether the direction and the tolerance allow each pair of times."""
    counts: Array = (theirs != ticks) | match.exact
    if match.direction != "nearest":
        counts &= theirs >= ticks if match.direction == "forward" else theirs <= ticks
    if match.tolerance is not None:
        counts &= apart(ticks, theirs) <= np.uint64(match.tolerance)
    return counts


class RightByKey:
    """Right tuples by key number and time. Times ascend, equal ones are in gate order; the key NONE matches nothing."""

    def __init__(self, keys: Array, ticks: Array) -> None:
        self._ticks = ticks
        places = np.flatnonzero(keys != NONE)
        # Key and place in one number: sorted, the places of one key are adjacent and ascend by time.
        self._width = ticks.size + 1
        self._entries = np.sort(keys[places] * self._width + places)

    def nearest(self, match: BoundAsOf, keys: Array, ticks: Array, itself: Array | None = None) -> Array:
        """The place of the right tuple that each left one takes, or NONE.

        `itself` is the place of the left tuple among the right ones, or NONE: it is not its own partner. Only a match
        that looks back can have it.
        """
        partner = np.full(keys.size, NONE, np.int64)
        if not self._entries.size:
            return partner
        if match.direction != "forward":
            upto = np.searchsorted(self._ticks, ticks, side="right" if match.exact else "left")
            at = np.searchsorted(self._entries, keys * self._width + upto) - 1
            partner = self._of_key(at, keys)
            if itself is not None:
                partner = np.where(partner == itself, self._of_key(at - 1, keys), partner)
            partner = self._within(match, ticks, partner)
        if match.direction != "backward":
            since = np.searchsorted(self._ticks, ticks, side="left" if match.exact else "right")
            ahead = self._of_key(np.searchsorted(self._entries, keys * self._width + since), keys)
            ahead = self._within(match, ticks, ahead)
            away, behind = apart(ticks, self._ticks[ahead]), apart(ticks, self._ticks[partner])
            partner = np.where((partner == NONE) | ((ahead != NONE) & (away < behind)), ahead, partner)
        return partner

    def needed(self, match: BoundAsOf, low: int) -> Array:
        """The places that left tuples at `low` or later may take, ascending.

        These are the newest of each key before `low`, unless it is too old, and all from there on.
        """
        keys, places = np.divmod(self._entries, self._width)
        first = np.searchsorted(self._ticks, low)
        if match.direction == "forward":
            return np.sort(places[places >= first])
        # The next one of the same key takes its place, unless that is at `low` or later.
        newest = np.ones(keys.size, np.bool_)
        newest[:-1] = (keys[1:] != keys[:-1]) | (places[1:] >= first)
        newest &= self._ticks[places] >= oldest(match, low)
        return np.sort(places[newest | (places >= first)])

    def _of_key(self, at: Array, keys: Array) -> Array:
        """The places of the entries at `at`, where they have the key."""
        inside = (at >= 0) & (at < self._entries.size)
        of, places = np.divmod(self._entries[np.where(inside, at, 0)], self._width)
        return np.where(inside & (of == keys), places, NONE)

    def _within(self, match: BoundAsOf, ticks: Array, places: Array) -> Array:
        if match.tolerance is None:
            return places
        return np.where(apart(ticks, self._ticks[places]) <= np.uint64(match.tolerance), places, NONE)
