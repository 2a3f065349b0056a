"""PIM-Tree: an immutable T_S, and one small mutable sub-index B_i for each of its nodes at the insertion depth.

Arena: head, separators and chunks, two buffers of words and seqs (T_S and where the next merge writes), nodes.
B_i holds the new entries whose words lie in (largest of node i-1, largest of node i]. It starts as a chunk of
`WIDTH` words, unsorted and compared all at once: word 0 is its header, the others its entries, their seqs `WIDTH`
further on behind word `WIDTH`, the lock of B_i (free in single-threaded use). A chunk that fills up, by
skew or drift, becomes a B+-tree, so no distribution makes an insert or a search linear. Chunks follow each
other in key order: a range that leaves one goes on in the next (SIGMOD paper, section 3.3; arXiv appendix A.1, A.2).

Invariant: T_S does not change between merges, so places in it are found for a whole block of tuples ahead, and
their cache misses overlap.
"""

# ruff: noqa: ARG001 - the functions of every kind have one signature
from __future__ import annotations

from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, below_8, count_bits, lowest_bit, prefetch, upto_8
from streamjoin.kernels.trees import btree
from streamjoin.kernels.trees.css import (
    CSS_FANOUT,
    INNER,
    LEAF_SIZE,
    LEVEL_AT,
    LEVELS,
    LIMIT,
    MERGING_OWN,
    PENDING,
    SEQS,
    STORED,
    WORDS,
    approach_leaf,
    count_below,
    fetch,
    find_leaf,
    find_node,
    scan_run,
)
from streamjoin.kernels.trees.entries import BLOCK, INSERT, MIN_SEQ, SCAN, SCRATCH, SEARCH, SIZE, note
from streamjoin.kernels.trees.task import INSERTS, PROBES, fuse

CHUNKS = MERGING_OWN  # offset of the chunks
WIDTH = MERGING_OWN + 1  # words of a chunk, header included
SUB_LEVEL = MERGING_OWN + 2  # level of `css` whose nodes own the sub-indexes
SUB_AT = MERGING_OWN + 3  # offset of that level's separators
SUB_COUNT = MERGING_OWN + 4
SUB_SHIFT = MERGING_OWN + 5  # leaf number >> shift = number of its sub-index
SPILLED = MERGING_OWN + 6  # sub-indexes that became trees

PLACE = SCRATCH
PLACE_SUB = SCRATCH + BLOCK
OWN_SUB = SCRATCH + 2 * BLOCK
SPILL_NODES = 64  # a spilling chunk of the widest kind never needs more
COUNT_BITS = 8
COUNT_MASK = (1 << COUNT_BITS) - 1


@inlined
def ready(mem: I64, own_min: int) -> bool:
    """Whether one more entry may go in before the next merge, whatever it spills."""
    spare: int = mem[btree.FREE_COUNT] + mem[btree.NODES] - mem[btree.USED]
    due: bool = mem[PENDING] >= mem[LIMIT]
    return not due and spare >= SPILL_NODES


@inlined
def approach(own: I64, other: I64, slot: int, op: int, word: int, lo: int) -> None:
    """Search T_S down to the last separators on both sides, for the insert not further than it goes."""
    if op & PROBES:
        other[PLACE + slot] = approach_leaf(other, other[INNER], lo)
        note(other, SEARCH, other[LEVELS] + 1)
    if op & INSERTS:
        if own[SUB_LEVEL] == 0:
            own[OWN_SUB + slot] = approach_leaf(own, own[INNER], word)
        else:
            own[OWN_SUB + slot] = find_node(own, own[INNER], word, own[SUB_LEVEL])
        note(own, INSERT, own[LEVELS] - own[SUB_LEVEL])


@inlined
def prepare(own: I64, other: I64, slot: int, op: int, word: int, lo: int) -> None:
    """Find a tuple's leaf and sub-indexes on both sides and start loading them."""
    if op & PROBES:
        leaf = find_leaf(other, other[INNER], lo, other[PLACE + slot])
        at = other[WORDS] + leaf * other[LEAF_SIZE]
        sub = other[CHUNKS] + (leaf >> other[SUB_SHIFT]) * 2 * other[WIDTH]
        other[PLACE + slot] = at
        other[PLACE_SUB + slot] = leaf >> other[SUB_SHIFT]
        fetch(other, at, other[LEAF_SIZE])
        fetch(other, sub, other[WIDTH])
    if op & INSERTS:
        sub = own[OWN_SUB + slot]
        if own[SUB_LEVEL] == 0:
            sub = find_leaf(own, own[INNER], word, sub)
        own[OWN_SUB + slot] = own[CHUNKS] + sub * 2 * own[WIDTH]
        fetch(own, own[OWN_SUB + slot], 2 * own[WIDTH])


@inlined
def refine(own: I64, other: I64, slot: int, op: int, lo: int, hi: int) -> None:
    """Find a probe's first entry in its leaf, which has arrived by now, and start loading the seqs there."""
    if op & PROBES:
        at = other[PLACE + slot]
        at += count_below(other, at, other[LEAF_SIZE], lo)
        other[PLACE + slot] = at
        prefetch(other, at + other[SEQS])
        prefetch(other, at + other[SEQS] + 4)


@inlined
def locate(mem: I64, slot: int, lo: int) -> None:
    """Nothing left to do: `prepare` and `refine` found the places."""


