"""The loop of one thread of the parallel PIM-Tree join: take a task, look up, index, hand on, merge when it is due.

The tuples of a block are located together before the first is looked up, so that their cache misses overlap, as in
`task`; a lookup takes what lies before the edge from the index and the rest of its window from the line. A task's part
of the block is indexed once all of it has been looked up.

Every kernel with a loop borrows its arrays anew: the compiler leaves reference counts out only where it sees that.

A thread comes back to Python when the caller must act, with what it was at on its desk; called again, it goes on.
Invariant: with FLUSH and ALONE it holds the lock to hand on, with any other answer none.

A lookup's matches are ordered in the task's block of the pool, if the output is to be in order. A block has a half for
positions and, `apart` words behind, one for the tuples that met them; the second is written when the first is in order,
so a sort may use it.
Invariant: a sort of `begin` to `end` changes nothing but that, the same places `apart` words behind, and up to `limit`
there; the eight words behind a half are written back as they were.

Few matches are merged from runs of eight. Many are distributed byte by byte: that takes as long per match however many
there are, where merging goes over all of them once more for every doubling.
"""

from __future__ import annotations

from streamjoin.jit.atomics import load
from streamjoin.jit.crew import RUNNING, dismissed, idle, lock, stand, unlock
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, borrow, sort_8
from streamjoin.kernels.trees.css import INNER, LEAF_SIZE, WORDS, count_below, find_node
from streamjoin.kernels.trees.entries import BLOCK
from streamjoin.kernels.trees.task import INSERTS, ON_RIGHT, PROBES
from streamjoin.pim_tree.kernels.merge import MERGING_NOW, begin_merge, help_merge
from streamjoin.pim_tree.kernels.pim import SUB_SHIFT
from streamjoin.pim_tree.kernels.shared_tree import (
    OWN_SUB,
    PLACE,
    PLACE_SUB,
    approach,
    collect,
    insert,
    prepare,
    refine,
    scan_line,
    width_of,
)
from streamjoin.pim_tree.kernels.work_queue import (
    APART,
    BESIDE,
    CAPACITY,
    COUNT,
    CURRENT,
    DEFERS,
    FINISHED,
    FIRST,
    GAP_WORDS,
    GRANT_BEGIN,
    GRANT_END,
    HALTED,
    HEAD,
    HI,
    LAST,
    LINE,
    LO,
    LOCATED,
    LOCATED_END,
    MERGE_LEFT,
    MERGE_SIDE,
    MERGING,
    MIN_SEQ,
    MY_EDGE,
    MY_TASK,
    MY_TREE,
    NEXT,
    PARKS,
    PROPAGATE_LOCK,
    PUT,
    SELF,
    SEQ,
    SLICE,
    SORTS,
    STRIDE,
    TAKEN,
    UPTO,
    WORD,
    acquire,
    block_of,
    call_for_room,
    complete,
    hand_on,
    mark_indexed,
    probes_apart,
    propagate,
    slot_of,
    start_granted,
)

_LANES = 8
_BITS = 8
_BUCKETS = 1 << _BITS
_DISTRIBUTED_FROM = 96  # matches


@inlined
def order_matches(pool: I64, apart: int, begin: int, end: int, limit: int) -> None:
    """Sort pool[begin:end], nearly always a handful."""
    if end - begin <= _LANES:
        sort_8(pool, begin, end - begin)
    elif end - begin >= _DISTRIBUTED_FROM and end + _BUCKETS <= limit:
        _distribute(pool, apart, begin, end)
    else:
        _merge(pool, apart, begin, end)


@kernel
def _distribute(pool: I64, apart: int, begin: int, end: int) -> None:
    """A radix sort from the lowest byte to the highest in which two words differ."""
    pool = borrow(pool)
    least = pool[begin]
    most = pool[begin]
    for j in range(begin + 1, end):
        least = min(least, pool[j])
        most = max(most, pool[j])
    source = begin
    target = begin + apart
    shift = 0
    while (most - least) >> shift:
        _pass(pool, source, target, end - begin, least, shift, end + apart)
        source, target = target, source
        shift += _BITS
    if source != begin:
        for j in range(end - begin):
            pool[begin + j] = pool[source + j]


