"""What the meetings of one batch have at hand: the new tuples, room for pairs, and what each step did.

Threads share a `BatchRun`; each has a `Scratch` of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamjoin._arrays import Array
from streamjoin.adhoc.core.buckets import Attribute
from streamjoin.adhoc.core.budgets import Ledger
from streamjoin.adhoc.core.intervals import FittedInterval
from streamjoin.adhoc.core.probe_plan import PathKey
from streamjoin.adhoc.core.query_sets import SetColumn
from streamjoin.adhoc.core.running_plan import ReadyMeeting, Step
from streamjoin.adhoc.core.shared_step import FittedTerm, Tests
from streamjoin.adhoc.core.stored_stream import BucketRun, StoredStream
from streamjoin.adhoc.core.tuple_columns import allocate
from streamjoin.kernels.shared_queries.probe import START

Share = Mapping[str, tuple[int, int]]
"""Rows of a batch's buckets by stream, from and to: the tuples that drive."""
Pairs = tuple[Array, Array, Array]
"""Of the probes and of the stored tuples: numbers or rows; and the common sets."""
_ROOM = 1 << 14
_PORTION = 1 << 25
"""The bytes of pairs that go on to the next step at once."""


@dataclass
class StepCounts:
    """What a step did since it was first run; candidates that two directions read at once count half for each."""

    probes: int = 0
    candidates: float = 0
    pairs: int = 0
    batches: int = 0
    seconds: float = 0.0

    def add(self, shares: Sequence[StepCounts]) -> None:
        """Take in what the shares of one batch did."""
        self.probes += sum(share.probes for share in shares)
        self.candidates += sum(share.candidates for share in shares)
        self.pairs += sum(share.pairs for share in shares)
        self.batches += max(share.batches for share in shares)
        self.seconds += sum(share.seconds for share in shares)


class Scratch:
    """Room for pairs, kept from probe to probe: memory that is asked for anew costs more than what it is used for."""

    def __init__(self) -> None:
        self._rows = np.empty((2, _ROOM), np.int64)
        self._sets = np.empty((_ROOM, 1), np.uint64)
        self._used = 0
        self.cursor = np.array(START)

    def begin(self, width: int) -> None:
        """Forget the pairs that are there; the next have sets of `width` words."""
        self._used = 0
        if self._sets.shape[1] != width:
            self._sets = np.empty((self._rows.shape[1], width), np.uint64)

    def room(self) -> Pairs:
        """Arrays for more pairs; there is room for some at least."""
        used, size = self._used, self._rows.shape[1]
        if used == size:
            rows, sets = self._rows, self._sets
            self._rows, self._sets = np.empty((2, 2 * size), np.int64), np.empty((2 * size, sets.shape[1]), np.uint64)
            self._rows[:, :used], self._sets[:used] = rows, sets
        return self._rows[0, used:], self._rows[1, used:], self._sets[used:]

    def add(self, pairs: int) -> None:
        """So many pairs were written."""
        self._used += pairs

    @property
    def is_full(self) -> bool:
        """Whether the pairs are enough to go on with."""
        return self._used == self._rows.shape[1] and self._used * (2 + self._sets.shape[1]) * 8 >= _PORTION

    def copy_pairs(self) -> Pairs:
        """A copy of all pairs."""
        used = self._used
        left, right = allocate(used, np.int64), allocate(used, np.int64)
        left[:], right[:] = self._rows[0, :used], self._rows[1, :used]
        width = self._sets.shape[1]
        sets = allocate(used * width, np.uint64).reshape(used, width)
        sets[:] = self._sets[:used]
        return left, right, sets


@dataclass(frozen=True)
class BatchRun:
    """One batch: `fresh` has its runs by stream, `streams` all that is kept, these included."""

    fresh: Mapping[str, BucketRun]
    streams: Mapping[str, StoredStream]
    counts: dict[PathKey, StepCounts]
    ledger: Ledger
    share: Share | None = None
    """Which new tuples drive; all, if not given."""
    at: dict[int, Step] = field(default_factory=dict)
    """The step that each thread runs now, for those who watch."""

    def lookup(self, tests: Tests) -> FittedTerm | FittedInterval | None:
        """The term to find candidates by: of several equalities that with most keys."""
        if len(tests.lookups) < 2:
            return tests.lookups[0] if tests.lookups else None
        stream = self.streams[tests.streams[-1]]
        return max(tests.lookups, key=lambda term: stream.distinct(term.right))

    def sides(self, meeting: ReadyMeeting) -> tuple[JoinSide, JoinSide]:
        """The two streams of a meeting, as sides of its join."""
        step, lookup = meeting.forward, self.lookup(meeting.forward.tests)
        near, far = (None, None) if lookup is None else (lookup.left, lookup.right)
        return JoinSide(step.key.driver, near, meeting.left), JoinSide(step.stream, far, step.sets)

    def index(self, side: JoinSide) -> None:
        """Make the index of a side's new tuples."""
        fresh = self.fresh.get(side.stream)
        if fresh is not None:
            fresh.index(side.attribute)

    def prepare(self, sides: tuple[JoinSide, JoinSide]) -> None:
        """Make the sets of the new tuples of a meeting's sides, which joins would make when they need them."""
        for side in sides:
            fresh = self.fresh.get(side.stream)
            if fresh is not None:
                fresh.live(side.attribute, side.sets.serial, side.sets.of(fresh))

    def counts_of(self, key: PathKey) -> StepCounts:
        """What a step did so far."""
        counts = self.counts.get(key)
        if counts is None:
            counts = self.counts[key] = StepCounts()
        return counts


@dataclass(frozen=True)
class JoinSide:
    """A stream as one side of a join: the attribute it is looked up by, and its sets."""

    stream: str
    attribute: Attribute | None
    sets: SetColumn
