"""Windows of summaries: they slide over the right tuples in the order of time, and their aggregates with them.

The windows of left tuples ascend, so a right tuple enters the window of its key once and leaves it once. `schedule`
brings this into one order, as steps: a right tuple enters, one leaves, a left tuple asks. Aggregates go over the steps
with a table of a row for each key: a sum adds and takes away, which is exact; an extreme is the lesser of two, of the
tuples in front of a place in the middle and of those behind it. In front of it every tuple knows the best of its key
between it and the middle (`after`), so one that leaves says what is left; when all have left, the middle moves to the
end of the window, and one pass back over the window says it anew. So a step takes constant time on average, however
many tuples a window has, reads arrays from one end to the other, and branches on nothing that can't be predicted.
Smaller words are better; where they are positions the oldest value is best.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import prefetch
from streamjoin.kernels.encode import flip64
from streamjoin.kernels.exact import AHEAD, NEAR_BYTES

NONE: Final = -1
ASKS, ENTERS, LEAVES = 0, 1, 2
"""The kinds of steps."""
SPARE_ROWS: Final = 2
"""Rows of a table in front of those of the keys: of left tuples that match nothing, and of right ones."""
WORST: Final = (1 << 63) - 1
"""The word where there is no value."""
LEAST: Final = -(1 << 63)
"""The word of a float that is no number."""
_NOT_A_NUMBER: Final = 0x7FF8 << 48
ENTERED, LEFT, ASKED = 0, 1, 2
"""Places in `at`: how many right tuples have entered and left, and how many left ones have asked."""
# A row of a table of extremes: how many values there are, and from `_BEHIND` on for each order the best one behind the
# middle and the best one in front of it.
_COUNT, _BEHIND = np.uint64(0), np.uint64(1)
_U0, _U1 = np.uint64(0), np.uint64(1)


@inlined
def _row_of_left(key: Any) -> Any:
    """The row of a left tuple."""
    return key + SPARE_ROWS if key >= 0 else 0


@kernel
def schedule(
    starts: Array, ends: Array, left_keys: Array, short: int, beyond: int, keys: Array, entering: Array, leaving: Array,
    at: Array, counts: Array, rows: Array, kinds: Array, sizes: Array,
) -> int:  # fmt: skip
    """The next steps, as many as there is room for; returns how many.

    A right tuple is in a window if its word of `entering` is not beyond the window's end and its word of `leaving` not
    before its start; these ascend, as starts and ends do. The first `short` windows end before all tuples, those from
    `beyond` on begin after all. `counts` has the number of tuples in the window of each key, `sizes` gets it for each
    left tuple; `sizes` has room for one more.
    """
    entered, left, j, n = np.uint64(at[ENTERED]), np.uint64(at[LEFT]), np.uint64(at[ASKED]), _U0
    end, room = np.uint64(keys.size), np.uint64(rows.size)
    while n < room and j < np.uint64(short):
        row = _row_of_left(left_keys[j])
        rows[n], kinds[n], sizes[j] = row, ASKS, counts[row]
        n, j = n + _U1, j + _U1
    # Nothing branches on what comes next, which can't be predicted: a left tuple's size is written again until its turn
    # comes. While no tuple is in the window none is before its start, as that would have entered first.
    while n < room and entered < end and j < np.uint64(beyond):
        enters = entering[entered] <= ends[j]
        leaves = (not enters) & (leaving[left] < starts[j])
        one, other = np.uint64(enters), np.uint64(leaves)
        left_key = left_keys[j]
        row = keys[entered if enters else left] + SPARE_ROWS
        if not (enters | leaves):
            row = left_key + SPARE_ROWS if left_key >= 0 else 0
        count = counts[row] + np.int64(one) - np.int64(other)
        counts[row], sizes[j] = count, count
        rows[n], kinds[n] = row, one + other + other
        entered, left, j, n = entered + one, left + other, j + (_U1 - one - other), n + _U1
    while n < room and j < np.uint64(beyond) and entered == end:
        leaves = left < entered and leaving[left] < starts[j]
        row = keys[left] + SPARE_ROWS if leaves else _row_of_left(left_keys[j])
        counts[row] -= leaves
        sizes[j] = counts[row]
        rows[n], kinds[n] = row, LEAVES if leaves else ASKS
        left, j, n = left + np.uint64(leaves), j + np.uint64(not leaves), n + _U1
    while n < room and np.uint64(beyond) <= j and j < np.uint64(left_keys.size):
        if left < end:
            enters = entered < end
            row = keys[entered if enters else left] + SPARE_ROWS
            counts[row] += 1 if enters else -1
            rows[n], kinds[n] = row, ENTERS if enters else LEAVES
            entered, left, n = entered + np.uint64(enters), left + np.uint64(not enters), n + _U1
        else:
            row = _row_of_left(left_keys[j])
            rows[n], kinds[n], sizes[j] = row, ASKS, counts[row]
            n, j = n + _U1, j + _U1
    at[ENTERED], at[LEFT], at[ASKED] = entered, left, j
    return int(n)


@kernel
def slide_newest(
    rows: Array, kinds: Array, n: int, entered: int, left: int, asked: int, base: int, previous: Array, table: Array,
    out: Array,
) -> None:  # fmt: skip
    """The newest tuple of each left tuple's key in its window, and the newest one before; positions from `base` on.

    `previous` gets the predecessor of each tuple that enters.
    """
    for i in range(n):
        row = rows[i]
        if kinds[i] == ENTERS:
            previous[entered] = table[row, 0]
            table[row, 0] = base + entered
            entered += 1
        elif kinds[i] == LEAVES:
            table[row, 1] = base + left
            left += 1
        else:
            out[asked, 0], out[asked, 1] = table[row, 0], table[row, 1]
            asked += 1


@inlined
def _look_back(keys: Array, words: Array, after: Array, table: Array, p: Any, order: Any) -> None:
    """Add a tuple in front of the middle to those behind it, in the pass back."""
    row, behind = np.uint64(keys[p] + SPARE_ROWS), order + order + _BEHIND
    best = table[row, behind + _U1]
    after[p, order] = best
    table[row, behind + _U1] = min(best, words[p, order])
    table[row, behind] = WORST


@inlined
def _slide_best(
    words: Array, after: Array, table: Array, row: Any, entered: Any, left: Any, enters: Any, leaves: Any, worst: Any,
    stays: Any, order: Any,
) -> Any:  # fmt: skip
    """One step of an extreme, with masks of what it is; the best word of the key then."""
    behind = order + order + _BEHIND
    best, before = table[row, behind], table[row, behind + _U1]
    best = min(best, (words[entered, order] & enters) | worst)
    before = (after[left, order] & leaves) | (before & stays)
    table[row, behind], table[row, behind + _U1] = best, before
    return min(best, before)


@inlined
def _slide_bests(
    rows: Array, kinds: Array, n: int, entered: int, left: int, asked: int, middle: int, keys: Array, words: Array,
    present: Array, after: Array, table: Array, out: Array, counts: Array, two: bool,
) -> int:  # fmt: skip
    """`slide_best` for one order or for two."""
    hi, lo, j, mid = np.uint64(entered), np.uint64(left), np.uint64(asked), np.uint64(middle)
    counted, words_of_table = present.size > 0, table.reshape(-1)
    far = table.nbytes > NEAR_BYTES
    for step in range(n):
        i = np.uint64(step)
        if far:
            prefetch(words_of_table, np.int64(rows[min(step + AHEAD, n - 1)]) * table.shape[1])
        row, kind = np.uint64(rows[i]), np.uint64(kinds[i])
        enters, leaves = kind & _U1, kind >> _U1
        if lo == mid and leaves != _U0:
            for place in range(np.int64(hi) - 1, np.int64(mid) - 1, -1):
                p = np.uint64(place)
                _look_back(keys, words, after, table, p, _U0)
                if two:
                    _look_back(keys, words, after, table, p, _U1)
            mid = hi
        # Masks that both orders take: of choices alone the compiler would make branches.
        entering, leaving = -np.int64(enters), -np.int64(leaves)
        worst, stays = WORST & ~entering, ~leaving
        out[j, _U0] = _slide_best(words, after, table, row, hi, lo, entering, leaving, worst, stays, _U0)
        if two:
            out[j, _U1] = _slide_best(words, after, table, row, hi, lo, entering, leaving, worst, stays, _U1)
        if counted:
            count = table[row, _COUNT] + np.int64(enters & np.uint64(present[hi]))
            count -= np.int64(leaves & np.uint64(present[lo]))
            table[row, _COUNT], counts[j] = count, count
        hi, lo, j = hi + enters, lo + leaves, j + (_U1 - enters - leaves)
    return int(mid)


@kernel
def slide_best(
    rows: Array, kinds: Array, n: int, entered: int, left: int, asked: int, middle: int, keys: Array, words: Array,
    present: Array, after: Array, table: Array, out: Array, counts: Array,
) -> int:  # fmt: skip
    """The best words of each left tuple's window, in one order or in two, and how many values it has; the middle then.

    `words`, `present` and `after` have one row more than there are tuples, `out` and `counts` one more than left ones;
    without `present` every tuple has a value, and nothing is counted.
    """
    if words.shape[1] == 2:
        return _slide_bests(
            rows, kinds, n, entered, left, asked, middle, keys, words, present, after, table, out, counts, True
        )
    return _slide_bests(
        rows, kinds, n, entered, left, asked, middle, keys, words, present, after, table, out, counts, False
    )


@kernel
def mark_newest(keys: Array, end: int, seen: Array, most: int, kept: Array) -> None:
    """Mark the newest `most` tuples of each key before a place; `seen` is the number of those that are marked."""
    for p in range(end - 1, -1, -1):
        key = keys[p]
        if key >= 0 and seen[key] < most:
            seen[key] += 1
            kept[p] = True


@kernel
def list_windows(
    previous: Array, base: int, newest: Array, sizes: Array, hole: Array, in_force: Array, begin: int, end: int,
    left: Array, right: Array,
) -> None:  # fmt: skip
    """The right tuples of windows `begin` to `end`, one after the other, with the number of the window.

    Of a window's `sizes` tuples the one at `hole` does not count, and the one in force comes first.
    """
    n = 0
    for j in range(begin, end):
        before = n
        n += sizes[j] + (in_force[j] != NONE)
        for k in range(before, n):
            left[k] = j
        position, place = newest[j], n - 1
        for _ in range(sizes[j] + (hole[j] != NONE)):
            if position != hole[j]:
                right[place] = position
                place -= 1
            position = previous[position - base]
        if in_force[j] != NONE:
            right[before] = in_force[j]


@kernel
def order_floats(values: Array, greatest: bool, out: Array) -> None:
    """Words in the order of floats, NaN before all; for the `greatest` first, in reverse order."""
    for i in range(values.size):
        value = values[i]
        word = flip64(np.float64(value).view(np.int64))
        out[i] = LEAST if np.isnan(value) else ~word if greatest else word


@kernel
def ordered_floats(words: Array, greatest: bool, out: Array) -> None:
    """The floats of which `order_floats` made words."""
    bits = out.view(np.int64)
    for i in range(words.size):
        word = words[i]
        bits[i] = _NOT_A_NUMBER if word == LEAST else flip64(~word if greatest else word)
