"""The tuples of a gate's sources: each source writes its own into a ring beside its nodes, readers copy them out.

A tuple is written at the place of its node before the node is linked, and the node is recycled only when every reader
has passed it: so a place is written by one thread, read by those that see the node, and never both at once. Sources
share nothing but the gate, and nothing here needs the interpreter.

A place holds a line of words, which all threads compare, and the row's columns of fixed width; `carried.py` has the
others, which have a width of 0 here. A table tells by source where its lines begin, how far apart they are, and its
side. Readers that find nothing sleep; a source that makes more tuples ready rings for them.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.atomics import add as add_to
from streamjoin.jit.atomics import fence, give_way, load, sleep_on, store, wake
from streamjoin.jit.crew import STOP
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.jit.memory import load_8, load_16, load_32, load_64, store_8, store_16, store_32, store_64
from streamjoin.kernels.positions import VALID as VALID_ROW
from streamjoin.kernels.rows import ADDRESS, BIT, NO_COLUMN, STRIDE, VALID, VALIDITY, WIDTH, copy_values, is_set
from streamjoin.scalejoin.kernels.gate import add, advance, bound, look
from streamjoin.scalejoin.kernels.members import recycle
from streamjoin.scalejoin.kernels.nodes import CLOCK, COUNT, EVER, FINISHED, FREE, MASK, source_at

# A line: when the tuple arrived, and a part for each of its roles. A part: whether the tuple can match, word, lo and hi
# of each term, and the columns that the residual's program reads.
ARRIVED, PARTS = 0, 1
IS_VALID, WORDS = 0, 1
_CACHE_LINE = 8

# What the table has of a source: where its lines are, in bytes how far apart, and its side.
LINES, LINE, SIDE = 0, 1, 2
SOURCE_FIELDS = 3

# The bells of readers and of the collector: a count to sleep on, and how many sleep. Sources ring for a new bound only.
READERS_BELL, COLLECTORS_BELL = 0, 32
SLEEPERS = 8
RUNG_TIME, RUNG_RANK = 16, 17
BELL_WORDS = 64
_YIELDS = 16


def line_words(roles: int, terms: int, columns: int) -> int:
    """The words of a line, whole cache lines."""
    return -(-(PARTS + roles * (WORDS + 3 * terms + columns)) // _CACHE_LINE) * _CACHE_LINE


@kernel
def ring(bells: I64, bell: int) -> None:
    """Wake those that sleep at a bell; what they should see was stored before."""
    fence()
    if load(bells, bell + SLEEPERS) != 0:
        add_to(bells, bell, 1)
        wake(bells, bell)


@kernel
def ring_if_more(mem: I64, bells: I64) -> None:
    """Wake the readers if the bound has moved since they were rung for last."""
    fence()
    time, rank = bound(mem)
    if time != load(bells, RUNG_TIME) or rank != load(bells, RUNG_RANK):
        store(bells, RUNG_TIME, time)
        store(bells, RUNG_RANK, rank)
        ring(bells, READERS_BELL)


@kernel
def await_more(mem: I64, bells: I64, crew: I64, reader: int, tries: int, microseconds: int) -> None:
    """Yield at first, then sleep until more is ready, the crew is stopped, or for so long."""
    if tries < _YIELDS:
        give_way()
        return
    rung = load(bells, READERS_BELL)
    add_to(bells, READERS_BELL + SLEEPERS, 1)
    # Whoever moves the bound from here on sees that a thread sleeps.
    fence()
    if not look(mem, reader) and load(crew, STOP) == 0:
        sleep_on(bells, READERS_BELL, rung, microseconds)
    add_to(bells, READERS_BELL + SLEEPERS, -1)


@kernel
def _write_lines(
    lines: int, line: int, place: int, block: Array, terms: I64, conditions: I64, arrived: I64, begin: int, n: int
) -> None:
    roles, each, columns = conditions.shape
    for i in range(begin, begin + n):
        at = lines + (place + i - begin) * line
        store_64(at + 8 * ARRIVED, arrived[i])
        at += 8 * PARTS
        for role in range(roles):
            store_64(at + 8 * IS_VALID, block[VALID_ROW, role * each + i])
            at += 8 * WORDS
            for k in range(terms.size):
                for row in range(terms[k], terms[k] + 3):
                    store_64(at, block[row, role * each + i])
                    at += 8
            for k in range(columns):
                store_64(at, conditions[role, i, k])
                at += 8


@kernel
def _write_columns(columns: Array, layout: Array, begin: int, n: int, place: int) -> None:
    for j in range(layout.shape[0]):
        if layout[j, WIDTH] == 0:
            continue
        validity, bit, step = columns[j, VALIDITY], columns[j, BIT], layout[j, STRIDE]
        for i in range(n):
            store_8(layout[j, VALID] + place + i, is_set(validity, bit + begin + i) if validity != 0 else 1)
        copy_values(
            columns[j, ADDRESS] + begin * columns[j, STRIDE], columns[j, STRIDE],
            layout[j, ADDRESS] + place * step, step, layout[j, WIDTH], n,
        )  # fmt: skip


@kernel
def feed(
    mem: I64, bells: I64, slot: int, lines: int, line: int, block: Array, terms: I64, conditions: I64, times: I64,
    arrived: I64, columns: Array, layout: Array, begin: int, clock: int,
) -> int:  # fmt: skip
    """Add a source's tuples from `begin` on, whose times do not fall; returns the first that found no room.

    `block` has their words, those of each term from a row of `terms` on, `conditions` what the residual's program reads
    of them in each role, and `columns` their rows in memory; `layout` is that of the ring's rows, which all have
    validity bytes. `clock`, if all tuples found room, is the time before which no more come.
    """
    source = source_at(mem, slot)
    n = times.size
    places = np.empty(n, np.int64)
    done = begin
    while done < n:
        room = mem[source + FREE] + mem[MASK] + 1 - mem[source + COUNT]
        if room < n - done:
            recycle(mem, slot)
            room = mem[source + FREE] + mem[MASK] + 1 - mem[source + COUNT]
            if room == 0:
                break
        place = mem[source + COUNT] & mem[MASK]
        m = min(room, n - done, mem[MASK] + 1 - place)
        _write_lines(lines, line, place, block, terms, conditions, arrived, done, m)
        _write_columns(columns, layout, done, m, place)
        for i in range(m):
            places[done + i] = place + i
        done = add(mem, slot, times, places, done, done + m)
    if done == n:
        advance(mem, slot, clock)
    ring_if_more(mem, bells)
    return done


@kernel
def move_clock(mem: I64, bells: I64, slot: int, clock: int) -> None:
    """Declare that a source has no tuples before `clock`."""
    advance(mem, slot, clock)
    ring_if_more(mem, bells)


@kernel
def _copy_value(source: int, target: int, width: int) -> None:
    if width == 8:
        store_64(target, load_64(source))
    elif width == 4:
        store_32(target, load_32(source))
    elif width == 2:
        store_16(target, load_16(source))
    else:
        store_8(target, load_8(source))


@kernel
def copy_out(
    sources: Array, layouts: Array, slots: I64, places: I64, times: I64, n_columns: I64,
    targets: tuple[Array, Array], ends: I64, counts: I64, time_rows: I64, roles: int, own: I64, arrived: I64,
) -> int:  # fmt: skip
    """Copy tuples from the rings to the stored columns of their sides, behind places `ends`.

    `counts` are the positions of each side's next tuple and move with them. For each role of a tuple there is one of
    `own`: it becomes its position, doubled, plus the side. Returns NO_COLUMN, or a column that has no validity bytes
    and would get a NULL, doubled, plus its side: then nothing has changed.
    """
    first = (counts[0], counts[1])
    for i in range(own.size // roles):
        slot = slots[i]
        since = load_64(sources[slot, LINES] + places[i] * sources[slot, LINE] + 8 * ARRIVED)
        for role in range(roles):
            side = sources[slot, SIDE] + role
            row = ends[side] + counts[side] - first[side]
            target = targets[side]
            for j in range(n_columns[side]):
                if target[j, WIDTH] == 0:
                    continue
                is_there = load_8(layouts[slot, j, VALID] + places[i])
                if target[j, VALID] != 0:
                    store_8(target[j, VALID] + row, is_there)
                elif is_there == 0:
                    counts[0], counts[1] = first
                    return 2 * j + int(side)
                _copy_value(
                    layouts[slot, j, ADDRESS] + places[i] * layouts[slot, j, STRIDE],
                    target[j, ADDRESS] + row * target[j, STRIDE], target[j, WIDTH],
                )  # fmt: skip
            store_64(target[time_rows[side], ADDRESS] + 8 * row, times[i])
            own[i * roles + role] = counts[side] << 1 | side
            arrived[i * roles + role] = since
            counts[side] += 1
    return NO_COLUMN


@kernel
def least_clock(mem: I64, n: int) -> int:
    """The least clock of the first `n` sources of a gate; a finished one's is EVER."""
    least = EVER
    for slot in range(n):
        source = source_at(mem, slot)
        if load(mem, source + FINISHED) == 0:
            least = min(least, load(mem, source + CLOCK))
    return least


@kernel
def await_results(mem: I64, n: int, bells: I64, crew: I64, seen: int, microseconds: int) -> int:
    """Sleep until the results of `n` threads reach beyond `seen`, their ring is full, or for so long; how far."""
    rung = load(bells, COLLECTORS_BELL)
    add_to(bells, COLLECTORS_BELL + SLEEPERS, 1)
    fence()
    if least_clock(mem, n) <= seen and load(crew, STOP) == 0:
        sleep_on(bells, COLLECTORS_BELL, rung, microseconds)
    add_to(bells, COLLECTORS_BELL + SLEEPERS, -1)
    return least_clock(mem, n)
