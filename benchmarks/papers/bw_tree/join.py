"""The loop of one thread of a join over two shared Bw-Trees: take a task, look up, index, delete what expired, hand on.

Tasks come from the queue of the parallel PIM-Tree join (`work_queue`), which has no merges to give out here, and
results are exact by its rule: a lookup takes what lies before the edge from the tree and the rest of its window from
the line. The leaves of a block's tuples are found before the first is looked up, so that their cache misses overlap; a
leaf is a place to begin until the thread rests.

Every task deletes what no tuple that is not handed on can meet any more: no thread has to look at what is deleted. The
words of a side lie in a ring by position. A thread deletes before it completes its task, so the ring has room for the
window and three times the tuples that may be under way: those deleted last, those before them, and those that follow.

A thread without pages goes back to Python, which makes room once all threads have come back. Invariant: a thread is
offline in both trees while it waits, and whenever it is not in this kernel.
"""

from __future__ import annotations

from benchmarks.papers.bw_tree.apart import stay_apart
from benchmarks.papers.bw_tree.memory import (
    DELETED,
    INSERTED,
    SLOTS,
    TABLE,
    WINDOW_OWN,
    WORDS_AT,
    come_online,
    go_offline,
    page_of,
    rest,
    state_of,
)
from benchmarks.papers.bw_tree.pages import scan
from benchmarks.papers.bw_tree.updates import leaf_for, leaf_to_change, update
from streamjoin.jit.atomics import load, swap_if
from streamjoin.jit.crew import RUNNING, dismissed, idle, lock, stand, unlock
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, borrow, prefetch, prefetch_to_write, sort_8
from streamjoin.kernels.trees.entries import BLOCK
from streamjoin.kernels.trees.task import INSERTS, ON_RIGHT, PROBES
from streamjoin.pim_tree.kernels.shared_tree import scan_line
from streamjoin.pim_tree.kernels.task import (
    ALL_DONE,
    ALONE,
    FLUSH,
    LEAVES,
    MAKE_ROOM,
    WAITS_FOR_TASK,
    WAITS_FOR_TURN,
)
from streamjoin.pim_tree.kernels.work_queue import (
    APART,
    CAPACITY,
    COUNT,
    DESK,
    FINISHED,
    FIRST,
    GAP_WORDS,
    GRANT_BEGIN,
    GRANT_END,
    HALT,
    HALTED,
    HEAD,
    HI,
    LAST,
    LINE,
    LO,
    LOCATED,
    LOCATED_END,
    LOCK,
    MIN_SEQ,
    MY_EDGE,
    MY_TASK,
    NEXT,
    PROPAGATE_LOCK,
    PROPAGATED,
    PUT,
    SELF,
    SEQ,
    STRIDE,
    TAKEN,
    UPTO,
    WORD,
    acquire,
    block_of,
    complete,
    hand_on,
    mark_indexed,
    position_at,
    probes_apart,
    propagate,
    slot_of,
    start_granted,
)

# Words of the head of a side.
WINDOW = WINDOW_OWN + 8  # positions that are live
RING = WINDOW_OWN + 9
RING_MASK = WINDOW_OWN + 10
DELETED_TO = WINDOW_OWN + 16  # positions before are deleted, or a thread deletes them

# Words of the desk.
DELETE_AT = DESK  # by side: the next of the positions that this thread deletes ...
DELETE_END = DESK + 2  # ... and the end of them
OTHER_LEAF = DESK + 8
OWN_LEAF = OTHER_LEAF + BLOCK
DESK_WORDS = OWN_LEAF + BLOCK

_LINE = 8
_FETCHED = 32  # words of a leaf
_PATIENCE = 64  # times that a thread without pages lets the others go on before it asks for more

_GAPS = (701, 301, 132, 57, 23, 10, 4, 1)


