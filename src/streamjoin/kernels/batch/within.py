"""Sweeping sorted probes over one sorted run whose entries have an age; returns those in the probe's window.

Where a batch is much longer than the window, or a key is heavy, most entries with a fitting word are too old or
too new. Entries of one word lie nearly in the order of their ages, so a stretch of them is often out of the window as a
whole: the least and the greatest age of a stretch are computed on first use, and such stretches are skipped.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.batch.sweep import skip
from streamjoin.kernels.flags import CHECKED, kernel, melted

_SHORT, _LONG = 6, 12
_KNOWN, _TICKS, _SEQS = 0, 1, 3
_COLUMNS = 5
_LEAST = -(1 << 63)


def stretches(n: int) -> tuple[Array, Array]:
    """Empty tables of the known ages of the short and the long stretches of `n` entries."""
    return np.zeros(((n >> _SHORT) + 1, _COLUMNS), np.int64), np.zeros(((n >> _LONG) + 1, _COLUMNS), np.int64)


@kernel
def _learn(known: Array, number: int, shift: int, ticks: Array, seqs: Array) -> None:
    begin = number << shift
    end = begin + (1 << shift)
    row = known[number]
    row[_TICKS], row[_TICKS + 1] = ticks[begin:end].min(), ticks[begin:end].max()
    row[_SEQS], row[_SEQS + 1] = seqs[begin:end].min(), seqs[begin:end].max()
    row[_KNOWN] = 1


@melted
def _outside(
    known: Array, shift: int, at: int, high: int, words: Array, ticks: Array, seqs: Array,
    since: int, until: int, first: int, last: int,
) -> bool:  # fmt: skip
    """Whether a whole stretch begins at `at`, its words fit, and no entry of it is in the window."""
    length = 1 << shift
    if at & (length - 1) or at + length > words.size or words[at + length - 1] > high:
        return False
    number = at >> shift
    if not known[number, _KNOWN]:
        _learn(known, number, shift, ticks, seqs)
    row = known[number]
    return bool(row[_TICKS + 1] < since or row[_TICKS] > until or row[_SEQS + 1] < first or row[_SEQS] > last)


@kernel
def sweep_within(
    lo: Array,
    hi: Array,
    since: Array,
    until: Array,
    first: Array,
    last: Array,
    words: Array,
    ticks: Array,
    seqs: Array,
    short: Array,
    long: Array,
    cursor: Array,
    out_probe: Array,
    out_place: Array,
) -> int:
    """Emit (probe, place) of the entries that each probe's intervals of words, ticks and seqs hold; return how many.

    The low ends ascend (`sweep.make_ascending`). `short` and `long` are the run's `stretches`. Stops when the output is
    full, with cursor = (next probe, place in the run where its interval begins, place to go on from or -1), and goes on
    from there when called again.
    """
    capacity = out_probe.size
    i, begin, resume = cursor[0], cursor[1], cursor[2]
    n, n_probes, n_out = words.size, lo.size, 0
    stride = n // max(1, n_probes)
    previous = _LEAST
    while i < n_probes:
        low, high = lo[i], hi[i]
        if low <= high:
            if CHECKED:
                assert low >= previous, "the low ends of probes must ascend"  # noqa: S101 - only in a checked build
                previous = low
            if stride > 1:
                begin = skip(words, ticks, begin, low, stride)
            while begin < n and words[begin] < low:
                begin += 1
            j = begin if resume < 0 else resume
            resume = -1
            t0, t1, s0, s1 = since[i], until[i], first[i], last[i]
            while j < n and words[j] <= high:
                if not j & ((1 << _SHORT) - 1):
                    if _outside(long, _LONG, j, high, words, ticks, seqs, t0, t1, s0, s1):
                        j += 1 << _LONG
                        continue
                    if _outside(short, _SHORT, j, high, words, ticks, seqs, t0, t1, s0, s1):
                        j += 1 << _SHORT
                        continue
                if n_out == capacity:
                    cursor[0], cursor[1], cursor[2] = i, begin, j
                    return n_out
                out_probe[n_out] = i
                out_place[n_out] = j
                tick, seq = ticks[j], seqs[j]
                n_out += (t0 <= tick) & (tick <= t1) & (s0 <= seq) & (seq <= s1)
                j += 1
        i += 1
    cursor[0], cursor[1], cursor[2] = i, begin, -1
    return n_out
