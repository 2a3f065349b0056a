"""Running meetings and shared steps over one batch: pairs of references with the bits of the paths they belong to.

A meeting's pairs are the new tuples of either stream with all of the other. A later step probes each run of the next
stream once for all its paths. Then the bits of the paths are cleared whose windows, terms or conditions don't hold, and
rows without bits are dropped. References become columns only when rows are gathered. (AJoin, sections 3.3 and
3.4: pipelined joins, late materialization.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamjoin._arrays import Array
from streamjoin.adhoc.core.buckets import KeyAttribute
from streamjoin.adhoc.core.outputs import EndingResults, OutputClass, found_by
from streamjoin.adhoc.core.pair_tests import Partial, tested
from streamjoin.adhoc.core.probe_plan import PathKey
from streamjoin.adhoc.core.query_sets import SetColumn
from streamjoin.adhoc.core.running_plan import Ending, ReadyMeeting, Step
from streamjoin.adhoc.core.shared_step import UNBOUNDED, FittedTerm, Tests
from streamjoin.adhoc.core.stored_stream import BucketRun, StoredStream
from streamjoin.adhoc.core.tuple_columns import pooled
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.shared_queries.probe import ANY_ORDER, BEFORE, NOT_AFTER, Probes, probe_shared
from streamjoin.kernels.shared_queries.sets import narrowed

Share = Mapping[str, tuple[int, int]]
"""Rows of a batch's buckets by stream, from and to: the tuples that drive."""
Pairs = tuple[Array, Array, Array]
"""Of the probes and of the stored tuples: numbers or rows; and the common sets."""
_ROOM = 1 << 14


@dataclass
class StepCounts:
    """What a step did since it was first run; candidates that two directions read at once count half for each."""

    probes: int = 0
    candidates: float = 0
    pairs: int = 0
    batches: int = 0

    def add(self, shares: Sequence[StepCounts]) -> None:
        """Take in what the shares of one batch did."""
        self.probes += sum(share.probes for share in shares)
        self.candidates += sum(share.candidates for share in shares)
        self.pairs += sum(share.pairs for share in shares)
        self.batches += max(share.batches for share in shares)


class Scratch:
    """Room for pairs, kept from probe to probe: memory that is asked for anew costs more than what it is used for."""

    def __init__(self) -> None:
        self._rows = np.empty((2, _ROOM), np.int64)
        self._sets = np.empty((_ROOM, 1), np.uint64)
        self._used = 0
        self.seen = np.zeros(2, np.int64)

    def begin(self, width: int) -> None:
        """Forget the pairs that are there; the next have sets of `width` words."""
        self._used = 0
        if self._sets.shape[1] != width:
            self._sets = np.empty((self._rows.shape[1], width), np.uint64)

    def room(self, least: int) -> Pairs:
        """Arrays for more pairs, of `least` at least."""
        used = self._used
        if self._rows.shape[1] < used + least:
            rows, sets = self._rows, self._sets
            size = 2 * (used + least)
            self._rows, self._sets = np.empty((2, size), np.int64), np.empty((size, sets.shape[1]), np.uint64)
            self._rows[:, :used], self._sets[:used] = rows[:, :used], sets[:used]
        return self._rows[0, used:], self._rows[1, used:], self._sets[used:]

    def add(self, pairs: int) -> None:
        """So many pairs were written."""
        self._used += pairs

    def taken(self) -> Pairs:
        """A copy of all pairs."""
        used = self._used
        left, right = pooled(used, np.int64), pooled(used, np.int64)
        left[:], right[:] = self._rows[0, :used], self._rows[1, :used]
        width = self._sets.shape[1]
        sets = pooled(used * width, np.uint64).reshape(used, width)
        sets[:] = self._sets[:used]
        return left, right, sets


