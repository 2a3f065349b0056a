"""`handshake`: the original handshake join. The windows are spread over a chain of nodes and flow past each other.

There is one thread per node, and a driver that feeds both ends. A tuple meets the other side's tuples as they pass,
which takes up to half a window; a call can't wait that long, so at its end its tuples visit the rest of the chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from streamjoin.joins.parallel.handshake_base import ChainJoin, batch_of
from streamjoin.kernels.handshake.handshake import handshake_node
from streamjoin.kernels.handshake.links import DRAINED
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.workers import Workers


class Handshake(ChainJoin):
    """The chain of flowing windows."""

    name: ClassVar[str] = "handshake"

    def __init__(self, bound: BoundSpec, workers: Workers, options: Mapping[str, object]) -> None:
        super().__init__(bound, workers, batch_of(self.name, options), indexed=False, drains=True)

    def run_node(self, k: int) -> int:
        """Run node k until it is done or full."""
        return handshake_node(self.crew.words, k, self.chain.mem, *self.chain.columns(), self.chain.results[k])

    def ended(self) -> None:
        """All pairs of the tuples so far are found."""
        self.chain.mem[DRAINED : DRAINED + 2] = [log.count for log in self.chain.logs]
