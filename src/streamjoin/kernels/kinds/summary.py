"""Windows of summaries: chains of right tuples by key, and ladders that find the best value of a range of one.

Right tuples of a key are a chain, linked both ways and counted. Two cursors go over all right tuples in the order of
time, one at the begin and one at the end of the windows of left tuples, whose times ascend: `low[key]` is the first
tuple of a key that the begin has not passed, `high[key]` the last one that the end has. So a window is the range of a
chain between two places, found in constant time. Nothing of a right tuple ever changes but its link forward, and what
the cursors changed is known from the links alone: `undo` takes tuples back without a journal.

A ladder has, for each tuple, the newest value of its chain (`ENTRY`), the value before it that is better (`PARENT`),
and one further up (`JUMP`), chosen so that any ancestor is a logarithmic number of steps away. The best value of a
range is the oldest ancestor inside of it. Smaller words are better; where they are positions the oldest value is best.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import inlined, kernel

NONE: Final = -1
LINKED, ENDED, BEGUN = 0, 1, 2
"""Places in `at`: how many right tuples are linked, and how many the end and the begin of windows have passed."""
WORD, PARENT, JUMP, DEPTH, ENTRY = 0, 1, 2, 3, 4
RUNGS: Final = 5
FROM, TO, BEST = 0, 1, 2
KNOWN: Final = 3


@kernel
def link(
    keys: Array, tips: Array, low: Array, previous: Array, following: Array, ranks: Array, at: Array
) -> None:  # fmt: skip
    """Add the right tuples behind the linked ones to the chains of their keys."""
    for i in range(at[LINKED], keys.size):
        previous[i], following[i], ranks[i] = NONE, NONE, 0
        key = keys[i]
        if key >= 0:
            tip = tips[key]
            previous[i] = tip
            if tip != NONE:
                following[tip] = i
                ranks[i] = ranks[tip] + 1
            if low[key] == NONE:
                low[key] = i
            tips[key] = i
    at[LINKED] = keys.size


@inlined
def _end_passes(place: Any, keys: Array, high: Array) -> None:
    """Move the end of windows over a right tuple."""
    if keys[place] >= 0:
        high[keys[place]] = place


@inlined
def _begin_passes(place: Any, keys: Array, following: Array, low: Array) -> None:
    """Move the begin of windows over a right tuple."""
    if keys[place] >= 0:
        low[keys[place]] = following[place]


@kernel
def windows(
    starts: Array, ends: Array, beyond: Array, short: Array, left_keys: Array, own: Array, prevailing: bool,
    itself: bool, keys: Array, ticks: Array, previous: Array, following: Array, tips: Array, low: Array, high: Array,
    at: Array, first: Array, last: Array, hole: Array,
) -> None:  # fmt: skip
    """The range of each left tuple's window in the chain of its key, and the tuple in it that does not count.

    Windows ascend. A window that is `beyond` begins after all times, one that is `short` ends before all. `own` are the
    places of the left tuples themselves among the right ones, in a self-join; empty otherwise.
    """
    n, passed, behind = at[LINKED], at[ENDED], at[BEGUN]
    for j in range(starts.size):
        while passed < n and not short[j] and ticks[passed] <= ends[j]:
            _end_passes(passed, keys, high)
            passed += 1
        while behind < n and (beyond[j] or ticks[behind] < starts[j]):
            _begin_passes(behind, keys, following, low)
            behind += 1
        at[ENDED], at[BEGUN] = passed, behind
        first[j], last[j], hole[j] = NONE, NONE, NONE
        key = left_keys[j]
        if key < 0:
            continue
        begin, end, self_place = low[key], high[key], NONE
        if own.size and not itself and own[j] != NONE and keys[own[j]] == key:
            self_place = own[j]
        if begin == NONE or end == NONE or end < begin:
            begin, end = NONE, NONE
        # A tuple that does not count for itself does not hide the one in force, either.
        exact = following[self_place] if self_place != NONE and low[key] == self_place else low[key]
        if prevailing and (exact == NONE or beyond[j] or ticks[exact] != starts[j]):
            in_force = tips[key] if low[key] == NONE else previous[low[key]]
            if in_force != NONE and in_force == self_place:
                in_force = previous[in_force]
            if in_force != NONE:
                begin, end = in_force, max(end, in_force)
        if self_place != NONE and begin != NONE and begin <= self_place <= end:
            if begin == self_place and end == self_place:
                begin, end = NONE, NONE
            elif begin == self_place:
                begin = following[begin]
            elif end == self_place:
                end = previous[end]
            else:
                hole[j] = self_place
        first[j], last[j] = begin, end


@kernel
def pass_until(
    tick: int, keys: Array, ticks: Array, following: Array, low: Array, high: Array, at: Array
) -> None:  # fmt: skip
    """Move both cursors over the right tuples before a time at which, or after, every later window begins."""
    n, passed, behind = at[LINKED], at[ENDED], at[BEGUN]
    while passed < n and ticks[passed] < tick:
        _end_passes(passed, keys, high)
        passed += 1
    while behind < n and ticks[behind] < tick:
        _begin_passes(behind, keys, following, low)
        behind += 1
    at[ENDED], at[BEGUN] = passed, behind


@kernel
def undo(
    before: Array, at: Array, keys: Array, previous: Array, tips: Array, low: Array, high: Array, following: Array
) -> None:
    """Take back what happened since the cursors were at `before`; arrays by key and `following` are of that time."""
    for p in range(at[BEGUN] - 1, before[BEGUN] - 1, -1):
        if 0 <= keys[p] < low.size:
            low[keys[p]] = p
    for p in range(at[ENDED] - 1, before[ENDED] - 1, -1):
        if 0 <= keys[p] < high.size:
            high[keys[p]] = previous[p]
    for p in range(at[LINKED] - 1, before[LINKED] - 1, -1):
        key = keys[p]
        if 0 <= key < tips.size:
            tip = previous[p]
            tips[key] = tip
            if tip != NONE and tip < following.size:
                following[tip] = NONE
            if low[key] == p:
                low[key] = NONE


@inlined
def _rung(ladder: Array, place: Any, word: int) -> Any:
    """A word of a rung; a place without a sign is not tested for being one counted from the end."""
    return ladder[np.uint64(place), word]


@kernel
def climb(words: Array, present: Array, previous: Array, ladder: Array, begin: int) -> None:
    """Fill the ladder's rows from `begin` on, for tuples of which those `present` have values."""
    for i in range(words.size):
        place, before = begin + i, previous[i]
        entry = NONE if before == NONE else _rung(ladder, before, ENTRY)
        if not present[i]:
            ladder[place, ENTRY] = entry
            continue
        word, parent = words[i], entry
        # What is passed here is never looked at again from the end of the chain, so there is no need to jump.
        while parent != NONE and _rung(ladder, parent, WORD) >= word:
            parent = _rung(ladder, parent, PARENT)
        ladder[place, WORD], ladder[place, PARENT], ladder[place, ENTRY] = word, parent, place
        depth, jump, above = 0, NONE, 0
        if parent != NONE:
            depth, jump = _rung(ladder, parent, DEPTH), _rung(ladder, parent, JUMP)
        over, over_depth, jump_depth = NONE, 0, 0
        if jump != NONE:
            over, jump_depth = _rung(ladder, jump, JUMP), _rung(ladder, jump, DEPTH)
            over_depth = 0 if over == NONE else _rung(ladder, over, DEPTH)
        above = over if depth - jump_depth == jump_depth - over_depth else parent
        ladder[place, DEPTH], ladder[place, JUMP] = depth + 1, above