@dataclass(frozen=True)
class BatchRun:
    """One batch: `fresh` has its runs by stream, `streams` all that is kept, these included."""

    fresh: Mapping[str, BucketRun]
    streams: Mapping[str, StoredStream]
    counts: dict[PathKey, StepCounts]
    share: Share | None = None
    """Which new tuples drive; all, if not given."""
    scratch: Scratch = field(default_factory=Scratch)
    found: dict[OutputClass, list[EndingResults]] = field(default_factory=dict)
    """The results, for whom they are of."""

    def prepare(self, meeting: ReadyMeeting) -> None:
        """Make the sets and the indexes of the new tuples, which joins would make when they need them."""
        for role in _roles(meeting.forward, meeting.left, self._lookup(meeting.forward.tests)):
            fresh = self.fresh.get(role.stream)
            if fresh is not None:
                fresh.live(role.attribute, role.sets.serial, role.sets.of(fresh))

    def run(self, meeting: ReadyMeeting) -> None:
        """Find the new results of all paths through a meeting."""
        forward, backward = meeting.forward, meeting.backward
        if backward is None:
            self._drive(forward, meeting.left)
            return
        lookup = self._lookup(forward.tests)
        met = self._met(_roles(forward, meeting.left, lookup), forward, backward)
        if met is None:
            return
        pairs = tested(forward.tests, lookup, met, self.streams)
        if not pairs.n:
            return
        self._deal(meeting.endings, pairs)
        if meeting.goes_on:
            left, right = (self.streams[stream].gates for stream in (forward.key.driver, forward.stream))
            is_forward = left.at(pairs.refs[0]) > right.at(pairs.refs[1])
            self._go_on(forward, pairs.keep(is_forward))
            kept = pairs.keep(~is_forward)
            self._go_on(backward, Partial(kept.refs[::-1], kept.sets))

    def _deal(self, endings: tuple[Ending, ...], pairs: Partial) -> None:
        for ending in endings:
            found = found_by(pairs.sets, ending.mask, ending.owners, pairs.refs, ending.roles)
            if found is not None:
                self.found.setdefault(ending.sink, []).append(found)

    # Meetings -----------------------------------------------------------------------------------------------------

    def _lookup(self, tests: Tests) -> FittedTerm | None:
        """The term to find candidates by: of several equalities that with most keys."""
        if len(tests.lookups) < 2:
            return tests.lookups[0] if tests.lookups else None
        stream = self.streams[tests.streams[-1]]
        return max(tests.lookups, key=lambda term: stream.distinct(term.right))

    def _met(self, roles: tuple[JoinSide, JoinSide], forward: Step, backward: Step) -> Partial | None:
        """The pairs of new tuples of either stream with all of the other."""
        one, two = roles
        self.scratch.begin(forward.tests.near.keeps.shape[1])
        for step, near, far in ((forward, one, two), (backward, two, one)):
            fresh = self.fresh.get(near.stream)
            if fresh is None:
                continue
            counts = self._counts(step.key)
            first, end = (0, fresh.n) if self.share is None else self.share[near.stream]
            counts.batches += 1
            counts.probes += end - first
            probes = _new_probes(near, fresh, None if self.share is None else (first, end))
            if probes is None:
                continue
            # By shares each direction is on its own: the driver of a pair of new tuples is in one of them.
            new = self.fresh.get(far.stream) if self.share is None else None
            for run in self.streams[far.stream].runs:
                if run is new and step is backward:
                    continue
                found = self._joined(forward.tests, probes, fresh, far, run, flipped=step is backward)
                if found:
                    self._count(found, counts, self._counts(backward.key) if run is new else counts)
        left, right, sets = self.scratch.taken()
        return Partial((left, right), sets) if len(sets) else None

    def _counts(self, key: PathKey) -> StepCounts:
        found = self.counts.get(key)
        if found is None:
            found = self.counts[key] = StepCounts()
        return found

    def _count(self, pairs: int, counts: StepCounts, later: StepCounts) -> None:
        """Add what the last probe saw; `later` gets what belongs to the other direction, or is the same."""
        candidates, earlier = self.scratch.seen.tolist()
        counts.candidates += candidates / 2
        later.candidates += candidates / 2
        counts.pairs += earlier
        later.pairs += pairs - earlier

    def _joined(
        self, tests: Tests, probes: Probes, fresh: BucketRun, far: JoinSide, run: BucketRun, *, flipped: bool
    ) -> int:
        """Find the pairs of new tuples with a run of the other stream, by number; gives how many."""
        first, last = _in_reach(fresh, run, tests.reach)
        if last - first < fresh.n:
            order = probes[0]
            probes = (order[(order >= first) & (order < last)], *probes[1:])
        if not probes[0].size:
            return 0
        order_of_arrival = ANY_ORDER if self.share is None else BEFORE
        return self._probe(tests, probes, far, run, order_of_arrival, fresh.first, flipped=flipped)

    # Later steps --------------------------------------------------------------------------------------------------

    def _drive(self, step: Step, sets: SetColumn) -> None:
        """The paths of drivers that meet their own stream."""
        fresh = self.fresh.get(step.key.driver)
        if fresh is not None:
            first, end = (0, fresh.n) if self.share is None else self.share[step.key.driver]
            drivers = Partial((np.arange(fresh.first + first, fresh.first + end),), sets.of(fresh)[first:end])
            self._advance(step, _narrowed(drivers, step.mask))

    def _go_on(self, step: Step, found: Partial) -> None:
        """Deal out the results that end at a step, and take the rest further."""
        if found.n:
            self._deal(step.endings, found)
            for child in step.children:
                self._advance(child, _narrowed(found, child.mask))

    def _advance(self, step: Step, partial: Partial) -> None:
        if not partial.n:
            return
        counts = self._counts(step.key)
        counts.batches += 1
        counts.probes += partial.n
        lookup = self._lookup(step.tests)
        found = tested(step.tests, lookup, self._probed(step, lookup, partial, counts), self.streams)
        counts.pairs += found.n
        self._go_on(step, found)

    def _probed(self, step: Step, lookup: FittedTerm | None, partial: Partial, counts: StepCounts) -> Partial:
        """The partial results with every earlier tuple of the next stream that the index finds."""
        tests = step.tests
        partial, lo, hi = self._intervals(tests, lookup, partial)
        _, order = sort_entries(lo, np.arange(lo.size))
        gates = self.streams[tests.streams[0]].gates.at(partial.refs[0])
        ticks = self.streams[tests.streams[tests.anchor]].ticks.at(partial.refs[tests.anchor])
        far = JoinSide(step.stream, None if lookup is None else lookup.right, step.sets)
        self.scratch.begin(partial.sets.shape[1])
        for run in self.streams[step.stream].runs:
            if _near(ticks, run, tests.reach):
                order_of_arrival = NOT_AFTER if tests.inclusive else BEFORE
                probes = order, lo, hi, ticks, gates, partial.sets
                self._probe(tests, probes, far, run, order_of_arrival, 0)
                counts.candidates += int(self.scratch.seen[0])
        probed, numbers, sets = self.scratch.taken()
        return Partial((*(ref[probed] for ref in partial.refs), numbers), sets)

    def _intervals(self, tests: Tests, term: FittedTerm | None, partial: Partial) -> tuple[Partial, Array, Array]:
        if term is None:
            zeros = np.zeros(partial.n, np.int64)
            return partial, zeros, zeros
        stream = self.streams[tests.streams[term.role]]
        words = stream.probe_words(term.left)
        rows = partial.refs[term.role] - stream.first
        valid = words.valid[rows]
        if not valid.all():
            partial, rows = partial.keep(valid), rows[valid]
        return partial, words.words.lo[rows], words.words.hi[rows]

    def _probe(
        self,
        tests: Tests,
        probes: Probes,
        far: JoinSide,
        run: BucketRun,
        order_of_arrival: int,
        base: int,
        *,
        flipped: bool = False,
    ) -> int:
        """Add the pairs of probes with a run to the scratch: probes counted from `base`, or second if `flipped`."""
        self.scratch.seen[:] = 0
        sets = far.sets.of(run)
        index = run.live(far.attribute, far.sets.serial, sets)
        if not index.rows.size:
            return 0
        windows = tests.reach, tests.near.limits, tests.near.keeps
        stored = index.words, index.rows, run.ticks, run.gates, sets
        least = _ROOM // 4
        while True:
            one, two, common = self.scratch.room(least)
            out = (two, one, common) if flipped else (one, two, common)
            n = probe_shared(
                probes, stored, windows, order_of_arrival, run.ascending, (base, run.first), out, self.scratch.seen
            )
            if n <= len(one):
                self.scratch.add(n)
                return n
            least = n
            self.scratch.seen[:] = 0