@kernel
def order_group(seqs: I64, begin: int, end: int) -> None:
    """Sort one probe's matches where others write to the same array: no word outside the group is read or written.

    A shell sort, which needs no memory of its own; nearly always there is a handful.
    """
    for gap in _GAPS:
        for j in range(begin + gap, end):
            value = seqs[j]
            k = j
            while k >= begin + gap and seqs[k - gap] > value:
                seqs[k] = seqs[k - gap]
                k -= gap
            seqs[k] = value


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
    left: I64,
    right: I64,
) -> int:
    """The loop of thread `me`, until there is no work left or Python must act."""
    crew = borrow(crew)
    queue = borrow(queue)
    tuples = borrow(tuples)
    desk = borrow(desk)
    pool = borrow(pool)
    out_probe = borrow(out_probe)
    out_seq = borrow(out_seq)
    left = borrow(left)
    right = borrow(right)
    tries = 0
    without_pages = 0
    desk[LOCATED_END] = 0  # what was found on the last visit may be gone
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
            if answer != TAKEN:
                stand(crew, me, WAITS_FOR_TASK)
                if not idle(crew, tries):
                    return LEAVES
                tries += 1
                continue
            tries = 0
            stand(crew, me, RUNNING)
        come_online(left, me)
        come_online(right, me)
        code = _run_task(queue, tuples, desk, pool, left, right, me)
        go_offline(left, me)
        go_offline(right, me)
        desk[LOCATED_END] = 0
        if code == MAKE_ROOM:
            # Pages that others have retired are free once every thread has rested.
            without_pages += 1
            if without_pages > _PATIENCE or load(queue, HALT):
                _halt(queue)
                return MAKE_ROOM
            if not idle(crew, 0):
                return LEAVES
        elif code == ALONE:
            code = _wait_for_turn(crew, me, queue, tuples, desk, pool, out_probe, out_seq)
            if code != ALL_DONE:
                return code
        else:
            without_pages = 0


@kernel
def _run_task(queue: I64, tuples: I64, desk: I64, pool: I64, left: I64, right: I64, me: int) -> int:
    """Do the task on the desk from where it stopped; ALONE when its block of results is full."""
    queue = borrow(queue)
    tuples = borrow(tuples)
    desk = borrow(desk)
    pool = borrow(pool)
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
            desk[LOCATED] = begin
            desk[LOCATED_END] = min(begin + BLOCK, last)
            _locate(tuples, desk, left, right, begin, desk[LOCATED_END], queue[STRIDE])
        first = desk[LOCATED]
        end = min(desk[LOCATED_END], last)
        i = desk[NEXT]
        while i < end:
            tail = to
            if tuples[i] & PROBES:
                if tuples[i] & ON_RIGHT:
                    tail = _look_up(queue, tuples, desk, left, 0, i, desk[OTHER_LEAF + i - first], pool, to, stop)
                else:
                    side = 1 - queue[SELF]
                    tail = _look_up(queue, tuples, desk, right, side, i, desk[OTHER_LEAF + i - first], pool, to, stop)
            if tail < 0:
                desk[NEXT] = i
                queue[slot + COUNT] = to - block
                return ALONE
            for k in range(to + apart, tail + apart):
                pool[k] = i
            to = tail
            i += 1
        desk[NEXT] = end
        queue[slot + COUNT] = to - block
        if not _index(queue, tuples, desk, left, right, me, end, first):
            return MAKE_ROOM
    for side in range(2 - queue[SELF]):
        if not _delete(queue, tuples, desk, right if side else left, side, me):
            return MAKE_ROOM
    complete(queue, desk[MY_TASK])
    if last == desk[GRANT_END]:
        mark_indexed(queue, tuples, desk[GRANT_BEGIN], last)
    desk[MY_TASK] = -1
    return ALL_DONE


@kernel
def _locate(tuples: I64, desk: I64, left: I64, right: I64, begin: int, end: int, stride: int) -> None:
    """Find the leaves of a block's tuples in both trees, and start loading their words, then their pages."""
    tuples = borrow(tuples)
    desk = borrow(desk)
    left = borrow(left)
    right = borrow(right)
    for i in range(begin, end):
        op = tuples[i]
        if op & (PROBES | INSERTS):
            if op & ON_RIGHT:
                _find(right, left, desk, i - begin, tuples, stride, i)
            else:
                _find(left, right, desk, i - begin, tuples, stride, i)
    for i in range(begin, end):
        if tuples[i] & (PROBES | INSERTS):
            if tuples[i] & ON_RIGHT:
                _fetch(right, left, desk, i - begin)
            else:
                _fetch(left, right, desk, i - begin)


