"""What a thread does for one slice of a merge of a shared PIM-Tree.

A slice is a few neighbouring sub-indexes and the nodes of T_S that own them. B_i has no word above the largest of its
node, and the next node none below it, so slices merged one by one follow each other in order. Their live entries are
counted first, which gives each slice its place in the new T_S; then every slice is written there on its own.

Invariant: a slice writes the words and seqs of its place, the separators of the leaves that end there and its share
of the new tree's headers, and nothing else: its neighbours may be written at the same time.
"""

from __future__ import annotations

from streamjoin.kernels.flags import kernel, melted
from streamjoin.kernels.machine import I64, below_8, borrow, count_bits, lowest_bit, pack_8_across, upto_8
from streamjoin.kernels.pim_parallel.shared_tree import (
    IN_LINE,
    OWN_SUB,
    PLACE,
    approach,
    chunk_of,
    entry_at,
    insert,
    prepare,
    refine,
)
from streamjoin.kernels.pim_parallel.shared_tree import LANES as CHUNK_LANES
from streamjoin.kernels.pim_parallel.work_queue import SEQ, STRIDE, WORD
from streamjoin.kernels.trees import btree
from streamjoin.kernels.trees.css import INNER, LANES, LEAF_SIZE, SEQS, STORED, WORDS
from streamjoin.kernels.trees.entries import BLOCK
from streamjoin.kernels.trees.pim import COUNT_BITS, COUNT_MASK, SUB_SHIFT, WIDTH
from streamjoin.kernels.trees.task import INSERTS, ON_RIGHT

_RUN = 32  # entries of a chunk, at most


@melted
def node_entries(mem: I64) -> int:
    """How many entries of T_S belong to one sub-index."""
    span: int = mem[LEAF_SIZE] << mem[SUB_SHIFT]
    return span


