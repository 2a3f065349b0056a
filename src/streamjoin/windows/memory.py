"""Arrays whose memory is used again once nobody refers to it.

Fresh memory is expensive: the system clears every page on its first use, and threads that do so at the same time wait
for each other. A join needs arrays of about the same sizes for every push: sorted runs, pairs, result columns. Results
belong to the caller and may live on: an array is reused only when neither it, a view of it nor an Arrow buffer over it
is referred to any more.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array

# Below this many words the allocator reuses memory by itself.
_LEAST = 1 << 15
_LARGEST = 1 << 26
_SPARE = 8
_LINE = 8
# An array that was free for so many requests is given back to the system.
_PATIENCE = 64


class Memory:
    """int64 arrays of one join; with `reuses` false, an ordinary allocator."""

    def __init__(self, reuses: bool) -> None:
        self._largest = _LARGEST if reuses else 0
        self._owners: list[Array] = []
        self._requested: list[int] = []
        self._requests = 0
        self._taking = threading.Lock()

    def take(self, n: int) -> Array:
        """An array of `n` words with arbitrary values."""
        if not _LEAST <= n <= self._largest:
            return np.empty(n, np.int64)
        with self._taking:
            self._requests += 1
            owner = self._free(n)
            if owner is None:
                # Sizes vary a little from push to push.
                owner = np.empty(n + n // _SPARE + _LINE, np.int64)
                self._owners.append(owner)
                self._requested.append(self._requests)
            first = -owner.ctypes.data // 8 % _LINE
            return owner[first : first + n]

    def take_bytes(self, n: int) -> tuple[Array, pa.Buffer]:
        """`n` bytes with arbitrary values, as an array to write to and as Arrow memory."""
        words = -(-n // 8)
        if not _LEAST <= words <= self._largest:
            buffer = pa.allocate_buffer(n)
            return np.frombuffer(buffer, np.uint8), buffer
        array = self.take(words).view(np.uint8)[:n]
        return array, pa.py_buffer(array)

    def clear(self) -> None:
        """Give all memory back; arrays in use stay as they are."""
        with self._taking:
            self._owners, self._requested = [], []

    def _free(self, n: int) -> Array | None:
        """The smallest free array with room for `n` words and not many more; gives back what is free for long."""
        best, kept = -1, []
        sizes = [owner.size for owner in self._owners]
        for k, size in enumerate(sizes):
            if references(self._owners, k) > UNUSED:
                self._requested[k] = self._requests
            elif n + _LINE <= size <= 2 * n and (best < 0 or size < sizes[best]):
                best = k
            if self._requests - self._requested[k] <= _PATIENCE or k == best:
                kept.append(k)
        owner = None if best < 0 else self._owners[best]
        if best >= 0:
            self._requested[best] = self._requests
        if len(kept) < len(self._owners):
            self._owners = [self._owners[k] for k in kept]
            self._requested = [self._requested[k] for k in kept]
        return owner

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, free or not."""
        return sum(owner.nbytes for owner in self._owners)


def references(owners: list[Array], place: int) -> int:
    """How many references there are to an array, counting the list's."""
    return sys.getrefcount(owners[place])


UNUSED = references([np.empty(0)], 0)
"""The references to an array that only its list refers to."""
