"""B+-tree deletion of the oldest entry of a key (SIGMOD paper, section 2.2.1, step 2).

Windows expire in the order of insertion, so the entry to delete is always the leftmost of its key: one
descent, however many duplicates there are. A node that falls below a third is evened out with a sibling, or
merged with it. A third and not a half: at a half, a window in its steady state would split and merge the same
node in turns.
"""

from __future__ import annotations

from streamjoin.kernels.flags import kernel, melted
from streamjoin.kernels.machine import I64, move_words
from streamjoin.kernels.trees.btree import (
    CHILDREN,
    COUNT,
    FANOUT,
    KEYS,
    NEXT,
    NODE,
    PATH,
    SEQS,
    fetch_payload,
    give_node,
    keys_below,
    open_lane,
)
from streamjoin.kernels.trees.entries import DELETE, note


@melted
def close_lane(mem: I64, base: int, lane: int) -> None:
    """Remove one key and its payload (in an inner node: the child on its right)."""
    behind = mem[base + COUNT] - lane - 1
    move_words(mem, base + KEYS + lane, base + KEYS + lane + 1, behind)
    move_words(mem, base + SEQS + lane, base + SEQS + lane + 1, behind)
    mem[base + COUNT] -= 1


@kernel
def delete_first(mem: I64, tree: int, word: int) -> int:
    """Delete the leftmost entry with this key, which must exist; returns the tree, whose root may be another."""
    node = tree >> 4
    height = tree & 15
    for level in range(height):
        base = node * NODE
        fetch_payload(mem, base)
        k = keys_below(mem, base, word)
        mem[PATH + 2 * level] = node
        mem[PATH + 2 * level + 1] = k
        node = mem[base + CHILDREN + k]
    note(mem, DELETE, height + 1)
    base = node * NODE
    fetch_payload(mem, base)
    lane = keys_below(mem, base, word)
    if lane == mem[base + COUNT]:
        # A separator equals the key and all its left side is smaller: the entry opens the next leaf.
        node = _next_on_path(mem, height)
        base = node * NODE
        lane = 0
    close_lane(mem, base, lane)
    if mem[base + COUNT] * 3 >= mem[FANOUT] or height == 0:
        return tree
    return _repair(mem, tree, node)


@kernel
def _next_on_path(mem: I64, height: int) -> int:
    """Move the path to the next leaf; returns the leaf."""
    level = height - 1
    while mem[PATH + 2 * level + 1] == mem[mem[PATH + 2 * level] * NODE + COUNT]:
        level -= 1
    mem[PATH + 2 * level + 1] += 1
    node: int = mem[mem[PATH + 2 * level] * NODE + CHILDREN + mem[PATH + 2 * level + 1]]
    for lower in range(level + 1, height):
        mem[PATH + 2 * lower] = node
        mem[PATH + 2 * lower + 1] = 0
        node = mem[node * NODE + CHILDREN]
    note(mem, DELETE, height - level)
    return node


@kernel
def _repair(mem: I64, tree: int, node: int) -> int:
    """Bring an underfull node, and each parent that this empties too far, back above a third."""
    height = tree & 15
    level = height
    while level > 0 and mem[node * NODE + COUNT] * 3 < mem[FANOUT]:
        parent = mem[PATH + 2 * level - 2]
        k = mem[PATH + 2 * level - 1]
        if k == mem[parent * NODE + COUNT]:
            k -= 1
        left = mem[parent * NODE + CHILDREN + k]
        right = mem[parent * NODE + CHILDREN + k + 1]
        note(mem, DELETE, 1)
        if level == height:
            merged = _even_leaves(mem, left, right)
            if not merged:
                mem[parent * NODE + KEYS + k] = mem[right * NODE + KEYS]
        else:
            separator = mem[parent * NODE + KEYS + k]
            merged, separator = _even_inner(mem, left, right, separator)
            mem[parent * NODE + KEYS + k] = separator
        if not merged:
            return tree
        close_lane(mem, parent * NODE, k)
        give_node(mem, right)
        node = parent
        level -= 1
    if level == 0 and mem[node * NODE + COUNT] == 0:
        root: int = mem[node * NODE + CHILDREN]
        give_node(mem, node)
        return root * 16 + height - 1
    return tree


@kernel
def _even_leaves(mem: I64, left: int, right: int) -> bool:
    """Merge two neighbouring leaves into the left one if they fit, else share their entries evenly."""
    a = left * NODE
    b = right * NODE
    n_left = mem[a + COUNT]
    n_right = mem[b + COUNT]
    total = n_left + n_right
    fits: bool = total <= mem[FANOUT]
    target = total if fits else total // 2
    moved = target - n_left
    for part in (KEYS, SEQS):
        if moved > 0:
            for j in range(moved):
                mem[a + part + n_left + j] = mem[b + part + j]
            move_words(mem, b + part, b + part + moved, n_right - moved)
        else:
            move_words(mem, b + part - moved, b + part, n_right)
            for j in range(-moved):
                mem[b + part + j] = mem[a + part + target + j]
    mem[a + COUNT] = target
    mem[b + COUNT] = total - target
    if fits:
        mem[a + NEXT] = mem[b + NEXT]
    return fits


@kernel
def _even_inner(mem: I64, left: int, right: int, separator: int) -> tuple[bool, int]:
    """The same for two inner nodes, through the separator between them; a rotation moves one child."""
    a = left * NODE
    b = right * NODE
    n_left = mem[a + COUNT]
    n_right = mem[b + COUNT]
    if n_left + n_right + 1 <= mem[FANOUT]:
        open_lane(mem, a, n_left, separator, mem[b + CHILDREN])
        for j in range(n_right):
            open_lane(mem, a, n_left + 1 + j, mem[b + KEYS + j], mem[b + SEQS + j])
        return True, separator
    if n_left < n_right:
        open_lane(mem, a, n_left, separator, mem[b + CHILDREN])
        separator = mem[b + KEYS]
        mem[b + CHILDREN] = mem[b + CHILDREN + 1]
        close_lane(mem, b, 0)
    else:
        open_lane(mem, b, 0, separator, mem[b + CHILDREN])
        mem[b + CHILDREN] = mem[a + CHILDREN + n_left]
        separator = mem[a + KEYS + n_left - 1]
        mem[a + COUNT] -= 1
    return False, separator
