"""Arrays whose memory is used again once nothing refers to it.

Fresh memory is expensive: the system clears every page on its first use, and threads that do so at the same time wait
for each other. A join needs arrays of about the same sizes for every push: stored columns, sorted runs, pairs, result
columns. Results belong to the caller and may live on: an array is reused only when neither it, a view of it nor an
Arrow buffer over it is referred to any more.
"""

from __future__ import annotations

import math
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
# An array that was free for more requests than this is given back to the system.
_PATIENCE = 256


class _Block:
    """An array that is lent, and when it was last in use."""

    __slots__ = ("owner", "used")

    def __init__(self, owner: Array, used: int) -> None:
        self.owner, self.used = owner, used

    def references(self) -> int:
        """How many references there are to the array."""
        return sys.getrefcount(self.owner)


_UNUSED = _Block(np.empty(0), 0).references()


class Memory:
    """int64 arrays of one join; with `reuses` false, an ordinary allocator."""

    def __init__(self, reuses: bool) -> None:
        self._largest = _LARGEST if reuses else 0
        self._blocks: list[_Block] = []
        self._requests = 0
        # Reentrant, and never waited for: an interrupt may come between taking it and letting it go.
        self._taking = threading.RLock()

    def take(self, n: int) -> Array:
        """An array of `n` words with arbitrary values."""
        if not _LEAST <= n <= self._largest:
            return np.empty(n, np.int64)
        if not self._taking.acquire(blocking=False):
            return np.empty(n, np.int64)
        try:
            self._requests += 1
            block = self._free(n)
            if block is None:
                # Sizes vary a little from push to push.
                block = _Block(np.empty(n + n // _SPARE + _LINE, np.int64), self._requests)
                self._blocks.append(block)
            block.used = self._requests
            first = -block.owner.ctypes.data // 8 % _LINE
            return block.owner[first : first + n]
        finally:
            self._taking.release()

    def _free(self, n: int) -> _Block | None:
        """The smallest free array with room for `n` words and not many more; gives back what is free for long."""
        best: _Block | None = None
        kept = []
        for block in self._blocks:
            size = block.owner.size
            if block.references() > _UNUSED:
                block.used = self._requests
            elif n + _LINE <= size <= 2 * n and (best is None or size < best.owner.size):
                best = block
            if self._requests - block.used <= _PATIENCE:
                kept.append(block)
        if best is not None and self._requests - best.used > _PATIENCE:
            kept.append(best)
        self._blocks = kept
        return best

    def take_rows(self, n: int, like: Array) -> Array:
        """Room for `n` rows of the same type and width as those of another array."""
        nbytes = n * like.dtype.itemsize * math.prod(like.shape[1:])
        if not _LEAST <= nbytes // 8 <= self._largest:
            return np.empty((n, *like.shape[1:]), like.dtype)
        words = self.take(-(-nbytes // 8))
        return words.view(np.uint8)[:nbytes].view(like.dtype).reshape(n, *like.shape[1:])

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
        self._blocks = []

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, free or not."""
        return sum(block.owner.nbytes for block in self._blocks)
