"""The order of a lookup's matches in a task's block of the pool.

A block has a half for positions and, `apart` words behind, one for the tuples that met them; the second is written
when the first is in order, so a sort may use it. Invariant: a sort of `begin` to `end` changes nothing but that, the
same places `apart` words behind, and up to `limit` there; the eight words behind a half are written back as they were.

Few matches are merged from runs of eight. Many are distributed byte by byte: that takes as long per match however many
there are, where merging goes over all of them once more for every doubling.
"""

from __future__ import annotations

from streamjoin.kernels.flags import kernel, melted
from streamjoin.kernels.machine import I64, borrow, sort_8

_LANES = 8
_BITS = 8
_BUCKETS = 1 << _BITS
_DISTRIBUTED_FROM = 96  # matches


@melted
def order_matches(pool: I64, apart: int, begin: int, end: int, limit: int) -> None:
    """Sort pool[begin:end], nearly always a handful."""
    if end - begin <= _LANES:
        sort_8(pool, begin, end - begin)
    elif end - begin >= _DISTRIBUTED_FROM and end + _BUCKETS <= limit:
        _distribute(pool, apart, begin, end)
    else:
        _merge(pool, apart, begin, end)


@kernel
def _distribute(pool: I64, apart: int, begin: int, end: int) -> None:
    """A radix sort from the lowest byte to the highest in which two words differ."""
    pool = borrow(pool)
    least = pool[begin]
    most = pool[begin]
    for j in range(begin + 1, end):
        least = min(least, pool[j])
        most = max(most, pool[j])
    source = begin
    target = begin + apart
    shift = 0
    while (most - least) >> shift:
        _pass(pool, source, target, end - begin, least, shift, end + apart)
        source, target = target, source
        shift += _BITS
    if source != begin:
        for j in range(end - begin):
            pool[begin + j] = pool[source + j]


@kernel
def _pass(pool: I64, source: int, target: int, count: int, least: int, shift: int, places: int) -> None:
    """Move `count` words in the order of one byte; where each byte's next word goes is kept from `places` on."""
    pool = borrow(pool)
    for k in range(places, places + _BUCKETS):
        pool[k] = 0
    for j in range(source, source + count):
        pool[places + (((pool[j] - least) >> shift) & (_BUCKETS - 1))] += 1
    place = target
    for k in range(places, places + _BUCKETS):
        words = pool[k]
        pool[k] = place
        place += words
    for j in range(source, source + count):
        word = pool[j]
        bucket = places + (((word - least) >> shift) & (_BUCKETS - 1))
        pool[pool[bucket]] = word
        pool[bucket] += 1


@kernel
def _merge(pool: I64, apart: int, begin: int, end: int) -> None:
    """Merge runs of eight, then of sixteen, and so on, from one half of the block to the other and back."""
    pool = borrow(pool)
    for j in range(begin, end, _LANES):
        sort_8(pool, j, min(_LANES, end - j))
    count = end - begin
    source = begin
    target = begin + apart
    width = _LANES
    while width < count:
        for j in range(0, count, 2 * width):
            middle = min(j + width, count)
            _merge_neighbours(pool, source + j, source + middle, source + min(middle + width, count), target + j)
        source, target = target, source
        width *= 2
    if source != begin:
        for j in range(count):
            pool[begin + j] = pool[source + j]


@kernel
def _merge_neighbours(pool: I64, left: int, middle: int, end: int, to: int) -> None:
    """Merge two neighbouring runs; which one gives the next word is computed, not branched on."""
    pool = borrow(pool)
    right = middle
    while left < middle and right < end:
        first = pool[left]
        second = pool[right]
        from_left = first < second
        pool[to] = min(first, second)
        left += from_left
        right += not from_left
        to += 1
    for j in range(left, middle):
        pool[to] = pool[j]
        to += 1
    for j in range(right, end):
        pool[to] = pool[j]
        to += 1
