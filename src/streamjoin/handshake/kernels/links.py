"""The chain of both handshake joins: the nodes, the rings between neighbours, and the driver of both ends.

Side 0 (R) moves from node 0 to the last, side 1 (S) the other way; a message goes to the next node in its side's
direction through one ring, so full rings cannot form a cycle. Messages carry ranges of *places*: a side's tuples
that can match are numbered from 0 and stored in its log, which every node reads and no node changes.

A message also carries what the papers send as messages of their own: how far the other side's tuples had reached
the sender (the acknowledgement; in the low-latency join and on side 1 the expedition end), and the place below
which the other side's tuples are out of every window to come (the expiry). All three are bounds that only grow and
matter exactly when tuples of the opposite direction arrive, so the message that brings those brings them.
"""

from __future__ import annotations

from streamjoin._arrays import Array
from streamjoin.handshake.kernels.spsc import MASK, SLOTS, free_slot, make_queue, publish, queue_words, waiting
from streamjoin.jit.atomics import add, fence, give_way, load, pause, sleep_on, store, wake
from streamjoin.jit.crew import idle, stand, stopped
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64, cycles

# The arena's head. A word that one thread writes and others watch has a cache line of its own.
NODES = 0  # how many
BATCH = 1  # tuples in a driver's message; the least a handshake node moves on for balance
TERMS = 2  # terms tested here, 0 to 2
DRAINS = 3  # 1: find what has not met when the flow ends
BASES = 4  # per side: the place of its log's first row
DRAINED = 6  # per side: pairs of places both below these were found by an earlier drain
COLUMNS = 8  # per side: the number of the first column of the stored copies
START = 10  # the cycle counter when the driver began
PUNCTUATES = 11  # 1: the ends keep high-water marks
FINISHED = 12  # nodes that are done
RING_WORDS = 13  # from one ring to the next
SLEEPS = 14  # microseconds that a node without messages sleeps at the most, until its bell rings; 0: it naps
UNDECIDED = 15  # 1: some results may not satisfy the residual, and all are to be tested
MARKS = 16  # per side, a line each: the high-water mark, a place: all below is done, in every node
COLLECTOR = 32  # a bell, and what the collector waits for: see AWAITED and ENOUGH
HEAD_WORDS = 40

# A bell: a word that counts, on which one thread sleeps, and whether it does. The collector's has more.
ASLEEP = 1
AWAITED = 2  # per side: the mark
ENOUGH = 4  # results of one node

# A node's words, from `node_at`. OUT is read by a neighbour, the results' head is the collector's.
OUT = 0  # per side, a line each: places below have left this node for the next, or for good
RESULTS_HEAD = 16
RESULTS_TAIL = 24
IN = 32  # per side: places below have arrived
EXPIRED = 34  # per side: places below are out of every window
TOLD = 36  # per side: the other side's expiry as last sent on in this direction
FLUSHED = 38  # per side: its flow has ended
ENDED = 40  # per side: its visitors have ended
STAGE = 42  # how far the message at hand is
AT_BLOCK = 43  # where a scan goes on that found no room for its results
AT_PROBE = 44
PENDING = 45  # matches that an index gave and that are not written yet
WRITTEN = 46
AT_HAND = 47  # 1 + the side whose message is at hand, 0 between messages
COMPARED = 48
LOOKED_UP = 49  # tuples of the message at hand that an index has answered
BELL = 56
NODE_WORDS = 64

# A message.
KIND = 0
BEGIN = 1
END = 2
REACHED = 3  # the acknowledgement or expedition end
EXPIRY = 4
MESSAGE_WORDS = 8

FLOW, FLUSH, VISIT, VISITED = range(4)

# In the head of a message ring: the node that reads it.
READER = 18

# Attempts without a message after which a node sleeps, where it may, and naps while it waits for its neighbour.
_YIELDS = 32
_NAP_US = 50

# A row of a log's facts.
SEQ = 0  # the position in the side's stream
MIN_SEQ = 1  # it meets the other side's positions from here
UPTO = 2  # to here
GATE = 3  # its place in gate order
EXPIRES = 4  # the other side's place below which nothing is live for it and those after it
DUE = 5  # when it arrives, in cycles from the start
FACTS = 8

# What a node's kernel returns.
DONE = 0
FULL = 1  # no room for results: take some and call again
STOPPED = 2  # the crew was stopped
MAINTAIN = 3  # plus the side: its index must merge or grow

# States of a thread.
AWAITS_MESSAGES = 1
AWAITS_ROOM = 2
AWAITS_TUPLES = 3
AWAITS_RESULTS = 4
PLACES = {
    AWAITS_MESSAGES: "waiting for messages",
    AWAITS_ROOM: "waiting for room in the chain",
    AWAITS_TUPLES: "waiting for tuples to be due",
    AWAITS_RESULTS: "waiting for results",
}


def chain_words(nodes: int, capacity: int) -> int:
    """Words of an arena with rings of `capacity` messages, at least four."""
    return HEAD_WORDS + nodes * (NODE_WORDS + 2 * queue_words(max(4, capacity), MESSAGE_WORDS))


