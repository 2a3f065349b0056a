"""Changing a Bw-Tree: finding a node, adding records, consolidating chains, splitting nodes.

Nodes of a level are linked to the right, and a node knows where its entries end (B-link), so a search that comes to a
node too far left goes right. A split has two steps. The first is one compare-and-swap: the node becomes its left half,
consolidated, which leads to a new node on its right. The second is a record in the parent that leads there directly;
until then searches take the step to the right, and a thread that changes something and had to take it adds the record.

A frozen node (see `removal`) never changes again. It has no entries, or if it is an inner node one child, and its range
is, or is about to be, that of its left neighbour: `absorb`, which any thread does that wants to change something there.

Invariants: the ranges of the live nodes of a level follow each other without gaps, once frozen ones are absorbed; where
a node begins never changes. An inner node leads an entry to a node that begins at or before the entry.
"""

from __future__ import annotations

from benchmarks.papers.bw_tree.apart import stay_apart
from benchmarks.papers.bw_tree.memory import (
    BEFORE,
    CHILD,
    COUNT,
    FROZEN,
    HIGH_SEQ,
    HIGH_WORD,
    INNER_APART,
    INNER_CHAIN,
    INNER_MOST,
    INSERTED,
    LEAF_MOST,
    LEVEL,
    LINKS,
    LOW_SEQ,
    LOW_WORD,
    NEXT,
    PAGE_SHIFT,
    RESERVED,
    ROOT,
    SEQ,
    SEQS_APART,
    SLOT,
    SLOTS,
    TABLE,
    WORD,
    WORDS_AT,
    first_record,
    give_node,
    give_page,
    page_at,
    page_of,
    retire,
    state_of,
    take_node,
    take_page,
)
from benchmarks.papers.bw_tree.pages import child_for, has_child, is_right_of, link, replay
from streamjoin.jit.atomics import add, load, store, swap_if
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, borrow, move_words
from streamjoin.kernels.trees.entries import LARGEST

# The two links of a frozen node, once they are gone.
DETACHED = 1  # no inner node leads to it
UNLINKED = 2  # no node of its level does

# Answers of `install`; a positive one is the node that was split off.
DONE = 0
NO_ROOM = -1
LOST = -2
EMPTY = -3

SMALLEST = -LARGEST - 1
LEVEL_BITS = 8
LEVEL_MASK = (1 << LEVEL_BITS) - 1


@kernel
def descend(mem: I64, word: int, seq: int, target: int) -> tuple[int, int, int]:
    """The live node of a level that has an entry's place; the last node reached by a step to the right, and its level.

    It is the node before the place if a frozen one comes next that has not been absorbed.
    """
    mem = borrow(mem)
    stepped = 0 * target
    stepped_level = 0 * target
    # Where to go down: further left than the entry once that has led to a frozen node.
    by_word = word
    by_seq = seq
    while True:
        root = load(mem, ROOT)
        node = root >> LEVEL_BITS
        level = root & LEVEL_MASK
        state = state_of(mem, node)
        at = page_of(mem, state)
        while level > target and state & FROZEN == 0:
            if is_right_of(mem, at, by_word, by_seq):
                node = mem[at + NEXT]
                state = state_of(mem, node)
                at = page_of(mem, state)
                stepped = node
                stepped_level = level
                if state & FROZEN == 0:
                    continue
                # Not absorbed yet when its neighbour was read, so its child is still there.
            node = child_for(mem, at, state, by_word, by_seq)
            level -= 1
            state = state_of(mem, node)
            at = page_of(mem, state)
        if state & FROZEN:
            by_word = mem[at + LOW_WORD]
            by_seq = mem[at + LOW_SEQ] - 1
            continue
        while is_right_of(mem, at, word, seq):
            following = mem[at + NEXT]
            state = state_of(mem, following)
            if state & FROZEN:
                break
            node = following
            at = page_of(mem, state)
            stepped = node
            stepped_level = level
        return node, stepped, stepped_level


@kernel
def cut_link(mem: I64, me: int, node: int, which: int) -> None:
    """Record that a link to a frozen node is gone; with the last one its page and its number are retired."""
    stay_apart()
    state = state_of(mem, node)
    at = page_of(mem, state)
    while True:
        links = load(mem, at + LINKS)
        if links & which:
            return
        if swap_if(mem, at + LINKS, links, links | which):
            break
    if links | which == DETACHED | UNLINKED:
        retire(mem, me, state >> PAGE_SHIFT, node)


