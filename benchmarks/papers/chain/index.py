"""Chained index: sub-indexes by age, the youngest active, whole ones dropped on expiry (SIGMOD paper, section 2.2.2).

`b_chain` keeps the archived sub-indexes as B+-trees, `ib_chain` converts each to an immutable tree (section 5.1).
A chain of length L is one active and L - 1 archived sub-indexes of w / (L - 1) entries each. Invariant: every
archived sub-index is full, and its seqs lie between those of its neighbours.

If the window's size is unknown, or exceeds the expected one, the sub-indexes double when the links run out.
"""

from __future__ import annotations

import numpy as np

import streamjoin as sj
from benchmarks.papers.chain import kernels as chain
from benchmarks.papers.chain.kernels import (
    ACTIVE,
    CHAIN,
    DIRECTORY,
    FIRST,
    LINKS,
    ROW,
    ROW_NEWEST,
    ROW_TREE,
    SEGMENT,
    SEGMENT_INNER,
    SEGMENT_SEQS,
    SEGMENTS,
    SPAN,
)
from streamjoin.indexes.base import I64, Index, arena, demand, pages
from streamjoin.indexes.btree import nodes_for
from streamjoin.indexes.nodes import check_shape, check_tree
from streamjoin.kernels.trees import btree, css
from streamjoin.kernels.trees.entries import HEAD_WORDS, MERGE, MIN_SEQ, SIZE, STEPS, TICKS, TIMED
from streamjoin.kernels.trees.task import read_cycles
from streamjoin.model.errors import SpecError

_SMALLEST_SPAN = 64
_LONGEST = 128


