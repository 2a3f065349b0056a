"""PIM-Tree: T_I is partitioned along T_S at the insertion depth D_I (SIGMOD paper, section 3.3).

Depth counts from T_S's root, depth 0; its leaves are the deepest. Invariant: sub-index i holds the new entries
between the largest words of T_S's nodes i-1 and i at that depth, so the ranges follow the distribution of the
window at every merge.

By default D_I is the depth of the leaves, and m is such that a sub-index fills half a cache line by the time of the
merge. The width of a sub-index follows from m, and doubles after a merge that found many spilled sub-indexes.
"""

from __future__ import annotations

import numpy as np

from streamjoin.indexes.base import I64, arena, demand, pages
from streamjoin.indexes.nodes import check_tree
from streamjoin.indexes.registry import register_index
from streamjoin.kernels.trees import btree
from streamjoin.kernels.trees.css import LEVELS, LIMIT, PENDING
from streamjoin.kernels.trees.entries import LARGEST
from streamjoin.model.errors import SpecError
from streamjoin.pim_tree.im_tree import SMALLEST_RUN, MergedIndex
from streamjoin.pim_tree.kernels import pim
from streamjoin.pim_tree.kernels.pim import CHUNKS, COUNT_BITS, COUNT_MASK, SPILLED, SUB_AT, SUB_COUNT, WIDTH

WIDTHS = (8, 16, 32)
_FIRST_NODES = 4 * pim.SPILL_NODES
_SUBS_A_NODE = 8
_TOLERATED_SPILLS = 1 / 6
_HEADROOM = 1.75  # slots for each entry expected at the merge: one chunk in twenty overflows


