"""Inserting into a Bw-Tree and deleting from it: one record at the front of a leaf's chain.

Neither looks whether the entry is there. A leaf whose records are all handed out is consolidated first. A record says
how many entries there are with it, if all that were deleted had been there, so that a leaf that may be empty is seen.
"""

from __future__ import annotations

from benchmarks.papers.bw_tree.apart import stay_apart
from benchmarks.papers.bw_tree.memory import (
    CHAIN,
    COUNT,
    FROZEN,
    INSERTED,
    LOW_SEQ,
    LOW_WORD,
    PAGE_SHIFT,
    RESERVED,
    SIZE,
    SLOT,
    SLOTS,
    TABLE,
    UNFINISHED,
    first_record,
    page_of,
    state_of,
    thread_at,
)
from benchmarks.papers.bw_tree.nodes import (
    DONE,
    EMPTY,
    NO_ROOM,
    descend,
    post,
    put_record,
    renew,
    step_right,
    with_record,
)
from benchmarks.papers.bw_tree.pages import is_right_of
from benchmarks.papers.bw_tree.removal import can_remove, go_on_removing, remove
from streamjoin.jit.atomics import add, swap_if
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64, borrow


@kernel
def leaf_for(mem: I64, word: int, seq: int) -> int:
    """The leaf that has an entry's place; it stays a place to begin as long as this thread does not `rest`."""
    stay_apart()
    leaf, _, _ = descend(mem, word, seq, 0)
    return leaf


@kernel
def leaf_to_change(mem: I64, me: int, word: int, seq: int) -> int:
    """The same for a thread that is about to change it: a split that is not finished is, if it was in the way."""
    stay_apart()
    leaf, stepped, level = descend(mem, word, seq, 0)
    if stepped:
        state = state_of(mem, stepped)
        at = page_of(mem, state)
        low = mem[at + LOW_WORD]
        if state & FROZEN == 0 and (low < word or (low == word and mem[at + LOW_SEQ] <= seq)):
            post(mem, me, stepped, level + 1)
    return leaf


@kernel
def update(mem: I64, me: int, leaf: int, kind: int, word: int, seq: int) -> bool:
    """Insert or delete an entry, whose place is in `leaf` or right of it; False if there is no page left."""
    stay_apart()
    mem = borrow(mem)
    while True:
        state = state_of(mem, leaf)
        at = page_of(mem, state)
        if state & FROZEN:
            leaf = leaf_to_change(mem, me, word, seq)
            continue
        if is_right_of(mem, at, word, seq):
            leaf = step_right(mem, me, leaf, state)
            if leaf == 0:
                return False
            continue
        record = add(mem, at + RESERVED, 1)
        if record >= mem[CHAIN]:
            if not _consolidate(mem, me, leaf, state):
                return False
            continue
        while True:
            before = first_record(state)
            size = mem[at + SLOTS + SLOT * (before - 1) + SIZE] if before else mem[at + COUNT]
            size += 1 if kind == INSERTED else -1
            put_record(mem, at, record, before, kind, word, seq, size)
            if swap_if(mem, mem[TABLE] + leaf, state, with_record(state, record)):
                if size <= 0:
                    _consolidate(mem, me, leaf, with_record(state, record))
                return True
            # The record is still ours, and of use while the page is the same.
            page = state >> PAGE_SHIFT
            state = state_of(mem, leaf)
            if state >> PAGE_SHIFT != page or state & FROZEN:
                break


@kernel
def _consolidate(mem: I64, me: int, leaf: int, state: int) -> bool:
    """Consolidate a leaf, split it if it is too large, remove it if it is empty; False if there is no page left."""
    stay_apart()
    if mem[thread_at(mem, me) + UNFINISHED]:
        go_on_removing(mem, me)
    removable = can_remove(mem, me, page_of(mem, state))
    answer = renew(mem, me, leaf, state, 1 if removable else 0)
    if answer == EMPTY:
        remove(mem, me, leaf, state)
        # The first child of its parent stays.
        answer = renew(mem, me, leaf, state, 0) if state_of(mem, leaf) == state else DONE
    if answer > 0:
        post(mem, me, answer, 1)
    return answer != NO_ROOM
