"""Outer, semi, anti and as-of joins over what the shared plan finds: which tuples wait, and which rows come out.

The parts of a query give the numbers of the tuples in each result of their inner joins (`LiveQuery.parts`). A tuple of
a side that may come out without a partner, or a result of the core where that is a join itself, waits from its
arrival until it is *decided*: no tuple to come can pair with it, by the bounds of the streams and their counts. What
waits is all the state; what is matched, where one match is enough, waits no longer. An as-of join without a tolerance
also holds the newest tuple of each key (`latest.py`).

The invariants: a row is never taken back; what waits is replaced by each batch and never changed, so a batch can be
computed again; the tuples that wait, and the partners noted for them, are held in the streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.adhoc.core.buckets import Bucket
from streamjoin.adhoc.core.gathering import Gatherer
from streamjoin.adhoc.core.kind_states import KindState, Waiting
from streamjoin.adhoc.core.latest import HeldTuples, LatestTuples
from streamjoin.adhoc.core.retention import StreamProgress
from streamjoin.adhoc.core.stored_stream import StoredStream
from streamjoin.adhoc.language.plan import JoinStep, Query
from streamjoin.model.errors import CheckpointError
from streamjoin.model.expression.evaluation import evaluate, from_arrow, truth
from streamjoin.model.expression.nodes import Expression
from streamjoin.model.window import CountWindow

NOBODY: Final = -1
"""In place of a tuple's number: there is none."""
_HOPELESS: Final = -2
"""In place of a partner's number: there can't be one, as a key is NULL or a condition on the tuple itself is false."""
_MATCHED: Final = 0
"""In place of a partner's number: there is one, and it does not matter which."""
_EARLIEST = -(1 << 63)


def unpacked_states(table: pa.Table, queries: Mapping[str, Query]) -> dict[str, KindState]:
    """What `packed_states` gave, for these queries."""
    return {
        name: KindState.from_table(table, name, JoinKinds(query).start())
        for name, query in queries.items()
        if query.kind_steps
    }


@dataclass(frozen=True)
class BatchProgress:
    """The streams after a batch: what is held, the new tuples, the bounds of times to come, and how many came."""

    streams: Mapping[str, StoredStream]
    buckets: Mapping[str, Bucket]
    progress: StreamProgress

    def bound(self, stream: str) -> int:
        """No tuple before this time will come."""
        return self.progress.bounds[stream]

    def count(self, stream: str) -> int:
        """How many tuples came."""
        return self.progress.counts[stream]


@dataclass(frozen=True)
class PairedRows:
    """Rows as the numbers of their tuples by source, `NOBODY` where one is missing, and the tuples held by alias.

    Of aliases that are held they have the ids.
    """

    numbers: Array
    held: Mapping[str, HeldTuples]


