"""`three_step`: Kang's procedure as published, the baseline without threads, blocks or an index.

Every tuple scans the other window, expires its own window and is inserted into it, before the next tuple is processed.
Pairs are found in result order. `nested_loop` does the same comparisons in blocks that stay in the cache.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, PairBuffer, Pairs, Refine
from streamjoin.joins.batch.stored_words import TwoTermWindows
from streamjoin.kernels.batch.three_step import three_step
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore


class ThreeStep:
    """Probe by scan, expire, insert, tuple by tuple."""

    name: ClassVar[str] = "three_step"

    def __init__(self, bound: BoundSpec) -> None:
        self._windows = TwoTermWindows(bound)
        self.decides = self._windows.decides

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Process the tuples of both sides in gate order."""
        sides = self._windows.take(chunk)
        bounds = np.empty((4, chunk.n), sides[0].bounds.dtype)
        limits = np.empty((2, chunk.n), np.int64)
        for probes, part in zip(sides, (chunk.left, chunk.right), strict=True):
            bounds[:, part.at] = probes.bounds
            limits[0, part.at], limits[1, part.at] = probes.first, probes.last
        is_right = chunk.is_right.astype(np.bool_)
        seqs = self._windows.left.seqs.values, self._windows.right.seqs.values

        def keep(probes: Array, places: Array) -> tuple[Array, Array]:
            pair_seqs = np.empty(places.size, np.int64)
            for side, of in enumerate(seqs):
                by = is_right[probes] == (side == 0)
                pair_seqs[by] = of[places[by]]
            return refine(probes, pair_seqs)

        buffer = PairBuffer(keep)
        start = 0
        while start < chunk.n:
            largest = int(limits[1, start] - limits[0, start])
            if largest > buffer.probe.size:
                buffer.probe, buffer.seq = np.empty(largest, np.int64), np.empty(largest, np.int64)
            out = (start, buffer.probe, buffer.seq)
            start, buffer.n = three_step(is_right, bounds, limits, sides[1].words, sides[0].words, *out)
            buffer.flush()
        empty = np.empty(0, np.int64)
        return Pairs(*(np.concatenate([empty, *pieces]) for pieces in buffer.take()))

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        self._windows.forget(left_min, right_min)

    def saved(self) -> Restore:
        """Return a function that restores both windows."""
        return self._windows.saved()

    def close(self) -> None:
        """Do nothing: the algorithm has no threads of its own."""

    def counters(self) -> dict[str, int]:
        """Pairs compared."""
        return {"compared": self._windows.compared}

    @property
    def nbytes(self) -> int:
        """Bytes held for the words of both sides."""
        return self._windows.nbytes
