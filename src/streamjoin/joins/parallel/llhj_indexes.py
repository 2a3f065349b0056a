"""The indexes of a low-latency handshake join: one per node and side, over (word, place)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streamjoin.indexes.base import Index, Matches
from streamjoin.indexes.registry import make_index
from streamjoin.joins.parallel.handshake_chain import Chain
from streamjoin.kernels.handshake.links import BATCH, EXPIRED, MAINTAIN
from streamjoin.kernels.handshake.low_latency_index import NODES_OVER, TASK_ROWS, TOO_SMALL
from streamjoin.kernels.machine import I64

_ROOM = 1 << 12


class NodeIndexes:
    """Both sides' indexes at all nodes of a chain. During a flow only the node's own thread uses them."""

    def __init__(
        self, chain: Chain, kind: str, windows: tuple[int | None, int | None], settings: Mapping[str, float]
    ) -> None:
        self._chain = chain
        self._node = NODES_OVER[kind]
        shares = [None if window is None else -(-window // chain.nodes) for window in windows]
        self.indexes: list[tuple[Index, Index]] = [
            (make_index(kind, shares[0], **settings), make_index(kind, shares[1], **settings))
            for _ in range(chain.nodes)
        ]
        self._columns = [np.zeros((TASK_ROWS, int(chain.mem[BATCH])), np.int64) for _ in range(chain.nodes)]
        self._matches = [Matches(_ROOM) for _ in range(chain.nodes)]

    def run(self, crew: I64, k: int) -> int:
        """Run node k until it is done or full; its indexes merge and grow as needed."""
        left, right = self.indexes[k]
        matches = self._matches[k]
        while True:
            code = self._node(
                crew, k, self._chain.mem, *self._chain.columns(), left.mem, right.mem,
                self._columns[k], matches.probe, matches.seq, self._chain.results[k],
            )  # fmt: skip
            if code == TOO_SMALL:
                matches.double()
            elif code in (MAINTAIN, MAINTAIN + 1):
                (left if code == MAINTAIN else right).maintain()
            else:
                return code

    def expire(self) -> None:
        """Between flows: drop the entries that are outside every window."""
        for side in (0, 1):
            for bound, pair in zip(self._chain.node_words(EXPIRED + side), self.indexes, strict=True):
                pair[side].expire(int(bound))

    def counters(self) -> dict[str, int]:
        """Steps of all indexes, per kind."""
        each = [index.counters() for pair in self.indexes for index in pair]
        return {f"steps_{name}": sum(counters[name] for counters in each) for name in each[0]}

    @property
    def nbytes(self) -> int:
        """Bytes held by all indexes."""
        return sum(sum(index.nbytes().values()) for pair in self.indexes for index in pair)
