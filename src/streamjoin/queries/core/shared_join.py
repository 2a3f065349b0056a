"""Running first joins and shared steps over one batch: pairs of references with the bits of the paths they belong to.

A first join's pairs are the new tuples of either stream with all of the other. A later step probes each run of the next
stream once for all its paths. Then the bits of the paths are cleared whose windows, terms or conditions don't hold, and
rows without bits are dropped. References become columns only when rows are gathered. Pairs that are many go on to the
next step block by block, so that memory is bounded by a block and the results; between blocks budgets are
looked at, and whether the batch was interrupted. (AJoin, sections 3.3 and 3.4: pipelined joins, late materialization.)

Pair tests are what pairs must satisfy beyond the index, the nearest window and common bits: further terms, windows,
conditions. The invariant: a bit is cleared iff its path has a test at the step that the pair fails; rows without bits
are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from time import perf_counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.times import length_word
from streamjoin.model.expression.evaluation import Values, holds
from streamjoin.model.expression.nodes import Column, Compare, Expression
from streamjoin.queries.core.buckets import Attribute, SortedIndex
from streamjoin.queries.core.budgets import Ledger, is_small
from streamjoin.queries.core.intervals import FittedInterval
from streamjoin.queries.core.outputs import REFERENCE_BYTES, RESULT_BYTES, FoundResults, ReferenceOutputs, list_results
from streamjoin.queries.core.probe_plan import PathKey
from streamjoin.queries.core.running_plan import Ending, ReadyFirstJoin, Step
from streamjoin.queries.core.selection_tables import SetColumn
from streamjoin.queries.core.shared_step import FittedTerm, Tests, WindowTable, columns_by_role
from streamjoin.queries.core.stored_stream import BucketRun, StoredStream, allocate
from streamjoin.queries.kernels.probe import (
    ANY_ORDER,
    AT,
    BEFORE,
    DONE,
    EARLIER,
    NOT_AFTER,
    START,
    Probes,
    probe_shared,
)
from streamjoin.queries.kernels.sets import add_by_bit, count_by_owner, narrow, rows_between
from streamjoin.windows.clock import apart, minus

Streams = Mapping[str, StoredStream]


@dataclass(frozen=True)
class Partial:
    """Partial results: the tuples' numbers by role, the driver's first, and the sets of paths."""

    refs: tuple[Array, ...]
    sets: Array

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.sets)

    def keep(self, chosen: Array) -> Partial:
        """The chosen rows."""
        return Partial(tuple(ref[chosen] for ref in self.refs), self.sets[chosen])

    def clear(self, kept: Array) -> Partial:
        """With the bits of `kept` alone; rows without any are gone."""
        sets = self.sets & kept
        live = np.asarray(sets.any(axis=1))
        pairs = Partial(self.refs, sets)
        return pairs if live.all() else pairs.keep(live)


def apply_tests(
    tests: Tests, looked_up: FittedTerm | FittedInterval | None, pairs: Partial, streams: Streams
) -> Partial:
    """The pairs with the bits of the paths that they satisfy; the new role's tuples are the last of their refs.

    The term by which they were found holds already.
    """
    if tests.settled:
        return pairs
    for term in tests.terms:
        if pairs.n and term is not looked_up:
            pairs = pairs.keep(_term_holds(tests, term, pairs, streams))
    for table in tests.windows:
        if pairs.n:
            limits = np.searchsorted(table.limits, _distances(tests, table, pairs, streams), side="left")
            pairs = pairs.clear(table.keeps[limits])
    for earlier, kept in tests.apart:
        same = pairs.refs[earlier] == pairs.refs[-1]
        if same.any():
            pairs = pairs.clear(np.where(same[:, np.newaxis], kept, ~np.uint64(0)))
    for test in tests.conditions:
        if pairs.n:
            true = _condition_holds(tests, test.condition, pairs, streams)
            pairs = pairs.clear(np.where(true[:, np.newaxis], ~np.uint64(0), test.without))
    return pairs


def _condition_holds(tests: Tests, condition: Expression, pairs: Partial, streams: Streams) -> Array:
    roles = columns_by_role(condition)

    def of(column: Column) -> tuple[StoredStream, Array]:
        return streams[tests.streams[roles[column]]], pairs.refs[roles[column]]

    def values(column: Column) -> Values:
        stream, refs = of(column)
        return stream.values(column.name, refs)

    if isinstance(condition, Compare) and condition.operator == "=":
        sides = [(side, *of(side)) for side in (condition.left, condition.right) if isinstance(side, Column)]
        types = {stream.stream.schema.field(column.name).type for column, stream, _ in sides}
        if len(sides) == 2 and types == {pa.string()}:
            # That of a key, as a word is not all of a text. Values would be Python's strings.
            left, right = (stream.take(column.name, refs) for column, stream, refs in sides)
            equal: Array = pc.equal(left, right).fill_null(False).to_numpy(zero_copy_only=False)
            return equal
    return holds(condition, values, pairs.n)


def _term_holds(tests: Tests, term: FittedTerm, pairs: Partial, streams: Streams) -> Array:
    earlier, new = streams[tests.streams[term.role]], streams[tests.streams[-1]]
    left, right = earlier.probe_words(term.left), new.probe_words(term.right)
    a, b = pairs.refs[term.role] - earlier.first, pairs.refs[-1] - new.first
    word = right.words.word[b]
    true: Array = (left.words.lo[a] <= word) & (word <= left.words.hi[a]) & left.valid[a] & right.valid[b]
    return true


def _distances(tests: Tests, table: WindowTable, pairs: Partial, streams: Streams) -> Array:
    """How far the new tuple is from that of an earlier role: in time, or in tuples of the earlier one's stream."""
    old, new = streams[tests.streams[table.role]], streams[tests.streams[-1]]
    a, b = pairs.refs[table.role], pairs.refs[-1]
    if not table.counted:
        return apart(old.ticks.at(a), new.ticks.at(b))
    gates = old.gates.at(a), new.gates.at(b)
    if old.positions is not None and new.positions is not None:
        numbers = old.positions.at(a), new.positions.at(b)
        reached = _reached(new, old, b), _reached(old, new, a)
        between: Array = np.where(gates[0] < gates[1], reached[0] - numbers[0], reached[1] - numbers[1]) - 1
        return between.astype(np.uint64)
    after_a = old.first + np.searchsorted(old.gates.view(old.first), gates[1], side="right") - (a + 1)
    after_b = new.first + np.searchsorted(new.gates.view(new.first), gates[0], side="right") - (b + 1)
    after: Array = np.where(gates[0] < gates[1], after_a, after_b).astype(np.uint64)
    return after


