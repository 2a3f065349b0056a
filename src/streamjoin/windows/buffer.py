"""Arrays that grow at the end and drop values at the front; each value is copied O(1) times.

Invariant: a value never moves within an allocation. When the capacity is used up, the values are copied to a new
allocation, so views of the values, and what `saved` returns, stay valid after later appends and drops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.calls import Each, KernelCalls
from streamjoin.kernels.rows import copy_values
from streamjoin.windows.workers import Workers, cuts

Restore = Callable[[], None]
"""Puts back what was there when it was made; calling it again does no harm."""

_LEAST_CAPACITY = 1024
# Below this many rows a second thread does not pay.
_LEAST_PART = 1 << 15
_ALONE = Workers(1)


def copy_arrays(copies: Sequence[tuple[Array, Array]], workers: Workers) -> None:
    """Copy arrays, given as (target, values), of the same type and shape."""
    is_shared = workers.n > 1 and sum(len(values) for _, values in copies) >= 2 * _LEAST_PART
    calls: list[tuple[int, ...]] = []
    for target, values in copies:
        is_column = values.ndim == 1 or (values.flags.c_contiguous and target.flags.c_contiguous)
        if not is_shared or not values.size or not is_column or values.itemsize != target.itemsize:
            target[...] = values
            continue
        # Rows of several values are copied as if they were one column.
        width, per_row = values.itemsize, values.size // len(values)
        step, stride = (array.strides[0] // per_row for array in (target, values))
        to, origin = target.ctypes.data, values.ctypes.data
        for begin, end in cuts(len(values), min(workers.n, len(values) // _LEAST_PART)):
            at, count = begin * per_row, (end - begin) * per_row
            calls.append((origin + at * stride, stride, to + at * step, step, width, count))
    if calls:
        workers.call(copy_values, KernelCalls(len(calls), *map(Each, np.array(calls).T)))


class Buffer:
    """Values of one type, or rows of them, oldest first."""

    def __init__(self, dtype: Any, *row: int) -> None:
        self._data: Array = np.empty((0, *row), dtype)
        self._begin = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def values(self) -> Array:
        """The values, oldest first."""
        return self._data[self._begin : self._end]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, including spare capacity."""
        return int(self._data.nbytes)

    def append(self, values: Array) -> None:
        """Add `values` at the end."""
        self.room_for(len(values))[...] = values

    def room_for(self, n: int) -> Array:
        """Add `n` values that the caller fills in."""
        if self._end + n > len(self._data):
            self.reserve(2 * (len(self) + n))
        self._end += n
        return self._data[self._end - n : self._end]

    def reserve(self, capacity: int, spare: Buffer | None = None) -> None:
        """Move to an allocation for `capacity` values, the present ones included: to that of `spare` if it fits.

        Fresh memory costs more than writing to it; nothing may refer to the values of `spare` any more.
        """
        size = len(self)
        if spare is not None and spare._data.shape[1:] == self._data.shape[1:] and len(spare._data) >= capacity:
            buffer = spare._data
        else:
            buffer = np.empty((max(_LEAST_CAPACITY, capacity), *self._data.shape[1:]), self._data.dtype)
        buffer[:size] = self.values
        self._data, self._begin, self._end = buffer, 0, size

    def forget(self, n: int) -> None:
        """Drop the oldest `n`."""
        self._begin += n

    def truncate(self, n: int) -> None:
        """Keep the oldest `n`; later appends overwrite the others."""
        self._end = self._begin + n

    def widen(self, width: int) -> None:
        """Add columns to every row, filled with 0."""
        if width > self._data.shape[1]:
            wider = np.zeros((len(self._data), width), self._data.dtype)
            wider[:, : self._data.shape[1]] = self._data
            self._data = wider

    def saved(self) -> Restore:
        """Return a function that restores these values."""
        state = self._data, self._begin, self._end

        def restore() -> None:
            self._data, self._begin, self._end = state

        return restore


class ColumnBlock:
    """Arrays of one length, oldest values first, that grow and drop values together.

    `reserve` makes room behind the values; what is written there is invisible until `end` includes it, so a caller
    that fails in between has changed nothing.
    """

    def __init__(self) -> None:
        self.arrays: tuple[Array, ...] = ()
        self.begin = 0
        self.end = 0
        self._capacity = 0

    def __len__(self) -> int:
        return self.end - self.begin

    def add(self, dtype: Any, *row: int, fill: int = 0) -> int:
        """Add an array; present rows get the value `fill`. Returns its number."""
        array = np.empty((self._capacity, *row), dtype)
        array[self.begin : self.end] = fill
        self.arrays = (*self.arrays, array)
        return len(self.arrays) - 1

    def values(self, number: int) -> Array:
        """The values of an array, oldest first."""
        return self.arrays[number][self.begin : self.end]

    def reserve(self, n: int, workers: Workers = _ALONE) -> None:
        """Make room for `n` more rows; only the numbers of places may change, never the values."""
        if self.end + n <= self._capacity:
            return
        size = len(self)
        capacity = max(_LEAST_CAPACITY, 2 * (size + n))
        arrays = tuple(workers.memory.take_rows(capacity, array) for array in self.arrays)
        copy_arrays([(array[:size], self.values(number)) for number, array in enumerate(arrays)], workers)
        self.arrays, self.begin, self.end, self._capacity = arrays, 0, size, capacity

    def state(self) -> tuple[tuple[Array, ...], int, int, int]:
        """The current values; `restore` makes them current again."""
        return self.arrays, self.begin, self.end, self._capacity

    def restore(self, state: tuple[tuple[Array, ...], int, int, int]) -> None:
        """Return to the values of `state`."""
        self.arrays, self.begin, self.end, self._capacity = state

    @property
    def nbytes(self) -> int:
        """Bytes allocated, including spare capacity."""
        return sum(array.nbytes for array in self.arrays)
