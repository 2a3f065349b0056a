"""`cell_join`: the three-step procedure with every scan shared by all threads, as CellJoin does it.

A baseline. For every task of `options={"task": n}` tuples both windows are repartitioned into one part per thread; each
thread scans its part for all tuples of the task, and the pairs are sorted when the last thread is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Pairs, Refine
from streamjoin.joins.batch.stored_words import TwoTermWindows
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import SpecError
from streamjoin.windows.buffer import Restore
from streamjoin.windows.repartitioned import ProbeRanges, RepartitionedScan, Take

Pieces = list[tuple[Array, Array]]

_TASK = 64


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
