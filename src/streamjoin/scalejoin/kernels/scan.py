"""A processing thread of ScaleJoin: reads the first gate, searches its share of the windows, writes to the second.

Algorithm 1 of the paper for any condition, count or time windows. Every thread reads every ready tuple, compares it
with the tuples of the other side that it has stored itself, and stores it if it is its turn: each side's tuples
that can match go round. Matches go to the second gate under the gate position of the later tuple. Positions are
counted by each thread for itself; all see one sequence. Invariant: a pair of tuples in each other's window is compared
once, by the thread that stored the earlier one.

Up to two exact terms find pairs, or the residual's program where there is no term (`_scan_group`); what is left of the
condition is tested on these pairs. A tuple of a self-join has two roles, left and right: each looks for matches among
the tuples before it in the other role, and has a gate position of its own.

`scan` returns to the interpreter only to grow an array, and at the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.crew import RUNNING, idle, stand, stopped
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.jit.memory import load_64
from streamjoin.kernels.batch.nested import nested_pairs
from streamjoin.kernels.conditions import condition_pairs, registers_of, test_rows
from streamjoin.kernels.times import before
from streamjoin.scalejoin.kernels.gate import add, advance, peek, release
from streamjoin.scalejoin.kernels.members import finish
from streamjoin.scalejoin.kernels.nodes import BOUND_RANK, BOUND_TIME, EVER, reader_at
from streamjoin.scalejoin.kernels.rings import (
    COLLECTORS_BELL,
    IS_VALID,
    LINE,
    LINES,
    PARTS,
    SIDE,
    WORDS,
    await_more,
    ring,
)

GROUP = 256
"""Tuples taken at a time, at the most: a block of the window in the cache should meet many of them."""

DONE, STOPPED, NEEDS_STORE, NEEDS_PAIRS = 0, 1, 2, 3
READS, ADDS = 1, 2
PLACES = {READS: "waits for a ready tuple", ADDS: "waits for room in the second gate"}

# A thread's state: the gate position of its group, how many tuples that has and how many are done, each side's next
# position, turn, number of probes and next probe, the comparisons in all, and how often the residual's program could
# not decide.
AT, TAKEN, SCANNED, COUNTS, TURNS, PROBES, NEXT_PROBE, COMPARED, UNDECIDED = 0, 1, 2, 3, 5, 7, 9, 11, 12
STATE_WORDS = 13

_NAP_US = 10_000
_INT32 = 1 << 31


class ScanPlan(NamedTuple):
    """What a thread is and does."""

    me: int
    """Its number: as a reader of the first gate, a source of the second, and in the crew."""
    threads: int
    roles: int
    """Of a tuple: 2 in a self-join."""
    one_store: bool
    """Whether both roles look among the tuples that are stored in the right one."""
    terms: int
    finding: int
    """How many of the terms, the first ones, find pairs; the others are tested on these."""
    sizes: tuple[int, int]
    """Of both windows, in tuples before the one that looks, or as a length (`kernels.times`)."""
    timed: tuple[bool, bool]


class ScanShare(NamedTuple):
    """What one thread stores: for each side its columns, from the first to the last of `ends`."""

    first: Array
    """The words of the first term that finds pairs, and of the second."""
    second: Array
    seqs: Array
    times: Array
    others: Array
    """The words of the other terms."""
    rows: Array
    """What the residual's program reads."""
    ends: Array


class ScanGroup(NamedTuple):
    """The tuples of a group: as the gate gives them; and as probes, by side, with what they match and where."""

    slots: Array
    places: Array
    times: Array
    probe: Array
    """For each tuple, its number as a probe of its side."""
    number: Array
    lo: Array
    span: Array
    lo2: Array
    span2: Array
    begin: Array
    end: Array
    others: Array
    """The ends of the intervals of the other terms, low ones first."""
    rows: Array


class ScanPairs(NamedTuple):
    """Room for the matches of some probes of each side, and for all in gate order."""

    probe: Array
    place: Array
    later: Array
    seqs: Array


