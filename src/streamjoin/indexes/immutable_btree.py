"""Immutable B+-tree (CSS-tree): leaves and separators in arrays, no child references (SIGMOD paper, section 3.1).

Built bottom-up from a sorted run in linear time. Every `insert` rebuilds it, so it takes batches, not single tuples,
and no join pushes into it. Invariant: it is an IM-Tree whose T_I is always empty.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamjoin.indexes.base import I64, Capabilities, column
from streamjoin.indexes.im_tree import ImTreeIndex
from streamjoin.kernels.trees.css import PENDING, STORED


class ImmutableBTreeIndex(ImTreeIndex):
    """A search tree that is replaced, not changed."""

    name = "immutable_btree"
    capabilities = Capabilities(incremental=False, merges=True)

    def __init__(self, window: int | None = None, leaf_size: int = 32, fanout: int = 32) -> None:
        self._batch: tuple[I64, I64] | None = None
        super().__init__(window, merge_ratio=1 / 8, leaf_size=leaf_size, fanout=fanout)

    def insert(self, words: npt.ArrayLike, seqs: npt.ArrayLike) -> None:
        """Merge a batch in; seqs ascend, and exceed every seq added before."""
        words = column(words)
        seqs = column(seqs, words.size)
        order = np.argsort(words, kind="stable")
        self._make_room(int(self.mem[STORED]), words.size)
        self._batch = words[order], seqs[order]
        self.mem[PENDING] = words.size
        self.merge()

    def _unload(self, out: I64, run: int, apart: int) -> int:
        if self._batch is None:
            return 0
        words, seqs = self._batch
        out[run : run + words.size] = words
        out[run + apart : run + apart + words.size] = seqs
        self._batch = None
        return words.size
