"""Probing one sorted run for many queries at once: key interval, order of arrival, longest window, query-sets.

A pair is kept if the stored word lies in the probe's interval, the stored tuple came first (its gate is below the
probe's; or equal, where `inclusive`), their times differ by `reach` at most, and their query-sets have a query in
common. All that one pass over the candidates can tell is told there, so that no candidate is written down.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.kernels.flags import kernel
from streamjoin.kernels.sorting import lower_bound

Array = np.ndarray[Any, np.dtype[Any]]

_LEAST = -(1 << 63)


@kernel
def _first_in_reach(words: Array, rows: Array, ticks: Array, word: int, tick: int) -> int:
    """The first place of `word` whose time is at least `tick`; rows of one word ascend, and so do their times."""
    low, high = 0, words.size
    while low < high:
        middle = (low + high) >> 1
        if words[middle] < word or (words[middle] == word and ticks[rows[middle]] < tick):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def probe_shared(
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

    `words` ascend and `rows` are where the tuples lie in `ticks`, `gates` and `sets`, both of which ascend by row: of
    one word only the tuples from the window's start to the probe's arrival are looked at.
    """
    width = sets.shape[1]
    room = out_probe.size
    found = 0
    candidates = 0
    longest = np.uint64(reach)
    for p in range(lo.size):
        high = hi[p]
        gate = probe_gates[p] + (1 if inclusive else 0)
        tick = probe_ticks[p]
        single = lo[p] == high
        if single and tick >= _LEAST + reach:
            at = _first_in_reach(words, rows, ticks, high, tick - reach)
        else:
            at = lower_bound(words, lo[p])
        while at < words.size and words[at] <= high:
            row = rows[at]
            at += 1
            candidates += 1
            if gates[row] >= gate:
                if single:
                    break
                continue
            # Unsigned: the distance of two int64 may not fit an int64.
            other = ticks[row]
            apart = np.uint64(tick) - np.uint64(other) if tick >= other else np.uint64(other) - np.uint64(tick)
            if apart > longest:
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
