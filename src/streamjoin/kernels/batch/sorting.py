"""Sorting (word, seq) entries by word, and merging sorted ones. Both are stable: equal words stay by seq."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.flags import kernel

_SMALL = 40
_DIGIT = 11
_PATIENCE = 4
_NEVER = -(1 << 63)


@kernel
def sort_entries(words: Array, tags: Array) -> tuple[Array, Array]:
    """Sort the entries by word: returns new arrays of words and of their tags.

    Two passes of a radix sort over the leading 22 bits of the range leave keys of any width nearly sorted, and an
    insertion sort finishes them. Clustered keys would make that quadratic: they get all the passes.
    """
    if words.size <= _SMALL:
        return _insertion(words, tags)
    out_words, out_tags, sorted_ = _by_leading_bits(words, tags)
    return (out_words, out_tags) if sorted_ else _by_all_bits(words, tags)


@kernel
def _by_leading_bits(words: Array, tags: Array) -> tuple[Array, Array, bool]:
    n = words.size
    least, most = words[0], words[0]
    for i in range(n):
        least, most = min(least, words[i]), max(most, words[i])
    # Unsigned: the range of int64 words may not fit an int64.
    base = np.uint64(least)
    span = np.uint64(most) - base
    bits = 0
    while bits < 64 and (span >> np.uint64(bits)) != 0:
        bits += 1
    shift, digit = np.uint64(max(0, bits - 2 * _DIGIT)), np.uint64(_DIGIT)
    mask = np.uint64((1 << _DIGIT) - 1)
    low, high = np.zeros(1 << _DIGIT, np.int64), np.zeros(1 << _DIGIT, np.int64)
    for i in range(n):
        leading = (np.uint64(words[i]) - base) >> shift
        low[leading & mask] += 1
        high[leading >> digit] += 1
    _to_places(low)
    _to_places(high)
    half_words, half_tags = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        bucket = ((np.uint64(words[i]) - base) >> shift) & mask
        at = low[bucket]
        low[bucket] = at + 1
        half_words[at], half_tags[at] = words[i], tags[i]
    out_words, out_tags = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        bucket = (np.uint64(half_words[i]) - base) >> shift >> digit
        at = high[bucket]
        high[bucket] = at + 1
        out_words[at], out_tags[at] = half_words[i], half_tags[i]
    return out_words, out_tags, _finish(out_words, out_tags)


@kernel
def _to_places(counts: Array) -> None:
    total = 0
    for d in range(counts.size):
        here = counts[d]
        counts[d] = total
        total += here


@kernel
def _finish(words: Array, tags: Array) -> bool:
    """Insertion sort in place; gives up after a few moves per entry."""
    moves = _PATIENCE * words.size
    for i in range(1, words.size):
        w = words[i]
        if words[i - 1] > w:
            t = tags[i]
            j = i - 1
            while j >= 0 and words[j] > w:
                words[j + 1], tags[j + 1] = words[j], tags[j]
                j -= 1
            words[j + 1], tags[j + 1] = w, t
            moves -= i - j
            if moves < 0:
                return False
    return True


@kernel
def _by_all_bits(words: Array, tags: Array) -> tuple[Array, Array]:
    """A least-significant-digit radix sort over the digits in which the words differ."""
    n = words.size
    differ: Any = np.uint64(0)
    for i in range(n):
        differ |= np.uint64(words[i]) ^ np.uint64(words[0])
    # Flipping the sign bit makes the unsigned digit order the signed order.
    flip = np.uint64(1) << np.uint64(63)
    mask = np.uint64((1 << _DIGIT) - 1)
    source_w, source_t = words.copy(), tags.copy()
    spare_w, spare_t = np.empty(n, np.int64), np.empty(n, np.int64)
    count = np.empty(1 << _DIGIT, np.int64)
    for shift in range(0, 64, _DIGIT):
        if (differ >> np.uint64(shift)) & mask == 0:
            continue
        count[:] = 0
        for i in range(n):
            count[((np.uint64(source_w[i]) ^ flip) >> np.uint64(shift)) & mask] += 1
        _to_places(count)
        for i in range(n):
            bucket = ((np.uint64(source_w[i]) ^ flip) >> np.uint64(shift)) & mask
            at = count[bucket]
            count[bucket] = at + 1
            spare_w[at], spare_t[at] = source_w[i], source_t[i]
        source_w, spare_w = spare_w, source_w
        source_t, spare_t = spare_t, source_t
    return source_w, source_t


@kernel
def _insertion(words: Array, tags: Array) -> tuple[Array, Array]:
    out_w, out_t = words.copy(), tags.copy()
    for i in range(1, out_w.size):
        w, t = out_w[i], out_t[i]
        j = i - 1
        while j >= 0 and out_w[j] > w:
            out_w[j + 1], out_t[j + 1] = out_w[j], out_t[j]
            j -= 1
        out_w[j + 1], out_t[j + 1] = w, t
    return out_w, out_t


@kernel
def count_live(seqs: Array, bound: int) -> int:
    """How many of `seqs` are at least `bound`."""
    live = 0
    for i in range(seqs.size):
        live += seqs[i] >= bound
    return live


@kernel
def merge_live(
    a_words: Array,
    a_seqs: Array,
    b_words: Array,
    b_seqs: Array,
    bound: int,
    out_words: Array,
    out_seqs: Array,
) -> int:
    """Merge two sorted runs into the output without entries below `bound`; equal words take a's first.

    Returns the number written. The output needs one slot more than there are live entries: every entry is
    stored and the place only moves on past a live one, which keeps the loop free of unpredictable branches.
    """
    i, j, k = 0, 0, 0
    na, nb = a_words.size, b_words.size
    while i < na and j < nb:
        take_b = b_words[j] < a_words[i]
        w = b_words[j] if take_b else a_words[i]
        s = b_seqs[j] if take_b else a_seqs[i]
        j += take_b
        i += not take_b
        out_words[k] = w
        out_seqs[k] = s
        k += s >= bound
    while i < na:
        out_words[k] = a_words[i]
        out_seqs[k] = a_seqs[i]
        k += a_seqs[i] >= bound
        i += 1
    while j < nb:
        out_words[k] = b_words[j]
        out_seqs[k] = b_seqs[j]
        k += b_seqs[j] >= bound
        j += 1
    return k


def merged_entries(a: tuple[Array, Array], b: tuple[Array, Array], bound: int | None = None) -> tuple[Array, Array]:
    """Two sorted runs of (words, seqs) as a new one, without the entries below `bound`; equal words take a's first."""
    live = a[0].size + b[0].size if bound is None else count_live(a[1], bound) + count_live(b[1], bound)
    words, seqs = np.empty(live + 1, np.int64), np.empty(live + 1, np.int64)
    merge_live(*a, *b, _NEVER if bound is None else bound, words, seqs)
    return words[:live], seqs[:live]


@kernel
def lower_bound(words: Array, word: int) -> int:
    """The first place whose word is at least `word`."""
    low, high = 0, words.size
    while low < high:
        middle = (low + high) >> 1
        if words[middle] < word:
            low = middle + 1
        else:
            high = middle
    return low
