"""Every probe against every live tuple: the nested loop, in blocks that stay in the first-level cache.

A block of stored words is compared with a group of probes before the next block is read. Counting matches
vectorises; only a (probe, block) with a match is read again to find which. Pairs come out in result order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.kernels.searching import gallop

BLOCK = 2048
GROUP = 64


# Numba widens 32-bit integers in every operation; casting each result back lets LLVM keep 16 of them in a
# vector register. A slice, unlike a pair of bounds, starts at 0: the index needs no check for negative values.


@kernel
def count_one(words: Array, lo: Any, span: Any) -> int:
    """How many words lie in [lo, lo + span]: one subtraction and one unsigned comparison each."""
    unsigned = words.dtype.type
    matches = unsigned(0)
    for j in range(words.size):
        matches = unsigned(matches + unsigned(unsigned(words[j] - lo) <= span))
    return int(matches)


@kernel
def count_two(first: Array, second: Array, lo1: Any, span1: Any, lo2: Any, span2: Any) -> int:
    """`count_one` for two terms at once."""
    unsigned = first.dtype.type
    matches = unsigned(0)
    for j in range(first.size):
        hit = (unsigned(first[j] - lo1) <= span1) & (unsigned(second[j] - lo2) <= span2)
        matches = unsigned(matches + unsigned(hit))
    return int(matches)


@kernel
def nested_pairs(
    words: Array,
    words2: Array,
    lo: Array,
    span: Array,
    lo2: Array,
    span2: Array,
    first: Array,
    last: Array,
    p_begin: int,
    p_end: int,
    out_probe: Array,
    out_place: Array,
) -> tuple[int, int]:
    """Pairs (probe, place) for probes p_begin to p_end over places first[p] to last[p]; words are unsigned.

    Without `words2` there is one term. Returns (the next probe, the number of pairs): it stops before a probe whose
    pairs would not fit.
    """
    unsigned = words.dtype.type
    n_out = 0
    counts = np.empty((GROUP, 1), np.int64)
    p = p_begin
    while p < p_end:
        group = min(GROUP, p_end - p)
        low, high = _group_bounds(first, last, p, group)
        blocks = max(0, (high - low + BLOCK - 1) // BLOCK)
        if counts.shape[1] < blocks:
            counts = np.empty((GROUP, blocks), np.int64)
        for b in range(blocks):
            block_begin, block_end = low + b * BLOCK, min(low + (b + 1) * BLOCK, high)
            for g in range(group):
                begin, end = max(block_begin, first[p + g]), min(block_end, last[p + g])
                if begin >= end:
                    counts[g, b] = 0
                elif words2.size == 0:
                    counts[g, b] = count_one(words[begin:end], lo[p + g], span[p + g])
                else:
                    counts[g, b] = count_two(
                        words[begin:end], words2[begin:end], lo[p + g], span[p + g], lo2[p + g], span2[p + g]
                    )
        for g in range(group):
            total = 0
            for b in range(blocks):
                total += counts[g, b]
            if n_out + total > out_probe.size:
                return p + g, n_out
            for b in range(blocks):
                if counts[g, b] > 0:
                    begin = max(low + b * BLOCK, first[p + g])
                    end = min(low + (b + 1) * BLOCK, last[p + g])
                    for j in range(begin, end):
                        if unsigned(words[j] - lo[p + g]) <= span[p + g] and (
                            words2.size == 0 or unsigned(words2[j] - lo2[p + g]) <= span2[p + g]
                        ):
                            out_probe[n_out], out_place[n_out] = p + g, j
                            n_out += 1
        p += group
    return p, n_out


@kernel
def live_ranges(
    seqs: Array, usable: Array, at: Array, min_seq: Array, upto: Array, begin: int, end: int
) -> tuple[Array, Array]:
    """The first and the last row of `seqs` that each of the tuples from `begin` to `end` meets; see `scan_window`."""
    first, last = np.empty(end - begin, np.int64), np.empty(end - begin, np.int64)
    low, high = 0, 0
    for i in range(end - begin):
        place = at[begin + i]
        # Bounds hardly ever descend.
        low = gallop(seqs, low if low > 0 and seqs[low - 1] < min_seq[place] else 0, min_seq[place])
        high = gallop(seqs, high if high > 0 and seqs[high - 1] < upto[place] else 0, upto[place])
        first[i] = low
        last[i] = max(low, high) if usable.size == 0 or usable[begin + i] else low
    return first, last


@kernel
def scan_window(
    terms: int,
    words: Array,
    words2: Array,
    seqs: Array,
    lo: Array,
    span: Array,
    lo2: Array,
    span2: Array,
    usable: Array,
    at: Array,
    min_seq: Array,
    upto: Array,
    state: Array,
    out_probe: Array,
    out_seq: Array,
) -> int:
    """The pairs of the tuples from state[0] to state[1] with stored ones, by places in the chunk and positions.

    `at` are the tuples' places in the chunk, `min_seq` and `upto` bound the positions that each meets; those that are
    not `usable` meet none (if it is empty, all are). Returns the number of pairs. state[0] is then the next tuple: it
    stops before one whose pairs would not fit. state[2] counts the comparisons.
    """
    begin, end = state[0], state[1]
    first, last = live_ranges(seqs, usable, at, min_seq, upto, begin, end)
    done, n = nested_pairs(
        words, words2 if terms > 1 else words2[:0], lo[begin:end], span[begin:end], lo2[begin:end], span2[begin:end],
        first, last, 0, end - begin, out_probe, out_seq,
    )  # fmt: skip
    for i in range(n):
        out_probe[i] = at[np.uint64(begin + out_probe[i])]
        out_seq[i] = seqs[np.uint64(out_seq[i])]
    for i in range(done):
        state[2] += last[i] - first[i]
    state[0] = begin + done
    return n


@kernel
def _group_bounds(first: Array, last: Array, p: int, group: int) -> tuple[int, int]:
    low, high = first[p], last[p]
    for g in range(1, group):
        low = min(low, first[p + g])
        high = max(high, last[p + g])
    return low, max(low, high)