def _reached(later: StoredStream, earlier: StoredStream, refs: Array) -> Array:
    """How many tuples of the `earlier` stream had come when chosen tuples of the `later` one came, these included."""
    if later is earlier:
        if later.positions is None:
            raise AssertionError("tuples without their positions")
        return later.positions.at(refs) + 1
    return later.before[earlier.stream.name].at(refs)


Pairs = tuple[Array, Array, Array]
"""Of the probes and of the stored tuples: numbers or rows; and the common sets."""
_ROOM = 1 << 14
_BLOCK = 1 << 25
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
        """Note that `pairs` more pairs were written."""
        self._used += pairs

    @property
    def is_full(self) -> bool:
        """Whether the pairs are enough to go on with."""
        return self._used == self._rows.shape[1] and self._used * (2 + self._sets.shape[1]) * 8 >= _BLOCK

    def copy_pairs(self) -> Pairs:
        """A copy of all pairs."""
        used = self._used
        left, right = allocate(used, np.int64), allocate(used, np.int64)
        left[:], right[:] = self._rows[0, :used], self._rows[1, :used]
        width = self._sets.shape[1]
        sets = allocate(used * width, np.uint64).reshape(used, width)
        sets[:] = self._sets[:used]
        return left, right, sets


@dataclass(slots=True)
class RunProbe:
    """A run that is probed for steps, and how: see `probe_shared`."""

    steps: Sequence[Step]
    tests: Tests
    far: JoinSide
    run: BucketRun
    order: int
    go_on: Callable[[], None]
    """Takes pairs from the scratch where there are more than fit."""
    base: int = 0
    """What probes are counted from."""
    flipped: bool = False
    """Whether a probe is the second of its pair."""
    since: int = 0
    """The first row that a probe may reach."""


class Seen(NamedTuple):
    """What a probe of a run saw: pairs, those whose stored tuple has an earlier time, and candidates."""

    pairs: int = 0
    earlier: int = 0
    candidates: int = 0