@dataclass(frozen=True)
class JoinSide:
    """A stream as one side of a join: the attribute it is looked up by, and its sets."""

    stream: str
    attribute: KeyAttribute | None
    sets: SetColumn


def _roles(first: Step, left: SetColumn, lookup: FittedTerm | None) -> tuple[JoinSide, JoinSide]:
    near, far = (None, None) if lookup is None else (lookup.left, lookup.right)
    return JoinSide(first.key.driver, near, left), JoinSide(first.stream, far, first.sets)


def _new_probes(near: JoinSide, fresh: BucketRun, share: tuple[int, int] | None) -> Probes | None:
    """The tuples of a new run that some query wants, ready to probe; None if there are none."""
    sets = near.sets.of(fresh)
    order = fresh.live(near.attribute, near.sets.serial, sets).rows
    if share is not None:
        order = order[(order >= share[0]) & (order < share[1])]
    if not order.size:
        return None
    if near.attribute is None:
        lo = hi = np.zeros(fresh.n, np.int64)
    else:
        words = fresh.buckets[0].probe_words(near.attribute).words
        lo, hi = words.lo, words.hi
    return order, lo, hi, fresh.ticks, fresh.gates, sets


def _in_reach(fresh: BucketRun, run: BucketRun, reach: int) -> tuple[int, int]:
    """The rows from and to which new tuples can be within reach of a run; their times ascend."""
    low, high = run.low - reach, run.high + reach
    if reach >= UNBOUNDED or (low <= fresh.low and fresh.high <= high):
        return 0, fresh.n
    if fresh.high < low or high < fresh.low:
        return 0, 0
    # Beyond what the new tuples have there is nothing to search for, and it might not fit.
    first = fresh.ticks.searchsorted(max(low, fresh.low), side="left")
    last = fresh.ticks.searchsorted(min(high, fresh.high), side="right")
    return int(first), int(last)


def _near(ticks: Array, run: BucketRun, reach: int) -> bool:
    """Whether any time of the run is within reach of any of `ticks`."""
    return ticks.size > 0 and (
        reach >= UNBOUNDED or (run.low - reach <= int(ticks.max()) and int(ticks.min()) <= run.high + reach)
    )


def _narrowed(partial: Partial, mask: Array) -> Partial:
    """The partial results that have a bit of the mask, with these bits alone."""
    sets, places = np.empty((partial.n + 1, partial.sets.shape[1]), np.uint64), np.empty(partial.n + 1, np.int64)
    n = narrowed(partial.sets, mask, sets, places)
    if n == partial.n:
        return Partial(partial.refs, sets[:n])
    return Partial(tuple(ref[places[:n]] for ref in partial.refs), sets[:n])
