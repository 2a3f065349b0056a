"""`indexed`: each tuple is probed and indexed when it arrives, with any index of `indexes/`.

The algorithm for small tasks: a push of one tuple costs one lookup and one insertion for any window. Pairs are found
in result order. It uses one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.indexes.base import Index, Matches, push_task
from streamjoin.indexes.registry import INDEXES, make_index
from streamjoin.joins.base import AlgorithmCapabilities, Chunk, Keep, Pairs, Refine, SidePart
from streamjoin.joins.registry import AlgorithmChoice, register_algorithm
from streamjoin.kernels.trees.task import DONE, FULL, INSERTS, MAINTAIN_LEFT, ON_RIGHT, PROBES
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import NotSupportedError
from streamjoin.model.keys import WordKind
from streamjoin.model.predicates import Equi
from streamjoin.windows.buffer import Restore
from streamjoin.windows.workers import Workers

_ROOM = 1 << 16
# Expiring is a call to a kernel: positions wait until there are this many. Those of a count window are expired by the
# tuples that push them out, but for the last few.
_LEAST_EXPIRED, _LEAST_COUNTED = 1 << 10, 1 << 16


def finds_single_words(bound: BoundSpec) -> bool:
    """Whether every lookup is for one word: a plain key."""
    if len(bound.index) != 1:
        return False
    term = bound.index[0]
    return isinstance(term.term, Equi) and term.kind is not WordKind.WIDE


def check_index(bound: BoundSpec, name: str) -> None:
    """Reject an index that does not support the join's lookups."""
    if not INDEXES[name].capabilities.ranges and not finds_single_words(bound):
        raise NotSupportedError(
            f"index={name!r} finds equal keys only, and {bound.spec.predicate} needs ranges; "
            "use index='pim_tree' or 'btree', or leave it out"
        )


