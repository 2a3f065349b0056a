"""What join types decide, against plain definitions, also with times at the ends of int64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamjoin.joins.types.asof import RightByKey, nearest_pairs, settled
from streamjoin.joins.types.marks import gone_below, gone_in_order, outcome
from streamjoin.kernels.kinds.asof import NONE
from streamjoin.model.asof import Direction
from streamjoin.model.binding import BoundAsOf

MIN, MAX = -(1 << 63), (1 << 63) - 1
TIMES = st.one_of(st.integers(-6, 6), st.integers(MIN, MIN + 3), st.integers(MAX - 3, MAX))
DIRECTIONS: tuple[Direction, ...] = ("backward", "forward", "nearest")
Right = list[tuple[int, int]]


@st.composite
def matches(draw: st.DrawFn) -> BoundAsOf:
    direction = draw(st.sampled_from(DIRECTIONS))
    tolerance = draw(st.one_of(st.integers(0, 6), st.just((1 << 64) - 1)))
    free = direction == "backward" and draw(st.booleans())
    return BoundAsOf(direction, None if free else tolerance, draw(st.booleans()), True)


def rights(draw: st.DrawFn) -> Right:
    """Right tuples as (time, key) in gate order."""
    return sorted(draw(st.lists(st.tuples(TIMES, st.integers(NONE, 2)), max_size=8)), key=lambda one: one[0])


def taken(match: BoundAsOf, tick: int, key: int, right: Right) -> int:
    """The place of the right tuple that a left one takes."""
    best, least = NONE, None
    for place, (theirs, of) in enumerate(right):
        ahead = theirs > tick or (theirs == tick and match.direction == "forward")
        away = abs(theirs - tick)
        wrong_way = match.direction == ("backward" if ahead else "forward")
        too_far = match.tolerance is not None and away > match.tolerance
        if of != key or key == NONE or wrong_way or too_far or (theirs == tick and not match.exact):
            continue
        rank = away, ahead, place if ahead else -place
        if least is None or rank < least:
            best, least = place, rank
    return best


def arrays(right: Right) -> tuple[np.ndarray, np.ndarray]:
    ticks, keys = np.array([one[0] for one in right], np.int64), np.array([one[1] for one in right], np.int64)
    return ticks, keys


@given(match=matches(), data=st.data(), left=st.lists(st.tuples(TIMES, st.integers(NONE, 2)), max_size=6))
def test_the_nearest_by_key_and_of_pairs(match: BoundAsOf, data: st.DataObject, left: Right) -> None:
    right = data.draw(st.composite(rights)())
    ticks, keys = arrays(right)
    own, wanted = arrays(left)
    expected = [taken(match, tick, key, right) for tick, key in left]
    assert RightByKey(keys, ticks).nearest(match, wanted, own).tolist() == expected
    pairs = [(i, j) for i in range(len(left)) for j in range(len(right)) if wanted[i] == keys[j] != NONE]
    places, partners = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    chosen = nearest_pairs(match, places, own[places], partners, ticks[partners])
    found = dict(zip(places[chosen].tolist(), partners[chosen].tolist(), strict=True))
    assert [found.get(i, NONE) for i in range(len(left))] == expected


@given(match=matches(), data=st.data(), low=TIMES, left=st.lists(st.tuples(TIMES, st.integers(0, 2)), max_size=6))
def test_right_tuples_may_come_in_any_order_with_their_ranks(
    match: BoundAsOf, data: st.DataObject, low: int, left: Right
) -> None:
    """Also where no key stands for nothing."""
    right = [one for one in data.draw(st.composite(rights)()) if one[1] != NONE]
    ticks, keys = arrays(right)
    own, wanted = arrays(left)
    places = np.array(data.draw(st.permutations(range(len(right)))), np.int64)
    for nothing in (NONE, None):
        for shift in (0, MIN, MAX - 2):
            shifted = RightByKey(keys[places] + shift, ticks[places], places, nothing)
            found = shifted.nearest(match, wanted + shift, own)
            expected = [taken(match, tick, key, right) for tick, key in left]
            assert np.where(found == NONE, NONE, places[found] if places.size else NONE).tolist() == expected
            needed = RightByKey(keys, ticks).needed(match, low)
            assert sorted(places[shifted.needed(match, low)].tolist()) == needed.tolist()


def test_tuples_far_from_their_order_are_sorted() -> None:
    """One key in falling times, more than an insertion sort moves."""
    n = 1_000
    ticks = np.arange(n, 0, -1, dtype=np.int64) // 2
    by_key = RightByKey(np.zeros(n, np.int64), ticks)
    own = np.arange(n, dtype=np.int64)
    match = BoundAsOf("backward", None, True, True)
    last = [max((place for place in range(n) if ticks[place] == tick), default=NONE) for tick in range(n // 2 + 1)]
    expected = [last[min(tick, n // 2)] for tick in range(n)]
    assert by_key.nearest(match, np.zeros(n, np.int64), own).tolist() == expected


@given(match=matches(), data=st.data(), low=TIMES)
def test_what_is_needed_is_enough(match: BoundAsOf, data: st.DataObject, low: int) -> None:
    """Later left tuples find the same partners among what is kept, and of each key one before `low` is."""
    right = data.draw(st.composite(rights)())
    ticks, keys = arrays(right)
    kept = RightByKey(keys, ticks).needed(match, low).tolist()
    some = [right[place] for place in kept]
    for tick in {low, *(tick for tick in (low + 1, low + 3, MAX) if low <= tick <= MAX)}:
        for key in range(3):
            place = taken(match, tick, key, some)
            assert (NONE if place == NONE else kept[place]) == taken(match, tick, key, right)
    old = [key for tick, key in some if tick < low]
    assert len(old) == len(set(old))
    assert match.direction != "forward" or not old


@given(match=matches(), data=st.data(), tick=TIMES, bound=TIMES, later=st.lists(TIMES, max_size=4))
def test_nothing_changes_a_partner_that_is_settled(
    match: BoundAsOf, data: st.DataObject, tick: int, bound: int, later: list[int]
) -> None:
    right = [(tick, 0) for tick, _ in data.draw(st.composite(rights)())]
    place = taken(match, tick, 0, right)
    found = np.flatnonzero([place != NONE])
    theirs = np.array([right[place][0]] if place != NONE else [], np.int64)
    if settled(match, np.array([tick], np.int64), found, theirs, bound)[0]:
        # Of equal times those that come later are later in gate order.
        more = right + [(max(bound, time), 0) for time in later]
        after = taken(match, tick, 0, more)
        assert (after == NONE) == (place == NONE)
        assert place == NONE or more[after][0] == more[place][0]
        assert place == NONE or match.direction == "backward" or after == place


@pytest.mark.parametrize("size", [0, 3, MAX, (1 << 64) - 1])
@given(tick=TIMES, bound=TIMES, other=st.integers(0, 5))
def test_what_is_gone_is_out_of_reach(size: int, tick: int, bound: int, other: int) -> None:
    assert (tick < gone_below(bound, size)) == (tick + size < bound)
    assert gone_in_order(bound, MIN, size, other) <= gone_below(bound, size)
    assert gone_in_order(bound, bound, size, None) == gone_below(bound, size)


def test_tuples_come_out_never_or_wait() -> None:
    matched, decided = np.array([False, True, False, True]), np.array([False, False, True, True])
    rows = {
        how: [mask.tolist() for mask in outcome(how, matched, decided)] for how in ("semi", "anti", "inner", "left")
    }
    f, t = False, True
    assert rows["semi"] == [[f, t, f, t], [f, f, t, f]]
    assert rows["anti"] == [[f, f, t, f], [f, t, f, t]]
    assert rows["inner"] == [[f, f, f, t], [f, f, t, f]]
    assert rows["left"] == [[f, f, t, t], [f, f, f, f]]