@kernel
def node_at(k: int) -> int:
    """The offset of node k's words."""
    return HEAD_WORDS + NODE_WORDS * k


@kernel
def queue_at(mem: I64, side: int, k: int) -> int:
    """The offset of the ring that brings one side's messages to node k."""
    at: int = HEAD_WORDS + NODE_WORDS * mem[NODES] + (2 * k + side) * mem[RING_WORDS]
    return at


@kernel
def lay_chain(mem: I64, nodes: int, capacity: int, between: int) -> None:
    """Empty rings and nodes in a zeroed arena; the rings between nodes hold only `between` messages."""
    mem[NODES] = nodes
    mem[RING_WORDS] = SLOTS + MESSAGE_WORDS * capacity
    for k in range(nodes):
        mem[node_at(k) + AT_BLOCK] = -1
        for side in range(2):
            queue = queue_at(mem, side, k)
            make_queue(mem, queue, capacity if k == enters_at(mem, side) else between, MESSAGE_WORDS)
            mem[queue + READER] = k


@kernel
def start_flow(mem: I64) -> None:
    """Open the flow again, between two chunks: nothing has ended yet."""
    for k in range(mem[NODES]):
        at = node_at(k)
        for side in range(2):
            mem[at + FLUSHED + side] = 0
            mem[at + ENDED + side] = 0


@kernel
def enters_at(mem: I64, side: int) -> int:
    """The node where a side enters the chain."""
    node: int = (mem[NODES] - 1) * side
    return node


@kernel
def leaves_at(mem: I64, side: int) -> int:
    """The node where a side's way ends."""
    node: int = (mem[NODES] - 1) * (1 - side)
    return node


@kernel
def ring(mem: I64, bell: int) -> None:
    """Wake the thread that sleeps at a bell; what it should see was stored before."""
    fence()
    if load(mem, bell + ASLEEP) != 0:
        store(mem, bell + ASLEEP, 0)
        add(mem, bell, 1)
        wake(mem, bell)


@kernel
def ring_all(mem: I64) -> None:
    """Wake all nodes and the collector."""
    for k in range(mem[NODES]):
        ring(mem, node_at(k) + BELL)
    ring(mem, COLLECTOR)


@kernel
def call_collector(mem: I64, me: int) -> None:
    """Wake the collector if it sleeps and what it waits for is there."""
    if mem[SLEEPS] == 0:
        return
    fence()
    if load(mem, COLLECTOR + ASLEEP) == 0:
        return
    at = node_at(me)
    marked = load(mem, MARKS) >= mem[COLLECTOR + AWAITED] and load(mem, MARKS + 8) >= mem[COLLECTOR + AWAITED + 1]
    if marked or mem[at + RESULTS_TAIL] - load(mem, at + RESULTS_HEAD) >= mem[COLLECTOR + ENOUGH]:
        ring(mem, COLLECTOR)


@kernel
def room(mem: I64, queue: int) -> int:
    """How many more messages fit, as its producer may ask."""
    free: int = mem[queue + MASK] + 1 - waiting(mem, queue)
    return free


@kernel
def entry_waiting(mem: I64) -> int:
    """How many messages wait at either end of the chain, at the most."""
    return max(waiting(mem, queue_at(mem, 0, enters_at(mem, 0))), waiting(mem, queue_at(mem, 1, enters_at(mem, 1))))


@kernel
def await_entry(crew: I64, me: int, mem: I64, most: int) -> None:
    """Wait until at most `most` messages wait at either end of the chain, or the crew was stopped."""
    tries = 0
    while entry_waiting(mem) > most:
        stand(crew, me, AWAITS_ROOM)
        if not idle(crew, tries):
            return
        tries += 1


@kernel
def send(mem: I64, queue: int, kind: int, begin: int, end: int, reached: int, expiry: int) -> bool:
    """Put a message into a ring; False if it is full."""
    slot = free_slot(mem, queue)
    if slot < 0:
        return False
    mem[slot + KIND] = kind
    mem[slot + BEGIN] = begin
    mem[slot + END] = end
    mem[slot + REACHED] = reached
    mem[slot + EXPIRY] = expiry
    publish(mem, queue)
    if mem[SLEEPS] > 0:
        ring(mem, node_at(mem[queue + READER]) + BELL)
    return True


@kernel
def _deliver(crew: I64, me: int, mem: I64, side: int, kind: int, begin: int, end: int, expiry: int) -> bool:
    queue = queue_at(mem, side, enters_at(mem, side))
    tries = 0
    while not send(mem, queue, kind, begin, end, 0, expiry):
        stand(crew, me, AWAITS_ROOM)
        if not idle(crew, tries):
            return False
        tries += 1
    return True


@kernel
def _await_due(crew: I64, me: int, due: int) -> bool:
    """Wait until the cycle counter says `due`, asleep where it is far off."""
    stand(crew, me, AWAITS_TUPLES)
    tries = 0
    while cycles() < due:
        if not idle(crew, tries):
            return False
        tries += 1
    return True


