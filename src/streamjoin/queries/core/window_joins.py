"""What one window join finds: for left tuples that are decided, the aggregates of the tuples around them.

The tuples of the alias that a window join adds are taken in by the order of their times, up to the bound of their
stream, by the right side of the embedded engine (`joins/kinds/summary_state.py`), so that the aggregates have the same
bits. What was taken in is a cache: it follows from the stored stream, and from the tuples in force, which are copied
when the stream lets them go. The invariants: windows ascend from batch to batch; a batch may be computed again; the
cache belongs to one `KindState` object, and with another one it is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.joins.kinds.summary_rows import SummaryRows
from streamjoin.joins.kinds.summary_state import RightSide
from streamjoin.kernels.kinds.summary import NONE
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import InputError
from streamjoin.model.expression.evaluation import holds
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.predicates import Equi
from streamjoin.queries.core.held_tuples import MOST_HELD, HeldTuples
from streamjoin.queries.core.stored_stream import StoredStream
from streamjoin.queries.language.plan import JoinStep, Query
from streamjoin.queries.language.summaries import SummaryRule, bound, is_listed
from streamjoin.windows.buffer import Buffer, Restore
from streamjoin.windows.clock import NEVER
from streamjoin.windows.workers import Workers

_LEAST_STORED: Final = 1 << 18
"""Below this many tuples that were taken in, making the cache anew to drop some does not pay."""
_ALONE: Final = Workers(1)


@dataclass(frozen=True)
class LeftTuples:
    """Left tuples in the order of time: their numbers and times, and which of them match nothing, by join."""

    numbers: Array
    ticks: Array
    hopeless: Array

    def take(self, places: Array) -> LeftTuples:
        """Some of them."""
        return LeftTuples(self.numbers[places], self.ticks[places], self.hopeless[places])


@dataclass(frozen=True)
class Bounds:
    """How far the streams are: no left tuple before `left` comes, and none to be summarised before `right`."""

    left: int
    right: int


@dataclass(frozen=True)
class WindowRows:
    """What window joins give out: which left tuples are decided, which of these have a row, and the rows' aggregates.

    `places` are among the left tuples, `kept` among `places`; of each join `summaries` has a tuple for each row. `held`
    are the tuples in force after the batch, `compared` how many were looked at one by one, `overflowed` how many sums
    their type could not hold.
    """

    places: Array
    kept: Array
    summaries: Mapping[str, HeldTuples]
    held: Mapping[str, HeldTuples]
    compared: int
    overflowed: int


class _TakenIn:
    """The tuples that were taken in, in the order of time, and those that are still before their bound."""

    def __init__(self, rows: SummaryRows, keys: KeyNumbers, side: RightSide) -> None:
        self.rows, self.keys, self.side = rows, keys, side
        self.ids = Buffer(np.int64)
        self.pending = np.empty(0, np.int64)
        self.end = NEVER
        """The number after the newest of the stream that was looked at."""
        self.noted = 0
        """How many of the oldest are in force, or no longer."""
        self.room = _LEAST_STORED

    def saved(self) -> Restore:
        """Return a function that restores what was taken in; keys that came since have no tuples then."""
        state = self.pending, self.end, self.noted
        parts = [self.side.saved(), self.ids.saved()]

        def restore() -> None:
            self.pending, self.end, self.noted = state
            for part in parts:
                part()

        return restore

    def append(self, tuples: HeldTuples) -> None:
        """Take in tuples that follow those before in time."""
        if tuples.n:
            self.rows.store(self.side, tuples.rows, tuples.ticks, self.keys)
            self.ids.append(tuples.ids)

    def places_of(self, ids: Array, ticks: Array) -> Array:
        """The places of tuples with ascending times; NONE where one was not taken in."""
        if not len(ids) or not len(self.ids):
            return np.full(len(ids), NONE, np.int64)
        first = int(np.searchsorted(self.side.ticks, ticks[0]))
        end = int(np.searchsorted(self.side.ticks, ticks[-1], "right"))
        known = self.ids.values[first:end]
        if not known.size:
            return np.full(len(ids), NONE, np.int64)
        order = np.argsort(known)
        near = order[np.minimum(np.searchsorted(known, ids, sorter=order), known.size - 1)]
        return np.where(known[near] == ids, first + near, NONE)


class WindowJoin:
    """One window join of a query; `created` is the batch from which on tuples count."""

    def __init__(self, query: Query, step: JoinStep, created: int) -> None:
        if step.summary is None:
            raise AssertionError("a window join without summaries")
        self._query, self._step, self._created = query, step, created
        self.rule: SummaryRule = step.summary
        self._left, self._right = (query.source(alias).stream for alias in (self.rule.anchor, step.right))
        self._is_self_join = self._left.name == self._right.name
        self._cache: _TakenIn | None = None
        self._states: tuple[object, object] = (None, None)
        """What the cache belongs to: the state that the last batch began with, and the one it ended with."""
        self._undo: Restore | None = None
        self.compared = self.overflowed = 0
        """How many tuples were looked at one by one for the last rows, and how many sums their type could not hold."""
        self._work, self._batches = 0, 0

    @cached_property
    def _bound(self) -> BoundSpec:
        times = self._left.time, self._right.time
        return bound(self.rule, self._step.right, self._step.conditions, self._query.schemas, times)

    @cached_property
    def schema(self) -> pa.Schema:
        """The aggregates."""
        return self.rule.schema(self._query.schemas)

    @cached_property
    def _columns(self) -> list[str]:
        """The columns of the tuples to be summarised that are read; never none, as a table without any has no rows."""
        used = [*self._step.conditions, *self.rule.aggregates]
        names = {column.name for one in used for column in one.columns if column.qualifier == self._step.right}
        return sorted(names | {self._right.time})

    @cached_property
    def _left_columns(self) -> list[str]:
        used = [*self._step.conditions, *self.rule.aggregates]
        names = {column.name for one in used for column in one.columns if column.qualifier == self.rule.anchor}
        return sorted(names | {self._left.time})

    @cached_property
    def nothing(self) -> HeldTuples:
        """No tuples in force."""
        schema, empty = self._right.schema, np.empty(0, np.int64)
        return HeldTuples(empty, empty, pa.schema([schema.field(name) for name in self._columns]).empty_table())

    @property
    def nbytes(self) -> int:
        """The bytes of what was taken in."""
        cache = self._cache
        return (
            0 if cache is None else cache.side.nbytes + cache.side.store.nbytes + cache.ids.nbytes + cache.keys.nbytes
        )

    @property
    def work(self) -> float:
        """The windows that a batch summarised, and the tuples that it looked at one by one for them, on average."""
        return self._work / max(1, self._batches)

    def decided(self, ticks: Array, bounds: Bounds) -> Array:
        """Which left tuples have a complete window, and follow no left tuple to come."""
        complete: Array = (ticks <= bounds.left) & (ticks < bounds.right - self.rule.high)
        return complete

    # A batch ------------------------------------------------------------------------------------------------------

    def begin(self, state: object, held: HeldTuples | None, right: StoredStream, bounds: Bounds, since: int) -> None:
        """Take in what has come; `state` is what the batch begins with, and `held` the tuples in force in it.

        Of older tuples than `since` only those that are held count.
        """
        before, after = self._states
        if self._cache is None or (state is not after and state is not before):
            self._cache, self._undo = self._anew(right), None
        elif state is before and self._undo is not None:
            self._undo()
        cache = self._cache
        self._undo, self._states = cache.saved(), (state, None)
        self._take_in(cache, held, right, bounds.right, since)

    def end(self, state: object) -> None:
        """The batch leads to this state."""
        self._states = self._states[0], state
        if max(self._known.side.store.count, self._known.keys.count) > self._known.room:
            # The stored stream has let go of most, and no tuple has most keys any more.
            self._cache = None

    def aggregates(
        self, left: LeftTuples, hopeless: Array, streams: Mapping[str, StoredStream]
    ) -> tuple[pa.Table, Array]:
        """For each left tuple the aggregates, and how many tuples match it."""
        cache, stream = self._known, streams[self._left.name]
        rows = _rows(stream, self._left_columns, left.numbers)
        keys = np.where(hopeless, NONE, cache.keys.number(0, rows))
        cache.side.know_keys(cache.keys.count)
        own = np.empty(0, np.int64)
        if self._is_self_join:
            own = cache.places_of(stream.ids_of(left.numbers), left.ticks)
        windows = cache.side.windows(left.ticks, keys, own)
        self.compared = int(windows.sizes.sum()) if is_listed(self._bound) else 0
        self._work, self._batches = self._work + left.numbers.size + self.compared, self._batches + 1
        before = cache.rows.overflowed
        found, sizes = cache.rows.aggregates(cache.side, windows, rows)
        self.overflowed = cache.rows.overflowed - before
        numbered = [found[Column("s", str(number))] for number in range(len(self.rule.aggregates))]
        return pa.Table.from_arrays(numbered, schema=self.schema), sizes

    def start(self, oldest: int) -> int:
        """The earliest time that a window of left tuples from `oldest` on has."""
        return max(NEVER, oldest - self.rule.before)

    def in_force(self, held: HeldTuples | None, right: StoredStream, oldest: int) -> HeldTuples | None:
        """The tuples in force before every window of left tuples from `oldest` on; None if they do not count.

        Raises:
            InputError: there are too many keys.
        """
        cache, start = self._known, self.start(oldest)
        if held is not None:
            end = max(cache.noted, int(np.searchsorted(cache.side.ticks, start)))
            ids, ticks = (values[cache.noted : end] for values in (cache.ids.values, cache.side.ticks))
            others = ~np.isin(ids, held.ids)
            ids, ticks = ids[others], ticks[others]
            if len(ids):
                new = HeldTuples(ids, ticks, _rows(right, self._columns, right.numbers_of(ids)))
                held = self._newest(held.joined_by(new))
            cache.noted = end
        return held

    @property
    def _known(self) -> _TakenIn:
        if self._cache is None:
            raise AssertionError("a batch has not begun")
        return self._cache

    def _newest(self, held: HeldTuples) -> HeldTuples:
        """Of each key the newest tuple; in a join of a stream with itself two, as one may be the left tuple itself."""
        keys = self._known.keys.number(1, held.rows)
        newest = np.zeros(held.n, np.bool_)
        rest = np.arange(held.n)[keys != NONE]
        for _ in range(1 + self._is_self_join):
            _, last = np.unique(keys[rest][::-1], return_index=True)
            places = rest[rest.size - 1 - last]
            newest[places] = True
            rest = rest[~newest[rest]]
        if np.count_nonzero(newest) > MOST_HELD:
            raise InputError(
                f"the window join with {self._step.right!r} has more than {MOST_HELD:,} keys, and keeps the tuple "
                "in force of each: write EXCLUDE PREVAILING"
            )
        return held.keep(np.flatnonzero(newest))

    # Taking in ----------------------------------------------------------------------------------------------------

    def _anew(self, right: StoredStream) -> _TakenIn:
        equalities = [key for key in self._bound.keys if isinstance(key.term, Equi)]
        rows = SummaryRows(self._bound, _ALONE)
        # Its ticks are those of the stored stream.
        side = rows.new_side(self.rule.low, self.rule.high, hidden=self._is_self_join)
        cache = _TakenIn(rows, KeyNumbers(equalities), side)
        cache.room = max(_LEAST_STORED, 3 * sum(run.n for run in right.runs))
        return cache

    def _take_in(self, cache: _TakenIn, held: HeldTuples | None, right: StoredStream, until: int, since: int) -> None:
        """Take in the tuples up to a time; where nothing was taken in yet, those in force, too."""
        fresh = self._selected(right, cache.end, since)
        is_new, cache.end = cache.end == NEVER, right.ticks.end
        if is_new and held is not None:
            fresh = fresh[~np.isin(right.ids_of(fresh), held.ids)]
        numbers = np.concatenate([cache.pending, fresh])
        is_ready = right.ticks.at(numbers) <= until
        cache.pending, numbers = numbers[~is_ready], numbers[is_ready]
        new = HeldTuples(right.ids_of(numbers), right.ticks.at(numbers), _rows(right, self._columns, numbers))
        cache.append(self.nothing.joined_by(new) if held is None or not is_new else held.joined_by(new))

    def _selected(self, right: StoredStream, first: int, since: int) -> Array:
        """The numbers of the tuples from `first` on that the query selects.

        Of what was there before, a stream may hold more for other queries than this one can need: nothing must depend
        on that.
        """
        conditions = [predicate.condition for predicate in self._query.selection(self._step.right)]
        found: list[Array] = [np.empty(0, np.int64)]
        for bucket in right.missing(max(first, right.first)):
            if bucket.batch < self._created:
                continue
            numbers = np.arange(bucket.first, bucket.end)
            is_new = first != NEVER
            if not is_new:
                numbers = numbers[right.ticks.at(numbers) >= since]
            chosen = np.ones(numbers.size, np.bool_)
            for condition in conditions:
                # Of a batch that has just come others that select from the stream ask the same.
                chosen &= bucket.mask(condition) if is_new else _truth(condition, right, numbers)
            found.append(numbers[chosen])
        return np.concatenate(found)


class WindowJoins:
    """The window joins of a query, which give out left tuples together, in the order of time."""

    def __init__(self, query: Query, created: int) -> None:
        self._joins = {s.right: WindowJoin(query, s, created) for s in query.kind_steps if s.summary is not None}
        self._steps = query.kind_steps
        self._streams = {source.alias: source.stream.name for source in query.sources}
        self._anchor = self._streams[query.aliases[0]]

    @cached_property
    def nothing(self) -> dict[str, HeldTuples]:
        """No tuples in force, for each join in which they count."""
        return {alias: join.nothing for alias, join in self._joins.items() if join.rule.prevailing}

    @property
    def nbytes(self) -> int:
        """The bytes of what was taken in."""
        return sum(join.nbytes for join in self._joins.values())

    @property
    def work(self) -> dict[str, float]:
        """What each join did a batch."""
        return {alias: join.work for alias, join in self._joins.items()}

    def rows(
        self,
        state: object,
        left: LeftTuples,
        held: Mapping[str, HeldTuples],
        streams: Mapping[str, StoredStream],
        bound: Callable[[str], int],
        bound_before: Callable[[str], int],
    ) -> WindowRows:
        """What comes out of the left tuples that wait, in a batch that begins with `state`; `end` says how it ends.

        `bound` is how far a stream is after the batch, `bound_before` how far it was.
        """
        bounds = {alias: Bounds(bound(self._anchor), bound(self._streams[alias])) for alias in self._joins}
        decided = np.ones(left.numbers.size, np.bool_)
        for alias, join in self._joins.items():
            decided &= join.decided(left.ticks, bounds[alias])
        places = np.flatnonzero(decided)
        places = places[np.lexsort((left.numbers[places], left.ticks[places]))]
        chosen = left.take(places)
        oldest, oldest_before = self._oldest(bound), self._oldest(bound_before)
        kept, found, after = np.ones(places.size, np.bool_), {}, {}
        for number, (alias, join) in enumerate(self._joins.items()):
            right = streams[self._streams[alias]]
            join.begin(state, held.get(alias), right, bounds[alias], join.start(oldest_before))
            found[alias], sizes = join.aggregates(chosen, chosen.hopeless[:, number], streams)
            in_force = join.in_force(held.get(alias), right, oldest)
            if in_force is not None:
                after[alias] = in_force
            if self._steps[number].kind == "inner":
                kept &= sizes > 0
        numbers = np.flatnonzero(kept)
        summaries = {
            alias: HeldTuples(np.arange(numbers.size), chosen.ticks[numbers], table.take(numbers))
            for alias, table in found.items()
        }
        compared, overflowed = (
            sum(counts) for counts in zip(*((j.compared, j.overflowed) for j in self._joins.values()), strict=True)
        )
        return WindowRows(places, numbers, summaries, after, compared, overflowed)

    def _oldest(self, bound: Callable[[str], int]) -> int:
        """Left tuples to come are not before this, nor are those that wait, for the end of any of their windows."""
        ends = (bound(self._streams[alias]) - join.rule.after for alias, join in self._joins.items())
        return min(bound(self._anchor), *ends)

    def end(self, state: object) -> None:
        """The batch leads to this state."""
        for join in self._joins.values():
            join.end(state)


def _rows(stream: StoredStream, names: Sequence[str], numbers: Array) -> pa.Table:
    schema = stream.stream.schema
    arrays = [stream.take(name, np.ascontiguousarray(numbers)) for name in names]
    return pa.Table.from_arrays(arrays, schema=pa.schema([schema.field(name) for name in names]))


def _truth(condition: Expression, stream: StoredStream, numbers: Array) -> Array:
    return holds(condition, lambda column: stream.values(column.name, numbers), len(numbers))
