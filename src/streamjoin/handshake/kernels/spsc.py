"""A ring of fixed-size messages between one producer and one consumer, in a section of a shared arena.

The producer fills a slot in place and publishes it; the consumer reads it in place and releases it: nothing is
copied and there is no lock. `HEAD` and `TAIL` only grow. Each end keeps a copy of the other's counter next to
its own and reads the real one only if the copy says full or empty, so a busy queue does not cost a shared cache
line per message. Invariant: TAIL - capacity <= HEAD <= TAIL; slots from HEAD to TAIL are the consumer's, the others the
producer's.
"""

from __future__ import annotations

from streamjoin.jit.atomics import load, store
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64

# Offsets from the queue's place; each end's words have a cache line of their own.
HEAD = 0
SEEN_TAIL = 1
TAIL = 8
SEEN_HEAD = 9
MASK = 16
WIDTH = 17
SLOTS = 24


def queue_words(capacity: int, width: int) -> int:
    """Words that a queue of `capacity` messages (a power of two) of `width` words takes in its arena."""
    if capacity < 1 or capacity & (capacity - 1):
        raise ValueError(f"the capacity of a ring is a power of two, not {capacity}")
    return SLOTS + -(-capacity * width // 8) * 8


@kernel
def make_queue(mem: I64, at: int, capacity: int, width: int) -> None:
    """Initialize an empty queue at `at`, before it is used."""
    for word in range(SLOTS):
        mem[at + word] = 0
    mem[at + MASK] = capacity - 1
    mem[at + WIDTH] = width


@kernel
def free_slot(mem: I64, at: int) -> int:
    """The place of the slot to fill next, or -1 when the queue is full. The producer's."""
    tail = mem[at + TAIL]
    if tail - mem[at + SEEN_HEAD] > mem[at + MASK]:
        mem[at + SEEN_HEAD] = load(mem, at + HEAD)
        if tail - mem[at + SEEN_HEAD] > mem[at + MASK]:
            return -1
    slot: int = at + SLOTS + (tail & mem[at + MASK]) * mem[at + WIDTH]
    return slot


@kernel
def publish(mem: I64, at: int) -> None:
    """Hand the slot that `free_slot` gave to the consumer."""
    store(mem, at + TAIL, mem[at + TAIL] + 1)


@kernel
def first_slot(mem: I64, at: int) -> int:
    """The place of the oldest message, or -1 when there is none. The consumer's."""
    head = mem[at + HEAD]
    if head == mem[at + SEEN_TAIL]:
        mem[at + SEEN_TAIL] = load(mem, at + TAIL)
        if head == mem[at + SEEN_TAIL]:
            return -1
    slot: int = at + SLOTS + (head & mem[at + MASK]) * mem[at + WIDTH]
    return slot


@kernel
def release(mem: I64, at: int) -> None:
    """Give the slot that `first_slot` gave back to the producer."""
    store(mem, at + HEAD, mem[at + HEAD] + 1)


@kernel
def waiting(mem: I64, at: int) -> int:
    """The number of messages in the queue; callable from any thread."""
    head = load(mem, at + HEAD)
    held: int = load(mem, at + TAIL) - head
    return held
