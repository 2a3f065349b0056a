"""The places of a chunk's tuples and of its pairs, written by all workers: each has a range of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Pairs
from streamjoin.kernels.calls import Cut, Each, KernelCalls
from streamjoin.kernels.gather import sides_of_pairs
from streamjoin.kernels.positions import stand
from streamjoin.windows.workers import Workers, cuts

# Fewer rows are not worth a thread.
_LEAST_PART = 1 << 13


def row_ranges(n: int, workers: Workers) -> list[tuple[int, int]]:
    """Ranges of `n` rows, one for each worker."""
    return cuts(n, min(workers.n, n // _LEAST_PART))


def placed(
    is_right: Array, counts: tuple[int, int], first: tuple[int, int], windows: tuple[int, int], workers: Workers
) -> tuple[Array, Array, Array, Array, Array]:
    """The positions of tuples in gate order, what came before them on the other side, and each side's places.

    The third array has the least positions that they match in count windows of these sizes.
    """
    n, memory = is_right.size, workers.memory
    own_seq, upto, min_seq = memory.take(n), memory.take(n), memory.take(n)
    left_at, right_at = memory.take(counts[0]), memory.take(counts[1])
    edges = np.array([begin for begin, _ in row_ranges(n, workers)] + [n])
    rights = np.append(0, np.cumsum([np.count_nonzero(is_right[begin:end]) for begin, end in pairwise(edges)]))
    lefts = edges - rights
    cut, of_left, of_right = ((part[:-1], part[1:]) for part in (edges, lefts, rights))
    workers.call(
        stand,
        KernelCalls(
            edges.size - 1, Cut(is_right, *cut), Each(edges[:-1]), Each(first[0] + lefts[:-1]),
            Each(first[1] + rights[:-1]), *windows, Cut(own_seq, *cut), Cut(upto, *cut), Cut(min_seq, *cut),
            Cut(left_at, *of_left), Cut(right_at, *of_right),
        ),
    )  # fmt: skip
    return own_seq, upto, min_seq, left_at, right_at


def split_pairs(pairs: Pairs, chunk: Chunk, left: Array, right: Array, workers: Workers) -> None:
    """Write the left and the right position of each pair."""
    begins, ends = np.array(row_ranges(pairs.probe.size, workers)).T
    probe, seq, to_left, to_right = (Cut(each, begins, ends) for each in (pairs.probe, pairs.seq, left, right))
    calls = KernelCalls(len(begins), probe, seq, chunk.is_right, chunk.own_seq, to_left, to_right)
    workers.call(sides_of_pairs, calls)
