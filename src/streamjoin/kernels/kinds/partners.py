"""Partners of tuples by key and time: for each tuple of one side the range of those of the other within a distance.

Either side is sorted by key and then by time; the tuples of a key are a *segment*. Both ends of ranges ascend within a
segment, so they are found by stepping further and further ahead. Only segments that both sides have are looked at, and
of these only the tuples in reach: the cost is never more than that of the pairs, nor than that of the tuples.
"""

from __future__ import annotations

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.kernels.searching import gallop
from streamjoin.kernels.times import MAX, after, before


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
            here = gallop(own_keys, here, keys[there])
            continue
        if own_keys[here] > keys[there]:
            there = gallop(keys, there, own_keys[here])
            continue
        low, place = starts[there], own_starts[here]
        own, theirs = own_ticks[: own_starts[here + 1]], ticks[: starts[there + 1]]
        place = gallop(own, place, before(theirs[low], reach))
        high = low
        while place < own.size:
            low = gallop(theirs, low, before(own[place], reach))
            if low == theirs.size:
                break
            latest = after(own[place], reach)
            high = theirs.size if latest == MAX else gallop(theirs, max(low, high), latest + 1)
            if low < high:
                places[n], first[n], last[n] = place, low, high - 1
                n += 1
                place += 1
            else:
                # None is in reach of it, nor of those before the next one.
                place = gallop(own, place + 1, before(theirs[low], reach))
        here, there = here + 1, there + 1
    return n
