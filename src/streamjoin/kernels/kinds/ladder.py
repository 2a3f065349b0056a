"""Ladders: the least of a range of rows that lie next to each other, for any ranges of rows that never change.

A ladder has, for each row, the newest value so far (`ENTRY`), the value before it that is better (`PARENT`), and one
further up (`JUMP`), chosen so that any ancestor is a logarithmic number of steps away. The best value of a range is the
oldest ancestor inside of it. Smaller words are better; equal ones stand for equal values.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import inlined, kernel
from streamjoin.kernels.kinds.summary import NONE

WORD, PARENT, JUMP, DEPTH, ENTRY = 0, 1, 2, 3, 4
RUNGS: Final = 5


@inlined
def _rung(ladder: Array, place: Any, word: int) -> Any:
    """A word of a rung; a place without a sign is not tested for being one counted from the end."""
    return ladder[np.uint64(place), word]


@kernel
def climb(words: Array, present: Array, ladder: Array) -> None:
    """Fill a ladder, of rows of which those `present` have values."""
    entry = np.int64(NONE)
    for i in range(words.size):
        if not present[i]:
            ladder[i, ENTRY] = entry
            continue
        word, parent = words[i], entry
        # What is passed here is never looked at again from the end, so there is no need to jump.
        while parent != NONE and _rung(ladder, parent, WORD) >= word:
            parent = _rung(ladder, parent, PARENT)
        entry = np.int64(i)
        ladder[i, WORD], ladder[i, PARENT], ladder[i, ENTRY] = word, parent, entry
        depth, jump = 0, NONE
        if parent != NONE:
            depth, jump = _rung(ladder, parent, DEPTH), _rung(ladder, parent, JUMP)
        over, over_depth, jump_depth = NONE, 0, 0
        if jump != NONE:
            over, jump_depth = _rung(ladder, jump, JUMP), _rung(ladder, jump, DEPTH)
            over_depth = 0 if over == NONE else _rung(ladder, over, DEPTH)
        ladder[i, DEPTH] = depth + 1
        ladder[i, JUMP] = over if depth - jump_depth == jump_depth - over_depth else parent


@inlined
def _best(ladder: Array, begin: Any, end: Any) -> Any:
    """The best value between two places, these included; NONE if there is none."""
    if end < begin:
        return NONE
    place = _rung(ladder, end, ENTRY)
    if place < begin:
        return NONE
    while _rung(ladder, place, PARENT) >= begin:
        jump = _rung(ladder, place, JUMP)
        place = jump if jump >= begin else _rung(ladder, place, PARENT)
    return place


@inlined
def _better(ladder: Array, one: Any, other: Any) -> Any:
    """The better one of two places, either of which may be NONE."""
    if one == NONE or (other != NONE and _rung(ladder, other, WORD) < _rung(ladder, one, WORD)):
        return other
    return one


@kernel
def best_of_ranges(ladder: Array, first: Array, last: Array, hole: Array, out: Array) -> None:
    """The place of the best value of each range from `first` to `last`, but for the one at `hole`; NONE if it has none.

    Ranges mostly ascend: while the best value of the one before is inside, only what is new is compared with it.
    """
    known, since, until = np.int64(NONE), np.int64(NONE), np.int64(NONE)
    for j in range(first.size):
        begin, end = first[j], last[j]
        if hole[j] != NONE:
            out[j] = _better(ladder, _best(ladder, begin, hole[j] - 1), _best(ladder, hole[j] + 1, end))
            continue
        if since <= begin <= known and until <= end:
            known = _better(ladder, known, _best(ladder, until + 1, end))
        else:
            known = _best(ladder, begin, end)
        since, until = begin, end
        out[j] = known
