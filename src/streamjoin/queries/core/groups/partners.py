"""Groups of a join by the time and the keys of one side, made from ranges of the other: no pair is enumerated.

A tuple of the side that is grouped (the *anchor*) has its partners in a range of the other side's tuples of its key, in
the order of time. It counts as often as it has partners, and of these it adds the difference of two prefix sums and the
best of the range (`ranges.py`). A batch makes groups of the partners that its tuples bring: of new
anchors all partners, of older ones the new partners. So these are the groups of the very pairs that the join would give
in this batch, to the bit, and what is open, stored, shared or counted is the same.

The invariant: everything here is a cache of what the streams hold, sorted run by run, and can be made anew at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.kinds.exact_columns import numbers_of
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.joins.kinds.summary_values import computed
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.exact import merge
from streamjoin.kernels.kinds.partners import partner_ranges
from streamjoin.kernels.kinds.summary import NONE
from streamjoin.model.expression.aggregates import Aggregate
from streamjoin.model.expression.evaluation import holds
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.expression.typing_rules import check
from streamjoin.model.keys import fit
from streamjoin.model.window import TimeWindow
from streamjoin.queries.core.groups.ranges import RangeBests, RangeCounts, Ranges, RangeSums
from streamjoin.queries.core.groups.runs import (
    BestPart,
    CountPart,
    GroupPart,
    Slot,
    SumPart,
    added,
    choice_ranks,
    slot_of,
)
from streamjoin.windows.clock import FOREVER

if TYPE_CHECKING:
    from streamjoin.queries.core.buckets import Bucket
    from streamjoin.queries.core.stored_stream import BucketRun, StoredStream
    from streamjoin.queries.language.plan import Query

_LEAST_KEYS: Final = 1 << 18
"""Up to this many numbers of keys, numbering them anew does not pay."""


# Which queries --------------------------------------------------------------------------------------------------------


class PartnerRule:
    """Which side of a join of two streams a grouped query groups, and what it asks of either."""

    def __init__(self, query: Query, anchor: str) -> None:
        self.anchor = anchor
        (self.other,) = (alias for alias in query.aliases if alias != anchor)
        self._schemas = query.schemas
        self.equal: dict[Column, Column] = {}
        """Columns of the other side that are the same as one of the anchor in every pair."""
        for equality in query.steps[0].equalities:
            own, its = sorted((equality.left, equality.right), key=lambda column: column.qualifier != anchor)
            type_ = self._type(own)
            # Two zeros are equal, and not the same.
            if type_ == self._type(its) and not pa.types.is_floating(type_):
                self.equal[its] = own
        self._of_other: dict[Slot, bool] = {}

    def _type(self, column: Column) -> pa.DataType:
        return self._schemas[column.qualifier].field(column.name).type

    def of_anchor(self, expressions: Iterable[Expression]) -> bool:
        """Whether the anchor's tuple decides the values."""
        columns = (column for one in expressions for column in one.columns)
        return all(column.qualifier == self.anchor or column in self.equal for column in columns)

    def of_other(self, slot: Slot) -> bool:
        """Whether the other side's tuple decides what is kept for an aggregate, and the anchor's does not."""
        if slot not in self._of_other:
            columns = [column for one in slot.arguments for column in one.columns]
            alone = all(column.qualifier == self.other for column in columns)
            self._of_other[slot] = alone and not self.of_anchor(slot.arguments)
        return self._of_other[slot]

    def allows(self, aggregate: Aggregate) -> bool:
        """Whether ranges give the values of an aggregate."""
        slot = slot_of(aggregate)
        return slot is None or self.of_anchor(slot.arguments) or (slot.kind != "values" and self.of_other(slot))


def reason_for_pairs(query: Query) -> str | None:
    """Why the pairs of a grouped query are enumerated; None if they are not, or if it joins nothing."""
    grouping = query.grouping
    if grouping is None or len(query.sources) < 2:
        return None
    step = query.steps[0]
    if len(query.sources) > 2:
        return "more than two streams are joined"
    if not isinstance(step.window, TimeWindow) or step.window.length > FOREVER:
        return "the join is WITHIN ROWS"
    if not step.equalities or step.bands or step.others or query.residual:
        return "the join has other conditions than equalities"
    if grouping.window.alias is None:
        return "the window is by the time of the result"
    rule = PartnerRule(query, grouping.window.alias)
    for key in grouping.keys:
        if not rule.of_anchor([key]):
            return f"{key} is not of {rule.anchor}, whose time is that of the window"
    for aggregate in grouping.aggregates:
        if not rule.allows(aggregate):
            return f"{aggregate} takes " + (
                "every value of the other stream" if rule.of_other(slot_of_values(aggregate)) else "both streams"
            )
    return None