@sj.register_index
class BChainIndex(Index):
    """A chain of B+-trees; `length` is the paper's L."""

    name = "b_chain"
    task = staticmethod(chain.task_b)

    def __init__(self, window: int | None = None, length: int = 2, fanout: int = btree.MOST_KEYS) -> None:
        if not 2 <= length <= _LONGEST:
            raise SpecError(f"length={length} of a chained index is not between 2 and {_LONGEST}")
        if not 3 <= fanout <= btree.MOST_KEYS:
            raise SpecError(f"fanout={fanout} of a chained index is not between 3 and {btree.MOST_KEYS}")
        self.length = length
        self.fanout = fanout
        self._lay(max(_SMALLEST_SPAN, -(-(window or 0) // (length - 1))))

    # -- the arena -------------------------------------------------------------------------------------

    def _lay(self, span: int) -> None:
        # One link more than the chain's length: the oldest may still hold a live entry when the active one is full.
        links = self.length + 1
        self._slab = nodes_for(span, self.fanout)
        directory = pages(ROW * links)
        slabs, segment_words = self._link_words(span, links)
        self._sizes = {"directory": directory, "nodes": slabs * self._slab * btree.NODE}
        if segment_words:
            self._sizes["immutable trees"] = links * segment_words
        self._first_node = (HEAD_WORDS + directory) // btree.NODE
        self.mem = arena(HEAD_WORDS + sum(self._sizes.values()))
        self.mem[LINKS] = links
        self.mem[SPAN] = span
        self.mem[DIRECTORY] = HEAD_WORDS
        self.mem[btree.FANOUT] = self.fanout
        self.mem[SEGMENTS] = HEAD_WORDS + directory + self._sizes["nodes"]
        self.mem[SEGMENT] = segment_words
        self._set_shape()
        self._start_active()

    def _link_words(self, span: int, links: int) -> tuple[int, int]:  # noqa: ARG002
        """The number of node slabs, and the length of an immutable tree."""
        return links, 0

    def _set_shape(self) -> None:
        """Write the layout of the archived sub-indexes to the head."""

    def _start_active(self) -> None:
        link = int(self.mem[FIRST] + self.mem[CHAIN]) % int(self.mem[LINKS])
        chain.start_active(self.mem, self._first_node + link * self._slab, self._slab)

    # -- the protocol ----------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Archive the active sub-index, which is full; without a free link, double them all instead."""
        ticks = read_cycles() if self.mem[TIMED] else 0
        while self.mem[ACTIVE] == self.mem[SPAN]:
            if self.mem[CHAIN] == self.mem[LINKS] - 1:
                self._double()
            else:
                self._archive()
                self._start_active()
        if self.mem[TIMED]:
            self.mem[TICKS + MERGE] += read_cycles() - ticks

    def _archive(self) -> None:
        chain.archive_b(self.mem)

    def _double(self) -> None:
        old, entries = self.mem, self.snapshot()
        self._lay(2 * int(old[SPAN]))
        self._carry(old)
        self.mem[SIZE] = 0
        self.load(entries["words"], entries["seqs"])
        self.mem[STEPS + MERGE] += entries["words"].size

    def reset(self) -> None:
        """Remove all entries."""
        self.mem[[FIRST, CHAIN, SIZE, MIN_SEQ]] = 0
        self._start_active()

    def _rows(self) -> list[tuple[int, int]]:
        """Tree or count, and newest seq, of each archived sub-index, oldest first."""
        at = [int(chain.row_of(self.mem, age)) for age in range(int(self.mem[CHAIN]))]
        return [(int(self.mem[row + ROW_TREE]), int(self.mem[row + ROW_NEWEST])) for row in at]

    def _tree(self, tree: int, count: int) -> tuple[I64, I64]:
        entries = np.empty(2 * count, dtype=np.int64)
        btree.unload(self.mem, tree, entries, 0, count)
        return entries[:count], entries[count:]

    def _archived(self) -> list[tuple[I64, I64]]:
        span = int(self.mem[SPAN])
        return [self._tree(tree, span) for tree, _ in self._rows()]

    def held(self) -> tuple[I64, I64]:
        """All words and seqs, sub-index by sub-index."""
        parts = [*self._archived(), self._tree(int(self.mem[btree.TREE]), int(self.mem[ACTIVE]))]
        return np.concatenate([words for words, _ in parts]), np.concatenate([seqs for _, seqs in parts])

    def settings(self) -> dict[str, float]:
        """The chain's length and the entries of a sub-index."""
        return {"length": self.length, "span": int(self.mem[SPAN])}

    def sections(self) -> dict[str, int]:
        """Arena words per component."""
        return dict(self._sizes)

    def check(self) -> None:
        """Test each sub-index and that their seqs do not overlap."""
        youngest = -1
        demand(len(self) == self.mem[CHAIN] * self.mem[SPAN] + self.mem[ACTIVE], "the size is off")
        for (words, seqs), (tree, newest) in zip(self._archived(), self._rows(), strict=True):
            demand(seqs.max() == newest >= self.min_seq, "an expired sub-index is still there")
            demand(seqs.min() > youngest, "sub-indexes overlap in age")
            youngest = newest
            self._check_archived(tree, words, seqs)
        active = check_tree(self.mem, int(self.mem[btree.TREE]))
        demand(active.shape[0] == self.mem[ACTIVE], "the active sub-index has lost count")
        demand(np.all(active[:, 1] > youngest), "sub-indexes overlap in age")

    def _check_archived(self, tree: int, words: I64, seqs: I64) -> None:
        demand(np.array_equal(check_tree(self.mem, tree), np.stack([words, seqs], axis=1)), "a link is broken")


@sj.register_index
class IBChainIndex(BChainIndex):
    """A chain whose archived sub-indexes are immutable trees."""

    name = "ib_chain"
    task = staticmethod(chain.task_ib)

    def __init__(
        self,
        window: int | None = None,
        length: int = 2,
        fanout: int = btree.MOST_KEYS,
        leaf_size: int = 32,
        immutable_fanout: int = 32,
    ) -> None:
        check_shape(leaf_size, immutable_fanout)
        self.leaf_size = leaf_size
        self.immutable_fanout = immutable_fanout
        super().__init__(window, length, fanout)

    def _link_words(self, span: int, links: int) -> tuple[int, int]:  # noqa: ARG002
        shape = np.zeros(HEAD_WORDS, dtype=np.int64)
        shape[css.LEAF_SIZE], shape[css.CSS_FANOUT] = self.leaf_size, self.immutable_fanout
        self._inner = pages(int(css.lay_levels(shape, span)))
        self._apart = pages(span + self.leaf_size + css.LANES)
        return 1, self._inner + 2 * self._apart

    def _set_shape(self) -> None:
        self.mem[css.LEAF_SIZE] = self.leaf_size
        self.mem[css.CSS_FANOUT] = self.immutable_fanout
        css.lay_levels(self.mem, int(self.mem[SPAN]))
        self.mem[SEGMENT_INNER] = self._inner
        self.mem[SEGMENT_SEQS] = self._apart

    def _start_active(self) -> None:
        chain.start_active(self.mem, self._first_node, self._slab)

    def _archive(self) -> None:
        chain.archive_ib(self.mem)

    def _archived(self) -> list[tuple[I64, I64]]:
        parts = []
        for age, (count, _) in enumerate(self._rows()):
            at = int(chain.segment_of(self.mem, age)) + self._inner
            parts.append((self.mem[at : at + count], self.mem[at + self._apart : at + self._apart + count]))
        return parts

    def _check_archived(self, tree: int, words: I64, seqs: I64) -> None:
        demand(tree == words.size == self.mem[SPAN], "an archived sub-index is not full")
        order = np.lexsort((seqs, words))
        demand(np.array_equal(order, np.arange(order.size)), "an archived sub-index is not sorted")
