"""PIM-Tree shared by threads: searching while others insert, a lock for each sub-index.

The layout is that of `pim`, except within a chunk: each of its cache lines holds four words and then their seqs, so
that a match needs no second line and an insert writes to one or two. Word 0 is the header, word 4 the lock. Behind
each chunk lies another: while the tree is merged, its chunks do not change and new entries go beside them.

T_S does not change while any thread reads it, so it needs no lock. A chunk only grows between merges: its header is
stored after the entry it counts, so a reader that loads the header may compare that many entries without a lock;
writers of one chunk take turns by its lock. A sub-index that has become a tree is read and changed under that lock as
well, so threads meet in one sub-index only (SIGMOD paper, section 3.3.3). An insert splits full nodes on its way down,
so it keeps no path, and nodes are handed out by an atomic counter: trees share nothing else.

Invariant: an entry that was in the index before a reader loaded the edge is seen by that reader. Entries come in any
order of seq, so a probe's matches are sorted afterwards. `T_I_ROOM` entries never need more nodes than there are.
"""

from __future__ import annotations

from streamjoin.jit.atomics import add, exchange, give_way, load, store
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import (
    I64,
    below_8,
    below_32,
    borrow,
    count_bits,
    lowest_bit,
    prefetch,
    prefetch_to_write,
    upto_8,
    upto_32,
)
from streamjoin.kernels.trees import btree
from streamjoin.kernels.trees.css import (
    INNER,
    LEAF_SIZE,
    SEQS,
    STORED,
    WORDS,
    approach_leaf,
    count_below,
    fetch,
    find_leaf,
    find_node,
)
from streamjoin.kernels.trees.entries import BLOCK
from streamjoin.kernels.trees.task import INSERTS, PROBES
from streamjoin.pim_tree.kernels.pim import CHUNKS, COUNT_BITS, COUNT_MASK, SPILLED, SUB_AT, SUB_LEVEL, SUB_SHIFT, WIDTH
from streamjoin.pim_tree.kernels.work_queue import DESK

# Words of the head that `pim` leaves free.
ROOM = 112  # entries that T_S has room for
FIRST_NODE = 113
RATIO = 114  # the merge ratio, times 2^20
SMALLEST_RUN = 115
DEPTH = 116  # the insertion depth; 0: that of the leaves
T_I_ROOM = 117  # entries that T_I has room for, however they are spread
LOCKED = 118  # 0: one thread alone, no locks
STEP = 119  # words from a chunk to the next sub-index's

PLACE = DESK
PLACE_SUB = DESK + BLOCK
OWN_SUB = DESK + 2 * BLOCK
DESK_WORDS = DESK + 3 * BLOCK

BESIDE_WIDTH = 16  # words of the chunk beside a chunk: in small windows much comes during a merge
LANES = 4  # words in a line of a chunk; their seqs are as many words behind them
IN_LINE = (1 << LANES) - 1
_LINE = 8
_FIRST_LINES = 2  # of a chunk, loaded before its header is known
_WIDE = 32


@inlined
def entry_at(chunk: int, place: int) -> int:
    """Where the word of a chunk's entry lies; places count from 1."""
    return chunk + place + (place & -LANES)


@inlined
def chunk_of(mem: I64, sub: int, beside: int) -> int:
    """Where the chunk of a sub-index lies, or the one beside it."""
    chunk: int = mem[CHUNKS] + sub * mem[STEP]
    return chunk + 2 * mem[WIDTH] if beside else chunk


@inlined
def width_of(mem: I64, beside: int) -> int:
    """The words of a chunk, its header included."""
    width: int = BESIDE_WIDTH if beside else mem[WIDTH]
    return width


@inlined
def approach(own: I64, other: I64, desk: I64, slot: int, op: int, word: int, lo: int) -> None:
    """Search T_S down to the last separators on both sides, for the insert not further than it goes."""
    if op & PROBES:
        desk[PLACE + slot] = approach_leaf(other, other[INNER], lo)
    if op & INSERTS:
        if own[SUB_LEVEL] == 0:
            desk[OWN_SUB + slot] = approach_leaf(own, own[INNER], word)
        else:
            desk[OWN_SUB + slot] = find_node(own, own[INNER], word, own[SUB_LEVEL])