@dataclass(frozen=True)
class BatchRun:
    """One batch: `fresh` has its runs by stream, `streams` all that is kept, these included."""

    fresh: Mapping[str, BucketRun]
    streams: Mapping[str, StoredStream]
    counts: dict[PathKey, StepCounts]
    ledger: Ledger
    at: dict[int, tuple[float, Step]] = field(default_factory=dict)
    """Since when each thread is at a first join, and the step of it that it runs now, for those who watch."""
    found: FoundResults = field(default_factory=FoundResults)
    """The results so far."""

    def lookup(self, tests: Tests) -> FittedTerm | FittedInterval | None:
        """The term to find candidates by: of several equalities that with most keys."""
        if len(tests.lookups) < 2:
            return tests.lookups[0] if tests.lookups else None
        stream = self.streams[tests.streams[-1]]
        return max(tests.lookups, key=lambda term: stream.distinct(term.right))

    def sides(self, first_join: ReadyFirstJoin) -> tuple[JoinSide, JoinSide]:
        """The two streams of a first join, as its sides."""
        step, lookup = first_join.forward, self.lookup(first_join.forward.tests)
        near, far = (None, None) if lookup is None else (lookup.left, lookup.right)
        return JoinSide(step.key.driver, near, first_join.left), JoinSide(step.stream, far, step.sets)

    def index(self, side: JoinSide) -> None:
        """Make the index of a side's new tuples."""
        fresh = self.fresh.get(side.stream)
        if fresh is not None:
            fresh.index(side.attribute)

    def prepare(self, sides: tuple[JoinSide, JoinSide]) -> None:
        """Make the sets of the new tuples of a first join's sides, which joins would make when they need them."""
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


class JoinSide(NamedTuple):
    """A stream as one side of a join: the attribute it is looked up by, and its sets."""

    stream: str
    attribute: Attribute | None
    sets: SetColumn


_STEP = 1 << 22
"""The candidates that are read before budgets are looked at."""
_NO_READS = np.empty(0, np.int64)
_START = np.array(START)


