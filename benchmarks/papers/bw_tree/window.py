"""The Bw-Tree as a sliding-window index of one thread: the tree, and the ring that says which entry expires next.

The ring holds (word, seq) pairs in arrival order, as that of `btree_window`. Invariant: tree and ring hold the same
entries, all with seq >= MIN_SEQ once expired.
"""

# ruff: noqa: ARG001 - the functions of every kind have one signature
from __future__ import annotations

from benchmarks.papers.bw_tree.memory import (
    DELETED,
    FREE_COUNT,
    INSERTED,
    ROOT,
    SPARE,
    WINDOW_OWN,
    rest_alone,
    thread_at,
)
from benchmarks.papers.bw_tree.nodes import LEVEL_MASK
from benchmarks.papers.bw_tree.pages import scan
from benchmarks.papers.bw_tree.updates import leaf_for, leaf_to_change, update
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, borrow
from streamjoin.kernels.trees.entries import DELETE, INSERT, LARGEST, MIN_SEQ, SCAN, SCRATCH, SEARCH, SIZE, note
from streamjoin.kernels.trees.task import fuse, no_approach, no_prepare, no_refine

FRONT = WINDOW_OWN
BACK = WINDOW_OWN + 1
RING = WINDOW_OWN + 2  # offset of the ring
RING_MASK = WINDOW_OWN + 3


@inlined
def ready(mem: I64, own_min: int) -> bool:
    """Whether one more entry fits once everything below `own_min` is gone."""
    room: bool = mem[BACK] - mem[FRONT] <= mem[RING_MASK]
    if not room:
        room = mem[mem[RING] + 2 * (mem[FRONT] & mem[RING_MASK]) + 1] < own_min
    rest_alone(mem)
    pages: bool = mem[thread_at(mem, 0) + FREE_COUNT] >= SPARE
    return room and pages


@inlined
def locate(mem: I64, slot: int, lo: int) -> None:
    """Find the leaf of the first entry not below `lo`."""
    mem[SCRATCH] = leaf_for(mem, lo, -1)
    note(mem, SEARCH, (mem[ROOT] & LEVEL_MASK) + 1)


@inlined
def collect(mem: I64, slot: int, lo: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Append the live seqs of keys up to `hi`."""
    least = max(min_seq, mem[MIN_SEQ])
    tail = scan(mem, mem[SCRATCH], lo, hi, least, LARGEST, out_seq, n_out, out_seq.size)
    note(mem, SCAN, 1 + max(0, tail - n_out))
    return tail


@inlined
def expire_to(mem: I64, own_min: int) -> None:
    """Delete the entries that fell out of the window, oldest first."""
    mem[MIN_SEQ] = max(mem[MIN_SEQ], own_min)
    while mem[FRONT] < mem[BACK]:
        at = mem[RING] + 2 * (mem[FRONT] & mem[RING_MASK])
        if mem[at + 1] >= own_min:
            break
        _change(mem, DELETED, mem[at], mem[at + 1])
        mem[FRONT] += 1
        mem[SIZE] -= 1


@inlined
def insert_one(mem: I64, slot: int, word: int, seq: int) -> None:
    """Insert an entry into the tree and the ring."""
    _change(mem, INSERTED, word, seq)
    at = mem[RING] + 2 * (mem[BACK] & mem[RING_MASK])
    mem[at] = word
    mem[at + 1] = seq
    mem[BACK] += 1
    mem[SIZE] += 1


@kernel
def _change(mem: I64, kind: int, word: int, seq: int) -> None:
    """Add a record for an entry; what the thread has to spare is enough for one, see `ready`."""
    mem = borrow(mem)
    rest_alone(mem)
    if not update(mem, 0, leaf_to_change(mem, 0, word, seq), kind, word, seq):
        # Rather than losing the entry.
        raise MemoryError("a Bw-Tree has no page left")
    note(mem, DELETE if kind == DELETED else INSERT, (mem[ROOT] & LEVEL_MASK) + 1)


task = fuse(
    "bw_tree",
    ready=ready,
    approach=no_approach,
    prepare=no_prepare,
    refine=no_refine,
    locate=locate,
    collect=collect,
    expire_to=expire_to,
    insert_one=insert_one,
)
