"""Partners of tuples by key and time: for each tuple of one side the range of those of the other within a distance.

Either side is sorted by key and then by time; the tuples of a key are a *segment*. Both ends of ranges ascend within a
segment, so they are found by stepping further and further ahead. Only segments that both sides have are looked at, and
of these only the tuples in reach: the cost is never more than that of the pairs, nor than that of the tuples.
"""

from __future__ import annotations

from typing import Any, Final

from streamjoin._arrays import Array
from streamjoin.jit.flags import inlined, kernel

LEAST: Final = -(1 << 63)
MOST: Final = (1 << 63) - 1


@inlined
def _first_from(values: Array, begin: Any, end: Any, least: Any) -> Any:
    """The first place from `begin` to before `end` whose value is not below `least`, or `end`; values ascend."""
    if begin >= end or values[begin] >= least:
        return begin
    # What lies at `begin` is below.
    step = 1
    while step < end - begin and values[begin + step] < least:
        begin, step = begin + step, 2 * step
    low, high = begin + 1, min(end, begin + step)
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _earliest(tick: Any, reach: Any) -> Any:
    return LEAST if tick < LEAST + reach else tick - reach


@inlined
def _latest(tick: Any, reach: Any) -> Any:
    return MOST if tick > MOST - reach else tick + reach


@kernel
def partner_ranges(
    own_keys: Array, own_starts: Array, own_ticks: Array, keys: Array, starts: Array, ticks: Array, reach: int,
    places: Array, first: Array, last: Array,
) -> int:  # fmt: skip
    """The places of a side's tuples that have partners on the other, and the first and the last one of each.

    Of both sides there are the distinct keys, ascending, where the segment of each begins (and one end more), and the
    times. Returns how many have partners.
    """
    n, here, there = 0, 0, 0
    while here < own_keys.size and there < keys.size:
        if own_keys[here] < keys[there]:
            here = _first_from(own_keys, here, own_keys.size, keys[there])
            continue
        if own_keys[here] > keys[there]:
            there = _first_from(keys, there, keys.size, own_keys[here])
            continue
        begin, end = starts[there], starts[there + 1]
        place, limit = own_starts[here], own_starts[here + 1]
        place = _first_from(own_ticks, place, limit, _earliest(ticks[begin], reach))
        low, high = begin, begin
        while place < limit:
            low = _first_from(ticks, low, end, _earliest(own_ticks[place], reach))
            if low == end:
                break
            latest = _latest(own_ticks[place], reach)
            high = end if latest == MOST else _first_from(ticks, max(low, high), end, latest + 1)
            if low < high:
                places[n], first[n], last[n] = place, low, high - 1
                n += 1
                place += 1
            else:
                # None is in reach of it, nor of those before the next one.
                place = _first_from(own_ticks, place + 1, limit, _earliest(ticks[low], reach))
        here, there = here + 1, there + 1
    return n
