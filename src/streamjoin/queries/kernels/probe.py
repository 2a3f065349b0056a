"""Probing one sorted run for many queries at once: key interval, order of arrival, windows, query-sets.

A pair is kept if the stored word lies in the probe's interval, the stored tuple came first (unless any order will do),
and their query-sets have a query in common whose window contains both. Candidates are listed where pairs go, a few
hundred at a time, and tested there: listing goes by places and testing by sets, and neither takes a branch that
depends on the other's data, which no processor predicts. A pass can be left when the room for pairs is used up or
enough candidates were read, and continued where it was: no join is so large that its caller can't count and stop it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import below_16, below_32, count_bits, upto_32
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
"""So many entries are looked at before leaping: the next word or time is usually near."""
_FEW = 8
_SIDE_BY_SIDE = 32
"""The times of up to this many tuples of a word are compared at once."""
_BLOCK = 512
"""Candidates are listed up to this many before they are tested, while they are still in the nearest cache."""
_AT_ONCE = 4

START: Final = (0, -1, 0, 0, 0, -1, 0, MIN, MIN, MIN)
"""The cursor of a pass that begins."""
DONE, AT, SEEN, EARLIER = range(4)
"""In a cursor: probes that are done, the candidate that is next for the current one or -1, candidates read, and pairs
whose stored tuple has an earlier time. Then where the last probe's word begins and ends, and where its window does."""


@inlined
def _leap_to_word(words: Array, at: int, word: int) -> int:
    """The first place from `at` on whose word is at least `word`: by a look at the next ones, then by leaps."""
    if at + _NEAR <= words.size:
        less = count_bits(below_16(words, at, word))
        return at + less if less < _NEAR else gallop(words, at + less - 1, word)
    while at < words.size and words[at] < word:
        at += 1
    return at


@inlined
def _leap_to_row(rows: Array, at: int, stop: int, row: int) -> int:
    """The first place from `at` to `stop` that has `row` or a later one; rows ascend there, and not beyond."""
    if stop - at <= _NEAR and at + _NEAR <= rows.size:
        return at + count_bits(below_16(rows, at, row) & ((1 << (stop - at)) - 1))
    return first_from(rows, at, stop, row)


@inlined
def _leap_to_tick(rows: Array, ticks: Array, at: int, stop: int, tick: int) -> int:
    """The first place from `at` to `stop` that is not before `tick`; times ascend there."""
    near = min(stop, at + _NEAR)
    while at < near and ticks[np.uint64(rows[np.uint64(at)])] < tick:
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


@inlined
def _test(
    probes: Probes,
    run: Run,
    windows: Windows,
    bases: tuple[int, int],
    out: tuple[Array, Array, Array],
    first: int,
    end: int,
) -> tuple[int, int]:
    """Keep those of the candidates from `first` to `end` that have a query in common, with the common set.

    Returns where the last one kept ends, and how many of them have a stored tuple of an earlier time.
    """
    _, _, _, probe_ticks, _, probe_sets = probes
    _, _, ticks, _, sets = run
    _, limits, keeps = windows
    out_probe, out_row, out_sets = out
    width = sets.shape[1]
    kept, earlier = first, 0
    # Unsigned places, here and below, spare the test for negative ones.
    for c in range(first, end):
        k = np.uint64(c)
        p, row = np.uint64(out_probe[k]), np.uint64(out_row[k])
        tick, other = probe_ticks[p], ticks[row]
        # Unsigned: the distance of two int64 may not fit an int64.
        distance = np.uint64(tick) - np.uint64(other) if tick >= other else np.uint64(other) - np.uint64(tick)
        window = _window_class(limits, distance)
        common = probe_sets[p, 0] & sets[row, 0] & keeps[window, 0]
        # Written in any case, and kept by moving on: whether a pair has a query in common can't be predicted.
        goal = np.uint64(kept)
        out_sets[goal, 0] = common
        for w in range(1, width):
            more = probe_sets[p, w] & sets[row, w] & keeps[window, w]
            out_sets[goal, w] = more
            common |= more
        out_probe[goal], out_row[goal] = np.int64(p) + bases[0], np.int64(row) + bases[1]
        is_pair = common != np.uint64(0)
        kept += is_pair
        earlier += is_pair & (other < tick)
    return kept, earlier


