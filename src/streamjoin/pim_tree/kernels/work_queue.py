"""The shared work queue of the parallel PIM-Tree join: it assigns tuples to threads and propagates results.

Tuples are in arrival order in one array, one row per property (`OPS` to `STAMP`), followed by the words of
each side once more without gaps: the part of a window that is not indexed yet is scanned there. A tuple from
`ACQUIRED` on is available; a thread takes the next few as a task, and they are active until the task's slot says
that it is completed. While many tuples wait, a thread is granted several small tasks at once: the lock, the marks of
indexed tuples and the edges are then shared once per grant, which would otherwise bound small tasks, and the tuples of
a grant are located together. Results wait in the slot's block of the pool until every earlier task has been
propagated, by any thread that gets the test-and-set lock (SIGMOD paper, section 4.1).

A merge is cut into slices, phase by phase, and these are handed out here as well: a thread gets a slice when less than
a task waits, so that tuples that come by the clock wait for a slice at most; and when the backlog is long: its latency
is lost anyway, and the merge should end soon.

Invariants: tasks are handed on in the order in which they were taken; at most `RING_MASK` + 1 of them are under way,
so memory is bounded. Blocks become larger, and fewer, when one has proved too small and no task is under way; the pool
and the output have room for the largest from the start. A phase of a merge begins when all slices of the one before are
done. All tuples of a side before its `EDGE` are in its index; `EDGE` never passes a tuple that is not. A grant's tuples
are indexed, as far as their side takes any, once `INDEXED` at its first tuple says where it ends.
"""

from __future__ import annotations

from streamjoin._arrays import Array
from streamjoin.jit.atomics import fence, load, store
from streamjoin.jit.crew import idle, lock, stand, try_lock, unlock
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, borrow, cycles, prefetch
from streamjoin.kernels.trees.task import INSERTS, ON_RIGHT

# Rows of the array of tuples, `STRIDE` words apart.
OPS, WORD, LO, HI, SEQ, MIN_SEQ, UPTO, INDEXED, STAMP = range(9)
ROWS = 9
PADDING = 32  # words past a side's line that a scan may read
GAP_WORDS = 8  # words between the blocks of the pool
_AHEAD = 2  # tasks from the one that is handed on to the one whose results are loaded meanwhile
_MOST_FETCHED = 64  # the words of it that are asked for; then the processor itself sees where this goes
_GROWTH = 4
_RIGHT_INSERTS = 2  # how far ON_RIGHT is from INSERTS

# Words of the queue. The first eight change under LOCK, which has their cache line.
LOCK = 0
ACQUIRED = 1  # tuples from here on are available
TASKS = 2  # tasks taken
HALT = 3  # not 0: no thread takes a task until the caller has made room in the trees of side HALT - 1
GATE = 4  # a blocking merge goes on
MERGING = 5  # some merge goes on
INSERTED = 6  # by side: entries that T_I will hold once the tasks taken are done

# What does not change while threads run.
N = 8
TASK = 9  # tuples per task
SELF = 10  # one stream, one index
MERGE_MODE = 11
RING_MASK = 12
CAPACITY = 13  # results a slot's block holds
TIMED = 14
START = 15  # the clock when tuple 0 arrives
GAP = 16  # 1,024 times the ticks between two arrivals; 0: all are there
STRIDE = 17
LINE = 18  # by side: where its words lie in line
FIRST = 20  # by side: the position of the first of them
TOTAL = 22  # by side: the position after the last
APART = 24  # distance from a word of a line to whether it is indexed at all
BASE = 26  # by side: positions below are out of every window
GROWS = 28  # by side: whether the bounds of its window only grow
MERGES = 30  # merges done
OPEN = 31  # 1: more tuples may follow, by `extend`

LIMIT = 32  # by side: merge when INSERTED gets there
CURRENT = 34  # by side: which of its two trees is in use
FROZEN = 36  # by side: the tree in use is being merged
CEILING = 38  # by side: INSERTED that T_I has room for

HEAD = 40  # the task to hand on next
PROPAGATED = 41  # tuples handed on
OUT = 42  # results handed on since the caller took the last
PROPAGATE_LOCK = 48

EDGE = 56  # by side
EDGE_LOCK = 64
HELD = 72  # by side: the edge stays where it is until the merge has let it go
BEGAN = 74  # by side: the first tuple that is not merged
SWAPPED = 76  # by side: tasks before this tuple may still read the tree that was in use before

