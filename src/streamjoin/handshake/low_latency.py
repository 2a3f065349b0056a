"""`low_latency_handshake`: every tuple passes quickly through a chain of nodes and leaves a copy at its home node.

There is one thread per node, and a driver that feeds both ends in batches (`options={"batch": 4}`). Copies are scanned
or, with `index=`, looked up in an index per node and side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from streamjoin.joins.parallel.handshake_base import ChainJoin, batch_of
from streamjoin.joins.parallel.handshake_chain import Copies
from streamjoin.joins.parallel.llhj_indexes import NodeIndexes
from streamjoin.kernels.handshake.low_latency import llhj_node
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.workers import Workers

NAME = "low_latency_handshake"
INDEXES = ("hashed", "pim_tree")


class ScanningChain(ChainJoin):
    """Nodes that scan their copies."""

    name: ClassVar[str] = NAME

    def __init__(self, bound: BoundSpec, workers: Workers, options: Mapping[str, object]) -> None:
        super().__init__(bound, workers, batch_of(self.name, options), indexed=False, drains=False)
        self._copies = Copies(self.chain, np.uint32 if self._narrow else np.uint64)

    def make_room(self, spare: int = 0) -> None:
        """Make room for the copies that the tuples leave."""
        self._copies.make_room(spare)

    def run_node(self, k: int) -> int:
        """Run node k until it is done or full."""
        chain = self.chain
        return llhj_node(self.crew.words, k, chain.mem, *chain.columns(), *self._copies.of(k), chain.results[k])

    @property
    def nbytes(self) -> int:
        """Bytes held by the chain and the copies."""
        return super().nbytes + self._copies.nbytes


class IndexedChain(ChainJoin):
    """Nodes that look tuples up in indexes over their copies."""

    name: ClassVar[str] = NAME

    def __init__(
        self,
        bound: BoundSpec,
        workers: Workers,
        options: Mapping[str, object],
        index: str,
        settings: Mapping[str, float],
    ) -> None:
        super().__init__(bound, workers, batch_of(self.name, options), indexed=True, drains=False)
        left, right = (window.size if window.kind == "count" else None for window in bound.windows)
        self._indexes = NodeIndexes(self.chain, index, (left, right), settings)

    def run_node(self, k: int) -> int:
        """Run node k until it is done or full."""
        return self._indexes.run(self.crew.words, k)

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        super().forget(left_min, right_min)
        self._indexes.expire()

    def counters(self) -> dict[str, int]:
        """Pairs compared, and the steps of the indexes."""
        return super().counters() | self._indexes.counters()

    @property
    def nbytes(self) -> int:
        """Bytes held by the chain and the indexes."""
        return super().nbytes + self._indexes.nbytes


def low_latency_handshake(
    bound: BoundSpec, workers: Workers, options: Mapping[str, object], index: str | None, settings: Mapping[str, float]
) -> ChainJoin:
    """The chain over scans, or over the named index."""
    if index is None:
        return ScanningChain(bound, workers, options)
    return IndexedChain(bound, workers, options, index, settings)
