"""Running meetings and shared steps over one batch: pairs of references with the bits of the paths they belong to.

A meeting's pairs are the new tuples of either stream with all of the other. A later step probes each run of the next
stream once for all its paths. Then the bits of the paths are cleared whose windows, terms or conditions don't hold, and
rows without bits are dropped. References become columns only when rows are gathered. Pairs that are many go on to the
next step portion by portion, so that memory is bounded by a portion and the results; between portions budgets are
looked at, and whether the batch was interrupted. (AJoin, sections 3.3 and 3.4: pipelined joins, late materialization.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter

import numpy as np

from streamjoin._arrays import Array
from streamjoin.adhoc.core.batch_run import BatchRun, JoinSide, Scratch, StepCounts
from streamjoin.adhoc.core.buckets import SortedIndex
from streamjoin.adhoc.core.budgets import is_small
from streamjoin.adhoc.core.intervals import FittedInterval
from streamjoin.adhoc.core.outputs import EndingResults, ReferenceOutputs, Sink, list_results
from streamjoin.adhoc.core.pair_tests import Partial, apply_tests
from streamjoin.adhoc.core.query_sets import SetColumn
from streamjoin.adhoc.core.running_plan import Ending, ReadyMeeting, Step
from streamjoin.adhoc.core.shared_step import UNBOUNDED, FittedTerm, Tests
from streamjoin.adhoc.core.stored_stream import BucketRun
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.shared_queries.probe import (
    ANY_ORDER,
    AT,
    BEFORE,
    DONE,
    EARLIER,
    NOT_AFTER,
    SEEN,
    START,
    Probes,
    probe_shared,
)
from streamjoin.kernels.shared_queries.sets import add_by_bit, narrow

_STEP = 1 << 22
"""The candidates that are read before budgets are looked at."""
_NO_READS = np.empty(0, np.int64)
_LEAST = -(1 << 63)


class MeetingRun:
    """One batch of one meeting; `results` are those of its paths, for whom they are of."""

    def __init__(self, batch: BatchRun, meeting: ReadyMeeting, scratch: Scratch) -> None:
        self._batch = batch
        self._meeting = meeting
        self._scratch = scratch
        self._streams, self._share = batch.streams, batch.share
        self._living: Array | None = None
        """The bits of the paths that are within their budgets, once one is not."""
        if meeting.accounts is not None and batch.ledger.exceeded:
            self._living = batch.ledger.living(meeting.accounts)
        self.results: dict[Sink, list[EndingResults]] = {}
        self._step: Step | None = None
        self._since = 0.0

    def run(self) -> dict[Sink, list[EndingResults]]:
        """Find the new results of all paths through the meeting."""
        forward, backward = self._meeting.forward, self._meeting.backward
        if backward is None:
            self._drive(forward, self._meeting.left)
        else:
            self._meet(forward, backward)
        self._turn_to(None)
        return self.results

    def _turn_to(self, step: Step | None) -> Step | None:
        """Go on with another step: the time up to now was that of the one before, which is returned."""
        now = perf_counter()
        before, self._step = self._step, step
        if before is not None:
            self._batch.counts_of(before.key).seconds += now - self._since
        if step is not None:
            self._batch.at[get_ident()] = step
        self._since = now
        return before

    # Budgets ------------------------------------------------------------------------------------------------------

    def _charge_candidates(self, steps: Sequence[Step], sets: Array, read: Array, count: int) -> bool:
        """Count the candidates that the probes of steps read; whether a path has to stop."""
        accounts = self._meeting.accounts
        if accounts is None or not count:
            return False
        ledger, place = self._batch.ledger, str(steps[0].key)
        if is_small(count, ledger.limits("candidates", accounts)):
            payers = np.unique(np.concatenate([step.accounts for step in steps]))
            is_over = ledger.charge("candidates", payers, float(count), place)
        else:
            by_bit = np.zeros(len(accounts), np.int64)
            add_by_bit(sets, read, np.bitwise_or.reduce([step.mask for step in steps]), by_bit)
            is_over = ledger.charge("candidates", accounts, by_bit, place)
        read[:] = 0
        if is_over:
            self._living = ledger.living(accounts)
        return is_over

    def _mask(self, mask: Array) -> Array:
        return mask if self._living is None else mask & self._living

    def _probing(self, probes: Probes, first: int = 0) -> Probes:
        """The probes from `first` on of which a path is within its budget."""
        order = probes[0][first:]
        if self._living is not None:
            order = order[(probes[-1][order] & self._living).any(axis=1)]
        return (order, *probes[1:])

    # Meetings -----------------------------------------------------------------------------------------------------

    def _meet(self, forward: Step, backward: Step) -> None:
        """Find the pairs of new tuples of either stream with all of the other, and take them further."""
        batch, scratch = self._batch, self._scratch
        sides = batch.sides(self._meeting)
        lookup, width = batch.lookup(forward.tests), forward.tests.near.keeps.shape[1]
        scratch.begin(width)

        def go_on() -> None:
            left, right, sets = scratch.copy_pairs()
            if len(sets):
                self._split(apply_tests(forward.tests, lookup, Partial((left, right), sets), self._streams))
            scratch.begin(width)

        directions = (forward, sides[0], sides[1]), (backward, sides[1], sides[0])
        for step, near, far in directions:
            fresh = batch.fresh.get(near.stream)
            if fresh is None:
                continue
            self._turn_to(step)
            counts = batch.counts_of(step.key)
            first, end = (0, fresh.n) if self._share is None else self._share[near.stream]
            counts.batches += 1
            counts.probes += end - first
            probes = _new_probes(near, fresh, None if self._share is None else (first, end))
            if probes is None:
                continue
            # By shares each direction is on its own: the driver of a pair of new tuples is in one of them.
            new = batch.fresh.get(far.stream) if self._share is None else None
            for run in self._streams[far.stream].runs:
                # What is new on both sides is found with the first; what is not, only if somebody goes on from it.
                if step is backward if run is new else not step.queries:
                    continue
                near_probes = _in_reach(probes, fresh, run, forward.tests.reach)
                order = ANY_ORDER if self._share is None else BEFORE
                steps = (forward, backward) if run is new else (step,)
                pairs = self._probe(
                    steps, forward.tests, near_probes, far, run, order, fresh.first, go_on, flipped=step is backward
                )
                later = batch.counts_of(backward.key) if run is new else counts
                self._count(pairs, counts, later)
        go_on()

    def _split(self, pairs: Partial) -> None:
        """Deal out pairs whichever of the two came last, and take each further on the path of the last."""
        meeting = self._meeting
        if not pairs.n:
            return
        self._deal(meeting.forward, meeting.endings, pairs)
        if meeting.goes_on and meeting.backward is not None:
            forward = meeting.forward
            left, right = (self._streams[stream].gates for stream in (forward.key.driver, forward.stream))
            is_forward = left.at(pairs.refs[0]) > right.at(pairs.refs[1])
            self._go_on(forward, pairs.keep(is_forward))
            kept = pairs.keep(~is_forward)
            self._go_on(meeting.backward, Partial(kept.refs[::-1], kept.sets))

    def _count(self, pairs: int, counts: StepCounts, later: StepCounts) -> None:
        """Add what the last probe saw; `later` gets what belongs to the other direction, or is the same."""
        candidates, earlier = int(self._scratch.cursor[SEEN]), int(self._scratch.cursor[EARLIER])
        counts.candidates += candidates / 2
        later.candidates += candidates / 2
        counts.pairs += earlier
        later.pairs += pairs - earlier

    def _deal(self, step: Step, endings: tuple[Ending, ...], pairs: Partial) -> None:
        accounts, ledger = self._meeting.accounts, self._batch.ledger
        for ending in endings:
            mask = self._mask(ending.mask)
            # What is found for a part of a query is not a row yet.
            if accounts is not None and not isinstance(ending.sink, ReferenceOutputs):
                by_bit = np.zeros(len(accounts), np.int64)
                add_by_bit(pairs.sets, _NO_READS, mask, by_bit)
                if ledger.charge("rows", accounts, by_bit, str(step.key)):
                    self._living = ledger.living(accounts)
                    mask = self._mask(mask)
            results = list_results(pairs.sets, mask, ending.owners, pairs.refs, ending.roles)
            if results is not None:
                if isinstance(ending.sink, ReferenceOutputs):
                    results = ending.sink.reduced(results)
                self.results.setdefault(ending.sink, []).append(results)

    # Later steps --------------------------------------------------------------------------------------------------

    def _drive(self, step: Step, sets: SetColumn) -> None:
        """The paths of drivers that meet their own stream."""
        fresh = self._batch.fresh.get(step.key.driver)
        if fresh is not None:
            first, end = (0, fresh.n) if self._share is None else self._share[step.key.driver]
            drivers = Partial((np.arange(fresh.first + first, fresh.first + end),), sets.of(fresh)[first:end])
            self._advance(step, _narrow(drivers, self._mask(step.mask)))

    def _go_on(self, step: Step, pairs: Partial) -> None:
        """Deal out the results that end at a step, and take the rest further."""
        if pairs.n:
            self._deal(step, step.endings, pairs)
            for child in step.children:
                self._advance(child, _narrow(pairs, self._mask(child.mask)))

    def _advance(self, step: Step, partial: Partial) -> None:
        """Take partial results to every earlier tuple of the next stream that the index finds, and further."""
        if not partial.n:
            return
        before = self._turn_to(step)
        tests, scratch = step.tests, self._scratch
        counts = self._batch.counts_of(step.key)
        counts.batches += 1
        counts.probes += partial.n
        lookup, width = self._batch.lookup(tests), partial.sets.shape[1]
        partial, lo, hi = self._intervals(tests, lookup, partial)
        _, order = sort_entries(lo, np.arange(lo.size))
        gates = self._streams[tests.streams[0]].gates.at(partial.refs[0])
        ticks = self._streams[tests.streams[tests.anchor]].ticks.at(partial.refs[tests.anchor])
        far = JoinSide(step.stream, None if lookup is None else lookup.right, step.sets)
        probes = order, lo, hi, ticks, gates, partial.sets
        scratch.begin(width)

        def go_on() -> None:
            probed, numbers, sets = scratch.copy_pairs()
            refs = (*(ref[probed] for ref in partial.refs), numbers)
            pairs = apply_tests(tests, lookup, Partial(refs, sets), self._streams)
            counts.pairs += pairs.n
            self._go_on(step, pairs)
            scratch.begin(width)

        for run in self._streams[step.stream].runs:
            if _near(ticks, run, tests.reach):
                order_of_arrival = NOT_AFTER if tests.inclusive else BEFORE
                self._probe((step,), tests, probes, far, run, order_of_arrival, 0, go_on)
                counts.candidates += int(scratch.cursor[SEEN])
        go_on()
        self._turn_to(before)

    def _intervals(
        self, tests: Tests, term: FittedTerm | FittedInterval | None, partial: Partial
    ) -> tuple[Partial, Array, Array]:
        if term is None:
            zeros = np.zeros(partial.n, np.int64)
            return partial, zeros, zeros
        stream = self._streams[tests.streams[term.role]]
        words = stream.probe_words(term.left)
        rows = partial.refs[term.role] - stream.first
        valid = words.valid[rows]
        if not valid.all():
            partial, rows = partial.keep(valid), rows[valid]
        return partial, words.words.lo[rows], words.words.hi[rows]

    def _probe(
        self,
        steps: Sequence[Step],
        tests: Tests,
        probes: Probes,
        far: JoinSide,
        run: BucketRun,
        order_of_arrival: int,
        base: int,
        go_on: Callable[[], None],
        *,
        flipped: bool = False,
    ) -> int:
        """Add the pairs of probes with a run to the scratch: probes counted from `base`, or second if `flipped`.

        Where there are more than fit, `go_on` takes them from there. Returns how many there are.
        """
        self._batch.ledger.check()
        scratch = self._scratch
        scratch.cursor[:] = START
        total = seen = earlier = 0
        parts = run.live_parts(far.attribute, far.sets.serial, far.sets.of(run))
        for index, reach in parts:
            near = self._probing(probes)
            if not near[0].size or not index.rows.size:
                continue
            if reach:
                near = (near[0], _down(near[1], reach), *near[2:])
            total += self._probe_part(steps, tests, near, far, run, index, order_of_arrival, base, go_on, flipped)
            seen, earlier = seen + int(scratch.cursor[SEEN]), earlier + int(scratch.cursor[EARLIER])
        scratch.cursor[SEEN], scratch.cursor[EARLIER] = seen, earlier
        return total

    def _probe_part(
        self,
        steps: Sequence[Step],
        tests: Tests,
        probes: Probes,
        far: JoinSide,
        run: BucketRun,
        index: SortedIndex,
        order_of_arrival: int,
        base: int,
        go_on: Callable[[], None],
        flipped: bool,
    ) -> int:
        """The same with one part of the run's index."""
        scratch, sets = self._scratch, far.sets.of(run)
        windows = tests.reach, tests.near.limits, self._mask(tests.near.keeps)
        stored = index.words, index.rows, run.ticks, run.gates, sets
        # Steps that follow use the scratch, and its cursor, too.
        cursor = np.array(START)
        read = _NO_READS if self._meeting.accounts is None else np.zeros(len(probes[1]), np.int64)
        total = charged = 0
        while True:
            one, two, common = scratch.room()
            out = (two, one, common) if flipped else (one, two, common)
            pairs = probe_shared(
                probes, stored, windows, order_of_arrival, run.ascending, (base, run.first), out, read, cursor, _STEP
            )
            scratch.add(pairs)
            total += pairs
            is_over = self._charge_candidates(steps, probes[-1], read, int(cursor[SEEN]) - charged)
            charged = int(cursor[SEEN])
            if cursor[DONE] == probes[0].size:
                break
            self._batch.ledger.check()
            if scratch.is_full:
                go_on()
            if is_over or self._living is not None:
                left = self._probing(probes, int(cursor[DONE]))
                if cursor[AT] >= 0 and (not left[0].size or left[0][0] != probes[0][cursor[DONE]]):
                    cursor[AT] = -1
                probes, cursor[DONE] = left, 0
                windows = (*windows[:2], self._mask(tests.near.keeps))
                if not probes[0].size:
                    break
        scratch.cursor[:] = cursor
        return total


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


