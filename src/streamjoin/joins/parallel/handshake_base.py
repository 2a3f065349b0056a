"""The base of both handshake joins: turns a chunk into logs and a driver's script, and results into pairs.

Thread k below `nodes` runs node k, thread `nodes` is the driver. A chunk's call returns when its flow has ended, so
all of its results are complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Pairs, Refine, SidePart
from streamjoin.joins.parallel.handshake_chain import Chain, facts_of
from streamjoin.kernels.handshake.links import COMPARED, DONE, EXPIRES, FULL, MIN_SEQ, PLACES, STOPPED, drive
from streamjoin.kernels.handshake.meet import WORD_ROWS
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import SpecError
from streamjoin.windows.buffer import Restore
from streamjoin.windows.crew import Crew
from streamjoin.windows.words import unsigned_words

I64 = npt.NDArray[np.int64]

BATCH = 64
_MOST_BATCH = 4096


def batch_of(name: str, options: Mapping[str, object]) -> int:
    """The driver's batch from `options=`."""
    batch = options.get("batch", BATCH)
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= _MOST_BATCH:
        raise SpecError(f"options= of {name!r}: batch={batch!r} is not a number of tuples from 1 to {_MOST_BATCH}")
    return batch


class ChainJoin(ABC):
    """A join over a chain of nodes."""

    name: ClassVar[str]

    def __init__(self, bound: BoundSpec, nodes: int, batch: int, *, indexed: bool, drains: bool) -> None:
        self.decides = bound.settled if indexed else frozenset(range(min(2, len(bound.terms))))
        self._indexed = indexed
        self._narrow = not indexed and all(bound.terms[t].narrow for t in self.decides)
        terms = 1 if indexed else len(self.decides)
        self.chain = Chain(nodes, np.uint32 if self._narrow else np.uint64, terms, batch=batch, drains=drains)
        self.crew = Crew(nodes + 1, PLACES)
        # Whether a side's bounds never decrease between probes; times in arrival order may.
        gated = bound.spec.order == "event_time"
        self._grows = [gated or window.kind == "count" for window in bound.windows]

    # -- what a kind defines ---------------------------------------------------------------------------

    @abstractmethod
    def run_node(self, k: int) -> int:
        """Run node k's kernel until it is done or its results must be collected."""

    def make_room(self, spare: int = 0) -> None:  # noqa: B027 - most need none
        """Called before a flow: make room for the logged tuples, and `spare` more of each side, elsewhere."""

    def ended(self) -> None:  # noqa: B027 - likewise
        """Called once the chunk's flow has ended."""

    # -- the contract of an algorithm ------------------------------------------------------------------

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Send the chunk through the chain and collect the pairs."""
        is_right, begins = self.log(chunk)
        pieces: list[tuple[Array, Array]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        if is_right.size:
            self.chain.open()
            self.make_room()

            def step(k: int) -> None:
                if k == self.chain.nodes:
                    left, right = self.chain.logs
                    drive(self.crew.words, k, self.chain.mem, is_right, left.facts, right.facts, *begins, False, True)
                    return
                code = FULL
                while code not in (DONE, STOPPED):
                    code = self.run_node(k)
                    rows = self.chain.taken(k)
                    if len(rows):
                        pairs = refine(*self.chain.as_pairs(rows))
                        pieces.append((pairs[0].copy(), pairs[1].copy()))

            self.crew.run(step)
            self.ended()
        probe, seq = (np.concatenate([pair[i] for pair in pieces]) for i in (0, 1))
        order = np.lexsort((seq, probe))
        return Pairs(probe[order], seq[order])

    def log(self, chunk: Chunk, gate: int = 0, dropped: tuple[int, int] = (0, 0)) -> tuple[Array, tuple[int, int]]:
        """Log the tuples that can match; returns their sides in gate order, and the first place of each side.

        `gate` is the gate position of the chunk's first tuple. Positions below `dropped` are outside every window.
        """
        logs = self.chain.logs
        begins = (logs[0].count, logs[1].count)
        places = []
        for side, part in enumerate((chunk.left, chunk.right)):
            words, valid_places = self._words(part)
            at = part.at[valid_places]
            places.append(at)
            least = chunk.min_seq[at]
            upto = least if chunk.stored_only else chunk.upto[at]
            logs[side].append(words, facts_of(valid_places + part.first_seq, least, upto, at + gate))
        for side, at in enumerate(places):
            other = logs[1 - side]
            rows = logs[side].facts[logs[side].count - at.size - logs[side].base : logs[side].count - logs[side].base]
            bounds = rows[:, MIN_SEQ] if self._grows[1 - side] else dropped[1 - side]
            rows[:, EXPIRES] = other.place_of(bounds)
        order = np.argsort(np.concatenate(places), kind="stable")
        return order >= places[0].size, begins

    def _words(self, part: SidePart) -> tuple[Array, I64]:
        """The words that the nodes compare, and the places of their tuples: no NULL, no empty interval."""
        mask = np.ones(part.n, np.bool_) if part.encoded.valid is None else part.encoded.valid.copy()
        terms = [part.encoded.terms[t] for t in sorted(self.decides)]
        if self._indexed:
            if part.encoded.index is None:
                raise AssertionError("an index needs an index word")
            terms = [part.encoded.index]
        for term in terms:
            mask &= term.lo <= term.hi
        places = np.flatnonzero(mask)
        words = np.zeros((WORD_ROWS, places.size), np.uint32 if self._narrow else np.uint64)
        for t, term in enumerate(terms):
            words[t::2] = unsigned_words(term.take(places), self._narrow)
        return words, places

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        for side, bound in enumerate((left_min, right_min)):
            self.chain.forget(side, int(self.chain.logs[side].place_of(bound)))

    def saved(self) -> Restore | None:
        """Return None: a stopped flow leaves tuples at arbitrary nodes of the chain."""
        return None

    def close(self) -> None:
        """End the threads."""
        self.crew.close()

    def counters(self) -> dict[str, int]:
        """Pairs compared in all nodes."""
        return {"compared": int(self.chain.node_words(COMPARED).sum())}

    @property
    def nbytes(self) -> int:
        """Bytes held by the chain."""
        return self.chain.nbytes
