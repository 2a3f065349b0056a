"""The sweep's pairs, one word each: collected by each worker, then put into result order by all of them.

Each worker partitions its own pairs into buckets of probes, and then sorts a range of buckets: no worker reads all
pairs. See `kernels.batch.pairs`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.calls import Cut, Each, KernelCalls, Own, Row
from streamjoin.joins.base import Chunk, Pairs, Refine
from streamjoin.kernels.batch.pairs import (
    PROBE_BITS,
    SEQ_BITS,
    count_buckets,
    order_buckets,
    pack_pairs,
    partition_pairs,
    unpack_pairs,
)
from streamjoin.kernels.batch.sweep import SLACK
from streamjoin.windows.workers import Workers, cuts

_LEAST_PART = 8192
_MOST_BUCKET_BITS = 9
_PAIRS_PER_BUCKET = 512


class PairOrder:
    """What the pairs of one chunk have in common: the positions they are counted from, and the size of buckets."""

    def __init__(self, chunk: Chunk, live: tuple[Array, Array], refine: Refine | None, workers: Workers) -> None:
        """`live` are the least positions that the left and the right tuples match; without `refine` all pairs stay."""
        if (chunk.n - 1) >> PROBE_BITS > 0:
            raise AssertionError(f"{chunk.n} tuples are too many for one chunk")
        self.chunk = chunk
        self.refine = refine
        self.workers = workers
        # A left tuple's bounds are of right positions, and the other way round.
        self.bases = np.array([max(0, int(least.min(initial=2**62))) for least in reversed(live)])
        probe_bits = max(1, chunk.n - 1).bit_length()
        bits = min(_MOST_BUCKET_BITS, probe_bits, max(0, (chunk.n // _PAIRS_PER_BUCKET).bit_length()))
        self.shift = SEQ_BITS + probe_bits - bits
        self.buckets = 1 << bits


class PackedPairs:
    """Collects the pairs of one worker in blocks of fixed size; those that need further tests pass them there."""

    CAPACITY = 1 << 18

    def __init__(self, order: PairOrder) -> None:
        self.order = order
        self.n = 0
        self.blocks: list[Array] = []
        self.block: Array = np.empty(0, np.int64)

    def open(self) -> PackedPairs:
        """Itself, with an empty block to write to."""
        self.block, self.n = self.order.workers.memory.take(self.CAPACITY + SLACK), 0
        return self

    def close(self) -> None:
        """Test the pairs of the block and keep those that remain."""
        pairs = self._tested(self.block[: self.n])
        if pairs.size:
            self.blocks.append(pairs)

    def flush(self) -> None:
        """Begin another block."""
        self.close()
        self.open()

    def _tested(self, pairs: Array) -> Array:
        order = self.order
        if order.refine is None:
            return pairs
        if not order.refine.tests:
            order.refine.count(pairs.size)
            return pairs
        probes, seqs = np.empty(pairs.size, np.int64), np.empty(pairs.size, np.int64)
        unpack_pairs(pairs, order.chunk.is_right, order.bases, probes, seqs)
        probes, seqs = order.refine(probes, seqs)
        pack_pairs(probes, seqs, order.chunk.is_right, order.bases, pairs)
        return pairs[: probes.size]


def ordered_pieces(chunk: Chunk, pieces: Sequence[tuple[Array, Array]], workers: Workers) -> Pairs:
    """Pairs in any order, in pieces of (probes, seqs), in result order."""
    total = sum(probes.size for probes, _ in pieces)
    if total < _LEAST_PART:
        probe, seq = (np.concatenate([np.empty(0, np.int64), *(piece[i] for piece in pieces)]) for i in (0, 1))
        order = np.lexsort((seq, probe))
        return Pairs(probe[order], seq[order])
    live = chunk.min_seq[chunk.left.at], chunk.min_seq[chunk.right.at]
    buckets = PairOrder(chunk, live, None, workers)
    pairs = workers.memory.take(total)
    ends = np.cumsum([probes.size for probes, _ in pieces])
    own = (Own([piece[i] for piece in pieces]) for i in (0, 1))
    cut = Cut(pairs, np.append(0, ends[:-1]), ends)
    workers.call(pack_pairs, KernelCalls(len(pieces), *own, chunk.is_right, buckets.bases, cut))
    return ordered(buckets, [pairs[slice(*cut)] for cut in cuts(total, workers.n)])


def ordered(order: PairOrder, blocks: list[Array]) -> Pairs:
    """The pairs of some blocks in result order."""
    memory, workers, chunk = order.workers.memory, order.workers, order.chunk
    counts = np.zeros((max(1, len(blocks)), order.buckets), np.int64)
    if blocks:
        workers.call(count_buckets, KernelCalls(len(blocks), Own(blocks), order.shift, Row(counts)))
    ends = counts.T.cumsum().reshape(counts.shape[::-1]).T
    places = ends - counts
    edges = np.append(places[0], ends[-1, -1])
    n = int(edges[-1])
    buckets, probes, seqs = memory.take(n), memory.take(n), memory.take(n)
    if blocks:
        workers.call(partition_pairs, KernelCalls(len(blocks), Own(blocks), order.shift, Row(places), buckets))
    begins, ends = np.array(bucket_ranges(edges, max(1, min(workers.n, n // _LEAST_PART)))).T
    common = order.shift, chunk.is_right, order.bases, probes, seqs
    workers.call(order_buckets, KernelCalls(len(begins), buckets, edges, Each(begins), Each(ends), *common))
    return Pairs(probes, seqs)


def bucket_ranges(edges: Array, parts: int) -> list[tuple[int, int]]:
    """Cut the buckets into ranges with about the same number of pairs.

    >>> bucket_ranges(np.array([0, 10, 11, 12, 20]), 2)
    [(0, 1), (1, 4)]
    """
    wanted = edges[-1] * np.arange(1, parts) // parts
    inner = np.searchsorted(edges[1:-1], wanted, side="left") + 1
    bounds = np.unique(np.concatenate([[0], inner, [edges.size - 1]]))
    return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
