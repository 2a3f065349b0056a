"""One side of a join by many threads over a Bw-Tree: the tree, and the words of its window by position.

Nothing here runs while threads work on the tree. Invariant: the tree holds the positions from `deleted_to` on, and the
ring their words.
"""

from __future__ import annotations

import numpy as np

from benchmarks.papers.bw_tree import join as kernels
from benchmarks.papers.bw_tree.join import DELETED_TO, RING, RING_MASK, WINDOW
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
from streamjoin.indexes.base import I64, demand
from streamjoin.model.errors import SpecError

SETTINGS = frozenset({"leaf_size", "chain"})
_RETIRED = 1024  # pages per thread that may be waiting for a thread that does not rest
_UNDER_WAY = 3  # times the tuples under way that the ring has room for beside the window
_GROWTH = 1.5


class SharedBwTree:
    """A side's tree for up to `threads` threads, with at most `under_way` tuples that are taken and not handed on."""

    def __init__(
        self,
        window: int,
        threads: int = 1,
        under_way: int = 1 << 13,
        leaf_size: int = LEAF_SIZE,
        chain: int = CHAIN,
        retired: int = _RETIRED,
    ) -> None:
        if window < 1:
            raise SpecError(f"window={window} of a side is not 1 or more")
        self.shape, self.window, self.retired = BwTreeSizes(leaf_size, chain), window, retired
        self.shape.check()
        self._lay(threads, under_way, self._pages(threads))
        empty_tree(self.mem)

    def _pages(self, threads: int) -> int:
        return self.shape.pages_for(self.window) + threads * (SPARE_PAGES + self.retired)

    def _lay(self, threads: int, under_way: int, n_pages: int) -> None:
        self.threads, self.under_way = threads, under_way
        ring = 1 << (self.window + _UNDER_WAY * under_way - 1).bit_length()
        self.mem, at = lay_tree(self.shape, n_pages, threads, ring)
        self.mem[WINDOW], self.mem[RING], self.mem[RING_MASK] = self.window, at, ring - 1
        self.mem[DELETED_TO] = 0

    def fit(self, threads: int, under_way: int) -> None:
        """Get ready for another crew."""
        if threads > self.threads or under_way > self.under_way:
            self._move(max(threads, self.threads), max(under_way, self.under_way), self._pages(threads))

    def make_room(self) -> None:
        """Deal the free pages out anew; add more if there are too few."""
        settle_pages(self.mem)
        if free_pages(self.mem) < self.threads * SPARE_PAGES * 2:
            self._move(self.threads, self.under_way, int(_GROWTH * int(self.mem[MOST_PAGES])) + SPARE_PAGES)

    def _move(self, threads: int, under_way: int, n_pages: int) -> None:
        old = self.mem
        self._lay(threads, under_way, max(n_pages, int(old[MOST_PAGES]) - 1))
        move_tree(old, self.mem)
        self.mem[DELETED_TO] = old[DELETED_TO]
        # At most a ring's length of positions lies behind the last deleted one; the rest of the copies is never read.
        positions = np.arange(int(old[DELETED_TO]), int(old[DELETED_TO]) + int(old[RING_MASK]) + 1)
        self.mem[self.mem[RING] + (positions & self.mem[RING_MASK])] = old[old[RING] + (positions & old[RING_MASK])]

    def load(self, words: I64, seqs: I64) -> None:
        """Fill an empty side; positions follow each other, and those before the first are deleted."""
        if seqs.size:
            self.mem[DELETED_TO] = seqs[0]
        at = 0
        while at < words.size:
            at = int(kernels.insert_all(self.mem, words, seqs, at))
            if at < words.size:
                self.make_room()

    def entries(self) -> I64:
        """All entries in order, one row (word, position) each, after a check of the whole tree."""
        return check_bw_tree(self.mem)

    def check(self) -> None:
        """Raise AssertionError where the tree breaks its invariants or has an entry that is deleted."""
        seqs = self.entries()[:, 1]
        demand(np.unique(seqs).size == seqs.size, "a position is held twice")
        demand(not seqs.size or seqs.min() >= self.mem[DELETED_TO], "a deleted entry is still there")

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return int(self.mem.nbytes)
