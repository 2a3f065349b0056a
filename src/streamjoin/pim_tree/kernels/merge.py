"""The merge of a shared PIM-Tree, beside a join that goes on (SIGMOD paper, section 4.2), by all threads.

A side has two trees of one layout; one is in use, the merge writes the other. First phase: from `BEGAN` on the tasks
taken index beside the chunks of the tree in use. Once the tasks before it have indexed, nothing changes those chunks
any more, and T_S and T_I are merged into the other tree: counted in slices, then written in slices. Second phase: the
tuples taken meanwhile, which are found in the queue, are inserted into the new tree, in slices as well; the trees are
swapped; what was taken during that last phase is inserted, and only for that long the edge stays back
and lookups scan more of the window than the tasks under way.

In the paper one thread merges, tuples that arrive meanwhile are not indexed at all, and all threads stop for a moment
at the start of each phase. Here none has to stop, since a task keeps the tree, the edge and the place to index that it
was given when it was taken. What must be waited for is that the other tree is no longer used: tasks before `SWAPPED`
have been propagated. The blocking merge also closes the gate: no thread takes a task before it has ended.
`ONE_THREAD` is the merge of the paper, to compare with: the gate closes until the tasks under way are over, one thread
merges while the others join without indexing, the gate closes once more for the swap, and then that thread indexes
what was left out.

Invariant: a phase is opened only by the thread that closed the last slice of the previous phase.

A slice is a few neighbouring sub-indexes and the nodes of T_S that own them. B_i has no word above the largest of its
node, and the next node none below it, so slices merged one by one follow each other in order. Their live entries are
counted first, which gives each slice its place in the new T_S; then every slice is written there on its own.

Invariant: a slice writes the words and seqs of its place, the separators of the leaves that end there and its share
of the new tree's headers, and nothing else: its neighbours may be written at the same time.
"""

from __future__ import annotations

from streamjoin.jit.atomics import store
from streamjoin.jit.crew import lock, unlock
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, below_8, borrow, count_bits, lowest_bit, pack_8_across, upto_8
from streamjoin.kernels.trees import btree
from streamjoin.kernels.trees.css import (
    INNER,
    LANES,
    LEAF_SIZE,
    LEVELS,
    LIMIT,
    SEQS,
    STORED,
    WORDS,
    build_upper_levels,
    lay_levels,
)
from streamjoin.kernels.trees.entries import BLOCK, LARGEST
from streamjoin.kernels.trees.task import INSERTS, ON_RIGHT
from streamjoin.pim_tree.kernels.pim import (
    COUNT_BITS,
    COUNT_MASK,
    SPILLED,
    SUB_COUNT,
    SUB_SHIFT,
    WIDTH,
    attach,
    give_all_nodes,
)
from streamjoin.pim_tree.kernels.shared_tree import (
    DEPTH,
    FIRST_NODE,
    IN_LINE,
    OWN_SUB,
    PLACE,
    RATIO,
    ROOM,
    SMALLEST_RUN,
    T_I_ROOM,
    approach,
    chunk_of,
    entry_at,
    insert,
    prepare,
    refine,
)
from streamjoin.pim_tree.kernels.shared_tree import LANES as CHUNK_LANES
from streamjoin.pim_tree.kernels.work_queue import (
    ACQUIRED,
    BASE,
    BEGAN,
    CATCH_AT_ONCE,
    CATCHING_UP,
    CAUGHT_UP,
    CEILING,
    COUNTING,
    CURRENT,
    DEFERRED,
    DRAINING,
    EDGE,
    EDGE_LOCK,
    FROZEN,
    GATE,
    GRANT,
    GROWS,
    HALT,
    HELD,
    INSERTED,
    INSERTING,
    LEAST,
    LOCK,
    MERGE_MODE,
    MERGE_SIDE,
    MERGES,
    MERGING,
    MIN_SEQ,
    MOST_SLICES,
    MY_PHASE,
    MY_SLICE,
    NEEDED,
    NONBLOCKING,
    ONE_THREAD,
    OPS,
    PARTS,
    PENDING,
    PLANNING,
    SELF,
    SEQ,
    SETTLING,
    SLICE_ENTRIES,
    SLICES_AT,
    STRIDE,
    SUBS,
    SWAPPED,
    WORD,
    WRITING,
    close_slice,
    open_phase,
    position_at,
)
from streamjoin.pim_tree.kernels.work_queue import LIMIT as QUEUE_LIMIT