def _in_reach(probes: Probes, fresh: BucketRun, run: BucketRun, reach: int) -> Probes:
    """The probes of new tuples that can be within reach of a run; the tuples' times ascend."""
    low, high = run.low - reach, run.high + reach
    if reach >= UNBOUNDED or (low <= fresh.low and fresh.high <= high):
        return probes
    order = probes[0]
    if fresh.high < low or high < fresh.low:
        return (order[:0], *probes[1:])
    # Beyond what the new tuples have there is nothing to search for, and it might not fit.
    first = fresh.ticks.searchsorted(max(low, fresh.low), side="left")
    last = fresh.ticks.searchsorted(min(high, fresh.high), side="right")
    return (order[(order >= first) & (order < last)], *probes[1:])


def _near(ticks: Array, run: BucketRun, reach: int) -> bool:
    """Whether any time of the run is within reach of any of `ticks`."""
    return ticks.size > 0 and (
        reach >= UNBOUNDED or (run.low - reach <= int(ticks.max()) and int(ticks.min()) <= run.high + reach)
    )


def _down(words: Array, reach: int) -> Array:
    """Words less `reach`, not below the smallest."""
    if reach >= UNBOUNDED:
        return np.full_like(words, _LEAST)
    return np.where(words < _LEAST + reach, _LEAST, words - reach)


def _narrow(partial: Partial, mask: Array) -> Partial:
    """The partial results that have a bit of the mask, with these bits alone."""
    sets, places = np.empty((partial.n + 1, partial.sets.shape[1]), np.uint64), np.empty(partial.n + 1, np.int64)
    n = narrow(partial.sets, mask, sets, places)
    if n == partial.n:
        return Partial(partial.refs, sets[:n])
    return Partial(tuple(ref[places[:n]] for ref in partial.refs), sets[:n])
