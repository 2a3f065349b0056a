"""Structural checks of the B+-trees that several indexes keep in their arenas: plain Python, for debug runs.

Invariant tested: separators bound their subtrees, leaves are linked in order and all at one depth, and entries
ascend by (word, seq).
"""

from __future__ import annotations

import numpy as np

from streamjoin.indexes.base import I64, demand
from streamjoin.kernels.trees import css
from streamjoin.kernels.trees.btree import CHILDREN, COUNT, FANOUT, KEYS, NEXT, NODE, SEQS
from streamjoin.kernels.trees.entries import LARGEST
from streamjoin.model.errors import SpecError

_SMALLEST_WORD = -LARGEST - 1


def check_shape(leaf_size: int, fanout: int) -> None:
    """Reject a shape that the kernels cannot compare eight words at a time."""
    if leaf_size < css.LANES or leaf_size % css.LANES:
        raise SpecError(f"leaf_size={leaf_size} of an immutable tree is not a multiple of {css.LANES}")
    if fanout < css.LANES or fanout & (fanout - 1):
        raise SpecError(f"fanout={fanout} of an immutable tree is not a power of two from {css.LANES} on")


def check_tree(mem: I64, tree: int, least: int = 1) -> I64:
    """Check one tree; returns its entries in order, one row (word, seq) per entry."""
    leaves: list[int] = []
    _check_node(mem, tree >> 4, tree & 15, (_SMALLEST_WORD, LARGEST), leaves)
    for leaf, following in zip(leaves, [*leaves[1:], 0], strict=True):
        demand(mem[leaf * NODE + NEXT] == following, "leaves are not linked in order")
        demand(len(leaves) == 1 or mem[leaf * NODE + COUNT] >= least, "a leaf is too empty")
    parts = [
        np.stack([mem[base + part : base + part + mem[base + COUNT]] for part in (KEYS, SEQS)], axis=1)
        for base in (leaf * NODE for leaf in leaves)
    ]
    entries: I64 = np.concatenate(parts)
    order = np.lexsort((entries[:, 1], entries[:, 0]))
    demand(np.array_equal(order, np.arange(order.size)), "leaves are not sorted by (word, seq)")
    return entries


def _check_node(mem: I64, node: int, height: int, bounds: tuple[int, int], leaves: list[int]) -> None:
    base = node * NODE
    count = int(mem[base + COUNT])
    keys = mem[base + KEYS : base + KEYS + count]
    demand(0 <= count <= mem[FANOUT], f"a node holds {count} keys")
    demand(np.all(keys[:-1] <= keys[1:]), "a node's keys are out of order")
    demand(not count or bounds[0] <= keys[0] <= keys[-1] <= bounds[1], "a key is outside its separators")
    if height == 0:
        leaves.append(node)
        return
    demand(count > 0, "an inner node has a single child")
    edges = [bounds[0], *keys.tolist(), bounds[1]]
    for k in range(count + 1):
        child = int(mem[base + CHILDREN + k])
        _check_node(mem, child, height - 1, (edges[k], edges[k + 1]), leaves)
