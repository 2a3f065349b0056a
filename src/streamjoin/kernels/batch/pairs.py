"""Pairs as single words, and their way into result order.

A pair is (probe << SEQ_BITS) + seq - base: as numbers, pairs are in result order. The base is the least position of the
seq's side that the chunk can match. Pairs come in the order of words and are first partitioned into buckets of probes
that follow each other, each worker its own pairs; then every bucket, which fits a cache, is sorted by itself.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import sort_8_across

SEQ_BITS = 43
PROBE_BITS = 63 - SEQ_BITS
_SEQ_MASK = (1 << SEQ_BITS) - 1
_LANES = 8
_INSERTION = 24


@kernel
def pack_pairs(probes: Array, seqs: Array, is_right: Array, bases: Array, out: Array) -> None:
    """The pairs as single words; bases[0] is of the left side's positions."""
    for i in range(probes.size):
        base = bases[0] if is_right[probes[i]] else bases[1]
        out[i] = (probes[i] << SEQ_BITS) + seqs[i] - base


@kernel
def unpack_pairs(pairs: Array, is_right: Array, bases: Array, probes: Array, seqs: Array) -> None:
    """The probes and positions of pairs."""
    for i in range(pairs.size):
        probe = pairs[i] >> SEQ_BITS
        probes[i] = probe
        seqs[i] = (pairs[i] & _SEQ_MASK) + (bases[0] if is_right[probe] else bases[1])


@kernel
def count_buckets(pairs: Array, shift: int, counts: Array) -> None:
    """Add the number of pairs of each bucket, which is a pair's leading bits, to `counts`."""
    for i in range(pairs.size):
        counts[np.uint64(pairs[i] >> shift)] += 1


@kernel
def partition_pairs(pairs: Array, shift: int, places: Array, out: Array) -> None:
    """Write each pair to the next place of its bucket; `places` moves on."""
    for i in range(pairs.size):
        bucket = np.uint64(pairs[i] >> shift)
        at = np.uint64(places[bucket])
        places[bucket] += 1
        out[at] = pairs[i]


@kernel
def order_buckets(
    pairs: Array,
    edges: Array,
    first: int,
    last: int,
    shift: int,
    is_right: Array,
    bases: Array,
    probes: Array,
    seqs: Array,
) -> None:
    """Write the probes and positions of the buckets `first` to `last` in result order; edges[b] is where b begins.

    A counting sort by probe, then each probe's few pairs by themselves.
    """
    n_probes = 1 << (shift - SEQ_BITS)
    place = np.empty(n_probes + 1, np.int64)
    grouped, ordered = np.empty(_LANES, np.int64), np.empty(_LANES, np.int64)
    for bucket in range(first, last):
        begin, end = edges[bucket], edges[bucket + 1]
        size = end - begin
        if grouped.size < size + _LANES:
            grouped, ordered = np.empty(2 * size + _LANES, np.int64), np.empty(2 * size + _LANES, np.int64)
        least = bucket * n_probes
        place[:] = 0
        for i in range(begin, end):
            place[np.uint64((pairs[i] >> SEQ_BITS) - least + 1)] += 1
        for group in range(n_probes):
            place[group + 1] += place[group]
        for i in range(begin, end):
            p = np.uint64((pairs[i] >> SEQ_BITS) - least)
            at = place[p]
            place[p] = at + 1
            grouped[np.uint64(at)] = pairs[i]
        if 2 * size < n_probes:
            # Most groups have one pair or none.
            _insert(grouped, 0, size, ordered)
        else:
            _order_groups(grouped, place, n_probes, ordered)
        for i in range(size):
            pair = ordered[i]
            probe = pair >> SEQ_BITS
            probes[begin + i] = probe
            seqs[begin + i] = (pair & _SEQ_MASK) + (bases[0] if is_right[np.uint64(probe)] else bases[1])


@kernel
def _order_groups(grouped: Array, ends: Array, n: int, ordered: Array) -> None:
    """Sort every group by itself into `ordered`; the groups end at `ends`.

    A small group is sorted in a vector register, and written with arbitrary words behind it, which the next overwrites.
    """
    begin = 0
    for group in range(n):
        end = ends[group]
        if end - begin <= _LANES:
            sort_8_across(ordered, grouped, begin, end - begin)
        elif end - begin > _INSERTION:
            for i in range(begin, end):
                ordered[i] = grouped[i]
            ordered[begin:end].sort()
        else:
            _insert(grouped, begin, end, ordered)
        begin = end


@kernel
def _insert(grouped: Array, begin: int, end: int, ordered: Array) -> None:
    """Sort by insertion into `ordered`."""
    for i in range(begin, end):
        pair = grouped[i]
        j = i - 1
        while j >= begin and ordered[np.uint64(j)] > pair:
            ordered[np.uint64(j + 1)] = ordered[np.uint64(j)]
            j -= 1
        ordered[np.uint64(j + 1)] = pair
