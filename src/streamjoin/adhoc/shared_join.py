"""Running meetings and shared steps over one batch: pairs of references with the bits of the paths they belong to.

A meeting's pairs are the new tuples of either stream with all of the other. A later step probes each run of the next
stream once for all its paths. Then the bits of the paths are cleared whose windows, terms or conditions don't hold, and
rows without bits are dropped. References become columns only when rows are gathered. (AJoin, sections 3.3 and
3.4: pipelined joins, late materialization.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamjoin.adhoc.buckets import KeyAttribute
from streamjoin.adhoc.outputs import Found, OutputClass, found_by
from streamjoin.adhoc.pair_tests import Partial, tested
from streamjoin.adhoc.probe_plan import PathKey
from streamjoin.adhoc.query_sets import SetColumn
from streamjoin.adhoc.running_plan import Ending, ReadyMeeting, Step
from streamjoin.adhoc.shared_step import UNBOUNDED, FittedTerm, Tests
from streamjoin.adhoc.stored_stream import Run, StoredStream
from streamjoin.kernels.shared_probe import ANY_ORDER, BEFORE, NOT_AFTER, Probes, probe_shared
from streamjoin.kernels.shared_sets import narrowed
from streamjoin.kernels.sorting import sort_entries

Array = np.ndarray[Any, np.dtype[Any]]
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


class Scratch:
    """Room for pairs, kept from probe to probe: memory that is asked for anew costs more than what it is used for."""

    def __init__(self) -> None:
        self._rows = np.empty((2, _ROOM), np.int64)
        self._sets = np.empty(_ROOM, np.uint64)
        self.seen = np.zeros(2, np.int64)

    def room(self, width: int, least: int) -> Pairs:
        """Arrays for pairs with sets of `width` words, of `least` pairs at least."""
        if self._rows.shape[1] < least or self._sets.size < least * width:
            size = max(2 * least, self._rows.shape[1])
            self._rows, self._sets = np.empty((2, size), np.int64), np.empty(size * width, np.uint64)
        size = min(self._rows.shape[1], self._sets.size // width)
        return self._rows[0, :size], self._rows[1, :size], self._sets[: size * width].reshape(size, width)


@dataclass(frozen=True)
class BatchRun:
    """One batch: `fresh` has its runs by stream, `streams` all that is kept, these included."""

    fresh: Mapping[str, Run]
    streams: Mapping[str, StoredStream]
    counts: dict[PathKey, StepCounts]
    share: Share | None = None
    """Which new tuples drive; all, if not given."""
    scratch: Scratch = field(default_factory=Scratch)
    found: dict[OutputClass, list[Found]] = field(default_factory=dict)
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

    def _met(self, roles: tuple[Role, Role], forward: Step, backward: Step) -> Partial | None:
        """The pairs of new tuples of either stream with all of the other."""
        one, two = roles
        parts: list[Pairs] = []
        for step, near, far in ((forward, one, two), (backward, two, one)):
            fresh = self.fresh.get(near.stream)
            if fresh is None:
                continue
            counts = self._counts(step.key)
            counts.batches += 1
            counts.probes += fresh.n
            probes = _new_probes(near, fresh, None if self.share is None else self.share[near.stream])
            if probes is None:
                continue
            # By shares each direction is on its own: the driver of a pair of new tuples is in one of them.
            new = self.fresh.get(far.stream) if self.share is None else None
            for run in self.streams[far.stream].runs:
                if run is new and step is backward:
                    continue
                found = self._joined(forward.tests, probes, fresh, far, run)
                if found is not None:
                    self._count(len(found[0]), counts, self._counts(backward.key) if run is new else counts)
                    parts.append(found if step is forward else (found[1], found[0], found[2]))
        if not parts:
            return None
        joined = parts[0] if len(parts) == 1 else tuple(np.concatenate(part) for part in zip(*parts, strict=True))
        return Partial((joined[0], joined[1]), joined[2])

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

    def _joined(self, tests: Tests, probes: Probes, fresh: Run, far: Role, run: Run) -> Pairs | None:
        """The pairs of new tuples with a run of the other stream: their numbers, and their sets."""
        first, last = _in_reach(fresh, run, tests.reach)
        if last - first < fresh.n:
            order = probes[0]
            probes = (order[(order >= first) & (order < last)], *probes[1:])
        if not probes[0].size:
            return None
        found = self._probe(tests, probes, far, run, ANY_ORDER if self.share is None else BEFORE)
        if not found[0].size:
            return None
        return found[0] + fresh.first, found[1] + run.first, found[2].copy()

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
        far = Role(step.stream, None if lookup is None else lookup.right, step.sets)
        parts = []
        for run in self.streams[step.stream].runs:
            if _near(ticks, run, tests.reach):
                order_of_arrival = NOT_AFTER if tests.inclusive else BEFORE
                probes = order, lo, hi, ticks, gates, partial.sets
                found = self._probe(tests, probes, far, run, order_of_arrival)
                counts.candidates += int(self.scratch.seen[0])
                if found[0].size:
                    parts.append((found[0].copy(), found[1] + run.first, found[2].copy()))
        if not parts:
            return Partial((*(ref[:0] for ref in partial.refs), np.empty(0, np.int64)), partial.sets[:0])
        probed, numbers, sets = (
            parts[0] if len(parts) == 1 else (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        )
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

    def _probe(self, tests: Tests, probes: Probes, far: Role, run: Run, order_of_arrival: int) -> Pairs:
        """The pairs of probes with a run: the probes' and the run's rows, and the sets; until the next call."""
        self.scratch.seen[:] = 0
        sets = far.sets.of(run)
        index = run.live(far.attribute, far.sets.serial, sets)
        out = self.scratch.room(sets.shape[1], 1)
        if not index.rows.size:
            return out[0][:0], out[1][:0], out[2][:0]
        windows = tests.reach, tests.near.limits, tests.near.keeps
        while True:
            self.scratch.seen[:] = 0
            stored = index.words, index.rows, run.ticks, run.gates, sets
            n = probe_shared(probes, stored, windows, order_of_arrival, run.ascending, out, self.scratch.seen)
            if n <= len(out[0]):
                return out[0][:n], out[1][:n], out[2][:n]
            out = self.scratch.room(sets.shape[1], n)


@dataclass(frozen=True)
class Role:
    """A stream as one side of a join: the attribute it is looked up by, and its sets."""

    stream: str
    attribute: KeyAttribute | None
    sets: SetColumn


def _roles(first: Step, left: SetColumn, lookup: FittedTerm | None) -> tuple[Role, Role]:
    near, far = (None, None) if lookup is None else (lookup.left, lookup.right)
    return Role(first.key.driver, near, left), Role(first.stream, far, first.sets)


def _new_probes(near: Role, fresh: Run, share: tuple[int, int] | None) -> Probes | None:
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


def _in_reach(fresh: Run, run: Run, reach: int) -> tuple[int, int]:
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


def _near(ticks: Array, run: Run, reach: int) -> bool:
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