class ScanTests(NamedTuple):
    """The residual's program for left and for right probes, with their registers; without rows if there is none."""

    left: Array
    right: Array
    left_registers: Array
    right_registers: Array


def make_share(capacity: int, dtype: Any, finding: int, others: int, columns: int) -> ScanShare:
    """An empty share; `capacity` tuples per side, live and expired."""
    first, second = (np.zeros((2, capacity if k < finding else 0), dtype) for k in range(2))
    seqs, times = (np.zeros((2, capacity), np.int64) for _ in range(2))
    words, rows = (np.zeros((2, capacity, width), np.int64) for width in (others, columns))
    return ScanShare(first, second, seqs, times, words, rows, np.zeros((2, 2), np.int64))


def grown(share: ScanShare) -> ScanShare:
    """The share with twice the room."""
    room, finding = share.seqs.shape[1], sum(words.shape[1] > 0 for words in share[:2])
    widths = share.others.shape[2], share.rows.shape[2]
    larger = make_share(2 * room, share.first.dtype.type, finding, *widths)
    for side in range(2):
        begin, end = share.ends[side]
        for old, new in zip(share[:-1], larger[:-1], strict=True):
            if old.shape[1]:
                new[side, : end - begin] = old[side, begin:end]
        larger.ends[side, 1] = end - begin
    return larger


def make_group(dtype: Any, others: int, columns: int) -> ScanGroup:
    """Room for one group."""

    def column(kind: Any, *shape: int) -> Array:
        return np.zeros(shape, kind)

    return ScanGroup(
        slots=column(np.int64, GROUP), places=column(np.int64, GROUP), times=column(np.int64, GROUP),
        probe=column(np.int64, GROUP), number=column(np.int64, 2, GROUP), lo=column(dtype, 2, GROUP),
        span=column(dtype, 2, GROUP), lo2=column(dtype, 2, GROUP), span2=column(dtype, 2, GROUP),
        begin=column(np.int64, 2, GROUP), end=column(np.int64, 2, GROUP), others=column(np.int64, 2, GROUP, 2, others),
        rows=column(np.int64, 2, GROUP, columns),
    )  # fmt: skip


def make_pairs(capacity: int) -> ScanPairs:
    """Room for `capacity` matches of each side."""
    probe, place = (np.empty((2, capacity), np.int64) for _ in range(2))
    return ScanPairs(probe, place, np.empty(2 * capacity, np.int64), np.empty(2 * capacity, np.int64))


def make_tests(programs: tuple[I64, I64] | None) -> ScanTests:
    """The programs, each with registers for one thread."""
    if programs is None:
        none = np.zeros((0, 4), np.int64)
        return ScanTests(none, none, none, none)
    return ScanTests(*programs, *map(registers_of, programs))


@kernel
def _move_up(column: Array, side: int, begin: int, end: int) -> None:
    """Move stored tuples to the front, where nothing of them lies."""
    if column.shape[1] > 0:
        column[side, : end - begin] = column[side, begin:end]


@kernel
def _has_room(share: ScanShare) -> bool:
    """Whether both sides can take a whole group; live tuples are moved to the front first."""
    for side in range(2):
        begin, end = share.ends[side, 0], share.ends[side, 1]
        if end + GROUP <= share.seqs.shape[1]:
            continue
        if 2 * (end - begin) + GROUP > share.seqs.shape[1]:
            return False
        _move_up(share.first, side, begin, end)
        _move_up(share.second, side, begin, end)
        _move_up(share.seqs, side, begin, end)
        _move_up(share.times, side, begin, end)
        _move_up(share.others, side, begin, end)
        _move_up(share.rows, side, begin, end)
        share.ends[side, 0], share.ends[side, 1] = 0, end - begin
    return True


@kernel
def _unsigned(value: int, narrow: bool) -> Any:
    """A word, or a bound of words, as an unsigned number of the same order; `windows.words.unsigned_words`."""
    if narrow:
        return np.uint64(max(-_INT32, min(_INT32 - 1, value)) + _INT32)
    return np.uint64(value) ^ np.uint64(1 << 63)


