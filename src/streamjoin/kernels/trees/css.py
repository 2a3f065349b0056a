"""Immutable B+-tree: sorted leaves, and separators level by level without child references.

Level 0 holds the largest word of every leaf, level h+1 the largest of every node of level h, each level padded
to whole nodes; node p of a level has its children at p * fanout of the level below (SIGMOD paper, section 3.1;
arXiv appendix A.3). The last separator of every level and all padding are the largest word, which is below no
key: a search for any int64 ends inside the tree, and no key value is set apart.

Invariant: the words are sorted and followed by padding up to eight words past the last leaf, so the first word not
below a key lies in the leaf that the separators lead to, or opens the next one, and eight words can always be
compared at once. All positions are offsets in the arena, so that several trees of one shape can share it.
"""

from __future__ import annotations

from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, below_8, below_16, below_32, count_bits, pack_8, prefetch, upto_8
from streamjoin.kernels.trees.entries import LARGEST, MERGE, MIN_SEQ, SCAN, SEARCH, note

LANES = 8  # leaf size and fan-out are multiples

LEAF_SIZE = 40
CSS_FANOUT = 41
LEVELS = 42
STORED = 43  # entries in the leaves
LEVEL_AT = 44  # offset of each level behind the first; there are up to 16

# Of the two-component trees built on it (IM-Tree, PIM-Tree): T_S, and when to merge T_I into it.
WORDS = 100  # offset of T_S
SEQS = 101  # distance from a word of T_S to its seq
INNER = 102  # offset of the separators
PENDING = 103  # entries in T_I
LIMIT = 104  # merge when PENDING reaches it: m * w
MERGING_OWN = 105


@inlined
def count_below(mem: I64, at: int, width: int, key: int) -> int:
    """How many of `width` words are smaller than the key."""
    total = 0
    if width == 32:
        total = count_bits(below_32(mem, at, key))
    elif width == 16:
        total = count_bits(below_16(mem, at, key))
    else:
        for j in range(0, width, LANES):
            total += count_bits(below_8(mem, at + j, key))
    return total


@inlined
def fetch(mem: I64, at: int, words: int) -> None:
    """Start loading a few cache lines."""
    for j in range(at, at + words, LANES):
        prefetch(mem, j)


