"""Sweeping a sorted batch of probes over sorted runs.

The low ends of the probes' intervals ascend (`make_ascending`); runs are sorted by word. A run has a directory, the
last word of every block (`tops_of`): one pass moves a pointer forward through the directory, and the block that it
finds is read a few probes later, when it has arrived from memory. A pair is one word: the probe's place in the chunk,
which is gate order, above the stored tuple's position (`kernels.batch.pairs`).

`sweep_within` takes one run whose entries have an age, and returns those in the probe's window. Where a batch is much
longer than the window, or a key is heavy, most entries with a fitting word are too old or too new. Entries of one word
lie nearly in the order of their ages, so a whole block of entries is often out of the window: the least and the
greatest age of a block are computed on first use, and such blocks are skipped.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import CHECKED, inlined, kernel
from streamjoin.jit.machine import below_8, below_16, count_bits, emit_8, prefetch, upto_8
from streamjoin.jit.memory import words_at
from streamjoin.kernels.batch.pairs import SEQ_BITS
from streamjoin.kernels.batch.sorting import BLOCK, BLOCK_BITS, sort_entries
from streamjoin.kernels.searching import leap

LO, HI, PROBE, LIVE = range(4)
"""The rows of a side's probes: the interval of words, the place in the chunk, the least position that it matches."""

WORD, SEQ = range(2)
"""The rows of a side's entries: its word and its position."""

RUN_FIELDS = 6
"""Of a run in a table: the side of its probes, the addresses of words, seqs and directory, and their sizes."""

SLACK = 8
"""The words behind an output that may be overwritten."""

_LEAST = -(1 << 63)
_HOPS = 8
_LINE = 8
_AHEAD = 12
_RING = 16
_ALL = 255


@kernel
def _gallop(words: Array, at: int, word: int) -> int:
    """`leap`, as a call: a place that is far away is rare."""
    return leap(words, at, word, BLOCK * _HOPS)


@inlined
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
    while begin + BLOCK <= n and words[begin + BLOCK - 1] < low:
        begin += BLOCK
        hops += 1
        if hops == _HOPS:
            begin = _gallop(words, begin, low)
    if begin + BLOCK <= n:
        block = words[begin : begin + BLOCK]
        smaller = 0
        for k in range(BLOCK):
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
        place = np.uint64(places[i])
        probe = at[place]
        out_lo[i], out_hi[i] = lo[place], hi[place]
        out_probe[i], out_live[i] = probe, min_seq[np.uint64(probe)]
        out_seq[i] = first_seq + places[i]


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
def sort_probes(
    words: Array,
    tags: Array,
    lo: Array,
    hi: Array,
    at: Array,
    min_seq: Array,
    first_seq: int,
    begin: int,
    probes: Array,
    entries: Array,
    ends: Array,
) -> None:
    """Sort tuples by word, given their places, and write their probes and entries from column `begin` on.

    `ends` gets the first and the last low end of those whose interval is not empty, if there are any.
    """
    words, places = sort_entries(words, tags)
    end = begin + words.size
    for i in range(words.size):
        entries[WORD, begin + i] = words[i]
    low, high = probes[LO, begin:end], probes[HI, begin:end]
    arrange(
        places, lo, hi, at, min_seq, first_seq, low, high, probes[PROBE, begin:end], probes[LIVE, begin:end],
        entries[SEQ, begin:end],
    )  # fmt: skip
    make_ascending(low, high)
    first = True
    for i in range(words.size):
        if low[i] <= high[i]:
            ends[1] = low[i]
            if first:
                ends[0] = low[i]
                first = False


@inlined
def _next_block(tops: Array, block: int, low: int) -> int:
    """The first block from `block` on whose last word is not below `low`."""
    n, hops = tops.size, 0
    while block + _LINE <= n:
        smaller = count_bits(below_8(tops, block, low))
        block += smaller
        if smaller < _LINE:
            return block
        hops += 1
        if hops == _HOPS:
            return _gallop(tops, block, low)
    while block < n and tops[block] < low:
        block += 1
    return block


@inlined
def _begin_in(words: Array, block: int, low: int) -> int:
    """The first place from the block on whose word is not below `low`: in the block, or behind it in the last one."""
    begin = block << BLOCK_BITS
    if begin + BLOCK <= words.size:
        return begin + count_bits(below_16(words, begin, low))
    while begin < words.size and words[begin] < low:
        begin += 1
    return begin


@inlined
def _fetch(words: Array, seqs: Array, block: int) -> None:
    at = block << BLOCK_BITS
    for line in range(0, BLOCK, _LINE):
        prefetch(words, at + line)
        prefetch(seqs, at + line)


