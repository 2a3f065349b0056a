"""ScaleGate: sources add tuples to one multi-level list, readers take ready tuples, without locks.

ScaleJoin, algorithm 2. A source searches from where it added last, links its node at the bottom with one
compare-and-swap, then at the levels above it. Tuples of one call that no other node parts are linked as a chain, with
one swap for all of them. A tuple is ready when it does not sort after the clock of any source (definition 2, with
clocks instead of last tuples, so that a source without tuples can let the others pass). Each reader sees every tuple
in the order (time, rank of the source, position in the source).
"""

from __future__ import annotations

from streamjoin.jit.atomics import fence, load, store, swap_if
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64, borrow, lowest_bit, mix, prefetch
from streamjoin.scalejoin.kernels.members import enter, leave, recycle
from streamjoin.scalejoin.kernels.nodes import (
    BOUND_COUNT,
    BOUND_RANK,
    BOUND_TIME,
    CLOCK,
    COUNT,
    EVER,
    FAR,
    FINISHED,
    FREE,
    HEAD,
    HEIGHT,
    HINT,
    LASTS,
    LEVELS,
    MASK,
    MISSING,
    N_SOURCES,
    NEVER,
    NEXT,
    NIL,
    PAYLOAD,
    RANK,
    SELF,
    SHORTCUTS,
    SLOT_BITS,
    TIME,
    VERSION,
    lies_above,
    node_at,
    precedes,
    rank_of,
    reader_at,
    slot_of,
    source_at,
    still,
)

# One node in 2^_SPARSE reaches the level above.
_SPARSE = 3
# This many steps at the bottom cost less than a search through the levels.
_WALK = 12
# The clock moves at least this often within a call.
_CHAIN = 64
# A reader gives nodes back this often within a call.
_RELEASE = 256


@kernel
def _note(mem: I64, source: int, node: int) -> None:
    """Remember a node passed at the bottom as the latest of every level it is linked at."""
    for level in range(1, load(mem, node_at(mem, node) + HEIGHT) + 1):
        mem[source + SHORTCUTS + level] = node


@kernel
def _leap(mem: I64, source: int, start: int, time: int, rank: int) -> int:
    """The latest node not after (time, rank) that the levels above lead to, or `start` where that is no earlier."""
    place = NIL
    place_time = 0
    for level in range(LEVELS - 1, 0, -1):
        shortcut = mem[source + SHORTCUTS + level]
        if shortcut != NIL:
            shortcut_time = load(mem, node_at(mem, shortcut) + TIME)
            if still(mem, shortcut) and (place == NIL or precedes(mem, place_time, place, shortcut_time, shortcut)):
                place, place_time = shortcut, shortcut_time
        while place != NIL:
            after = load(mem, node_at(mem, place) + NEXT + level)
            if not still(mem, place):
                place = NIL
                break
            if after == NIL:
                break
            after_time = load(mem, node_at(mem, after) + TIME)
            if not still(mem, after):
                break
            if after_time > time or (after_time == time and rank_of(mem, slot_of(after)) > rank):
                break
            place, place_time = after, after_time
        if place != NIL:
            mem[source + SHORTCUTS + level] = place
    start_time = mem[node_at(mem, start) + TIME]
    if place != NIL and precedes(mem, start_time, start, place_time, place) and still(mem, place):
        # Later than a protected node, so protected from the moment it was seen.
        return place
    return start


@kernel
def _seek(mem: I64, source: int, start: int, time: int, rank: int) -> tuple[int, int]:
    """The last node not after (time, rank) and its successor at the bottom, from a protected node on."""
    place = start
    steps = 0
    while True:
        after = load(mem, node_at(mem, place) + NEXT)
        if after == NIL or lies_above(mem, after, time, rank):
            return place, after
        place = after
        _note(mem, source, place)
        steps += 1
        if steps == _WALK:
            place = _leap(mem, source, place, time, rank)


