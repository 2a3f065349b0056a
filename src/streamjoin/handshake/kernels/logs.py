"""Writing a chunk's tuples to the log of their side, one call for each side.

A log holds only tuples that can match: none with a NULL, none with an empty interval. Words are unsigned numbers of the
same order; in 32 bits the ends of intervals are cut to what 32 bits hold.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.handshake.kernels.links import EXPIRES, GATE, MIN_SEQ, SEQ, UPTO, send_marked
from streamjoin.handshake.kernels.meet import LOW, SPAN, WORD
from streamjoin.jit.atomics import store
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.kernels.positions import AT, OPS, OWN_SEQ, VALID
from streamjoin.kernels.positions import MIN_SEQ as BLOCK_MIN_SEQ
from streamjoin.kernels.positions import UPTO as BLOCK_UPTO

_SIGN = np.uint64(1 << 63)
# What `send_block` knows of each log, and of the block behind them.
LOG_FIELDS = 4
(
    LOG_BASE,  # the place of its first row
    LOG_END,  # the end of its places
    LOG_BEFORE,  # the position below which nothing was in a window before the block
    LOG_DROPPED,  # likewise after it
) = range(LOG_FIELDS)
BLOCK_LEFT, BLOCK_VALID, BLOCK_GATE = range(2 * LOG_FIELDS, 2 * LOG_FIELDS + 3)
SENT_FIELDS = 2 * LOG_FIELDS + 3
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


@kernel
def _log_side(
    block: I64, begin: int, end: int, rows: I64, all_valid: bool, gate: int, words: Array, facts: I64, size: int,
    logged: Array,
) -> int:  # fmt: skip
    """Append a side's tuples, columns `begin` to `end` of a block, behind row `size`; returns the new size."""
    terms = rows.size
    for i in range(begin, end):
        if not all_valid and block[VALID, i] == 0:
            continue
        if terms > 0 and block[rows[0] + 1, i] > block[rows[0] + 2, i]:
            continue
        if terms > 1 and block[rows[1] + 1, i] > block[rows[1] + 2, i]:
            continue
        for term in range(terms):
            row = rows[term]
            _put(words, size, term, block[row, i], block[row + 1, i], block[row + 2, i])
        place = block[AT, i]
        facts[size, SEQ] = block[OWN_SEQ, place]
        facts[size, MIN_SEQ] = block[BLOCK_MIN_SEQ, place]
        facts[size, UPTO] = block[BLOCK_UPTO, place]
        facts[size, GATE] = gate + place
        logged[place] = True
        size += 1
    return size


@kernel
def send_block(
    crew: I64, me: int, mem: I64, block: I64, rows: I64, words_r: Array, facts_r: I64, words_s: Array, facts_s: I64,
    grows: Array, sent: I64, mark: I64,
) -> int:  # fmt: skip
    """Log the tuples of a block on both sides, with expiries, and send them; `mark` gets the places behind them.

    `rows` are the first rows of the terms, `grows` says whether a side's bounds only grow. `sent` describes both logs,
    LOG_FIELDS each, and the block: how many left tuples it has, whether all tuples are valid, its gate position.
    """
    n, n_left = block.shape[1], sent[BLOCK_LEFT]
    all_valid, gate = sent[BLOCK_VALID] != 0, sent[BLOCK_GATE]
    logged = np.zeros(n, np.bool_)
    left, right = sent[:LOG_FIELDS], sent[LOG_FIELDS : 2 * LOG_FIELDS]
    begin_r, begin_s = left[LOG_END] - left[LOG_BASE], right[LOG_END] - right[LOG_BASE]
    end_r = _log_side(block, 0, n_left, rows, all_valid, gate, words_r, facts_r, begin_r, logged)
    end_s = _log_side(block, n_left, n, rows, all_valid, gate, words_s, facts_s, begin_s, logged)
    set_expiries(facts_r, begin_r, end_r, facts_s, end_s, right[LOG_BASE], grows[1], right[LOG_BEFORE])
    set_expiries(facts_s, begin_s, end_s, facts_r, end_r, left[LOG_BASE], grows[0], left[LOG_BEFORE])
    is_right = np.empty(n, np.bool_)
    count = 0
    for place in range(n):
        if logged[place]:
            is_right[count] = block[OPS, place] & 1
            count += 1
    store(mark, 1, right[LOG_BASE] + end_s)
    store(mark, 0, left[LOG_BASE] + end_r)
    return send_marked(
        crew, me, mem, is_right[:count], facts_r, facts_s, left[LOG_END], right[LOG_END], mark[0], mark[1],
        left[LOG_DROPPED], right[LOG_DROPPED],
    )  # fmt: skip