@inlined
def _find(own: I64, other: I64, desk: I64, place: int, tuples: I64, stride: int, i: int) -> None:
    """Find the leaves where a tuple's lookup and its insert begin."""
    desk[OTHER_LEAF + place] = leaf_for(other, tuples[LO * stride + i], -1)
    desk[OWN_LEAF + place] = leaf_for(own, tuples[WORD * stride + i], tuples[SEQ * stride + i])
    prefetch(other, other[TABLE] + desk[OTHER_LEAF + place])
    prefetch(own, own[TABLE] + desk[OWN_LEAF + place])


@inlined
def _fetch(own: I64, other: I64, desk: I64, place: int) -> None:
    """Start loading a page's header, its records and the first of its words."""
    at = page_of(other, state_of(other, desk[OTHER_LEAF + place]))
    prefetch(other, at)
    for word in range(SLOTS, other[WORDS_AT] + _FETCHED, _LINE):
        prefetch(other, at + word)
    at = page_of(own, state_of(own, desk[OWN_LEAF + place]))
    prefetch_to_write(own, at)
    prefetch_to_write(own, at + SLOTS)


@inlined
def _look_up(
    queue: I64, tuples: I64, desk: I64, other: I64, side: int, i: int, leaf: int, pool: I64, to: int, end: int
) -> int:
    """Write the matches of tuple i to pool[to:end], ascending; returns their end, or -1 when they do not fit."""
    stride = queue[STRIDE]
    lo = tuples[LO * stride + i]
    hi = tuples[HI * stride + i]
    if lo > hi:
        return to
    least = tuples[MIN_SEQ * stride + i]
    upto = tuples[UPTO * stride + i]
    edge = desk[MY_EDGE + side]
    tail = scan(other, leaf, lo, hi, least, min(edge, upto), pool, to, end)
    if tail > to + 1:
        if tail <= to + GAP_WORDS:
            sort_8(pool, to, tail - to)
        else:
            order_group(pool, to, tail)
    begin = max(edge, least)
    if tail >= 0 and begin < upto:
        line = queue[LINE + side] - queue[FIRST + side]
        tail = scan_line(tuples, line + begin, line + upto, queue[APART], lo, hi, begin, pool, tail, end)
    return tail


@kernel
def _index(queue: I64, tuples: I64, desk: I64, left: I64, right: I64, me: int, end: int, first: int) -> bool:
    """Insert the tuples up to `end`, whose leaves were found from `first` on; False if there is no page left."""
    stay_apart()
    queue = borrow(queue)
    tuples = borrow(tuples)
    desk = borrow(desk)
    left = borrow(left)
    right = borrow(right)
    stride = queue[STRIDE]
    while desk[PUT] < end:
        i = desk[PUT]
        word = tuples[WORD * stride + i]
        seq = tuples[SEQ * stride + i]
        leaf = desk[OWN_LEAF + i - first]
        if tuples[i] & ON_RIGHT:
            right[right[RING] + (seq & right[RING_MASK])] = word
            done = not tuples[i] & INSERTS or update(right, me, leaf, INSERTED, word, seq)
        else:
            left[left[RING] + (seq & left[RING_MASK])] = word
            done = not tuples[i] & INSERTS or update(left, me, leaf, INSERTED, word, seq)
        if not done:
            return False
        desk[PUT] = i + 1
    return True