class Indexed:
    """The join over two indexes of one kind."""

    name: ClassVar[str] = "indexed"
    capabilities: ClassVar[AlgorithmCapabilities] = AlgorithmCapabilities(takes_tasks=True, shares_no_small_chunks=True)

    def __init__(self, bound: BoundSpec, index: str, settings: Mapping[str, float], shares: int = 1) -> None:
        # With shares, each instance holds one of that many parts of the window.
        sizes = [-(-window.size // shares) if window.kind == "count" else None for window in bound.windows]
        self._self_join = bound.spec.self_join
        # A self-join whose roles have the same words looks both up in one index; a tuple enters it as a right one.
        self.shared = bound.has_equal_roles
        left = make_index(index, largest(sizes) if self.shared else sizes[0], **settings)
        self.indexes: tuple[Index, Index] = (left, left if self.shared else make_index(index, sizes[1], **settings))
        self._out = Matches(_ROOM)
        self._mins = [0, 0]
        self._expired = [0, 0]
        counted = all(window.kind == "count" for window in bound.windows)
        self._least_expired = _LEAST_COUNTED if counted else _LEAST_EXPIRED
        # Whether the bounds of a side's window never decrease between probes; times in arrival order may.
        gated = bound.spec.order == "event_time"
        self._grows = [gated or window.kind == "count" for window in bound.windows]
        self.decides = bound.settled

    def fill(self, side: int, words: Array, seqs: Array) -> None:
        """Index one side's tuples of another algorithm."""
        if side or not self.shared:
            self.indexes[side].load(words, seqs)

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Process the tuples in order: look up, expire, insert."""
        return self.take(chunk.upto, self.columns(chunk), refine, 0, chunk.n)

    def pair(self, columns: tuple[Array, ...]) -> tuple[Array, Array]:
        """`take` for all tuples of some columns, whose pairs need no test."""
        return push_task(*self.indexes, columns, self._out)

    def take(self, upto: Array, columns: tuple[Array, ...], refine: Keep, start: int, stop: int) -> Pairs:
        """Process the tuples from `start` to `stop` as their columns specify.

        The pairs may be views of memory that the next call overwrites.
        """
        pieces: list[tuple[Array, Array]] = []
        code = FULL
        left, right = self.indexes
        while code != DONE:
            code, start, count = type(left).task(
                left.mem, right.mem, *columns, self._out.probe, self._out.seq, start, stop
            )
            if count:
                pairs = self._kept(upto, self._out.probe[:count], self._out.seq[:count], refine)
                if code == DONE and not pieces:
                    return Pairs(*pairs)
                pieces.append((pairs[0].copy(), pairs[1].copy()))
            elif code == FULL:
                self._out.double()
            if code not in (DONE, FULL):
                (left if code == MAINTAIN_LEFT else right).maintain()
        empty = np.empty(0, np.int64)
        return Pairs(*(np.concatenate([empty, *(pair[i] for pair in pieces)]) for i in (0, 1)))

    def _kept(self, upto: Array, probes: Array, seqs: Array, refine: Keep) -> tuple[Array, Array]:
        if self._self_join and not self.shared:
            # The left role is indexed before the right role is looked up: a tuple would find itself.
            others = seqs < upto[probes]
            probes, seqs = probes[others], seqs[others]
        return refine(probes, seqs)

    def columns(self, chunk: Chunk) -> tuple[Array, ...]:
        """The columns of a task (see `indexes.base.push_task`) that looks every tuple up and inserts it."""
        ops = chunk.is_right * np.int64(ON_RIGHT)
        word, lo, hi = (np.empty(chunk.n, np.int64) for _ in range(3))
        own_min = np.empty(chunk.n, np.int64)
        for side, part in enumerate((chunk.left, chunk.right)):
            use = (0 if chunk.stored_only else PROBES) | (0 if self.shared and side == 0 else INSERTS)
            _scatter(part, ops, word, lo, hi, use)
            # Keep at least the positions that the other side's tuples so far can match.
            probed_by = (chunk.is_right == (side == 0)) & self._grows[side]
            bounds = np.where(probed_by, chunk.min_seq, self._mins[side])
            own_min[part.at] = np.maximum(np.maximum.accumulate(bounds), self._mins[side])[part.at]
        if self.shared and chunk.stored_only:
            own_min[:] = min(self._mins)
        elif self.shared:
            # Both roles' windows are in one index, so the longer one decides.
            own_min[chunk.left.at] = own_min[chunk.right.at] = np.minimum(
                own_min[chunk.left.at], own_min[chunk.right.at]
            )
        return ops, word, lo, hi, chunk.own_seq, chunk.min_seq, own_min

    @property
    def least(self) -> tuple[int, int]:
        """The smallest position of each side that the indexes must keep."""
        return self._mins[0], self._mins[1]

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window.

        The tuples of the next task expire their own side too, so a few positions can wait for them.
        """
        mins = self._mins
        if left_min > mins[0]:
            mins[0] = left_min
        if right_min > mins[1]:
            mins[1] = right_min
        for side, index in enumerate(self._distinct()):
            bound = min(mins) if self.shared else mins[side]
            if bound - self._expired[side] >= self._least_expired:
                index.expire(bound)
                self._expired[side] = bound

    def saved(self) -> Restore | None:
        """Return None: an index changes in place, so it is rebuilt from the stores."""
        return None

    def close(self) -> None:
        """Do nothing: the algorithm has no threads of its own."""

    def counters(self) -> dict[str, int]:
        """Steps of both indexes, per kind."""
        counters = [index.counters() for index in self._distinct()]
        return {f"steps_{name}": sum(steps[name] for steps in counters) for name in counters[0]}

    @property
    def nbytes(self) -> int:
        """Bytes held by both indexes."""
        return sum(sum(index.nbytes().values()) for index in self._distinct())

    def _distinct(self) -> tuple[Index, ...]:
        return self.indexes[:1] if self.shared else self.indexes


def largest(sizes: list[int | None]) -> int | None:
    """The largest number of tuples in one of several windows; None where one of them has no fixed number."""
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def _scatter(part: SidePart, ops: Array, word: Array, lo: Array, hi: Array, use: int) -> None:
    """Put one side's words into gate order; a tuple that can't match is neither looked up nor indexed."""
    index = part.encoded.index
    if index is None:
        raise AssertionError("indexed needs an index word")
    at = part.at
    word[at], lo[at], hi[at] = index.word, index.lo, index.hi
    ops[at] |= np.int64(use) if part.encoded.valid is None else part.encoded.valid * np.int64(use)


def _build(bound: BoundSpec, choice: AlgorithmChoice, workers: Workers) -> Indexed:  # noqa: ARG001
    if choice.index is None:
        raise AssertionError("indexed without an index")
    return Indexed(bound, choice.index, choice.index_options)


register_algorithm(
    Indexed.name,
    _build,
    indexes=INDEXES,
    scans=False,
    needs_word=True,
    kernel=lambda choice: INDEXES[str(choice.index)].task,
)
