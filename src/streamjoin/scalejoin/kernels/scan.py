"""A processing thread of ScaleJoin: reads the first gate, searches its share of the windows, writes to the second.

Algorithm 1 of the paper for any condition, count or time windows. Every thread reads every ready tuple, compares it
with the tuples of the other side that it has stored itself, and stores it if it is its turn: each side's tuples
that can match go round. Matches go to the second gate under the gate position of the later tuple. Positions are
counted by each thread for itself; all see one sequence. Invariant: a pair of tuples in each other's window is compared
once, by the thread that stored the earlier one.

Pairs are found by an index (`_look_up`), or by scanning for up to two terms or for the residual's program alone
(`_scan_group`); what is left of the condition is tested on these pairs. A tuple of a self-join has two roles, left and
right: each looks for matches among the tuples before it in the other role, and has a gate position of its own.

`scan`, and what `scan_by` makes for a kind of index, return to the interpreter only to grow an array, to maintain an
index, and at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.crew import RUNNING, idle, stand, stopped
from streamjoin.jit.flags import inlined, kernel, specialized
from streamjoin.jit.machine import I64, borrow
from streamjoin.jit.memory import load_64, prefetch_at
from streamjoin.kernels.batch.nested import nested_pairs
from streamjoin.kernels.conditions import condition_pairs, registers_of, test_rows
from streamjoin.kernels.times import before
from streamjoin.kernels.trees.task import DONE as FOUND_ALL
from streamjoin.kernels.trees.task import FULL, INSERTS, ON_RIGHT
from streamjoin.kernels.trees.task import PROBES as PROBES_INDEX
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


def _unbound(*arguments: Any) -> Any:
    raise NotImplementedError("only the loops that `specialized` has bound can run")


# Stand-ins, which it replaces.
find: Callable[..., int] = _unbound
task: Callable[..., tuple[int, int, int]] = _unbound

GROUP = 256
"""Tuples taken at a time, at the most: a block of the window in the cache should meet many of them."""

DONE, STOPPED, NEEDS_STORE, NEEDS_PAIRS, NEEDS_LEFT, NEEDS_RIGHT = range(6)
READS, ADDS = 1, 2
PLACES = {READS: "waits for a ready tuple", ADDS: "waits for room in the second gate"}

# A thread's state: the gate position of its group, how many tuples that has and how many are done, each side's next
# position, turn, number of probes and next probe, the comparisons in all, how often the residual's program could not
# decide, and whether both roles of all tuples of the group find the same.
AT, TAKEN, SCANNED, COUNTS, TURNS, PROBES, NEXT_PROBE, COMPARED, UNDECIDED, ALIKE = 0, 1, 2, 3, 5, 7, 9, 11, 12, 13
STATE_WORDS = 14

# What `ends` has of a side: the first place that is live for the other side, the place behind the last, and the number
# of tuples that were stored before those at the places; in an index a tuple has its number.
BEGIN, END, BASE = range(3)
# A group's columns for an index: see `indexes.base.push_task`.
OPS, WORD, LO, HI, NUMBER, LEAST, OWN_LEAST = range(7)

_NAP_US = 10_000
# Lines are fetched this many tuples ahead.
_AHEAD = 8
_INT32 = 1 << 31


class ScanPlan(NamedTuple):
    """What a thread is and does."""

    me: int
    """Its number: as a reader of the first gate, a source of the second, and in the crew."""
    threads: int
    roles: int
    """Of a tuple: 2 in a self-join."""
    one_store: bool
    """Whether tuples are stored once for both roles, in the right one."""
    terms: int
    finding: int
    """How many of the terms, the first ones, find pairs; the others are tested on these."""
    sizes: tuple[int, int]
    """Of both windows, in tuples before the one that looks, or as a length (`kernels.times`)."""
    timed: tuple[bool, bool]


class ScanShare(NamedTuple):
    """What one thread stores: each side's columns, and in `ends` what is live of them."""

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
    tasks: Array
    """The group as columns for an index, without places if there is none."""


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
    return ScanShare(first, second, seqs, times, words, rows, np.zeros((2, 3), np.int64))


def grown(share: ScanShare) -> ScanShare:
    """The share with twice the room."""
    larger = []
    for column in share[:-1]:
        larger.append(np.zeros((2, 2 * column.shape[1], *column.shape[2:]), column.dtype))
        larger[-1][:, : column.shape[1]] = column
    first, second, seqs, times, others, rows = larger
    return ScanShare(first, second, seqs, times, others, rows, share.ends)


