"""ScaleGate under many threads: histories, and whether the sequential gate could have given them; a program as well.

Every call is stamped by one shared counter before and after. What a reader got must be the sorted sequence of all
tuples, whole. A tuple that came out was ready: every source had at least begun the call that let it pass. A tuple that
did not come out was not ready: some source had not ended that call before the reader asked.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.gate_ends import ADDS, PLACES, READS
from streamjoin.jit import atomics
from streamjoin.jit.crew import idle, stand
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.scalejoin.gate import GateArena
from streamjoin.scalejoin.kernels import gate as scalegate
from streamjoin.scalejoin.kernels.members import finish
from streamjoin.windows.crew import Crew
from tests.gate.membership import check_members

BEGUN, ENDED, CLOCK_AFTER, ADDED = 0, 1, 2, 3
TAKEN = 2
EVER = (1 << 63) - 1


@kernel
def _send(
    mem: I64, crew: I64, me: int, stamp: I64, slot: int, times: I64, payload: I64, pieces: I64, steps: I64
) -> int:
    """Add a column in the given pieces, where a negative one only moves the clock to the next time; note every call."""
    done, noted, tries, k = 0, 0, 0, 0
    told = -1
    while done < times.size:
        piece = pieces[k % pieces.size]
        steps[noted, BEGUN] = atomics.add(stamp, 0, 1)
        if piece < 0:
            scalegate.advance(mem, slot, times[done])
            reached, clock = done, times[done]
        else:
            reached = scalegate.add(mem, slot, times, payload, done, min(done + piece, times.size))
            clock = times[max(0, reached - 1)]
        steps[noted, ENDED] = atomics.add(stamp, 0, 1)
        k += 1
        if clock > told or reached > done:
            steps[noted, CLOCK_AFTER], steps[noted, ADDED] = clock, reached
            told = clock
            noted += 1
            done, tries = reached, 0
            continue
        stand(crew, me, ADDS)
        if not idle(crew, tries):
            return noted
        tries += 1
    steps[noted, BEGUN] = atomics.add(stamp, 0, 1)
    finish(mem, slot)
    steps[noted, ENDED] = atomics.add(stamp, 0, 1)
    steps[noted, CLOCK_AFTER], steps[noted, ADDED] = EVER, done
    return noted + 1


@kernel
def _receive(
    mem: I64, crew: I64, me: int, stamp: I64, reader: int, slots: I64, payload: I64, times: I64, room: int, steps: I64
) -> int:
    """Take tuples, `room` at a time, until the columns are full; note every call that fits the notes."""
    got, noted, tries = 0, 0, 0
    while got < slots.size:
        end = min(got + room, slots.size)
        begun = atomics.add(stamp, 0, 1)
        n = scalegate.read(mem, reader, slots[got:end], payload[got:end], times[got:end])
        ended = atomics.add(stamp, 0, 1)
        got += n
        if noted < steps.shape[0]:
            steps[noted, BEGUN], steps[noted, ENDED], steps[noted, TAKEN] = begun, ended, got
            noted += 1
        if n > 0:
            tries = 0
            continue
        stand(crew, me, READS)
        if not idle(crew, tries):
            return noted
        tries += 1
    return noted


@dataclass
class History:
    """What was sent, what every reader got, and when each call ran."""

    ranks: list[int]
    sent: list[I64]
    calls: list[I64]
    got: list[tuple[I64, I64, I64]]
    reads: list[I64]
    room: int


def record(seed: int, sources: int, readers: int, ring: int, n: int) -> History:
    """Run sources and readers as threads over one gate."""
    rng = np.random.default_rng(seed)
    gate = GateArena(sources, readers, ring)
    ranks = rng.permutation(sources).tolist()
    slots = [gate.add_source(rank) for rank in ranks]
    # Few distinct times: many ties, between sources and within one.
    sent = [np.sort(rng.integers(0, rng.integers(1, 2 * n), rng.integers(0, n))) for _ in slots]
    total = sum(times.size for times in sent)
    pieces = [rng.integers(-1, 2 * ring, 16) for _ in slots]
    for each in pieces:
        each[0] = 1
    stamp = np.zeros(8, np.int64)
    calls = [np.empty((2 * times.size + 2, 4), np.int64) for times in sent]
    got = [(np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64)) for _ in range(readers)]
    reads = [np.empty((4 * total + 16, 3), np.int64) for _ in range(readers)]
    room = int(rng.integers(1, 8))
    crew = Crew(sources + readers, PLACES)

    def step(k: int) -> None:
        if k < sources:
            order = np.arange(sent[k].size)
            noted = _send(gate.mem, crew.words, k, stamp, slots[k], sent[k], order, pieces[k], calls[k])
            calls[k] = calls[k][:noted]
        else:
            r = k - sources
            noted = _receive(gate.mem, crew.words, k, stamp, r, *got[r], room, reads[r])
            reads[r] = reads[r][:noted]

    crew.run(step)
    crew.close()
    return History(ranks, sent, calls, got, reads, room)


def check(history: History) -> None:
    """Raise where no sequential gate could have given the history."""
    ranks = history.ranks
    keys = sorted(
        (int(time), ranks[slot], position, slot)
        for slot, times in enumerate(history.sent)
        for position, time in enumerate(times)
    )
    wanted = [(slot, position, time) for time, _, position, slot in keys]
    # For each source and tuple: when the call that let the tuple pass began, and when it ended.
    begun, ended = (np.empty((len(ranks), len(keys)), np.int64) for _ in range(2))
    for slot, calls in enumerate(history.calls):
        clocks = np.maximum.accumulate(calls[:, CLOCK_AFTER])
        for i, (time, rank, position, own) in enumerate(keys):
            first = np.searchsorted(clocks, time, side="left" if rank <= ranks[slot] else "right")
            if own == slot:
                first = max(first, np.searchsorted(calls[:, ADDED], position, side="right"))
            begun[slot, i], ended[slot, i] = calls[first, BEGUN], calls[first, ENDED]
    can_pass, must_pass = begun.max(axis=0, initial=-1), ended.max(axis=0, initial=-1)
    for (slots, positions, times), reads in zip(history.got, history.reads, strict=True):
        assert list(zip(slots.tolist(), positions.tolist(), times.tolist(), strict=True)) == wanted
        before = 0
        for start, stop, taken in reads.tolist():
            if taken > before:
                assert can_pass[taken - 1] < stop, "a tuple came out before it was ready"
            if taken - before < history.room and taken < len(keys):
                assert must_pass[taken] > start, "a ready tuple was held back"
            before = taken


def check_many(runs: int, n: int) -> None:
    """Random numbers of sources and readers, rings from the smallest on."""
    rng = np.random.default_rng(runs)
    for seed in range(runs):
        sources, readers = rng.integers(1, 6), rng.integers(1, 4)
        check(record(seed, int(sources), int(readers), int(2 ** rng.integers(1, 5)), n))


if __name__ == "__main__":
    check_many(int(sys.argv[1]), int(sys.argv[2]))
    for seed in range(int(sys.argv[1]) // 4):
        check_members(seed, ring=2 << seed % 4, n=20)
    print("held")
