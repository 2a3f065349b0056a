"""Sweeping a sorted batch of probes over sorted runs, and putting the pairs found into result order.

The low ends of the probes' intervals ascend (`make_ascending`); runs are sorted by word. One pass moves a pointer
forward through the run, leaping over gaps, so a run much larger than the batch costs a logarithm per probe and one
of the same size costs one step. A pair is (probe, seq): the probe's place in the chunk, which is gate order, and the
stored tuple's position in its own stream.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.flags import CHECKED, kernel, melted
from streamjoin.kernels.machine import prefetch

_INSERTION = 24
_LEAST = -(1 << 63)


_BLOCK = 16
_HOPS = 8
_LINE = 8
_AHEAD = 12


@kernel
def _gallop(words: Array, at: int, word: int) -> int:
    n = words.size
    step = _BLOCK * _HOPS
    while at + step < n and words[at + step] < word:
        at += step
        step *= 2
    high = min(at + step, n)
    while at < high:
        middle = (at + high) >> 1
        if words[middle] < word:
            at = middle + 1
        else:
            high = middle
    return at


@melted
def skip(words: Array, others: Array, begin: int, low: int, stride: int) -> int:
    """A place at or shortly before the first word not below `low`; probes are about `stride` entries apart.

    The entries of `words` and `others` that later probes will read are prefetched, as the run may not fit a cache.
    Near places are found by skipping blocks and counting within one, which vectorises and has one unpredictable
    branch; far ones by galloping.
    """
    n = words.size
    ahead = begin + _AHEAD * stride
    for line in range(0, stride + _LINE, _LINE):
        prefetch(words, ahead + line)
    prefetch(others, ahead)
    hops = 0
    while begin + _BLOCK <= n and words[begin + _BLOCK - 1] < low:
        begin += _BLOCK
        hops += 1
        if hops == _HOPS:
            begin = _gallop(words, begin, low)
    if begin + _BLOCK <= n:
        block = words[begin : begin + _BLOCK]
        smaller = 0
        for k in range(_BLOCK):
            smaller += block[k] < low
        begin += smaller
    return begin


@kernel
def arrange(
    places: Array,
    lo: Array,
    hi: Array,
    at: Array,
    min_seq: Array,
    first_seq: int,
    out_lo: Array,
    out_hi: Array,
    out_probe: Array,
    out_live: Array,
    out_seq: Array,
) -> None:
    """The sweep's columns of each tuple, in the order of its words."""
    for i in range(places.size):
        place = places[i]
        probe = at[place]
        out_lo[i], out_hi[i] = lo[place], hi[place]
        out_probe[i], out_live[i] = probe, min_seq[probe]
        out_seq[i] = first_seq + place


@kernel
def make_ascending(lo: Array, hi: Array) -> None:
    """Lower low ends in place until none is above a later one; empty intervals are not changed.

    Probes sorted by word have ascending intervals as long as the word decides. Where it only finds candidates, tuples
    of one word may have different values, and rounding may swap two neighbours. The pointer of a sweep never goes back,
    so everything a later probe needs must be ahead of it: this adds a few candidates and loses no pair.
    """
    least = np.int64(2**63 - 1)
    for i in range(lo.size - 1, -1, -1):
        if lo[i] <= hi[i]:
            least = min(least, lo[i])
            lo[i] = least