def make_group(dtype: Any, others: int, columns: int, *, indexed: bool) -> ScanGroup:
    """Room for one group."""

    def column(kind: Any, *shape: int) -> Array:
        return np.zeros(shape, kind)

    return ScanGroup(
        slots=column(np.int64, GROUP), places=column(np.int64, GROUP), times=column(np.int64, GROUP),
        probe=column(np.int64, GROUP), number=column(np.int64, 2, GROUP), lo=column(dtype, 2, GROUP),
        span=column(dtype, 2, GROUP), lo2=column(dtype, 2, GROUP), span2=column(dtype, 2, GROUP),
        begin=column(np.int64, 2, GROUP), end=column(np.int64, 2, GROUP), others=column(np.int64, 2, GROUP, 2, others),
        rows=column(np.int64, 2, GROUP, columns), tasks=column(np.int64, 7, 2 * GROUP * indexed),
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


# Counting references costs two atomic instructions for each array and call: as much as the rest of a tuple. Functions
# that are inlined here see that there is nothing to count.


@inlined
def _share_alone(share: ScanShare) -> ScanShare:
    return ScanShare(
        borrow(share.first), borrow(share.second), borrow(share.seqs), borrow(share.times), borrow(share.others),
        borrow(share.rows), borrow(share.ends),
    )  # fmt: skip


@inlined
def _group_alone(group: ScanGroup) -> ScanGroup:
    return ScanGroup(
        borrow(group.slots), borrow(group.places), borrow(group.times), borrow(group.probe), borrow(group.number),
        borrow(group.lo), borrow(group.span), borrow(group.lo2), borrow(group.span2), borrow(group.begin),
        borrow(group.end), borrow(group.others), borrow(group.rows), borrow(group.tasks),
    )  # fmt: skip


@inlined
def _pairs_alone(pairs: ScanPairs) -> ScanPairs:
    return ScanPairs(borrow(pairs.probe), borrow(pairs.place), borrow(pairs.later), borrow(pairs.seqs))


@kernel
def _move_up(column: Array, side: int, begin: int, end: int) -> None:
    """Move stored tuples to the front, where nothing of them lies."""
    if column.shape[1] > 0:
        column[side, : end - begin] = column[side, begin:end]


@inlined
def _least(share: ScanShare, plan: ScanPlan, side: int) -> int:
    """The first place of those stored on a side that is live."""
    own: int = share.ends[side, BEGIN]
    return min(own, share.ends[1 - side, BEGIN]) if plan.one_store else own


@kernel
def _has_room(share: ScanShare, plan: ScanPlan) -> bool:
    """Whether both sides can take a whole group; live tuples are moved to the front first."""
    for side in range(1 if plan.one_store else 0, 2):
        begin, end = _least(share, plan, side), share.ends[side, END]
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
        if plan.one_store:
            _move_up(share.rows, 0, begin, end)
            share.ends[0, BEGIN] -= begin
        share.ends[side, BEGIN] -= begin
        share.ends[side, END] -= begin
        share.ends[side, BASE] += begin
    return True


@kernel
def _unsigned(value: int, narrow: bool) -> Any:
    """A word, or a bound of words, as an unsigned number of the same order; `windows.words.unsigned_words`."""
    if narrow:
        return np.uint64(max(-_INT32, min(_INT32 - 1, value)) + _INT32)
    return np.uint64(value) ^ np.uint64(1 << 63)


@inlined
def _stored(plan: ScanPlan, side: int) -> int:
    """Where what a probe of a side looks among is stored."""
    return 1 if plan.one_store else 1 - side


@inlined
def _expire(share: ScanShare, plan: ScanPlan, side: int, upto: int, time: int) -> None:
    """Drop the tuples that are outside the window of a probe of one side."""
    other, stored = 1 - side, _stored(plan, side)
    begin, end = share.ends[other, BEGIN], share.ends[stored, END]
    if plan.timed[other]:
        least = before(time, plan.sizes[other])
        while begin < end and share.times[stored, begin] < least:
            begin += 1
    else:
        while begin < end and share.seqs[stored, begin] < upto - plan.sizes[other]:
            begin += 1
    share.ends[other, BEGIN] = begin


@inlined
def _look(
    part: int, group: ScanGroup, share: ScanShare, plan: ScanPlan, state: I64, i: int, role: int, side: int
) -> None:
    """Record what the tuple of a line's part is compared with."""
    unsigned = share.first.dtype.type
    narrow = share.first.itemsize == 4
    stored = _stored(plan, side)
    _expire(share, plan, side, state[COUNTS + 1 - side], group.times[i])
    begin, end = share.ends[1 - side, BEGIN], share.ends[stored, END]
    k = state[PROBES + side]
    state[PROBES + side] = k + 1
    group.probe[i], group.number[side, k] = k, i
    matches = load_64(part + 8 * IS_VALID) != 0
    at = part + 8 * WORDS
    if group.tasks.shape[1] > 0:
        task = i * plan.roles + role
        group.tasks[OPS, task] = (ON_RIGHT if side == 1 else 0) | (PROBES_INDEX if matches else 0)
        for row in range(3):
            group.tasks[WORD + row, task] = load_64(at + 8 * row)
        group.tasks[LEAST, task] = share.ends[stored, BASE] + begin
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
    group.begin[side, k] = begin
    group.end[side, k] = end if matches else begin
    if group.tasks.shape[1] == 0:
        state[COMPARED] += group.end[side, k] - begin


@inlined
def _store(
    part: int, group: ScanGroup, share: ScanShare, plan: ScanPlan, state: I64, i: int, role: int, side: int
) -> None:
    """Count the tuple of a line's part, and store it if that is for this thread."""
    unsigned = share.first.dtype.type
    narrow = share.first.itemsize == 4
    task = i * plan.roles + role
    seq = state[COUNTS + side]
    state[COUNTS + side] = seq + 1
    if group.tasks.shape[1] > 0:
        own = 1 if plan.one_store else side
        group.tasks[OWN_LEAST, task] = share.ends[own, BASE] + _least(share, plan, own)
    if load_64(part + 8 * IS_VALID) == 0:
        return
    turn = state[TURNS + side]
    state[TURNS + side] = turn + 1 if turn + 1 < plan.threads else 0
    if turn != plan.me:
        return
    at = part + 8 * WORDS
    end = share.ends[1 if plan.one_store else side, END]
    for column in range(share.rows.shape[2]):
        share.rows[side, end, column] = load_64(at + 24 * plan.terms + 8 * column)
    if plan.one_store and side == 0:
        return
    for term in range(plan.terms):
        word = load_64(at)
        at += 24
        if term >= plan.finding:
            share.others[side, end, term - plan.finding] = word
        elif term == 0:
            share.first[side, end] = unsigned(_unsigned(word, narrow))
        else:
            share.second[side, end] = unsigned(_unsigned(word, narrow))
    share.seqs[side, end], share.times[side, end] = seq, group.times[i]
    share.ends[side, END] = end + 1
    if group.tasks.shape[1] > 0:
        group.tasks[OPS, task] |= INSERTS
        group.tasks[NUMBER, task] = share.ends[side, BASE] + end


@inlined
def _finds_alike(group: ScanGroup, k: int, finding: int) -> bool:
    """Whether the same is found for both roles of a tuple of a self-join that is stored once."""
    first = group.lo[0, k] == group.lo[1, k] and group.span[0, k] == group.span[1, k]
    second = finding < 2 or (group.lo2[0, k] == group.lo2[1, k] and group.span2[0, k] == group.span2[1, k])
    window: bool = group.begin[0, k] == group.begin[1, k] and group.end[0, k] == group.end[1, k]
    return first and second and window


@kernel
def _take(sources: Array, group: ScanGroup, share: ScanShare, plan: ScanPlan, state: I64, n: int) -> None:
    """Expire, record what each tuple is compared with, and store this thread's own."""
    sources, share, group, state = borrow(sources), _share_alone(share), _group_alone(group), borrow(state)
    width = 8 * (WORDS + 3 * plan.terms + share.rows.shape[2])
    state[PROBES], state[PROBES + 1] = 0, 0
    state[ALIKE] = plan.one_store and plan.finding > 0
    for i in range(n):
        ahead = min(i + _AHEAD, n - 1)
        prefetch_at(sources[group.slots[ahead], LINES] + group.places[ahead] * sources[group.slots[ahead], LINE])
        slot = group.slots[i]
        side = sources[slot, SIDE]
        part = sources[slot, LINES] + group.places[i] * sources[slot, LINE] + 8 * PARTS
        for role in range(plan.roles):
            _look(part + role * width, group, share, plan, state, i, role, side + role)
        if state[ALIKE] != 0:
            state[ALIKE] = _finds_alike(group, i, plan.finding)
        for role in range(plan.roles):
            _store(part + role * width, group, share, plan, state, i, role, side + role)
        if plan.roles == 1:
            # The other side may have no more tuples for long: what none that comes now could match goes.
            _expire(share, plan, 1 - side, state[COUNTS + side], group.times[i])
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
            program, group.rows[side], share.rows[1 - side], registers, ranges, begin, end,
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
    group, pairs = _group_alone(group), _pairs_alone(pairs)
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
    share, group, pairs = _share_alone(share), _group_alone(group), _pairs_alone(pairs)
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
            m, decided = test_rows(program, group.rows[side, k], share.rows[1 - side], registers, places, m)
            state[UNDECIDED] += not decided
        for i in range(m):
            pairs.later[kept], pairs.seqs[kept] = key, places[i]
            kept += 1
        begin = end
    return kept


@kernel
def _place(share: ScanShare, pairs: ScanPairs, plan: ScanPlan, state: I64, n: int) -> None:
    """Give matches the gate position of the later and the position of the earlier tuple."""
    share, pairs = _share_alone(share), _pairs_alone(pairs)
    for i in range(n):
        key = pairs.later[i]
        number = state[AT] + (key >> 1)
        pairs.later[i] = number if plan.roles == 1 else number << 1 | (key & 1)
        pairs.seqs[i] = share.seqs[_stored(plan, key & 1), pairs.seqs[i]]


@kernel
def _scan_group(
    _: tuple[I64, I64], share: ScanShare, group: ScanGroup, pairs: ScanPairs, plan: ScanPlan, tests: ScanTests,
    state: I64,
) -> int:  # fmt: skip
    """Find the matches of the next tuples that there is room for; returns how many, or less than 0: what is needed."""
    until = state[TAKEN]
    left, right = state[NEXT_PROBE], state[NEXT_PROBE + 1]
    left_end, n_left = _scan_side(share, group, pairs, plan, tests, state, 0, left, state[PROBES])
    if left_end < state[PROBES]:
        until = group.number[0, left_end]
    if state[ALIKE] != 0:
        right_end, n_right = left_end, n_left
        pairs.probe[1, :n_right] = pairs.probe[0, :n_left]
        pairs.place[1, :n_right] = pairs.place[0, :n_left]
    else:
        right_end, n_right = _scan_side(
            share, group, pairs, plan, tests, state, 1, right, _before(group, 1, right, state[PROBES + 1], until)
        )
    if right_end < state[PROBES + 1] and group.number[1, right_end] < until:
        until = group.number[1, right_end]
        left_end = _before(group, 0, left, left_end, until)
        while n_left > 0 and pairs.probe[0, n_left - 1] >= left_end:
            n_left -= 1
    if until == state[SCANNED]:
        return -NEEDS_PAIRS
    state[NEXT_PROBE], state[NEXT_PROBE + 1], state[SCANNED] = left_end, right_end, until
    return _merge(group, pairs, (n_left, n_right))


def _look_up(
    indexes: tuple[I64, I64], share: ScanShare, group: ScanGroup, pairs: ScanPairs, plan: ScanPlan, _: ScanTests,
    state: I64,
) -> int:  # fmt: skip
    """`_scan_group` by an index of each side, or one for both roles."""
    share, group, pairs = _share_alone(share), _group_alone(group), _pairs_alone(pairs)
    tasks = group.tasks
    code, reached, n = task(
        *indexes, tasks[OPS], tasks[WORD], tasks[LO], tasks[HI], tasks[NUMBER], tasks[LEAST],
        tasks[OWN_LEAST], pairs.later, pairs.seqs, state[NEXT_PROBE], plan.roles * state[TAKEN],
    )  # fmt: skip
    state[NEXT_PROBE], state[SCANNED] = reached, reached // plan.roles
    if n == 0 and code != FOUND_ALL:
        return -(NEEDS_PAIRS + code - FULL)
    state[COMPARED] += n
    kept = 0
    for i in range(n):
        at = pairs.later[i]
        number, side = at // plan.roles, tasks[OPS, at] & ON_RIGHT
        place = pairs.seqs[i] - share.ends[_stored(plan, side), BASE]
        # As a right one, a tuple of a self-join finds itself where its left role has an index of its own.
        pairs.later[kept], pairs.seqs[kept] = number << 1 | side, place
        kept += place < group.end[side, group.probe[number]]
    return kept


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


def _scan(
    mem: I64, results: I64, bells: I64, crew: I64, sources: Array, indexes: tuple[I64, I64], plan: ScanPlan,
    share: ScanShare, group: ScanGroup, pairs: ScanPairs, tests: ScanTests, state: I64,
) -> int:  # fmt: skip
    """A processing thread, until everything is read, or something is needed: then it is called again."""
    share, group = _share_alone(share), _group_alone(group)
    pairs = _pairs_alone(pairs)
    me = plan.me
    tries = 0
    while not stopped(crew):
        if state[SCANNED] == state[TAKEN]:
            if not _has_room(share, plan):
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
        n = find(indexes, share, group, pairs, plan, tests, state)
        if n < 0:
            return -n
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


scan = specialized(_scan, "scan", kernel, find=_scan_group)


@cache
def scan_by(kind: str, task: Callable[..., tuple[int, int, int]]) -> Any:
    """`scan` with indexes of a kind, whose fused kernel is `task`."""
    look_up = specialized(_look_up, f"look_up_{kind}", kernel, task=task)
    return specialized(_scan, f"scan_{kind}", kernel, find=look_up)