# The merge that goes on; under LOCK.
PHASE = 80
MERGE_SIDE = 81
NEXT_SLICE = 82
SLICES = 83
SLICES_DONE = 84
LEAST = 85  # the first position that the merge keeps
SUBS = 86  # sub-indexes per slice
PENDING = 87  # the first tuple that is not in the new tree yet
SLICE_ENTRIES = 88  # about how many entries of T_S a slice takes
SLICES_AT = 89  # offset of where each slice's entries go
MOST_SLICES = 90
BACKLOG = 91  # with more tuples than this waiting, slices come before tasks
PARTS = 93  # what the tree is cut into; a slice is some of them to count, one of them to write
CAUGHT_UP = 92  # the tuple after the last that the phase inserts
PARKS = 94  # attempts without work after which a thread returns to Python; 0: it never does

DEFERRED = 96  # by side: tasks taken now are indexed after the merge
CATCH_AT_ONCE = 98  # tuples of a slice of the last two phases
GRANT = 99  # tuples that a thread is granted at most
SHARE = 100  # ... and the waiting tuples divided by this
CRAMPED = 101  # a task had more results than its block holds
MOST_CAPACITY = 102  # what blocks may grow to
POOL_WORDS = 103
OUT_ROOM = 104  # results that the output holds
SORTS = 105  # a tuple's matches are put in order
NEEDED = 106  # entries that the merge that was called off would have had to write, at the most

SLOTS = 112
SLOT = 8
# Words of a slot.
BEGIN, END, DONE, COUNT, FROM = range(5)

# Results of `acquire`.
TAKEN, WAIT, FINISHED, HALTED, SLICE, MERGE_LEFT, MERGE_RIGHT = range(7)

# States of a thread of a running join.
AWAITS_MATCHES = 14
AWAITS_OUTPUT = 15

# How a merge goes on beside the join.
NONBLOCKING = 0  # all threads merge and join; new entries go beside the chunks
BLOCKING = 1  # all threads merge, and none takes a task meanwhile
ONE_THREAD = 2  # the paper's: one thread merges, and what is taken meanwhile is indexed afterwards

# Phases of a merge.
SETTLING = 0  # until the tasks that may change the tree in use, or read the other, are over
PLANNING = 1
COUNTING = 2
WRITING = 3
INSERTING = 4  # what was taken before the new tree was ready
CATCHING_UP = 5  # what was taken before the new tree was in use
DRAINING = 6  # ONE_THREAD: until the tasks taken are over
SWAPPING = 7

# A thread's desk: what it needs to go on with a task after it has been back to Python, and places of a block.
MY_TASK = 0  # -1: none
NEXT = 1  # the tuple to look up next
PUT = 2  # the tuple to index next
LAST = 3  # the tuple after the task's last
MY_EDGE = 4  # by side: the first position that a lookup does not take from the index
MY_TREE = 6  # by side
BESIDE = 8  # by side: whether its tree is being merged, and new entries go beside the chunks
GRANT_BEGIN = 10  # the first tuple of the grant
MY_SLICE = 11
MY_PHASE = 12
GRANT_END = 13  # the tuple after its last
GRANT_TASK = 14  # its next task
DEFERS = 16  # by side: whether its tuples are indexed after the merge
LOCATED = 18  # the first tuple whose place in both trees is on the desk
LOCATED_END = 19  # ... and the one after the last
DESK = 24


@inlined
def slot_of(queue: I64, task: int) -> int:
    """The slot of a task."""
    slot: int = SLOTS + SLOT * (task & queue[RING_MASK])
    return slot


@inlined
def block_of(queue: I64, slot: int) -> int:
    """Where a slot's results begin in the pool: positions, and `probes_apart` behind each the tuple that met it.

    The blocks are eight words apart, which are read and written at once.
    """
    block: int = (slot - SLOTS) // SLOT * 2 * probes_apart(queue)
    return block


@inlined
def probes_apart(queue: I64) -> int:
    """The distance in the pool from the position that a tuple met to the tuple."""
    apart: int = queue[CAPACITY] + GAP_WORDS
    return apart


