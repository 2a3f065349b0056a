"""The three-step procedure: a tuple scans the other window, its own window expires, the tuple joins it.

One tuple after another, both sides in arrival order, each over the whole of the other window (Kang et al.; described
in the low-latency handshake join paper, section 2.1, and ScaleJoin, section II). Nothing is shared between tuples, so
the window is read from memory once for each. Invariant: tuple i compares places limits[0, i] to limits[1, i]. What
expired before it is below, what has not arrived yet is above, so expiring and inserting only move a limit.
"""

from __future__ import annotations

from streamjoin._arrays import Array
from streamjoin.kernels.batch.nested import BLOCK, count_two
from streamjoin.kernels.flags import kernel


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
