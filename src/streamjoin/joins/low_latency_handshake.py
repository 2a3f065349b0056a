"""`low_latency_handshake`: every tuple rushes through a chain of nodes and rests as one copy at its home node.

One thread a node, and a driver that feeds both ends in batches (`options={"batch": 4}`). Copies are scanned, or with
`index=` looked up in an index that each node has for each side.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from streamjoin.joins.handshake_base import ChainJoin, batch_of
from streamjoin.joins.llhj_copies import Copies
from streamjoin.kernels.llhj import llhj_node
from streamjoin.model.binding import BoundSpec


class LowLatencyHandshake(ChainJoin):
    """The chain that tuples rush through, over scans."""

    name: ClassVar[str] = "low_latency_handshake"

    def __init__(self, bound: BoundSpec, nodes: int, options: dict[str, object]) -> None:
        super().__init__(bound, nodes, batch_of(self.name, options), indexed=False, drains=False)
        self._copies = Copies(self._chain, np.uint32 if self._narrow else np.uint64)

    def begun(self) -> None:
        """Room for the copies that the chunk leaves."""
        self._copies.make_room()

    def run_node(self, k: int) -> int:
        """Node k, until it is done or full."""
        chain = self._chain
        return llhj_node(
            self._crew.words, k, chain.mem, *chain.columns(), *self._copies.of(k), chain.results[k]
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """The memory of chain and copies."""
        return super().nbytes + self._copies.nbytes
