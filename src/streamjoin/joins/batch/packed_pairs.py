"""The sweep's pairs, one word each: collected by each worker, then put into result order by all of them.

Each worker partitions its own pairs into buckets of probes, and then sorts a range of buckets: no worker reads all
pairs. See `kernels.batch.pairs`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamjoin._arrays import Array
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
from streamjoin.windows.workers import Workers

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
        self.counts: Array = np.zeros(order.buckets, np.int64)
        self.blocks: list[Array] = []
        self.block: Array = np.empty(0, np.int64)

    def open(self) -> PackedPairs:
        """Itself, with a block to write to."""
        self.block = self.order.workers.memory.take(self.CAPACITY + SLACK)
        return self

    def add(self, probes: Array, seqs: Array) -> None:
        """Add pairs that need no test."""
        block = self.order.workers.memory.take(probes.size)
        pack_pairs(probes, seqs, self.order.chunk.is_right, self.order.bases, block)
        self._keep(block)

    def flush(self) -> None:
        """Count and test the pairs of the block, and begin another."""
        if self.n:
            if self._keep(self._tested(self.block[: self.n])):
                self.open()
            self.n = 0

    def _keep(self, pairs: Array) -> bool:
        """Whether there are any pairs, which are kept."""
        if pairs.size:
            count_buckets(pairs, self.order.shift, self.counts)
            self.blocks.append(pairs)
        return pairs.size > 0

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

    def closed(self) -> PackedPairs:
        """Itself, with every pair in `blocks` and no room for more."""
        self._keep(self._tested(self.block[: self.n]))
        return self


def ordered_pieces(chunk: Chunk, pieces: Sequence[tuple[Array, Array]], workers: Workers) -> Pairs:
    """Pairs in any order, in pieces of (probes, seqs), in result order."""
    total = sum(probes.size for probes, _ in pieces)
    if total < _LEAST_PART:
        probe, seq = (np.concatenate([np.empty(0, np.int64), *(piece[i] for piece in pieces)]) for i in (0, 1))
        order = np.lexsort((seq, probe))
        return Pairs(probe[order], seq[order])
    live = chunk.min_seq[chunk.left.at], chunk.min_seq[chunk.right.at]
    buckets = PairOrder(chunk, live, None, workers)
    # A worker packs pieces of its own, about as many pairs as the others.
    ends = np.cumsum([probes.size for probes, _ in pieces])
    owners = (ends - 1) * workers.n // total

    def pack(k: int) -> PackedPairs:
        packed = PackedPairs(buckets)
        for piece in np.flatnonzero(owners == k).tolist():
            packed.add(*pieces[piece])
        return packed

    return ordered(buckets, workers.map(pack, range(workers.n)))


def ordered(order: PairOrder, parts: list[PackedPairs]) -> Pairs:
    """The pairs of all workers in result order."""
    memory, workers, chunk = order.workers.memory, order.workers, order.chunk
    counts = np.stack([part.counts for part in parts])
    ends = counts.T.cumsum().reshape(counts.shape[::-1]).T
    places = ends - counts
    edges = np.append(places[0], ends[-1, -1])
    n = int(edges[-1])
    buckets, probes, seqs = memory.take(n), memory.take(n), memory.take(n)

    def partition(k: int) -> None:
        for block in parts[k].blocks:
            partition_pairs(block, order.shift, places[k], buckets)

    def put_in_order(part: tuple[int, int]) -> None:
        order_buckets(buckets, edges, *part, order.shift, chunk.is_right, order.bases, probes, seqs)

    workers.map(partition, range(len(parts)))
    workers.map(put_in_order, bucket_ranges(edges, max(1, min(workers.n, n // _LEAST_PART))))
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
