"""Probing one sorted run for many queries at once: key interval, order of arrival, windows, query-sets.

A pair is kept if the stored word lies in the probe's interval, the stored tuple came first (unless any order will do),
and their query-sets have a query in common whose window contains both. All of this is tested in one pass over the
candidates, so that candidates are never stored.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.flags import kernel

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

_LEAST = -(1 << 63)


@kernel
def _leap_to_word(words: Array, at: int, word: int) -> int:
    """The first place from `at` on whose word is at least `word`: by leaps that double, then by halves."""
    n = words.size
    step = 1
    while at + step < n and words[at + step] < word:
        at += step
        step *= 2
    high = min(at + step, n)
    while at < high:
        middle = (at + high) >> 1
        if words[middle] < word:
            at = middle + 1
        else:
            high = middle
    return at


@kernel
def _leap_to_tick(words: Array, rows: Array, ticks: Array, at: int, word: int, tick: int) -> int:
    """The first place from `at` on that is no longer `word` before `tick`; times ascend among the rows of a word."""
    n = words.size
    step = 1
    while at + step < n and words[at + step] == word and ticks[rows[at + step]] < tick:
        at += step
        step *= 2
    high = min(at + step, n)
    while at < high:
        middle = (at + high) >> 1
        if words[middle] == word and ticks[rows[middle]] < tick:
            at = middle + 1
        else:
            high = middle
    return at


@kernel
def _window_class(limits: Array, distance: np.uint64) -> int:
    """The first of the ascending limits that is at least `distance`; their number, where none is."""
    low, high = 0, limits.size
    while low < high:
        middle = (low + high) >> 1
        if limits[middle] < distance:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def probe_shared(
    probes: Probes,
    run: Run,
    windows: Windows,
    order_of_arrival: int,
    ascending: bool,
    bases: tuple[int, int],
    out: tuple[Array, Array, Array],
    seen: Array,
) -> int:
    """How many pairs there are; the first of them, as many as fit, are in `out`.

    Adds to `seen` how many candidates were looked at, and in how many pairs the stored tuple came first. `out` takes
    the probe and the row, each counted from its base, and the common set. Places ascend by row, and so do the rows of
    a word; `ascending` says that times do too: then only the tuples of a word that are in the window are looked at.
    """
    order, lo, hi, probe_ticks, probe_gates, probe_sets = probes
    words, rows, ticks, gates, sets = run
    reach, limits, keeps = windows
    out_probe, out_row, out_sets = out
    width = sets.shape[1]
    room = out_probe.size
    longest = np.uint64(reach)
    flip = np.uint64(1) << np.uint64(63)
    pairs, candidates, earlier = 0, 0, 0
    start, begin = 0, 0
    last, last_tick = _LEAST, _LEAST
    for i in range(order.size):
        p = order[i]
        low, high, tick = lo[p], hi[p], probe_ticks[p]
        if low < last:
            start = 0
        if low != last or tick < last_tick:
            start = _leap_to_word(words, start, low)
            begin = start
        last, last_tick = low, tick
        own = np.uint64(tick) ^ flip
        single = low == high
        if not single:
            begin = start
        elif ascending and tick >= _LEAST + reach:
            # Probes of one word come in the order of their times: the next one's window begins where this one's does.
            begin = _leap_to_tick(words, rows, ticks, begin, high, tick - reach)
        at = begin
        while at < words.size and words[at] <= high:
            row = rows[at]
            at += 1
            candidates += 1
            if order_of_arrival != ANY_ORDER and gates[row] >= probe_gates[p] + order_of_arrival:
                if single:
                    break
                continue
            # Unsigned, in the order of the signed: the distance of two int64 may not fit an int64.
            other = np.uint64(ticks[row]) ^ flip
            distance = own - other if own >= other else other - own
            if distance > longest:
                if single and ascending and other > own:
                    break
                continue
            kept = _window_class(limits, distance)
            common = np.uint64(0)
            for w in range(width):
                common |= probe_sets[p, w] & sets[row, w] & keeps[kept, w]
            if common == np.uint64(0):
                continue
            if pairs < room:
                out_probe[pairs], out_row[pairs] = p + bases[0], row + bases[1]
                for w in range(width):
                    out_sets[pairs, w] = probe_sets[p, w] & sets[row, w] & keeps[kept, w]
            pairs += 1
            earlier += gates[row] < probe_gates[p]
    seen[0] += candidates
    seen[1] += earlier
    return pairs
