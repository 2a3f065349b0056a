"""Classic B+-tree over the window: every arrival inserts, every expiry deletes (SIGMOD paper, section 2.2.1).

Invariant: the tree holds exactly the entries of the ring, sorted by (word, seq) along its leaves; all leaves
have one depth, and every node but the root is at least a third full.
"""

from __future__ import annotations

import numpy as np

from streamjoin.indexes.base import I64, Index, arena, demand, pages
from streamjoin.indexes.nodes import check_tree
from streamjoin.indexes.registry import register_index
from streamjoin.kernels.trees import btree
from streamjoin.kernels.trees.btree import BACK, FANOUT, FRONT, MOST_KEYS, NODE, NODES, RING, RING_MASK, TREE, USED
from streamjoin.kernels.trees.entries import HEAD_WORDS, MIN_SEQ, SIZE
from streamjoin.model.errors import SpecError

_SMALLEST = 64
_FIRST_NODE = HEAD_WORDS // NODE


@register_index
class BTreeIndex(Index):
    """A mutable B+-tree; `fanout` is the number of keys a node holds at most."""

    name = "btree"
    task = staticmethod(btree.task)

    def __init__(self, window: int | None = None, fanout: int = MOST_KEYS) -> None:
        if not 3 <= fanout <= MOST_KEYS:
            raise SpecError(f"fanout={fanout} of a btree index is not between 3 and {MOST_KEYS}")
        self.fanout = fanout
        self._lay(max(_SMALLEST, window or 0), nodes_for(window or 0, fanout))
        self.reset()

    def _lay(self, capacity: int, nodes: int) -> None:
        capacity = 1 << (capacity - 1).bit_length()
        ring = (_FIRST_NODE + nodes) * NODE
        self.mem = arena(pages(ring + 2 * capacity))
        self.mem[NODES] = _FIRST_NODE + nodes
        self.mem[FANOUT] = self.fanout
        self.mem[RING] = ring
        self.mem[RING_MASK] = capacity - 1

    def reset(self) -> None:
        """Remove all entries."""
        self.mem[[FRONT, BACK, SIZE, MIN_SEQ, btree.FREE, btree.FREE_COUNT]] = 0
        self.mem[USED] = _FIRST_NODE
        self.mem[TREE] = btree.take_node(self.mem) * 16

    def maintain(self) -> None:
        """Double what is full: the nodes, the ring or both. Nodes keep their numbers."""
        old, (words, seqs) = self.mem, self.held()
        capacity, nodes = int(old[RING_MASK]) + 1, int(old[NODES]) - _FIRST_NODE
        scarce = old[btree.FREE_COUNT] + old[NODES] - old[USED] < btree.SPARE_NODES
        self._lay(2 * capacity if words.size == capacity else capacity, 2 * nodes if scarce else nodes)
        for slot in (btree.FREE, btree.FREE_COUNT, USED, TREE):
            self.mem[slot] = old[slot]
        self._carry(old)
        used = slice(HEAD_WORDS, int(old[USED]) * NODE)
        self.mem[used] = old[used]
        at = int(self.mem[RING])
        self.mem[at : at + 2 * words.size] = np.stack([words, seqs], axis=1).ravel()
        self.mem[BACK] = words.size

    def held(self) -> tuple[I64, I64]:
        """All words and seqs, oldest first."""
        at = self.mem[RING] + 2 * (np.arange(self.mem[FRONT], self.mem[BACK]) & self.mem[RING_MASK])
        return self.mem[at], self.mem[at + 1]

    def settings(self) -> dict[str, float]:
        """Keys per node."""
        return {"fanout": self.fanout}

    def sections(self) -> dict[str, int]:
        """Arena words per component."""
        nodes = (int(self.mem[NODES]) - _FIRST_NODE) * NODE
        return {"nodes": nodes, "ring": 2 * (int(self.mem[RING_MASK]) + 1)}

    def check(self) -> None:
        """Walk the tree and compare it with the ring."""
        words, seqs = self.held()
        in_tree = check_tree(self.mem, int(self.mem[TREE]), least=-(-self.fanout // 3))
        by_word = np.lexsort((seqs, words))
        expected = np.stack([words[by_word], seqs[by_word]], axis=1)
        demand(np.array_equal(in_tree, expected), "tree and ring hold different entries")
        demand(words.size == len(self), "the size is off")
        demand(not seqs.size or seqs[0] >= self.min_seq, "an expired entry is still there")


def nodes_for(entries: int, fanout: int) -> int:
    """Enough nodes for `entries` entries without deletions, plus the splits of one more insert.

    A split leaves each half at least (fanout - 1) // 2 full. Deletions may leave nodes emptier: `maintain` then
    adds more.
    """
    leaves = entries // max(1, (fanout - 1) // 2) + 1
    inner, level = 0, leaves
    while level > 1:
        level = level // max(2, fanout // 2) + 1 if level > 2 else 1
        inner += level
    return leaves + inner + btree.SPARE_NODES
