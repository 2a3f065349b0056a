"""What both handshake joins share, and `handshake`, the original one.

A chunk becomes logs and a driver's script, and results become pairs. Thread k below `nodes` runs node k, thread `nodes`
is the driver. A chunk's call returns when its flow has ended, so all of its results are complete.

In the original join the windows are spread over a chain of nodes and flow past each other. A tuple meets the other
side's tuples as they pass, which takes up to half a window; a call can't wait that long, so at its end its tuples visit
the rest of the chain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from streamjoin._arrays import Array
from streamjoin.handshake.chain import Chain
from streamjoin.handshake.kernels.handshake import handshake_node
from streamjoin.handshake.kernels.links import COMPARED, DONE, DRAINED, FULL, PLACES, STOPPED, drive
from streamjoin.handshake.kernels.logs import SENT_FIELDS, log_tuples, send_block, set_expiries
from streamjoin.joins.base import Chunk, Pairs, Refine, SidePart
from streamjoin.joins.batch.packed_pairs import ordered_pieces
from streamjoin.joins.registry import register_algorithm
from streamjoin.kernels.positions import TERMS as BLOCK_TERMS
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import SpecError
from streamjoin.windows.buffer import Restore
from streamjoin.windows.conditions import Condition
from streamjoin.windows.crew import Crew
from streamjoin.windows.words import TermWords
from streamjoin.windows.workers import Workers

if TYPE_CHECKING:
    from streamjoin.joins.live.runner import Runner, Setup

I64 = npt.NDArray[np.int64]

BATCH = 64
_NO_MASK = np.zeros(0, np.bool_)
_NO_TERM = TermWords(*(np.zeros(0, np.int64) for _ in range(3)))
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

    def __init__(self, bound: BoundSpec, workers: Workers, batch: int, *, indexed: bool, drains: bool) -> None:
        nodes = workers.n
        self._workers = workers
        self.decides = bound.settled if indexed else frozenset(range(min(2, len(bound.terms))))
        self._indexed = indexed
        self._narrow = not indexed and all(bound.terms[t].narrow for t in self.decides)
        terms = 1 if indexed else len(self.decides)
        dtype = np.uint32 if self._narrow else np.uint64
        self._condition = Condition.of(bound)
        self.chain = Chain(
            nodes, dtype, terms, batch=batch, drains=drains, passes=not drains, condition=self._condition
        )
        self.crew = Crew(nodes + 1, PLACES)
        # Whether a side's bounds never decrease between probes; times in arrival order may.
        gated = bound.spec.order == "event_time"
        self._grows = [gated or window.kind == "count" for window in bound.windows]
        self._all_grow = np.array(self._grows)
        self._term_rows = np.array([BLOCK_TERMS + 3 * t for t in sorted(self.decides)], np.int64)
        self._sent = np.zeros(SENT_FIELDS, np.int64)

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
        is_right, begins = self.log(chunk, refine)
        pieces: list[tuple[Array, Array]] = []
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
                        pairs = refine(*self.chain.as_pairs(rows), self.decides_residual)
                        pieces.append((pairs[0].copy(), pairs[1].copy()))

            self.crew.run(step)
            self.ended()
        return ordered_pieces(chunk, pieces, self._workers)

    @property
    def decides_residual(self) -> bool:
        """Whether all results that were taken so far satisfy the residual."""
        return self._condition is not None and not self.chain.is_undecided

    def log(
        self, chunk: Chunk, refine: Refine, gate: int = 0, dropped: tuple[int, int] = (0, 0)
    ) -> tuple[Array, tuple[int, int]]:
        """Log the tuples that can match; returns their sides in gate order, and the first place of each side.

        `gate` is the gate position of the chunk's first tuple. Positions below `dropped` are outside every window.
        """
        logs = self.chain.logs
        begins = (logs[0].count, logs[1].count)
        logged = np.zeros(chunk.n, np.bool_)
        for side, part in enumerate((chunk.left, chunk.right)):
            terms = self._terms(part)
            first, second = (*terms, _NO_TERM, _NO_TERM)[:2]
            valid = _NO_MASK if part.encoded.valid is None else part.encoded.valid
            upto = chunk.min_seq if chunk.stored_only else chunk.upto
            log = logs[side]
            log.make_room(part.n)
            log.count = log.base + log_tuples(
                log.words, log.facts, log.count - log.base, first.word, first.lo, first.hi, second.word, second.lo,
                second.hi, len(terms), valid, part.at, part.first_seq, gate, chunk.min_seq, upto, logged,
            )  # fmt: skip
            if self._condition is not None:
                values = refine.own(side, self._condition.columns(side))
                rows = self._condition.rows(side, values, part.n)
                log.rows[begins[side] - log.base : log.count - log.base] = rows[logged[part.at]]
        for side, log in enumerate(logs):
            other = logs[1 - side]
            set_expiries(
                log.facts, begins[side] - log.base, log.count - log.base, other.facts, other.count - other.base,
                other.base, self._grows[1 - side], dropped[1 - side],
            )  # fmt: skip
        return chunk.is_right[logged], begins

    def send_block(
        self, words: I64, n_left: int, all_valid: bool, index_row: int, gate: int, before: tuple[int, int],
        dropped: tuple[int, int], mark: I64,
    ) -> None:  # fmt: skip
        """Log tuples that are encoded as a block of words (see `kernels.encode`), and send them and their marks.

        There must be room in the logs. `before` are positions that were outside every window before the block,
        `dropped` those that are after it; `mark` gets the places behind the block.
        """
        left, right = self.chain.logs
        self._sent[:] = (
            left.base, left.count, before[0], dropped[0], right.base, right.count, before[1], dropped[1],
            n_left, all_valid, gate,
        )  # fmt: skip
        rows = np.array([index_row], np.int64) if self._indexed else self._term_rows
        send_block(
            self.crew.words, self.chain.nodes, self.chain.mem, words, rows, left.words, left.facts, right.words,
            right.facts, self._all_grow, self._sent, mark,
        )  # fmt: skip
        left.count, right.count = int(mark[0]), int(mark[1])

    def _terms(self, part: SidePart) -> list[TermWords]:
        """The terms that the nodes compare."""
        if not self._indexed:
            return [part.encoded.terms[t] for t in sorted(self.decides)]
        if part.encoded.index is None:
            raise AssertionError("an index needs an index word")
        return [part.encoded.index]

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


class Handshake(ChainJoin):
    """The chain of flowing windows."""

    name: ClassVar[str] = "handshake"

    def __init__(self, bound: BoundSpec, workers: Workers, options: Mapping[str, object]) -> None:
        super().__init__(bound, workers, batch_of(self.name, options), indexed=False, drains=True)

    def run_node(self, k: int) -> int:
        """Run node k until it is done or full."""
        chain = self.chain
        return handshake_node(self.crew.words, k, chain.mem, *chain.columns(), chain.results[k], chain.tests(k))

    def ended(self) -> None:
        """All pairs of the tuples so far are found."""
        self.chain.mem[DRAINED : DRAINED + 2] = [log.count for log in self.chain.logs]


def _live(setup: Setup) -> Runner:
    from streamjoin.handshake.live import run_chain

    return run_chain(setup)


register_algorithm(
    Handshake.name,
    lambda bound, choice, workers: Handshake(bound, workers, choice.options),
    own_threads=True,
    options=("batch",),
    live=_live,
)
