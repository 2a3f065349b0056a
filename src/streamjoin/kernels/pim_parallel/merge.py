"""The merge of a shared PIM-Tree, beside a join that goes on (SIGMOD paper, section 4.2), by all threads.

A side has two trees of one layout; one is in use, the merge writes the other. First phase: from `BEGAN` on the tasks
taken index beside the chunks of the tree in use. Once the tasks before it have indexed, nothing changes those chunks
any more, and T_S and T_I are merged into the other tree: counted in slices, then written in slices. Second phase: the
tuples taken meanwhile, which are found in the queue, are inserted into the new tree, in slices as well; the trees are
swapped; what was taken during that last stretch is inserted, and only for that long the edge stands back
and lookups scan more of the window than the tasks under way.

In the paper one thread merges, tuples that arrive meanwhile are not indexed at all, and all threads stop for a moment
at the start of each phase. Here none has to stop, since a task keeps the tree, the edge and the place to index that it
was given when it was taken. What must be waited for is that the other tree is no longer used: tasks before `SWAPPED`
have been handed on. The blocking merge differs by closing the gate: nobody takes a task before it has ended.

Invariant: a phase is opened by whoever closed the last slice of the one before, and by nobody else.
"""

from __future__ import annotations

from streamjoin.kernels.atomics import store
from streamjoin.kernels.crew import lock, unlock
from streamjoin.kernels.flags import kernel
from streamjoin.kernels.machine import I64
from streamjoin.kernels.pim_parallel.merge_slices import clear_slice, count_slice, insert_slice, separate, write_slice
from streamjoin.kernels.pim_parallel.shared_tree import (
    DEPTH,
    FIRST_NODE,
    RATIO,
    ROOM,
    SMALLEST_RUN,
    T_I_ROOM,
)
from streamjoin.kernels.pim_parallel.work_queue import (
    ACQUIRED,
    BASE,
    BEGAN,
    BLOCKING,
    CATCHING_UP,
    CAUGHT_UP,
    CEILING,
    COUNTING,
    CURRENT,
    EDGE,
    EDGE_LOCK,
    FROZEN,
    GATE,
    GROWS,
    HALT,
    HELD,
    INSERTED,
    INSERTING,
    LEAST,
    LOCK,
    MERGE_SIDE,
    MERGES,
    MERGING,
    MIN_SEQ,
    MOST_SLICES,
    MY_PHASE,
    MY_SLICE,
    OPS,
    PARTS,
    PENDING,
    PLANNING,
    SELF,
    SETTLING,
    SLICE_ENTRIES,
    SLICES_AT,
    STRIDE,
    SUBS,
    SWAPPED,
    TASK,
    WRITING,
    close_slice,
    open_phase,
)
from streamjoin.kernels.pim_parallel.work_queue import LIMIT as QUEUE_LIMIT
from streamjoin.kernels.trees.css import (
    INNER,
    LANES,
    LEAF_SIZE,
    LEVELS,
    LIMIT,
    STORED,
    WORDS,
    build_upper_levels,
    lay_levels,
)
from streamjoin.kernels.trees.pim import SPILLED, SUB_COUNT, WIDTH, attach, give_all_nodes
from streamjoin.kernels.trees.task import ON_RIGHT

MERGING_NOW = 12  # where a merging thread stands

_LOOK_BACK = 4096
_PENDING_SLICE = 256  # tuples
_COUNTED_AT_ONCE = 16  # parts: to count takes a tenth of the time to write
_TOLERATED = 6  # one sub-index in so many may spill before chunks get wider
WIDEST = 32


@kernel
def crowded(mem: I64) -> bool:
    """Whether so many sub-indexes became trees that wider chunks would have been better."""
    many: bool = mem[SPILLED] > max(1, mem[SUB_COUNT] // _TOLERATED)
    return many


@kernel
def fits(old: I64, new: I64, inserted: int, wider: int) -> bool:
    """Whether the merge of `old` can be written to `new`; `wider`: whether its chunks may be made wider."""
    enough: bool = old[STORED] + inserted + old[LEAF_SIZE] + LANES < new[ROOM]
    wanted = old[WIDTH]
    if wider and wanted < WIDEST and crowded(old):
        wanted *= 2
    # Until the swap T_I may take what the tree in use has room for, and all of it goes to the new one.
    return enough and new[WIDTH] >= wanted and new[T_I_ROOM] >= old[T_I_ROOM]


@kernel
def begin_merge(queue: I64, side: int, old: I64, new: I64, wider: int) -> bool:
    """Freeze a side where the queue is now, or call for room; gives back the lock that `acquire` kept."""
    possible = fits(old, new, queue[INSERTED + side], wider)
    if possible:
        queue[MERGING] = 1
        queue[GATE] = queue[BLOCKING]
        queue[FROZEN + side] = 1
        queue[BEGAN + side] = queue[ACQUIRED]
        queue[INSERTED + side] = 0
        queue[MERGE_SIDE] = side
        open_phase(queue, SETTLING, 0)
    else:
        queue[HALT] = side + 1
    unlock(queue, LOCK)
    return possible


@kernel
def live_bound(queue: I64, tuples: I64, side: int, at: int) -> int:
    """A position of `side` below which no tuple from `at` on will look."""
    bound: int = queue[BASE + side]
    if queue[GROWS + side]:
        for i in range(at - 1, max(-1, at - _LOOK_BACK), -1):
            if queue[SELF] or (tuples[OPS * queue[STRIDE] + i] & ON_RIGHT) != side:
                return max(bound, int(tuples[MIN_SEQ * queue[STRIDE] + i]))
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
    """Tell the queue when the next merge of a side is due, and how much T_I can take beyond that."""
    ceiling = mem[T_I_ROOM] - queue[TASK]
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
    elif phase >= INSERTING:
        begin = queue[PENDING] + number * _PENDING_SLICE
        end = min(begin + _PENDING_SLICE, queue[CAUGHT_UP])
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
        waits = _open_inserts(queue, INSERTING)
        unlock(queue, LOCK)
        if waits:
            return
    if phase <= INSERTING and _swap(queue, new):
        return
    _end(queue)


@kernel
def _open_inserts(queue: I64, phase: int) -> bool:
    """Cut the tuples taken since the last such phase into slices; False when there are none. Needs the lock."""
    queue[PENDING] = queue[CAUGHT_UP]
    queue[CAUGHT_UP] = queue[ACQUIRED]
    slices: int = -(-(queue[CAUGHT_UP] - queue[PENDING]) // _PENDING_SLICE)
    open_phase(queue, phase, slices)
    return slices > 0


@kernel
def _plan(queue: I64, tuples: I64, old: I64) -> None:
    """Cut the tree in use into slices: nothing changes it any more, and nobody reads the other."""
    side = queue[MERGE_SIDE]
    queue[LEAST] = live_bound(queue, tuples, side, queue[BEGAN + side])
    parts = max(1, min(queue[MOST_SLICES], old[STORED] // queue[SLICE_ENTRIES]))
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
    """Let the edge go, and the next merge begin."""
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
