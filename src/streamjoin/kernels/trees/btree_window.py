"""The B+-tree as a sliding-window index: one tree, and the ring that says which entry expires next.

Arena: head, nodes, ring. The ring holds (word, seq) pairs in arrival order; `FRONT` and `BACK` only grow and are
masked on use. Invariant: tree and ring hold the same entries, all with seq >= MIN_SEQ once expired
(SIGMOD paper, section 2.2.1).
"""

# ruff: noqa: ARG001 - the functions of every kind have one signature
from __future__ import annotations

from streamjoin.kernels.flags import melted
from streamjoin.kernels.machine import I64
from streamjoin.kernels.trees.btree import TREE, TREE_OWN, first_place, has_spare_nodes, insert, scan_places
from streamjoin.kernels.trees.btree_delete import delete_first
from streamjoin.kernels.trees.entries import MIN_SEQ, SCRATCH, SIZE
from streamjoin.kernels.trees.task import fuse, no_approach, no_prepare, no_refine

FRONT = TREE_OWN
BACK = TREE_OWN + 1
RING = TREE_OWN + 2  # offset of the ring
RING_MASK = TREE_OWN + 3


@melted
def ready(mem: I64, own_min: int) -> bool:
    """Whether one more entry fits once everything below `own_min` is gone."""
    room = mem[BACK] - mem[FRONT] <= mem[RING_MASK]
    if not room:
        room = mem[mem[RING] + 2 * (mem[FRONT] & mem[RING_MASK]) + 1] < own_min
    return room and has_spare_nodes(mem)


@melted
def locate(mem: I64, slot: int, lo: int) -> None:
    """Find the first entry not below `lo`."""
    mem[SCRATCH] = first_place(mem, mem[TREE], lo)


@melted
def collect(mem: I64, slot: int, lo: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Append the live seqs of keys up to `hi`."""
    return scan_places(mem, mem[SCRATCH], hi, max(min_seq, mem[MIN_SEQ]), out_seq, n_out)


@melted
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


@melted
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
