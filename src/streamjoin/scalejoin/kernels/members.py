"""The members of a ScaleGate: sources and readers that join and leave, and the recycling of a source's nodes.

A node is recycled when all heads and hints have passed it. The hint of a resting source would block the others'
memory; a source that needs room drops it, and the resting source restarts at a reader's head when it adds again: heads
are at ready tuples, which no clock can be behind. Invariant: heads and hints only move forward from places they
protect, except while PLACED is odd, and what was found out about recycling meanwhile is thrown away.
"""

from __future__ import annotations

from streamjoin.jit.atomics import add, fence, load, store, swap_if
from streamjoin.jit.crew import lock, unlock
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.scalejoin.kernels.nodes import (
    ACTIVE,
    ADDING,
    BOUND_COUNT,
    BOUND_RANK,
    BOUND_TIME,
    CLOCK,
    COUNT,
    DROPPED,
    EVER,
    FAR,
    FINISHED,
    FREE,
    HEAD,
    HINT,
    IS_IDLE,
    IS_OVER,
    JOINING,
    LASTS,
    LEFT_RANK,
    LEFT_TIME,
    LEVELS,
    MASK,
    MISSING,
    MOST_READERS,
    MOST_SOURCES,
    N_READERS,
    N_SOURCES,
    NEVER,
    NIL,
    PLACED,
    RANK,
    RESTING,
    SELF,
    SHORTCUTS,
    SLOT_BITS,
    STATE,
    TIME,
    VERSION,
    node_at,
    number_of,
    rank_of,
    reader_at,
    slot_of,
    source_at,
)


@kernel
def _passed(mem: I64, slot: int, low: int, high: int, word: int) -> int:
    """How far below `high` the source's nodes from `low` on sort before the node that the word at `word` names."""
    while True:
        reference = load(mem, word)
        time = load(mem, node_at(mem, reference) + TIME)
        # Named before and after: it was protected meanwhile, and its time is its own.
        if load(mem, word) == reference:
            break
    other = slot_of(reference)
    if other == slot:
        return max(low, min(high, number_of(reference)))
    ranked_before = rank_of(mem, slot) < rank_of(mem, other)
    while low < high:
        middle = (low + high) >> 1
        own = mem[node_at(mem, (middle << SLOT_BITS) | slot) + TIME]
        if own < time or (own == time and ranked_before):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _behind_all(mem: I64, slot: int) -> int:
    """The first of a source's nodes that a head or a hint has not passed; hints of sources at rest are dropped."""
    source = source_at(mem, slot)
    low: int = mem[source + FREE]
    high: int = mem[source + COUNT]
    readers = 0
    for reader in range(load(mem, N_READERS)):
        own = reader_at(mem, reader)
        if load(mem, own + ACTIVE):
            readers += 1
            high = _passed(mem, slot, low, high, own + HEAD)
    if readers == 0:
        return low
    for other in range(load(mem, N_SOURCES)):
        hint_of = source_at(mem, other)
        if load(mem, hint_of + STATE) == DROPPED or high == low:
            continue
        held = _passed(mem, slot, low, high, hint_of + HINT)
        if held < high and other != slot and swap_if(mem, hint_of + STATE, RESTING, DROPPED):
            continue
        high = held
    return high


@kernel
def recycle(mem: I64, slot: int) -> None:
    """Update which nodes of a source can be recycled. Called by the source; nothing changes while a member joins."""
    placed = load(mem, PLACED)
    if placed & 1:
        return
    free = _behind_all(mem, slot)
    fence()
    if load(mem, PLACED) == placed:
        mem[source_at(mem, slot) + FREE] = free


@kernel
def _some_head(mem: I64) -> int:
    """The head of a reader: a place to start from, while PLACED is odd."""
    for reader in range(load(mem, N_READERS)):
        own = reader_at(mem, reader)
        if load(mem, own + ACTIVE):
            head: int = load(mem, own + HEAD)
            return head
    return NIL


@kernel
def _begin_joining(mem: I64) -> None:
    lock(mem, JOINING)
    add(mem, PLACED, 1)
    fence()


@kernel
def _end_joining(mem: I64) -> None:
    add(mem, PLACED, 1)
    unlock(mem, JOINING)


@kernel
def enter(mem: I64, slot: int) -> None:
    """Begin to add: from here to `leave` the hint cannot be dropped."""
    source = source_at(mem, slot)
    if not swap_if(mem, source + STATE, RESTING, ADDING):
        _begin_joining(mem)
        store(mem, source + HINT, _some_head(mem))
        store(mem, source + STATE, ADDING)
        _end_joining(mem)


@kernel
def leave(mem: I64, slot: int) -> None:
    """End of adding."""
    store(mem, source_at(mem, slot) + STATE, RESTING)


@kernel
def _end(mem: I64, slot: int, how: int, far: int) -> None:
    """Let no reader wait for a source, and its hint protect nothing."""
    source = source_at(mem, slot)
    store(mem, source + FAR, far)
    store(mem, source + STATE, DROPPED)
    store(mem, source + FINISHED, how)


@kernel
def finish(mem: I64, slot: int) -> None:
    """Declare that a source has ended."""
    count = mem[source_at(mem, slot) + COUNT]
    # A source without tuples of its own has the last one of an earlier source, which all readers have passed.
    _end(mem, slot, IS_OVER, mem[node_at(mem, ((count - 1) << SLOT_BITS) | slot) + TIME] if count else NEVER)


@kernel
def rest(mem: I64, slot: int) -> None:
    """Stop waiting for a source; it adds nothing more here. Its place is kept, and with it how far it has come."""
    _end(mem, slot, IS_IDLE, mem[source_at(mem, slot) + CLOCK])