@kernel
def sweep_run(
    lo: Array,
    hi: Array,
    probes: Array,
    live: Array,
    words: Array,
    seqs: Array,
    tops: Array,
    base: int,
    cursor: Array,
    last: int,
    out: Array,
    n_out: int,
) -> int:
    """Emit the entries of one run from seq live[i] on for the probes i = cursor[0] to `last`; return the output size.

    Stops when the output, of which the last `SLACK` words are spare, is full, with cursor = (next probe, place in the
    run to go on from or -1), and goes on from there when called again.
    """
    capacity = out.size - SLACK
    i, resume = cursor[0], cursor[1]
    n, previous = words.size, _LEAST
    ring = np.empty(_RING, np.int64)
    block, ahead = 0, i
    while i < last:
        while ahead < last and ahead <= i + _AHEAD:
            if lo[ahead] <= hi[ahead]:
                if CHECKED:
                    assert lo[ahead] >= previous, "the low ends of probes must ascend"  # noqa: S101 - checked build
                    previous = lo[ahead]
                block = _next_block(tops, block, lo[ahead])
                _fetch(words, seqs, block)
            ring[ahead & (_RING - 1)] = block
            ahead += 1
        high = hi[i]
        if lo[i] <= high:
            j = _begin_in(words, ring[i & (_RING - 1)], lo[i]) if resume < 0 else resume
            resume = -1
            addend, least = (probes[i] << SEQ_BITS) - base, live[i]
            while j < n:
                if n_out >= capacity:
                    cursor[0], cursor[1] = i, j
                    return n_out
                if j + _LINE <= n:
                    fits = upto_8(words, j, high)
                    mask = fits & ~below_8(seqs, j, least)
                    emit_8(out, n_out, seqs, j, mask, addend)
                    n_out += count_bits(mask)
                    if fits != _ALL:
                        break
                    j += _LINE
                else:
                    if words[j] > high:
                        break
                    out[n_out] = seqs[j] + addend
                    n_out += seqs[j] >= least
                    j += 1
        i += 1
    cursor[0], cursor[1] = i, -1
    return n_out


@kernel
def sweep_batch(
    lo: Array,
    hi: Array,
    probes: Array,
    seqs: Array,
    min_seq: Array,
    upto: Array,
    words: Array,
    run_probes: Array,
    run_seqs: Array,
    tops: Array,
    bases: Array,
    cursor: Array,
    last: int,
    out: Array,
    n_out: int,
) -> int:
    """`sweep_run` for the two sides of one chunk: the run's entries are probes too, and the later of a pair owns it.

    The tuples that came before a probe are those below its `upto`; in a self-join that leaves out itself. `bases` are
    what is subtracted from the positions of the probes' own side and of the run's.
    """
    capacity = out.size - SLACK
    i, resume = cursor[0], cursor[1]
    n, previous = words.size, _LEAST
    block = 0
    while i < last:
        low, high = lo[i], hi[i]
        if low <= high:
            if CHECKED:
                assert low >= previous, "the low ends of probes must ascend"  # noqa: S101 - only in a checked build
                previous = low
            block = _next_block(tops, block, low)
            j = _begin_in(words, block, low) if resume < 0 else resume
            resume = -1
            probe, seq = probes[i], seqs[i]
            while j < n and words[j] <= high:
                if n_out >= capacity:
                    cursor[0], cursor[1] = i, j
                    return n_out
                probe_is_later = run_seqs[j] < upto[probe]
                later = probe if probe_is_later else run_probes[j]
                earlier = run_seqs[j] if probe_is_later else seq
                out[n_out] = (later << SEQ_BITS) + earlier - bases[1 if probe_is_later else 0]
                n_out += min_seq[later] <= earlier and earlier < upto[later]
                j += 1
        i += 1
    cursor[0], cursor[1] = i, -1
    return n_out


@kernel
def sweep_chunk(
    left: Array,
    right: Array,
    left_seqs: Array,
    right_entries: Array,
    right_tops: Array,
    runs: Array,
    ranges: Array,
    min_seq: Array,
    upto: Array,
    bases: Array,
    state: Array,
    out: Array,
    n_out: int,
) -> int:
    """Sweep a range of each side's probes over the other side's runs, and of the left ones over the right ones.

    One call for all of it, as a thread that comes back to the interpreter waits for the others. The rows of `runs` are
    described at `RUN_FIELDS`. `state` is (number of runs that are done, cursor of the next); it is beyond the last run
    when all is done, and otherwise the output is full.
    """
    while state[0] < runs.shape[0]:
        run = runs[state[0]]
        side = run[0]
        probes = left if side == 0 else right
        n_out = sweep_run(
            probes[LO], probes[HI], probes[PROBE], probes[LIVE], words_at(run[1], run[4]), words_at(run[2], run[4]),
            words_at(run[3], run[5]), bases[1 - side], state[1:], ranges[side, 1], out, n_out,
        )  # fmt: skip
        if state[1] < ranges[side, 1]:
            return n_out
        state[0] += 1
        state[1] = ranges[runs[state[0], 0] if state[0] < runs.shape[0] else 0, 0]
        state[2] = -1
    if state[0] == runs.shape[0]:
        n_out = sweep_batch(
            left[LO], left[HI], left[PROBE], left_seqs, min_seq, upto, right_entries[WORD], right[PROBE],
            right_entries[SEQ], right_tops, bases, state[1:], ranges[0, 1], out, n_out,
        )  # fmt: skip
        state[0] += state[1] >= ranges[0, 1]
    return n_out


