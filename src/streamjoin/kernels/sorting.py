"""Sorting (word, seq) entries by word, and merging sorted ones. Both are stable: equal words stay by seq."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.kernels.flags import kernel

Array = np.ndarray[Any, np.dtype[Any]]

_SMALL = 40
_DIGIT = 11


@kernel
def sort_entries(words: Array, tags: Array) -> tuple[Array, Array]:
    """The entries by word: new arrays of words and of the tags that came with them.

    A least-significant-digit radix sort that passes only over the digits in which the words differ, so keys
    of a small domain cost two or three passes.
    """
    n = words.size
    if n <= _SMALL:
        return _insertion(words, tags)
    differ: Any = np.uint64(0)
    for i in range(n):
        differ |= np.uint64(words[i]) ^ np.uint64(words[0])
    # Flipping the sign bit makes the unsigned digit order the signed order.
    flip = np.uint64(1) << np.uint64(63)
    buckets = 1 << _DIGIT
    source_w, source_t = words, tags
    spare_w, spare_t = np.empty(n, np.int64), np.empty(n, np.int64)
    other_w, other_t = np.empty(n, np.int64), np.empty(n, np.int64)
    count = np.empty(buckets, np.int64)
    moved = False
    for shift in range(0, 64, _DIGIT):
        mask = np.uint64(buckets - 1)
        if (differ >> np.uint64(shift)) & mask == 0:
            continue
        count[:] = 0
        for i in range(n):
            count[((np.uint64(source_w[i]) ^ flip) >> np.uint64(shift)) & mask] += 1
        total = 0
        for d in range(buckets):
            here = count[d]
            count[d] = total
            total += here
        for i in range(n):
            digit = ((np.uint64(source_w[i]) ^ flip) >> np.uint64(shift)) & mask
            at = count[digit]
            count[digit] = at + 1
            spare_w[at] = source_w[i]
            spare_t[at] = source_t[i]
        if moved:
            source_w, spare_w = spare_w, source_w
            source_t, spare_t = spare_t, source_t
        else:
            # The first pass read the caller's arrays, which stay as they are.
            source_w, spare_w = spare_w, other_w
            source_t, spare_t = spare_t, other_t
            moved = True
    if not moved:
        return words.copy(), tags.copy()
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
    """Merge two sorted runs into the output, leaving out entries below `bound`; equal words take a's first.

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
