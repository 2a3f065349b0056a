"""Probing one sorted run for many queries at once: key interval, order of arrival, windows, query-sets.

A pair is kept if the stored word lies in the probe's interval, the stored tuple came first (unless any order will do),
and their query-sets have a query in common whose window contains both. All of this is tested in one pass over the
candidates, so that candidates are never stored. A pass can be left when the room for pairs is used up or enough
candidates were read, and continued where it was: no join is so large that its caller can't count and stop it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import inlined, kernel
from streamjoin.kernels.searching import first_from, gallop
from streamjoin.kernels.times import MAX, MIN, after, before

Probes = tuple[Array, Array, Array, Array, Array, Array]
"""The order to probe in, by `lo`; then by probe: lo, hi, time, place among all tuples, set."""
Run = tuple[Array, Array, Array, Array, Array]
"""Words in order and the row of each; then by row: time, place, set."""
Windows = tuple[int, Array, Array]
"""The longest window; distances in order; the sets of those whose window is at least the distance, and beyond all."""

BEFORE: Final = 0
"""The stored tuple came before the probe."""
NOT_AFTER: Final = 1
"""It did, or is the probe itself."""
ANY_ORDER: Final = 2

_NEAR = 16
"""Up to this many entries are stepped over one by one before leaping: the next word or time is usually near."""
_FEW = 8

START: Final = (0, -1, 0, 0, 0, -1, 0, MIN, MIN, MIN)
"""The cursor of a pass that begins."""
DONE, AT, SEEN, EARLIER = range(4)
"""In a cursor: probes that are done, the candidate that is next for the current one or -1, candidates read, and pairs
whose stored tuple came first. Then where the last probe's word begins and ends, and where its window does."""


@inlined
def _leap_to_word(words: Array, at: int, word: int) -> int:
    """The first place from `at` on whose word is at least `word`: by steps, by leaps that double, then by halves."""
    n = words.size
    near = min(n, at + _NEAR)
    while at < near and words[at] < word:
        at += 1
    return at if at < near or at == n else gallop(words, at, word)


@inlined
def _leap_to_tick(rows: Array, ticks: Array, at: int, stop: int, tick: int) -> int:
    """The first place from `at` to `stop` that is not before `tick`; times ascend there."""
    near = min(stop, at + _NEAR)
    while at < near and ticks[rows[at]] < tick:
        at += 1
    if at < near or at == stop:
        return at
    step = 1
    while at + step < stop and ticks[rows[at + step]] < tick:
        at += step
        step *= 2
    high = min(at + step, stop)
    while at < high:
        middle = (at + high) >> 1
        if ticks[rows[middle]] < tick:
            at = middle + 1
        else:
            high = middle
    return at


@inlined
def _window_class(limits: Array, distance: np.uint64) -> int:
    """The first of the ascending limits that is at least `distance`; their number, where none is."""
    if limits.size <= _FEW:
        low = 0
        # Without a branch that depends on the distance, which is not predictable.
        for i in range(limits.size):
            low += limits[i] < distance
        return low
    return first_from(limits, 0, limits.size, distance)


@kernel
def probe_shared(
    probes: Probes,
    run: Run,
    windows: Windows,
    order_of_arrival: int,
    ascending: bool,
    bases: tuple[int, int],
    out: tuple[Array, Array, Array],
    read: Array,
    cursor: Array,
    most: int,
) -> int:
    """How many pairs were written to `out`: all there are, if `cursor` says that all probes are done.

    `cursor` begins as `START`. The pass is left when `out` is full, or before the next probe when `most` candidates
    were read; another call continues it. `out` takes the probe and the row, each counted from its base, and the common
    set. `read` takes how many candidates each probe read, unless it is empty. Places ascend by row, and so
    do the rows of a word; `ascending` says that times do too: then only the tuples of a word that are in the window
    are looked at.
    """
    order, lo, hi, probe_ticks, probe_gates, probe_sets = probes
    words, rows, ticks, gates, sets = run
    reach, limits, keeps = windows
    out_probe, out_row, out_sets = out
    width = sets.shape[1]
    room = out_probe.size
    i, at, candidates, earlier, start, stop, begin, last_low, last_high, last_tick = cursor
    until = candidates + most
    is_counted = read.size > 0
    pairs = 0
    while i < order.size and pairs < room:
        p = order[i]
        low, high, tick = lo[p], hi[p], probe_ticks[p]
        earliest, latest = before(tick, reach), after(tick, reach)
        narrow = ascending and low == high
        if at < 0:
            if candidates >= until:
                break
            if stop < 0 or low != last_low or high != last_high:
                start = _leap_to_word(words, start if low >= last_low else 0, low)
                stop = words.size if high == MAX else _leap_to_word(words, start, high + 1)
                begin = start
            elif tick < last_tick:
                begin = start
            last_low, last_high, last_tick = low, high, tick
            if narrow:
                # Probes of one word come in the order of their times: so do the beginnings of their windows.
                begin = _leap_to_tick(rows, ticks, begin, stop, earliest)
            at = begin
        first = at
        gate = probe_gates[p]
        while at < stop and pairs < room:
            row = rows[at]
            other = ticks[row]
            if narrow and other > latest:
                break
            at += 1
            if not narrow and (other < earliest or other > latest):
                continue
            if order_of_arrival != ANY_ORDER and gates[row] >= gate + order_of_arrival:
                if low == high:
                    break
                continue
            # Unsigned: the distance of two int64 may not fit an int64.
            distance = np.uint64(tick) - np.uint64(other) if tick >= other else np.uint64(other) - np.uint64(tick)
            kept = _window_class(limits, distance)
            common = probe_sets[p, 0] & sets[row, 0] & keeps[kept, 0]
            for w in range(1, width):
                common |= probe_sets[p, w] & sets[row, w] & keeps[kept, w]
            if width > 1:
                if common == np.uint64(0):
                    continue
                for w in range(width):
                    out_sets[pairs, w] = probe_sets[p, w] & sets[row, w] & keeps[kept, w]
            else:
                # Written in any case, and kept by moving on: whether a pair has a query in common can't be predicted.
                out_sets[pairs, 0] = common
            out_probe[pairs], out_row[pairs] = p + bases[0], row + bases[1]
            is_pair = common != np.uint64(0)
            pairs += is_pair
            earlier += is_pair & (gates[row] < gate)
        candidates += at - first
        if is_counted:
            read[p] += at - first
        if pairs < room:
            i += 1
            at = -1
    state = (i, at, candidates, earlier, start, stop, begin, last_low, last_high, last_tick)
    for place in range(len(state)):
        cursor[place] = state[place]
    return pairs