@kernel
def _raise_tower(mem: I64, source: int, node: int) -> None:
    """Link a node that is linked at the bottom at the levels it was drawn for, each behind the latest one noted."""
    at = node_at(mem, node)
    time = mem[at + TIME]
    rank = mem[source + RANK]
    height = min(LEVELS - 1, lowest_bit(mix(node, 32) | (1 << (LEVELS * _SPARSE))) // _SPARSE)
    for level in range(1, height + 1):
        place = mem[source + SHORTCUTS + level]
        while place != NIL:
            after = load(mem, node_at(mem, place) + NEXT + level)
            if not still(mem, place):
                break
            if after != NIL:
                after_time = load(mem, node_at(mem, after) + TIME)
                if still(mem, after) and not (
                    after_time > time or (after_time == time and rank_of(mem, slot_of(after)) > rank)
                ):
                    place = after
                    continue
            store(mem, at + NEXT + level, after)
            if swap_if(mem, node_at(mem, place) + NEXT + level, after, node):
                break
        mem[source + SHORTCUTS + level] = node
        store(mem, at + HEIGHT, level)


@kernel
def _fill(mem: I64, node: int, time: int, payload: int) -> None:
    """Initialize an unlinked node; its number is cleared first, which invalidates references to the previous node."""
    at = node_at(mem, node)
    store(mem, at + SELF, NIL)
    store(mem, at + HEIGHT, 0)
    for level in range(LEVELS):
        store(mem, at + NEXT + level, NIL)
    store(mem, at + TIME, time)
    mem[at + PAYLOAD] = payload
    store(mem, at + SELF, node)


@kernel
def _link(mem: I64, slot: int, times: I64, payload: I64, begin: int, most: int) -> int:
    """Link the tuples from `begin` on that go between the same two nodes, `most` at the most; returns how many."""
    source = source_at(mem, slot)
    rank = mem[source + RANK]
    first = (mem[source + COUNT] << SLOT_BITS) | slot
    step = 1 << SLOT_BITS
    place, after = _seek(mem, source, mem[source + HINT], times[begin], rank)
    count = 0
    while count < most and (after == NIL or lies_above(mem, after, times[begin + count], rank)):
        _fill(mem, first + count * step, times[begin + count], payload[begin + count])
        if count > 0:
            mem[node_at(mem, first + (count - 1) * step) + NEXT] = first + count * step
        count += 1
    while True:
        mem[node_at(mem, first + (count - 1) * step) + NEXT] = after
        if swap_if(mem, node_at(mem, place) + NEXT, after, first):
            break
        place, after = _seek(mem, source, place, times[begin], rank)
        while after != NIL and not lies_above(mem, after, times[begin + count - 1], rank):
            count -= 1
    for k in range(count):
        _raise_tower(mem, source, first + k * step)
    mem[source + COUNT] += count
    store(mem, source + HINT, first + (count - 1) * step)
    return count


@kernel
def _publish_clock(mem: I64, source: int, times: I64, begin: int, done: int) -> int:
    """Move the clock to the last linked tuple, after its links: a thread that sees the clock sees them.

    Readers poll the clock, so writing it for every tuple would cost a cache miss per tuple.
    """
    if done > begin:
        store(mem, source + CLOCK, max(mem[source + CLOCK], times[done - 1]))
    return done


@kernel
def add(mem: I64, slot: int, times: I64, payload: I64, begin: int, end: int) -> int:
    """Add tuples begin to end of a source, whose times do not fall; returns the first that found no room.

    A tuple can be read as soon as no source's clock, this one's included, is before it.
    """
    mem = borrow(mem)
    times = borrow(times)
    payload = borrow(payload)
    if begin >= end:
        return begin
    source = source_at(mem, slot)
    enter(mem, slot)
    done = begin
    clock_at = begin
    while done < end:
        room = mem[source + FREE] + mem[MASK] + 1 - mem[source + COUNT]
        if room == 0:
            recycle(mem, slot)
            room = mem[source + FREE] + mem[MASK] + 1 - mem[source + COUNT]
            if room == 0:
                break
        done += _link(mem, slot, times, payload, done, min(room, end - done, _CHAIN))
        if done - clock_at >= _CHAIN:
            clock_at = _publish_clock(mem, source, times, clock_at, done)
    _publish_clock(mem, source, times, clock_at, done)
    leave(mem, slot)
    return done


@kernel
def advance(mem: I64, slot: int, time: int) -> None:
    """Declare that a source has no tuples before `time`."""
    clock = source_at(mem, slot) + CLOCK
    store(mem, clock, max(mem[clock], time))


@kernel
def bound(mem: I64) -> tuple[int, int]:
    """The least clock of an open source, and its rank: what does not sort after it is ready."""
    sources = load(mem, N_SOURCES)
    if sources == 0 or load(mem, MISSING) != 0:
        return NEVER, NEVER
    time, rank = EVER, EVER
    far, far_rank = NEVER, NEVER
    for slot in range(sources):
        source = source_at(mem, slot)
        own_rank = load(mem, source + RANK)
        if load(mem, source + FINISHED) == 0:
            clock = load(mem, source + CLOCK)
            if clock < time or (clock == time and own_rank < rank):
                time, rank = clock, own_rank
        else:
            last = load(mem, source + FAR)
            if last > far or (last == far and own_rank > far_rank):
                far, far_rank = last, own_rank
    if time == EVER and rank == EVER and load(mem, LASTS) != 0:
        return far, far_rank
    return time, rank


@kernel
def _publish_bound(mem: I64, own: int, time: int, rank: int) -> None:
    """Write a reader's bound so that joining threads read it consistently."""
    if time != mem[own + BOUND_TIME] or rank != mem[own + BOUND_RANK]:
        count = mem[own + BOUND_COUNT]
        store(mem, own + BOUND_COUNT, count + 1)
        store(mem, own + BOUND_TIME, time)
        store(mem, own + BOUND_RANK, rank)
        store(mem, own + BOUND_COUNT, count + 2)


@kernel
def look(mem: I64, reader: int) -> bool:
    """Read the clocks again; returns whether more is ready than before.

    The bound is published before the version is read again: a source that joins sees it and starts behind it, or is
    seen here, and then the bound is taken back.
    """
    own = reader_at(mem, reader)
    before_time, before_rank = mem[own + BOUND_TIME], mem[own + BOUND_RANK]
    version = load(mem, VERSION)
    while version & 1 == 0:
        time, rank = bound(mem)
        grown: bool = time > before_time or (time == before_time and rank > before_rank)
        if not grown:
            break
        _publish_bound(mem, own, time, rank)
        fence()
        now = load(mem, VERSION)
        if now == version:
            return True
        version = now
    _publish_bound(mem, own, before_time, before_rank)
    return False


@kernel
def peek(mem: I64, reader: int, slots: I64, payload: I64, times: I64, begin: int, end: int) -> tuple[int, int]:
    """The next ready tuples, into the places from `begin` to `end`; returns where they end, and the last node.

    Their nodes are not given back before the last one becomes the reader's head: see `release`.
    """
    own = reader_at(mem, reader)
    head = mem[own + HEAD]
    limit_time, limit_rank = mem[own + BOUND_TIME], mem[own + BOUND_RANK]
    while begin < end:
        after = load(mem, node_at(mem, head) + NEXT)
        if after != NIL:
            at = node_at(mem, after)
            time = mem[at + TIME]
            if time < limit_time or (time == limit_time and rank_of(mem, slot_of(after)) <= limit_rank):
                prefetch(mem, at + 2 * 8)
                slots[begin], payload[begin], times[begin] = slot_of(after), mem[at + PAYLOAD], time
                begin += 1
                head = after
                continue
        # The successor read before `look` may have a new predecessor: read it again.
        if not look(mem, reader):
            break
        limit_time, limit_rank = mem[own + BOUND_TIME], mem[own + BOUND_RANK]
    return begin, head


@kernel
def release(mem: I64, reader: int, head: int) -> None:
    """Give back what a reader has taken, up to the node that is its head now."""
    store(mem, reader_at(mem, reader) + HEAD, head)


@kernel
def read(mem: I64, reader: int, slots: I64, payload: I64, times: I64) -> int:
    """Take the next ready tuples, as many as there is room for: source, payload and time; returns how many."""
    mem = borrow(mem)
    count = 0
    while count < slots.size:
        end = min(count + _RELEASE, slots.size)
        reached, head = peek(mem, reader, slots, payload, times, count, end)
        release(mem, reader, head)
        count = reached
        if reached < end:
            break
    return count
