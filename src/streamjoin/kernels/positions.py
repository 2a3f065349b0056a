"""The place of each tuple of a chunk: its position in its own stream, and how many of the other came before."""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.kernels.searching import gallop
from streamjoin.kernels.times import before
from streamjoin.kernels.trees.task import INSERTS, ON_RIGHT, PROBES

# The rows of a block of words (see `kernels.encode`) that say what each tuple does, in gate order; OPS to OWN_MIN
# are the columns of an index's task.
OPS, WORD, LO, HI, OWN_SEQ, MIN_SEQ, OWN_MIN, UPTO, AT, VALID, TICKS, TERMS = range(12)

# What `place_tuples` knows of a side.
SIDE_FIELDS = 6
(
    FIRST,  # the position of its first new tuple
    SIZE,  # of its window; that of a time is a length (`kernels.times`)
    IS_TIMED,  # whether that is a time
    LEAST,  # the smallest position that its index must keep
    GROWS,  # whether the bounds of its window never decrease
    END,  # the place behind its stored rows
) = range(SIDE_FIELDS)


@kernel
def set_positions(
    is_right: Array,
    first: int,
    left_next: int,
    right_next: int,
    left_window: int,
    right_window: int,
    own_seq: Array,
    upto: Array,
    min_seq: Array,
    left_at: Array,
    right_at: Array,
) -> None:
    """Fill own_seq, upto and min_seq for tuples in gate order, and each side's places, which are counted from `first`.

    min_seq is that of count windows.
    """
    nl, nr = 0, 0
    for i in range(is_right.size):
        if is_right[i]:
            own_seq[i] = right_next + nr
            upto[i] = left_next + nl
            min_seq[i] = upto[i] - left_window
            right_at[nr] = first + i
            nr += 1
        else:
            own_seq[i] = left_next + nl
            upto[i] = right_next + nr
            min_seq[i] = upto[i] - right_window
            left_at[nl] = first + i
            nl += 1


@kernel
def merge_sides(left: Array, right: Array, is_right: Array) -> None:
    """The side of each place when two ascending arrays of times are merged, left first where they are equal."""
    left_end, right_end = left.size - 1, right.size - 1
    i, j, place, last = 0, 0, 0, is_right.size - 1
    # Each comparison waits for the one before it, so two independent merges run at once: one from each end.
    while place < last and i < left.size and j < right.size and left_end >= 0 and right_end >= 0:
        later = right[j] < left[i]
        is_right[place] = later
        j += later
        i += not later
        place += 1
        later = right[right_end] >= left[left_end]
        is_right[last] = later
        right_end -= later
        left_end -= not later
        last -= 1
    while place <= last:
        later = j <= right_end and (i > left_end or right[j] < left[i])
        is_right[place] = later
        j += later
        i += not later
        place += 1


@kernel
def filter_ticks(
    probes: Array,
    seqs: Array,
    n: int,
    is_right: Array,
    least: Array,
    most: Array,
    left_ticks: Array,
    right_ticks: Array,
    left_base: int,
    right_base: int,
) -> int:
    """Keep the pairs whose earlier tuple has a time that its probe reaches; where positions do not decide that."""
    kept = 0
    for i in range(n):
        probe, seq = probes[i], seqs[i]
        tick = left_ticks[seq - left_base] if is_right[probe] else right_ticks[seq - right_base]
        probes[kept] = probe
        seqs[kept] = seq
        kept += least[probe] <= tick and tick <= most[probe]
    return kept


@kernel
def filter_terms(
    probes: Array,
    seqs: Array,
    n: int,
    is_right: Array,
    place: Array,
    left_lo: Array,
    left_hi: Array,
    right_lo: Array,
    right_hi: Array,
    left_words: Array,
    right_words: Array,
    left_base: int,
    right_base: int,
) -> int:
    """Keep the pairs that satisfy one term; place[p] is the place of probe p among its own side's tuples."""
    kept = 0
    for i in range(n):
        probe, seq = probes[i], seqs[i]
        at = place[probe]
        if is_right[probe]:
            word = left_words[seq - left_base]
            hit = right_lo[at] <= word and word <= right_hi[at]
        else:
            word = right_words[seq - right_base]
            hit = left_lo[at] <= word and word <= left_hi[at]
        probes[kept] = probe
        seqs[kept] = seq
        kept += hit
    return kept


@kernel
def ascends(ticks: I64, last: int) -> bool:
    """Whether times never fall, after `last`."""
    for i in range(ticks.size):
        if ticks[i] < last:
            return False
        last = ticks[i]
    return True


