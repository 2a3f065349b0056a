"""`round_robin`: the window is distributed over threads by arrival; each thread indexes its share.

The baseline of the PIM-Tree paper's figure 8a (section 2.2.3), the partitioning behind handshake join, SplitJoin and
BiStream: a tuple is stored by one thread and looked up by all, so its results are complete only after every thread
has answered, and n threads search n trees. Over `scan` it is the partitioned nested loop. Invariant: the shares of a
side are disjoint, and their union is its window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

import streamjoin as sj
from streamjoin.joins.base import Chunk, Pairs, Refine
from streamjoin.joins.indexed import Indexed
from streamjoin.kernels.trees.task import INSERTS
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.workers import Workers

DEFAULT = "btree"


class RoundRobin:
    """A join over one index per thread; thread p mod n stores position p of a side."""

    name: ClassVar[str] = "round_robin"
    indexes: ClassVar[tuple[str, ...]] = (DEFAULT, "scan")

    def __init__(self, bound: BoundSpec, index: str | None, settings: Mapping[str, float], workers: Workers) -> None:
        self._workers = workers
        self._shares = [Indexed(bound, index or DEFAULT, settings) for _ in range(workers.n)]
        self.decides = bound.settled

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Every thread looks up all tuples and stores its own; the parts of each result are then merged."""
        ops, *rest = self._shares[0].columns(chunk)

        def answer(k: int) -> Pairs:
            others = chunk.own_seq % len(self._shares) != k
            own_ops = np.where(others, ops & ~np.int64(INSERTS), ops)
            return self._shares[k].take(chunk.upto, (own_ops, *rest), refine, 0, chunk.n)

        parts = self._workers.map(answer, range(len(self._shares)))
        if len(parts) == 1:
            return parts[0]
        probe, seq = (np.concatenate([getattr(part, name) for part in parts]) for name in ("probe", "seq"))
        order = np.lexsort((seq, probe))
        return Pairs(probe[order], seq[order])

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        for share in self._shares:
            share.forget(left_min, right_min)

    def saved(self) -> Restore | None:
        """Return None: indexes change in place, so they are rebuilt from the stores."""
        return None

    def close(self) -> None:
        """Do nothing: the join owns the threads."""

    def counters(self) -> dict[str, int]:
        """Steps of all shares, per kind."""
        parts = [share.counters() for share in self._shares]
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    @property
    def nbytes(self) -> int:
        """Bytes held by all shares."""
        return sum(share.nbytes for share in self._shares)


sj.register_algorithm(
    RoundRobin.name,
    lambda bound, choice, workers: RoundRobin(bound, choice.index, choice.index_options, workers),
    indexes=RoundRobin.indexes,
    scans=False,
    needs_word=True,
)
