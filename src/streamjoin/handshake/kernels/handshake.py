"""Handshake join: two windows flow past each other along a chain of nodes (LLHJ paper, section 2.3).

A node holds a contiguous part of each side's window, from OUT to IN. It moves its oldest tuples on when it holds
more than the next node, so a window spreads evenly and a tuple's node tells its age; the driver's expiries come
against the flow, and expired tuples hurry to the end, the one place where tuples are dropped. Two tuples are
compared when the second of them arrives at the node of the first.

Tuples of both sides can be between the same two nodes and pass each other there. So a tuple of side 1 stays with
its sender until the receiver has acknowledged it: what a message of side 0 meets reaches from its acknowledgement
on, not from OUT. Side 0 leaves at once; with one side staying, a pair meets exactly once.

When a flow ends (FLUSH), what has not met can be found without moving on: tuples new since the last drain visit the
rest of the chain, side 0 all that lies there, side 1 only what the last drain left. A pair that a drain has found
is skipped when its tuples meet later: both places are below DRAINED.
"""

from __future__ import annotations

from streamjoin._arrays import Array
from streamjoin.handshake.kernels.links import (
    AT_HAND,
    BASES,
    BATCH,
    BEGIN,
    DONE,
    DRAINED,
    DRAINS,
    END,
    ENDED,
    EXPIRED,
    EXPIRY,
    FLOW,
    FLUSH,
    FLUSHED,
    FULL,
    IN,
    KIND,
    NODES,
    OUT,
    REACHED,
    STAGE,
    STOPPED,
    TOLD,
    VISIT,
    VISITED,
    enters_at,
    leaves_at,
    left_by,
    node_at,
    queue_at,
    rest,
    room,
    send,
)
from streamjoin.handshake.kernels.meet import NodeTests, meet
from streamjoin.handshake.kernels.spsc import first_slot, release
from streamjoin.jit.atomics import store
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64

_NOTHING = 0
_WORKED = 1
_NO_ROOM = 2


@kernel
def _scan(
    mem: I64, at: int, side: int, begin: int, end: int, low: int, words: Array, facts: Array,
    other_words: Array, other_facts: Array, out: Array, tests: NodeTests,
) -> bool:  # fmt: skip
    """Places begin to end against the other side's from `low` on; what a drain has found is left out."""
    other = 1 - side
    base = mem[BASES + other]
    high = mem[at + IN + other]
    seen, other_seen = mem[DRAINED + side], mem[DRAINED + other]
    if mem[at + STAGE] == 0:
        done = meet(
            mem, at, side, begin, min(end, seen), words, facts, other_facts,
            other_words, max(low, other_seen) - base, high - base, 1, base, mem[NODES], out, tests,
        )  # fmt: skip
        if not done:
            return False
        mem[at + STAGE] = 1
    done = meet(
        mem, at, side, max(begin, seen), end, words, facts, other_facts,
        other_words, low - base, high - base, 1, base, mem[NODES], out, tests,
    )  # fmt: skip
    if done:
        mem[at + STAGE] = 0
    return done


@kernel
def _visit(
    mem: I64, at: int, side: int, begin: int, end: int, words: Array, facts: Array,
    other_words: Array, other_facts: Array, out: Array, tests: NodeTests,
) -> bool:  # fmt: skip
    """New tuples of a drain against what lies here: side 1 leaves out the new ones, which visit it themselves."""
    other = 1 - side
    base = mem[BASES + other]
    high = mem[at + IN + other]
    if side == 1:
        high = min(high, mem[DRAINED + other])
    return meet(
        mem, at, side, begin, end, words, facts, other_facts,
        other_words, mem[at + OUT + 8 * other] - base, high - base, 1, base, mem[NODES], out, tests,
    )  # fmt: skip


@kernel
def _end_flow(mem: I64, me: int, side: int, onward: int) -> bool:
    """The side's flow has ended: nothing of it moves any more, and its new tuples set out to visit."""
    at = node_at(me)
    first = me == enters_at(mem, side)
    if onward >= 0:
        if room(mem, onward) < 3:
            return False
        begin, end = max(mem[at + OUT + 8 * side], mem[DRAINED + side]), mem[at + IN + side]
        send(mem, onward, FLUSH, 0, 0, 0, mem[at + EXPIRED + 1 - side])
        if mem[DRAINS] and begin < end:
            send(mem, onward, VISIT, begin, end, 0, 0)
        if mem[DRAINS] and first:
            send(mem, onward, VISITED, 0, 0, 0, 0)
    mem[at + FLUSHED + side] = 1
    if first or not mem[DRAINS]:
        mem[at + ENDED + side] = 1
    return True


