"""IM-Tree: new entries in a B+-tree T_I, all others in an immutable T_S, merged at m * w (SIGMOD paper, section 3.2).

Arena: head, separators, two buffers of words and seqs (T_S and where the next merge writes), nodes.
Invariant: every seq in T_I is larger than every seq in T_S, and T_S does not change between merges, so a
block of tuples is located there together. Expired entries stay in both until a merge; no probe returns them.
"""

# ruff: noqa: ARG001 - the functions of every kind have one signature
from __future__ import annotations

from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, prefetch
from streamjoin.kernels.trees import btree
from streamjoin.kernels.trees.css import (
    INNER,
    LEAF_SIZE,
    LEVELS,
    LIMIT,
    PENDING,
    SEQS,
    STORED,
    WORDS,
    approach_leaf,
    count_below,
    fetch,
    find_leaf,
    scan_run,
)
from streamjoin.kernels.trees.entries import BLOCK, MIN_SEQ, SCRATCH, SEARCH, SIZE, note
from streamjoin.kernels.trees.task import PROBES, fuse

PLACE = SCRATCH
TREE_PLACE = SCRATCH + BLOCK


@inlined
def ready(mem: I64, own_min: int) -> bool:
    """Whether one more entry may go in before the next merge."""
    return mem[PENDING] < mem[LIMIT] and btree.has_spare_nodes(mem)


@inlined
def approach(own: I64, other: I64, slot: int, op: int, word: int, lo: int) -> None:
    """Search T_S down to the last separators."""
    if op & PROBES:
        other[PLACE + slot] = approach_leaf(other, other[INNER], lo)


@inlined
def prepare(own: I64, other: I64, slot: int, op: int, word: int, lo: int) -> None:
    """Find a probe's leaf of T_S and start loading it."""
    if op & PROBES:
        leaf = find_leaf(other, other[INNER], lo, other[PLACE + slot])
        at = other[WORDS] + leaf * other[LEAF_SIZE]
        other[PLACE + slot] = at
        fetch(other, at, other[LEAF_SIZE])
        note(other, SEARCH, other[LEVELS] + 1)


@inlined
def refine(own: I64, other: I64, slot: int, op: int, lo: int, hi: int) -> None:
    """Find the first entry in the leaf, which has arrived by now, and start loading the seqs there."""
    if op & PROBES:
        at = other[PLACE + slot]
        at += count_below(other, at, other[LEAF_SIZE], lo)
        other[PLACE + slot] = at
        prefetch(other, at + other[SEQS])


@inlined
def locate(mem: I64, slot: int, lo: int) -> None:
    """Find the first entry in T_I, which earlier tuples of the block may have changed."""
    mem[TREE_PLACE] = btree.first_place(mem, mem[btree.TREE], lo)


@inlined
def collect(mem: I64, slot: int, lo: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Append the live seqs of both components."""
    bound = max(min_seq, mem[MIN_SEQ])
    end = mem[WORDS] + mem[STORED]
    n_out = scan_run(mem, mem[PLACE + slot], end, mem[SEQS], hi, bound, out_seq, n_out)
    if n_out < 0:
        return n_out
    return btree.scan_places(mem, mem[TREE_PLACE], hi, bound, out_seq, n_out)


@inlined
def expire_to(mem: I64, own_min: int) -> None:
    """Move the bound; a merge drops what is below."""
    mem[MIN_SEQ] = max(mem[MIN_SEQ], own_min)


@inlined
def insert_one(mem: I64, slot: int, word: int, seq: int) -> None:
    """Insert into T_I."""
    mem[btree.TREE] = btree.insert(mem, mem[btree.TREE], word, seq)
    mem[PENDING] += 1
    mem[SIZE] += 1


@kernel
def unload(mem: I64, out: I64, run: int, apart: int) -> int:
    """Write T_I as one sorted run to out[run:], seqs `apart` words behind; returns its length."""
    return btree.unload(mem, mem[btree.TREE], out, run, apart) - run


@kernel
def clear_tree(mem: I64, first_node: int) -> None:
    """Make T_I one empty leaf and free all other nodes."""
    mem[btree.FREE] = 0
    mem[btree.FREE_COUNT] = 0
    mem[btree.USED] = first_node
    mem[btree.TREE] = btree.take_node(mem) * 16
    mem[PENDING] = 0


task = fuse(
    "im_tree",
    ready=ready,
    approach=approach,
    prepare=prepare,
    refine=refine,
    locate=locate,
    collect=collect,
    expire_to=expire_to,
    insert_one=insert_one,
)