class SubIndexes:
    """T_I in ranges along T_S: a chunk of `width` words each, which spills to a B+-tree when it is full."""

    def __init__(self, insertion_depth: int | None, width: int, leaf_size: int, *, adaptive: bool) -> None:
        self._insertion_depth, self.width, self._leaf_size, self._adaptive = insertion_depth, width, leaf_size, adaptive

    def depth(self, mem: I64) -> int:
        """The insertion depth in use."""
        levels = int(mem[LEVELS])
        return levels if self._insertion_depth is None else min(self._insertion_depth, levels)

    def sections(self, room: int) -> dict[str, int]:
        """A chunk for every leaf of T_S."""
        return {"sub-indexes": pages((room // self._leaf_size + 1) * 2 * self.width)}

    def nodes(self, limit: int, room: int) -> int:  # noqa: ARG002
        """Nodes for the sub-indexes that spill."""
        return _FIRST_NODES + room // self._leaf_size // _SUBS_A_NODE

    def adapt(self, mem: I64, settled: bool) -> None:
        """Double the width after many sub-indexes have spilled."""
        # While the window fills, T_I is as large as T_S, and its sub-indexes spill for that.
        many = mem[SPILLED] > max(1, _TOLERATED_SPILLS * mem[SUB_COUNT])
        if settled and many and self._adaptive and self.width < WIDTHS[-1]:
            self.width *= 2

    def clear(self, mem: I64, at: int, first_node: int) -> None:
        """Cut the ranges anew."""
        mem[CHUNKS], mem[WIDTH] = at, self.width
        pim.attach(mem, int(mem[LEVELS]) - self.depth(mem))
        pim.clear_chunks(mem, first_node)

    def unload(self, mem: I64, out: I64, run: int, apart: int) -> int:
        """Write the sub-indexes one after the other."""
        return int(pim.unload(mem, out, run, apart))

    def headers(self, mem: I64) -> list[int]:
        """What each chunk begins with: its number of entries, or its B+-tree."""
        headers: list[int] = mem[int(mem[CHUNKS]) + 2 * self.width * np.arange(mem[SUB_COUNT])].tolist()
        return headers

    def check(self, mem: I64, oldest: int) -> None:
        """Test that each sub-index has the entries of its range, and the counts."""
        below, total, spilled = -LARGEST - 1, 0, 0
        for sub, header in enumerate(self.headers(mem)):
            at = int(mem[CHUNKS]) + sub * 2 * self.width
            upper = int(mem[mem[SUB_AT] + sub])
            if header > COUNT_MASK:
                entries = check_tree(mem, header >> COUNT_BITS)
                spilled += 1
            else:
                demand(header < self.width, "a chunk is overfull")
                parts = [mem[first + 1 : first + 1 + header] for first in (at, at + self.width)]
                entries = np.stack(parts, axis=1)
            demand(mem[at + self.width] == 0, "a sub-index is locked")
            inside = (entries[:, 0] <= upper) & ((entries[:, 0] > below) | (sub == 0))
            demand(np.all(inside), "a sub-index holds a word of another's range")
            demand(np.all(entries[:, 1] > oldest), "T_I holds an entry older than T_S")
            below, total = upper, total + entries.shape[0]
        demand(total == mem[PENDING], "the sub-indexes have lost count")
        demand(spilled == mem[SPILLED], "the spilled sub-indexes have lost count")


@register_index
class PimTreeIndex(MergedIndex):
    """The partitioned tree; `insertion_depth` is the paper's D_I, `width` the words of a sub-index's chunk."""

    name = "pim_tree"
    task = staticmethod(pim.task)

    def __init__(
        self,
        window: int | None = None,
        merge_ratio: float | None = None,
        insertion_depth: int | None = None,
        width: int | None = None,
        leaf_size: int = 32,
        fanout: int = 32,
        smallest_run: int = SMALLEST_RUN,
    ) -> None:
        if insertion_depth is not None and insertion_depth < 1:
            raise SpecError(f"insertion_depth={insertion_depth} is not 1 or more: the root, depth 0, has no siblings")
        if width is not None and width not in WIDTHS:
            raise SpecError(f"width={width} of a sub-index is not one of {WIDTHS}")
        adaptive = width is None and insertion_depth is None
        expected = (merge_ratio or self.choose_ratio(window)) * leaf_size * _HEADROOM
        fitting = [each for each in WIDTHS if each > expected]
        width = width or (fitting[0] if adaptive and fitting else WIDTHS[0])
        self._subs = SubIndexes(insertion_depth, width, leaf_size, adaptive=adaptive)
        super().__init__(self._subs, window, merge_ratio, leaf_size, fanout, smallest_run)

    @staticmethod
    def choose_ratio(window: int | None) -> float:  # noqa: ARG004
        """The share of the window in T_I that fills half a cache line per leaf by the time of the merge."""
        return 1 / 8

    @property
    def depth(self) -> int:
        """The insertion depth in use."""
        return self._subs.depth(self.mem)

    def settings(self) -> dict[str, float]:
        """The merge ratio, the shape of T_S, the insertion depth and the sub-indexes there."""
        own = {"insertion_depth": self.depth, "sub_indexes": int(self.mem[SUB_COUNT]), "width": self._subs.width}
        return super().settings() | own

    def maintain(self) -> None:
        """Merge when T_I is full, or when spills caused by skew have used up the nodes.

        If drift fills the nodes early, new ranges are cheaper than copying the arena. Right after a merge the ranges
        would not change, so nodes are added instead.
        """
        if 4 * self.mem[PENDING] < self.mem[LIMIT]:
            self._add_nodes()
        else:
            self.merge()

    def _add_nodes(self) -> None:
        """Double the nodes; they are the last section, so no other section moves."""
        old, more = self.mem, self._sizes["nodes"]
        self.mem = arena(old.size + more)
        self.mem[: old.size] = old
        self._sizes["nodes"] += more
        self.mem[btree.NODES] += more // btree.NODE

    def sub_index_sizes(self) -> list[int]:
        """Entries in each sub-index, in key order (figure 13b: how evenly inserts are distributed)."""
        sizes = []
        for header in self._subs.headers(self.mem):
            spilled = header > COUNT_MASK
            sizes.append(check_tree(self.mem, header >> COUNT_BITS).shape[0] if spilled else header)
        return sizes