@kernel
def copy_header(mem: I64, source: int, to: int, count: int) -> None:
    """Write the header of a page that takes another's place."""
    mem[to + COUNT] = count
    mem[to + NEXT] = mem[source + NEXT]
    mem[to + HIGH_WORD] = mem[source + HIGH_WORD]
    mem[to + HIGH_SEQ] = mem[source + HIGH_SEQ]
    mem[to + LEVEL] = mem[source + LEVEL]
    mem[to + LOW_WORD] = mem[source + LOW_WORD]
    mem[to + LOW_SEQ] = mem[source + LOW_SEQ]


@kernel
def install(mem: I64, me: int, node: int, state: int, page: int) -> int:
    """Put a page in a node's place, as two if it is too full.

    Returns the node that was split off, `DONE`, or why nothing was done: no page, or another thread was faster.
    """
    at = page_at(mem, page)
    if mem[at + COUNT] > (mem[INNER_MOST] if mem[at + LEVEL] else mem[LEAF_MOST]):
        return _split(mem, me, node, state, page)
    if swap_if(mem, mem[TABLE] + node, state, page << PAGE_SHIFT):
        retire(mem, me, state >> PAGE_SHIFT, 0)
        return DONE
    give_page(mem, me, page)
    return LOST


@kernel
def renew(mem: I64, me: int, node: int, state: int, removes: int) -> int:
    """Consolidate a node's chain into another page, or into two; as `install`.

    A leaf that is `EMPTY` is left as it is where the caller `removes` it then.
    """
    stay_apart()
    mem = borrow(mem)
    page = take_page(mem, me)
    if page == 0:
        return NO_ROOM
    at = page_of(mem, state)
    to = page_at(mem, page)
    count = replay(mem, at, state, to)
    if count == 0 and removes:
        give_page(mem, me, page)
        return EMPTY
    copy_header(mem, at, to, count)
    return install(mem, me, node, state, page)


@kernel
def absorb(mem: I64, me: int, node: int, state: int) -> bool:
    """Give a node, in a live state of it, the range of the frozen one on its right, and its child; False: no page."""
    stay_apart()
    mem = borrow(mem)
    at = page_of(mem, state)
    frozen = mem[at + NEXT]
    source = page_of(mem, state_of(mem, frozen))
    page = take_page(mem, me)
    if page == 0:
        return False
    to = page_at(mem, page)
    count = replay(mem, at, state, to)
    child = 0 * count
    if mem[at + LEVEL]:
        words = mem[WORDS_AT]
        apart = mem[INNER_APART]
        child = mem[source + words + 2 * apart]
        if state_of(mem, child) & FROZEN == 0:
            mem[to + words + count] = mem[source + LOW_WORD]
            mem[to + words + apart + count] = mem[source + LOW_SEQ]
            mem[to + words + 2 * apart + count] = child
            count += 1
            child = 0
    copy_header(mem, at, to, count)
    mem[to + NEXT] = mem[source + NEXT]
    mem[to + HIGH_WORD] = mem[source + HIGH_WORD]
    mem[to + HIGH_SEQ] = mem[source + HIGH_SEQ]
    answer = install(mem, me, node, state, page)
    if answer == NO_ROOM:
        return False
    if answer != LOST:
        cut_link(mem, me, frozen, UNLINKED)
        if child:
            cut_link(mem, me, child, DETACHED)
    return True


@kernel
def _split(mem: I64, me: int, node: int, state: int, page: int) -> int:
    """Move the upper half of a consolidated page to a new node, and put the lower half in the old one's place."""
    stay_apart()
    right_page = take_page(mem, me)
    right = take_node(mem, me)
    if right_page == 0 or right == 0:
        if right_page:
            give_page(mem, me, right_page)
        if right:
            give_node(mem, me, right)
        give_page(mem, me, page)
        return NO_ROOM
    at = page_at(mem, page)
    to = page_at(mem, right_page)
    words = mem[WORDS_AT]
    inner = mem[at + LEVEL] > 0
    apart = mem[INNER_APART] if inner else mem[SEQS_APART]
    count = mem[at + COUNT]
    half = count // 2
    for part in range(3 if inner else 2):
        move_words(mem, to + words + part * apart, at + words + part * apart + half, count - half)
    copy_header(mem, at, to, count - half)
    mem[to + LOW_WORD] = mem[to + words]
    mem[to + LOW_SEQ] = mem[to + words + apart]
    mem[at + COUNT] = half
    mem[at + NEXT] = right
    mem[at + HIGH_WORD] = mem[to + words]
    mem[at + HIGH_SEQ] = mem[to + words + apart]
    if inner:
        mem[to + words] = SMALLEST
        mem[to + words + apart] = -1
    store(mem, mem[TABLE] + right, right_page << PAGE_SHIFT)
    if swap_if(mem, mem[TABLE] + node, state, page << PAGE_SHIFT):
        retire(mem, me, state >> PAGE_SHIFT, 0)
        return right
    give_node(mem, me, right)
    give_page(mem, me, right_page)
    give_page(mem, me, page)
    return LOST


