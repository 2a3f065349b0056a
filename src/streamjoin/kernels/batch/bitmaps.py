"""Two comparisons at once, without comparing pair by pair: sorted words with a bitmap at every few ranks.

A block holds, for one term, the words of up to `BLOCK` stored tuples in order, the tuples' places by that order, and
for every `STEP` ranks a bitmap of the places below. What lies in an interval of words is then the difference of two
bitmaps, mended by a few places at either end, and what satisfies both terms is the intersection of two such sets. A
probe costs some hundred operations on words where comparing costs one for each stored tuple. Places come out in order.

The sorted arrays and the intersection of bitmaps are the idea of the IEJoin (Khayyat et al., VLDB 2015); keeping
bitmaps at ranks makes blocks that any number of later probes can use, and takes intervals that are open on no side.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64, lowest_bit
from streamjoin.kernels.searching import first_from, gallop

BLOCK = 8192
STEP = 64
_WORDS = BLOCK // 64
# A block: the words, the places, the bitmaps of the places of rank below 0, STEP, 2 STEP, ...
_PLACES = BLOCK
_BITMAPS = 2 * BLOCK
BLOCK_WORDS = _BITMAPS + (BLOCK // STEP + 1) * _WORDS

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_BITS = (np.uint64(1) << np.arange(64, dtype=np.uint64)).view(np.int64)
# All bits from one on; the last of these masks is empty.
_FROM = np.append(~(_BITS.view(np.uint64) - np.uint64(1)), np.uint64(0)).view(np.int64)


@kernel
def build_block(words: I64, order: I64, block: I64) -> None:
    """Make the block of at most `BLOCK` words; `order` sorts them."""
    n = words.size
    for rank in range(n):
        block[rank] = words[order[rank]]
        block[_PLACES + rank] = order[rank]
    steps = (n + STEP - 1) // STEP
    block[_BITMAPS : _BITMAPS + _WORDS] = 0
    for step in range(steps):
        at = _BITMAPS + (step + 1) * _WORDS
        block[at : at + _WORDS] = block[at - _WORDS : at]
        for rank in range(step * STEP, min(n, (step + 1) * STEP)):
            place = order[rank]
            block[at + (place >> 6)] |= _BITS[place & 63]


@kernel
def _mend(block: I64, begin: int, end: int, on: bool, out: I64) -> None:
    """Set or clear the places of ranks from `begin` to `end`."""
    for rank in range(begin, end):
        place = block[_PLACES + rank]
        if on:
            out[place >> 6] |= _BITS[place & 63]
        else:
            out[place >> 6] &= ~_BITS[place & 63]


@kernel
def _within(block: I64, n: int, lo: int, hi: int, out: I64) -> None:
    """The bitmap of the places whose words lie from `lo` to `hi`."""
    words = block[:n]
    begin = 0 if lo == _LEAST else first_from(words, 0, n, lo)
    end = n if hi == _MOST else first_from(words, begin, n, hi + 1)
    # The bitmaps at the nearest ranks, and what lies between them and the ends.
    low, high = (begin + STEP // 2) // STEP, (end + STEP // 2) // STEP
    below, above = _BITMAPS + low * _WORDS, _BITMAPS + high * _WORDS
    for word in range((n + 63) >> 6):
        out[word] = block[above + word] & ~block[below + word]
    if high * STEP < end:
        _mend(block, high * STEP, end, True, out)
    else:
        _mend(block, end, min(high * STEP, n), False, out)
    if low * STEP < begin:
        _mend(block, low * STEP, begin, False, out)
    else:
        _mend(block, begin, min(low * STEP, end), True, out)


@kernel
def scan_block(
    block: I64,
    block2: I64,
    seqs: I64,
    lo: I64,
    hi: I64,
    lo2: I64,
    hi2: I64,
    usable: Array,
    at: I64,
    min_seq: I64,
    upto: I64,
    state: I64,
    out_probe: I64,
    out_seq: I64,
) -> int:
    """`nested.scan_window` for the tuples of one block, whose positions are `seqs`, by both terms."""
    n = seqs.size
    one, two = np.empty(_WORDS, np.int64), np.empty(_WORDS, np.int64)
    found = first = last = 0
    for probe in range(state[0], state[1]):
        place = at[probe]
        # Bounds hardly ever descend.
        first = gallop(seqs, first if first > 0 and seqs[first - 1] < min_seq[place] else 0, min_seq[place])
        last = gallop(seqs, last if last > 0 and seqs[last - 1] < upto[place] else 0, upto[place])
        if first < last and (usable.size == 0 or usable[probe]):
            _within(block, n, lo[probe], hi[probe], one)
            _within(block2, n, lo2[probe], hi2[probe], two)
            before = found
            for word in range(first >> 6, (last + 63) >> 6):
                bits = one[word] & two[word]
                if word == first >> 6:
                    bits &= _FROM[first & 63]
                if word == last >> 6:
                    bits &= ~_FROM[last & 63]
                while bits:
                    if found == out_probe.size:
                        # Its pairs do not fit: it is the next one.
                        state[0] = probe
                        return before
                    out_probe[found], out_seq[found] = place, seqs[(word << 6) + lowest_bit(bits)]
                    found += 1
                    bits &= ~_BITS[lowest_bit(bits)]
            state[2] += last - first
    state[0] = state[1]
    return found
