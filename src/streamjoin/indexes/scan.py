"""No index: every probe is compared with all entries of the window, in arrival order.

The baseline of SIGMOD paper section 5.1, and the fastest choice for windows of a few hundred tuples.
Invariant: seqs ascend along the ring.
"""

from __future__ import annotations

import numpy as np

from streamjoin.indexes.base import I64, Index, arena, demand, pages
from streamjoin.indexes.registry import register_index
from streamjoin.kernels.trees import ring
from streamjoin.kernels.trees.entries import HEAD_WORDS, MIN_SEQ, SIZE
from streamjoin.kernels.trees.ring import BACK, FRONT, RING, RING_MASK

_SMALLEST = 64


@register_index
class ScanIndex(Index):
    """A ring buffer scanned linearly."""

    name = "scan"
    task = staticmethod(ring.task)

    def __init__(self, window: int | None = None) -> None:
        self._lay(max(_SMALLEST, window or 0))

    def _lay(self, capacity: int) -> None:
        capacity = 1 << (capacity - 1).bit_length()
        self.mem = arena(pages(HEAD_WORDS + 2 * capacity))
        self.mem[RING] = HEAD_WORDS
        self.mem[RING_MASK] = capacity - 1

    def reset(self) -> None:
        """Remove all entries."""
        self.mem[[FRONT, BACK, SIZE, MIN_SEQ]] = 0

    def maintain(self) -> None:
        """Double the ring."""
        old, (words, seqs) = self.mem, self.held()
        self._lay(2 * (int(old[RING_MASK]) + 1))
        self._carry(old)
        self.mem[BACK] = words.size
        at, apart = int(self.mem[RING]), int(self.mem[RING_MASK]) + 1
        self.mem[at : at + words.size] = words
        self.mem[at + apart : at + apart + words.size] = seqs

    def held(self) -> tuple[I64, I64]:
        """All words and seqs, oldest first."""
        at = self.mem[RING] + (np.arange(self.mem[FRONT], self.mem[BACK]) & self.mem[RING_MASK])
        return self.mem[at], self.mem[at + self.mem[RING_MASK] + 1]

    def sections(self) -> dict[str, int]:
        """Arena words per component."""
        capacity = int(self.mem[RING_MASK]) + 1
        return {"words": capacity, "seqs": capacity}

    def check(self) -> None:
        """Test that the ring is in order and holds no expired entry."""
        _, seqs = self.held()
        demand(seqs.size == len(self) <= self.mem[RING_MASK] + 1, "the ring's size is off")
        demand(np.all(np.diff(seqs) > 0), "the ring is out of order")
        demand(not seqs.size or seqs[0] >= self.min_seq, "an expired entry is still at the front")