@kernel
def _pass(pool: I64, source: int, target: int, count: int, least: int, shift: int, places: int) -> None:
    """Move `count` words in the order of one byte; where each byte's next word goes is kept from `places` on."""
    pool = borrow(pool)
    for k in range(places, places + _BUCKETS):
        pool[k] = 0
    for j in range(source, source + count):
        pool[places + (((pool[j] - least) >> shift) & (_BUCKETS - 1))] += 1
    place = target
    for k in range(places, places + _BUCKETS):
        words = pool[k]
        pool[k] = place
        place += words
    for j in range(source, source + count):
        word = pool[j]
        bucket = places + (((word - least) >> shift) & (_BUCKETS - 1))
        pool[pool[bucket]] = word
        pool[bucket] += 1


@kernel
def _merge(pool: I64, apart: int, begin: int, end: int) -> None:
    """Merge runs of eight, then of sixteen, and so on, from one half of the block to the other and back."""
    pool = borrow(pool)
    for j in range(begin, end, _LANES):
        sort_8(pool, j, min(_LANES, end - j))
    count = end - begin
    source = begin
    target = begin + apart
    width = _LANES
    while width < count:
        for j in range(0, count, 2 * width):
            middle = min(j + width, count)
            _merge_neighbours(pool, source + j, source + middle, source + min(middle + width, count), target + j)
        source, target = target, source
        width *= 2
    if source != begin:
        for j in range(count):
            pool[begin + j] = pool[source + j]


@kernel
def _merge_neighbours(pool: I64, left: int, middle: int, end: int, to: int) -> None:
    """Merge two neighbouring runs; which one gives the next word is computed, not branched on."""
    pool = borrow(pool)
    right = middle
    while left < middle and right < end:
        first = pool[left]
        second = pool[right]
        from_left = first < second
        pool[to] = min(first, second)
        left += from_left
        right += not from_left
        to += 1
    for j in range(left, middle):
        pool[to] = pool[j]
        to += 1
    for j in range(right, end):
        pool[to] = pool[j]
        to += 1


# Why a thread returns to Python.
ALL_DONE = 0
LEAVES = 1  # dismissed, or the crew was stopped
MAKE_ROOM = 2  # a tree is too small for the due merge: all threads wait until it is replaced
FLUSH = 3  # the output is full
ALONE = 4  # the tuple at NEXT has more matches than a block holds; it is its turn
PARKED = 5  # there was no work for long

WAITS_FOR_TASK = 10  # states of a thread
WAITS_FOR_TURN = 13


@kernel
def work(
    crew: I64,
    me: int,
    queue: I64,
    tuples: I64,
    desk: I64,
    pool: I64,
    out_probe: I64,
    out_seq: I64,
    left0: I64,
    left1: I64,
    right0: I64,
    right1: I64,
    wider: int,
) -> int:
    """The loop of thread `me`, until there is no work left or Python must act."""
    crew = borrow(crew)
    queue = borrow(queue)
    tuples = borrow(tuples)
    desk = borrow(desk)
    pool = borrow(pool)
    out_probe = borrow(out_probe)
    out_seq = borrow(out_seq)
    left0 = borrow(left0)
    left1 = borrow(left1)
    right0 = borrow(right0)
    right1 = borrow(right1)
    tries = 0
    while True:
        if not propagate(queue, tuples, pool, out_probe, out_seq):
            return FLUSH
        if desk[MY_TASK] < 0 and desk[LAST] < desk[GRANT_END]:
            start_granted(queue, desk)
        if desk[MY_TASK] < 0:
            if dismissed(crew, me):
                return LEAVES
            answer = acquire(queue, tuples, desk)
            if answer == FINISHED:
                return ALL_DONE
            if answer == HALTED:
                return MAKE_ROOM
            if answer == TAKEN:
                tries = 0
                stand(crew, me, RUNNING)
            elif answer >= SLICE:
                tries = 0
                side = queue[MERGE_SIDE] if answer == SLICE else answer - MERGE_LEFT
                old, new = (left0, left1) if side == 0 else (right0, right1)
                if queue[CURRENT + side]:
                    old, new = new, old
                if answer == SLICE:
                    stand(crew, me, MERGING_NOW)
                    help_merge(queue, tuples, desk, old, new)
                elif not begin_merge(queue, tuples, side, old, new, wider):
                    return MAKE_ROOM
                continue
            else:
                stand(crew, me, WAITS_FOR_TASK)
                if queue[PARKS] > 0 and tries >= queue[PARKS]:
                    return PARKED
                # A merge is short or has slices to do: sleeping would cost more than it saves.
                if not idle(crew, 0 if load(queue, MERGING) else tries):
                    return LEAVES
                tries += 1
                continue
        left = left1 if desk[MY_TREE] else left0
        right = right1 if desk[MY_TREE + 1] else right0
        if queue[SELF]:
            right = left
        code = _run_task(crew, me, queue, tuples, desk, pool, out_probe, out_seq, left, right)
        if code != ALL_DONE:
            return code
        desk[MY_TASK] = -1


