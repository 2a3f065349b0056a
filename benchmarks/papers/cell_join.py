"""`cell_join`: the three-step procedure with every scan shared by all threads, as CellJoin does it.

A baseline (see the low-latency handshake join paper, section 2.2.1). For every task of `options={"task": n}` tuples
both windows are repartitioned into one part per thread; each thread scans its part for all tuples of the task, and the
pairs are sorted when the last thread is done. No thread owns tuples, so the work is balanced for any stream, but every
task pays for starting all threads and waiting for the last. Invariant: the parts of a task cover each place that one of
its tuples may match exactly once, in ascending order by thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import streamjoin as sj
from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Pairs, Refine, SidePart
from streamjoin.joins.batch.nested_loop import StoredWords, live_places
from streamjoin.kernels.batch.nested import nested_pairs
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import SpecError
from streamjoin.windows.buffer import Restore
from streamjoin.windows.crew import Crew
from streamjoin.windows.words import unsigned_words

Pieces = list[tuple[Array, Array]]

_TASK = 64
_TERMS = 2


class TwoTermWindows:
    """Both windows of a join that always compares two words; a missing term is always true."""

    def __init__(self, bound: BoundSpec) -> None:
        self.decides = frozenset(range(min(_TERMS, len(bound.terms))))
        self._narrow = all(bound.terms[t].narrow for t in self.decides)
        self._dtype = np.dtype(np.uint32 if self._narrow else np.uint64)
        self.left = StoredWords(_TERMS, self._dtype)
        # A self-join whose roles have the same words stores a tuple once, for both.
        self._shared = bound.has_equal_roles
        self.right = self.left if self._shared else StoredWords(_TERMS, self._dtype)
        self.compared = 0

    def take(self, chunk: Chunk) -> tuple[ProbeRanges, ProbeRanges]:
        """Store a chunk; returns the ranges that its left and its right tuples compare."""
        terms = [self._terms(part) for part in (chunk.left, chunk.right)]
        self.left.append(chunk.left, [word for word, _, _ in terms[0]])
        if not self._shared:
            self.right.append(chunk.right, [word for word, _, _ in terms[1]])
        return (
            self._probes(chunk, chunk.left, terms[0], self.right),
            self._probes(chunk, chunk.right, terms[1], self.left),
        )

    def _terms(self, part: SidePart) -> list[tuple[Array, Array, Array]]:
        words = [unsigned_words(part.encoded.terms[t], self._narrow) for t in sorted(self.decides)]
        zeros = np.zeros(part.n, self._dtype)
        return words + [(zeros, zeros, ~zeros)] * (_TERMS - len(words))

    def _probes(
        self, chunk: Chunk, part: SidePart, terms: list[tuple[Array, Array, Array]], other: StoredWords
    ) -> ProbeRanges:
        first, last = live_places(chunk, part, other.seqs.values, self.decides)
        self.compared += int((last - first).sum())
        bounds = np.stack([bound for _, lo, span in terms for bound in (lo, span)])
        return ProbeRanges((other.words[0].values, other.words[1].values), bounds, first, last)

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        self.left.forget(min(left_min, right_min) if self._shared else left_min)
        if not self._shared:
            self.right.forget(right_min)

    def saved(self) -> Callable[[], None]:
        """Return a function that restores both windows."""
        left, right, compared = self.left.saved(), self.right.saved(), self.compared

        def restore() -> None:
            left()
            right()
            self.compared = compared

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held for the words of both sides."""
        return self.left.nbytes + (0 if self._shared else self.right.nbytes)


Take = Callable[[int, Array, Array], None]
"""Hears of pairs (probe, place) that one thread found: which side's probes they are of, and the two columns."""

_ROOM = 1 << 14


class PairRoom:
    """The output buffers of one thread."""

    def __init__(self) -> None:
        self.probe = np.empty(0, np.int64)
        self.place = np.empty(0, np.int64)

    def fit(self, pairs: int) -> tuple[Array, Array]:
        """Both columns, with room for at least `pairs` pairs."""
        if pairs > self.probe.size:
            self.probe, self.place = (np.empty(max(_ROOM, pairs), np.int64) for _ in range(2))
        return self.probe, self.place


