"""ScaleJoin as a stream: sources, a gate, n processing threads, a second gate, a consumer, each a thread of a crew.

Algorithm 1 of the paper on its benchmark, a band over two 32-bit words. A processing thread reads what is ready,
compares it with its share of the other side's window, and stores the tuples whose turn is its own: each side's in turn,
so that both windows are shared evenly. What it finds goes to the second gate under one number, the place of the later
tuple in gate order above that of the earlier one: the consumer sees one sequence, whatever the interleaving. Invariant:
a pair of tuples in each other's window is compared once, by the thread that stored the earlier one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.atomics import load
from streamjoin.jit.crew import RUNNING, idle, stand
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64, cycles
from streamjoin.kernels.batch.nested import nested_pairs
from streamjoin.scalejoin.kernels.gate import add, advance, read
from streamjoin.scalejoin.kernels.members import finish
from streamjoin.scalejoin.kernels.nodes import BOUND_RANK, BOUND_TIME, EVER, reader_at

GROUP = 256
"""Ready tuples taken at a time, at the most: a block of the window in the cache should meet many of them."""

_DISTANCE = 31  # bits of the distance between two tuples of a pair
_PRIME = np.uint64(1_000_003)
_MANY = 1 << 20

WAITS_READY, WAITS_ROOM, WAITS_DUE, WAITS_RESULT = 1, 2, 3, 4
PLACES = {
    WAITS_READY: "waits for a ready tuple",
    WAITS_ROOM: "waits for room in a gate",
    WAITS_DUE: "waits until its next tuple is due",
    WAITS_RESULT: "waits for a result",
}


class Pool(NamedTuple):
    """All tuples by number: time, side, two words; and when each was due, in cycles."""

    time: Array
    side: Array
    x: Array
    y: Array
    arrived: Array


class Share(NamedTuple):
    """What one thread stores: for each side words, times and places in gate order, from the first to the last end."""

    x: Array
    y: Array
    time: Array
    place: Array
    ends: Array


class Probes(NamedTuple):
    """Room for a group: for each side the lowest words and the range of places of each probe, and its number."""

    x: Array
    y: Array
    first: Array
    last: Array
    number: Array
    span_x: Array
    span_y: Array


class Role(NamedTuple):
    """Which reader, source and share a thread is; how many there are; window; where it starts; length of a slice."""

    number: int
    threads: int
    window: int
    start: int
    """The place of the stream's first tuple in gate order: what is stored already lies before it."""
    slice_: int
    """Comparisons are counted by slices of this length of the tuples' time."""


class Room(NamedTuple):
    """Room for the numbers of a group, and for what it finds."""

    numbers: Array
    keys: Array
    later: Array
    found: Array
    places: Array


def make_room(pairs: int) -> Room:
    """Room for one group, which may find `pairs` pairs."""
    return Room(np.empty(GROUP, np.int64), *(np.empty(pairs, np.int64) for _ in range(4)))


def make_share(capacity: int) -> Share:
    """An empty share; `capacity` tuples per side, live and expired."""
    x, y = (np.zeros((2, capacity), np.uint32) for _ in range(2))
    time, place = (np.zeros((2, capacity), np.int64) for _ in range(2))
    return Share(x, y, time, place, np.zeros((2, 2), np.int64))


def make_probes(band_x: int, band_y: int) -> Probes:
    """Room for one group of probes with a band on each word."""
    words = [np.zeros((2, GROUP), np.uint32) for _ in range(2)]
    places = [np.zeros((2, GROUP), np.int64) for _ in range(3)]
    return Probes(*words, *places, *(np.full(GROUP, 2 * band, np.uint32) for band in (band_x, band_y)))


@kernel
def _make_room(share: Share) -> None:
    """Move the live tuples to the front of a side that could not take a whole group."""
    for side in range(2):
        first, last = share.ends[side, 0], share.ends[side, 1]
        if last + GROUP > share.x.shape[1]:
            for i in range(first, last):
                share.x[side, i - first] = share.x[side, i]
                share.y[side, i - first] = share.y[side, i]
                share.time[side, i - first] = share.time[side, i]
                share.place[side, i - first] = share.place[side, i]
            share.ends[side, 0], share.ends[side, 1] = 0, last - first