@kernel
def _delete(queue: I64, tuples: I64, desk: I64, mem: I64, side: int, me: int) -> bool:
    """Delete the positions of a side that no tuple can meet any more; False if there is no page left."""
    stay_apart()
    mem = borrow(mem)
    desk = borrow(desk)
    if desk[DELETE_AT + side] >= desk[DELETE_END + side]:
        bound = position_at(queue, tuples, side, load(queue, PROPAGATED)) - mem[WINDOW]
        while True:
            begin = load(mem, DELETED_TO)
            if begin >= bound:
                return True
            if swap_if(mem, DELETED_TO, begin, bound):
                break
        desk[DELETE_AT + side] = begin
        desk[DELETE_END + side] = bound
    while desk[DELETE_AT + side] < desk[DELETE_END + side]:
        begin = desk[DELETE_AT + side]
        end = min(begin + BLOCK, desk[DELETE_END + side])
        _locate_deleted(mem, desk, begin, end, me)
        for seq in range(begin, end):
            word = mem[mem[RING] + (seq & mem[RING_MASK])]
            if not update(mem, me, desk[OWN_LEAF + seq - begin], DELETED, word, seq):
                return False
            desk[DELETE_AT + side] = seq + 1
    return True


@kernel
def _locate_deleted(mem: I64, desk: I64, begin: int, end: int, me: int) -> None:
    """Find the leaves of a block of positions, and start loading what their records are added to."""
    mem = borrow(mem)
    desk = borrow(desk)
    for seq in range(begin, end):
        leaf = leaf_to_change(mem, me, mem[mem[RING] + (seq & mem[RING_MASK])], seq)
        desk[OWN_LEAF + seq - begin] = leaf
        prefetch(mem, mem[TABLE] + leaf)
    for place in range(end - begin):
        at = page_of(mem, state_of(mem, desk[OWN_LEAF + place]))
        prefetch_to_write(mem, at)
        prefetch_to_write(mem, at + SLOTS)


@kernel
def _wait_for_turn(
    crew: I64, me: int, queue: I64, tuples: I64, desk: I64, pool: I64, out_probe: I64, out_seq: I64
) -> int:
    """Empty the task's block once all earlier tasks have been handed on: it is full before the tuple at NEXT."""
    slot = slot_of(queue, desk[MY_TASK])
    stand(crew, me, WAITS_FOR_TURN)
    tries = 0
    while load(queue, HEAD) != desk[MY_TASK]:
        if not propagate(queue, tuples, pool, out_probe, out_seq):
            return FLUSH
        if load(queue, HALT):
            return MAKE_ROOM
        if not idle(crew, tries):
            return LEAVES
        tries += 1
    stand(crew, me, RUNNING)
    lock(queue, PROPAGATE_LOCK)
    if queue[slot + COUNT] == 0:
        return ALONE
    if not hand_on(queue, tuples, pool, slot, desk[NEXT], out_probe, out_seq):
        return FLUSH
    unlock(queue, PROPAGATE_LOCK)
    return ALL_DONE


@kernel
def look_up_alone(queue: I64, tuples: I64, desk: I64, left: I64, right: I64, me: int, pool: I64) -> int:
    """The matches of the tuple at NEXT, at the start of `pool`; -1 when they do not fit even there."""
    i = desk[NEXT]
    side = 0 if queue[SELF] else 1 - (tuples[i] & ON_RIGHT)
    other = right if side else left
    come_online(other, me)
    leaf = leaf_for(other, tuples[LO * queue[STRIDE] + i], -1)
    count: int = _look_up(queue, tuples, desk, other, side, i, leaf, pool, 0, pool.size - GAP_WORDS)
    go_offline(other, me)
    return count


@kernel
def _halt(queue: I64) -> None:
    """Let no thread take a task until there is room in the trees."""
    lock(queue, LOCK)
    queue[HALT] = 1
    unlock(queue, LOCK)


@kernel
def insert_all(mem: I64, words: I64, seqs: I64, begin: int) -> int:
    """Insert entries of a side while no other thread works on it; returns the first for which there is no page."""
    come_online(mem, 0)
    for i in range(begin, words.size):
        rest(mem, 0)
        mem[mem[RING] + (seqs[i] & mem[RING_MASK])] = words[i]
        if not update(mem, 0, leaf_to_change(mem, 0, words[i], seqs[i]), INSERTED, words[i], seqs[i]):
            go_offline(mem, 0)
            return i
    go_offline(mem, 0)
    return int(words.size)