@inlined
def prepare(
    own: I64, other: I64, desk: I64, slot: int, op: int, word: int, lo: int, own_beside: int, other_beside: int
) -> None:
    """Find a tuple's leaf and sub-indexes on both sides and start loading them."""
    if op & PROBES:
        leaf = find_leaf(other, other[INNER], lo, desk[PLACE + slot])
        at = other[WORDS] + leaf * other[LEAF_SIZE]
        sub = leaf >> other[SUB_SHIFT]
        desk[PLACE + slot] = at
        desk[PLACE_SUB + slot] = sub
        fetch(other, at, other[LEAF_SIZE])
        fetch(other, chunk_of(other, sub, 0), _FIRST_LINES * _LINE)
        if other_beside:
            prefetch(other, chunk_of(other, sub, 1))
    if op & INSERTS:
        sub = desk[OWN_SUB + slot]
        if own[SUB_LEVEL] == 0:
            sub = find_leaf(own, own[INNER], word, sub)
        desk[OWN_SUB + slot] = chunk_of(own, sub, own_beside)
        prefetch_to_write(own, desk[OWN_SUB + slot])


@inlined
def refine(own: I64, other: I64, desk: I64, slot: int, op: int, lo: int, own_beside: int) -> None:
    """Find a probe's first entry in its leaf, loaded by now, and start loading the entries that the headers count."""
    if op & PROBES:
        at = desk[PLACE + slot]
        at += count_below(other, at, other[LEAF_SIZE], lo)
        desk[PLACE + slot] = at
        prefetch(other, at + other[SEQS])
        prefetch(other, at + other[SEQS] + 4)
        chunk = chunk_of(other, desk[PLACE_SUB + slot], 0)
        header = load(other, chunk)
        if header <= COUNT_MASK:
            for line in range(_FIRST_LINES, (header // LANES) + 1):
                prefetch(other, chunk + line * _LINE)
    if op & INSERTS:
        chunk = desk[OWN_SUB + slot]
        header = load(own, chunk)
        if LANES <= header + 1 < width_of(own, own_beside):
            prefetch_to_write(own, entry_at(chunk, header + 1))


@inlined
def collect(
    mem: I64, at: int, sub: int, beside: int, lo: int, hi: int, least: int, edge: int, pool: I64, to: int, end: int
) -> int:
    """Write the seqs from `least` to before `edge` of both components to pool[to:end]; -1 when they do not fit."""
    stop = mem[WORDS] + mem[STORED]
    apart = mem[SEQS]
    while at < stop:
        hits = min(count_bits(upto_8(mem, at, hi)), stop - at)
        if to + hits > end:
            return -1
        for k in range(at + apart, at + apart + hits):
            seq = mem[k]
            pool[to] = seq
            to += (seq >= least) & (seq < edge)
        at += hits
        if hits < 8:
            break
    while to >= 0:
        for which in range(beside + 1):
            chunk = chunk_of(mem, sub, which)
            header = load(mem, chunk)
            if header > COUNT_MASK:
                to = _scan_tree(mem, chunk, lo, hi, least, edge, pool, to, end)
            elif header:
                to = _scan_chunk(mem, chunk, header, lo, hi, least, edge, pool, to, end)
            if to < 0:
                return to
        if mem[mem[SUB_AT] + sub] >= hi:
            break
        sub += 1
    return to


@inlined
def _scan_chunk(
    mem: I64, at: int, count: int, lo: int, hi: int, least: int, edge: int, pool: I64, to: int, end: int
) -> int:
    """Compare the first `count` entries of a chunk with the interval, line by line."""
    filled = ((1 << count) - 1) << 1
    for line in range(count // LANES + 1):
        base = at + line * _LINE
        hits = upto_8(mem, base, hi) & ~below_8(mem, base, lo) & (filled >> line * LANES) & IN_LINE
        if to + count_bits(hits) > end:
            return -1
        while hits:
            seq = mem[base + LANES + lowest_bit(hits)]
            pool[to] = seq
            to += (seq >= least) & (seq < edge)
            hits &= hits - 1
    return to


@kernel
def _scan_tree(mem: I64, chunk: int, lo: int, hi: int, least: int, edge: int, pool: I64, to: int, end: int) -> int:
    """Search a sub-index that has become a tree, under its lock."""
    mem = borrow(mem)
    pool = borrow(pool)
    _lock_chunk(mem, chunk)
    tree = mem[chunk] >> COUNT_BITS
    node = tree >> 4
    for _ in range(tree & 15):
        base = node * btree.NODE
        btree.fetch_payload(mem, base)
        node = mem[base + btree.CHILDREN + btree.keys_below(mem, base, lo)]
    base = node * btree.NODE
    lane = btree.keys_below(mem, base, lo)
    while True:
        count = mem[base + btree.COUNT]
        stop = btree.keys_upto(mem, base, hi)
        if to + stop - lane > end:
            to = -1
            break
        for k in range(lane, stop):
            seq = mem[base + btree.SEQS + k]
            pool[to] = seq
            to += (seq >= least) & (seq < edge)
        base = mem[base + btree.NEXT] * btree.NODE
        if stop < count or base == 0:
            break
        lane = 0
    _unlock_chunk(mem, chunk)
    return to


@inlined
def scan_line(
    tuples: I64, at: int, stop: int, apart: int, lo: int, hi: int, position: int, pool: I64, to: int, end: int
) -> int:
    """Write the positions of a line's words in the interval to pool[to:end], ascending; -1 when they do not fit.

    `position` is that of the word at `at`. Tuples that are never indexed match nothing, whatever their word.
    """
    position -= at
    while at < stop:
        hits = upto_32(tuples, at, hi) & ~below_32(tuples, at, lo) & ((1 << min(_WIDE, stop - at)) - 1)
        while hits:
            k = at + lowest_bit(hits)
            if to == end:
                return -1
            pool[to] = position + k
            to += tuples[k + apart]
            hits &= hits - 1
        at += _WIDE
    return to


@inlined
def _lock_chunk(mem: I64, chunk: int) -> None:
    if mem[LOCKED]:
        at = chunk + LANES
        while load(mem, at) != 0 or exchange(mem, at, 1) != 0:
            give_way()


@inlined
def _unlock_chunk(mem: I64, chunk: int) -> None:
    if mem[LOCKED]:
        store(mem, chunk + LANES, 0)


@inlined
def insert(mem: I64, chunk: int, width: int, word: int, seq: int) -> None:
    """Append to a sub-index under its lock; the header is written last, for readers without the lock."""
    _lock_chunk(mem, chunk)
    header = mem[chunk]
    if header < width - 1:
        at = entry_at(chunk, header + 1)
        mem[at] = word
        mem[at + LANES] = seq
        store(mem, chunk, header + 1)
    else:
        _insert_tree(mem, chunk, width, word, seq)
    _unlock_chunk(mem, chunk)


@kernel
def _insert_tree(mem: I64, chunk: int, width: int, word: int, seq: int) -> None:
    """Insert into a sub-index that is a tree, or is about to become one."""
    mem = borrow(mem)
    tree = mem[chunk] >> COUNT_BITS
    if tree == 0:
        tree = _spill(mem, chunk, width)
    store(mem, chunk, _insert_entry(mem, tree, word, seq) << COUNT_BITS)


@kernel
def _spill(mem: I64, chunk: int, width: int) -> int:
    """Copy a full chunk into a tree; readers that loaded its header before go on with the chunk."""
    tree = _take_node(mem) * 16
    for place in range(1, width):
        at = entry_at(chunk, place)
        tree = _insert_entry(mem, tree, mem[at], mem[at + LANES])
    add(mem, SPILLED, 1)
    return tree


@kernel
def _insert_entry(mem: I64, tree: int, word: int, seq: int) -> int:
    """Insert right of all equals, splitting every full node on the way; returns the tree, whose root may be new."""
    if mem[(tree >> 4) * btree.NODE + btree.COUNT] == mem[btree.FANOUT]:
        right = _take_node(mem)
        separator = _divide(mem, tree >> 4, right, tree & 15)
        tree = btree.add_root(mem, _take_node(mem), tree, separator, right)
    node = tree >> 4
    for height in range((tree & 15) - 1, -1, -1):
        base = node * btree.NODE
        k = btree.keys_upto(mem, base, word)
        node = mem[base + btree.CHILDREN + k]
        if mem[node * btree.NODE + btree.COUNT] == mem[btree.FANOUT]:
            right = _take_node(mem)
            separator = _divide(mem, node, right, height)
            btree.open_lane(mem, base, k, separator, right)
            if word >= separator:
                node = right
    base = node * btree.NODE
    btree.open_lane(mem, base, btree.keys_upto(mem, base, word), word, seq)
    return tree


@inlined
def _divide(mem: I64, node: int, right: int, height: int) -> int:
    separator: int = btree.divide_inner(mem, node, right) if height else btree.divide_leaf(mem, node, right)
    return separator


@inlined
def _take_node(mem: I64) -> int:
    """A node that no thread has used since the last merge."""
    node = add(mem, btree.USED, 1)
    mem[node * btree.NODE + btree.COUNT] = 0
    mem[node * btree.NODE + btree.NEXT] = 0
    return node
