"""All index kinds by name: what `index=...` of a join accepts, and what the conformance tests go through.

Invariant: a kind's name here is its class's `name`, and every kind can be made from a window size alone.
"""

from __future__ import annotations

from streamjoin.indexes.base import Index
from streamjoin.indexes.btree import BTreeIndex
from streamjoin.indexes.chained import BChainIndex, IBChainIndex
from streamjoin.indexes.hashed import HashedIndex
from streamjoin.indexes.im_tree import ImTreeIndex
from streamjoin.indexes.immutable_btree import ImmutableBTreeIndex
from streamjoin.indexes.pim_tree import PimTreeIndex
from streamjoin.indexes.scan import ScanIndex
from streamjoin.model.errors import SpecError

INDEXES: dict[str, type[Index]] = {
    kind.name: kind
    for kind in (
        ScanIndex,
        HashedIndex,
        BTreeIndex,
        ImmutableBTreeIndex,
        BChainIndex,
        IBChainIndex,
        ImTreeIndex,
        PimTreeIndex,
    )
}


def make_index(name: str, window: int | None = None, **settings: float) -> Index:
    """An empty index of a kind; `window` is the number of live entries to expect, where that is known."""
    if name not in INDEXES:
        raise SpecError(f"index={name!r} is not one of {sorted(INDEXES)}")
    kind: type = INDEXES[name]
    try:
        index: Index = kind(window=window, **settings)
    except TypeError as error:
        raise SpecError(f"the {name} index does not take {sorted(settings)}: {error}") from error
    return index
