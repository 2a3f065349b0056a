"""The two trees of one side of a parallel PIM-Tree join: the one in use, and the one that the next merge writes.

Each is an arena of its own with the layout of `pim_tree`: head, separators, chunks, T_S, nodes. Invariant: nothing here
runs while threads work on the trees. A tree has room for T_I under any distribution of its entries: in the worst case
half of each node is used and a sub-index spills with a chunk's entries, so the number of entries bounds the number of
nodes; unused nodes cost no memory. T_S has room for the live entries and some that expire late, since a merge writes
no others; where that is too few, `make_room` is called before the merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from streamjoin.indexes.base import I64, arena, demand, pages
from streamjoin.indexes.nodes import check_shape
from streamjoin.kernels.trees import btree, css
from streamjoin.kernels.trees.css import CSS_FANOUT, INNER, LEAF_SIZE, STORED, WORDS
from streamjoin.kernels.trees.entries import HEAD_WORDS
from streamjoin.model.errors import SpecError
from streamjoin.pim_tree.im_tree import SMALLEST_RUN
from streamjoin.pim_tree.kernels import shared_tree as pim_shared
from streamjoin.pim_tree.kernels.merge import adopt, crowded
from streamjoin.pim_tree.kernels.pim import CHUNKS, COUNT_BITS, COUNT_MASK, SPILLED, SUB_COUNT, WIDTH
from streamjoin.pim_tree.pim_tree import WIDTHS

SETTINGS = frozenset({"merge_ratio", "insertion_depth", "width", "leaf_size", "fanout", "smallest_run"})
_HEADROOM = 1.75  # slots for each entry expected at the merge: one chunk in twenty overflows
GRANT = 64
"""Tuples that a thread takes at once where tasks are smaller: T_I must have room for them."""
_ENTRIES_A_NODE = 4
_SPARE_NODES = 64
_GROWTH = 1.25
_LATE_SHARE = 4  # of T_I's entries as many may come before older ones are known to have expired
_FIXED_POINT = 1 << 20
# Twice the best value for one thread: all threads share a merge, so rarer merges pay.
_MERGE_RATIO = 1 / 4


class SharedPimTree:
    """A side's two trees; `current` says which is in use while no thread works."""

    def __init__(
        self,
        window: int | None = None,
        task: int = 64,
        merge_ratio: float | None = None,
        insertion_depth: int | None = None,
        width: int | None = None,
        leaf_size: int = 32,
        fanout: int = 32,
        smallest_run: int = SMALLEST_RUN,
        locks: bool = True,
    ) -> None:
        check_shape(leaf_size, fanout)
        self.merge_ratio = _MERGE_RATIO if merge_ratio is None else merge_ratio
        if not 0 < self.merge_ratio <= 1:
            raise SpecError(f"merge_ratio={merge_ratio} is not in (0, 1]: it is the share of the window kept unmerged")
        if insertion_depth is not None and insertion_depth < 1:
            raise SpecError(f"insertion_depth={insertion_depth} is not 1 or more: the root, depth 0, has no siblings")
        if width is not None and width not in WIDTHS:
            raise SpecError(f"width={width} of a sub-index is not one of {WIDTHS}")
        if smallest_run < 1:
            raise SpecError(f"smallest_run={smallest_run} is not 1 or more")
        expected = self.merge_ratio * leaf_size * _HEADROOM
        fitting = [each for each in WIDTHS if each > expected]
        self.adaptive = width is None and insertion_depth is None
        self.width = width or (fitting[0] if fitting else WIDTHS[-1]) if self.adaptive else width or WIDTHS[0]
        self.task, self.leaf_size, self.fanout, self.smallest_run = task, leaf_size, fanout, smallest_run
        self.depth, self.locks = insertion_depth or 0, locks
        self.trees = [self._lay(window or 0), self._lay(window or 0)]
        # The entries of T_S that each tree was laid for: both are equal once a merge follows another.
        self._laid = [window or 0, window or 0]
        self.current = 0
        for tree in self.trees:
            adopt(tree, 0)

    @property
    def tree(self) -> I64:
        """The tree in use."""
        return self.trees[self.current]

    def _limit(self, stored: int) -> int:
        return max(self.smallest_run, int(self.merge_ratio * stored))

    def _lay(self, stored: int) -> I64:
        """Allocate an arena for `stored` entries in T_S and up to twice the T_I that triggers a merge."""
        limit = self._limit(stored)
        pending = 2 * limit + 2 * max(self.task, GRANT)
        late = limit // _LATE_SHARE if limit > self.smallest_run else pending
        room = pages(stored + late + self.leaf_size + css.LANES + 1)
        head = np.zeros(HEAD_WORDS, np.int64)
        head[LEAF_SIZE], head[CSS_FANOUT] = self.leaf_size, self.fanout
        separators = pages(int(css.lay_levels(head, room)))
        step = 2 * (self.width + pim_shared.BESIDE_WIDTH)
        chunks = pages((room // self.leaf_size + 1) * step)
        # While T_I is merged, as many new entries again may be added beside it.
        nodes = 2 * pending // _ENTRIES_A_NODE + _SPARE_NODES
        before = HEAD_WORDS + separators + chunks + 2 * room
        mem = arena(before + nodes * btree.NODE)
        mem[:HEAD_WORDS] = head
        mem[INNER], mem[CHUNKS] = HEAD_WORDS, HEAD_WORDS + separators
        mem[WORDS], mem[css.SEQS] = HEAD_WORDS + separators + chunks, room
        mem[WIDTH], mem[pim_shared.STEP], mem[btree.FANOUT] = self.width, step, btree.MOST_KEYS
        mem[pim_shared.ROOM], mem[pim_shared.T_I_ROOM] = room, pending
        mem[pim_shared.FIRST_NODE] = before // btree.NODE
        mem[btree.NODES] = before // btree.NODE + nodes
        mem[pim_shared.RATIO] = round(self.merge_ratio * _FIXED_POINT)
        mem[pim_shared.SMALLEST_RUN], mem[pim_shared.DEPTH] = self.smallest_run, self.depth
        mem[pim_shared.LOCKED] = self.locks
        return mem

    def make_room(self, needed: int) -> None:
        """Replace the output tree of the next merge by one that is large enough for `needed` entries."""
        if self.adaptive and self.width < WIDTHS[-1] and crowded(self.tree):
            self.width = min(WIDTHS[-1], 2 * int(self.tree[WIDTH]))
        grows = needed + self.leaf_size + css.LANES >= self.tree[pim_shared.ROOM]
        stored = int(needed * _GROWTH) if grows else self._laid[self.current]
        larger = self._lay(stored)
        adopt(larger, 0)
        self.trees[1 - self.current], self._laid[1 - self.current] = larger, stored

    def load(self, words: I64, seqs: I64) -> None:
        """Fill an empty side at once."""
        order = np.argsort(words, kind="stable")
        if words.size + self.leaf_size + css.LANES >= self.tree[pim_shared.ROOM]:
            self.trees = [self._lay(words.size), self._lay(words.size)]
            self._laid = [words.size, words.size]
            adopt(self.trees[1], 0)
        mem, at, apart = self.tree, int(self.tree[WORDS]), int(self.tree[css.SEQS])
        mem[at : at + words.size] = words[order]
        mem[at + apart : at + apart + words.size] = seqs[order]
        adopt(mem, words.size)

    def pending(self) -> int:
        """Entries of T_I."""
        return sum(self.sub_index_sizes())

    def sub_index_sizes(self) -> list[int]:
        """Entries in each sub-index, in key order (figure 13b: how evenly inserts are distributed)."""
        chunks = self._chunks()
        headers = self.tree[chunks].tolist()
        return [
            sum(words.size for words, _ in self._entries(int(chunk))) if header > COUNT_MASK else header
            for chunk, header in zip(chunks, headers, strict=True)
        ]

    def _chunks(self) -> I64:
        chunks: I64 = int(self.tree[CHUNKS]) + int(self.tree[pim_shared.STEP]) * np.arange(self.tree[SUB_COUNT])
        return chunks

    def _entries(self, chunk: int) -> Iterator[tuple[I64, I64]]:
        """Words and seqs of a sub-index, part by part."""
        mem, header = self.tree, int(self.tree[chunk])
        if header <= COUNT_MASK:
            places = [int(pim_shared.entry_at(chunk, place)) for place in range(1, header + 1)]
            at = np.array(places, np.int64)
            yield mem[at], mem[at + pim_shared.LANES]
            return
        node = int(btree.first_leaf(mem, header >> COUNT_BITS))
        while node:
            base = node * btree.NODE
            count = int(mem[base + btree.COUNT])
            yield mem[base + btree.KEYS :][:count], mem[base + btree.SEQS :][:count]
            node = int(mem[base + btree.NEXT])

    def held(self) -> tuple[I64, I64]:
        """Copies of all words and seqs, T_S's before T_I's."""
        at, apart, count = int(self.tree[WORDS]), int(self.tree[css.SEQS]), int(self.tree[STORED])
        parts = [part for chunk in self._chunks() for part in self._entries(int(chunk))]
        words, seqs = ([part[k] for part in parts] for k in (0, 1))
        return (
            np.concatenate([self.tree[at : at + count], *words]),
            np.concatenate([self.tree[at + apart : at + apart + count], *seqs]),
        )

    def check(self) -> None:
        """Raise AssertionError where the tree in use breaks its invariants."""
        mem, at, count = self.tree, int(self.tree[WORDS]), int(self.tree[STORED])
        words = mem[at : at + count]
        demand(np.all(words[1:] >= words[:-1]), "T_S is not sorted")
        leaf_ends = words[self.leaf_size - 1 : -1 : self.leaf_size]
        separators = mem[int(mem[INNER]) :][: leaf_ends.size]
        demand(np.array_equal(separators, leaf_ends), "separators do not match T_S")
        chunks = self._chunks()
        demand(not np.any(mem[chunks + pim_shared.LANES]), "a sub-index is locked")
        demand(not np.any(mem[chunks + 2 * mem[WIDTH]]), "an entry is beside its sub-index, though nothing merges")
        demand(np.count_nonzero(mem[chunks] > COUNT_MASK) == mem[SPILLED], "the spilled sub-indexes have lost count")
        demand(self.pending() <= mem[pim_shared.T_I_ROOM], "T_I is overdue for a merge")
        _, seqs = self.held()
        demand(np.unique(seqs).size == seqs.size, "an entry is held twice")

    def settings(self) -> Mapping[str, float]:
        """The parameters in use."""
        return {"merge_ratio": self.merge_ratio, "width": int(self.tree[WIDTH]), "leaf_size": self.leaf_size}

    @property
    def nbytes(self) -> int:
        """Bytes of both trees, without unused nodes."""
        unused = sum(int(tree[btree.NODES] - tree[btree.USED]) * btree.NODE for tree in self.trees)
        return 8 * (sum(tree.size for tree in self.trees) - unused)
