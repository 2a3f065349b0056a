"""Gathers rows of a column for the results."""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64, prefetch
from streamjoin.kernels.searching import gallop

_AHEAD = 24


@kernel
def gather(source: Array, places: Array, base: int, out: Array, begin: int, end: int) -> None:
    """out[i] = source[places[i] - base] for i from begin to end."""
    for i in range(begin, end):
        out[np.uint64(i)] = source[np.uint64(places[np.uint64(i)] - base)]


@kernel
def gather_rows(source: Array, places: Array, base: int, out: Array, begin: int, end: int) -> None:
    """out[c, i] = source[places[i] - base, c] for i from begin to end; source is row after row in one array.

    Two columns at a time: both are in one cache line, and an inner loop over columns would cost more. Rows are
    anywhere in the window, so each is prefetched some rows ahead. Places are unsigned, which spares a test for negative
    ones.
    """
    columns = out.shape[0]
    last = max(begin, end - _AHEAD)
    for c in range(0, columns - 1, 2):
        first, second = out[c], out[c + 1]
        for i in range(begin, last):
            prefetch(source, (places[np.uint64(i + _AHEAD)] - base) * columns + c)
            at = np.uint64((places[np.uint64(i)] - base) * columns + c)
            first[np.uint64(i)], second[np.uint64(i)] = source[at], source[at + np.uint64(1)]
        for i in range(last, end):
            at = np.uint64((places[np.uint64(i)] - base) * columns + c)
            first[np.uint64(i)], second[np.uint64(i)] = source[at], source[at + np.uint64(1)]
    if columns % 2:
        first = out[columns - 1]
        for i in range(begin, end):
            first[np.uint64(i)] = source[np.uint64((places[np.uint64(i)] - base) * columns + columns - 1)]


@kernel
def sides_of_pairs(probes: Array, seqs: Array, is_right: Array, own_seq: Array, left: Array, right: Array) -> None:
    """Split (probe, seq) pairs into the left and the right tuple's position."""
    for i in range(probes.size):
        p = np.uint64(probes[i])
        if is_right[p]:
            left[i], right[i] = seqs[i], own_seq[p]
        else:
            left[i], right[i] = own_seq[p], seqs[i]


@kernel
def place_pairs(later: I64, seqs: I64, first: int, own: I64, times: I64, left: I64, right: I64, arrived: I64) -> None:
    """The left and the right position of each pair, and when its later tuple arrived.

    `own` has each gate position's own position from `first` on, doubled, plus 1 for the right side; `times` likewise.
    """
    for i in range(later.size):
        place = later[i] - first
        arrived[i] = times[place]
        if own[place] & 1:
            left[i], right[i] = seqs[i], own[place] >> 1
        else:
            left[i], right[i] = own[place] >> 1, seqs[i]


@kernel
def first_at_least(ticks: Array, bounds: Array, base: int, out: Array) -> None:
    """out[i] = base + the first place in sorted `ticks` that is at least bounds[i]; fast where bounds ascend."""
    at = 0
    for i in range(bounds.size):
        bound = bounds[i]
        if at > 0 and ticks[at - 1] >= bound:
            at = 0
        at = gallop(ticks, at, bound)
        out[i] = base + at


@kernel
def first_beyond(ticks: Array, bounds: Array, base: int, ends: Array) -> int:
    """Lower ends[i] to base + the first place in sorted `ticks` beyond bounds[i]; returns how many are lowered."""
    at, n = 0, 0
    for i in range(bounds.size):
        bound, end = bounds[i], ends[i]
        # One look at the newest tells whether anything is beyond the bound.
        if end > base and ticks[end - 1 - base] > bound:
            if at > 0 and ticks[at - 1] > bound:
                at = 0
            # A tick is greater than the bound, so that one more is no overflow.
            at = gallop(ticks, at, bound + 1)
            ends[i] = base + at
            n += 1
    return n


@kernel
def leading_below(ticks: Array, bound: int) -> int:
    """How many ticks at the front are below `bound`: what can be forgotten from the oldest end."""
    i = 0
    while i < ticks.size and ticks[i] < bound:
        i += 1
    return i