class JoinKinds:
    """The rows of a query with other joins than inner ones."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.steps = query.kind_steps
        self.core = query.core
        self._streams = {source.alias: source.stream.name for source in query.sources}
        self._last = self.steps[-1]
        self._is_outer = self._last.nearest is None and self._last.kind in ("left", "right", "full")
        self._waits_left = not self._is_outer or self._last.kind in ("left", "full")
        self._waits_right = self._is_outer and self._last.kind in ("right", "full")
        self._latest = {step.right: LatestTuples(query, step) for step in self.steps if not step.is_bounded}

    @cached_property
    def empty_sides(self) -> tuple[Waiting, Waiting]:
        """Nothing, in the shape of either side."""
        return Waiting.nothing(len(self.core), len(self.steps)), Waiting.nothing(1, 1)

    def start(self) -> KindState:
        """The state of a query that has seen nothing, or that has lost sight of what waited."""
        return KindState(*self.empty_sides, {alias: latest.nothing for alias, latest in self._latest.items()})

    def pins(self, state: KindState) -> Iterator[tuple[str, int]]:
        """Streams, and the oldest tuple of each that must be held."""
        columns = [*zip(self.core, state.left.refs.T, strict=True), (self._last.right, state.right.refs[:, 0])]
        partners = zip(self.steps, state.left.partners.T, strict=True)
        # What is held is copied, and needs no stream.
        columns += [(step.right, numbers) for step, numbers in partners if step.nearest and step.nearest.bounded]
        for alias, numbers in columns:
            held = numbers[numbers >= 0]
            if held.size:
                yield self._streams[alias], int(held.min())

    # Between processes --------------------------------------------------------------------------------------------

    def with_ids(self, state: KindState, streams: Mapping[str, StoredStream]) -> KindState:
        """A state with the ids of tuples instead of their numbers here."""
        left, right = (
            self._renamed(side, aliases, lambda name, numbers: streams[name].ids_of(numbers))
            for side, aliases in zip((state.left, state.right), self._aliases_of_sides, strict=True)
        )
        return KindState(left, right, state.held)

    def with_numbers(self, states: Iterable[KindState], streams: Mapping[str, StoredStream]) -> KindState:
        """What of several states, as `with_ids` gave them, has its tuples here.

        Raises:
            CheckpointError: the partner of a tuple is not here.
        """
        left, right = self.empty_sides
        held = dict(self.start().held)
        for state in states:
            left = left.joined_by(state.left.refs, state.left.partners)
            right = right.joined_by(state.right.refs, state.right.partners)
            held = {alias: tuples.joined_by(state.held[alias]) for alias, tuples in held.items()}
        sides: list[Waiting] = []
        for side, aliases in zip((left, right), self._aliases_of_sides, strict=True):
            numbered = self._renamed(side, aliases, lambda name, ids: streams[name].numbers_of(ids))
            is_here = np.asarray((numbered.refs >= 0).all(axis=1))
            if ((side.partners >= 0) & (numbered.partners < 0))[is_here].any():
                raise CheckpointError("a tuple that waits has a partner that is not held; restore it from a copy")
            sides.append(numbered.keep(is_here))
        return KindState(sides[0], sides[1], held)

    @property
    def _aliases_of_sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.core, (self._last.right,)

    def _renamed(self, waiting: Waiting, aliases: Sequence[str], rename: Callable[[str, Array], Array]) -> Waiting:
        """With other names for the tuples; where partners are held as copies, or do not matter, theirs stay."""
        refs, partners = waiting.refs.copy(), waiting.partners.copy()
        for place, alias in enumerate(aliases):
            refs[:, place] = rename(self._streams[alias], refs[:, place])
        # What waits on the right has one column of partners, and none in it.
        for place, step in enumerate(self.steps[: partners.shape[1]]):
            if step.nearest is not None and step.is_bounded:
                there = partners[:, place] >= 0
                partners[there, place] = rename(self._streams[step.right], partners[there, place])
        return Waiting(refs, partners)

    # A batch ------------------------------------------------------------------------------------------------------

    def step(self, state: KindState, found: Sequence[pa.Table], now: BatchProgress) -> tuple[KindState, PairedRows]:
        """The state after a batch, and the rows that come out.

        `found` has the results of the parts.
        """
        numbers = [_numbers(table) for table in found]
        left, right = state.left, state.right
        if self._waits_left:
            left = self._arrive(left, self._new_cores(numbers, now), self.core, self.steps, now)
        if self._waits_right:
            right = self._arrive(right, self._new_tuples(self._last.right, now), (self._last.right,), self.steps, now)
        if self._is_outer:
            after, rows = self._outer(KindState(left, right), numbers[0], now)
            return after, PairedRows(rows, {})
        held = {
            alias: latest.with_new(
                state.held[alias], now.streams[self._streams[alias]], self._new_tuples(alias, now)[:, 0]
            )
            for alias, latest in self._latest.items()
        }
        left, rows = self._lookups(left, numbers, held, now)
        kept = {
            alias: latest.needed(held[alias], self._earliest_lookup(alias, left, now))
            for alias, latest in self._latest.items()
        }
        return KindState(left, right, kept), PairedRows(rows, held)

    def _new_cores(self, numbers: Sequence[Array], now: BatchProgress) -> Array:
        return numbers[-1] if len(self.core) > 1 else self._new_tuples(self.core[0], now)

    def _new_tuples(self, alias: str, now: BatchProgress) -> Array:
        """The new tuples that a query selects for an alias."""
        bucket = now.buckets.get(self._streams[alias])
        if bucket is None:
            return np.empty((0, 1), np.int64)
        chosen = np.ones(bucket.n, np.bool_)
        for predicate in self.query.selection(alias):
            chosen &= bucket.mask(predicate.condition)
        return (bucket.first + np.flatnonzero(chosen)).reshape(-1, 1)

    def _arrive(
        self, waiting: Waiting, refs: Array, aliases: Sequence[str], steps: Sequence[JoinStep], now: BatchProgress
    ) -> Waiting:
        """With new tuples; those that can't have a partner are marked."""
        partners = np.full((len(refs), len(steps)), NOBODY, np.int64)
        for number, step in enumerate(steps):
            partners[self._hopeless(step, refs, aliases, now), number] = _HOPELESS
        return waiting.joined_by(refs, partners)

    def _hopeless(self, step: JoinStep, refs: Array, aliases: Sequence[str], now: BatchProgress) -> Array:
        """Which tuples can't match whatever comes: a key is NULL or NaN, or a condition on them alone is not true."""
        hopeless = np.zeros(len(refs), np.bool_)
        if not len(refs):
            return hopeless
        place = {alias: number for number, alias in enumerate(aliases)}
        for term in step.terms:
            for column in (term.left, term.right):
                if column.qualifier in place:
                    stream = now.streams[self._streams[column.qualifier]]
                    values = stream.take(column.name, np.ascontiguousarray(refs[:, place[column.qualifier]]))
                    hopeless |= pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False)
        for condition in step.own:
            if {column.qualifier for column in condition.columns} <= set(place):
                hopeless |= ~self._truth(condition, refs, place, now)
        return hopeless

    def _truth(
        self,
        condition: Expression,
        refs: Array,
        place: Mapping[str, int],
        now: BatchProgress,
        held: Mapping[str, HeldTuples] | None = None,
    ) -> Array:
        columns = {
            column: from_arrow(
                self._values(column.qualifier, column.name, refs[:, place[column.qualifier]], held or {}, now)
            )
            for column in condition.columns
        }
        return truth(evaluate(condition, columns), (len(refs),))

    def _values(
        self, alias: str, name: str, numbers: Array, held: Mapping[str, HeldTuples], now: BatchProgress
    ) -> pa.Array:
        """A column of tuples of an alias, which may be held here or by the stream."""
        if alias in held:
            return held[alias].take(name, numbers)
        return _take(now.streams[self._streams[alias]], name, numbers)

    # Outer joins --------------------------------------------------------------------------------------------------

    def _outer(self, state: KindState, pairs: Array, now: BatchProgress) -> tuple[KindState, Array]:
        width, step = len(self.core), self._last
        left = state.left.keep(~_is_among(state.left.refs, pairs[:, :width]))
        right = state.right.keep(~_is_among(state.right.refs, pairs[:, width:]))
        decided = (left.partners[:, 0] == _HOPELESS) | self._passed(step, left.refs, now)
        gone = (right.partners[:, 0] == _HOPELESS) | self._right_passed(right.refs[:, 0], now)
        alone, others = left.refs[decided], right.refs[gone]
        missing, absent = (np.full(len(numbers), NOBODY, np.int64) for numbers in (alone, others))
        columns = [np.concatenate([pairs[:, n], alone[:, n], absent]) for n in range(width)]
        columns.append(np.concatenate([pairs[:, width], missing, others[:, 0]]))
        return KindState(left.keep(~decided), right.keep(~gone)), np.stack(columns).T

    def _passed(self, step: JoinStep, refs: Array, now: BatchProgress) -> Array:
        """Of which tuples of the core the window has passed: no tuple of the step's alias to come can be in it."""
        passed = np.zeros(len(refs), np.bool_)
        if not len(refs):
            return passed
        new = self._streams[step.right]
        for alias in step.related:
            numbers = refs[:, self.core.index(alias)]
            own = self._streams[alias]
            if isinstance(step.window, CountWindow):
                places = now.streams[own].positions_of(numbers)
                passed |= _rows_passed(places, step.window.n, now.count(own), own == new)
            else:
                passed |= now.streams[own].ticks.at(numbers) < _before(now.bound(new), step.window.length)
        return passed

    def _right_passed(self, numbers: Array, now: BatchProgress) -> Array:
        """Of which tuples of the alias of a RIGHT or FULL JOIN no result of the core to come can be in the window."""
        if not len(numbers):
            return np.zeros(0, np.bool_)
        own = self._streams[self._last.right]
        window = self._last.window
        if isinstance(window, CountWindow):
            places = now.streams[own].positions_of(numbers)
            return _rows_passed(places, window.n, now.count(own), own == self._streams[self.core[0]])
        ticks = now.streams[own].ticks.at(numbers)
        limits = [_before(now.bound(self._streams[alias]), reach) for alias, reach in self._reaches.items()]
        passed: Array = ticks < min(limits)
        return passed

    @cached_property
    def _reaches(self) -> dict[str, int]:
        """How far the tuples of each alias of the core can be from one of the last alias that they are joined with."""
        return self._distances(self._last.right)

    def _distances(self, start: str) -> dict[str, int]:
        """How far the tuples of each alias of the core can be from one of `start`, by windows in time."""
        pairs = [pair for pair in self.query.parts[0].pairs if {pair.left, pair.right} <= {*self.core, start}]
        windows = [(pair.left, pair.right, pair.window.length) for pair in pairs]  # type: ignore[union-attr]
        reach = {start: 0}
        while not reach.keys() >= set(self.core):
            near = [
                (reach[known] + length, new)
                for one, two, length in windows
                for known, new in ((one, two), (two, one))
                if known in reach and new not in reach
            ]
            distance, alias = min(near)
            reach[alias] = distance
        return {alias: reach[alias] for alias in self.core}

    # Semi, anti and as-of joins -----------------------------------------------------------------------------------

    def _lookups(
        self, waiting: Waiting, found: Sequence[Array], held: Mapping[str, HeldTuples], now: BatchProgress
    ) -> tuple[Waiting, Array]:
        """Note the partners that were found; give out what every step lets pass, and let go of what one does not."""
        width = len(self.core)
        partners = waiting.partners.copy()
        lost, ready = np.zeros(waiting.n, np.bool_), np.ones(waiting.n, np.bool_)
        for number, step in enumerate(self.steps):
            column, pairs = partners[:, number], found[number]
            if step.nearest is not None:
                if step.nearest.bounded:
                    self._choose_nearest(step, column, waiting.refs, pairs, now)
                decided = self._nearest_decided(step, column, waiting.refs, now)
                if not step.nearest.bounded:
                    places = np.flatnonzero(decided & (column != _HOPELESS))
                    column[places] = self._newest(step, waiting.refs[places], held[step.right], now)
            else:
                column[_is_among(waiting.refs, pairs[:, :width])] = _MATCHED
                decided = (column == _HOPELESS) | self._passed(step, waiting.refs, now)
            matched = column >= 0
            if step.kind == "semi":
                ready &= matched
                lost |= decided & ~matched
            elif step.kind == "anti":
                ready &= decided & ~matched
                lost |= matched
            else:
                ready &= decided
                lost |= decided & ~matched & (step.kind == "inner")
        rows = np.concatenate([waiting.refs, np.maximum(partners, NOBODY)], axis=1)
        rows[:, [width + number for number, step in enumerate(self.steps) if step.nearest is None]] = NOBODY
        after = Waiting(waiting.refs, partners).keep(~(ready | lost))
        return after, rows[ready & ~lost]

    def _choose_nearest(self, step: JoinStep, column: Array, refs: Array, pairs: Array, now: BatchProgress) -> None:
        """Replace partners by nearer ones that were found."""
        rule = step.nearest
        if rule is None or not len(pairs):
            return
        anchors, right = now.streams[self._streams[rule.anchor]], now.streams[self._streams[step.right]]
        width, anchor = len(self.core), self.core.index(rule.anchor)
        places = _places_of(pairs[:, :width], refs)
        left_ticks, right_ticks = anchors.ticks.at(pairs[:, anchor]), right.ticks.at(pairs[:, width])
        is_candidate = (places >= 0) & ((right_ticks != left_ticks) | rule.exact)
        if rule.direction != "nearest":
            is_candidate &= right_ticks >= left_ticks if rule.direction == "forward" else right_ticks <= left_ticks
        had = np.flatnonzero(column >= 0)
        places = np.concatenate([places[is_candidate], had])
        numbers = np.concatenate([pairs[is_candidate, width], column[had]])
        if not len(places):
            return
        distance = right.ticks.at(numbers) - anchors.ticks.at(np.ascontiguousarray(refs[places, anchor]))
        ahead = distance > 0 if rule.direction != "forward" else distance >= 0
        # Of equal times the last in gate order is the nearest before, the first the nearest after.
        order = np.lexsort((np.where(ahead, numbers, -numbers), ahead, np.abs(distance), places))
        places, numbers = places[order], numbers[order]
        first = np.concatenate([[0], np.flatnonzero(np.diff(places)) + 1])
        column[places[first]] = numbers[first]

    def _nearest_decided(self, step: JoinStep, column: Array, refs: Array, now: BatchProgress) -> Array:
        """Of which tuples no nearer partner can come."""
        rule, window = step.nearest, step.window
        if rule is None or isinstance(window, CountWindow):
            raise AssertionError("an as-of join has a rule and a tolerance")
        decided: Array = column == _HOPELESS
        if not len(refs):
            return decided
        bound = now.bound(self._streams[step.right])
        ticks = now.streams[self._streams[rule.anchor]].ticks.at(refs[:, self.core.index(rule.anchor)])
        if rule.direction == "backward":
            return decided | (ticks < bound if rule.exact else ticks <= bound)
        decided |= ticks < _before(bound, window.length)
        matched = np.flatnonzero(column >= 0)
        partners = now.streams[self._streams[step.right]].ticks.at(column[matched])
        if rule.direction == "forward":
            # What is still to come is not before the partner, and of equal times the first one counts.
            decided[matched] |= partners <= bound
        else:
            # What is still to come is ahead, and not nearer than the partner.
            own = ticks[matched]
            decided[matched] |= (own < bound) & (np.abs(partners - own) <= bound - np.minimum(own, bound))
        return decided

    def _newest(self, step: JoinStep, refs: Array, held: HeldTuples, now: BatchProgress) -> Array:
        """The partners of decided tuples in an as-of join without a tolerance."""
        rule = step.nearest
        if rule is None:
            raise AssertionError("an as-of join has a rule")
        place = {alias: number for number, alias in enumerate(self.core)}
        columns = [
            self._values(key.left.qualifier, key.left.name, refs[:, place[key.left.qualifier]], {}, now)
            for key in step.equalities
        ]
        own = np.ascontiguousarray(refs[:, place[rule.anchor]])
        ticks = now.streams[self._streams[rule.anchor]].ticks.at(own)
        same = self._streams[rule.anchor] == self._streams[step.right]
        ids = now.streams[self._streams[rule.anchor]].ids_of(own) if same else None
        return self._latest[step.right].partners(held, columns, ticks, ids)

    def _earliest_lookup(self, alias: str, waiting: Waiting, now: BatchProgress) -> int:
        """The earliest time of a tuple that an as-of join without a tolerance can still have to look up."""
        step = next(step for step in self.steps if step.right == alias)
        if step.nearest is None:
            raise AssertionError("an as-of join has a rule")
        anchor = step.nearest.anchor
        # A result of the core to come has at least one tuple to come, and the anchor's is not far from that.
        reaches = self._distances(anchor)
        low = min(_before(now.bound(self._streams[other]), reach) for other, reach in reaches.items())
        if not waiting.n:
            return low
        numbers = np.ascontiguousarray(waiting.refs[:, self.core.index(anchor)])
        return min(low, int(now.streams[self._streams[anchor]].ticks.at(numbers).min()))

    # Rows ---------------------------------------------------------------------------------------------------------

    def filtered(self, rows: PairedRows, now: BatchProgress) -> PairedRows:
        """The rows that pass the filters of the query."""
        place = {alias: number for number, alias in enumerate(self.query.aliases)}
        numbers = rows.numbers
        for condition in self.query.filters:
            if len(numbers):
                numbers = numbers[self._truth(condition, numbers, place, now, rows.held)]
        return PairedRows(numbers, rows.held)

    def gather(self, gatherer: Gatherer, rows: PairedRows, now: BatchProgress) -> pa.Table:
        """Rows as a table.

        Raises:
            InputError: a computed number does not fit its column.
        """
        taken = [
            self._values(self.query.aliases[source], name, rows.numbers[:, source], rows.held, now)
            for source, _, name in gatherer.reads
        ]
        return gatherer.rows(taken, len(rows.numbers))