@kernel
def arrived(queue: I64) -> int:
    """How many tuples have arrived by the clock; all, where arrivals are not paced."""
    if queue[GAP] == 0:
        return int(queue[N])
    return min(int(queue[N]), int(((cycles() - queue[START]) << 10) // queue[GAP]))


@kernel
def position_at(queue: I64, tuples: I64, side: int, at: int) -> int:
    """A position of `side` such that all before it came before tuple `at`, and near the first that did not."""
    if at >= queue[N]:
        return int(queue[TOTAL + side])
    row = SEQ if queue[SELF] or (tuples[at] & ON_RIGHT) == side else UPTO
    position: int = tuples[row * queue[STRIDE] + at]
    return position


@kernel
def extend(queue: I64, n: int, total_left: int, total_right: int, more: int) -> None:
    """Make the tuples up to `n`, which are written already, available while threads work; `more` may follow."""
    lock(queue, LOCK)
    queue[N] = n
    queue[TOTAL] = total_left
    queue[TOTAL + 1] = total_right
    queue[OPEN] = more
    unlock(queue, LOCK)


@kernel
def acquire(queue: I64, tuples: I64, desk: I64) -> int:
    """Take the next task, or a slice of the current merge; if a merge is due, report it and keep the lock."""
    lock(queue, LOCK)
    answer = WAIT
    waiting = arrived(queue) - queue[ACQUIRED]
    alone = queue[MERGE_MODE] == ONE_THREAD
    if queue[MERGING] and (alone or waiting < queue[TASK] or waiting > queue[BACKLOG]):
        answer = _take_slice(queue, tuples, desk)
    if answer == WAIT:
        answer = _decide(queue)
    if answer == TAKEN:
        if waiting <= 0:
            answer = WAIT
        else:
            _take(queue, tuples, desk, waiting)
    if queue[MERGING] and answer in (WAIT, FINISHED):
        answer = _take_slice(queue, tuples, desk)
    if answer < MERGE_LEFT:
        unlock(queue, LOCK)
    return answer


@kernel
def _take_slice(queue: I64, tuples: I64, desk: I64) -> int:
    """Take the next slice of the phase, if there is one left; planning is one slice, due once the trees are quiet."""
    side = queue[MERGE_SIDE]
    if queue[PHASE] == SETTLING:
        advance_edges(queue, tuples)
        if load(queue, EDGE + side) < queue[BEGAN + side] or load(queue, PROPAGATED) < queue[SWAPPED + side]:
            return WAIT
        if queue[MERGE_MODE] == ONE_THREAD:
            # No task is under way: the edge is where the merged entries end, and stays there.
            lock(queue, EDGE_LOCK)
            store(queue, HELD + side, 1)
            unlock(queue, EDGE_LOCK)
            queue[GATE] = 0
        open_phase(queue, PLANNING, 1)
    if queue[PHASE] == DRAINING:
        if load(queue, PROPAGATED) < queue[ACQUIRED]:
            return WAIT
        queue[GATE] = 0
        open_phase(queue, SWAPPING, 1)
    if queue[NEXT_SLICE] == queue[SLICES]:
        return WAIT
    desk[MY_SLICE] = queue[NEXT_SLICE]
    desk[MY_PHASE] = queue[PHASE]
    queue[NEXT_SLICE] += 1
    return SLICE


@kernel
def open_phase(queue: I64, phase: int, slices: int) -> None:
    """Make the slices of a phase available. Needs the lock."""
    queue[PHASE] = phase
    queue[SLICES] = slices
    queue[NEXT_SLICE] = 0
    queue[SLICES_DONE] = 0


@kernel
def close_slice(queue: I64) -> bool:
    """Record that a slice is done; True for the last of its phase, whose thread opens the next phase."""
    lock(queue, LOCK)
    queue[SLICES_DONE] += 1
    last: bool = queue[SLICES_DONE] == queue[SLICES]
    unlock(queue, LOCK)
    return last


@kernel
def _decide(queue: I64) -> int:
    if queue[HALT]:
        return HALTED
    if queue[ACQUIRED] == queue[N]:
        return WAIT if queue[OPEN] else FINISHED
    if queue[GATE]:
        return WAIT
    if queue[CRAMPED]:
        if load(queue, HEAD) < queue[TASKS]:
            return WAIT
        _make_room(queue)
    for side in range(2):
        if queue[INSERTED + side] >= queue[LIMIT + side]:
            if queue[MERGING] == 0:
                return MERGE_LEFT + side
            if queue[INSERTED + side] >= queue[CEILING + side]:
                return WAIT
    if queue[TASKS] - load(queue, HEAD) > queue[RING_MASK]:
        return WAIT
    return TAKEN


@kernel
def call_for_room(queue: I64) -> None:
    """Have the blocks made larger, if they may grow; no task is granted before that."""
    lock(queue, LOCK)
    queue[CRAMPED] = queue[CAPACITY] < queue[MOST_CAPACITY]
    unlock(queue, LOCK)


@kernel
def _make_room(queue: I64) -> None:
    """Make the blocks larger, and fewer where the pool ends. Needs the lock, and no task may be under way."""
    queue[CRAMPED] = 0
    queue[CAPACITY] = min(_GROWTH * queue[CAPACITY], queue[MOST_CAPACITY])
    queue[OUT_ROOM] = max(queue[OUT_ROOM], queue[CAPACITY])
    while (queue[RING_MASK] + 1) * 2 * probes_apart(queue) > queue[POOL_WORDS]:
        queue[RING_MASK] >>= 1


@kernel
def _take(queue: I64, tuples: I64, desk: I64, waiting: int) -> None:
    """Grant the next tasks: one, or several small ones while enough tuples wait for every thread to get its share."""
    queue = borrow(queue)
    tuples = borrow(tuples)
    desk = borrow(desk)
    size = queue[TASK]
    under_way = queue[TASKS] - load(queue, HEAD)
    tasks = max(1, min(queue[GRANT], waiting // queue[SHARE]) // size)
    tasks = min(tasks, queue[RING_MASK] + 1 - under_way)
    begin = queue[ACQUIRED]
    end = min(begin + tasks * size, begin + waiting)
    rights = 0
    inserts = 0
    for i in range(begin, end):
        inserts += tuples[i] & INSERTS
        rights += tuples[i] & (tuples[i] << _RIGHT_INSERTS) & INSERTS
    queue[INSERTED] += (inserts - rights) // INSERTS
    queue[INSERTED + 1] += rights // INSERTS
    desk[GRANT_BEGIN] = begin
    desk[GRANT_END] = end
    desk[GRANT_TASK] = queue[TASKS]
    desk[LAST] = begin
    desk[LOCATED_END] = begin
    queue[TASKS] += tasks
    queue[ACQUIRED] = end
    start_granted(queue, desk)
    for side in range(2):
        desk[MY_EDGE + side] = position_at(queue, tuples, side, load(queue, EDGE + side))
        desk[MY_TREE + side] = queue[CURRENT + side]
        desk[BESIDE + side] = queue[FROZEN + side]
        desk[DEFERS + side] = queue[DEFERRED + side]


@kernel
def start_granted(queue: I64, desk: I64) -> None:
    """Put the next task of the grant on the desk; its slot is free, and no other thread writes to it."""
    queue = borrow(queue)
    desk = borrow(desk)
    task = desk[GRANT_TASK]
    begin = desk[LAST]
    end = min(begin + queue[TASK], desk[GRANT_END])
    slot = slot_of(queue, task)
    queue[slot + BEGIN] = begin
    queue[slot + END] = end
    queue[slot + COUNT] = 0
    queue[slot + FROM] = begin
    desk[GRANT_TASK] = task + 1
    desk[MY_TASK] = task
    desk[NEXT] = begin
    desk[PUT] = begin
    desk[LAST] = end


@kernel
def complete(queue: I64, task: int) -> None:
    """Record that a task's results are ready."""
    store(queue, slot_of(queue, task) + DONE, task + 1)
    fence()  # the holder of the propagation lock sees this, or has released the lock


@kernel
def mark_indexed(queue: I64, tuples: I64, begin: int, end: int) -> None:
    """Record that a grant's tuples are indexed, and move the edges unless another thread does."""
    store(tuples, INDEXED * queue[STRIDE] + begin, end)
    advance_edges(queue, tuples)


@kernel
def advance_edges(queue: I64, tuples: I64) -> None:
    """Move both edges over all indexed grants, unless another thread does."""
    queue = borrow(queue)
    tuples = borrow(tuples)
    if not try_lock(queue, EDGE_LOCK):
        return
    marks = INDEXED * queue[STRIDE]
    for side in range(2):
        if load(queue, HELD + side):
            continue
        at = queue[EDGE + side]
        while at < queue[N]:
            after = load(tuples, marks + at)
            if after == 0:
                break
            at = after
        store(queue, EDGE + side, at)
    unlock(queue, EDGE_LOCK)


@kernel
def hand_on(queue: I64, tuples: I64, pool: I64, slot: int, end: int, out_probe: I64, out_seq: I64) -> bool:
    """Put a slot's results up to tuple `end` into the output; False when they do not fit. Needs the lock."""
    queue = borrow(queue)
    tuples = borrow(tuples)
    pool = borrow(pool)
    out_probe = borrow(out_probe)
    out_seq = borrow(out_seq)
    at = queue[OUT]
    if at + queue[slot + COUNT] > queue[OUT_ROOM]:
        return False
    source = block_of(queue, slot)
    apart = probes_apart(queue)
    count = queue[slot + COUNT]
    for k in range(count):
        out_seq[at + k] = pool[source + k]
    for k in range(count):
        out_probe[at + k] = pool[source + apart + k]
    if queue[TIMED]:
        now = cycles()
        for i in range(queue[slot + FROM], end):
            tuples[STAMP * queue[STRIDE] + i] = now
    queue[OUT] = at + count
    queue[slot + FROM] = end
    queue[slot + COUNT] = 0
    return True


@kernel
def _head_is_done(queue: I64) -> bool:
    head = load(queue, HEAD)
    done: bool = load(queue, slot_of(queue, head) + DONE) == head + 1
    return done


@inlined
def _fetch_done(queue: I64, pool: I64, task: int) -> None:
    """Begin to load a task's results, if they are there: another core wrote them."""
    slot = slot_of(queue, task)
    if load(queue, slot + DONE) == task + 1:
        block, apart = block_of(queue, slot), probes_apart(queue)
        for at in range(block, block + min(_MOST_FETCHED, queue[slot + COUNT]), GAP_WORDS):
            prefetch(pool, at)
            prefetch(pool, at + apart)


@kernel
def propagate(queue: I64, tuples: I64, pool: I64, out_probe: I64, out_seq: I64) -> bool:
    """Propagate completed tasks in order, unless another thread does; False, with the lock, if the output is full."""
    while _head_is_done(queue) and try_lock(queue, PROPAGATE_LOCK):
        while _head_is_done(queue):
            head = queue[HEAD]
            slot = slot_of(queue, head)
            end = queue[slot + END]
            _fetch_done(queue, pool, head + _AHEAD)
            if not hand_on(queue, tuples, pool, slot, end, out_probe, out_seq):
                return False
            store(queue, PROPAGATED, end)
            store(queue, HEAD, head + 1)
        unlock(queue, PROPAGATE_LOCK)
        fence()  # a task completed while we held the lock may have found it taken
    return True


@kernel
def hand_back(queue: I64) -> None:
    """Give up the propagation lock; what was completed meanwhile is seen by the next `propagate`."""
    unlock(queue, PROPAGATE_LOCK)
    fence()


@kernel
def await_matches(crew: I64, me: int, queue: I64, propagated: int, most_tries: int) -> None:
    """Wait until there are results in the output or tasks beyond `propagated` are handed on, for a while."""
    tries = 0
    while load(queue, OUT) == 0 and load(queue, PROPAGATED) <= propagated:
        if tries >= most_tries or not idle(crew, tries):
            return
        stand(crew, me, AWAITS_MATCHES)
        tries += 1


@kernel
def await_output(crew: I64, me: int, queue: I64) -> bool:
    """Wait until the output is empty; False if the crew was stopped."""
    tries = 0
    while load(queue, OUT) > 0:
        stand(crew, me, AWAITS_OUTPUT)
        if not idle(crew, tries):
            return False
        tries += 1
    return True


# Where a side's tuples are written: the distance of rows, and of a line from what counts in it; the row of the chunk's
# first tuple; the place in line and the position of the side's first; and what its tuples do, those that match or not.
WRITE_FIELDS = 7
WRITE_STRIDE, WRITE_APART, WRITE_ROW, WRITE_LINE, WRITE_FIRST, WRITE_OP, WRITE_USE = range(WRITE_FIELDS)


@kernel
def write_side(
    tuples: I64, where: I64, begin: int, end: int, at: I64, min_seq: I64, upto: I64, word: I64, lo: I64, hi: I64,
    valid: Array,
) -> None:  # fmt: skip
    """Write the tuples `begin` to `end` of one side of a chunk, in gate order and in line.

    `at` has their places in the chunk; one that can't match, which `valid` says if it is not empty, does nothing.
    """
    stride, apart = where[WRITE_STRIDE], where[WRITE_APART]
    for i in range(begin, end):
        place, line = at[i], where[WRITE_LINE] + i
        row = where[WRITE_ROW] + place
        counts = valid.size == 0 or valid[i]
        tuples[OPS * stride + row] = where[WRITE_OP] | where[WRITE_USE] if counts else where[WRITE_OP]
        tuples[WORD * stride + row] = word[i]
        tuples[LO * stride + row] = lo[i]
        tuples[HI * stride + row] = hi[i]
        tuples[SEQ * stride + row] = where[WRITE_FIRST] + i
        tuples[MIN_SEQ * stride + row] = min_seq[place]
        tuples[UPTO * stride + row] = upto[place]
        tuples[line] = word[i]
        tuples[line + apart] = 1 if counts else 0