def slot_of_values(aggregate: Aggregate) -> Slot:
    """What has to be kept for an aggregate that has arguments."""
    slot = slot_of(aggregate)
    if slot is None:
        raise AssertionError("count(*) has no arguments")
    return slot


def partner_rule(query: Query) -> PartnerRule | None:
    """How groups are made from ranges; None where pairs are enumerated."""
    if query.grouping is None or len(query.sources) != 2 or query.grouping.window.alias is None:
        return None
    return None if reason_for_pairs(query) is not None else PartnerRule(query, query.grouping.window.alias)


def way_of_groups(query: Query) -> str:
    """How the groups of a query over several streams are made, and why; nothing of others."""
    rule, reason = partner_rule(query), reason_for_pairs(query)
    if rule is not None:
        return f"from ranges of {rule.other} by key and time, no pair is enumerated"
    return "" if reason is None else f"of pairs, as {reason}"


# One side -------------------------------------------------------------------------------------------------------------


class KeyedRun:
    """The tuples of a run of buckets that a query selects and that have a key, by key and then by time."""

    def __init__(
        self, stream: StoredStream, alias: str, buckets: Sequence[Bucket], numbers: Array, keys: Array, ticks: Array
    ) -> None:
        self.stream, self.alias, self.buckets = stream, alias, tuple(buckets)
        self.numbers, self.ticks = numbers, ticks
        begins = np.ones(keys.size, np.bool_)
        begins[1:] = keys[1:] != keys[:-1]
        places = np.flatnonzero(begins)
        self.keys: Array = keys[places]
        self.starts: Array = np.append(places, keys.size)
        self.span = (int(ticks.min()), int(ticks.max())) if keys.size else (0, 0)
        self._arguments: dict[Expression, pa.Array] = {}
        self._counts: dict[tuple[Expression, ...], RangeCounts] = {}
        self._sums: dict[Expression, RangeSums] = {}
        self._bests: dict[str, RangeBests] = {}

    @classmethod
    def of(cls, stream: StoredStream, alias: str, run: BucketRun, places: Array, keys: Array) -> KeyedRun:
        """The tuples at ascending `places` of a run, which have these keys."""
        ticks = run.ticks[places]
        if not run.ascending:
            order = np.argsort(ticks, kind="stable")
            places, keys, ticks = places[order], keys[order], ticks[order]
        sorted_keys, order = sort_entries(keys, np.arange(keys.size))
        return cls(stream, alias, run.buckets, places[order] + run.first, sorted_keys, ticks[order])

    @classmethod
    def joined(cls, parts: Sequence[KeyedRun]) -> KeyedRun:
        """Neighbours as one."""
        keys = np.concatenate([part.every_key for part in parts])
        ticks = np.concatenate([part.ticks for part in parts])
        if all(one.span[1] <= two.span[0] for one, two in pairwise([part for part in parts if part.n])):
            _, order = sort_entries(keys, np.arange(keys.size))
        else:
            order = np.lexsort((ticks, keys))
        numbers = np.concatenate([part.numbers for part in parts])[order]
        buckets = [bucket for part in parts for bucket in part.buckets]
        return cls(parts[0].stream, parts[0].alias, buckets, numbers, keys[order], ticks[order])

    @property
    def n(self) -> int:
        """How many tuples there are."""
        return int(self.numbers.size)

    @property
    def every_key(self) -> Array:
        """The key of each tuple."""
        return np.repeat(self.keys, np.diff(self.starts))

    @cached_property
    def place_of(self) -> Array:
        """The place of each tuple of the buckets; NONE where it is not here."""
        places = np.full(self.buckets[-1].end - self.buckets[0].first, NONE, np.int64)
        places[self.numbers - self.buckets[0].first] = np.arange(self.n)
        return places

    def only(self, places: Array) -> KeyedRun:
        """The same where arguments are computed for the tuples at some places alone: of the others they are NULL."""
        return _PartlyComputed(self, places)

    def argument(self, expression: Expression) -> pa.Array:
        """The values of an expression."""
        if expression not in self._arguments:
            self._arguments[expression] = self._computed(expression, self.numbers)
        return self._arguments[expression]

    def _computed(self, expression: Expression, numbers: Array) -> pa.Array:
        schemas = {self.alias: self.stream.stream.schema}
        columns = {column: self.stream.take(column.name, numbers) for column in expression.columns}
        found = computed(expression, check(expression, schemas), columns, len(numbers))
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def count(self, arguments: tuple[Expression, ...], ranges: Ranges) -> Array:
        """How many of each range have values."""
        if arguments not in self._counts:
            self._counts[arguments] = RangeCounts(
                np.logical_and.reduce([_present(self.argument(one)) for one in arguments])
            )
        return self._counts[arguments].of(ranges)

    def sum(self, argument: Expression, ranges: Ranges) -> SumPart:
        """The sum of each range."""
        if argument not in self._sums:
            self._sums[argument] = RangeSums(*numbers_of(self.argument(argument)).by_group(np.arange(self.n), self.n))
        found = self._sums[argument]
        return SumPart(found.of(ranges), found.layout)

    def best(self, slot: Slot, ranges: Ranges) -> list[pa.Array]:
        """The arguments of the tuple of each range that is the best; NULL where none has values."""
        values = [self.argument(one) for one in slot.arguments]
        if slot.key not in self._bests:
            self._bests[slot.key] = RangeBests(*choice_ranks(values, greatest=slot.kind == "greatest"))
        places = self._bests[slot.key].of(ranges)
        missing = places == NONE
        index = pa.array(places, mask=missing) if missing.any() else pa.array(places)
        return [column.take(index) for column in values]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        own = self.numbers.nbytes + self.ticks.nbytes + self.keys.nbytes + self.starts.nbytes
        parts = [*self._arguments.values(), *self._counts.values(), *self._sums.values(), *self._bests.values()]
        return int(own + sum(part.nbytes for part in parts))