@kernel
def drive(
    crew: I64,
    me: int,
    mem: I64,
    is_right: Array,
    facts_r: Array,
    facts_s: Array,
    begin_r: int,
    begin_s: int,
    paced: bool,
    ends: bool,
) -> int:
    """The driver: sends tuples in gate order to both ends, in batches, with expiries; at last, if it `ends`, the end.

    Only the driver handles windows; the chain, places. `paced` sends a tuple when the cycle counter reaches its DUE.
    """
    mem[START] = cycles()
    sent = (begin_r, begin_s)
    come = sent
    for g in range(is_right.size):
        side = 1 if is_right[g] else 0
        if paced:
            row = come[side] - mem[BASES + side]
            due = facts_s[row, DUE] if side else facts_r[row, DUE]
            if not _await_due(crew, me, mem[START] + due):
                return STOPPED
        come = (come[0], come[1] + 1) if side else (come[0] + 1, come[1])
        if come[side] - sent[side] == mem[BATCH]:
            row = sent[side] - mem[BASES + side]
            expiry = facts_s[row, EXPIRES] if side else facts_r[row, EXPIRES]
            if not _deliver(crew, me, mem, side, FLOW, sent[side], come[side], expiry):
                return STOPPED
            sent = (sent[0], come[1]) if side else (come[0], sent[1])
    for side in range(2):
        if come[side] > sent[side]:
            row = sent[side] - mem[BASES + side]
            expiry = facts_s[row, EXPIRES] if side else facts_r[row, EXPIRES]
            if not _deliver(crew, me, mem, side, FLOW, sent[side], come[side], expiry):
                return STOPPED
        if ends and not _deliver(crew, me, mem, side, FLUSH, come[side], come[side], 0):
            return STOPPED
    return DONE


@kernel
def punctuate(crew: I64, me: int, mem: I64, end_r: int, end_s: int, expired_r: int, expired_s: int) -> int:
    """Send a message without tuples behind the last of each side: it raises the marks, and brings expiries."""
    for side in range(2):
        end, expired = (end_s, expired_r) if side else (end_r, expired_s)
        if not _deliver(crew, me, mem, side, FLOW, end, end, expired):
            return STOPPED
    return DONE


@kernel
def _first_from(facts: Array, base: int, count: int, seq: int) -> int:
    """The first place of a log, of places base to count, at or after a stream position."""
    low, high = 0, count - base
    while low < high:
        middle = (low + high) // 2
        if facts[middle, SEQ] < seq:
            low = middle + 1
        else:
            high = middle
    return base + low


@kernel
def send_marked(
    crew: I64, me: int, mem: I64, is_right: Array, facts_r: Array, facts_s: Array, begin_r: int, begin_s: int,
    end_r: int, end_s: int, dropped_r: int, dropped_s: int,
) -> int:  # fmt: skip
    """Send tuples to both ends, and behind them what raises the marks; positions below `dropped` have expired."""
    if drive(crew, me, mem, is_right, facts_r, facts_s, begin_r, begin_s, False, False) != DONE:
        return STOPPED
    expired_r = _first_from(facts_r, mem[BASES], end_r, dropped_r)
    expired_s = _first_from(facts_s, mem[BASES + 1], end_s, dropped_s)
    return punctuate(crew, me, mem, end_r, end_s, expired_r, expired_s)


@kernel
def raise_mark(mem: I64, me: int, side: int, place: int) -> None:
    """The high-water mark: a message has reached the end of its way, so what came before it is done everywhere.

    Every node sends a message on before it looks at its tuples, and looks at one message after the other.
    """
    if mem[PUNCTUATES] and me == leaves_at(mem, side):
        store(mem, MARKS + 8 * side, place)
        call_collector(mem, me)


@kernel
def rest(crew: I64, me: int, mem: I64, tries: int) -> bool:
    """Yield, then sleep while this node has nothing to do; False if the crew was stopped."""
    if tries == 0:
        stand(crew, me, AWAITS_MESSAGES)
    if mem[SLEEPS] == 0:
        return idle(crew, tries)
    if tries < _YIELDS:
        give_way()
        return not stopped(crew)
    bell = node_at(me) + BELL
    rung = load(mem, bell)
    store(mem, bell + ASLEEP, 1)
    # Whoever sends a message from here on sees that this node sleeps.
    fence()
    if waiting(mem, queue_at(mem, 0, me)) + waiting(mem, queue_at(mem, 1, me)) == 0:
        sleep_on(mem, bell, rung, mem[SLEEPS])
    else:
        # The next node has no room.
        pause(_NAP_US)
    store(mem, bell + ASLEEP, 0)
    return not stopped(crew)


@kernel
def left_by(mem: I64, side: int, k: int) -> int:
    """How far a side's tuples have left node k, as a neighbour may ask."""
    return load(mem, node_at(k) + OUT + 8 * side)


@kernel
def finish(mem: I64) -> None:
    """A node is done: its results are all written."""
    add(mem, FINISHED, 1)