@kernel
def count_slice(mem: I64, first: int, last: int, least: int) -> int:
    """How many entries of sub-indexes `first` to before `last` and of their nodes are not below `least`."""
    mem = borrow(mem)
    seqs = mem[WORDS] + mem[SEQS]
    at = seqs + first * node_entries(mem)
    end = seqs + min(last * node_entries(mem), mem[STORED])
    live = 0
    while at + LANES <= end:
        live += LANES - count_bits(below_8(mem, at, least))
        at += LANES
    live += count_bits(~below_8(mem, at, least) & ((1 << (end - at)) - 1))
    for sub in range(first, last):
        chunk = chunk_of(mem, sub, 0)
        header = mem[chunk]
        if header > COUNT_MASK:
            live += _count_tree(mem, header >> COUNT_BITS, least)
            continue
        filled = ((1 << header) - 1) << 1
        for line in range(header // CHUNK_LANES + 1):
            fresh = ~below_8(mem, chunk + line * LANES, least) >> CHUNK_LANES
            live += count_bits(fresh & (filled >> line * CHUNK_LANES) & IN_LINE)
    return live


@kernel
def _count_tree(mem: I64, tree: int, least: int) -> int:
    mem = borrow(mem)
    live = 0
    node = btree.first_leaf(mem, tree)
    while node:
        base = node * btree.NODE
        for k in range(mem[base + btree.COUNT]):
            live += mem[base + btree.SEQS + k] >= least
        node = mem[base + btree.NEXT]
    return live


@kernel
def write_slice(old: I64, new: I64, first: int, last: int, least: int, begin: int, end: int, desk: I64) -> None:
    """Merge sub-indexes `first` to before `last` of `old` with their nodes, into entries `begin` to `end` of `new`."""
    old = borrow(old)
    new = borrow(new)
    desk = borrow(desk)
    span = node_entries(old)
    at = old[WORDS] + first * span
    to = new[WORDS] + begin
    limit = new[WORDS] + end
    for sub in range(first, last):
        stop = old[WORDS] + min((sub + 1) * span, old[STORED])
        chunk = chunk_of(old, sub, 0)
        header = old[chunk]
        if header > COUNT_MASK:
            node = btree.first_leaf(old, header >> COUNT_BITS)
            while node:
                base = node * btree.NODE
                for k in range(old[base + btree.COUNT]):
                    word = old[base + btree.KEYS + k]
                    at, to = _move_upto(old, new, at, stop, word, least, to, limit)
                    to = _put(new, to, word, old[base + btree.SEQS + k], least)
                node = old[base + btree.NEXT]
        else:
            for j in range(1, header + 1):
                place = PLACE + _rank(old, chunk, header, j)
                desk[place] = old[entry_at(chunk, j)]
                desk[place + _RUN] = old[entry_at(chunk, j) + CHUNK_LANES]
            for k in range(PLACE, PLACE + header):
                at, to = _move_upto(old, new, at, stop, desk[k], least, to, limit)
                to = _put(new, to, desk[k], desk[k + _RUN], least)
        while at < stop:
            live = ~below_8(old, at + old[SEQS], least) & ((1 << min(LANES, stop - at)) - 1)
            to = _move(old, new, at, live, to, limit)
            at += LANES
        at = stop
    separate(new, begin, end)


@melted
def _rank(mem: I64, chunk: int, count: int, place: int) -> int:
    """How many entries of a chunk come before the one at a place, in the order of words; equal ones keep theirs."""
    word = mem[entry_at(chunk, place)]
    before = (1 << place) - 2
    after = ((1 << count) - 1 << 1) & ~before
    rank = 0
    for line in range(count // CHUNK_LANES + 1):
        at = chunk + line * LANES
        rank += count_bits(upto_8(mem, at, word) & (before >> line * CHUNK_LANES) & IN_LINE)
        rank += count_bits(below_8(mem, at, word) & (after >> line * CHUNK_LANES) & IN_LINE)
    return rank


@melted
def _move_upto(old: I64, new: I64, at: int, stop: int, word: int, least: int, to: int, limit: int) -> tuple[int, int]:
    """Move the live entries of T_S up to a word; returns how far it has come in both trees."""
    moved = LANES
    while moved == LANES and at < stop:
        moved = count_bits(upto_8(old, at, word) & ((1 << min(LANES, stop - at)) - 1))
        live = ~below_8(old, at + old[SEQS], least) & ((1 << moved) - 1)
        to = _move(old, new, at, live, to, limit)
        at += moved
    return at, to


@melted
def _move(old: I64, new: I64, at: int, live: int, to: int, limit: int) -> int:
    """Move the chosen of eight entries; what lies behind them is written as well, but never past the slice."""
    if to + LANES <= limit:
        pack_8_across(new, to, old, at, live)
        pack_8_across(new, to + new[SEQS], old, at + old[SEQS], live)
        to += count_bits(live)
    else:
        while live:
            k = lowest_bit(live)
            new[to] = old[at + k]
            new[to + new[SEQS]] = old[at + old[SEQS] + k]
            to += 1
            live &= live - 1
    return to


@melted
def _put(new: I64, to: int, word: int, seq: int, least: int) -> int:
    """Write one entry if it is live."""
    if seq >= least:
        new[to] = word
        new[to + new[SEQS]] = seq
        to += 1
    return to


@kernel
def separate(mem: I64, begin: int, end: int) -> None:
    """Write the separators of the leaves whose last entries are among entries `begin` to `end`."""
    size = mem[LEAF_SIZE]
    leaves = -(-mem[STORED] // size)
    for leaf in range(begin // size, min(end // size, leaves - 1)):
        mem[mem[INNER] + leaf] = mem[mem[WORDS] + leaf * size + size - 1]


@kernel
def clear_slice(mem: I64, first: int, last: int) -> None:
    """Empty the chunks of sub-indexes `first` to before `last`, and free their locks."""
    mem = borrow(mem)
    for sub in range(first, last):
        for beside in range(2):
            chunk = chunk_of(mem, sub, beside)
            mem[chunk] = 0
            mem[chunk + CHUNK_LANES] = 0


@kernel
def insert_slice(queue: I64, tuples: I64, desk: I64, side: int, mem: I64, begin: int, end: int) -> None:
    """Index a side's tuples from `begin` to before `end`: those who took them did so in the tree that was merged."""
    queue = borrow(queue)
    tuples = borrow(tuples)
    desk = borrow(desk)
    mem = borrow(mem)
    words = WORD * queue[STRIDE]
    at = begin
    while at < end:
        stop = min(at + BLOCK, end)
        for i in range(at, stop):
            if tuples[i] & INSERTS and (tuples[i] & ON_RIGHT) == side:
                approach(mem, mem, desk, i - at, INSERTS, tuples[words + i], 0)
        for i in range(at, stop):
            if tuples[i] & INSERTS and (tuples[i] & ON_RIGHT) == side:
                prepare(mem, mem, desk, i - at, INSERTS, tuples[words + i], 0, 0, 0)
        for i in range(at, stop):
            if tuples[i] & INSERTS and (tuples[i] & ON_RIGHT) == side:
                refine(mem, mem, desk, i - at, INSERTS, 0, 0)
        for i in range(at, stop):
            if tuples[i] & INSERTS and (tuples[i] & ON_RIGHT) == side:
                seq = tuples[SEQ * queue[STRIDE] + i]
                insert(mem, desk[OWN_SUB + i - at], mem[WIDTH], tuples[words + i], seq)
        at = stop
