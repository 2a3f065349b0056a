"""As-of joins: which right tuple is the nearest, when that is settled, and which right tuples later left ones need.

Of right tuples with equal times the last in gate order is the nearest behind, the first the nearest ahead; of two that
are equally far the one behind is taken. A tuple of the same time is behind, where only those ahead count it is ahead.

The embedded engine has the same rules as kernels of its own (`pair_behind` and `pair_nearest`, beside those that are
used here), as it takes tuples in the order of time and settles each once. Distances are unsigned and bounds saturated:
times may be at either end of int64.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.kinds.asof import NONE, nearest_of_keys, order_by_time
from streamjoin.kernels.times import length_word
from streamjoin.model.binding import BoundAsOf
from streamjoin.model.window import LONGEST
from streamjoin.windows.clock import apart, less
from streamjoin.windows.encoding import read_only


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
    """Right tuples by key and time; those of equal times by `ranks`, or without these as they are in the arrays.

    Nothing matches the key `nothing`.
    """

    def __init__(self, keys: Array, ticks: Array, ranks: Array | None = None, nothing: int | None = NONE) -> None:
        self._of_all = ticks
        places = np.arange(keys.size) if nothing is None else np.flatnonzero(keys != nothing)
        ranks = np.arange(keys.size) if ranks is None else ranks
        self._keys, self._places = sort_entries(keys[places], places)
        self._ticks = np.empty(places.size, np.int64)
        if not order_by_time(self._keys, self._places, read_only(ticks), read_only(ranks), self._ticks):
            self._places = places[np.lexsort((ranks[places], ticks[places], keys[places]))]
            self._ticks = ticks[self._places]

    def nearest(self, match: BoundAsOf, keys: Array, ticks: Array, itself: Array | None = None) -> Array:
        """The place of the right tuple that each left one takes, or NONE.

        `itself` is the place of the left tuple among the right ones, or NONE: it is not its own partner. Only a match
        that looks back can have it.
        """
        if not self._places.size:
            return np.full(keys.size, NONE, np.int64)
        if match.direction == "forward":
            return self._placed(self._found(match, keys, ticks, ahead=True))
        partner = self._found(match, keys, ticks, ahead=False)
        if itself is not None:
            same = np.flatnonzero(partner != NONE)
            same = same[self._places[partner[same]] == itself[same]]
            before = partner[same] - 1
            of_key = (before >= 0) & (self._keys[before] == keys[same])
            if match.tolerance is not None:
                of_key &= apart(ticks[same], self._ticks[before]) <= np.uint64(match.tolerance)
            partner[same] = np.where(of_key, before, NONE)
        if match.direction == "nearest":
            ahead = self._found(match, keys, ticks, ahead=True)
            away, behind = apart(ticks, self._ticks[ahead]), apart(ticks, self._ticks[partner])
            partner = np.where((partner == NONE) | ((ahead != NONE) & (away < behind)), ahead, partner)
        return self._placed(partner)

    def needed(self, match: BoundAsOf, low: int) -> Array:
        """The places that left tuples at `low` or later may take, ascending.

        These are the newest of each key before `low`, unless it is too old, and all from there on.
        """
        taken = later = self._ticks >= low
        if match.direction != "forward":
            # The next one of the same key takes its place, unless that is at `low` or later.
            newest = np.ones(later.size, np.bool_)
            newest[:-1] = (self._keys[1:] != self._keys[:-1]) | later[1:]
            taken = later | (newest & (self._ticks >= oldest(match, low)))
        is_needed = np.zeros(self._of_all.size, np.bool_)
        is_needed[self._places[taken]] = True
        return np.flatnonzero(is_needed)

    def _found(self, match: BoundAsOf, keys: Array, ticks: Array, *, ahead: bool) -> Array:
        """The entries of the partners on one side of the left tuples, or NONE."""
        found = np.empty(keys.size, np.int64)
        own = read_only(keys), read_only(ticks)
        tolerance = length_word(match.tolerance)
        nearest_of_keys(self._keys, self._ticks, *own, ahead, match.exact, tolerance, found)
        return found

    def _placed(self, entries: Array) -> Array:
        return np.where(entries == NONE, NONE, self._places[entries])
