"""`low_latency_handshake`: every tuple passes quickly through a chain of nodes and leaves a copy at its home node.

There is one thread per node, and a driver that feeds both ends in batches (`options={"batch": 4}`). Copies are scanned
or, with `index=`, looked up in an index per node and side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from streamjoin.handshake.chain import Chain, Copies
from streamjoin.handshake.handshake import ChainJoin, batch_of
from streamjoin.handshake.kernels.links import BATCH, EXPIRED, MAINTAIN
from streamjoin.handshake.kernels.low_latency import llhj_node
from streamjoin.handshake.kernels.low_latency_index import NODES_OVER, TASK_ROWS, TOO_SMALL
from streamjoin.indexes.base import Index, Matches
from streamjoin.indexes.registry import make_index
from streamjoin.jit.machine import I64
from streamjoin.joins.registry import register_algorithm
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.workers import Workers

if TYPE_CHECKING:
    from streamjoin.joins.live.runner import Runner, Setup

NAME = "low_latency_handshake"
INDEXES = ("hashed", "pim_tree")
_ROOM = 1 << 12


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
        return llhj_node(
            self.crew.words, k, chain.mem, *chain.columns(), *self._copies.of(k), chain.results[k], chain.tests(k)
        )

    @property
    def nbytes(self) -> int:
        """Bytes held by the chain and the copies."""
        return super().nbytes + self._copies.nbytes


class NodeIndexes:
    """An index per node and side, over (word, place). During a flow only the node's own thread uses it."""

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
                self._columns[k], matches.probe, matches.seq, self._chain.results[k], self._chain.tests(k),
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


def _live(setup: Setup) -> Runner:
    from streamjoin.handshake.live import run_chain

    return run_chain(setup)


register_algorithm(
    NAME,
    lambda bound, choice, workers: low_latency_handshake(
        bound, workers, choice.options, choice.index, choice.index_options
    ),
    indexes=INDEXES,
    own_threads=True,
    options=("batch",),
    live=_live,
)
