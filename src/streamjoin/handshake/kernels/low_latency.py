"""Low-latency handshake join: tuples pass through the chain and leave a copy at home (LLHJ paper, section 4).

A tuple's home is its place modulo the number of nodes. At every node it is sent on first and compared then: with the
stored copies of the other side there, and, on side 0, with the tuples of side 1 that were sent on but had not
reached the node this message comes from, and that have not passed their home yet (they are *fresh*; a copy of the
others is met at their home). A tuple of side 1 is compared only with copies of side 0 whose expedition had ended
when it entered the chain: it meets the others on their way. That is table 1 of the paper: each pair is tested
once, wherever and in whatever state its tuples pass each other.

Since places come in order, "stored", "acknowledged", "expedition ended" and "expired" are each one bound, not a
flag per tuple. Copies are stored in columns: place p at column p // nodes of its home's rows.
"""

from __future__ import annotations

from streamjoin._arrays import Array
from streamjoin.handshake.kernels.links import (
    AT_HAND,
    BASES,
    BEGIN,
    COLUMNS,
    DONE,
    END,
    EXPIRED,
    EXPIRY,
    FLUSH,
    FLUSHED,
    FULL,
    IN,
    KIND,
    NODES,
    REACHED,
    STAGE,
    STOPPED,
    call_collector,
    enters_at,
    leaves_at,
    node_at,
    queue_at,
    raise_mark,
    rest,
    send,
)
from streamjoin.handshake.kernels.meet import WORD, NodeTests, meet
from streamjoin.handshake.kernels.spsc import first_slot, release
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64

NOTHING = 0
WORKED = 1
NO_ROOM = 2

# Stages of a message.
ARRIVED, COPIES, FRESH, STORE = range(4)


@kernel
def column(mem: I64, me: int, side: int, place: int) -> int:
    """The row's column where the first place from `place` on that is at home at `me` lies."""
    nodes = mem[NODES]
    at: int = (place - me + nodes - 1) // nodes - mem[COLUMNS + side]
    return max(at, 0)


@kernel
def send_on(mem: I64, me: int, side: int, slot: int) -> bool:
    """Pass a message to the next node at once; False when there is no room for it."""
    at = node_at(me)
    other = 1 - side
    if side == 1 and me == enters_at(mem, side):
        mem[slot + REACHED] = mem[at + IN + other]
    if me == leaves_at(mem, side):
        return True
    reached = mem[at + IN + other] if side == 0 else mem[slot + REACHED]
    onward = queue_at(mem, side, me + 1 - 2 * side)
    return send(mem, onward, mem[slot + KIND], mem[slot + BEGIN], mem[slot + END], reached, mem[slot + EXPIRY])


@kernel
def take_message(mem: I64, me: int, side: int) -> int:
    """The slot of the message at hand, or of one side's next, sent on to the next node; -1 when there is none."""
    at = node_at(me)
    other = 1 - side
    if mem[at + AT_HAND] == 1 + other:
        return -1
    slot = first_slot(mem, queue_at(mem, side, me))
    if slot < 0 or mem[at + STAGE] != ARRIVED:
        return slot
    if not send_on(mem, me, side, slot):
        return -1
    raise_mark(mem, me, side, mem[slot + BEGIN])
    mem[at + EXPIRED + other] = max(mem[at + EXPIRED + other], mem[slot + EXPIRY])
    mem[at + AT_HAND] = 1 + side
    mem[at + STAGE] = COPIES
    return slot


@kernel
def copies_until(mem: I64, me: int, side: int, slot: int) -> int:
    """The place up to which a message's tuples meet the other side's copies here."""
    arrived: int = mem[node_at(me) + IN + 1 - side]
    return arrived if side == 0 else min(arrived, mem[slot + REACHED])


@kernel
def meet_fresh(
    mem: I64, me: int, slot: int, words: Array, facts: Array, other_words: Array, other_facts: Array, out: Array,
    tests: NodeTests,
) -> bool:  # fmt: skip
    """Side 0's tuples against those of side 1 that were on their way to the sender and have not been home."""
    if me == 0:
        return True
    at = node_at(me)
    base = mem[BASES + 1]
    return meet(
        mem, at, 0, mem[slot + BEGIN], mem[slot + END], words, facts, other_facts,
        other_words, max(mem[slot + REACHED] - base, 0), mem[at + IN + 1] - base, 1, base, me, out, tests,
    )  # fmt: skip


@kernel
def finish_message(mem: I64, me: int, side: int, slot: int) -> None:
    """Complete the processing of a message at this node."""
    at = node_at(me)
    mem[at + IN + side] = max(mem[at + IN + side], mem[slot + END])
    if mem[slot + KIND] == FLUSH:
        mem[at + FLUSHED + side] = 1
    mem[at + STAGE] = ARRIVED
    mem[at + AT_HAND] = 0
    release(mem, queue_at(mem, side, me))
    call_collector(mem, me)


@kernel
def _store(mem: I64, me: int, side: int, slot: int, words: Array, copies: Array) -> None:
    """Store copies of the tuples whose home is this node."""
    nodes, base = mem[NODES], mem[BASES + side]
    begin = mem[slot + BEGIN]
    for place in range(begin + (me - begin) % nodes, mem[slot + END], nodes):
        at = column(mem, me, side, place)
        copies[WORD, at] = words[WORD, place - base]
        copies[WORD + 1, at] = words[WORD + 1, place - base]


@kernel
def _receive(
    mem: I64, me: int, side: int, words: Array, facts: Array, other_words: Array, other_facts: Array,
    copies: Array, other_copies: Array, out: Array, tests: NodeTests,
) -> int:  # fmt: skip
    slot = take_message(mem, me, side)
    if slot < 0:
        return NOTHING
    at = node_at(me)
    other = 1 - side
    if mem[at + STAGE] == COPIES:
        nodes = mem[NODES]
        first, last = mem[at + EXPIRED + other], copies_until(mem, me, side, slot)
        done = meet(
            mem, at, side, mem[slot + BEGIN], mem[slot + END], words, facts, other_facts,
            other_copies, column(mem, me, other, first), column(mem, me, other, last),
            nodes, mem[COLUMNS + other] * nodes + me, nodes, out, tests,
        )  # fmt: skip
        if not done:
            return NO_ROOM
        mem[at + STAGE] = FRESH
    if side == 0 and not meet_fresh(mem, me, slot, words, facts, other_words, other_facts, out, tests):
        return NO_ROOM
    _store(mem, me, side, slot, words, copies)
    finish_message(mem, me, side, slot)
    return WORKED


@kernel
def llhj_node(
    crew: I64, me: int, mem: I64, words_r: Array, facts_r: Array, words_s: Array, facts_s: Array,
    copies_r: Array, copies_s: Array, out: Array, tests: NodeTests,
) -> int:  # fmt: skip
    """Node `me` until both flows have ended: DONE, or FULL when its results must be taken before it goes on.

    `copies_r` and `copies_s` are the node's own: two rows of words each.
    """
    at = node_at(me)
    tries = 0
    while not (mem[at + FLUSHED] and mem[at + FLUSHED + 1]):
        worked = _receive(mem, me, 0, words_r, facts_r, words_s, facts_s, copies_r, copies_s, out, tests)
        if worked == NO_ROOM:
            return FULL
        code = _receive(mem, me, 1, words_s, facts_s, words_r, facts_r, copies_s, copies_r, out, tests)
        if code == NO_ROOM:
            return FULL
        if worked == WORKED or code == WORKED:
            tries = 0
        elif not rest(crew, me, mem, tries):
            return STOPPED
        else:
            tries += 1
    return DONE
