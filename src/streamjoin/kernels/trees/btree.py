"""B+-tree multi-map in nodes of an arena, and the sliding-window index made of it (SIGMOD paper, section 2.2.1).

A node is 64 words at an offset of 64 times its number. Words 0 and 1 hold its count and, in a leaf, the next leaf;
words 2-31 the keys. Words 34-63 hold a leaf's seqs, word 33+j an inner node's child j, so that the child right of
separator j sits in the separator's own lane. Counting the lanes below a key takes four AVX-512 compares and no branch.

Invariant: leaves in list order are sorted by (word, seq), and an inner separator s has words <= s on its
left and >= s on its right. A new entry has the largest seq, so it goes right of all its equals; the oldest
of several equals is the leftmost. That is why separators carry no seq and yet no duplicate is ever searched for.

Several trees can share one arena: a tree is its root's number times 16 plus its height.

Windows expire in the order of insertion, so the entry to delete (step 2 of the section) is always the leftmost of its
key: one descent, however many duplicates there are. A node that falls below a third is evened out with a sibling, or
merged with it. A third and not a half: at a half, a window in its steady state would split and merge the same node in
turns.

The index is one tree and the ring that says which entry expires next. Arena: head, nodes, ring. The ring holds
(word, seq) pairs in arrival order; `FRONT` and `BACK` only grow and are masked on use. Invariant: tree and ring hold
the same entries, all with seq >= MIN_SEQ once expired.
"""

# ruff: noqa: ARG001 - the functions of every kind have one signature

from __future__ import annotations

from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, below_32, count_bits, move_words, prefetch, upto_32
from streamjoin.kernels.trees.entries import DELETE, INSERT, MIN_SEQ, OWN, SCAN, SCRATCH, SEARCH, SIZE, note
from streamjoin.kernels.trees.task import fuse, no_approach, no_prepare, no_refine

NODE = 64
COUNT = 0
NEXT = 1
KEYS = 2
CHILDREN = 33
SEQS = 34
MOST_KEYS = 30

FREE = OWN  # first node of the free list; 0 is the arena's head, so it can mean "none"
FREE_COUNT = OWN + 1
USED = OWN + 2  # nodes from here on were never used
NODES = OWN + 3  # ... up to here
FANOUT = OWN + 4  # keys a node may hold, at most MOST_KEYS
TREE = OWN + 5
TREE_OWN = OWN + 8  # first slot for the kinds built on trees
PATH = 64  # node and child slot by level, root first, of the last descent for an update
SPARE_NODES = 18  # one insert splits at most one node per level and adds a root


@inlined
def lanes(count: int) -> int:
    """The key lanes in use, as a mask."""
    return ((1 << count) - 1) << KEYS


@inlined
def keys_below(mem: I64, base: int, word: int) -> int:
    """Keys of a node that are smaller than `word`."""
    return count_bits(below_32(mem, base, word) & lanes(mem[base]))


@inlined
def keys_upto(mem: I64, base: int, word: int) -> int:
    """Keys of a node that are not larger than `word`."""
    return count_bits(upto_32(mem, base, word) & lanes(mem[base]))


@inlined
def fetch_payload(mem: I64, base: int) -> None:
    """Start loading a node's seqs or children while its keys are still being compared."""
    prefetch(mem, base + 32)
    prefetch(mem, base + 40)
    prefetch(mem, base + 48)
    prefetch(mem, base + 56)


@kernel
def take_node(mem: I64) -> int:
    """An empty node, from the free list or from the unused end; the caller has made sure there is one."""
    node: int = mem[FREE]
    if node:
        mem[FREE] = mem[node * NODE + NEXT]
        mem[FREE_COUNT] -= 1
    else:
        node = mem[USED]
        mem[USED] += 1
    mem[node * NODE + COUNT] = 0
    mem[node * NODE + NEXT] = 0
    return node


@kernel
def give_node(mem: I64, node: int) -> None:
    """Put a node on the free list."""
    mem[node * NODE + NEXT] = mem[FREE]
    mem[FREE] = node
    mem[FREE_COUNT] += 1


@inlined
def has_spare_nodes(mem: I64) -> bool:
    """Whether one insert can be done whatever it splits."""
    spare: int = mem[FREE_COUNT] + mem[NODES] - mem[USED]
    return spare >= SPARE_NODES


