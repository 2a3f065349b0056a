"""Sorting what a gate let out by side: which side each tuple is of, each side's times, and where its row lies."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.kernels.flags import kernel
from streamjoin.kernels.machine import I64

Array = np.ndarray[Any, np.dtype[Any]]


@kernel
def count_sources(slots: I64, counts: I64) -> None:
    """How many tuples each source gave."""
    for i in range(slots.size):
        counts[slots[i]] += 1


@kernel
def split_sides(
    slots: I64, places: I64, times: I64, side_of: I64, begins: I64, is_right: Array, ticks: tuple[I64, I64],
    rows: tuple[I64, I64],
) -> None:  # fmt: skip
    """Each side's times, and rows as places counted from where the source's rows begin among its side's."""
    left = 0
    right = 0
    for i in range(slots.size):
        slot = slots[i]
        if side_of[slot]:
            is_right[i] = True
            ticks[1][right], rows[1][right] = times[i], begins[slot] + places[i]
            right += 1
        else:
            is_right[i] = False
            ticks[0][left], rows[0][left] = times[i], begins[slot] + places[i]
            left += 1
