"""Outer, semi, anti, as-of and window joins over what the shared plan finds: which tuples wait, which rows come out.

The parts of a query give the numbers of the tuples in each result of their inner joins (`LiveQuery.parts`). A tuple of
a side that may come out without a partner, or a result of the core where that is a join itself, waits from its
arrival until it is *decided*: no tuple to come can pair with it, by the bounds of the streams and their counts. What
waits is all the state; what is matched, where one match is enough, waits no longer. An as-of join without a tolerance
also holds the newest tuple of each key (`LatestTuples`). Window joins summarise the tuples of a stream that no part has
(`window_joins.py`).

The invariants: a row is never taken back; what waits is replaced by each batch and never changed, so a batch can be
computed again; the tuples that wait, and the partners noted for them, are held in the streams.

What waits, and its form in files, is at the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.joins.types.asof import RightByKey, nearest_pairs, settled
from streamjoin.joins.types.marks import gone_below, outcome
from streamjoin.model.binding import BoundAsOf
from streamjoin.model.errors import CheckpointError, InputError
from streamjoin.model.expression.evaluation import Values, from_arrow, holds
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.keys import fit
from streamjoin.model.predicates import Equi
from streamjoin.model.window import CountWindow
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.gathering import Gatherer
from streamjoin.queries.core.held_tuples import MOST_HELD, HeldTuples
from streamjoin.queries.core.retention import StreamProgress
from streamjoin.queries.core.stored_stream import StoredStream
from streamjoin.queries.core.window_joins import LeftTuples, WindowJoins
from streamjoin.queries.language.plan import JoinStep, Query
from streamjoin.windows.clock import less


@dataclass(frozen=True)
class Waiting:
    """What is not decided yet: tuples by alias, one row for each that waits, and the partners found by step."""

    refs: Array
    partners: Array

    @classmethod
    def nothing(cls, aliases: int, steps: int) -> Waiting:
        """Nothing waits."""
        return cls(np.empty((0, aliases), np.int64), np.empty((0, steps), np.int64))

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.refs)

    def keep(self, chosen: Array) -> Waiting:
        """The chosen ones."""
        return self if chosen.all() else Waiting(self.refs[chosen], self.partners[chosen])

    def joined_by(self, refs: Array, partners: Array) -> Waiting:
        """With what came."""
        if not len(refs):
            return self
        return Waiting(np.concatenate([self.refs, refs]), np.concatenate([self.partners, partners]))


@dataclass(frozen=True)
class KindState:
    """What waits of a query: of its core (`left`), and of the stream that a RIGHT or FULL JOIN adds.

    `held` has the tuples that as-of joins without a tolerance keep, by alias. `overflowed` are the sums of the batch
    before that their type could not hold, which no file has.
    """

    left: Waiting
    right: Waiting
    held: Mapping[str, HeldTuples] = field(default_factory=dict)
    overflowed: int = 0

    @property
    def n(self) -> int:
        """How many tuples wait."""
        return self.left.n + self.right.n

    def to_table(self, name: str) -> pa.Table:
        """As rows of a table, for a file; `from_table` reads them."""
        sides = []
        for side, waiting in enumerate((self.left, self.right)):
            numbers = np.concatenate([waiting.refs, waiting.partners], axis=1)
            offsets = np.arange(waiting.n + 1, dtype=np.int32) * numbers.shape[1]
            lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers.ravel()))
            names, numbers_of_sides = pa.array([name] * waiting.n, pa.string()), np.full(waiting.n, side, np.int8)
            nulls = [pa.nulls(waiting.n, type_) for type_ in STATE_SCHEMA.types[3:]]
            sides.append(pa.table([names, pa.array(numbers_of_sides), lists, *nulls], schema=STATE_SCHEMA))
        rows = [
            {"query": name, "side": _HELD, "alias": alias, "held": tuples.packed()}
            for alias, tuples in self.held.items()
        ]
        return pa.concat_tables([*sides, pa.Table.from_pylist(rows, STATE_SCHEMA)])

    @classmethod
    def from_table(cls, table: pa.Table, name: str, start: KindState) -> KindState:
        """What `to_table` gave, of a query whose state is `start` before it has seen anything."""
        rows = table.filter(pc.equal(table.column("query"), name))
        sides = [rows.filter(pc.equal(rows.column("side"), side)).column("numbers") for side in (0, 1)]
        left, right = (_unpack(side, like) for side, like in zip(sides, (start.left, start.right), strict=True))
        # Files of earlier versions have no such columns, and no rows that need them.
        held = dict(start.held)
        for row in rows.filter(pc.equal(rows.column("side"), _HELD)).to_pylist():
            held[row["alias"]] = HeldTuples.unpacked(row["held"])
        return cls(left, right, held)


_HELD: Final = 2
STATE_SCHEMA: Final = pa.schema(
    {
        "query": pa.string(),
        "side": pa.int8(),
        "numbers": pa.list_(pa.int64()),
        "alias": pa.string(),
        "held": pa.binary(),
    }
)


def joined_states(tables: Iterable[pa.Table]) -> pa.Table:
    """What `KindState.to_table` gave, as one table."""
    return pa.concat_tables([STATE_SCHEMA.empty_table(), *tables])


def _unpack(lists: pa.ChunkedArray, like: Waiting) -> Waiting:
    aliases, steps = like.refs.shape[1], like.partners.shape[1]
    values = pc.list_flatten(lists).to_numpy().reshape(len(lists), aliases + steps)
    return Waiting(np.ascontiguousarray(values[:, :aliases]), np.ascontiguousarray(values[:, aliases:]))


NOBODY: Final = -1
"""In place of a tuple's number: there is none."""
_HOPELESS: Final = -2
"""In place of a partner's number: there can't be one, as a key is NULL or a condition on the tuple itself is false."""
_MATCHED: Final = 0
"""In place of a partner's number: there is one, and it does not matter which."""