@inlined
def _best(ladder: Array, begin: Any, end: Any) -> Any:
    """The best value of a chain between two of its places; NONE if there is none."""
    place = _rung(ladder, end, ENTRY)
    if place < begin:
        return NONE
    while _rung(ladder, place, PARENT) >= begin:
        jump = _rung(ladder, place, JUMP)
        place = jump if jump >= begin else _rung(ladder, place, PARENT)
    return place


@kernel
def best_values(
    ladder: Array, previous: Array, following: Array, known: Array, left_keys: Array, first: Array, last: Array,
    hole: Array, out: Array,
) -> None:  # fmt: skip
    """The place of the best value of each window.

    Windows of a key mostly ascend. `known` has for each key the newest window asked for and its best value: while that
    is inside of the next window, only what is new there is compared with it.
    """
    for j in range(first.size):
        best, begin, end = np.int64(NONE), first[j], last[j]
        if begin != NONE and hole[j] != NONE:
            best = _best(ladder, begin, previous[hole[j]])
            other = _best(ladder, following[hole[j]], end)
            if best == NONE or (other != NONE and _rung(ladder, other, WORD) < _rung(ladder, best, WORD)):
                best = other
        elif begin != NONE:
            key = left_keys[j]
            if known[key, FROM] <= begin <= known[key, BEST] and known[key, TO] <= end:
                best = known[key, BEST]
                newest = _rung(ladder, end, ENTRY)
                if newest > known[key, TO]:
                    newest = _best(ladder, known[key, TO] + 1, end)
                    if _rung(ladder, newest, WORD) < _rung(ladder, best, WORD):
                        best = newest
            else:
                best = _best(ladder, begin, end)
            known[key, FROM], known[key, TO], known[key, BEST] = begin, end, best
        out[j] = best


@kernel
def last_values(ladder: Array, previous: Array, first: Array, last: Array, hole: Array, out: Array) -> None:
    """The place of the newest value of each window."""
    for j in range(first.size):
        newest = np.int64(NONE)
        if first[j] != NONE:
            newest = ladder[last[j], ENTRY]
            if newest != NONE and newest == hole[j]:
                newest = ladder[previous[newest], ENTRY]
            if newest < first[j]:
                newest = np.int64(NONE)
        out[j] = newest


@kernel
def window_sizes(ranks: Array, first: Array, last: Array, hole: Array, out: Array) -> None:
    """The number of right tuples in each window."""
    for j in range(first.size):
        out[j] = 0 if first[j] == NONE else ranks[last[j]] - ranks[first[j]] + 1 - (hole[j] != NONE)


@kernel
def list_windows(
    following: Array, first: Array, last: Array, hole: Array, begin: int, end: int, left: Array, right: Array
) -> None:
    """The right tuples of windows `begin` to `end`, one after the other, with the number of the window."""
    n = 0
    for j in range(begin, end):
        place = first[j]
        while place != NONE:
            if place != hole[j]:
                left[n], right[n] = j, place
                n += 1
            if place == last[j]:
                break
            place = following[place]