@inlined
def first_place(mem: I64, tree: int, word: int) -> int:
    """The place (leaf base + lane) of the leftmost entry not below `word`; may be one past a leaf's last."""
    node = tree >> 4
    for _ in range(tree & 15):
        base = node * NODE
        fetch_payload(mem, base)
        node = mem[base + CHILDREN + keys_below(mem, base, word)]
    note(mem, SEARCH, (tree & 15) + 1)
    base = node * NODE
    fetch_payload(mem, base)
    return base + keys_below(mem, base, word)


@inlined
def scan_places(mem: I64, place: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Append the live seqs from `place` up to key `hi`; -1 when they do not fit."""
    base = place & -NODE
    lane = place & (NODE - 1)
    examined = 1
    while True:
        count = mem[base + COUNT]
        stop = keys_upto(mem, base, hi)
        if n_out + stop - lane > out_seq.size:
            return -1
        for k in range(lane, stop):
            seq = mem[base + SEQS + k]
            out_seq[n_out] = seq
            n_out += seq >= min_seq
        examined += max(0, stop - lane)
        base = mem[base + NEXT] * NODE
        if stop < count or base == 0:
            break
        lane = 0
    note(mem, SCAN, examined)
    return n_out


@inlined
def open_lane(mem: I64, base: int, lane: int, word: int, payload: int) -> None:
    """Insert (word, payload) at a lane of a node that has room."""
    behind = mem[base + COUNT] - lane
    move_words(mem, base + KEYS + lane + 1, base + KEYS + lane, behind)
    move_words(mem, base + SEQS + lane + 1, base + SEQS + lane, behind)
    mem[base + KEYS + lane] = word
    mem[base + SEQS + lane] = payload
    mem[base + COUNT] += 1


@inlined
def insert(mem: I64, tree: int, word: int, seq: int) -> int:
    """Insert an entry right of its equals; returns the tree, whose root may be new."""
    node = tree >> 4
    height = tree & 15
    for level in range(height):
        base = node * NODE
        fetch_payload(mem, base)
        k = keys_upto(mem, base, word)
        mem[PATH + 2 * level] = node
        mem[PATH + 2 * level + 1] = k
        node = mem[base + CHILDREN + k]
    note(mem, INSERT, height + 1)
    base = node * NODE
    fetch_payload(mem, base)
    lane = keys_upto(mem, base, word)
    if mem[base + COUNT] < mem[FANOUT]:
        open_lane(mem, base, lane, word, seq)
        return tree
    return _insert_split(mem, tree, node, lane, word, seq)


@kernel
def _insert_split(mem: I64, tree: int, node: int, lane: int, word: int, seq: int) -> int:
    """Split a full leaf, then every full ancestor, and put the separators in."""
    right = take_node(mem)
    separator = divide_leaf(mem, node, right)
    base = node * NODE
    half = mem[base + COUNT]
    if lane <= half:
        open_lane(mem, base, lane, word, seq)
    else:
        open_lane(mem, right * NODE, lane - half, word, seq)
    level = (tree & 15) - 1
    while level >= 0:
        node = mem[PATH + 2 * level]
        k = mem[PATH + 2 * level + 1]
        note(mem, INSERT, 1)
        if mem[node * NODE + COUNT] < mem[FANOUT]:
            open_lane(mem, node * NODE, k, separator, right)
            return tree
        separator, right = _split_inner(mem, node, k, separator, right)
        level -= 1
    return add_root(mem, take_node(mem), tree, separator, right)


@inlined
def add_root(mem: I64, root: int, tree: int, separator: int, right: int) -> int:
    """Put a root over a tree and the part that was split off; the tree that begins there."""
    base = root * NODE
    mem[base + COUNT] = 1
    mem[base + KEYS] = separator
    mem[base + CHILDREN] = tree >> 4
    mem[base + CHILDREN + 1] = right
    return root * 16 + (tree & 15) + 1


@kernel
def divide_leaf(mem: I64, node: int, right: int) -> int:
    """Move the upper half of a leaf to an empty leaf on its right; the separator."""
    base = node * NODE
    to = right * NODE
    count = mem[base + COUNT]
    half = count // 2
    for j in range(half, count):
        mem[to + KEYS + j - half] = mem[base + KEYS + j]
        mem[to + SEQS + j - half] = mem[base + SEQS + j]
    mem[to + COUNT] = count - half
    mem[base + COUNT] = half
    mem[to + NEXT] = mem[base + NEXT]
    mem[base + NEXT] = right
    separator: int = mem[to + KEYS]
    return separator


@kernel
def divide_inner(mem: I64, node: int, right: int) -> int:
    """Move what lies above the middle key of an inner node to an empty node; the middle key, now in neither."""
    base = node * NODE
    to = right * NODE
    count = mem[base + COUNT]
    half = count // 2
    middle: int = mem[base + KEYS + half]
    mem[to + CHILDREN] = mem[base + CHILDREN + half + 1]
    for j in range(half + 1, count):
        mem[to + KEYS + j - half - 1] = mem[base + KEYS + j]
        mem[to + SEQS + j - half - 1] = mem[base + SEQS + j]
    mem[to + COUNT] = count - half - 1
    mem[base + COUNT] = half
    return middle


@kernel
def _split_inner(mem: I64, node: int, k: int, separator: int, child: int) -> tuple[int, int]:
    """Split a full inner node around its middle key while adding (separator, child) at slot k."""
    right = take_node(mem)
    middle = divide_inner(mem, node, right)
    half = mem[node * NODE + COUNT]
    if k <= half:
        open_lane(mem, node * NODE, k, separator, child)
    else:
        open_lane(mem, right * NODE, k - half - 1, separator, child)
    return middle, right


@kernel
def first_leaf(mem: I64, tree: int) -> int:
    """The leftmost leaf of a tree."""
    node = tree >> 4
    for _ in range(tree & 15):
        node = mem[node * NODE + CHILDREN]
    return node


@kernel
def unload(mem: I64, tree: int, out: I64, to: int, apart: int) -> int:
    """Copy a tree's words in order to out[to:] and their seqs `apart` words behind; returns the end."""
    node = first_leaf(mem, tree)
    while node:
        base = node * NODE
        for j in range(mem[base + COUNT]):
            out[to] = mem[base + KEYS + j]
            out[to + apart] = mem[base + SEQS + j]
            to += 1
        node = mem[base + NEXT]
    return to


@inlined
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


FRONT = TREE_OWN
BACK = TREE_OWN + 1
RING = TREE_OWN + 2  # offset of the ring
RING_MASK = TREE_OWN + 3


@inlined
def ready(mem: I64, own_min: int) -> bool:
    """Whether one more entry fits once everything below `own_min` is gone."""
    room = mem[BACK] - mem[FRONT] <= mem[RING_MASK]
    if not room:
        room = mem[mem[RING] + 2 * (mem[FRONT] & mem[RING_MASK]) + 1] < own_min
    return room and has_spare_nodes(mem)


@inlined
def locate(mem: I64, slot: int, lo: int) -> None:
    """Find the first entry not below `lo`."""
    mem[SCRATCH] = first_place(mem, mem[TREE], lo)


@inlined
def collect(mem: I64, slot: int, lo: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Append the live seqs of keys up to `hi`."""
    return scan_places(mem, mem[SCRATCH], hi, max(min_seq, mem[MIN_SEQ]), out_seq, n_out)


@inlined
def expire_to(mem: I64, own_min: int) -> None:
    """Delete the entries that fell out of the window, oldest first."""
    mem[MIN_SEQ] = max(mem[MIN_SEQ], own_min)
    while mem[FRONT] < mem[BACK]:
        at = mem[RING] + 2 * (mem[FRONT] & mem[RING_MASK])
        if mem[at + 1] >= own_min:
            break
        mem[TREE] = delete_first(mem, mem[TREE], mem[at])
        mem[FRONT] += 1
        mem[SIZE] -= 1


@inlined
def insert_one(mem: I64, slot: int, word: int, seq: int) -> None:
    """Insert an entry into the tree and the ring."""
    mem[TREE] = insert(mem, mem[TREE], word, seq)
    at = mem[RING] + 2 * (mem[BACK] & mem[RING_MASK])
    mem[at] = word
    mem[at + 1] = seq
    mem[BACK] += 1
    mem[SIZE] += 1


task = fuse(
    "btree",
    ready=ready,
    approach=no_approach,
    prepare=no_prepare,
    refine=no_refine,
    locate=locate,
    collect=collect,
    expire_to=expire_to,
    insert_one=insert_one,
)
