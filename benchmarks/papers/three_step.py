"""`three_step`: Kang's procedure as published, the baseline without threads, blocks or an index.

Every tuple scans the whole of the other window, expires its own window and is inserted into it, before the next tuple
is processed (Kang et al.; described in the low-latency handshake join paper, section 2.1, and ScaleJoin, section II).
Nothing is shared between tuples, so the window is read from memory once for each; `nested_loop` does the same
comparisons in blocks that stay in the cache. Pairs are found in result order. Invariant: tuple i compares places
limits[0, i] to limits[1, i]. What expired before it is below, what has not arrived yet is above, so expiring and
inserting only move a limit.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

import streamjoin as sj
from benchmarks.papers.cell_join import TwoTermWindows
from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.joins.base import Chunk, Keep, Pairs, Refine
from streamjoin.kernels.batch.nested import BLOCK, count_two
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore


class PairBuffer:
    """Collects refined pairs of one worker; candidates pass through one block of fixed size."""

    CAPACITY = 1 << 18

    def __init__(self, keep: Keep, room: int = CAPACITY) -> None:
        self.probe = np.empty(room, np.int64)
        self.seq = np.empty(room, np.int64)
        self.n = 0
        self._keep = keep
        self._done: list[tuple[Array, Array]] = []

    def flush(self) -> None:
        """Refine the candidates in the block and empty it."""
        if self.n:
            pairs = self._keep(self.probe[: self.n], self.seq[: self.n])
            self._done.append((pairs[0].copy(), pairs[1].copy()))
            self.n = 0

    def take(self) -> tuple[list[Array], list[Array]]:
        """All pairs, in pieces."""
        self.flush()
        return [probe for probe, _ in self._done], [seq for _, seq in self._done]


@kernel
def _scan(words: Array, words2: Array, bounds: Array, limits: Array, i: int, places: Array, n_out: int) -> int:
    """Append the places that tuple i matches; -1 when they do not fit."""
    unsigned = words.dtype.type
    lo, span, lo2, span2 = bounds[0, i], bounds[1, i], bounds[2, i], bounds[3, i]
    for begin in range(limits[0, i], limits[1, i], BLOCK):
        end = min(begin + BLOCK, limits[1, i])
        hits = count_two(words[begin:end], words2[begin:end], lo, span, lo2, span2)
        if hits == 0:
            continue
        if n_out + hits > places.size:
            return -1
        for j in range(begin, end):
            if (unsigned(words[j] - lo) <= span) & (unsigned(words2[j] - lo2) <= span2):
                places[n_out] = j
                n_out += 1
    return n_out


@kernel
def three_step(
    is_right: Array,
    bounds: Array,
    limits: Array,
    left: tuple[Array, Array],
    right: tuple[Array, Array],
    start: int,
    out_probe: Array,
    out_place: Array,
) -> tuple[int, int]:
    """Take the tuples from `start` on; returns (the next tuple, the number of pairs).

    `left` and `right` are two columns of unsigned words each, `bounds` the low end and span of either term per tuple.
    It stops before a tuple whose pairs would not fit.
    """
    n_out = 0
    for i in range(start, is_right.size):
        end = 0
        if is_right[i]:
            end = _scan(left[0], left[1], bounds, limits, i, out_place, n_out)
        else:
            end = _scan(right[0], right[1], bounds, limits, i, out_place, n_out)
        if end < 0:
            return i, n_out
        for j in range(n_out, end):
            out_probe[j] = i
        n_out = end
    return is_right.size, n_out


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


sj.register_algorithm(ThreeStep.name, lambda bound, *_: ThreeStep(bound))