MERGING_NOW = 12  # the state of a merging thread

_LOOK_BACK = 4096
_PENDING_SLICE = 256  # tuples
_COUNTED_AT_ONCE = 16  # parts: to count takes a tenth of the time to write
_TOLERATED = 6  # one sub-index in this many may spill before chunks get wider
WIDEST = 32
_RUN = 32  # entries of a chunk, at most


@inlined
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


@inlined
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


@inlined
def _move_upto(old: I64, new: I64, at: int, stop: int, word: int, least: int, to: int, limit: int) -> tuple[int, int]:
    """Move the live entries of T_S up to a word; returns how far it has come in both trees."""
    moved = LANES
    while moved == LANES and at < stop:
        moved = count_bits(upto_8(old, at, word) & ((1 << min(LANES, stop - at)) - 1))
        live = ~below_8(old, at + old[SEQS], least) & ((1 << moved) - 1)
        to = _move(old, new, at, live, to, limit)
        at += moved
    return at, to


@inlined
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


@inlined
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
    """Index a side's tuples from `begin` to before `end`; their tasks had indexed them in the merged tree."""
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


@kernel
def crowded(mem: I64) -> bool:
    """Whether too many sub-indexes became trees: wider chunks would have been better."""
    many: bool = mem[SPILLED] > max(1, mem[SUB_COUNT] // _TOLERATED)
    return many


@kernel
def most_live(queue: I64, tuples: I64, side: int, old: I64) -> int:
    """At most how many entries a merge of `old` that begins now would write: no two have one position."""
    at = queue[ACQUIRED]
    positions = int(position_at(queue, tuples, side, at)) + int(queue[SELF]) - int(live_bound(queue, tuples, side, at))
    return min(int(old[STORED] + queue[INSERTED + side]), max(0, positions))


@kernel
def fits(old: I64, new: I64, needed: int, wider: int) -> bool:
    """Whether the merge of `old` can be written to `new`; `wider`: whether its chunks may be made wider."""
    enough: bool = needed + old[LEAF_SIZE] + LANES < new[ROOM]
    wanted = old[WIDTH]
    if wider and wanted < WIDEST and crowded(old):
        wanted *= 2
    # Until the swap T_I may take what the tree in use has room for, and all of it goes to the new one.
    return enough and new[WIDTH] >= wanted and new[T_I_ROOM] >= old[T_I_ROOM]


@kernel
def begin_merge(queue: I64, tuples: I64, side: int, old: I64, new: I64, wider: int) -> bool:
    """Freeze a side where the queue is now, or call for room; gives back the lock that `acquire` kept."""
    needed = most_live(queue, tuples, side, old)
    possible = fits(old, new, needed, wider)
    if possible:
        queue[MERGING] = 1
        queue[GATE] = queue[MERGE_MODE] != NONBLOCKING
        alone = queue[MERGE_MODE] == ONE_THREAD
        queue[FROZEN + side] = not alone
        queue[DEFERRED + side] = alone
        queue[CATCH_AT_ONCE] = LARGEST if alone else _PENDING_SLICE
        queue[BEGAN + side] = queue[ACQUIRED]
        queue[INSERTED + side] = 0
        queue[MERGE_SIDE] = side
        open_phase(queue, SETTLING, 0)
    else:
        queue[HALT] = side + 1
        queue[NEEDED] = needed
    unlock(queue, LOCK)
    return possible


@kernel
def live_bound(queue: I64, tuples: I64, side: int, at: int) -> int:
    """A position of `side` below which no tuple from `at` on will look."""
    bound: int = queue[BASE + side]
    if not queue[GROWS + side]:
        return bound
    rows = MIN_SEQ * queue[STRIDE]
    if queue[SELF]:
        # The newest tuple in both its roles, which have windows of their own.
        return max(bound, min(int(tuples[rows + at - 1]), int(tuples[rows + at - 2]))) if at > 1 else bound
    for i in range(at - 1, max(-1, at - _LOOK_BACK), -1):
        if (tuples[OPS * queue[STRIDE] + i] & ON_RIGHT) != side:
            return max(bound, int(tuples[rows + i]))
    return bound


@kernel
def adopt(mem: I64, stored: int) -> None:
    """Make the first `stored` entries of the leaves T_S, with an empty T_I."""
    lay(mem, stored)
    separate(mem, 0, stored)
    clear_slice(mem, 0, mem[SUB_COUNT])
    finish(mem)


@kernel
def lay(mem: I64, stored: int) -> None:
    """Lay the levels of separators and the sub-indexes of a T_S of `stored` entries that is still to be written."""
    mem[STORED] = stored
    lay_levels(mem, stored)
    attach(mem, max(0, mem[LEVELS] - mem[DEPTH]) if mem[DEPTH] else 0)


@kernel
def finish(mem: I64) -> None:
    """Build what is above the separators of the leaves, and attach the T_I whose chunks are empty."""
    build_upper_levels(mem, mem[WORDS], mem[STORED], mem[INNER])
    give_all_nodes(mem, mem[FIRST_NODE])
    mem[LIMIT] = max(mem[SMALLEST_RUN], (mem[STORED] * mem[RATIO]) >> 20)


@kernel
def set_limits(queue: I64, side: int, mem: I64) -> None:
    """Set when the next merge of a side is due, and how many entries T_I can take beyond that."""
    ceiling = mem[T_I_ROOM] - queue[GRANT]
    queue[CEILING + side] = ceiling
    queue[QUEUE_LIMIT + side] = min(mem[LIMIT], max(1, ceiling // 2))


@kernel
def help_merge(queue: I64, tuples: I64, desk: I64, old: I64, new: I64) -> None:
    """Do the slice on the desk; `old` is the tree in use, `new` the other. The last of a phase opens the next."""
    phase = desk[MY_PHASE]
    number = desk[MY_SLICE]
    if phase == COUNTING:
        for part in range(number * _COUNTED_AT_ONCE, min((number + 1) * _COUNTED_AT_ONCE, queue[PARTS])):
            first = part * queue[SUBS]
            last = min(first + queue[SUBS], old[SUB_COUNT])
            queue[queue[SLICES_AT] + part + 1] = count_slice(old, first, last, queue[LEAST])
    elif phase == WRITING:
        first = number * queue[SUBS]
        last = min(first + queue[SUBS], old[SUB_COUNT])
        place = queue[SLICES_AT] + number
        write_slice(old, new, first, last, queue[LEAST], queue[place], queue[place + 1], desk)
        cleared = -(-new[SUB_COUNT] // queue[PARTS])
        clear_slice(new, min(number * cleared, new[SUB_COUNT]), min((number + 1) * cleared, new[SUB_COUNT]))
    elif phase in (INSERTING, CATCHING_UP):
        begin = queue[PENDING] + number * queue[CATCH_AT_ONCE]
        end = min(queue[CAUGHT_UP] - begin, queue[CATCH_AT_ONCE]) + begin
        if phase == INSERTING:
            insert_slice(queue, tuples, desk, queue[MERGE_SIDE], new, begin, end)
        else:
            insert_slice(queue, tuples, desk, queue[MERGE_SIDE], old, begin, end)
    if close_slice(queue):
        _go_on(queue, tuples, old, new, phase)


@kernel
def _go_on(queue: I64, tuples: I64, old: I64, new: I64, phase: int) -> None:
    """Open the phase after `phase` that has something to do."""
    if phase == PLANNING:
        _plan(queue, tuples, old)
        return
    if phase == COUNTING:
        _place(queue, new)
        return
    if phase == WRITING:
        finish(new)
        queue[CAUGHT_UP] = queue[BEGAN + queue[MERGE_SIDE]]
        lock(queue, LOCK)
        if queue[MERGE_MODE] == ONE_THREAD:
            queue[GATE] = 1
            open_phase(queue, DRAINING, 0)
            waits = True
        else:
            waits = _open_inserts(queue, INSERTING)
        unlock(queue, LOCK)
        if waits:
            return
    if phase != CATCHING_UP and _swap(queue, new):
        return
    _end(queue)


@kernel
def _open_inserts(queue: I64, phase: int) -> bool:
    """Cut the tuples taken since the last such phase into slices; False when there are none. Needs the lock."""
    queue[PENDING] = queue[CAUGHT_UP]
    queue[CAUGHT_UP] = queue[ACQUIRED]
    slices: int = -(-(queue[CAUGHT_UP] - queue[PENDING]) // queue[CATCH_AT_ONCE])
    open_phase(queue, phase, slices)
    return slices > 0


@kernel
def _plan(queue: I64, tuples: I64, old: I64) -> None:
    """Cut the tree in use into slices; it no longer changes, and no thread reads the other."""
    side = queue[MERGE_SIDE]
    queue[LEAST] = live_bound(queue, tuples, side, queue[BEGAN + side])
    parts = max(1, min(queue[MOST_SLICES], old[STORED] // queue[SLICE_ENTRIES]))
    if queue[MERGE_MODE] == ONE_THREAD:
        parts = 1
    queue[SUBS] = -(-old[SUB_COUNT] // parts)
    queue[PARTS] = -(-old[SUB_COUNT] // queue[SUBS])  # none is empty
    lock(queue, LOCK)
    open_phase(queue, COUNTING, -(-queue[PARTS] // _COUNTED_AT_ONCE))
    unlock(queue, LOCK)


@kernel
def _place(queue: I64, new: I64) -> None:
    """Give each part its place in the new tree, now that all are counted."""
    at = queue[SLICES_AT]
    queue[at] = 0
    for place in range(at, at + queue[PARTS]):
        queue[place + 1] += queue[place]
    lay(new, queue[at + queue[PARTS]])
    lock(queue, LOCK)
    open_phase(queue, WRITING, queue[PARTS])
    unlock(queue, LOCK)


@kernel
def _swap(queue: I64, new: I64) -> bool:
    """Put the new tree to use, with the edge where it has caught up; whether it still lacks some tuples."""
    side = queue[MERGE_SIDE]
    lock(queue, LOCK)
    queue[CURRENT + side] = 1 - queue[CURRENT + side]
    queue[FROZEN + side] = 0
    queue[DEFERRED + side] = 0
    queue[SWAPPED + side] = queue[ACQUIRED]
    set_limits(queue, side, new)
    lock(queue, EDGE_LOCK)
    store(queue, EDGE + side, queue[CAUGHT_UP])
    store(queue, HELD + side, 1)
    unlock(queue, EDGE_LOCK)
    lacks = _open_inserts(queue, CATCHING_UP)
    unlock(queue, LOCK)
    return lacks


@kernel
def _end(queue: I64) -> None:
    """Release the edge, and allow the next merge to begin."""
    side = queue[MERGE_SIDE]
    lock(queue, EDGE_LOCK)
    store(queue, EDGE + side, queue[SWAPPED + side])
    store(queue, HELD + side, 0)
    unlock(queue, EDGE_LOCK)
    lock(queue, LOCK)
    queue[MERGING] = 0
    queue[MERGES] += 1
    queue[GATE] = 0
    unlock(queue, LOCK)
