"""B+-tree multi-map in nodes of an arena: search, insert, range scan (SIGMOD paper, section 2.2.1).

A node is 64 words at an offset of 64 times its number. Words 0 and 1 hold its count and, in a leaf, the next leaf;
words 2-31 the keys. Words 34-63 hold a leaf's seqs, word 33+j an inner node's child j, so that the child right of
separator j sits in the separator's own lane. Counting the lanes below a key takes four AVX-512 compares and no branch.

Invariant: leaves in list order are sorted by (word, seq), and an inner separator s has words <= s on its
left and >= s on its right. A new entry has the largest seq, so it goes right of all its equals; the oldest
of several equals is the leftmost. That is why separators carry no seq and yet no duplicate is ever searched for.

Several trees can share one arena: a tree is its root's number times 16 plus its height.
"""

from __future__ import annotations

from streamjoin.kernels.flags import kernel, melted
from streamjoin.kernels.machine import I64, below_32, count_bits, move_words, prefetch, upto_32
from streamjoin.kernels.trees.entries import INSERT, OWN, SCAN, SEARCH, note

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


@melted
def lanes(count: int) -> int:
    """The key lanes in use, as a mask."""
    return ((1 << count) - 1) << KEYS


@melted
def keys_below(mem: I64, base: int, word: int) -> int:
    """Keys of a node that are smaller than `word`."""
    return count_bits(below_32(mem, base, word) & lanes(mem[base]))


@melted
def keys_upto(mem: I64, base: int, word: int) -> int:
    """Keys of a node that are not larger than `word`."""
    return count_bits(upto_32(mem, base, word) & lanes(mem[base]))


@melted
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


@melted
def has_spare_nodes(mem: I64) -> bool:
    """Whether one insert can be done whatever it splits."""
    spare: int = mem[FREE_COUNT] + mem[NODES] - mem[USED]
    return spare >= SPARE_NODES


@melted
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


@melted
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


@melted
def open_lane(mem: I64, base: int, lane: int, word: int, payload: int) -> None:
    """Insert (word, payload) at a lane of a node that has room."""
    behind = mem[base + COUNT] - lane
    move_words(mem, base + KEYS + lane + 1, base + KEYS + lane, behind)
    move_words(mem, base + SEQS + lane + 1, base + SEQS + lane, behind)
    mem[base + KEYS + lane] = word
    mem[base + SEQS + lane] = payload
    mem[base + COUNT] += 1


@melted
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


@melted
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