@kernel
def place_tuples(
    block: Array, is_right: Array, sides: Array, n_left: int, index_row: int, left_ticks: I64, right_ticks: I64
) -> None:
    """Fill the rows of a block up to AT: positions, windows and the columns of an index's task.

    `is_right` is empty where all left tuples come first. The ticks of a side are its stored ones and its new ones, in
    order; position `FIRST` is behind the stored ones.
    """
    n = block.shape[1]
    count, start, least, stored = np.zeros((4, 2), np.int64)
    least[0], least[1] = sides[0, LEAST], sides[1, LEAST]
    stored[0], stored[1] = left_ticks.size - n_left, right_ticks.size - (n - n_left)
    for i in range(n):
        side = np.int64(i >= n_left) if is_right.size == 0 else np.int64(is_right[i])
        other = 1 - side
        at = count[side] + (n_left if side else 0)
        block[OWN_SEQ, i] = sides[side, FIRST] + count[side]
        upto = sides[other, FIRST] + count[other]
        if sides[other, IS_TIMED]:
            tick = block[TICKS, at]
            bound = before(tick, sides[other, SIZE])
            # The new ticks of this side ascend, so the bounds do.
            ticks = left_ticks if other == 0 else right_ticks
            start[other] = gallop(ticks, start[other], bound)
            min_seq = sides[other, FIRST] - stored[other] + start[other]
        else:
            min_seq = upto - sides[other, SIZE]
        if sides[other, GROWS]:
            least[other] = max(least[other], min_seq)
        block[UPTO, i] = upto
        block[MIN_SEQ, i] = min_seq
        block[OWN_MIN, i] = least[side]
        block[AT, at] = i
        block[OPS, i] = (ON_RIGHT if side else 0) | (PROBES | INSERTS if block[VALID, at] else 0)
        if index_row >= 0 and is_right.size:
            block[WORD, i] = block[index_row, at]
            block[LO, i] = block[index_row + 1, at]
            block[HI, i] = block[index_row + 2, at]
        count[side] += 1


@kernel
def place_roles(block: Array, sides: Array, index_row: int, ticks: I64, shared: bool) -> None:
    """`place_tuples` for a self-join: each tuple first as a left and then as a right one, and matches earlier ones.

    `shared` says that both roles are looked up in one index, which takes a tuple as a right one, once.
    """
    n = block.shape[1] // 2
    start, least = np.zeros((2, 2), np.int64)
    least[0], least[1] = sides[0, LEAST], sides[1, LEAST]
    stored = ticks.size - n
    for i in range(n):
        upto = sides[0, FIRST] + i
        for role in range(2):
            other, at, place = 1 - role, i + role * n, 2 * i + role
            if sides[other, IS_TIMED]:
                tick = block[TICKS, at]
                bound = before(tick, sides[other, SIZE])
                start[other] = gallop(ticks, start[other], bound)
                min_seq = sides[0, FIRST] - stored + start[other]
            else:
                min_seq = upto - sides[other, SIZE] + 1
            if sides[other, GROWS]:
                least[other] = max(least[other], min_seq)
            block[OWN_SEQ, place] = upto
            block[UPTO, place] = upto
            block[MIN_SEQ, place] = min_seq
            block[AT, at] = place
            use = PROBES if shared and role == 0 else PROBES | INSERTS
            block[OPS, place] = (ON_RIGHT if role else 0) | (use if block[VALID, at] else 0)
            if index_row >= 0:
                block[WORD, place] = block[index_row, at]
                block[LO, place] = block[index_row + 1, at]
                block[HI, place] = block[index_row + 2, at]
        for role in range(2):
            block[OWN_MIN, 2 * i + role] = min(least[0], least[1]) if shared else least[role]


@kernel
def merge_roles(probes: I64, seqs: I64) -> None:
    """Order a self-join's pairs by tuple, the other's position, and role: a tuple's two runs become one."""
    n = probes.size
    ordered = np.empty((2, n), np.int64)
    begin = 0
    while begin < n:
        tuple_ = probes[begin] >> 1
        middle = begin
        while middle < n and probes[middle] == 2 * tuple_:
            middle += 1
        end = middle
        while end < n and probes[end] == 2 * tuple_ + 1:
            end += 1
        a, b = begin, middle
        for k in range(begin, end):
            if b >= end or (a < middle and seqs[a] <= seqs[b]):
                ordered[0, k], ordered[1, k] = probes[a], seqs[a]
                a += 1
            else:
                ordered[0, k], ordered[1, k] = probes[b], seqs[b]
                b += 1
        begin = end
    for k in range(n):
        probes[k], seqs[k] = ordered[0, k], ordered[1, k]
