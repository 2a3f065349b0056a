"""Where each tuple of a chunk stands: its position in its own stream, and how many of the other came before."""

from __future__ import annotations

from streamjoin._arrays import Array
from streamjoin.kernels.flags import kernel


@kernel
def stand(
    is_right: Array,
    left_next: int,
    right_next: int,
    own_seq: Array,
    upto: Array,
    left_at: Array,
    right_at: Array,
) -> None:
    """Fill own_seq and upto for every tuple in gate order, and each side's places in that order."""
    nl, nr = 0, 0
    for i in range(is_right.size):
        if is_right[i]:
            own_seq[i] = right_next + nr
            upto[i] = left_next + nl
            right_at[nr] = i
            nr += 1
        else:
            own_seq[i] = left_next + nl
            upto[i] = right_next + nr
            left_at[nl] = i
            nl += 1


@kernel
def filter_ticks(
    probes: Array,
    seqs: Array,
    n: int,
    is_right: Array,
    least: Array,
    left_ticks: Array,
    right_ticks: Array,
    left_base: int,
    right_base: int,
) -> int:
    """Keep the pairs whose earlier tuple is no older than its probe allows; for times that are out of order."""
    kept = 0
    for i in range(n):
        probe, seq = probes[i], seqs[i]
        tick = left_ticks[seq - left_base] if is_right[probe] else right_ticks[seq - right_base]
        probes[kept] = probe
        seqs[kept] = seq
        kept += tick >= least[probe]
    return kept


@kernel
def filter_terms(
    probes: Array,
    seqs: Array,
    n: int,
    is_right: Array,
    place: Array,
    left_lo: Array,
    left_hi: Array,
    right_lo: Array,
    right_hi: Array,
    left_words: Array,
    right_words: Array,
    left_base: int,
    right_base: int,
) -> int:
    """Keep the pairs that satisfy one term; place[p] is where probe p stands among its own side's tuples."""
    kept = 0
    for i in range(n):
        probe, seq = probes[i], seqs[i]
        at = place[probe]
        if is_right[probe]:
            word = left_words[seq - left_base]
            hit = right_lo[at] <= word and word <= right_hi[at]
        else:
            word = right_words[seq - right_base]
            hit = left_lo[at] <= word and word <= left_hi[at]
        probes[kept] = probe
        seqs[kept] = seq
        kept += hit
    return kept
