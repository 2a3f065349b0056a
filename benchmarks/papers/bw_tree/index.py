"""The Bw-Tree over the window of one thread (SIGMOD paper, section 5: the rival of the parallel PIM-Tree).

Invariant: the tree holds exactly the entries of the ring. `bw_shared` has the layout of its memory.
"""

from __future__ import annotations

import numpy as np

import streamjoin as sj
from benchmarks.papers.bw_tree import window as kernels
from benchmarks.papers.bw_tree.layout import (
    CHAIN,
    LEAF_SIZE,
    SPARE_PAGES,
    BwTreeSizes,
    check_bw_tree,
    empty_tree,
    free_pages,
    lay_tree,
    move_tree,
    settle_pages,
)
from benchmarks.papers.bw_tree.memory import MOST_PAGES
from benchmarks.papers.bw_tree.window import BACK, FRONT, RING, RING_MASK
from streamjoin.indexes.base import I64, PAGE, Index, demand
from streamjoin.kernels.trees.entries import MIN_SEQ, SIZE

_SMALLEST = 64


@sj.register_index
class BwTreeIndex(Index):
    """A Bw-Tree of one thread; a leaf keeps `leaf_size` entries, and `chain` changes to them in front."""

    name = "bw_tree"
    task = staticmethod(kernels.task)

    def __init__(self, window: int | None = None, leaf_size: int = LEAF_SIZE, chain: int = CHAIN) -> None:
        self.shape = BwTreeSizes(leaf_size, chain)
        self.shape.check()
        self._lay(max(_SMALLEST, window or 0), self.shape.pages_for(window or 0) + SPARE_PAGES)
        self.reset()

    def _lay(self, capacity: int, n_pages: int) -> None:
        capacity = 1 << (capacity - 1).bit_length()
        self.mem, ring = lay_tree(self.shape, n_pages, 1, 2 * capacity)
        self.mem[RING], self.mem[RING_MASK] = ring, capacity - 1

    def reset(self) -> None:
        """Remove all entries."""
        self.mem[[FRONT, BACK, SIZE, MIN_SEQ]] = 0
        empty_tree(self.mem)

    def maintain(self) -> None:
        """Double what is full: the pages, the ring or both."""
        old, (words, seqs) = self.mem, self.held()
        settle_pages(old)
        capacity, n_pages = int(old[RING_MASK]) + 1, int(old[MOST_PAGES]) - 1
        scarce = free_pages(old) < SPARE_PAGES
        self._lay(2 * capacity if words.size == capacity else capacity, 2 * n_pages if scarce else n_pages)
        self._carry(old)
        move_tree(old, self.mem)
        at = int(self.mem[RING])
        self.mem[at : at + 2 * words.size] = np.stack([words, seqs], axis=1).ravel()
        self.mem[BACK] = words.size

    def held(self) -> tuple[I64, I64]:
        """All words and seqs, oldest first."""
        at = self.mem[RING] + 2 * (np.arange(self.mem[FRONT], self.mem[BACK]) & self.mem[RING_MASK])
        return self.mem[at], self.mem[at + 1]

    def settings(self) -> dict[str, float]:
        """Entries of a leaf, and records of its chain."""
        return self.shape._asdict()

    def sections(self) -> dict[str, int]:
        """Arena words per component."""
        ring = 2 * (int(self.mem[RING_MASK]) + 1)
        n_pages = int(self.mem[MOST_PAGES])
        return {"pages": n_pages * self.shape.page_words, "ring": ring, "mapping": 2 * n_pages, "threads": PAGE}

    def check(self) -> None:
        """Walk the tree and compare it with the ring."""
        words, seqs = self.held()
        in_tree = check_bw_tree(self.mem)
        by_word = np.lexsort((seqs, words))
        expected = np.stack([words[by_word], seqs[by_word]], axis=1)
        demand(np.array_equal(in_tree, expected), "tree and ring hold different entries")
        demand(words.size == len(self), "the size is off")
        demand(not seqs.size or seqs[0] >= self.min_seq, "an expired entry is still there")
