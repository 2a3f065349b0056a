"""Probing one sorted run for many queries at once: key interval, order of arrival, longest window, query-sets.

A pair is kept if the stored word lies in the probe's interval, the stored tuple came first (its gate is below the
probe's; or equal, where `inclusive`), their times differ by `reach` at most, and their query-sets have a query in
common. All that one pass over the candidates can tell is told there, so that no candidate is written down.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.kernels.flags import kernel

Array = np.ndarray[Any, np.dtype[Any]]

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
def probe_shared(
    order: Array,
    lo: Array,
    hi: Array,
    probe_ticks: Array,
    probe_gates: Array,
    probe_sets: Array,
    words: Array,
    rows: Array,
    ticks: Array,
    gates: Array,
    sets: Array,
    reach: int,
    inclusive: bool,
    out_probe: Array,
    out_row: Array,
    out_sets: Array,
    seen: Array,
) -> int:
    """How many pairs there are; the first of them, as many as fit, are in the out arrays. Adds candidates to `seen`.

    `order` has the probes by `lo`, so that one pass goes forward through the run. `words` ascend and `rows` are where
    the tuples lie in `ticks`, `gates` and `sets`; times and gates ascend by row, and so do the rows of one word: of
    those only the tuples from the window's start to the probe's arrival are looked at.
    """
    width = sets.shape[1]
    room = out_probe.size
    found = 0
    candidates = 0
    longest = np.uint64(reach)
    flip = np.uint64(1) << np.uint64(63)
    start = 0
    for i in range(order.size):
        p = order[i]
        high = hi[p]
        gate = probe_gates[p] + (1 if inclusive else 0)
        tick = probe_ticks[p]
        own = np.uint64(tick) ^ flip
        single = lo[p] == high
        start = _leap_to_word(words, start, lo[p])
        at = start
        if single and tick >= _LEAST + reach:
            at = _leap_to_tick(words, rows, ticks, start, high, tick - reach)
        while at < words.size and words[at] <= high:
            row = rows[at]
            at += 1
            candidates += 1
            if gates[row] >= gate:
                if single:
                    break
                continue
            # Unsigned, in the order of the signed: the distance of two int64 may not fit an int64.
            other = np.uint64(ticks[row]) ^ flip
            if (own - other if own >= other else other - own) > longest:
                continue
            common = np.uint64(0)
            for w in range(width):
                common |= probe_sets[p, w] & sets[row, w]
            if common == np.uint64(0):
                continue
            if found < room:
                out_probe[found], out_row[found] = p, row
                for w in range(width):
                    out_sets[found, w] = probe_sets[p, w] & sets[row, w]
            found += 1
    seen[0] += candidates
    return found
