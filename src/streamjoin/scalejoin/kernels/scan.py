"""A processing thread of ScaleJoin: reads the first gate, scans its share of the windows, writes to the second.

Algorithm 1 of the paper for any two exact terms, count or time windows. Every thread reads every ready tuple, compares
it with the tuples of the other side that it has stored itself, and stores it if it is its turn: each side's tuples
that can match go round. Matches go to the second gate under the gate position of the later tuple. Positions are
counted by each thread for itself; all see one sequence. Invariant: a pair of tuples in each other's window is compared
once, by the thread that stored the earlier one.

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
from streamjoin.kernels.times import before
from streamjoin.scalejoin.kernels.gate import add, advance, peek, release
from streamjoin.scalejoin.kernels.members import finish
from streamjoin.scalejoin.kernels.nodes import BOUND_RANK, BOUND_TIME, EVER, reader_at
from streamjoin.scalejoin.kernels.rings import (
    COLLECTORS_BELL,
    IS_VALID,
    LINE_WORDS,
    LINES,
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
# position, turn, number of probes and next probe, and the comparisons in all.
AT, TAKEN, SCANNED, COUNTS, TURNS, PROBES, NEXT_PROBE, COMPARED = 0, 1, 2, 3, 5, 7, 9, 11
STATE_WORDS = 12

_NAP_US = 10_000
_INT32 = 1 << 31


class ScanPlan(NamedTuple):
    """What a thread is and does."""

    me: int
    """Its number: as a reader of the first gate, a source of the second, and in the crew."""
    threads: int
    terms: int
    sizes: tuple[int, int]
    """Of both windows, in tuples or as a length (`kernels.times`)."""
    timed: tuple[bool, bool]


class ScanShare(NamedTuple):
    """What one thread stores: for each side words, positions and times, from the first to the last of `ends`."""

    first: Array
    second: Array
    seqs: Array
    times: Array
    ends: Array


class ScanGroup(NamedTuple):
    """The tuples of a group: as the gate gives them; and as probes, by side, with what they match and where."""

    slots: Array
    places: Array
    times: Array
    number: Array
    lo: Array
    span: Array
    lo2: Array
    span2: Array
    begin: Array
    end: Array


class ScanPairs(NamedTuple):
    """Room for the matches of some probes of each side, and for all in gate order."""

    probe: Array
    place: Array
    later: Array
    seqs: Array


def make_share(capacity: int, dtype: Any) -> ScanShare:
    """An empty share; `capacity` tuples per side, live and expired."""

    def column(kind: Any) -> Array:
        return np.zeros((2, capacity), kind)

    return ScanShare(column(dtype), column(dtype), column(np.int64), column(np.int64), np.zeros((2, 2), np.int64))


def grown(share: ScanShare) -> ScanShare:
    """The share with twice the room."""
    larger = make_share(2 * share.seqs.shape[1], share.first.dtype.type)
    for side in range(2):
        begin, end = share.ends[side]
        for old, new in zip(share[:4], larger[:4], strict=True):
            new[side, : end - begin] = old[side, begin:end]
        larger.ends[side, 1] = end - begin
    return larger


def make_group(dtype: Any) -> ScanGroup:
    """Room for one group."""

    def column(kind: Any, *shape: int) -> Array:
        return np.zeros(shape, kind)

    return ScanGroup(
        slots=column(np.int64, GROUP), places=column(np.int64, GROUP), times=column(np.int64, GROUP),
        number=column(np.int64, 2, GROUP), lo=column(dtype, 2, GROUP), span=column(dtype, 2, GROUP),
        lo2=column(dtype, 2, GROUP), span2=column(dtype, 2, GROUP), begin=column(np.int64, 2, GROUP),
        end=column(np.int64, 2, GROUP),
    )  # fmt: skip


def make_pairs(capacity: int) -> ScanPairs:
    """Room for `capacity` matches of each side."""
    probe, place = (np.empty((2, capacity), np.int64) for _ in range(2))
    return ScanPairs(probe, place, np.empty(2 * capacity, np.int64), np.empty(2 * capacity, np.int64))


@kernel
def _has_room(share: ScanShare) -> bool:
    """Whether both sides can take a whole group; live tuples are moved to the front first."""
    for side in range(2):
        begin, end = share.ends[side, 0], share.ends[side, 1]
        if end + GROUP <= share.seqs.shape[1]:
            continue
        if 2 * (end - begin) + GROUP > share.seqs.shape[1]:
            return False
        for i in range(begin, end):
            share.first[side, i - begin] = share.first[side, i]
            share.second[side, i - begin] = share.second[side, i]
            share.seqs[side, i - begin] = share.seqs[side, i]
            share.times[side, i - begin] = share.times[side, i]
        share.ends[side, 0], share.ends[side, 1] = 0, end - begin
    return True


@kernel
def _unsigned(value: int, narrow: bool) -> Any:
    """A word, or a bound of words, as an unsigned number of the same order; `windows.words.unsigned_words`."""
    if narrow:
        return np.uint64(max(-_INT32, min(_INT32 - 1, value)) + _INT32)
    return np.uint64(value) ^ np.uint64(1 << 63)


@kernel
def _expire(share: ScanShare, side: int, plan: ScanPlan, upto: int, time: int) -> None:
    """Drop the tuples of one side that are outside the window of a tuple of the other."""
    begin, end = share.ends[side, 0], share.ends[side, 1]
    if plan.timed[side]:
        least = before(time, plan.sizes[side])
        while begin < end and share.times[side, begin] < least:
            begin += 1
    else:
        while begin < end and share.seqs[side, begin] < upto - plan.sizes[side]:
            begin += 1
    share.ends[side, 0] = begin


@kernel
def _take(sources: Array, group: ScanGroup, share: ScanShare, plan: ScanPlan, state: I64, n: int) -> None:
    """Expire, record what each tuple is compared with, and store this thread's own."""
    unsigned = share.first.dtype.type
    narrow = share.first.itemsize == 4
    state[PROBES], state[PROBES + 1] = 0, 0
    for i in range(n):
        slot = group.slots[i]
        side = sources[slot, SIDE]
        other = 1 - side
        line = sources[slot, LINES] + group.places[i] * (8 * LINE_WORDS)
        own, upto = state[COUNTS + side], state[COUNTS + other]
        state[COUNTS + side] = own + 1
        _expire(share, other, plan, upto, group.times[i])
        valid = load_64(line + 8 * IS_VALID) != 0
        k = state[PROBES + side]
        state[PROBES + side] = k + 1
        group.number[side, k] = i
        group.begin[side, k] = share.ends[other, 0]
        word = load_64(line + 8 * WORDS)
        lo, hi = load_64(line + 8 * (WORDS + 1)), load_64(line + 8 * (WORDS + 2))
        matches = valid and lo <= hi
        group.lo[side, k] = unsigned(_unsigned(lo, narrow))
        group.span[side, k] = unsigned(_unsigned(hi, narrow) - _unsigned(lo, narrow))
        word2 = 0
        if plan.terms > 1:
            word2 = load_64(line + 8 * (WORDS + 3))
            lo, hi = load_64(line + 8 * (WORDS + 4)), load_64(line + 8 * (WORDS + 5))
            matches = matches and lo <= hi
            group.lo2[side, k] = unsigned(_unsigned(lo, narrow))
            group.span2[side, k] = unsigned(_unsigned(hi, narrow) - _unsigned(lo, narrow))
        group.end[side, k] = share.ends[other, 1] if matches else share.ends[other, 0]
        state[COMPARED] += group.end[side, k] - group.begin[side, k]
        if valid:
            if state[TURNS + side] == plan.me:
                end = share.ends[side, 1]
                share.first[side, end] = unsigned(_unsigned(word, narrow))
                share.second[side, end] = unsigned(_unsigned(word2, narrow))
                share.seqs[side, end], share.times[side, end] = own, group.times[i]
                share.ends[side, 1] = end + 1
            state[TURNS + side] = (state[TURNS + side] + 1) % plan.threads
    state[TAKEN], state[SCANNED] = n, 0
    state[NEXT_PROBE], state[NEXT_PROBE + 1] = 0, 0