class _PartlyComputed(KeyedRun):
    """A run of which some tuples can't be computed, but those at `places` may."""

    def __init__(self, run: KeyedRun, places: Array) -> None:
        super().__init__(run.stream, run.alias, run.buckets, run.numbers, run.every_key, run.ticks)
        self._places = places

    def _computed(self, expression: Expression, numbers: Array) -> pa.Array:
        found = super()._computed(expression, numbers[self._places])
        index = np.full(self.n, NONE, np.int64)
        index[self._places] = np.arange(self._places.size)
        return found.take(pa.array(index, mask=index == NONE))


def _present(array: pa.Array) -> Array:
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    mask: Array = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


# A batch --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hits:
    """Anchors that have partners in one run of the other side: their rows, ascending, and the range of each."""

    run: KeyedRun
    rows: Array
    ranges: Ranges
    counts: Array


class Partners:
    """The partners that the rows of anchors have, and what is kept of them for aggregates."""

    def __init__(self, rule: PartnerRule, hits: Sequence[Hits], n: int) -> None:
        self.rule, self._hits, self._n = rule, hits, n
        self._partly: dict[tuple[int, Slot], KeyedRun] = {}
        self.times: Array = np.zeros(n, np.int64)
        """How many partners each row has."""
        for own in hits:
            np.add.at(self.times, own.rows, own.counts)

    def taken(self, places: Array) -> Partners:
        """Those of some rows, at ascending places."""
        number = np.full(self._n, NONE, np.int64)
        number[places] = np.arange(places.size)
        hits = []
        for own in self._hits:
            kept = np.flatnonzero(number[own.rows] != NONE)
            hits.append(Hits(own.run, number[own.rows[kept]], own.ranges.keep(kept), own.counts[kept]))
        return Partners(self.rule, hits, places.size)

    def prepare(self, slot: Slot) -> None:
        """Compute the arguments of an aggregate over the other side.

        Raises:
            Exception: they can't be computed of a tuple that is a partner.
        """
        for number, own in enumerate(self._hits):
            try:
                for argument in slot.arguments:
                    own.run.argument(argument)
            except MemoryError:
                raise
            except Exception:
                # It may be one that is nobody's partner.
                within = np.zeros(own.run.n + 1, np.int64)
                np.add.at(within, own.ranges.first, 1)
                np.add.at(within, own.ranges.last + 1, -1)
                partly = own.run.only(np.flatnonzero(np.cumsum(within[:-1]) > 0))
                for argument in slot.arguments:
                    partly.argument(argument)
                self._partly[number, slot] = partly

    def part(self, slot: Slot, ids: Array, n: int) -> GroupPart:
        """What is kept for an aggregate over the other side, where rows belong to `n` groups."""
        self.prepare(slot)
        found = [(self._partly.get((number, slot), own.run), own) for number, own in enumerate(self._hits)]
        if slot.kind == "count":
            counts = np.zeros(n, np.int64)
            for run, own in found:
                counts += added(run.count(slot.arguments, own.ranges), ids[own.rows], n)
            return CountPart(counts)
        if slot.kind == "sum":
            sums = []
            for run, own in found:
                part = run.sum(slot.arguments[0], own.ranges)
                rows = part.layout.rows(n)
                merge(part.rows, ids[own.rows], rows, part.layout.head)
                sums.append(SumPart(rows, part.layout))
            return SumPart.joined(sums).regrouped(np.tile(np.arange(n), len(sums)), n) if len(sums) > 1 else sums[0]
        columns = zip(*(run.best(slot, own.ranges) for run, own in found), strict=True)
        values = [parts[0] if len(parts) == 1 else pa.concat_arrays(parts) for parts in columns]
        return BestPart.of_rows(values, np.concatenate([ids[own.rows] for _, own in found]), n, slot.kind)


