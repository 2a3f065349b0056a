"""The merge of a shared PIM-Tree, beside a join that goes on (SIGMOD paper, section 4.2).

A side has two trees of one layout; one is in use, the merge writes the other. First phase: from `BEGAN` on the tasks
taken do not index on this side. Once the tasks before it have, nothing changes the tree in use, and T_S and T_I are
merged into the other. Second phase: the trees are swapped, tasks taken from there on index again, and the merging
thread inserts the tuples between, which it finds in the queue. All the while the edge stays at `BEGAN`, and lookups
scan the rest of the window.

The paper stops all threads for a moment at the start of each phase; here none has to stop, since a task keeps the tree,
the edge and the leave to index that it was given when it was taken. What must be waited for is that the other tree is
no longer read: tasks before `SWAPPED` have been handed on. The blocking merge differs by closing the gate: nobody
takes a task before it has ended.
"""

from __future__ import annotations

from streamjoin.kernels.atomics import load, store
from streamjoin.kernels.crew import idle, lock, stand, unlock
from streamjoin.kernels.css import (
    INNER,
    LANES,
    LEAF_SIZE,
    LEVELS,
    LIMIT,
    SEQS,
    STORED,
    WORDS,
    build_levels,
    lay_levels,
)
from streamjoin.kernels.entries import BLOCK
from streamjoin.kernels.flags import kernel
from streamjoin.kernels.machine import I64, below_8, borrow, count_bits, pack_8_across, upto_8
from streamjoin.kernels.pim import SPILLED, SUB_COUNT, WIDTH, attach, clear_chunks, unload
from streamjoin.kernels.pim_shared import (
    DEPTH,
    FIRST_NODE,
    OWN_SUB,
    RATIO,
    ROOM,
    SMALLEST_RUN,
    T_I_ROOM,
    approach,
    insert,
    prepare,
)
from streamjoin.kernels.task import INSERTS, ON_RIGHT
from streamjoin.kernels.work_queue import (
    ACQUIRED,
    BASE,
    BEGAN,
    BLOCKING,
    CEILING,
    CURRENT,
    EDGE,
    EDGE_LOCK,
    FROZEN,
    GATE,
    GROWS,
    HALT,
    HELD,
    INSERTED,
    LOCK,
    MERGES,
    MERGING,
    MIN_SEQ,
    OPS,
    PROPAGATED,
    SELF,
    SEQ,
    STRIDE,
    SWAPPED,
    TASK,
    WORD,
    advance_edges,
)
from streamjoin.kernels.work_queue import LIMIT as QUEUE_LIMIT

WAITS_TO_MERGE = 11  # where a merging thread stands
MERGING_NOW = 12

_LOOK_BACK = 4096
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
        store(queue, HELD + side, 1)
        queue[INSERTED + side] = 0
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
def merge_into(old: I64, new: I64, inserted: int, least: int) -> None:
    """Write T_S and T_I of `old`, less what is below `least`, to `new`, and attach an empty T_I."""
    old = borrow(old)
    new = borrow(new)
    target = new[WORDS]
    apart = new[SEQS]
    run = target + new[ROOM] - inserted
    run_end = run + unload(old, new, run, apart)
    at = old[WORDS]
    end = at + old[STORED]
    behind = old[SEQS]
    to = target
    for j in range(run, run_end):
        word = new[j]
        newest = new[j + apart]
        moved = LANES
        while moved == LANES and at < end:
            moved = count_bits(upto_8(old, at, word) & ((1 << min(LANES, end - at)) - 1))
            live = ~below_8(old, at + behind, least) & ((1 << moved) - 1)
            pack_8_across(new, to, old, at, live)
            pack_8_across(new, to + apart, old, at + behind, live)
            to += count_bits(live)
            at += moved
        new[to] = word
        new[to + apart] = newest
        to += newest >= least
    while at < end:
        live = ~below_8(old, at + behind, least) & ((1 << min(LANES, end - at)) - 1)
        pack_8_across(new, to, old, at, live)
        pack_8_across(new, to + apart, old, at + behind, live)
        to += count_bits(live)
        at += LANES
    adopt(new, to - target)


@kernel
def adopt(mem: I64, stored: int) -> None:
    """Make the first `stored` entries of the leaves T_S, with an empty T_I."""
    mem[STORED] = stored
    used = lay_levels(mem, stored)
    build_levels(mem, mem[WORDS], stored, mem[INNER], mem[INNER] + used)
    level = max(0, mem[LEVELS] - mem[DEPTH]) if mem[DEPTH] else 0
    attach(mem, level)
    clear_chunks(mem, mem[FIRST_NODE])
    mem[LIMIT] = max(mem[SMALLEST_RUN], (stored * mem[RATIO]) >> 20)


@kernel
def set_limits(queue: I64, side: int, mem: I64) -> None:
    """Tell the queue when the next merge of a side is due, and how much T_I can take beyond that."""
    ceiling = mem[T_I_ROOM] - queue[TASK]
    queue[CEILING + side] = ceiling
    queue[QUEUE_LIMIT + side] = min(mem[LIMIT], max(1, ceiling // 2))


@kernel
def run_merge(
    crew: I64, me: int, queue: I64, tuples: I64, desk: I64, side: int, old: I64, new: I64, inserted: int
) -> bool:
    """Both phases of a merge that `begin_merge` has allowed; False when the crew was stopped."""
    began = queue[BEGAN + side]
    stand(crew, me, WAITS_TO_MERGE)
    tries = 0
    while load(queue, EDGE + side) < began or load(queue, PROPAGATED) < queue[SWAPPED + side]:
        advance_edges(queue, tuples)
        if not idle(crew, tries):
            return False
        tries += 1
    stand(crew, me, MERGING_NOW)
    merge_into(old, new, inserted, live_bound(queue, tuples, side, began))
    lock(queue, LOCK)
    queue[CURRENT + side] = 1 - queue[CURRENT + side]
    queue[FROZEN + side] = 0
    swapped = queue[ACQUIRED]
    queue[SWAPPED + side] = swapped
    set_limits(queue, side, new)
    unlock(queue, LOCK)
    insert_pending(queue, tuples, desk, side, new, began, swapped)
    lock(queue, EDGE_LOCK)
    store(queue, EDGE + side, swapped)
    store(queue, HELD + side, 0)
    unlock(queue, EDGE_LOCK)
    lock(queue, LOCK)
    queue[MERGING] = 0
    queue[MERGES] += 1
    queue[GATE] = 0
    unlock(queue, LOCK)
    return True


@kernel
def insert_pending(queue: I64, tuples: I64, desk: I64, side: int, mem: I64, begin: int, end: int) -> None:
    """Index a side's tuples from `begin` to before `end`, as those who took them did not."""
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
                prepare(mem, mem, desk, i - at, INSERTS, tuples[words + i], 0)
        for i in range(at, stop):
            if tuples[i] & INSERTS and (tuples[i] & ON_RIGHT) == side:
                seq = tuples[SEQ * queue[STRIDE] + i]
                insert(mem, desk[OWN_SUB + i - at], tuples[words + i], seq)
        at = stop
