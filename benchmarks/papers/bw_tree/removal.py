"""Removing emptied leaves from a Bw-Tree: windows slide, and keys that drift leave empty leaves behind.

A leaf that is found empty is frozen by one compare-and-swap. Its left neighbour then takes over its range and its link
(`absorb`), and the parent's entry is left out (`_detach`). No thread waits for either: a thread that has to change
something in the range does the first, a search that is led to a frozen node goes down further left, and any other
removal below the same parent does the second. When both links are gone the page and the number are retired.

The first child of a parent is not removed: its left neighbour has another parent, which would not be led to. But its
right neighbours are absorbed by it, and once it is the only child its parent is frozen as a leaf would be, and the left
neighbour of that takes over the child, which is not the first there. So all that a drifting window leaves behind is
what lies along the left edge. Leaves that are not empty are never merged.

Whoever freezes a node changes the parent afterwards, also where it has no entry for it: a thread that is about to add
one then fails, and sees that the node is frozen. A parent may be split just before a frozen node, which is its first
child then. It stays there, and leads nowhere, until the parent has no other child.
"""

from __future__ import annotations

from benchmarks.papers.bw_tree.apart import stay_apart
from benchmarks.papers.bw_tree.memory import (
    BEFORE,
    CHILD,
    COUNT,
    FREE_COUNT,
    FROZEN,
    HEAD_MASK,
    INNER_APART,
    INNER_MOST,
    LEVEL,
    LINKS,
    LOW_SEQ,
    LOW_WORD,
    ROOT,
    SLOT,
    SLOTS,
    TABLE,
    UNFINISHED,
    WORDS_AT,
    first_record,
    give_page,
    page_at,
    page_of,
    state_of,
    take_page,
    thread_at,
)
from benchmarks.papers.bw_tree.nodes import (
    DETACHED,
    DONE,
    LEVEL_MASK,
    NO_ROOM,
    UNLINKED,
    copy_header,
    cut_link,
    descend,
    install,
    post,
    step_right,
)
from benchmarks.papers.bw_tree.pages import has_child, is_right_of, replay
from streamjoin.jit.atomics import load, swap_if
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64, borrow

_FOR_ONE = 8  # pages that one step of a removal may take; all of them together hardly take `SPARE`


@kernel
def can_remove(mem: I64, me: int, at: int) -> bool:
    """Whether the node of a page may be removed: it has a left neighbour and a parent, and there are pages to do it."""
    inside: bool = mem[at + LOW_SEQ] >= 0 and load(mem, ROOT) & LEVEL_MASK > mem[at + LEVEL]
    return inside and mem[thread_at(mem, me) + FREE_COUNT] >= _FOR_ONE


@kernel
def go_on_removing(mem: I64, me: int) -> None:
    """Try the removal again that stopped for want of pages."""
    stay_apart()
    mine = thread_at(mem, me)
    node = mem[mine + UNFINISHED]
    mem[mine + UNFINISHED] = 0
    state = state_of(mem, node)
    # The number may be that of another node by now, which is as well removed if it is vacant.
    if state and _is_vacant(mem, me, state):
        remove(mem, me, node, state)


@kernel
def remove(mem: I64, me: int, node: int, state: int) -> None:
    """Remove a leaf that is empty in this state, or what its removal waits for, and what is removable thereafter."""
    stay_apart()
    mem = borrow(mem)
    while True:
        at = page_of(mem, state)
        if state & FROZEN == 0 and not can_remove(mem, me, at):
            if mem[thread_at(mem, me) + FREE_COUNT] < _FOR_ONE:
                mem[thread_at(mem, me) + UNFINISHED] = node
            return
        level = mem[at + LEVEL]
        parent, _, _ = descend(mem, mem[at + LOW_WORD], mem[at + LOW_SEQ], level + 1)
        parent_state = state_of(mem, parent)
        if parent_state & FROZEN:
            return
        above = page_of(mem, parent_state)
        if mem[above + mem[WORDS_AT] + 2 * mem[INNER_APART]] == node:
            if not _is_vacant(mem, me, parent_state):
                return
            node = parent
            state = parent_state
            continue
        if state & FROZEN or not swap_if(mem, mem[TABLE] + node, state, state | FROZEN):
            return
        _let_absorb(mem, me, node)
        following = _detach(mem, me, node)
        if level:
            # Its child has another parent now, where it is not the first.
            following = mem[at + mem[WORDS_AT] + 2 * mem[INNER_APART]]
        if following == 0:
            return
        node = following
        state = state_of(mem, node)
        if not _is_vacant(mem, me, state):
            return


