"""Writing a chunk's tuples to the log of their side, one call for each side.

A log holds only tuples that can match: none with a NULL, none with an empty interval. Words are unsigned numbers of the
same order; in 32 bits the ends of intervals are cut to what 32 bits hold.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.flags import kernel
from streamjoin.kernels.handshake.links import EXPIRES, GATE, MIN_SEQ, SEQ, UPTO
from streamjoin.kernels.handshake.meet import LOW, SPAN, WORD
from streamjoin.kernels.machine import I64

_SIGN = np.uint64(1 << 63)
_LEAST, _LARGEST = -(1 << 31), (1 << 31) - 1


@kernel
def _put(words: Array, row: int, term: int, word: int, lo: int, hi: int) -> None:
    if words.itemsize == 4:
        lo = min(max(lo, _LEAST), _LARGEST)
        hi = min(max(hi, _LEAST), _LARGEST)
        words[WORD + term, row] = word - _LEAST
        words[LOW + term, row] = lo - _LEAST
        words[SPAN + term, row] = hi - lo
    else:
        words[WORD + term, row] = np.uint64(word) ^ _SIGN
        words[LOW + term, row] = np.uint64(lo) ^ _SIGN
        words[SPAN + term, row] = np.uint64(hi) - np.uint64(lo)


@kernel
def log_tuples(
    words: Array, facts: I64, size: int, word1: I64, lo1: I64, hi1: I64, word2: I64, lo2: I64, hi2: I64, terms: int,
    valid: Array, at: I64, first_seq: int, gate: int, min_seq: I64, upto: I64, logged: Array,
) -> int:  # fmt: skip
    """Append the tuples that can match behind row `size`; returns the new size, and marks them in `logged`.

    `at` has their places in the chunk. Without `valid`, which is empty then, no tuple has a NULL.
    """
    for i in range(at.size):
        if valid.size > 0 and not valid[i]:
            continue
        if (terms > 0 and lo1[i] > hi1[i]) or (terms > 1 and lo2[i] > hi2[i]):
            continue
        if terms > 0:
            _put(words, size, 0, word1[i], lo1[i], hi1[i])
        if terms > 1:
            _put(words, size, 1, word2[i], lo2[i], hi2[i])
        place = at[i]
        facts[size, SEQ] = first_seq + i
        facts[size, MIN_SEQ] = min_seq[place]
        facts[size, UPTO] = upto[place]
        facts[size, GATE] = gate + place
        logged[place] = True
        size += 1
    return size


@kernel
def set_expiries(facts: I64, begin: int, end: int, other: I64, size: int, base: int, grows: bool, dropped: int) -> None:
    """Write which of the other side's places have expired for rows `begin` to `end`, and all tuples after them.

    The bound of a row is its MIN_SEQ if bounds only grow, else `dropped`; `other` has `size` rows, the first of them
    place `base`.
    """
    place = 0
    for row in range(begin, end):
        bound = facts[row, MIN_SEQ] if grows else dropped
        if row == begin:
            high = size
            while place < high:
                middle = (place + high) // 2
                if other[middle, SEQ] < bound:
                    place = middle + 1
                else:
                    high = middle
        while place < size and other[place, SEQ] < bound:
            place += 1
        facts[row, EXPIRES] = base + place