@kernel
def set_missing(mem: I64, sides: int) -> None:
    """Set how many `sides` have no source yet; until it is 0, nothing is ready."""
    store(mem, MISSING, sides)


@kernel
def end(mem: I64) -> None:
    """Once all sources have ended: no other comes, and everything is ready."""
    store(mem, MISSING, 0)
    store(mem, LASTS, 0)


@kernel
def _read_bound(mem: I64, own: int) -> tuple[int, int]:
    """A reader's bound, whole; the reader is never long at writing it."""
    while True:
        count = load(mem, own + BOUND_COUNT)
        time = load(mem, own + BOUND_TIME)
        rank = load(mem, own + BOUND_RANK)
        if count & 1 == 0 and load(mem, own + BOUND_COUNT) == count:
            return time, rank


@kernel
def floor_of(mem: I64) -> tuple[int, int]:
    """The greatest bound of a reader: tuples that do not sort after it may have been released."""
    time, rank = load(mem, LEFT_TIME), load(mem, LEFT_RANK)
    for reader in range(load(mem, N_READERS)):
        own = reader_at(mem, reader)
        if load(mem, own + ACTIVE):
            its_time, its_rank = _read_bound(mem, own)
            if its_time > time or (its_time == time and its_rank > rank):
                time, rank = its_time, its_rank
    return time, rank


@kernel
def _vacant_source(mem: I64) -> int:
    """A slot for a new source: that of a finished source whose nodes all readers have passed, or the next one."""
    count = load(mem, N_SOURCES)
    for slot in range(count):
        source = source_at(mem, slot)
        if load(mem, source + FINISHED) == IS_OVER:
            # This thread made PLACED odd, so no other member joins now.
            mem[source + FREE] = _behind_all(mem, slot)
            if mem[source + FREE] == mem[source + COUNT]:
                _disown(mem, slot)
                return slot
    return count if count < mem[MOST_SOURCES] else NIL


@kernel
def _disown(mem: I64, slot: int) -> None:
    """Take the numbers off a source's nodes, before its rank is another: they must not be compared by that."""
    count = mem[source_at(mem, slot) + COUNT]
    for number in range(max(0, count - mem[MASK] - 1), count):
        store(mem, node_at(mem, (number << SLOT_BITS) | slot) + SELF, NIL)


@kernel
def mark_passed(mem: I64, passed: I64) -> None:
    """Write 1 for each source that has ended and whose tuples all readers have passed, and 0 for the others."""
    _begin_joining(mem)
    for slot in range(load(mem, N_SOURCES)):
        source = source_at(mem, slot)
        passed[slot] = 0
        if load(mem, source + FINISHED) == IS_OVER:
            mem[source + FREE] = _behind_all(mem, slot)
            passed[slot] = mem[source + FREE] == mem[source + COUNT]
    _end_joining(mem)


@kernel
def add_source(mem: I64, rank: int) -> int:
    """A new source, before which nothing ready will come from now on; its slot, or NIL when all are in use.

    No two open sources have one rank. Its clock starts behind all that readers may have been given.
    """
    _begin_joining(mem)
    add(mem, VERSION, 1)
    fence()
    slot = _vacant_source(mem)
    if slot != NIL:
        source = source_at(mem, slot)
        time, floor_rank = floor_of(mem)
        store(mem, source + RANK, rank)
        store(mem, source + CLOCK, time if rank > floor_rank or time == EVER else time + 1)
        for level in range(LEVELS):
            mem[source + SHORTCUTS + level] = NIL
        store(mem, source + HINT, _some_head(mem))
        store(mem, source + STATE, RESTING)
        store(mem, source + FINISHED, 0)
        if slot == load(mem, N_SOURCES):
            store(mem, N_SOURCES, slot + 1)
    add(mem, VERSION, 1)
    _end_joining(mem)
    return slot


@kernel
def add_reader(mem: I64) -> int:
    """Add a reader at the position of the first of the others; returns its number, or NIL if all are in use."""
    _begin_joining(mem)
    count = load(mem, N_READERS)
    place = NIL
    for reader in range(count):
        if load(mem, reader_at(mem, reader) + ACTIVE) == 0:
            place = reader
    if place == NIL and count < mem[MOST_READERS]:
        place = count
    if place != NIL:
        _start_reader(mem, place)
        store(mem, reader_at(mem, place) + ACTIVE, 1)
        if place == count:
            store(mem, N_READERS, count + 1)
    _end_joining(mem)
    return place


@kernel
def _start_reader(mem: I64, reader: int) -> None:
    """Place a reader. Its bound is its place: another's bound may be one that is about to be taken back."""
    own = reader_at(mem, reader)
    head = _some_head(mem)
    if head == NIL:
        head = mem[MOST_SOURCES]  # the node before all others
    store(mem, own + HEAD, head)
    store(mem, own + BOUND_TIME, mem[node_at(mem, head) + TIME])
    store(mem, own + BOUND_RANK, rank_of(mem, slot_of(head)))


@kernel
def remove_reader(mem: I64, reader: int) -> bool:
    """Remove a reader; the last one must stay, since sources restart at its head."""
    _begin_joining(mem)
    others = 0
    for other in range(load(mem, N_READERS)):
        others += other != reader and load(mem, reader_at(mem, other) + ACTIVE) != 0
    if others > 0:
        # Its bound remains in force: a source that joins later does not start before it.
        time, rank = _read_bound(mem, reader_at(mem, reader))
        if time > mem[LEFT_TIME] or (time == mem[LEFT_TIME] and rank > mem[LEFT_RANK]):
            store(mem, LEFT_TIME, time)
            store(mem, LEFT_RANK, rank)
        store(mem, reader_at(mem, reader) + ACTIVE, 0)
    _end_joining(mem)
    return others > 0