def _numbers(table: pa.Table) -> Array:
    """The numbers of a part's results, a row for each."""
    if not table.num_rows:
        return np.empty((0, table.num_columns), np.int64)
    return np.stack([column.to_numpy() for column in table.columns]).T


def _before(bound: int, length: int) -> int:
    """`bound` - `length`, not below the smallest int64."""
    return max(bound - length, _EARLIEST)


def _rows_passed(numbers: Array, rows: int, count: int, same: bool) -> Array:
    """Whether so many tuples of their own stream came after tuples that the next of the other stream is too late.

    In a join of a stream with itself, the next tuple is itself one of those.
    """
    passed: Array = count - 1 - numbers + same >= rows
    return passed


def _places_of(rows: Array, table: Array) -> Array:
    """The place of each row among those of a table, which differ; -1 where it is not there."""
    if not len(rows) or not len(table):
        return np.full(len(rows), -1, np.int64)
    if rows.shape[1] == 1:
        keys, wanted = table[:, 0], rows[:, 0]
    else:
        both = np.ascontiguousarray(np.concatenate([table, rows]))
        _, ids = np.unique(both, axis=0, return_inverse=True)
        ids = ids.reshape(-1)
        keys, wanted = ids[: len(table)], ids[len(table) :]
    order = np.argsort(keys, kind="stable")
    places = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    nearest = order[places]
    return np.where(keys[nearest] == wanted, nearest, -1)