@kernel
def _is_vacant(mem: I64, me: int, state: int) -> bool:
    """Whether nothing is lost with a node: a leaf without entries, an inner node with one child, a frozen node."""
    at = page_of(mem, state)
    if state & FROZEN:
        return True
    if mem[at + LEVEL]:
        return mem[at + COUNT] == 1 and first_record(state) == 0
    page = take_page(mem, me)
    if page == 0:
        return False
    count = replay(mem, at, state, page_at(mem, page))
    give_page(mem, me, page)
    return count == 0


@kernel
def _let_absorb(mem: I64, me: int, node: int) -> None:
    """Have a frozen node absorbed, and those on its left that are to be before."""
    stay_apart()
    frozen = page_of(mem, state_of(mem, node))
    word = mem[frozen + LOW_WORD]
    seq = mem[frozen + LOW_SEQ]
    while load(mem, frozen + LINKS) & UNLINKED == 0:
        left, _, _ = descend(mem, word, seq, mem[frozen + LEVEL])
        state = state_of(mem, left)
        at = page_of(mem, state)
        if state & FROZEN == 0:
            if not is_right_of(mem, at, word, seq):
                return
            if step_right(mem, me, left, state) == 0:
                return


@kernel
def _detach(mem: I64, me: int, node: int) -> int:
    """Leave a frozen node out of its parent; returns the parent's first child if that is the only one now, else 0."""
    stay_apart()
    mem = borrow(mem)
    frozen = page_of(mem, state_of(mem, node))
    word = mem[frozen + LOW_WORD]
    seq = mem[frozen + LOW_SEQ]
    while True:
        parent, _, _ = descend(mem, word, seq, mem[frozen + LEVEL] + 1)
        state = state_of(mem, parent)
        at = page_of(mem, state)
        if state & FROZEN:
            continue
        if is_right_of(mem, at, word, seq):
            if step_right(mem, me, parent, state) == 0:
                return 0
            continue
        page = take_page(mem, me)
        if page == 0:
            return 0
        to = page_at(mem, page)
        count = _without_frozen(mem, to, replay(mem, at, state, to))
        if count > mem[INNER_MOST]:
            # Split first: what was left out could not be told from what is in the other half.
            count = replay(mem, at, state, to)
        copy_header(mem, at, to, count)
        answer = install(mem, me, parent, state, page)
        if answer == NO_ROOM:
            return 0
        if answer > 0:
            post(mem, me, answer, mem[at + LEVEL] + 1)
        elif answer == DONE:
            break
    _report(mem, me, at, state, to)
    if not has_child(mem, to, 0, node):
        cut_link(mem, me, node, DETACHED)
    return int(mem[to + mem[WORDS_AT] + 2 * mem[INNER_APART]]) if count == 1 else 0


@kernel
def _without_frozen(mem: I64, at: int, count: int) -> int:
    """Leave out the entries after the first that lead to frozen nodes; returns how many are left."""
    stay_apart()
    words = at + mem[WORDS_AT]
    apart = mem[INNER_APART]
    kept = 1
    for k in range(1, count):
        if state_of(mem, mem[words + 2 * apart + k]) & FROZEN == 0:
            for part in range(3):
                mem[words + part * apart + kept] = mem[words + part * apart + k]
            kept += 1
    return kept


@kernel
def _report(mem: I64, me: int, at: int, state: int, to: int) -> None:
    """Cut the links to the frozen children that a parent had in a state and that its page at `to` has no more."""
    stay_apart()
    children = at + mem[WORDS_AT] + 2 * mem[INNER_APART]
    for k in range(mem[at + COUNT]):
        _report_one(mem, me, mem[children + k], to)
    before = first_record(state)
    while before:
        record = at + SLOTS + SLOT * (before - 1)
        _report_one(mem, me, mem[record + CHILD], to)
        before = mem[record + BEFORE] & HEAD_MASK


@kernel
def _report_one(mem: I64, me: int, child: int, to: int) -> None:
    if state_of(mem, child) & FROZEN and not has_child(mem, to, 0, child):
        cut_link(mem, me, child, DETACHED)
