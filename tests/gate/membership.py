"""Sources and readers that join a ScaleGate and leave it while others work: everybody sees one sorted sequence."""

from __future__ import annotations

import threading

import numpy as np

from benchmarks.papers.gate_ends import ADDS, PLACES, READS
from streamjoin.jit.crew import idle, stand
from streamjoin.scalejoin.gate import GateArena
from streamjoin.scalejoin.kernels import members
from streamjoin.scalejoin.kernels.nodes import NIL
from streamjoin.windows.crew import Crew

LIVES = 6
SENDERS = 2
READERS = 2
Row = tuple[int, int, int]


class Troupe:
    """Two threads that are one source after another, readers that stay, one that comes and goes."""

    def __init__(self, seed: int, ring: int, n: int) -> None:
        self.seed, self.n = seed, n
        # One source stays and never sends: it keeps the gate from running ahead of those who join. A finished source's
        # slot is free once readers stand elsewhere, so there is one for each of them.
        self.gate = GateArena(1 + SENDERS + READERS + 1, READERS + 1, ring)
        self.lasting = self.gate.add_source(1 << 20)
        self.crew = Crew(SENDERS + READERS + 1, PLACES)
        self.progress = [0] * SENDERS
        self.turn = threading.Lock()
        self.sent: list[list[Row]] = [[] for _ in range(SENDERS)]
        self.got: list[list[Row]] = [[] for _ in range(READERS)]
        self.visits: list[list[Row]] = []
        self.left = SENDERS

    def wait(self, k: int, place: int, tries: int) -> bool:
        stand(self.crew.words, k, place)
        return idle(self.crew.words, tries)

    def send(self, k: int) -> None:
        rng = np.random.default_rng([self.seed, k])
        for life in range(LIVES):
            rank = 100 * k + life
            tries = 0
            while (slot := members.add_source(self.gate.mem, rank)) == NIL:
                # All slots hold nodes of finished sources that somebody has still to read.
                self.pass_on(k, self.progress[k] + 1)
                if not self.wait(k, ADDS, tries):
                    return
                tries += 1
            begin = self.gate.clock(slot)
            times = np.sort(rng.integers(max(begin, 0), max(begin, 0) + self.n, self.n))
            self.add(k, slot, times, rank)
            self.sent[k] += [(int(time), rank, place) for place, time in enumerate(times)]
            self.gate.finish(slot)
            self.pass_on(k, int(times[-1]))
        self.pass_on(k, 1 << 40)
        with self.turn:
            if self.left == 1:
                self.gate.finish(self.lasting)
            self.left -= 1

    def pass_on(self, k: int, time: int) -> None:
        """Let the source that stays follow the slower of the two."""
        with self.turn:
            self.progress[k] = max(self.progress[k], time)
            self.gate.advance(self.lasting, min(self.progress))

    def add(self, k: int, slot: int, times: np.ndarray, rank: int) -> None:
        done, tries = 0, 0
        payload = (np.int64(rank) << 32) + np.arange(times.size)
        while done < times.size:
            reached = self.gate.add(slot, times, payload, done)
            tries = tries + 1 if reached == done else 0
            done = reached
            # The room is given back by readers, who wait for the source that stays.
            self.pass_on(k, int(times[max(0, done - 1)]))
            if tries and not self.wait(k, ADDS, tries):
                return

    def receive(self, k: int, reader: int) -> None:
        tries = 0
        while len(self.got[reader]) < SENDERS * LIVES * self.n:
            rows = self.take(reader, 1 + tries % 7)
            self.got[reader] += rows
            tries = 0 if rows else tries + 1
            if not rows and not self.wait(k, READS, tries):
                return

    def visit(self, k: int) -> None:
        """Join, read a little, leave."""
        for _ in range(LIVES):
            reader = self.gate.add_reader()
            rows: list[Row] = []
            for tries in range(20):
                rows += self.take(reader, 5)
                if not self.wait(k, READS, tries):
                    return
            self.gate.remove_reader(reader)
            self.visits.append(rows)

    def take(self, reader: int, most: int) -> list[Row]:
        _, payload, times = self.gate.read(reader, most)
        return [(int(t), int(p) >> 32, int(p) & 0xFFFFFFFF) for t, p in zip(times, payload, strict=True)]

    def step(self, k: int) -> None:
        if k < SENDERS:
            self.send(k)
        elif k < SENDERS + READERS:
            self.receive(k, k - SENDERS)
        else:
            self.visit(k)


def check_members(seed: int, ring: int, n: int) -> None:
    """Raise where a reader's sequence is not the sorted one, or a visitor's not a piece of it."""
    troupe = Troupe(seed, ring, n)
    troupe.gate.remove_reader(READERS)
    troupe.crew.run(troupe.step)
    troupe.crew.close()
    wanted = sorted(row for rows in troupe.sent for row in rows)
    assert len(wanted) == SENDERS * LIVES * n
    for got in troupe.got:
        assert got == wanted
    for rows in troupe.visits:
        begin = wanted.index(rows[0]) if rows else 0
        assert wanted[begin : begin + len(rows)] == rows