class PartnerJoin:
    """One equality join within a distance in time: its sides sorted, for all feeds of it."""

    def __init__(self, query: Query) -> None:
        step = query.steps[0]
        if not isinstance(step.window, TimeWindow):
            raise AssertionError("partners are found within a distance in time")
        self._reach = step.window.length
        self.aliases = query.aliases
        self._streams = {source.alias: source.stream.name for source in query.sources}
        self._selections = {a: [one.condition for one in query.selection(a)] for a in self.aliases}
        sides = [(one.left, one.right) for one in step.equalities]
        types = [[query.schemas[column.qualifier].field(column.name).type for column in both] for both in sides]
        self._terms = [fit(one.term, *both) for one, both in zip(step.equalities, types, strict=True)]
        self._columns = [list(dict.fromkeys(both[side].name for both in sides)) for side in (0, 1)]
        self._keys = KeyNumbers(self._terms)
        self._sides: tuple[list[KeyedRun], list[KeyedRun]] = [], []
        self._found: tuple[object, dict[str, tuple[list[Hits], list[tuple[KeyedRun, Array]]]]] = None, {}

    def settle(self) -> None:
        """Forget what only the batch needed."""
        self._found = None, {}

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self._keys.nbytes + sum(run.nbytes for side in self._sides for run in side)

    def rows(
        self,
        rule: PartnerRule,
        columns: Mapping[Column, str],
        streams: Mapping[str, StoredStream],
        buckets: Mapping[str, Bucket],
    ) -> tuple[pa.Table, Partners]:
        """The anchors that get partners by a batch, with the named columns that their tuples decide; and the partners.

        The streams have the batch's `buckets` already.
        """
        hits, anchors = self._hits(rule.anchor, streams, buckets)
        stream = streams[self._streams[rule.anchor]]
        numbers = np.concatenate([np.empty(0, np.int64), *(run.numbers[places] for run, places in anchors)])
        arrays, names = [], []
        for column, name in columns.items():
            own = rule.equal.get(column, column)
            if own.qualifier == rule.anchor:
                arrays.append(stream.take(own.name, numbers))
                names.append(name)
        return pa.Table.from_arrays(arrays, names=names), Partners(rule, hits, numbers.size)

    def _hits(
        self, anchor: str, streams: Mapping[str, StoredStream], buckets: Mapping[str, Bucket]
    ) -> tuple[list[Hits], list[tuple[KeyedRun, Array]]]:
        batch = tuple(buckets.get(self._streams[alias]) for alias in self.aliases)
        if self._found[0] != batch:
            self._follow(streams, batch)
            self._found = batch, {}
        known = self._found[1]
        if anchor not in known:
            known[anchor] = self._matched(self.aliases.index(anchor), batch)
        return known[anchor]

    def _matched(self, side: int, batch: Sequence[Bucket | None]) -> tuple[list[Hits], list[tuple[KeyedRun, Array]]]:
        """The new partners of the tuples of one side."""
        hits: list[Hits] = []
        anchors: list[tuple[KeyedRun, Array]] = []
        n = 0
        others = self._sides[1 - side]
        new_ones = [run for run in others if run.buckets[0] is batch[1 - side]]
        for own in self._sides[side]:
            found = []
            for run in others if own.buckets[0] is batch[side] else new_ones:
                near = own.span[0] - self._reach <= run.span[1] and run.span[0] - self._reach <= own.span[1]
                if near and own.n and run.n:
                    found += self._ranges(own, run)
            if not found:
                continue
            has = np.zeros(own.n, np.bool_)
            for _, places, _ in found:
                has[places] = True
            row_of = np.cumsum(has) + (n - 1)
            for run, places, ranges in found:
                hits.append(Hits(run, row_of[places], ranges, ranges.sizes))
            anchors.append((own, np.flatnonzero(has)))
            n += anchors[-1][1].size
        return hits, anchors

    def _ranges(self, own: KeyedRun, run: KeyedRun) -> list[tuple[KeyedRun, Array, Ranges]]:
        places, first, last = (np.empty(own.n, np.int64) for _ in range(3))
        n = partner_ranges(
            own.keys, own.starts, own.ticks, run.keys, run.starts, run.ticks, self._reach, places, first, last
        )
        places, first, last = places[:n], first[:n], last[:n]
        hole = np.full(n, NONE, np.int64)
        if own.buckets == run.buckets:
            # In a join of a stream with itself a tuple is not its own partner.
            hole = run.place_of[own.numbers[places] - own.buckets[0].first]
            hole = np.where((first <= hole) & (hole <= last), hole, NONE)
            first, last = first + (hole == first), last - (hole == last)
            hole = np.where((first < hole) & (hole < last), hole, NONE)
            kept = first <= last
            places, first, last, hole = (one[kept] for one in (places, first, last, hole))
        return [(run, places, Ranges(first, last, hole))] if places.size else []

    # What the streams hold ----------------------------------------------------------------------------------------

    def _follow(self, streams: Mapping[str, StoredStream], batch: Sequence[Bucket | None]) -> None:
        """Sort what has come, and forget what the streams let go of."""
        own = [streams[self._streams[alias]] for alias in self.aliases]
        held = sum(run.n for stream in own for run in stream.runs)
        if self._keys.count > max(_LEAST_KEYS, 4 * held):
            self._keys, self._sides = KeyNumbers(self._terms), ([], [])
        left, right = (self._sorted(side, stream, self._sides[side], batch[side]) for side, stream in enumerate(own))
        self._sides = left, right

    def _sorted(
        self, side: int, stream: StoredStream, before: Sequence[KeyedRun], new: Bucket | None
    ) -> list[KeyedRun]:
        known = {id(run.buckets[0]): run for run in before if run.stream is stream}
        found = []
        for run in stream.runs:
            parts: list[KeyedRun] = []
            at = 0
            while at < len(run.buckets):
                part = known.get(id(run.buckets[at]))
                if part is None or part.buckets != run.buckets[at : at + len(part.buckets)]:
                    break
                parts.append(part)
                at += len(part.buckets)
            if at < len(run.buckets):
                parts = [self._sort(side, stream, run, new)]
            found.append(parts[0] if len(parts) == 1 else KeyedRun.joined(parts))
        return found

    def _sort(self, side: int, stream: StoredStream, run: BucketRun, new: Bucket | None) -> KeyedRun:
        numbers = np.arange(run.first, run.end)
        chosen = np.ones(numbers.size, np.bool_)
        for condition in self._selections[self.aliases[side]]:
            if run.buckets[0] is new:
                # Others that select from the stream ask the same.
                chosen &= new.mask(condition)
            else:
                chosen &= holds(condition, lambda column: stream.values(column.name, numbers), numbers.size)
        places = np.flatnonzero(chosen)
        arrays = [stream.take(name, numbers[places]) for name in self._columns[side]]
        keys = self._keys.number(side, pa.Table.from_arrays(arrays, names=self._columns[side]))
        has_key = keys != NONE
        return KeyedRun.of(stream, self.aliases[side], run, places[has_key], keys[has_key])
