"""Search in sorted values: by halves, or near a place that is known."""

from __future__ import annotations

from typing import Any

from streamjoin._arrays import Array
from streamjoin.jit.flags import inlined, kernel

# Words that fit into the nearest cache together with their counts.
_BLOCK = 1024


@inlined
def first_from(values: Array, at: int, end: int, bound: Any) -> int:
    """The first place from `at` on in sorted `values` that is at least `bound`, or `end`: by halves."""
    while at < end:
        middle = (at + end) >> 1
        if values[middle] < bound:
            at = middle + 1
        else:
            end = middle
    return at


@inlined
def leap(values: Array, at: int, bound: Any, step: int) -> int:
    """The first place from `at` on in sorted `values` that is at least `bound`: by leaps from `step` on that double."""
    n = values.size
    while at + step < n and values[at + step] < bound:
        at += step
        step *= 2
    return first_from(values, at, min(at + step, n), bound)


@inlined
def gallop(values: Array, at: int, bound: Any) -> int:
    """The first place from `at` on in sorted `values` that is at least `bound`, which is most likely near."""
    return leap(values, at, bound, 1)


@kernel
def count_upto(points: Array, words: Array, out: Array) -> None:
    """out[i]: how many of a few `points` are at most words[i]; comparing with each, as vectors, beats searching."""
    for begin in range(0, words.size, _BLOCK):
        own, counts = words[begin : begin + _BLOCK], out[begin : begin + _BLOCK]
        counts[:] = 0
        for point in points:
            for i in range(own.size):
                counts[i] += own[i] >= point
