"""The flow of a running join: its own threads, between the intake that sends chunks and the collector of pairs.

A flow finds pairs of positions, in any order, and says up to where all of them are found. Invariant: `send`, `settle`
and `end` are called by one thread at a time, as are `take`, `reached` and `forget`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.live.windowed import SentChunk
from streamjoin.windows.crew import Crew

POLL = 0.05
"""Seconds after which a waiting thread looks whether the join has ended."""
INTAKE, COLLECTOR = 0, 1
"""The crew's numbers of intake and collector beside an elastic flow, whose threads have all numbers from 2 on."""


@dataclass(frozen=True)
class TakenPairs:
    """Pairs as a flow finds them: gate positions of the later tuples, and positions of the earlier in their streams."""

    later: Array
    seqs: Array


class Flow(ABC):
    """The threads of one join, between the intake and the collector."""

    threads: int
    crew: Crew
    elastic = False
    """Whether threads may come and go while it runs; it has found everything when `end` returns, whoever is left."""
    in_order = False
    """Whether pairs are found in result order."""
    refined = False
    """Whether its pairs are tested already."""
    eager = True
    """Whether pairs are taken as soon as there are any; otherwise when a chunk is complete, or there are many."""
    settles = True
    """Whether all pairs of what was sent are found without further input."""

    @abstractmethod
    def send(self, sent: SentChunk) -> None:
        """Send a chunk on its way; the intake's. Waits while there is no room."""

    def has_room(self, tuples: int) -> bool:  # noqa: ARG002
        """Whether `send` takes this many tuples without waiting; the intake's."""
        return False

    def await_room(self) -> None:  # noqa: B027 - for flows that take few chunks at a time
        """Wait until it is worth sending more, so that what comes meanwhile is sent together; the intake's."""

    def settle(self) -> None:  # noqa: B027 - for flows that do not settle by themselves
        """Find all pairs of what was sent, in a pause of the input; the intake's."""

    @abstractmethod
    def end(self) -> None:
        """End the input; the intake's. Everything is found once the threads have returned."""

    @abstractmethod
    def run(self, k: int) -> object:
        """Thread k, until the input has ended; `windows.crew.LEFT` if it was dismissed before."""

    def wake(self) -> None:  # noqa: B027 - for threads that sleep
        """Called when the join ends: wake all threads."""

    @abstractmethod
    def take(self, oldest: SentChunk) -> TakenPairs | None:
        """The next pairs; None if there are none for a while, and `oldest` is not complete; the collector's."""

    @property
    def holds(self) -> bool:
        """Whether all pairs taken so far satisfy the residual; the collector's."""
        return False

    @abstractmethod
    def reached(self, sent: SentChunk) -> bool:
        """Whether all pairs of the oldest open chunk were among those taken; the collector's."""

    @abstractmethod
    def forget(self, sent: SentChunk) -> None:
        """Called when a chunk is complete and its rows were delivered; the collector's."""

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """Work done in all."""

    def work(self) -> dict[str, dict[str, int]]:
        """Work done by thread."""
        return {}

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held."""


class HeldPairs:
    """Pairs that were found and wait until all before them are: the sorting operator of the LLHJ paper, section 6.2.

    A punctuation lets out what lies before it, so only what was found since the one before it waits, and is sorted.
    """

    def __init__(self, self_join: bool) -> None:
        self._self_join = self_join
        self._pieces: list[TakenPairs] = []
        self.most = 0
        """The most pairs that have waited at a time."""

    def add(self, pairs: TakenPairs) -> None:
        """Hold some more."""
        if pairs.later.size:
            self._pieces.append(pairs)
            self.most = max(self.most, self.size)

    @property
    def size(self) -> int:
        """How many there are; any thread may ask."""
        return sum(piece.later.size for piece in list(self._pieces))

    def take(self, reached: int) -> TakenPairs:
        """Take those whose later tuples lie before a gate position, in result order.

        Sorted by the later tuple and then the earlier; both roles of a self-join's tuple are one position.
        """
        pairs = together(self._pieces)
        ready = pairs.later < reached
        self._pieces = []
        if not ready.all():
            self._pieces = [TakenPairs(pairs.later[~ready], pairs.seqs[~ready])]
            pairs = TakenPairs(pairs.later[ready], pairs.seqs[ready])
        later, seqs = pairs.later, pairs.seqs
        order = np.lexsort((later & 1, seqs, later >> 1) if self._self_join else (seqs, later))
        return TakenPairs(later[order], seqs[order])


def together(pieces: list[TakenPairs]) -> TakenPairs:
    """All the pairs."""
    if len(pieces) == 1:
        return pieces[0]
    none = np.empty(0, np.int64)
    return TakenPairs(
        np.concatenate([none, *(piece.later for piece in pieces)]),
        np.concatenate([none, *(piece.seqs for piece in pieces)]),
    )