@kernel
def _take_group(
    pool: Pool, share: Share, probes: Probes, numbers: I64, n: int, role: Role, turn: I64, at: int, work: I64
) -> None:
    """Expire, record the range that each tuple is compared with, and store this thread's tuples."""
    _make_room(share)
    counts = (0, 0)
    for i in range(n):
        number = numbers[i]
        side = pool.side[number]
        other = 1 - side
        time = pool.time[number]
        first, last = share.ends[other, 0], share.ends[other, 1]
        while first < last and share.time[other, first] < time - role.window:
            first += 1
        share.ends[other, 0] = first
        k = counts[side]
        counts = (counts[0] + other, counts[1] + side)
        probes.number[side, k] = i
        probes.first[side, k], probes.last[side, k] = first, last
        probes.x[side, k] = np.uint32(pool.x[number] - (probes.span_x[k] >> np.uint32(1)))
        probes.y[side, k] = np.uint32(pool.y[number] - (probes.span_y[k] >> np.uint32(1)))
        work[min(time // role.slice_, work.size - 1)] += last - first
        if turn[side] == role.number:
            end = share.ends[side, 1]
            share.x[side, end], share.y[side, end] = pool.x[number], pool.y[number]
            share.time[side, end], share.place[side, end] = time, at + i
            share.ends[side, 1] = end + 1
        turn[side] = turn[side] + 1 if turn[side] + 1 < role.threads else 0
    for side in range(2):
        if counts[side] < GROUP:
            probes.number[side, counts[side]] = -1


@kernel
def _pair_key(later: int, earlier: int) -> int:
    return (later << _DISTANCE) | ((1 << _DISTANCE) - 1 - (later - earlier))


@kernel
def _scan(share: Share, probes: Probes, side: int, at: int, keys: I64, begin: int, found: I64, places: I64) -> int:
    """Compare one side's probes with the other's share; keys go behind `begin`. Returns their end, or -1: no room."""
    other = 1 - side
    count = 0
    while count < GROUP and probes.number[side, count] >= 0:
        count += 1
    probe = 0
    while probe < count:
        probe, n = nested_pairs(
            share.x[other], share.y[other], probes.x[side], probes.span_x, probes.y[side], probes.span_y,
            probes.first[side], probes.last[side], probe, count, found, places,
        )  # fmt: skip
        if begin + n > keys.size or (n == 0 and probe < count):
            return -1
        for j in range(n):
            keys[begin + j] = _pair_key(at + probes.number[side, found[j]], share.place[other, places[j]])
        begin += n
    return begin


@kernel
def _emit(gate: I64, crew: I64, me: int, slot: int, keys: I64, numbers: I64, n: int) -> bool:
    """Add sorted keys to the second gate; False when the crew was stopped."""
    done = 0
    tries = 0
    while done < n:
        reached = add(gate, slot, keys, numbers, done, n)
        tries = 0 if reached > done else tries + 1
        done = reached
        if tries > 0:
            stand(crew, me, WAITS_ROOM)
            if not idle(crew, tries):
                return False
    stand(crew, me, RUNNING)
    return True


@kernel
def _meet(
    pool: Pool, share: Share, probes: Probes, room: Room, n: int, role: Role, turn: I64, at: int, work: I64
) -> int:
    """One group: what it finds goes into room.keys, sorted; returns how many, or -1 when they do not fit."""
    _take_group(pool, share, probes, room.numbers, n, role, turn, at, work)
    count = _scan(share, probes, 0, at, room.keys, 0, room.found, room.places)
    if count >= 0:
        count = _scan(share, probes, 1, at, room.keys, count, room.found, room.places)
    if count > 1:
        room.keys[:count].sort()
    for j in range(count):
        room.later[j] = room.numbers[(room.keys[j] >> _DISTANCE) - at]
    return count


@kernel
def process(
    gates: tuple[I64, I64], crew: I64, me: int, role: Role, pool: Pool, share: Share, probes: Probes, room: Room,
    total: int, work: I64,
) -> bool:  # fmt: skip
    """One processing thread, until it has read `total` tuples; `work` counts its comparisons by slice of time.

    False when it was stopped, or when a group found more pairs than there is room for.
    """
    slots, times = np.empty(GROUP, np.int64), np.empty(GROUP, np.int64)
    turn = np.zeros(2, np.int64)
    at = role.start
    end = at + total
    tries = 0
    while at < end:
        n = read(gates[0], role.number, slots, room.numbers, times)
        if n == 0:
            stand(crew, me, WAITS_READY)
            if not idle(crew, tries):
                return False
            tries += 1
            continue
        tries = 0
        stand(crew, me, RUNNING)
        count = _meet(pool, share, probes, room, n, role, turn, at, work)
        if count < 0 or not _emit(gates[1], crew, me, role.number, room.keys, room.later, count):
            return False
        at += n
        advance(gates[1], role.number, at << _DISTANCE)
    finish(gates[1], role.number)
    return True


@kernel
def feed(gate: I64, crew: I64, me: int, slot: int, pool: Pool, own: I64, times: I64, paced: bool) -> int:
    """A source: add its tuples, when they are due if `paced`; returns how many it added.

    A tuple that is not paced is due when there is room for it. `times` are those of the tuples `own`.
    """
    done = 0
    tries = 0
    while done < own.size:
        end = min(done + 64, own.size)
        now = cycles()
        if paced:
            end = done
            while end < own.size and end < done + 64 and pool.arrived[own[end]] <= now:
                end += 1
        else:
            for i in range(done, end):
                pool.arrived[own[i]] = now
        reached = add(gate, slot, times, own, done, end)
        if reached > done:
            done = reached
            tries = 0
            continue
        stand(crew, me, WAITS_DUE if end == done else WAITS_ROOM)
        # A source that only waits for a due time yields the processor.
        if not idle(crew, _MANY if paced else tries):
            return done
        tries += 1
    finish(gate, slot)
    stand(crew, me, RUNNING)
    return done


@kernel
def collect(gate: I64, crew: I64, me: int, pool: Pool, delays: I64) -> tuple[int, int]:
    """The consumer: reads all results and records the delay of each after its later tuple, in cycles, if it fits.

    Returns how many there were and a digest of their sequence.
    """
    slots, numbers, keys = (np.empty(GROUP, np.int64), np.empty(GROUP, np.int64), np.empty(GROUP, np.int64))
    own = reader_at(gate, 0)
    count = 0
    digest = np.uint64(0)
    tries = 0
    while True:
        n = read(gate, 0, slots, numbers, keys)
        now = cycles()
        for i in range(n):
            digest = digest * _PRIME + np.uint64(keys[i])
            if count + i < delays.size:
                delays[count + i] = now - pool.arrived[numbers[i]]
        count += n
        if n > 0:
            tries = 0
            continue
        if load(gate, own + BOUND_TIME) == EVER and load(gate, own + BOUND_RANK) == EVER:
            return count, int(np.int64(digest))
        stand(crew, me, WAITS_RESULT)
        if not idle(crew, tries):
            return count, int(np.int64(digest))
        tries += 1
