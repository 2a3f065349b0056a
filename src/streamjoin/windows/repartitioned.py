"""A scan of windows that are repartitioned for every task, one part per thread.

This is how CellJoin shares a nested loop (see the low-latency handshake join paper, section 2.2.1). No thread owns
tuples, so the work is balanced for any stream, but every task pays for starting all threads and waiting for the
last. Invariant: the parts of a task cover each place that one of its tuples may match exactly once, in ascending
order by thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.batch.nested import nested_two
from streamjoin.windows.crew import Crew

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
            p, n = nested_two(*self.words, lo, span, lo2, span2, first, last, p, first.size, *out)
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