@kernel
def _stored(plan: ScanPlan, side: int) -> int:
    """Where what a probe of a side looks among is stored."""
    return 1 if plan.one_store else 1 - side


@kernel
def _expire(share: ScanShare, plan: ScanPlan, side: int, upto: int, time: int) -> None:
    """Drop the tuples that are outside the window of a probe of one side."""
    other, stored = 1 - side, _stored(plan, side)
    begin, end = share.ends[stored, 0], share.ends[stored, 1]
    if plan.timed[other]:
        least = before(time, plan.sizes[other])
        while begin < end and share.times[stored, begin] < least:
            begin += 1
    else:
        while begin < end and share.seqs[stored, begin] < upto - plan.sizes[other]:
            begin += 1
    share.ends[stored, 0] = begin


@kernel
def _look(part: int, group: ScanGroup, share: ScanShare, plan: ScanPlan, state: I64, i: int, side: int) -> None:
    """Record what the tuple of a line's part is compared with."""
    unsigned = share.first.dtype.type
    narrow = share.first.itemsize == 4
    stored = _stored(plan, side)
    _expire(share, plan, side, state[COUNTS + 1 - side], group.times[i])
    k = state[PROBES + side]
    state[PROBES + side] = k + 1
    group.probe[i], group.number[side, k] = k, i
    matches = load_64(part + 8 * IS_VALID) != 0
    at = part + 8 * WORDS
    for term in range(plan.terms):
        lo, hi = load_64(at + 8), load_64(at + 16)
        at += 24
        if term >= plan.finding:
            group.others[side, k, 0, term - plan.finding] = lo
            group.others[side, k, 1, term - plan.finding] = hi
            continue
        matches = matches and lo <= hi
        span = unsigned(_unsigned(hi, narrow) - _unsigned(lo, narrow))
        if term == 0:
            group.lo[side, k], group.span[side, k] = unsigned(_unsigned(lo, narrow)), span
        else:
            group.lo2[side, k], group.span2[side, k] = unsigned(_unsigned(lo, narrow)), span
    for column in range(share.rows.shape[2]):
        group.rows[side, k, column] = load_64(at + 8 * column)
    group.begin[side, k] = share.ends[stored, 0]
    group.end[side, k] = share.ends[stored, 1] if matches else share.ends[stored, 0]
    state[COMPARED] += group.end[side, k] - group.begin[side, k]


@kernel
def _store(part: int, share: ScanShare, plan: ScanPlan, state: I64, time: int, side: int) -> None:
    """Count the tuple of a line's part, and store it if that is for this thread."""
    unsigned = share.first.dtype.type
    narrow = share.first.itemsize == 4
    seq = state[COUNTS + side]
    state[COUNTS + side] = seq + 1
    if load_64(part + 8 * IS_VALID) == 0:
        return
    turn = state[TURNS + side]
    state[TURNS + side] = (turn + 1) % plan.threads
    if turn != plan.me or (plan.one_store and side == 0):
        return
    end = share.ends[side, 1]
    at = part + 8 * WORDS
    for term in range(plan.terms):
        word = load_64(at)
        at += 24
        if term >= plan.finding:
            share.others[side, end, term - plan.finding] = word
        elif term == 0:
            share.first[side, end] = unsigned(_unsigned(word, narrow))
        else:
            share.second[side, end] = unsigned(_unsigned(word, narrow))
    for column in range(share.rows.shape[2]):
        share.rows[side, end, column] = load_64(at + 8 * column)
    share.seqs[side, end], share.times[side, end] = seq, time
    share.ends[side, 1] = end + 1


@kernel
def _take(sources: Array, group: ScanGroup, share: ScanShare, plan: ScanPlan, state: I64, n: int) -> None:
    """Expire, record what each tuple is compared with, and store this thread's own."""
    width = 8 * (WORDS + 3 * plan.terms + share.rows.shape[2])
    state[PROBES], state[PROBES + 1] = 0, 0
    for i in range(n):
        slot = group.slots[i]
        side = sources[slot, SIDE]
        part = sources[slot, LINES] + group.places[i] * sources[slot, LINE] + 8 * PARTS
        for role in range(plan.roles):
            _look(part + role * width, group, share, plan, state, i, side + role)
        for role in range(plan.roles):
            _store(part + role * width, share, plan, state, group.times[i], side + role)
    state[TAKEN], state[SCANNED] = n, 0
    state[NEXT_PROBE], state[NEXT_PROBE + 1] = 0, 0