def _is_among(table: Array, rows: Array) -> Array:
    """Which rows of a table are among others."""
    among = np.zeros(len(table), np.bool_)
    if table.shape[1] == 1 and len(table) and len(rows):
        # Numbers are dense: marking them is much cheaper than searching.
        numbers, wanted = table[:, 0], rows[:, 0]
        least, most = int(numbers.min()), int(numbers.max())
        marks = np.zeros(most - least + 1, np.bool_)
        marks[wanted[(wanted >= least) & (wanted <= most)] - least] = True
        among[:] = marks[numbers - least]
        return among
    places = _places_of(rows, table)
    among[places[places >= 0]] = True
    return among


def _take(stream: StoredStream, name: str, numbers: Array) -> pa.Array:
    """A column of chosen tuples, NULL where there is none."""
    missing = numbers < 0
    if not missing.any():
        return stream.take(name, np.ascontiguousarray(numbers))
    type_ = stream.stream.schema.field(name).type
    there = np.flatnonzero(~missing)
    if not there.size:
        return pa.nulls(len(numbers), type_)
    places = np.zeros(len(numbers), np.int64)
    places[there] = np.arange(there.size)
    column = stream.take(name, np.ascontiguousarray(numbers[there]))
    return column.take(pa.array(places, mask=missing))
