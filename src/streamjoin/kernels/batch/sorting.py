"""Sorting (word, seq) entries by word, and merging sorted ones. Both are stable: equal words stay by seq."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.kernels.searching import first_from

BLOCK = 16
"""A run's directory has the last word of every block of this many entries."""
BLOCK_BITS = 4

_SMALL = 40
_DIGIT = 11
_PATIENCE = 4
_NEVER = -(1 << 63)
_LEAST_STEPS = 8


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
        at = np.uint64(low[bucket])
        low[bucket] += 1
        half_words[at], half_tags[at] = words[i], tags[i]
    if bits <= _DIGIT:
        return half_words, half_tags, True
    out_words, out_tags = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        bucket = (np.uint64(half_words[i]) - base) >> shift >> digit
        at = np.uint64(high[bucket])
        high[bucket] += 1
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
def least_and_most(words: Array) -> tuple[int, int]:
    """The least and the greatest word."""
    least, most = words[0], words[0]
    for i in range(words.size):
        least, most = min(least, words[i]), max(most, words[i])
    return least, most


@kernel
def count_leading(words: Array, least: int, shift: int, counts: Array) -> None:
    """Add to `counts` how many words there are of each bucket, which is the distance from `least` without low bits."""
    for i in range(words.size):
        counts[(np.uint64(words[i]) - np.uint64(least)) >> np.uint64(shift)] += 1


@kernel
def partition_entries(
    words: Array, tags: Array, least: int, shift: int, places: Array, out_words: Array, out_tags: Array
) -> None:
    """Write each entry to the next place of its word's bucket; `places` moves on."""
    for i in range(words.size):
        bucket = (np.uint64(words[i]) - np.uint64(least)) >> np.uint64(shift)
        at = np.uint64(places[bucket])
        places[bucket] += 1
        out_words[at], out_tags[at] = words[i], tags[i]


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
    cuts: Array,
    bound: int,
    out_words: Array,
    out_seqs: Array,
    out_tops: Array,
) -> None:
    """Merge two neighbouring ranges of two sorted runs without entries below `bound`; equal words take a's first.

    The rows of `cuts` are where the ranges begin, where they meet and where they end: in a, in b and in the output.
    Finding an entry's place takes several steps that wait for each other, so two ranges are merged at a time; every
    entry is stored and the place only moves on past a live one, which keeps the loop free of unpredictable branches.
    `out_tops`, if it is not empty, gets the last word of each block that ends here.
    """
    i, j, k = cuts[0, 0], cuts[0, 1], cuts[0, 2]
    p, q, r = cuts[1, 0], cuts[1, 1], cuts[1, 2]
    i_end, j_end, k_end = p, q, r
    p_end, q_end, r_end = cuts[2, 0], cuts[2, 1], cuts[2, 2]
    steps = _LEAST_STEPS
    while steps >= _LEAST_STEPS:
        steps = min(i_end - i, j_end - j, k_end - k, p_end - p, q_end - q, r_end - r)
        for _ in range(steps):
            # Unsigned places spare the test for negative ones, on which the next step would wait.
            x, y, s, t = a_words[np.uint64(i)], b_words[np.uint64(j)], a_seqs[np.uint64(i)], b_seqs[np.uint64(j)]
            later = np.int64(y < x)
            s ^= (s ^ t) & -later
            out_words[np.uint64(k)], out_seqs[np.uint64(k)] = x ^ ((x ^ y) & -later), s
            i += 1 - later
            j += later
            k += s >= bound
            x, y, s, t = a_words[np.uint64(p)], b_words[np.uint64(q)], a_seqs[np.uint64(p)], b_seqs[np.uint64(q)]
            later = np.int64(y < x)
            s ^= (s ^ t) & -later
            out_words[np.uint64(r)], out_seqs[np.uint64(r)] = x ^ ((x ^ y) & -later), s
            p += 1 - later
            q += later
            r += s >= bound
    _merge_rest(
        a_words[i:i_end], a_seqs[i:i_end], b_words[j:j_end], b_seqs[j:j_end], bound,
        out_words[k:k_end], out_seqs[k:k_end],
    )  # fmt: skip
    _merge_rest(
        a_words[p:p_end], a_seqs[p:p_end], b_words[q:q_end], b_seqs[q:q_end], bound,
        out_words[r:r_end], out_seqs[r:r_end],
    )  # fmt: skip
    if out_tops.size > 0:
        for block in range(cuts[0, 2] >> BLOCK_BITS, r_end >> BLOCK_BITS):
            out_tops[block] = out_words[(block << BLOCK_BITS) + BLOCK - 1]


@kernel
def _merge_rest(
    a_words: Array, a_seqs: Array, b_words: Array, b_seqs: Array, bound: int, out_words: Array, out_seqs: Array
) -> None:
    i = j = k = 0
    while k < out_words.size:
        if j == b_words.size or (i < a_words.size and a_words[i] <= b_words[j]):
            out_words[k], out_seqs[k] = a_words[i], a_seqs[i]
            k += a_seqs[i] >= bound
            i += 1
        else:
            out_words[k], out_seqs[k] = b_words[j], b_seqs[j]
            k += b_seqs[j] >= bound
            j += 1


@kernel
def count_ranges(a_seqs: Array, b_seqs: Array, cuts: Array, bound: int) -> None:
    """Write the number of entries of each range that are at least `bound` to the end of its cut: see `merge_live`."""
    for k in range(cuts.shape[0] - 1):
        live = count_live(a_seqs[cuts[k, 0] : cuts[k + 1, 0]], bound)
        cuts[k + 1, 2] = live + count_live(b_seqs[cuts[k, 1] : cuts[k + 1, 1]], bound)


def cut_runs(a_words: Array, b_words: Array, parts: int) -> Array:
    """Where two sorted runs are cut into `parts` ranges at common words: places in a, in b, and 0 for the output's."""
    edges = np.zeros((parts + 1, 3), np.int64)
    edges[parts, :2] = a_words.size, b_words.size
    for part in range(1, parts):
        at = a_words.size * part // parts
        if at < a_words.size:
            # Equal words must not be on both sides of a cut; otherwise a's entries would not come first.
            edges[part, :2] = lower_bound(a_words, a_words[at]), lower_bound(b_words, a_words[at])
    return edges


def merged_entries(a: tuple[Array, Array], b: tuple[Array, Array], bound: int | None = None) -> tuple[Array, Array]:
    """Two sorted runs of (words, seqs) as a new one, without the entries below `bound`; equal words take a's first."""
    least = _NEVER if bound is None else bound
    edges = cut_runs(a[0], b[0], 2)
    count_ranges(a[1], b[1], edges, least)
    edges[2, 2] += edges[1, 2]
    live = int(edges[2, 2])
    words, seqs = np.empty(live, np.int64), np.empty(live, np.int64)
    merge_live(*a, *b, edges, least, words, seqs, np.empty(0, np.int64))
    return words, seqs


def tops_of(words: Array) -> Array:
    """The directory of a run: the last word of every full block."""
    return np.ascontiguousarray(words[BLOCK - 1 :: BLOCK])


@kernel
def lower_bound(words: Array, word: int) -> int:
    """The first place whose word is at least `word`."""
    return first_from(words, 0, words.size, word)