@kernel
def probe_shared(
    probes: Probes,
    run: Run,
    windows: Windows,
    order_of_arrival: int,
    ascending: bool,
    since: int,
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
    are looked at, and none before the row `since`, which no probe reaches.
    """
    order, lo, hi, probe_ticks, probe_gates, _ = probes
    words, rows, ticks, gates, _ = run
    reach, _, _ = windows
    out_probe, out_row, _ = out
    room = out_probe.size
    i, at, candidates, earlier, start, stop, begin, last_low, last_high, last_tick = cursor
    until = candidates + most
    is_counted = read.size > 0
    near = np.empty(_SIDE_BY_SIDE, np.int64)
    pairs = listed = 0
    end = -1
    is_near = is_enough = False
    while i < order.size and pairs < room and not is_enough:
        full = min(room, pairs + _BLOCK)
        while i < order.size and listed < full:
            probe = order[np.uint64(i)]
            p = np.uint64(probe)
            low, high, tick = lo[p], hi[p], probe_ticks[p]
            earliest, latest = before(tick, reach), after(tick, reach)
            narrow = ascending and low == high
            if at < 0:
                if candidates >= until:
                    is_enough = True
                    break
                if stop < 0 or low != last_low or high != last_high:
                    start = _leap_to_word(words, start if low >= last_low else 0, low)
                    stop = words.size if high == MAX else _leap_to_word(words, start, high + 1)
                    if narrow and since > 0:
                        start = _leap_to_row(rows, start, stop, since)
                    begin, is_near = start, False
                elif tick < last_tick:
                    begin = start
                last_low, last_high, last_tick = low, high, tick
                at, end = start, stop
                if narrow and 0 < stop - start <= _SIDE_BY_SIDE:
                    if not is_near:
                        for k in range(_SIDE_BY_SIDE):
                            near[k] = MAX
                        for k in range(stop - start):
                            near[k] = ticks[np.uint64(rows[np.uint64(start + k)])]
                        is_near = True
                    at = start + count_bits(below_32(near, 0, earliest))
                    end = min(stop, start + count_bits(upto_32(near, 0, latest)))
                elif narrow and start < stop:
                    # Probes of one word come in the order of their times: so do the beginnings of their windows.
                    begin = at = _leap_to_tick(rows, ticks, begin, stop, earliest)
                    end = -1
            if end < 0:
                end = stop
                if narrow and latest < MAX and order_of_arrival == ANY_ORDER:
                    end = _leap_to_tick(rows, ticks, at, stop, latest + 1)
            first = at
            if order_of_arrival != ANY_ORDER:
                came = probe_gates[p] + order_of_arrival
                while at < end and listed < full:
                    row = rows[at]
                    if narrow and ticks[row] > latest:
                        end = at
                        break
                    at += 1
                    if gates[row] >= came:
                        if low == high:
                            end = at
                        continue
                    out_probe[listed], out_row[listed] = probe, row
                    listed += (earliest <= ticks[row]) & (ticks[row] <= latest)
            elif narrow:
                count = min(end - at, full - listed)
                if count <= _AT_ONCE and at + _AT_ONCE <= rows.size and listed + _AT_ONCE <= room:
                    # All of a few in any case: how many they are can't be predicted.
                    for k in range(_AT_ONCE):
                        goal = np.uint64(listed + k)
                        out_probe[goal], out_row[goal] = probe, rows[np.uint64(at + k)]
                else:
                    for k in range(count):
                        out_probe[listed + k], out_row[listed + k] = probe, rows[at + k]
                at, listed = at + count, listed + count
            else:
                while at < end and listed < full:
                    row = rows[at]
                    at += 1
                    out_probe[listed], out_row[listed] = probe, row
                    listed += (earliest <= ticks[row]) & (ticks[row] <= latest)
            candidates += at - first
            if is_counted:
                read[p] += at - first
            if at == end:
                i += 1
                at = -1
        pairs, before_probe = _test(probes, run, windows, bases, out, pairs, listed)
        earlier += before_probe
        listed = pairs
    state = (i, at, candidates, earlier, start, stop, begin, last_low, last_high, last_tick)
    for place in range(len(state)):
        cursor[place] = state[place]
    return pairs