@kernel
def _scan_side(
    share: ScanShare, group: ScanGroup, pairs: ScanPairs, plan: ScanPlan, side: int, begin: int, end: int
) -> tuple[int, int]:
    """The matches of one side's probes from `begin` to `end`; returns the first that did not fit, and how many."""
    other = 1 - side
    second = share.second[other] if plan.terms > 1 else share.second[other][:0]
    return nested_pairs(
        share.first[other], second, group.lo[side], group.span[side], group.lo2[side], group.span2[side],
        group.begin[side], group.end[side], begin, end, pairs.probe[side], pairs.place[side],
    )  # fmt: skip


@kernel
def _before(group: ScanGroup, side: int, begin: int, end: int, number: int) -> int:
    """The first probe of a side from `begin` on that is not before tuple `number` of the group."""
    while begin < end and group.number[side, begin] < number:
        begin += 1
    return begin


@kernel
def _merge(share: ScanShare, group: ScanGroup, pairs: ScanPairs, at: int, counts: tuple[int, int]) -> int:
    """Put both sides' matches into gate order; returns how many there are."""
    i, j, n = 0, 0, 0
    while i < counts[0] or j < counts[1]:
        side = 0
        if i == counts[0] or (
            j < counts[1] and group.number[1, pairs.probe[1, j]] < group.number[0, pairs.probe[0, i]]
        ):
            side = 1
        k = j if side else i
        pairs.later[n] = at + group.number[side, pairs.probe[side, k]]
        pairs.seqs[n] = share.seqs[1 - side, pairs.place[side, k]]
        n += 1
        i, j = i + 1 - side, j + side
    return n


@kernel
def _scan_group(share: ScanShare, group: ScanGroup, pairs: ScanPairs, plan: ScanPlan, state: I64) -> int:
    """Find the matches of the next tuples that there is room for; returns how many, or -1 if not even one's fit."""
    until = state[TAKEN]
    left, right = state[NEXT_PROBE], state[NEXT_PROBE + 1]
    left_end, n_left = _scan_side(share, group, pairs, plan, 0, left, state[PROBES])
    if left_end < state[PROBES]:
        until = group.number[0, left_end]
    right_end, n_right = _scan_side(
        share, group, pairs, plan, 1, right, _before(group, 1, right, state[PROBES + 1], until)
    )
    if right_end < state[PROBES + 1] and group.number[1, right_end] < until:
        until = group.number[1, right_end]
        left_end = _before(group, 0, left, left_end, until)
        while n_left > 0 and pairs.probe[0, n_left - 1] >= left_end:
            n_left -= 1
    if until == state[SCANNED]:
        return -1
    state[NEXT_PROBE], state[NEXT_PROBE + 1], state[SCANNED] = left_end, right_end, until
    return _merge(share, group, pairs, state[AT], (n_left, n_right))


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
    pairs: ScanPairs, state: I64,
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
        n = _scan_group(share, group, pairs, plan, state)
        if n < 0:
            return NEEDS_PAIRS
        if not _emit(results, bells, crew, me, pairs, n):
            return STOPPED
        advance(results, me, state[AT] + state[SCANNED])
        if state[SCANNED] == state[TAKEN]:
            state[AT] += state[TAKEN]
            state[TAKEN], state[SCANNED] = 0, 0
        ring(bells, COLLECTORS_BELL)
    return STOPPED