@kernel
def _receive(
    mem: I64, me: int, side: int, words: Array, facts: Array, other_words: Array, other_facts: Array, out: Array,
    tests: NodeTests,
) -> int:  # fmt: skip
    """Handle one side's next message, if there is one and it can be handled now."""
    at = node_at(me)
    other = 1 - side
    queue = queue_at(mem, side, me)
    slot = first_slot(mem, queue)
    if slot < 0 or mem[at + AT_HAND] == 1 + other:
        return _NOTHING
    onward = -1 if me == leaves_at(mem, side) else queue_at(mem, side, me + 1 - 2 * side)
    kind, begin, end = mem[slot + KIND], mem[slot + BEGIN], mem[slot + END]
    mem[at + EXPIRED + other] = max(mem[at + EXPIRED + other], mem[slot + EXPIRY])
    if kind == FLOW:
        acknowledged = side == 0 and me != enters_at(mem, side)
        low = mem[slot + REACHED] if acknowledged else mem[at + OUT + 8 * other]
        if not _scan(mem, at, side, begin, end, low, words, facts, other_words, other_facts, out, tests):
            mem[at + AT_HAND] = 1 + side
            return _NO_ROOM
        mem[at + IN + side] = max(mem[at + IN + side], end)
    elif kind == FLUSH:
        if not _end_flow(mem, me, side, onward):
            return _NOTHING
    elif not mem[at + FLUSHED + other] or (onward >= 0 and room(mem, onward) < 1):
        # What a visitor should see is not all here yet.
        return _NOTHING
    else:
        if kind == VISIT and not _visit(mem, at, side, begin, end, words, facts, other_words, other_facts, out, tests):
            mem[at + AT_HAND] = 1 + side
            return _NO_ROOM
        if onward >= 0:
            send(mem, onward, kind, begin, end, 0, 0)
        if kind == VISITED:
            mem[at + ENDED + side] = 1
    mem[at + AT_HAND] = 0
    release(mem, queue)
    return _WORKED


@kernel
def _move_on(mem: I64, me: int, side: int) -> bool:
    """Send the oldest tuples on if the next node holds fewer, drop the expired at the end, pass expiries on."""
    at = node_at(me)
    out, held = mem[at + OUT + 8 * side], mem[at + IN + side]
    expired = min(mem[at + EXPIRED + side], held)
    if mem[at + FLUSHED + side]:
        return False
    if me == leaves_at(mem, side):
        if expired <= out:
            return False
        store(mem, at + OUT + 8 * side, expired)
        return True
    onward = me + 1 - 2 * side
    count = max(0, expired - out)
    surplus = (held - out) - (out - left_by(mem, side, onward))
    if surplus >= 2 * mem[BATCH] or (surplus > 0 and mem[BATCH] == 1):
        count = max(count, (surplus + 1) // 2)
    other_expired = mem[at + EXPIRED + 1 - side]
    if count == 0 and other_expired <= mem[at + TOLD + side]:
        return False
    if not send(mem, queue_at(mem, side, onward), FLOW, out, out + count, mem[at + IN + 1 - side], other_expired):
        return False
    mem[at + TOLD + side] = other_expired
    store(mem, at + OUT + 8 * side, out + count)
    return True


@kernel
def handshake_node(
    crew: I64, me: int, mem: I64, words_r: Array, facts_r: Array, words_s: Array, facts_s: Array, out: Array,
    tests: NodeTests,
) -> int:  # fmt: skip
    """Node `me` until both flows have ended: DONE, or FULL when its results must be taken before it goes on."""
    at = node_at(me)
    tries = 0
    while not (mem[at + ENDED] and mem[at + ENDED + 1]):
        worked = _receive(mem, me, 0, words_r, facts_r, words_s, facts_s, out, tests)
        if worked == _NO_ROOM:
            return FULL
        code = _receive(mem, me, 1, words_s, facts_s, words_r, facts_r, out, tests)
        if code == _NO_ROOM:
            return FULL
        moved = _move_on(mem, me, 0)
        moved = _move_on(mem, me, 1) or moved
        if worked == _WORKED or code == _WORKED or moved:
            tries = 0
        elif not rest(crew, me, mem, tries):
            return STOPPED
        else:
            tries += 1
    return DONE