@kernel
def _scan_side(
    share: ScanShare, group: ScanGroup, pairs: ScanPairs, plan: ScanPlan, tests: ScanTests, state: I64, side: int,
    begin: int, end: int,
) -> tuple[int, int]:  # fmt: skip
    """The matches of one side's probes from `begin` to `end`; returns the first that did not fit, and how many."""
    stored = _stored(plan, side)
    if plan.finding == 0:
        ranges = (group.begin[side], group.end[side])
        program, registers = tests.left, tests.left_registers
        if side == 1:
            program, registers = tests.right, tests.right_registers
        return condition_pairs(
            program, group.rows[side], share.rows[stored], registers, ranges, begin, end,
            state[UNDECIDED:], pairs.probe[side], pairs.place[side],
        )  # fmt: skip
    return nested_pairs(
        share.first[stored], share.second[stored], group.lo[side], group.span[side], group.lo2[side],
        group.span2[side], group.begin[side], group.end[side], begin, end, pairs.probe[side], pairs.place[side],
    )  # fmt: skip


@kernel
def _before(group: ScanGroup, side: int, begin: int, end: int, number: int) -> int:
    """The first probe of a side from `begin` on that is not before tuple `number` of the group."""
    while begin < end and group.number[side, begin] < number:
        begin += 1
    return begin


@kernel
def _merge(group: ScanGroup, pairs: ScanPairs, counts: tuple[int, int]) -> int:
    """Put both sides' matches into gate order, as (tuple of the group, doubled, plus the side; place); how many."""
    i, j, n = 0, 0, 0
    while i < counts[0] or j < counts[1]:
        side = 0
        if i == counts[0] or (
            j < counts[1] and group.number[1, pairs.probe[1, j]] < group.number[0, pairs.probe[0, i]]
        ):
            side = 1
        k = j if side else i
        pairs.later[n] = group.number[side, pairs.probe[side, k]] << 1 | side
        pairs.seqs[n] = pairs.place[side, k]
        n += 1
        i, j = i + 1 - side, j + side
    return n


@kernel
def _test_terms(others: Array, stored: Array, places: I64, n: int) -> int:
    """Move those of the first `n` places to the front where a probe's other terms hold; returns how many."""
    kept = 0
    for i in range(n):
        place = places[i]
        holds = True
        for term in range(stored.shape[1]):
            word = stored[place, term]
            holds = holds and others[0, term] <= word and word <= others[1, term]
        places[kept] = place
        kept += holds
    return kept


@kernel
def _test(
    share: ScanShare, group: ScanGroup, pairs: ScanPairs, plan: ScanPlan, tests: ScanTests, state: I64, n: int
) -> int:
    """Keep the matches for which what did not find them holds; returns how many."""
    has_program = plan.finding > 0 and tests.left.shape[0] > 0
    if plan.terms == plan.finding and not has_program:
        return n
    kept, begin = 0, 0
    while begin < n:
        key = pairs.later[begin]
        end = begin + 1
        while end < n and pairs.later[end] == key:
            end += 1
        side, k = key & 1, group.probe[key >> 1]
        stored = _stored(plan, side)
        places = pairs.seqs[begin:end]
        m = _test_terms(group.others[side, k], share.others[stored], places, end - begin)
        if has_program and m > 0:
            program, registers = tests.left, tests.left_registers
            if side == 1:
                program, registers = tests.right, tests.right_registers
            m, decided = test_rows(program, group.rows[side, k], share.rows[stored], registers, places, m)
            state[UNDECIDED] += not decided
        for i in range(m):
            pairs.later[kept], pairs.seqs[kept] = key, places[i]
            kept += 1
        begin = end
    return kept


