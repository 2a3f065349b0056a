"""An array that grows at the end and forgets from the front: each value is moved a constant number of times.

The invariant: a value never moves within its memory. When the room is used up, what is held is copied to new memory, so
a view of the values, and what `saved` returns, stay right however much is appended or forgotten later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamjoin._arrays import Array

Restore = Callable[[], None]
"""Puts back what was there when it was made; calling it again does no harm."""

_LEAST_CAPACITY = 1024


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
        """What is held, oldest first."""
        return self._data[self._begin : self._end]

    @property
    def nbytes(self) -> int:
        """The memory behind it, spare room included."""
        return int(self._data.nbytes)

    def append(self, values: Array) -> None:
        """Add `values` at the end."""
        self.room_for(len(values))[...] = values

    def room_for(self, n: int) -> Array:
        """Add `n` values that the caller fills in."""
        if self._end + n > len(self._data):
            size = len(self)
            buffer = np.empty((max(_LEAST_CAPACITY, 2 * (size + n)), *self._data.shape[1:]), self._data.dtype)
            buffer[:size] = self.values
            self._data, self._begin, self._end = buffer, 0, size
        self._end += n
        return self._data[self._end - n : self._end]

    def forget(self, n: int) -> None:
        """Drop the oldest `n`."""
        self._begin += n

    def truncate(self, n: int) -> None:
        """Keep the oldest `n`; what is appended next takes the place of the others."""
        self._end = self._begin + n

    def widen(self, width: int) -> None:
        """Rows of more values; the new ones are 0."""
        if width > self._data.shape[1]:
            wider = np.zeros((len(self._data), width), self._data.dtype)
            wider[:, : self._data.shape[1]] = self._data
            self._data = wider

    def saved(self) -> Restore:
        """What puts these values back."""
        state = self._data, self._begin, self._end

        def restore() -> None:
            self._data, self._begin, self._end = state

        return restore