class FirstJoinRun:
    """One batch of one first join; its results are among those that the batch has found."""

    def __init__(self, batch: BatchRun, number: int, first_join: ReadyFirstJoin, scratch: Scratch) -> None:
        self._batch = batch
        self._number, self._first_join = number, first_join
        self._scratch = scratch
        self._streams = batch.streams
        self._living: Array | None = None
        """The bits of the paths that are within their budgets, once one is not."""
        if first_join.accounts is not None and batch.ledger.exceeded:
            self._living = batch.ledger.living(first_join.accounts)
        self._step: Step | None = None
        self._since = 0.0
        self._began = perf_counter()

    def run(self) -> None:
        """Find the new results of all paths through the first join."""
        forward, backward = self._first_join.forward, self._first_join.backward
        if backward is None:
            self._drive(forward, self._first_join.left)
        else:
            self._meet(forward, backward)
        self._turn_to(None)

    def _turn_to(self, step: Step | None) -> Step | None:
        """Go on with another step: the time up to now was that of the one before, which is returned."""
        now = perf_counter()
        before, self._step = self._step, step
        if before is not None:
            self._batch.counts_of(before.key).seconds += now - self._since
        if step is None:
            # A thread that has nothing more to do is nowhere.
            self._batch.at.pop(get_ident(), None)
        else:
            self._batch.at[get_ident()] = self._began, step
        self._since = now
        return before

    # Budgets ------------------------------------------------------------------------------------------------------

    def _charge_candidates(self, steps: Sequence[Step], sets: Array, read: Array, count: int) -> bool:
        """Count the candidates that the probes of steps read; whether a path has to stop."""
        accounts = self._first_join.accounts
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

    def _check(self) -> None:
        """Stop if the batch is interrupted; leave out who lost its rows because memory runs out."""
        if self._batch.ledger.check() and self._first_join.accounts is not None:
            self._living = self._batch.ledger.living(self._first_join.accounts)

    def _mask(self, mask: Array) -> Array:
        return mask if self._living is None else mask & self._living

    def _probing(self, probes: Probes, first: int = 0) -> Probes:
        """The probes from `first` on of which a path is within its budget."""
        order = probes[0][first:]
        if self._living is not None:
            order = order[(probes[-1][order] & self._living).any(axis=1)]
        return (order, *probes[1:])

    # First joins --------------------------------------------------------------------------------------------------

    def _meet(self, forward: Step, backward: Step) -> None:
        """Find the pairs of new tuples of either stream with all of the other, and take them further."""
        batch, scratch = self._batch, self._scratch
        sides = batch.sides(self._first_join)
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
            counts.batches += 1
            counts.probes += fresh.n
            probes = _new_probes(near, fresh)
            if probes is None:
                continue
            new = batch.fresh.get(far.stream)
            for run in self._streams[far.stream].runs:
                # What is new on both sides is found with the first; what is not, only if somebody goes on from it.
                if step is backward if run is new else not step.queries:
                    continue
                near_probes, since = _in_reach(probes, fresh, run, forward.tests.reach)
                steps = (forward, backward) if run is new else (step,)
                target = RunProbe(
                    steps, forward.tests, far, run, ANY_ORDER, go_on, fresh.first, step is backward, since
                )
                seen = self._probe(target, near_probes)
                later = batch.counts_of(backward.key) if run is new else counts
                _count(seen, counts, later, settled=forward.tests.settled)
        go_on()

    def _split(self, pairs: Partial) -> None:
        """Deal out pairs whichever of the two came last, and take each further on the path of the last."""
        first_join = self._first_join
        if not pairs.n:
            return
        forward, backward = first_join.forward, first_join.backward
        self._deal(forward, first_join.endings, pairs)
        if backward is None or (forward.tests.settled and not first_join.goes_on):
            return
        left, right = (self._streams[stream].gates for stream in (forward.key.driver, forward.stream))
        is_forward = left.at(pairs.refs[0]) > right.at(pairs.refs[1])
        if not forward.tests.settled:
            earlier = int(np.count_nonzero(is_forward))
            self._batch.counts_of(forward.key).pairs += earlier
            self._batch.counts_of(backward.key).pairs += pairs.n - earlier
        if first_join.goes_on:
            self._go_on(forward, pairs.keep(is_forward))
            kept = pairs.keep(~is_forward)
            self._go_on(backward, Partial(kept.refs[::-1], kept.sets))

    def _deal(self, step: Step, endings: tuple[Ending, ...], pairs: Partial) -> None:
        accounts, ledger = self._first_join.accounts, self._batch.ledger
        for ending in endings:
            mask = self._mask(ending.mask)
            # What is found for a part of a query is not a row yet.
            if accounts is not None and not isinstance(ending.sink, ReferenceOutputs):
                by_bit = np.zeros(len(accounts), np.int64)
                count_by_owner(pairs.sets, mask, np.arange(by_bit.size), by_bit)
                is_over = ledger.charge("rows", accounts, by_bit, str(step.key))
                # The tuples of a pair, and its set, are there once for all who have it.
                count = max(1, int(by_bit.sum()))
                shared = REFERENCE_BYTES * (len(ending.roles) + mask.size) * min(pairs.n, count) / count
                if ledger.hold(accounts, by_bit * (RESULT_BYTES + shared)) or is_over:
                    self._living = ledger.living(accounts)
                    mask = self._mask(mask)
            results = list_results(pairs.sets, mask, ending.owners, pairs.refs, ending.roles)
            if results is not None:
                if isinstance(ending.sink, ReferenceOutputs):
                    results = ending.sink.reduced(results)
                    account = np.array([ending.sink.account(ledger)])
                    if ledger.hold(account, float(results.nbytes)) and accounts is not None:
                        self._living = ledger.living(accounts)
                self._batch.found.add(self._number, ending.sink, results, ledger)

    # Later steps --------------------------------------------------------------------------------------------------

    def _drive(self, step: Step, sets: SetColumn) -> None:
        """The paths of drivers that meet their own stream, or none."""
        fresh = self._batch.fresh.get(step.key.driver)
        if fresh is not None:
            drivers = Partial((np.arange(fresh.first, fresh.first + fresh.n),), sets.of(fresh))
            selected = _narrow(drivers, self._mask(step.mask))
            if step.key.steps:
                self._advance(step, selected)
            else:
                self._select(step, drivers.n, selected)

    def _select(self, step: Step, tuples: int, selected: Partial) -> None:
        """Deal out what queries over one stream select of its new tuples."""
        self._turn_to(step)
        self._check()
        counts = self._batch.counts_of(step.key)
        counts.batches += 1
        counts.probes += tuples
        counts.pairs += selected.n
        self._go_on(step, selected)

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
                target = RunProbe((step,), tests, far, run, order_of_arrival, go_on)
                counts.candidates += self._probe(target, probes).candidates
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

    def _probe(self, target: RunProbe, probes: Probes) -> Seen:
        """Add the pairs of probes with a run to the scratch."""
        self._check()
        far, run = target.far, target.run
        sets = far.sets.of(run)
        seen = Seen()
        for index, reach in run.live_parts(far.attribute, far.sets.serial, sets):
            near = self._probing(probes)
            if near[0].size and index.rows.size:
                if reach:
                    near = (near[0], minus(near[1], reach), *near[2:])
                part = self._probe_part(target, near, index, sets)
                seen = Seen(*(a + b for a, b in zip(seen, part, strict=True))) if seen.candidates else part
        return seen

    def _probe_part(self, target: RunProbe, probes: Probes, index: SortedIndex, sets: Array) -> Seen:
        """The same with one part of the run's index."""
        scratch, tests, run = self._scratch, target.tests, target.run
        windows = length_word(tests.reach), tests.near.limits, self._mask(tests.near.keeps)
        stored = index.words, index.rows, run.ticks, run.gates, sets
        cursor = _START.copy()
        read = _NO_READS if self._first_join.accounts is None else np.zeros(len(probes[1]), np.int64)
        total = charged = 0
        while True:
            one, two, common = scratch.room()
            out = (two, one, common) if target.flipped else (one, two, common)
            first = target.base, run.first
            pairs = probe_shared(
                probes, stored, windows, target.order, run.ascending, target.since, first, out, read, cursor, _STEP
            )
            scratch.add(pairs)
            total += pairs
            done, _, seen, earlier = cursor[: EARLIER + 1].tolist()
            is_over = self._charge_candidates(target.steps, probes[-1], read, seen - charged)
            charged = seen
            if done == probes[0].size:
                break
            self._check()
            if scratch.is_full:
                target.go_on()
            if is_over or self._living is not None:
                left = self._probing(probes, done)
                if cursor[AT] >= 0 and (not left[0].size or left[0][0] != probes[0][done]):
                    cursor[AT] = -1
                probes, cursor[DONE] = left, 0
                windows = (*windows[:2], self._mask(tests.near.keeps))
                if not probes[0].size:
                    break
        return Seen(total, earlier, seen)