@kernel
def _place(share: ScanShare, pairs: ScanPairs, plan: ScanPlan, state: I64, n: int) -> None:
    """Give matches the gate position of the later and the position of the earlier tuple."""
    for i in range(n):
        key = pairs.later[i]
        number = state[AT] + (key >> 1)
        pairs.later[i] = number if plan.roles == 1 else number << 1 | (key & 1)
        pairs.seqs[i] = share.seqs[_stored(plan, key & 1), pairs.seqs[i]]


@kernel
def _scan_group(
    share: ScanShare, group: ScanGroup, pairs: ScanPairs, plan: ScanPlan, tests: ScanTests, state: I64
) -> int:
    """Find the matches of the next tuples that there is room for; returns how many, or -1 if not even one's fit."""
    until = state[TAKEN]
    left, right = state[NEXT_PROBE], state[NEXT_PROBE + 1]
    left_end, n_left = _scan_side(share, group, pairs, plan, tests, state, 0, left, state[PROBES])
    if left_end < state[PROBES]:
        until = group.number[0, left_end]
    right_end, n_right = _scan_side(
        share, group, pairs, plan, tests, state, 1, right, _before(group, 1, right, state[PROBES + 1], until)
    )
    if right_end < state[PROBES + 1] and group.number[1, right_end] < until:
        until = group.number[1, right_end]
        left_end = _before(group, 0, left, left_end, until)
        while n_left > 0 and pairs.probe[0, n_left - 1] >= left_end:
            n_left -= 1
    if until == state[SCANNED]:
        return -1
    state[NEXT_PROBE], state[NEXT_PROBE + 1], state[SCANNED] = left_end, right_end, until
    return _merge(group, pairs, (n_left, n_right))


@kernel
def _emit(results: I64, bells: I64, crew: I64, me: int, pairs: ScanPairs, n: int) -> bool:
    """Add matches to the second gate; False when the crew was stopped."""
    done = 0
    tries = 0
    while done < n:
        reached = add(results, me, pairs.later, pairs.seqs, done, n)
        if reached > done:
            done, tries = reached, 0
            continue
        ring(bells, COLLECTORS_BELL)
        stand(crew, me, ADDS)
        if not idle(crew, tries):
            return False
        tries += 1
    stand(crew, me, RUNNING)
    return True


@kernel
def scan(
    mem: I64, results: I64, bells: I64, crew: I64, sources: Array, plan: ScanPlan, share: ScanShare, group: ScanGroup,
    pairs: ScanPairs, tests: ScanTests, state: I64,
) -> int:  # fmt: skip
    """A processing thread, until everything is read, or an array is too small: then it is called again."""
    me = plan.me
    tries = 0
    while not stopped(crew):
        if state[SCANNED] == state[TAKEN]:
            if not _has_room(share):
                return NEEDS_STORE
            n, head = peek(mem, me, group.slots, group.places, group.times, 0, GROUP)
            if n == 0:
                own = reader_at(mem, me)
                if mem[own + BOUND_TIME] == EVER and mem[own + BOUND_RANK] == EVER:
                    finish(results, me)
                    ring(bells, COLLECTORS_BELL)
                    return DONE
                stand(crew, me, READS)
                await_more(mem, bells, crew, me, tries, _NAP_US)
                tries += 1
                continue
            tries = 0
            stand(crew, me, RUNNING)
            _take(sources, group, share, plan, state, n)
            release(mem, me, head)
        n = _scan_group(share, group, pairs, plan, tests, state)
        if n < 0:
            return NEEDS_PAIRS
        n = _test(share, group, pairs, plan, tests, state, n)
        _place(share, pairs, plan, state, n)
        if not _emit(results, bells, crew, me, pairs, n):
            return STOPPED
        advance(results, me, plan.roles * (state[AT] + state[SCANNED]))
        if state[SCANNED] == state[TAKEN]:
            state[AT] += state[TAKEN]
            state[TAKEN], state[SCANNED] = 0, 0
        ring(bells, COLLECTORS_BELL)
    return STOPPED