@kernel
def step_right(mem: I64, me: int, node: int, state: int) -> int:
    """The node on the right of a live state, or the same node once it has absorbed a frozen one; 0: no page."""
    following: int = mem[page_of(mem, state) + NEXT]
    if state_of(mem, following) & FROZEN == 0:
        return following
    return node if absorb(mem, me, node, state) else 0


@kernel
def post(mem: I64, me: int, child: int, level: int) -> None:
    """Finish the split that made `child`: add it to the inner node of `level` that has its place.

    It gives up without a page, since the child is reached through its neighbour, too.
    """
    stay_apart()
    mem = borrow(mem)
    split_off = 0 * child
    while child:
        page = page_of(mem, state_of(mem, child))
        word = mem[page + LOW_WORD]
        seq = mem[page + LOW_SEQ]
        root = load(mem, ROOT)
        if root & LEVEL_MASK < level:
            if _add_root(mem, me, root, child, level):
                return
            continue
        parent, _, _ = descend(mem, word, seq, level)
        state = state_of(mem, parent)
        at = page_of(mem, state)
        if state & FROZEN:
            continue
        if is_right_of(mem, at, word, seq):
            if not step_right(mem, me, parent, state):
                return
            continue
        # After the parent's state was read: who freezes the child changes the parent afterwards.
        if state_of(mem, child) & FROZEN == 0 and not has_child(mem, at, state, child):
            record = add(mem, at + RESERVED, 1)
            if record >= mem[INNER_CHAIN]:
                answer = renew(mem, me, parent, state, 0)
                if answer == NO_ROOM:
                    return
                if answer > 0:
                    split_off = answer
                continue
            put_record(mem, at, record, first_record(state), INSERTED, word, seq, child)
            if not swap_if(mem, mem[TABLE] + parent, state, with_record(state, record)):
                continue
        child = split_off
        split_off = 0 * child
        level += 1


@inlined
def with_record(state: int, record: int) -> int:
    """The state of a node whose chain begins with this record."""
    return ((state >> PAGE_SHIFT) << PAGE_SHIFT) | ((record + 1) << 1)


@inlined
def put_record(mem: I64, at: int, record: int, before: int, kind: int, word: int, seq: int, child: int) -> None:
    """Write a record that is this thread's own until it is published."""
    to = at + SLOTS + SLOT * record
    mem[to + BEFORE] = link(before, kind)
    mem[to + WORD] = word
    mem[to + SEQ] = seq
    mem[to + CHILD] = child


@kernel
def _add_root(mem: I64, me: int, root: int, child: int, level: int) -> bool:
    """Put a root above the present one and a node that was split off from its level; False: look again."""
    stay_apart()
    page = take_page(mem, me)
    node = take_node(mem, me)
    if page == 0 or node == 0:
        if page:
            give_page(mem, me, page)
        if node:
            give_node(mem, me, node)
        return True
    at = page_at(mem, page)
    lower = page_of(mem, state_of(mem, child))
    words = at + mem[WORDS_AT]
    apart = mem[INNER_APART]
    mem[at + COUNT] = 2
    mem[at + NEXT] = 0
    mem[at + LEVEL] = level
    mem[at + LOW_WORD] = SMALLEST
    mem[at + LOW_SEQ] = -1
    mem[words] = SMALLEST
    mem[words + apart] = -1
    mem[words + 2 * apart] = root >> LEVEL_BITS
    mem[words + 1] = mem[lower + LOW_WORD]
    mem[words + apart + 1] = mem[lower + LOW_SEQ]
    mem[words + 2 * apart + 1] = child
    store(mem, mem[TABLE] + node, page << PAGE_SHIFT)
    if swap_if(mem, ROOT, root, (node << LEVEL_BITS) | level):
        return True
    give_node(mem, me, node)
    give_page(mem, me, page)
    return False


@kernel
def plant(mem: I64) -> None:
    """Make the one leaf of an empty tree; no other thread has it yet."""
    page = take_page(mem, 0)
    node = take_node(mem, 0)
    at = page_at(mem, page)
    mem[at + COUNT] = 0
    mem[at + NEXT] = 0
    mem[at + LEVEL] = 0
    mem[at + LOW_WORD] = SMALLEST
    mem[at + LOW_SEQ] = -1
    store(mem, mem[TABLE] + node, page << PAGE_SHIFT)
    store(mem, ROOT, node << LEVEL_BITS)