def unpacked_states(table: pa.Table, queries: Mapping[str, Query]) -> dict[str, KindState]:
    """What `KindState.to_table` gave, for these queries."""
    return {
        name: KindState.from_table(table, name, JoinKinds(query).start())
        for name, query in queries.items()
        if query.kind_steps
    }


@dataclass(frozen=True)
class BatchProgress:
    """The streams after a batch: what is held, the new tuples, how far they are, and their bounds `before` it."""

    streams: Mapping[str, StoredStream]
    buckets: Mapping[str, Bucket]
    progress: StreamProgress
    before: Mapping[str, int]

    def bound(self, stream: str) -> int:
        """No tuple before this time will come."""
        return self.progress.bounds[stream]

    def count(self, stream: str) -> int:
        """How many tuples came."""
        return self.progress.counts[stream]


@dataclass(frozen=True)
class PairedRows:
    """Rows as the numbers of their tuples by source, `NOBODY` where one is missing, and the tuples held by alias.

    Of aliases that are held they have the ids. `compared` tuples were looked at one by one to find the rows.
    """

    numbers: Array
    held: Mapping[str, HeldTuples]
    compared: int = 0


class LatestTuples:
    """What one as-of join without a tolerance holds and looks up; it keeps no state itself.

    A stream holds its tuples as long as windows need them. The tuple that such a join looks back to may be older than
    any window, so its columns that the query uses are copied when it arrives. The invariant: of the tuples before the
    earliest time that a lookup can still have, the newest of each key is held, and all later ones are.
    """

    def __init__(self, query: Query, step: JoinStep) -> None:
        self._step, self.rule = step, _rule(step)
        self._types = query.schemas
        used = [*(output.expression for output in query.outputs), *query.filters]
        columns = {column.name for one in used for column in one.columns if column.qualifier == step.right}
        self._columns = sorted(columns | {equality.right.name for equality in step.equalities})

    @cached_property
    def nothing(self) -> HeldTuples:
        """No tuples."""
        schema = self._types[self._step.right]
        empty = np.empty(0, np.int64)
        columns = pa.schema([schema.field(name) for name in self._columns])
        return HeldTuples(empty, empty, columns.empty_table())

    def _numbering(self) -> KeyNumbers:
        def type_of(column: Column) -> pa.DataType:
            return self._types[column.qualifier].field(column.name).type

        equalities = enumerate(self._step.equalities)
        return KeyNumbers([fit(Equi(f"k{n}"), type_of(one.left), type_of(one.right)) for n, one in equalities])

    def _held_keys(self, held: HeldTuples, numbering: KeyNumbers) -> Array:
        columns = [held.rows.column(equality.right.name) for equality in self._step.equalities]
        return numbering.number(1, _keyed(columns, held.n))

    def with_new(self, held: HeldTuples, stream: StoredStream, numbers: Array) -> HeldTuples:
        """With new tuples of the stream."""
        if not len(numbers):
            return held
        rows = pa.Table.from_arrays([stream.take(name, numbers) for name in self._columns], names=self._columns)
        return held.joined_by(HeldTuples(stream.ids_of(numbers), stream.ticks.at(numbers), rows))

    def partners(self, held: HeldTuples, keys: Sequence[pa.Array], ticks: Array, own: Array | None) -> Array:
        """The id of the newest held tuple at or before each time with the same key, or -1.

        `keys` are the left columns of the equalities. `own` are the ids of the tuples themselves, where they are of
        the same stream: a tuple is not its own partner.
        """
        if not held.n or not len(ticks):
            return np.full(len(ticks), NOBODY, np.int64)
        numbering = self._numbering()
        by_key = RightByKey(self._held_keys(held, numbering), held.ticks)
        wanted = numbering.number(0, _keyed(keys, len(ticks)))
        itself = None if own is None else _places_of(own.reshape(-1, 1), held.ids.reshape(-1, 1))
        place = by_key.nearest(self.rule, wanted, ticks, itself)
        return np.where(place == NOBODY, NOBODY, held.ids[place])

    def needed(self, held: HeldTuples, low: int) -> HeldTuples:
        """What lookups at `low` or later can need.

        Raises:
            InputError: there are too many keys.
        """
        old = int(np.searchsorted(held.ticks, low))
        if not old:
            return held
        places = RightByKey(self._held_keys(held, self._numbering()), held.ticks).needed(self.rule, low)
        if np.searchsorted(places, old) > MOST_HELD:
            raise InputError(
                f"the as-of join with {self._step.right!r} has more than {MOST_HELD:,} keys, and keeps the newest "
                "tuple of each: add a TOLERANCE"
            )
        return held.keep(places)