@kernel
def lay_levels(mem: I64, capacity: int) -> int:
    """Set the level offsets for up to `capacity` entries; returns how many words the separators take."""
    fanout = mem[CSS_FANOUT]
    nodes = max(1, -(-capacity // mem[LEAF_SIZE]))
    used: int = 0
    level = 0
    while True:
        mem[LEVEL_AT + level] = used
        nodes = -(-nodes // fanout)
        used += nodes * fanout
        level += 1
        if nodes == 1:
            break
    mem[LEVELS] = level
    return used


@kernel
def build_levels(mem: I64, first: int, count: int, inner: int, inner_end: int) -> None:
    """Write the separators of mem[first:first + count], bottom up, in time linear in the leaves."""
    size = mem[LEAF_SIZE]
    leaves = max(1, -(-count // size))
    for j in range(inner, inner_end):
        mem[j] = LARGEST
    for j in range(leaves - 1):
        mem[inner + j] = mem[first + j * size + size - 1]
    build_upper_levels(mem, first, count, inner)
    note(mem, MERGE, leaves)


@kernel
def build_upper_levels(mem: I64, first: int, count: int, inner: int) -> None:
    """Write padding and upper levels; the separators of all leaves but the last are written already."""
    size = mem[LEAF_SIZE]
    fanout = mem[CSS_FANOUT]
    nodes = max(1, -(-count // size))
    for j in range(first + count, first + nodes * size + LANES):
        mem[j] = LARGEST
    at = inner
    for level in range(mem[LEVELS]):
        if level:
            below = at
            at = inner + mem[LEVEL_AT + level]
            nodes = -(-nodes // fanout)
            for j in range(nodes - 1):
                mem[at + j] = mem[below + j * fanout + fanout - 1]
        for j in range(at + nodes - 1, at + -(-nodes // fanout) * fanout):
            mem[j] = LARGEST


@inlined
def find_node(mem: I64, inner: int, key: int, level: int) -> int:
    """The first node of `level` (0: the leaves) whose largest word is not below the key."""
    fanout = mem[CSS_FANOUT]
    node = 0
    for h in range(mem[LEVELS] - 1, level - 1, -1):
        at = inner + mem[LEVEL_AT + h] + node * fanout
        node = node * fanout + count_below(mem, at, fanout, key)
    return node


@inlined
def approach_leaf(mem: I64, inner: int, key: int) -> int:
    """Search down to level 1, start loading the separators that decide between leaves; returns the node."""
    fanout = mem[CSS_FANOUT]
    node = find_node(mem, inner, key, 1)
    fetch(mem, inner + node * fanout, fanout)
    return node


@inlined
def find_leaf(mem: I64, inner: int, key: int, node: int) -> int:
    """The leaf below a node of level 1 that `approach_leaf` found."""
    fanout = mem[CSS_FANOUT]
    leaf: int = node * fanout + count_below(mem, inner + node * fanout, fanout, key)
    return leaf


@inlined
def find_place(mem: I64, first: int, inner: int, key: int) -> int:
    """The offset of the first word not below the key."""
    at = first + find_node(mem, inner, key, 0) * mem[LEAF_SIZE]
    note(mem, SEARCH, mem[LEVELS] + 1)
    place: int = at + count_below(mem, at, mem[LEAF_SIZE], key)
    return place


@inlined
def scan_run(mem: I64, at: int, end: int, seqs: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Append the live seqs of a sorted run while words stay within `hi`; -1 when they do not fit.

    A word's seq lies `seqs` words behind it.
    """
    begin = at
    while at < end:
        hits = min(count_bits(upto_8(mem, at, hi)), end - at)
        if n_out + hits > out_seq.size:
            return -1
        for k in range(at + seqs, at + seqs + hits):
            seq = mem[k]
            out_seq[n_out] = seq
            n_out += seq >= min_seq
        at += hits
        if hits < LANES:
            break
    note(mem, SCAN, at - begin + 1)
    return n_out


@kernel
def merge_runs(
    mem: I64,
    words: int,
    count: int,
    seqs: int,
    run: int,
    run_count: int,
    run_seqs: int,
    out: int,
    out_seqs: int,
) -> int:
    """Merge a younger sorted run into an older one and drop expired entries; returns the live count.

    Each run is its first word's offset, its length and the distance from a word to its seq. Equal words keep the older
    run's entries first, which keeps the result in (word, seq) order. Eight entries are moved at once, so the output
    needs `LANES` words more than the live entries, and what is read may lie as far behind a run.
    """
    min_seq = mem[MIN_SEQ]
    at = words
    end = words + count
    to = out
    for j in range(run, run + run_count):
        word = mem[j]
        moved = LANES
        while moved == LANES and at < end:
            moved = count_bits(upto_8(mem, at, word) & ((1 << min(LANES, end - at)) - 1))
            live = ~below_8(mem, at + seqs, min_seq) & ((1 << moved) - 1)
            pack_8(mem, to, at, live)
            pack_8(mem, to + out_seqs, at + seqs, live)
            to += count_bits(live)
            at += moved
        seq = mem[j + run_seqs]
        mem[to] = word
        mem[to + out_seqs] = seq
        to += seq >= min_seq
    while at < end:
        live = ~below_8(mem, at + seqs, min_seq) & ((1 << min(LANES, end - at)) - 1)
        pack_8(mem, to, at, live)
        pack_8(mem, to + out_seqs, at + seqs, live)
        to += count_bits(live)
        at += LANES
    note(mem, MERGE, count + run_count)
    return to - out
