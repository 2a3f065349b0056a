"""Search in sorted values, near a place that is known."""

from __future__ import annotations

from typing import Any

from streamjoin._arrays import Array
from streamjoin.kernels.flags import melted


@melted
def gallop(values: Array, at: int, bound: Any) -> int:
    """The first place from `at` on in sorted `values` that is at least `bound`: by doubling leaps, then by halves."""
    n = values.size
    step = 1
    while at + step < n and values[at + step] < bound:
        at += step
        step *= 2
    end = min(at + step, n)
    while at < end:
        middle = (at + end) >> 1
        if values[middle] < bound:
            at = middle + 1
        else:
            end = middle
    return at
