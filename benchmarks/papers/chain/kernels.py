"""Chained index: a chain of sub-indexes by age, of which only the youngest grows (SIGMOD paper, section 2.2.2).

Arena: head, directory, then for `b_chain` one slab of nodes per link, for `ib_chain` one slab of nodes and one
immutable tree per link. The links in use are a ring: `CHAIN` of them from `FIRST` on are archived, oldest first; in a
`b_chain` the next one is the active tree. A directory row holds a link's tree (or its entry count) and its newest seq.

Invariant: sub-indexes partition the entries by seq, so expiry drops whole links from the front, and
entries that expired within a link are only filtered out.
"""

# ruff: noqa: ARG001 - the functions of every kind have one signature
from __future__ import annotations

from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64
from streamjoin.kernels.trees import btree
from streamjoin.kernels.trees.css import build_levels, find_place, scan_run
from streamjoin.kernels.trees.entries import DELETE, MERGE, MIN_SEQ, SCRATCH, SIZE, note
from streamjoin.kernels.trees.task import fuse, no_approach, no_prepare, no_refine

FIRST = 100  # the oldest archived link
CHAIN = 101  # archived links
LINKS = 102  # links there is room for
SPAN = 103  # entries of a full link
ACTIVE = 104  # entries of the active one
DIRECTORY = 105
SEGMENTS = 106  # offset of the first immutable tree
SEGMENT = 107  # words from one to the next
SEGMENT_INNER = 108  # separators come first; the words start here
SEGMENT_SEQS = 109  # distance from a word to its seq

NEWEST = 110  # the last seq inserted

ROW = 2
ROW_TREE = 0  # b_chain: the tree; ib_chain: the number of entries
ROW_NEWEST = 1


@inlined
def row_of(mem: I64, age: int) -> int:
    """The directory row of the archived link number `age`, 0 being the oldest."""
    row: int = mem[DIRECTORY] + ROW * ((mem[FIRST] + age) % mem[LINKS])
    return row


@inlined
def segment_of(mem: I64, age: int) -> int:
    """The offset of the immutable tree number `age`."""
    segment: int = mem[SEGMENTS] + mem[SEGMENT] * ((mem[FIRST] + age) % mem[LINKS])
    return segment


@inlined
def ready(mem: I64, own_min: int) -> bool:
    """Whether the active sub-index takes one more entry; its slab has nodes for all of them."""
    room: bool = mem[ACTIVE] < mem[SPAN]
    return room


@inlined
def locate_b(mem: I64, slot: int, lo: int) -> None:
    """Search every sub-index."""
    for age in range(mem[CHAIN]):
        mem[SCRATCH + age] = btree.first_place(mem, mem[row_of(mem, age) + ROW_TREE], lo)
    mem[SCRATCH + mem[CHAIN]] = btree.first_place(mem, mem[btree.TREE], lo)


@inlined
def collect_b(mem: I64, slot: int, lo: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Append the live seqs of every sub-index, oldest first."""
    bound = max(min_seq, mem[MIN_SEQ])
    for age in range(mem[CHAIN] + 1):
        n_out = btree.scan_places(mem, mem[SCRATCH + age], hi, bound, out_seq, n_out)
        if n_out < 0:
            break
    return n_out


@inlined
def locate_ib(mem: I64, slot: int, lo: int) -> None:
    """Search every sub-index."""
    for age in range(mem[CHAIN]):
        segment = segment_of(mem, age)
        mem[SCRATCH + age] = find_place(mem, segment + mem[SEGMENT_INNER], segment, lo)
    mem[SCRATCH + mem[CHAIN]] = btree.first_place(mem, mem[btree.TREE], lo)


@inlined
def collect_ib(mem: I64, slot: int, lo: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Append the live seqs of every sub-index, oldest first."""
    bound = max(min_seq, mem[MIN_SEQ])
    for age in range(mem[CHAIN]):
        end = segment_of(mem, age) + mem[SEGMENT_INNER] + mem[row_of(mem, age) + ROW_TREE]
        n_out = scan_run(mem, mem[SCRATCH + age], end, mem[SEGMENT_SEQS], hi, bound, out_seq, n_out)
        if n_out < 0:
            return n_out
    return btree.scan_places(mem, mem[SCRATCH + mem[CHAIN]], hi, bound, out_seq, n_out)


@inlined
def expire_to(mem: I64, own_min: int) -> None:
    """Drop the links whose newest entry fell out of the window."""
    mem[MIN_SEQ] = max(mem[MIN_SEQ], own_min)
    while mem[CHAIN] and mem[row_of(mem, 0) + ROW_NEWEST] < mem[MIN_SEQ]:
        mem[FIRST] = (mem[FIRST] + 1) % mem[LINKS]
        mem[CHAIN] -= 1
        mem[SIZE] -= mem[SPAN]
        note(mem, DELETE, 1)


@inlined
def insert_one(mem: I64, slot: int, word: int, seq: int) -> None:
    """Insert into the active sub-index."""
    mem[btree.TREE] = btree.insert(mem, mem[btree.TREE], word, seq)
    mem[ACTIVE] += 1
    mem[SIZE] += 1
    mem[NEWEST] = seq


@kernel
def archive_b(mem: I64) -> None:
    """Make the active tree the youngest archived link."""
    row = row_of(mem, mem[CHAIN])
    mem[row + ROW_TREE] = mem[btree.TREE]
    mem[row + ROW_NEWEST] = mem[NEWEST]
    mem[CHAIN] += 1


@kernel
def archive_ib(mem: I64) -> None:
    """Convert the active tree to an immutable one, the youngest archived link."""
    segment = segment_of(mem, mem[CHAIN])
    words = segment + mem[SEGMENT_INNER]
    btree.unload(mem, mem[btree.TREE], mem, words, mem[SEGMENT_SEQS])
    build_levels(mem, words, mem[ACTIVE], segment, words)
    note(mem, MERGE, mem[ACTIVE])
    row = row_of(mem, mem[CHAIN])
    mem[row + ROW_TREE] = mem[ACTIVE]
    mem[row + ROW_NEWEST] = mem[NEWEST]
    mem[CHAIN] += 1


@kernel
def start_active(mem: I64, first_node: int, nodes: int) -> None:
    """Begin an empty active sub-index in a slab of nodes."""
    mem[btree.FREE] = 0
    mem[btree.FREE_COUNT] = 0
    mem[btree.USED] = first_node
    mem[btree.NODES] = first_node + nodes
    mem[btree.TREE] = btree.take_node(mem) * 16
    mem[ACTIVE] = 0


task_b = fuse(
    "b_chain",
    ready=ready,
    approach=no_approach,
    prepare=no_prepare,
    refine=no_refine,
    locate=locate_b,
    collect=collect_b,
    expire_to=expire_to,
    insert_one=insert_one,
)
task_ib = fuse(
    "ib_chain",
    ready=ready,
    approach=no_approach,
    prepare=no_prepare,
    refine=no_refine,
    locate=locate_ib,
    collect=collect_ib,
    expire_to=expire_to,
    insert_one=insert_one,
)
