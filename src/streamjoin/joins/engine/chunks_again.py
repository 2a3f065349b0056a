"""The stored tuples as chunks again, for an algorithm that is rebuilt after a failed call.

The tuples are only stored (`stored_only`): their matches were found when they arrived. Left tuples come first, each
side in the order of its positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from streamjoin.joins.base import Chunk, SidePart
from streamjoin.windows.encoding import Encoded
from streamjoin.windows.store import SideStore

Encode = Callable[[int, int, int], Encoded]
"""The words of a side's tuples, from a position on, so many."""


def chunks_again(stores: tuple[SideStore, SideStore], encode: Encode, largest: int) -> Iterator[Chunk]:
    """The live tuples of both sides in chunks of at most `largest`."""
    for side, store in enumerate(stores):
        for begin in range(store.base, store.count, largest):
            yield _chunk(stores, side, begin, min(largest, store.count - begin), encode)


def _chunk(stores: tuple[SideStore, SideStore], side: int, begin: int, n: int, encode: Encode) -> Chunk:
    others = stores[1 - side]
    # Tuples of the other side that came before: all live ones, or none.
    before = others.count if side == 1 else others.base
    own = SidePart(encode(side, begin, n), np.arange(n), begin)
    other = SidePart(encode(1 - side, others.base, 0), np.empty(0, np.int64), before)
    left, right = (own, other) if side == 0 else (other, own)
    seqs = np.arange(begin, begin + n)
    return Chunk(
        np.full(n, side == 1), seqs, np.full(n, before), np.full(n, others.base), left, right, stored_only=True
    )