@dataclass(frozen=True)
class ProbeRanges:
    """The probes of one side, and for each the range of places, first to last, in the other side's two word columns."""

    words: tuple[Array, Array]
    bounds: Array  # low end and span of the first term, then of the second
    first: Array
    last: Array

    def pairs(self, rows: tuple[int, int], part: tuple[int, int], room: PairRoom) -> Iterator[tuple[Array, Array]]:
        """The matches of some probes within a part of the places, ascending by probe and place, in pieces.

        The places of a piece are in `room`, where the next piece overwrites them.
        """
        begin, end = rows
        first, last = (np.clip(limits[begin:end], *part) for limits in (self.first, self.last))
        lo, span, lo2, span2 = (row[begin:end] for row in self.bounds)
        out = room.fit(int((last - first).max(initial=0)))
        p = 0
        while p < first.size:
            p, n = nested_pairs(*self.words, lo, span, lo2, span2, first, last, p, first.size, *out)
            yield out[0][:n] + begin, out[1][:n]

    def part(self, rows: tuple[int, int], k: int, n: int) -> tuple[int, int]:
        """The k-th of n equal parts of the places that the probes `rows` may match."""
        low = int(self.first[rows[0] : rows[1]].min(initial=np.iinfo(np.int64).max))
        high = int(self.last[rows[0] : rows[1]].max(initial=0))
        width = max(0, high - low)
        return low + width * k // n, low + width * (k + 1) // n


class RepartitionedScan:
    """Threads that scan for one task after another; one thread is the caller's own."""

    def __init__(self, workers: int) -> None:
        self._n = workers
        self._crew = Crew(workers) if workers > 1 else None
        self._rooms = [PairRoom() for _ in range(workers)]

    def run(self, sides: Sequence[ProbeRanges], rows: Sequence[tuple[int, int]], take: Sequence[Take]) -> None:
        """Run one task: scan all places that the probes `rows` may match. Thread k calls take[k]."""

        def scan(k: int) -> None:
            for side, (probes, probe_range) in enumerate(zip(sides, rows, strict=True)):
                if probe_range[0] < probe_range[1]:
                    for piece in probes.pairs(probe_range, probes.part(probe_range, k, self._n), self._rooms[k]):
                        take[k](side, *piece)

        if self._crew is None:
            scan(0)
        else:
            self._crew.run(scan)

    @property
    def workers(self) -> int:
        """How many threads share a task."""
        return self._n

    def close(self) -> None:
        """End the threads."""
        if self._crew is not None:
            self._crew.close()


class CellJoin:
    """Windows repartitioned over the threads at every task."""

    name: ClassVar[str] = "cell_join"
    options: ClassVar[frozenset[str]] = frozenset({"task"})

    def __init__(self, bound: BoundSpec, workers: int, options: Mapping[str, object]) -> None:
        task = options.get("task", _TASK)
        if not isinstance(task, int) or isinstance(task, bool) or task < 1:
            raise SpecError(f"options={{'task': {task!r}}} of cell_join is not a number of tuples, 1 or more")
        self._task = task
        self._windows = TwoTermWindows(bound)
        self._scan = RepartitionedScan(workers)
        self._tasks = 0
        self.decides = self._windows.decides

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Process the tuples in gate order, one task at a time."""
        sides = self._windows.take(chunk)
        pieces: Pieces = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for begin in range(0, chunk.n, self._task):
            pieces += self._run(chunk, sides, (begin, min(begin + self._task, chunk.n)), refine)
        return Pairs(*(np.concatenate(column) for column in zip(*pieces, strict=True)))

    def _run(
        self, chunk: Chunk, sides: tuple[ProbeRanges, ProbeRanges], task: tuple[int, int], refine: Refine
    ) -> Pieces:
        """One task's pairs, in result order."""
        at = chunk.left.at, chunk.right.at
        seqs = self._windows.right.seqs.values, self._windows.left.seqs.values
        pieces_by_thread: list[Pieces] = [[] for _ in range(self._scan.workers)]

        def taker(k: int) -> Take:
            def take(side: int, probes: Array, places: Array) -> None:
                if probes.size:
                    probe, seq = refine(at[side][probes], seqs[side][places])
                    pieces_by_thread[k].append((probe.copy(), seq.copy()))

            return take

        rows = [(int(begin), int(end)) for begin, end in (np.searchsorted(places, task) for places in at)]
        self._scan.run(sides, rows, [taker(k) for k in range(self._scan.workers)])
        self._tasks += 1
        pieces = [piece for thread_pieces in pieces_by_thread for piece in thread_pieces]
        if not pieces:
            return []
        probe, seq = (np.concatenate(column) for column in zip(*pieces, strict=True))
        # A later thread's part holds later positions: the pairs of one probe are in order already.
        order = np.argsort(probe, kind="stable")
        return [(probe[order], seq[order])]

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        self._windows.forget(left_min, right_min)

    def saved(self) -> Restore | None:
        """Return None: stopped threads cannot be restarted."""
        return None

    def close(self) -> None:
        """End the threads."""
        self._scan.close()

    def counters(self) -> dict[str, int]:
        """Pairs compared, and how often the windows were repartitioned."""
        return {"compared": self._windows.compared, "repartitions": self._tasks}

    @property
    def nbytes(self) -> int:
        """Bytes held for the words of both sides."""
        return self._windows.nbytes


sj.register_algorithm(
    CellJoin.name, lambda bound, choice, workers: CellJoin(bound, workers.n, choice.options), options=CellJoin.options
)