_SHORT, _LONG = 6, 12
_KNOWN, _TICKS, _SEQS = 0, 1, 3
_COLUMNS = 5


def age_blocks(n: int) -> tuple[Array, Array]:
    """Empty tables of the known ages of the short and the long blocks of `n` entries."""
    return np.zeros(((n >> _SHORT) + 1, _COLUMNS), np.int64), np.zeros(((n >> _LONG) + 1, _COLUMNS), np.int64)


@kernel
def _learn(known: Array, number: int, shift: int, ticks: Array, seqs: Array) -> None:
    begin = number << shift
    end = begin + (1 << shift)
    row = known[number]
    row[_TICKS], row[_TICKS + 1] = ticks[begin:end].min(), ticks[begin:end].max()
    row[_SEQS], row[_SEQS + 1] = seqs[begin:end].min(), seqs[begin:end].max()
    row[_KNOWN] = 1


@inlined
def _outside(
    known: Array, shift: int, at: int, high: int, words: Array, ticks: Array, seqs: Array,
    since: int, until: int, first: int, last: int,
) -> bool:  # fmt: skip
    """Whether a whole block of entries begins at `at`, its words fit, and no entry of it is in the window."""
    length = 1 << shift
    if at & (length - 1) or at + length > words.size or words[at + length - 1] > high:
        return False
    number = at >> shift
    if not known[number, _KNOWN]:
        _learn(known, number, shift, ticks, seqs)
    row = known[number]
    return bool(row[_TICKS + 1] < since or row[_TICKS] > until or row[_SEQS + 1] < first or row[_SEQS] > last)


@kernel
def sweep_within(
    lo: Array,
    hi: Array,
    since: Array,
    until: Array,
    first: Array,
    last: Array,
    words: Array,
    ticks: Array,
    seqs: Array,
    short: Array,
    long: Array,
    cursor: Array,
    out_probe: Array,
    out_place: Array,
) -> int:
    """Emit (probe, place) of the entries that each probe's intervals of words, ticks and seqs hold; return how many.

    The low ends ascend (`sweep.make_ascending`). `short` and `long` are the run's `age_blocks`. Stops at a full output,
    with cursor = (next probe, place in the run where its interval begins, place to go on from or -1), and goes on from
    there when called again.
    """
    capacity = out_probe.size
    i, begin, resume = cursor[0], cursor[1], cursor[2]
    n, n_probes, n_out = words.size, lo.size, 0
    stride = n // max(1, n_probes)
    previous = _LEAST
    while i < n_probes:
        low, high = lo[i], hi[i]
        if low <= high:
            if CHECKED:
                assert low >= previous, "the low ends of probes must ascend"  # noqa: S101 - only in a checked build
                previous = low
            if stride > 1:
                begin = skip(words, ticks, begin, low, stride)
            while begin < n and words[begin] < low:
                begin += 1
            j = begin if resume < 0 else resume
            resume = -1
            t0, t1, s0, s1 = since[i], until[i], first[i], last[i]
            while j < n and words[j] <= high:
                if not j & ((1 << _SHORT) - 1):
                    if _outside(long, _LONG, j, high, words, ticks, seqs, t0, t1, s0, s1):
                        j += 1 << _LONG
                        continue
                    if _outside(short, _SHORT, j, high, words, ticks, seqs, t0, t1, s0, s1):
                        j += 1 << _SHORT
                        continue
                if n_out == capacity:
                    cursor[0], cursor[1], cursor[2] = i, begin, j
                    return n_out
                out_probe[n_out] = i
                out_place[n_out] = j
                tick, seq = ticks[j], seqs[j]
                n_out += (t0 <= tick) & (tick <= t1) & (s0 <= seq) & (seq <= s1)
                j += 1
        i += 1
    cursor[0], cursor[1], cursor[2] = i, begin, -1
    return n_out
