"""Outer, semi and anti joins: when a tuple is gone, which tuples come out then, and where.

A tuple's age is its time, or its position in its side where the window counts tuples. It leaves a window of a size once
the clock, which is the bound of times to come or the number of tuples of its side, is more than that size ahead: it is
gone then, and no tuple to come can match it. Bounds are saturated, as times may be at either end of int64.

The embedded engine finds the tuples that leave within a chunk by kernels (`kernels/kinds/marks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.clock import NEVER, less, plus


def gone_below(clock: int, size: int, *, itself: bool = False) -> int:
    """The age below which tuples are gone.

    `itself`: the next tuple, which looks for others by count, is of the same stream and takes a place in the window.
    """
    return less(clock, size) + itself


def gone_in_order(bound: int, newest: int, size: int, other: int | None) -> int:
    """`gone_below` of a time window where tuples of another side come out as well, in the order of the gate.

    `other` is the other side's time window, None if it counts. With two different windows the bound may pass a tuple
    while an earlier one of the other side is not decided, and the next tuple may leave both behind: then a tuple waits
    until none of the other side that is earlier can be undecided, or the `newest` tuple finds it gone.
    """
    both = NEVER if other is None else min(gone_below(bound, size), gone_below(bound, other))
    return max(gone_below(newest, size), both)


def outcome(how: str, matched: Array, decided: Array) -> tuple[Array, Array]:
    """Which tuples come out, and which never will; the others wait.

    A tuple is decided if nothing to come can match it, or change its partner where it is to have one.
    """
    if how == "semi":
        return matched, decided & ~matched
    if how == "anti":
        return decided & ~matched, matched
    if how == "inner":
        return decided & matched, decided & ~matched
    return decided, np.zeros(decided.size, np.bool_)


@dataclass(frozen=True)
class Places:
    """The new tuples of a batch in gate order, to find where tuples leave; `ticks` are those of each side, sorted."""

    first: int
    firsts: tuple[int, int]
    ticks: tuple[Array, Array]
    self_join: bool

    def by_time(self, ticks: Array, window: int) -> Array:
        """The gate position of the first new tuple that is later than a tuple's time plus `window`."""
        last = plus(ticks, window)
        sides = self.ticks[:1] if self.self_join else self.ticks
        position = self.first + sum(np.searchsorted(own, last, side="right") for own in sides)
        return np.asarray(position, np.int64)

    def by_count(self, side: int, seqs: Array, window: int) -> Array:
        """The gate position of the tuple of the same side that comes `window` tuples later."""
        end = self.first + (self.ticks[0].size if self.self_join else sum(own.size for own in self.ticks))
        if self.self_join:
            return np.asarray(np.minimum(seqs + window, end))
        own, place = self.ticks[side], seqs + window - self.firsts[side]
        inside = np.flatnonzero(place < own.size)
        # At the end of input, that tuple will never come.
        position = np.full(seqs.size, end, np.int64)
        other = np.searchsorted(self.ticks[1 - side], own[place[inside]], side="right" if side else "left")
        position[inside] = self.first + place[inside] + other
        return position


class Keyless:
    """Finds one side's tuples with a NULL or NaN key: they match nothing, whatever follows."""

    def __init__(self, bound: BoundSpec, side: int) -> None:
        # Comparisons have words, and are no keys.
        self._encoded = all(term in bound.keys for term in bound.terms)
        encoded = {*bound.terms, *bound.index} if self._encoded else set()
        self._columns = [(key.right if side else key.left).name for key in bound.keys if key not in encoded]

    def __call__(self, table: pa.Table, valid: Array | None) -> Array | None:
        """A mask of the tuples without a key, or None if all have one; `valid` is that of the encoded keys."""
        mask = None if valid is None or not self._encoded else ~valid
        for name in self._columns:
            column = table.column(name)
            floating = pa.types.is_floating(column.type)
            if column.null_count or floating:
                null = column.is_null(nan_is_null=floating).to_numpy()
                mask = null if mask is None else mask | null
        return mask if mask is not None and np.any(mask) else None