@kernel
def sweep_run(
    lo: Array,
    hi: Array,
    probes: Array,
    live: Array,
    run_words: Array,
    run_seqs: Array,
    cursor: Array,
    last: int,
    out_probe: Array,
    out_seq: Array,
    n_out: int,
) -> int:
    """Emit the entries of one run from seq live[i] on for the probes i = cursor[0] to `last`; return the output size.

    Stops when the output is full, with cursor = (next probe, place in the run where its interval begins, place
    to go on from or -1), and goes on from there when called again.
    """
    capacity = out_probe.size
    i, begin, resume = cursor[0], cursor[1], cursor[2]
    n = run_words.size
    stride = n // max(1, lo.size)
    previous = _LEAST
    while i < last:
        low, high = lo[i], hi[i]
        if low <= high:
            if CHECKED:
                assert low >= previous, "the low ends of probes must ascend"  # noqa: S101 - only in a checked build
                previous = low
            if stride > 1:
                begin = skip(run_words, run_seqs, begin, low, stride)
            while begin < n and run_words[begin] < low:
                begin += 1
            j = begin if resume < 0 else resume
            resume = -1
            probe, least = probes[i], live[i]
            while j < n and run_words[j] <= high:
                if n_out == capacity:
                    cursor[0], cursor[1], cursor[2] = i, begin, j
                    return n_out
                out_probe[n_out] = probe
                out_seq[n_out] = run_seqs[j]
                n_out += run_seqs[j] >= least
                j += 1
        i += 1
    cursor[0], cursor[1], cursor[2] = i, begin, -1
    return n_out


@kernel
def sweep_batch(
    lo: Array,
    hi: Array,
    probes: Array,
    seqs: Array,
    min_seq: Array,
    upto: Array,
    run_words: Array,
    run_probes: Array,
    run_seqs: Array,
    cursor: Array,
    last: int,
    out_probe: Array,
    out_seq: Array,
    n_out: int,
) -> int:
    """`sweep_run` for the two sides of one chunk: the run's entries are probes too, and the later of a pair owns it.

    The tuples that came before a probe are those below its `upto`; in a self-join that leaves out itself.
    """
    capacity = out_probe.size
    i, begin, resume = cursor[0], cursor[1], cursor[2]
    n = run_words.size
    previous = _LEAST
    while i < last:
        low, high = lo[i], hi[i]
        if low <= high:
            if CHECKED:
                assert low >= previous, "the low ends of probes must ascend"  # noqa: S101 - only in a checked build
                previous = low
            while begin < n and run_words[begin] < low:
                begin += 1
            j = begin if resume < 0 else resume
            resume = -1
            probe, seq = probes[i], seqs[i]
            while j < n and run_words[j] <= high:
                if n_out == capacity:
                    cursor[0], cursor[1], cursor[2] = i, begin, j
                    return n_out
                probe_is_later = run_seqs[j] < upto[probe]
                later = probe if probe_is_later else run_probes[j]
                earlier = run_seqs[j] if probe_is_later else seq
                out_probe[n_out] = later
                out_seq[n_out] = earlier
                n_out += min_seq[later] <= earlier and earlier < upto[later]
                j += 1
        i += 1
    cursor[0], cursor[1], cursor[2] = i, begin, -1
    return n_out


@kernel
def count_before(probes: Array, bounds: Array) -> Array:
    """How many pairs belong to a probe before each bound."""
    counts = np.zeros(bounds.size, np.int64)
    for b in range(bounds.size):
        bound = bounds[b]
        n = 0
        for i in range(probes.size):
            n += probes[i] < bound
        counts[b] = n
    return counts


@kernel
def order_pairs(probes: Array, seqs: Array, begin: int, end: int, out_probe: Array, out_seq: Array) -> None:
    """Fill the outputs with the pairs of probes begin to end, by probe, then by seq.

    A counting sort by probe, then each small group by itself. Ranges of probes can be ordered in parallel.
    """
    n_probes = end - begin
    place = np.zeros(n_probes + 1, np.int32)
    for i in range(probes.size):
        p = probes[i] - begin
        if 0 <= p < n_probes:
            place[p + 1] += 1
    for p in range(n_probes):
        place[p + 1] += place[p]
    for i in range(probes.size):
        p = probes[i] - begin
        if 0 <= p < n_probes:
            at = place[p]
            place[p] = at + 1
            out_seq[at] = seqs[i]
    first = 0
    for p in range(n_probes):
        last = place[p]
        for i in range(first, last):
            out_probe[i] = begin + p
        if last - first > _INSERTION:
            out_seq[first:last].sort()
        else:
            for i in range(first + 1, last):
                s = out_seq[i]
                j = i - 1
                while j >= first and out_seq[j] > s:
                    out_seq[j + 1] = out_seq[j]
                    j -= 1
                out_seq[j + 1] = s
        first = last
