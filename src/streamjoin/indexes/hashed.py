"""Hash index: for equality predicates only, and faster there than any tree (SIGMOD paper, section 1).

Invariant: every live entry is reached from its word's bucket, by the bucket's list of distinct words and then by that
word's list of duplicates, newest first. There are at least as many buckets as entries.
"""

from __future__ import annotations

import numpy as np

from streamjoin.indexes.base import I64, Capabilities, Index, arena, demand, pages
from streamjoin.indexes.registry import register_index
from streamjoin.kernels.trees import hashed
from streamjoin.kernels.trees.entries import HEAD_WORDS, MIN_SEQ, SIZE
from streamjoin.kernels.trees.hashed import (
    BACK,
    BUCKET_BITS,
    BUCKETS,
    ENTRY,
    FRONT,
    NEXT_WORD,
    OLDER,
    RING,
    RING_MASK,
    SEQ,
)

_SMALLEST = 64


@register_index
class HashedIndex(Index):
    """A hash table whose entries are stored in arrival order."""

    name = "hashed"
    capabilities = Capabilities(ranges=False)
    task = staticmethod(hashed.task)

    def __init__(self, window: int | None = None) -> None:
        self._lay(max(_SMALLEST, window or 0))

    def _lay(self, capacity: int) -> None:
        bits = (capacity - 1).bit_length()
        capacity = 1 << bits
        self.mem = arena(pages(HEAD_WORDS + capacity + ENTRY * capacity))
        self.mem[BUCKETS] = HEAD_WORDS
        self.mem[BUCKET_BITS] = bits
        self.mem[RING] = HEAD_WORDS + capacity
        self.mem[RING_MASK] = capacity - 1
        self.reset()

    def reset(self) -> None:
        """Remove all entries."""
        self.mem[[FRONT, BACK, SIZE, MIN_SEQ]] = 0
        first = int(self.mem[BUCKETS])
        self.mem[first : first + (1 << int(self.mem[BUCKET_BITS]))] = 0

    def maintain(self) -> None:
        """Double the table and relink all entries."""
        old = self.mem
        self._lay(2 * (int(old[RING_MASK]) + 1))
        hashed.copy_entries(old, self.mem)
        self._carry(old)

    def _entries(self) -> I64:
        slots: I64 = np.arange(self.mem[FRONT], self.mem[BACK]) & self.mem[RING_MASK]
        offsets: I64 = slots * ENTRY + self.mem[RING]
        return offsets

    def held(self) -> tuple[I64, I64]:
        """All words and seqs, oldest first."""
        at = self._entries()
        return self.mem[at], self.mem[at + SEQ]

    def sections(self) -> dict[str, int]:
        """Arena words per component."""
        capacity = int(self.mem[RING_MASK]) + 1
        return {"buckets": capacity, "entries": ENTRY * capacity}

    def check(self) -> None:
        """Walk every bucket: each live entry occurs once, and positions descend along each list."""
        front, ring, mask = (int(self.mem[slot]) for slot in (FRONT, RING, RING_MASK))
        first = int(self.mem[BUCKETS])
        count = 0
        for bucket in range(1 << int(self.mem[BUCKET_BITS])):
            words: set[int] = set()
            link, above = int(self.mem[first + bucket]), int(self.mem[BACK]) + 1
            while link > front:
                at = ring + ENTRY * ((link - 1) & mask)
                demand(link < above, "a bucket's list is not newest first")
                demand(int(self.mem[at]) not in words, "a word is twice in its bucket")
                words.add(int(self.mem[at]))
                count += self._duplicates(link, int(self.mem[at]))
                link, above = int(self.mem[at + NEXT_WORD]), link
        demand(count == len(self) == self.mem[BACK] - self.mem[FRONT], "an entry is out of reach")

    def _duplicates(self, link: int, word: int) -> int:
        front, ring, mask = (int(self.mem[slot]) for slot in (FRONT, RING, RING_MASK))
        count, above = 0, link + 1
        while link > front:
            at = ring + ENTRY * ((link - 1) & mask)
            demand(link < above and self.mem[at] == word, "a word's list is broken")
            count += 1
            link, above = int(self.mem[at + OLDER]), link
        return count