@kernel
def _run_task(
    crew: I64,
    me: int,
    queue: I64,
    tuples: I64,
    desk: I64,
    pool: I64,
    out_probe: I64,
    out_seq: I64,
    left: I64,
    right: I64,
) -> int:
    """Look up and index the tuples of the task on the desk from where it stopped."""
    crew = borrow(crew)
    queue = borrow(queue)
    tuples = borrow(tuples)
    desk = borrow(desk)
    pool = borrow(pool)
    out_probe = borrow(out_probe)
    out_seq = borrow(out_seq)
    left = borrow(left)
    right = borrow(right)
    slot = slot_of(queue, desk[MY_TASK])
    block = block_of(queue, slot)
    stop = block + queue[CAPACITY]
    apart = probes_apart(queue)
    last = desk[LAST]
    to = block + queue[slot + COUNT]
    while desk[PUT] < last:
        begin = desk[PUT]
        if begin >= desk[LOCATED_END]:
            # The other tasks of the grant read the same trees: what is found now holds for them as well.
            desk[LOCATED] = begin
            desk[LOCATED_END] = min(begin + BLOCK, desk[GRANT_END])
            _locate(queue, tuples, desk, left, right, begin, desk[LOCATED_END])
        first = desk[LOCATED]
        end = min(desk[LOCATED_END], last)
        i = desk[NEXT]
        while i < end:
            tail = to
            if tuples[i] & PROBES:
                if tuples[i] & ON_RIGHT:
                    tail = _look_up(queue, tuples, desk, left, 0, i, i - first, pool, to, stop, apart)
                else:
                    side = 1 - queue[SELF]
                    tail = _look_up(queue, tuples, desk, right, side, i, i - first, pool, to, stop, apart)
            if tail < 0:
                desk[NEXT] = i
                queue[slot + COUNT] = to - block
                call_for_room(queue)
                code = _wait_for_turn(crew, me, queue, tuples, desk, slot, i, pool, out_probe, out_seq)
                if code != ALL_DONE:
                    return code
                to = block
                continue
            # Eight at once without a branch on how many there are; the rest of them is overwritten.
            for k in range(to + apart, to + apart + GAP_WORDS):
                pool[k] = i
            for k in range(to + apart + GAP_WORDS, tail + apart):
                pool[k] = i
            to = tail
            i += 1
        desk[NEXT] = end
        _index(queue, tuples, desk, left, right, begin, end, first)
        desk[PUT] = end
    queue[slot + COUNT] = to - block
    # Last of all: a tree is written anew once the tasks that may read or change it have been handed on.
    complete(queue, desk[MY_TASK])
    if last == desk[GRANT_END]:
        mark_indexed(queue, tuples, desk[GRANT_BEGIN], last)
    return ALL_DONE


@kernel
def _locate(queue: I64, tuples: I64, desk: I64, left: I64, right: I64, begin: int, end: int) -> None:
    """Find the places of a block's tuples in both trees, in three rounds, each loading what the next one reads."""
    queue = borrow(queue)
    tuples = borrow(tuples)
    desk = borrow(desk)
    left = borrow(left)
    right = borrow(right)
    stride = queue[STRIDE]
    lefts = desk[BESIDE]
    rights = desk[BESIDE + 1 - queue[SELF]]
    # A variable for either tree would cost a reference count per tuple.
    for i in range(begin, end):
        op = tuples[i]
        if op & ON_RIGHT:
            approach(right, left, desk, i - begin, op, tuples[WORD * stride + i], tuples[LO * stride + i])
        else:
            approach(left, right, desk, i - begin, op, tuples[WORD * stride + i], tuples[LO * stride + i])
    for i in range(begin, end):
        op = tuples[i]
        word = tuples[WORD * stride + i]
        lo = tuples[LO * stride + i]
        if op & ON_RIGHT:
            prepare(right, left, desk, i - begin, op, word, lo, rights, lefts)
        else:
            prepare(left, right, desk, i - begin, op, word, lo, lefts, rights)
    for i in range(begin, end):
        op = tuples[i]
        if op & ON_RIGHT:
            refine(right, left, desk, i - begin, op, tuples[LO * stride + i], rights)
        else:
            refine(left, right, desk, i - begin, op, tuples[LO * stride + i], lefts)


