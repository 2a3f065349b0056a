"""The interface between the driver and an algorithm.

The driver decides order and windows: an algorithm gets a chunk of tuples in gate order, each with the range of the
other side's positions that it may match, and only pairs them. A pair is (probe, seq): the later tuple's place in the
chunk and the earlier one's position in its own stream. Pairs are returned sorted by both, which is the order of the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast, runtime_checkable

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.expression.nodes import Column
from streamjoin.model.expression.values import Values
from streamjoin.windows.buffer import Restore
from streamjoin.windows.encoding import Encoded

_numbers: list[Array] = [np.arange(1 << 12)]


def _counted(n: int) -> Array:
    """0 to n - 1, to be read only: writing it anew for every chunk takes longer than using it."""
    numbers = _numbers[0]
    if n > numbers.size:
        numbers = _numbers[0] = np.arange(n + n // 2)
    return numbers[:n]


@dataclass(frozen=True)
class SidePart:
    """One side's tuples of a chunk: their words, their places in gate order, the position of the first."""

    encoded: Encoded
    at: Array
    first_seq: int

    @property
    def n(self) -> int:
        """The number of tuples."""
        return self.encoded.n

    def valid_places(self) -> Array:
        """The places of this side's tuples that can match."""
        if self.encoded.valid is None:
            return _counted(self.n)
        return np.flatnonzero(self.encoded.valid)


@dataclass(frozen=True)
class Chunk:
    """Tuples in gate order. Tuple i may match the other side's positions min_seq[i] <= p < upto[i].

    `upto` is what came before it; `min_seq` may lie before the first position. Where some of what came before is newer
    than its window reaches, `ends` is less, and the refinement refuses the positions between: algorithms may look at
    `ends` to find fewer of them.
    """

    is_right: Array
    own_seq: Array
    upto: Array
    min_seq: Array
    left: SidePart
    right: SidePart
    stored_only: bool = False
    """Whether the tuples are only stored, not joined: after a call that failed."""
    ends: Array | None = None

    @property
    def n(self) -> int:
        """The number of tuples."""
        return int(self.is_right.size)

    @property
    def stops(self) -> Array:
        """The position for each tuple before which all its matches are."""
        return self.upto if self.ends is None else self.ends


@dataclass(frozen=True)
class Pairs:
    """Result pairs in result order."""

    probe: Array
    seq: Array


class Refine(Protocol):
    """The tests an algorithm leaves undecided. Safe to call from several threads."""

    @property
    def tests(self) -> bool:
        """Whether a candidate pair may be refused; if not, it is enough to `count` the pairs."""

    def count(self, n: int) -> None:
        """Count `n` pairs that need no test."""

    def __call__(self, probes: Array, seqs: Array, holds: bool = False) -> tuple[Array, Array]:
        """The candidate pairs that satisfy the condition; the arguments may be overwritten.

        With `holds` the residual is known to hold for them.
        """

    def own(self, side: int, columns: Sequence[Column]) -> Mapping[Column, Values]:
        """Columns of the chunk's tuples of one side."""

    def grid(self, probes: Array, seqs: Array) -> Array:
        """For probes of one side: whether the residual holds with each position of the other, one row per probe."""


Keep = Callable[[Array, Array], tuple[Array, Array]]


class Overflow(Exception):  # noqa: N818 - never leaves the driver
    """A call exceeds its limit of rows."""


@dataclass(frozen=True)
class AlgorithmCapabilities:
    """What an algorithm can do beyond pairing chunks, and what suits it."""

    takes_tasks: bool = False
    """Whether it is a `TaskAlgorithm`. It looks at few tuples beyond the windows, whatever the size of a chunk."""
    shares_no_small_chunks: bool = False
    """Whether it does a few tuples in less time than handing them to other threads takes; a scan does not."""


_NO_CAPABILITIES = AlgorithmCapabilities()


class Algorithm(Protocol):
    """Pairs tuples. `decides` has the terms that need no second test for a candidate.

    A class attribute `capabilities` says what else it can do; an algorithm without it has the defaults.
    It keeps what it needs of a tuple to find it again, at the least its position. A tuple that can't match, by
    `SidePart.valid_places`, is neither paired nor kept: the tests that are left to `Refine` do not know that.
    """

    name: ClassVar[str]
    decides: frozenset[int]

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Pair the chunk with what is stored and with itself, then store it."""

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""

    def saved(self) -> Restore | None:
        """Return a function that restores the current state at little cost; None if the state must be rebuilt."""

    def counters(self) -> dict[str, int]:
        """Counters of work done: pairs compared, merges, and so on."""

    def close(self) -> None:
        """Stop the algorithm's own threads, even while they work; a second call does nothing."""

    @property
    def nbytes(self) -> int:
        """Bytes held in addition to the stored tuples."""


@runtime_checkable
class Fillable(Protocol):
    """An algorithm that can take over a running join from another."""

    def fill(self, side: int, words: Array, seqs: Array) -> None:
        """Store one side's live tuples, at least one, by index word and ascending position; called before `process`."""


@runtime_checkable
class Elastic(Protocol):
    """An algorithm whose threads can join and leave while it works."""

    @property
    def workers(self) -> int:
        """The requested number of threads."""

    def set_workers(self, n: int) -> None:
        """Use `n` threads, starting with their next task; callable from any thread at any time."""


class TaskAlgorithm(Algorithm, Protocol):
    """An algorithm that takes tuples one by one, as the columns of a task: see `indexes.base.push_task`."""

    shared: bool
    """Whether a self-join looks both roles up in one index."""

    @property
    def least(self) -> tuple[int, int]:
        """The smallest position of each side that must be kept."""

    def pair(self, columns: tuple[Array, ...]) -> tuple[Array, Array]:
        """Process all tuples of a task whose pairs need no test."""

    def take(self, upto: Array, columns: tuple[Array, ...], refine: Keep, start: int, stop: int) -> Pairs:
        """Process the tuples from `start` to `stop`; the pairs may be views of memory that the next call overwrites."""


def capabilities_of(algorithm: Algorithm) -> AlgorithmCapabilities:
    """What an algorithm says of itself."""
    said: AlgorithmCapabilities = getattr(algorithm, "capabilities", _NO_CAPABILITIES)
    return said


def task_algorithm(algorithm: Algorithm) -> TaskAlgorithm | None:
    """The same algorithm, if it takes tasks."""
    return cast("TaskAlgorithm", algorithm) if capabilities_of(algorithm).takes_tasks else None