@inlined
def collect(mem: I64, slot: int, lo: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Append the live seqs of both components."""
    bound = max(min_seq, mem[MIN_SEQ])
    end = mem[WORDS] + mem[STORED]
    n_out = scan_run(mem, mem[PLACE + slot], end, mem[SEQS], hi, bound, out_seq, n_out)
    sub = mem[PLACE_SUB + slot]
    while n_out >= 0:
        at = mem[CHUNKS] + sub * 2 * mem[WIDTH]
        header = mem[at]
        if header > COUNT_MASK:
            place = btree.first_place(mem, header >> COUNT_BITS, lo)
            n_out = btree.scan_places(mem, place, hi, bound, out_seq, n_out)
        elif header:
            n_out = _scan_chunk(mem, at, lo, hi, bound, out_seq, n_out)
        if mem[mem[SUB_AT] + sub] >= hi:
            break
        sub += 1
    return n_out


@inlined
def _scan_chunk(mem: I64, at: int, lo: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Compare a chunk's entries with the interval, eight at a time."""
    count = mem[at]
    filled = ((1 << count) - 1) << 1
    note(mem, SCAN, count)
    for j in range(0, count + 1, 8):
        hits = upto_8(mem, at + j, hi) & ~below_8(mem, at + j, lo) & (filled >> j)
        if n_out >= 0 and n_out + count_bits(hits) > out_seq.size:
            n_out = -1
        while hits and n_out >= 0:
            seq = mem[at + mem[WIDTH] + j + lowest_bit(hits)]
            out_seq[n_out] = seq
            n_out += seq >= min_seq
            hits &= hits - 1
    return n_out


@inlined
def expire_to(mem: I64, own_min: int) -> None:
    """Move the bound; a merge drops what is below."""
    mem[MIN_SEQ] = max(mem[MIN_SEQ], own_min)


@inlined
def insert_one(mem: I64, slot: int, word: int, seq: int) -> None:
    """Append to the tuple's sub-index, found by `prepare`."""
    at = mem[OWN_SUB + slot]
    header = mem[at]
    mem[PENDING] += 1
    mem[SIZE] += 1
    if header < mem[WIDTH] - 1:
        mem[at] = header + 1
        mem[at + 1 + header] = word
        mem[at + 1 + header + mem[WIDTH]] = seq
        note(mem, INSERT, 1)
    else:
        tree = header >> COUNT_BITS
        if tree == 0:
            tree = _spill(mem, at)
        mem[at] = btree.insert(mem, tree, word, seq) << COUNT_BITS


@kernel
def _spill(mem: I64, at: int) -> int:
    """Turn a full chunk into a tree."""
    tree = btree.take_node(mem) * 16
    for j in range(at + 1, at + mem[WIDTH]):
        tree = btree.insert(mem, tree, mem[j], mem[j + mem[WIDTH]])
    mem[SPILLED] += 1
    return tree


@inlined
def _rank(mem: I64, at: int, count: int, j: int) -> int:
    """The place of a chunk's entry j among its entries in (word, seq) order: those before it in time may equal it."""
    word = mem[at + j]
    before = (1 << j) - 2
    after = ((1 << count) - 1 << 1) & ~before
    rank = 0
    for k in range(0, count + 1, 8):
        rank += count_bits(upto_8(mem, at + k, word) & (before >> k))
        rank += count_bits(below_8(mem, at + k, word) & (after >> k))
    return rank


@kernel
def unload(mem: I64, out: I64, run: int, apart: int) -> int:
    """Write the entries of all sub-indexes to out[run:], sorted by (word, seq); returns how many."""
    end = run
    for sub in range(mem[SUB_COUNT]):
        at = mem[CHUNKS] + sub * 2 * mem[WIDTH]
        header = mem[at]
        if header > COUNT_MASK:
            end = btree.unload(mem, header >> COUNT_BITS, out, end, apart)
            continue
        for j in range(1, header + 1):
            to = end + _rank(mem, at, header, j)
            out[to] = mem[at + j]
            out[to + apart] = mem[at + mem[WIDTH] + j]
        end += header
    return end - run


@kernel
def attach(mem: I64, level: int) -> int:
    """Make the nodes of a level of T_S own the sub-indexes; returns the number of sub-indexes."""
    nodes: int = max(1, -(-mem[STORED] // mem[LEAF_SIZE]))
    shift = 0
    while (1 << shift) < mem[CSS_FANOUT]:
        shift += 1
    for _ in range(level):
        nodes = -(-nodes // mem[CSS_FANOUT])
    mem[SUB_LEVEL] = level
    mem[SUB_AT] = mem[INNER] + mem[LEVEL_AT + level]
    mem[SUB_COUNT] = nodes
    mem[SUB_SHIFT] = shift * level
    return nodes


@kernel
def clear_chunks(mem: I64, first_node: int) -> None:
    """Empty every sub-index and free all nodes."""
    for sub in range(mem[SUB_COUNT]):
        mem[mem[CHUNKS] + sub * 2 * mem[WIDTH]] = 0
        mem[mem[CHUNKS] + (sub * 2 + 1) * mem[WIDTH]] = 0
    give_all_nodes(mem, first_node)


@kernel
def give_all_nodes(mem: I64, first_node: int) -> None:
    """Free all nodes, after the sub-indexes were emptied."""
    mem[PENDING] = 0
    mem[SPILLED] = 0
    mem[btree.FREE] = 0
    mem[btree.FREE_COUNT] = 0
    mem[btree.USED] = first_node


task = fuse(
    "pim_tree",
    ready=ready,
    approach=approach,
    prepare=prepare,
    refine=refine,
    locate=locate,
    collect=collect,
    expire_to=expire_to,
    insert_one=insert_one,
)