@inlined
def _look_up(
    queue: I64, tuples: I64, desk: I64, other: I64, side: int, i: int, place: int, pool: I64, to: int, end: int,
    apart: int,
) -> int:  # fmt: skip
    """Write the matches of tuple i to pool[to:end], in order if asked; returns their end, or -1 if they do not fit.

    What lies `apart` words behind is used meanwhile.
    """
    stride = queue[STRIDE]
    lo = tuples[LO * stride + i]
    hi = tuples[HI * stride + i]
    if lo > hi:
        return to
    least = tuples[MIN_SEQ * stride + i]
    upto = tuples[UPTO * stride + i]
    edge = desk[MY_EDGE + side]
    beside = desk[BESIDE + side]
    before = min(edge, upto)
    tail = collect(other, desk[PLACE + place], desk[PLACE_SUB + place], beside, lo, hi, least, before, pool, to, end)
    if tail > to + 1 and queue[SORTS]:
        order_matches(pool, apart, to, tail, end)
    begin = max(edge, least)
    if tail >= 0 and begin < upto:
        line = queue[LINE + side] - queue[FIRST + side]
        tail = scan_line(tuples, line + begin, line + upto, queue[APART], lo, hi, begin, pool, tail, end)
    return tail


@kernel
def _index(queue: I64, tuples: I64, desk: I64, left: I64, right: I64, begin: int, end: int, first: int) -> None:
    """Insert tuples where `_locate` found their places, which it began to look for at `first`."""
    queue = borrow(queue)
    tuples = borrow(tuples)
    desk = borrow(desk)
    left = borrow(left)
    right = borrow(right)
    stride = queue[STRIDE]
    lefts = width_of(left, desk[BESIDE])
    rights = width_of(right, desk[BESIDE + 1 - queue[SELF]])
    for i in range(begin, end):
        if tuples[i] & INSERTS and not desk[DEFERS + (tuples[i] & ON_RIGHT)]:
            word = tuples[WORD * stride + i]
            seq = tuples[SEQ * stride + i]
            if tuples[i] & ON_RIGHT:
                insert(right, desk[OWN_SUB + i - first], rights, word, seq)
            else:
                insert(left, desk[OWN_SUB + i - first], lefts, word, seq)


@kernel
def _wait_for_turn(
    crew: I64,
    me: int,
    queue: I64,
    tuples: I64,
    desk: I64,
    slot: int,
    i: int,
    pool: I64,
    out_probe: I64,
    out_seq: I64,
) -> int:
    """Empty the task's block once all earlier tasks have been handed on: it is full before tuple i."""
    stand(crew, me, WAITS_FOR_TURN)
    tries = 0
    while load(queue, HEAD) != desk[MY_TASK]:
        if not propagate(queue, tuples, pool, out_probe, out_seq):
            return FLUSH
        if not idle(crew, tries):
            return LEAVES
        tries += 1
    stand(crew, me, RUNNING)
    lock(queue, PROPAGATE_LOCK)
    if queue[slot + COUNT] == 0:
        return ALONE
    if not hand_on(queue, tuples, pool, slot, i, out_probe, out_seq):
        return FLUSH
    unlock(queue, PROPAGATE_LOCK)
    return ALL_DONE


@kernel
def look_up_alone(
    queue: I64, tuples: I64, desk: I64, left0: I64, left1: I64, right0: I64, right1: I64, pool: I64
) -> int:
    """The matches of the tuple at NEXT, at the start of `pool`; -1 when they do not fit into half of it."""
    i = desk[NEXT]
    side = 0 if queue[SELF] else 1 - (tuples[i] & ON_RIGHT)
    first, second = (left0, left1) if side == 0 else (right0, right1)
    other = second if desk[MY_TREE + side] else first
    lo = tuples[LO * queue[STRIDE] + i]
    leaf = find_node(other, other[INNER], lo, 0)
    at = other[WORDS] + leaf * other[LEAF_SIZE]
    desk[PLACE] = at + count_below(other, at, other[LEAF_SIZE], lo)
    desk[PLACE_SUB] = leaf >> other[SUB_SHIFT]
    apart = pool.size // 2
    count: int = _look_up(queue, tuples, desk, other, side, i, 0, pool, 0, apart - GAP_WORDS, apart)
    return count