class JoinKinds:
    """The rows of a query with other joins than inner ones."""

    def __init__(self, query: Query, created: int = 0) -> None:
        self.query = query
        self.created = created
        self.steps = query.kind_steps
        self.core = query.core
        self._streams = {source.alias: source.stream.name for source in query.sources}
        self._last = self.steps[-1]
        self._is_outer = self._last.is_outer
        self._waits_left = not self._is_outer or self._last.kind in ("left", "full")
        self._waits_right = self._is_outer and self._last.kind in ("right", "full")
        self._latest = {step.right: LatestTuples(query, step) for step in self.steps if not step.is_bounded}
        self._windows = None if self._last.summary is None else WindowJoins(query, created)
        self.nbytes = 0
        """The bytes of what is kept besides the state, counted with each batch: a failure there is this query's."""

    @cached_property
    def empty_sides(self) -> tuple[Waiting, Waiting]:
        """Nothing, in the shape of either side."""
        return Waiting.nothing(len(self.core), len(self.steps)), Waiting.nothing(1, 1)

    def start(self) -> KindState:
        """The state of a query that has seen nothing, or that has lost sight of what waited."""
        held = {alias: latest.nothing for alias, latest in self._latest.items()}
        return KindState(*self.empty_sides, held if self._windows is None else self._windows.nothing)

    @property
    def work(self) -> Mapping[str, float]:
        """What each window join did a batch, by the alias that it adds."""
        return {} if self._windows is None else self._windows.work

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
        return KindState(left, right, state.held, state.overflowed)

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
        if self._windows is not None:
            return self._summarised(self._windows, state, numbers[0], now)
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
        def read(column: Column) -> Values:
            numbers = refs[:, place[column.qualifier]]
            return from_arrow(self._values(column.qualifier, column.name, numbers, held or {}, now))

        return holds(condition, read, len(refs))

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
                gone = gone_below(now.count(own), step.window.n, itself=own == new)
                passed |= now.streams[own].positions_of(numbers) < gone
            else:
                passed |= now.streams[own].ticks.at(numbers) < gone_below(now.bound(new), step.window.length)
        return passed

    def _right_passed(self, numbers: Array, now: BatchProgress) -> Array:
        """Of which tuples of the alias of a RIGHT or FULL JOIN no result of the core to come can be in the window."""
        if not len(numbers):
            return np.zeros(0, np.bool_)
        own = self._streams[self._last.right]
        window = self._last.window
        if isinstance(window, CountWindow):
            gone = gone_below(now.count(own), window.n, itself=own == self._streams[self.core[0]])
            passed: Array = now.streams[own].positions_of(numbers) < gone
            return passed
        limits = [gone_below(now.bound(self._streams[alias]), reach) for alias, reach in self._reaches.items()]
        return now.streams[own].ticks.at(numbers) < min(limits)

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
                if step.nearest.bounded and len(pairs):
                    self._choose_nearest(step, column, waiting.refs, pairs, now)
                decided = self._nearest_decided(step, column, waiting.refs, now)
                if not step.nearest.bounded:
                    places = np.flatnonzero(decided & (column != _HOPELESS))
                    column[places] = self._newest(step, waiting.refs[places], held[step.right], now)
            else:
                column[_is_among(waiting.refs, pairs[:, :width])] = _MATCHED
                decided = (column == _HOPELESS) | self._passed(step, waiting.refs, now)
            out, never = outcome(step.kind, column >= 0, decided)
            ready &= out
            lost |= never
        rows = np.concatenate([waiting.refs, np.maximum(partners, NOBODY)], axis=1)
        rows[:, [width + number for number, step in enumerate(self.steps) if step.nearest is None]] = NOBODY
        after = Waiting(waiting.refs, partners).keep(~(ready | lost))
        return after, rows[ready & ~lost]

    def _choose_nearest(self, step: JoinStep, column: Array, refs: Array, pairs: Array, now: BatchProgress) -> None:
        """Replace partners by nearer ones that were found."""
        width = len(self.core)
        places = _places_of(pairs[:, :width], refs)
        had = np.flatnonzero(column >= 0)
        numbers = np.concatenate([pairs[places >= 0, width], column[had]])
        places = np.concatenate([places[places >= 0], had])
        ticks, theirs = self._anchor_ticks(step, refs[places], now), self._ticks_of(step.right, numbers, now)
        taken = nearest_pairs(_rule(step), places, ticks, numbers, theirs)
        column[places[taken]] = numbers[taken]

    def _nearest_decided(self, step: JoinStep, column: Array, refs: Array, now: BatchProgress) -> Array:
        """Of which tuples no nearer partner can come."""
        decided: Array = column == _HOPELESS
        if not len(refs):
            return decided
        found = np.flatnonzero(column >= 0) if step.is_bounded else np.empty(0, np.int64)
        theirs = self._ticks_of(step.right, column[found], now)
        bound = now.bound(self._streams[step.right])
        return decided | settled(_rule(step), self._anchor_ticks(step, refs, now), found, theirs, bound)

    def _anchor_ticks(self, step: JoinStep, refs: Array, now: BatchProgress) -> Array:
        """The times of tuples of the core, from which an as-of join looks."""
        if step.nearest is None:
            raise AssertionError("an as-of join has a rule")
        return self._ticks_of(step.nearest.anchor, refs[:, self.core.index(step.nearest.anchor)], now)

    def _ticks_of(self, alias: str, numbers: Array, now: BatchProgress) -> Array:
        return now.streams[self._streams[alias]].ticks.at(np.ascontiguousarray(numbers))

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
        same = self._streams[rule.anchor] == self._streams[step.right]
        ids = now.streams[self._streams[rule.anchor]].ids_of(own) if same else None
        return self._latest[step.right].partners(held, columns, self._anchor_ticks(step, refs, now), ids)

    def _earliest_lookup(self, alias: str, waiting: Waiting, now: BatchProgress) -> int:
        """The earliest time of a tuple that an as-of join without a tolerance can still have to look up."""
        step = next(step for step in self.steps if step.right == alias)
        if step.nearest is None:
            raise AssertionError("an as-of join has a rule")
        anchor = step.nearest.anchor
        # A result of the core to come has at least one tuple to come, and the anchor's is not far from that.
        reaches = self._distances(anchor)
        low = min(less(now.bound(self._streams[other]), reach) for other, reach in reaches.items())
        if not waiting.n:
            return low
        return min(low, int(self._anchor_ticks(step, waiting.refs, now).min()))

    # Window joins -------------------------------------------------------------------------------------------------

    def _summarised(
        self, windows: WindowJoins, state: KindState, new: Array, now: BatchProgress
    ) -> tuple[KindState, PairedRows]:
        waiting = self._arrive(state.left, new, self.core, self.steps, now)
        numbers = np.ascontiguousarray(waiting.refs[:, 0])
        left = LeftTuples(numbers, self._ticks_of(self.core[0], numbers, now), waiting.partners == _HOPELESS)
        found = windows.rows(state, left, state.held, now.streams, now.bound, now.before.__getitem__)
        waits = np.ones(waiting.n, np.bool_)
        waits[found.places] = False
        after = KindState(waiting.keep(waits), state.right, found.held, found.overflowed)
        windows.end(after)
        self.nbytes = windows.nbytes
        rows = numbers[found.places[found.kept]]
        references = [rows, *(np.arange(rows.size) for _ in self.steps)]
        return after, PairedRows(np.stack(references).T, found.summaries, found.compared)

    # Rows ---------------------------------------------------------------------------------------------------------

    def filtered(self, rows: PairedRows, now: BatchProgress) -> PairedRows:
        """The rows that pass the filters of the query."""
        place = {alias: number for number, alias in enumerate(self.query.aliases)}
        numbers = rows.numbers
        for condition in self.query.filters:
            if len(numbers):
                numbers = numbers[self._truth(condition, numbers, place, now, rows.held)]
        return PairedRows(numbers, rows.held, rows.compared)

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


def _rule(step: JoinStep) -> BoundAsOf:
    """The rule of an as-of join, with its tolerance in ticks."""
    if step.nearest is None or isinstance(step.window, CountWindow):
        raise AssertionError("an as-of join has a rule and a tolerance in time")
    tolerance = step.window.length if step.nearest.bounded else None
    return BoundAsOf(step.nearest.direction, tolerance, step.nearest.exact, step.by_key)


def _keyed(columns: Sequence[pa.Array | pa.ChunkedArray], n: int) -> pa.Table:
    names = [f"k{place}" for place in range(len(columns))]
    # A table without columns has no rows; these have.
    return pa.Table.from_arrays([*columns, pa.nulls(n)], names=[*names, "#"])


def _numbers(table: pa.Table) -> Array:
    """The numbers of a part's results, a row for each."""
    if not table.num_rows:
        return np.empty((0, table.num_columns), np.int64)
    return np.stack([column.to_numpy() for column in table.columns]).T


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