def _new_probes(near: JoinSide, fresh: BucketRun) -> Probes | None:
    """The tuples of a new run that some query wants, ready to probe; None if there are none."""
    sets = near.sets.of(fresh)
    order = fresh.live(near.attribute, near.sets.serial, sets).rows
    if not order.size:
        return None
    if near.attribute is None:
        lo = hi = np.zeros(fresh.n, np.int64)
    else:
        words = fresh.buckets[0].probe_words(near.attribute).words
        lo, hi = words.lo, words.hi
    return order, lo, hi, fresh.ticks, fresh.gates, sets


def _in_reach(probes: Probes, fresh: BucketRun, run: BucketRun, reach: int) -> tuple[Probes, int]:
    """The probes of new tuples that can be within reach of a run, and the first row that can be of one of them.

    The new tuples' times ascend.
    """
    low, high = run.low - reach, run.high + reach
    since = fresh.low - reach
    first_row = int(run.ticks.searchsorted(since, side="left")) if run.ascending and run.low < since else 0
    if low <= fresh.low and fresh.high <= high:
        return probes, first_row
    order = probes[0]
    if fresh.high < low or high < fresh.low:
        return (order[:0], *probes[1:]), 0
    # Beyond what the new tuples have there is nothing to search for, and it might not fit.
    first = int(fresh.ticks.searchsorted(max(low, fresh.low), side="left"))
    last = int(fresh.ticks.searchsorted(min(high, fresh.high), side="right"))
    return (rows_between(order, first, last), *probes[1:]), first_row


def _count(seen: Seen, counts: StepCounts, later: StepCounts, *, settled: bool) -> None:
    """Add what a probe saw; `later` gets what belongs to the other direction, or is the same.

    Pairs that have to pass further tests are counted after those. Of two new tuples of one time that of the second
    stream, by name, came last: it has the other direction.
    """
    counts.candidates += seen.candidates / 2
    later.candidates += seen.candidates / 2
    if settled:
        counts.pairs += seen.earlier
        later.pairs += seen.pairs - seen.earlier


def _near(ticks: Array, run: BucketRun, reach: int) -> bool:
    """Whether any time of the run is within reach of any of `ticks`."""
    return ticks.size > 0 and run.low - reach <= int(ticks.max()) and int(ticks.min()) <= run.high + reach


def _narrow(partial: Partial, mask: Array) -> Partial:
    """The partial results that have a bit of the mask, with these bits alone."""
    sets, places = np.empty((partial.n + 1, partial.sets.shape[1]), np.uint64), np.empty(partial.n + 1, np.int64)
    n = narrow(partial.sets, mask, sets, places)
    if n == partial.n:
        return Partial(partial.refs, sets[:n])
    # Results hold on to their sets, and should not to those of what is gone.
    return Partial(tuple(ref[places[:n]] for ref in partial.refs), sets[:n].copy())
