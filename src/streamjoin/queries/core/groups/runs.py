"""Partial groups: rows of a join summarised by pane of time and keys, in runs that merge in any order to the same bits.

A *pane* is an interval of time that no window of a query begins or ends in, so that a window is a sum of whole panes. A
*run* holds for every pane and key the number of rows and a *part* for each summary that some query asks for. Rows
become a run, runs merge into one, and the panes of a window merge into its groups, all by the same regrouping. The
invariants: a run never changes; sums are exact and the rest picks values by order, so what a run says depends on the
rows alone and not on how they came together.

`Slot` says what is kept for an aggregate: aggregates are those of `model.expression.aggregates`, and their values are
made by what makes them for a `Summary`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.joins.kinds.exact_columns import average_column, numbers_of, sum_column
from streamjoin.joins.kinds.summary_pairs import FUNCTIONS, ranks_of
from streamjoin.joins.kinds.summary_values import is_of_words, numbered, order_words, values_of_words
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.exact import Layout, merge
from streamjoin.kernels.kinds.summary import NONE
from streamjoin.model.expression.aggregates import Aggregate
from streamjoin.model.expression.node import Expression
from streamjoin.queries.core.groups.ranges import RangeBests, RangeCounts, Ranges, RangeSums

SlotKind = Literal["count", "sum", "least", "greatest", "values"]
_CHOICES: Final[Mapping[str, SlotKind]] = {
    "MIN": "least",
    "MAX": "greatest",
    "ARG_MIN": "least",
    "ARG_MAX": "greatest",
    "SUM": "sum",
    "AVG": "sum",
}
_WORTH_TOTALS: Final = 3
"""Adding up the groups of a run by key pays if windows read each of them more often than this."""
_MOST_AT_ONCE: Final = 1 << 21
"""Keys by windows that are looked up at once."""
_DENSE: Final = 8
"""Numbers are marked rather than sorted if there are no more of them than rows, times this."""


@dataclass(frozen=True)
class Slot:
    """What is kept of the rows of a group: how many have a value, the sum, the row with the least, or all values."""

    kind: SlotKind
    arguments: tuple[Expression, ...]

    @cached_property
    def key(self) -> str:
        """By which runs have it."""
        return f"{self.kind}({', '.join(map(str, self.arguments))})"


def kind_of(key: str) -> SlotKind:
    """The kind of the slot that has this key."""
    kind: Any = key.partition("(")[0]
    return kind  # type: ignore[no-any-return]


def slot_of(aggregate: Aggregate) -> Slot | None:
    """What has to be kept for an aggregate; nothing for count(*), as rows are counted anyway."""
    if aggregate.function == "COUNT" and not aggregate.distinct:
        return Slot("count", aggregate.arguments) if aggregate.arguments else None
    return Slot(_CHOICES.get(aggregate.function, "values"), aggregate.values)


# Numbering ------------------------------------------------------------------------------------------------------------


def keys_without_signs(array: pa.Array) -> pa.Array:
    """A column of keys in which equal values have equal bits: one zero and one NaN."""
    if not pa.types.is_floating(array.type):
        return array
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    values = array.fill_null(0.0).to_numpy(zero_copy_only=False) + array.type.to_pandas_dtype()(0)
    values[np.isnan(values)] = np.nan
    return pa.array(values, array.type, mask=~valid)


def _encoded(array: pa.Array) -> tuple[Array, int]:
    """Numbers for the values of a column, NULL among them, and how many there are."""
    found = numbered(array).dictionary_encode(null_encoding="encode")
    return found.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(found.dictionary)


def number_keys(keys: Sequence[pa.Array], n: int) -> tuple[Array, Array]:
    """The distinct key of each of `n` rows, numbered in order of appearance, and the first row of each."""
    if not keys:
        return np.zeros(n, np.int64), np.zeros(min(n, 1), np.int64)
    ids, size = _encoded(keys[0])
    for key in keys[1:]:
        own, count = _encoded(key)
        ids, size = _encoded(pa.array(ids * count + own))
    firsts = np.empty(size, np.int64)
    # Of several rows the last one that is written stays.
    firsts[ids[::-1]] = np.arange(n)[::-1]
    return ids, firsts


def number_codes(codes: Array, size: int) -> tuple[Array, Array]:
    """The place of each number below `size` among those that there are, and these, ascending."""
    if size > _DENSE * codes.size + 1024:
        there, ids = np.unique(codes, return_inverse=True)
        return ids.reshape(-1), there
    marks = np.zeros(size, np.bool_)
    marks[codes] = True
    return (np.cumsum(marks) - 1)[codes], np.flatnonzero(marks)


def choice_ranks(values: Sequence[pa.Array], *, greatest: bool) -> tuple[Array, Array]:
    """Numbers in the order in which `BestPart` chooses among rows, and which rows it chooses among."""
    value, *others = values
    by = keys_without_signs(others[0]) if others else value
    present = _has_order((value, by) if others else (value,))
    words = ranks_of(by, greatest=greatest)
    if others:
        own = ranks_of(value, greatest=False)
        order = np.lexsort((own, words))
        words = np.empty(order.size, np.int64)
        words[order] = np.arange(order.size)
    return words, present


def order_ranks(array: pa.Array, *, descends: bool = False, nulls_first: bool = False) -> Array:
    """Numbers in the order of values; NaN is the greatest."""
    found = numbered(keys_without_signs(array)).dictionary_encode()
    ranks = np.empty(len(found.dictionary) + 1, np.int64)
    ranks[pc.sort_indices(found.dictionary).to_numpy()] = np.arange(len(found.dictionary))
    if descends:
        ranks = -ranks
    ranks[-1] = -(1 << 62) if nulls_first else 1 << 62
    own: Array = ranks[found.indices.fill_null(len(found.dictionary)).to_numpy(zero_copy_only=False)]
    return own


# Parts ----------------------------------------------------------------------------------------------------------------


class GroupPart(Protocol):
    """What a run has for one slot, a place for each group."""

    def taken(self, places: Array) -> GroupPart:
        """That of some groups, which may be there several times."""

    def regrouped(self, ids: Array, n: int) -> GroupPart:
        """That of `n` groups, which the groups here belong to."""

    def packed(self) -> tuple[list[pa.Array], list[int]]:
        """As columns of a table, and numbers beside it."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""


@dataclass(frozen=True)
class CountPart:
    """How many rows have a value."""

    counts: Array
    columns: ClassVar = 1

    @classmethod
    def of_rows(
        cls, arguments: Sequence[pa.Array], ids: Array, n: int, _kind: SlotKind, times: Array | None = None
    ) -> Self:
        """That of rows, which belong to `n` groups; each counts as often as `times` says, if given."""
        present = _present(arguments)
        return cls(np.bincount(ids[present], minlength=n) if times is None else added(times[present], ids[present], n))

    @classmethod
    def of_nothing(cls, n: int, _like: Self) -> Self:
        """That of groups without a row."""
        return cls(np.zeros(n, np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """One after the other."""
        return cls(np.concatenate([part.counts for part in parts]))

    @classmethod
    def unpacked(cls, columns: Sequence[pa.Array], _numbers: Sequence[int], _kind: SlotKind) -> Self:
        """What `packed` gave."""
        return cls(columns[0].to_numpy())

    def taken(self, places: Array) -> CountPart:
        """That of some groups."""
        return CountPart(self.counts[places])

    def regrouped(self, ids: Array, n: int) -> CountPart:
        """Added up."""
        return CountPart(added(self.counts, ids, n))

    def packed(self) -> tuple[list[pa.Array], list[int]]:
        """As columns."""
        return [pa.array(self.counts)], []

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.counts.nbytes


def added(counts: Array, ids: Array, n: int) -> Array:
    """Counts added up by group."""
    total = np.zeros(n, np.int64)
    np.add.at(total, ids, counts)
    return total


@dataclass(frozen=True)
class SumPart:
    """Exact sums."""

    rows: Array
    layout: Layout
    columns: ClassVar = 1

    @classmethod
    def of_rows(
        cls, arguments: Sequence[pa.Array], ids: Array, n: int, _kind: SlotKind, times: Array | None = None
    ) -> Self:
        """That of rows."""
        return cls(*numbers_of(arguments[0]).by_group(ids, n, times))

    @classmethod
    def of_nothing(cls, n: int, like: Self) -> Self:
        """That of groups without a row."""
        return cls(like.layout.rows(n), like.layout)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """One after the other, in a layout that holds all."""
        layout = parts[0].layout
        for part in parts[1:]:
            layout = layout.wide_enough(part.layout)
        rows = [part.rows if part.layout == layout else part.layout.widened(part.rows, layout) for part in parts]
        return cls(np.concatenate(rows), layout)

    @classmethod
    def unpacked(cls, columns: Sequence[pa.Array], numbers: Sequence[int], _kind: SlotKind) -> Self:
        """What `packed` gave."""
        layout = Layout(numbers[0], numbers[1], bool(numbers[2]))
        column = columns[0]
        data = np.frombuffer(column.buffers()[1], np.uint64) if len(column) else np.empty(0, np.uint64)
        begin = column.offset * layout.width
        return cls(data[begin : begin + len(column) * layout.width].reshape(-1, layout.width).copy(), layout)

    def taken(self, places: Array) -> SumPart:
        """That of some groups."""
        return SumPart(self.rows[places], self.layout)

    def regrouped(self, ids: Array, n: int) -> SumPart:
        """Added up."""
        rows = self.layout.rows(n)
        merge(np.ascontiguousarray(self.rows), ids, rows, self.layout.head)
        return SumPart(rows, self.layout)

    def packed(self) -> tuple[list[pa.Array], list[int]]:
        """As columns."""
        type_ = pa.binary(8 * self.layout.width)
        data = pa.py_buffer(np.ascontiguousarray(self.rows))
        column = pa.Array.from_buffers(type_, len(self.rows), [None, data])
        return [column], [self.layout.first, self.layout.words, int(self.layout.specials)]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.rows.nbytes


@dataclass(frozen=True)
class BestPart:
    """The value of the row that is first by order, and, where another value has the order, that one too.

    Of several rows with the same order it is the one with the least value.
    """

    values: tuple[pa.Array, ...]
    greatest: bool

    @classmethod
    def of_rows(
        cls,
        arguments: Sequence[pa.Array],
        ids: Array,
        n: int,
        kind: SlotKind,
        _times: Array | None = None,
    ) -> Self:
        """That of rows."""
        value, *by = arguments
        # In what decides the order two zeros are one.
        return cls._best((value, *map(keys_without_signs, by)), ids, n, kind == "greatest")

    @classmethod
    def _best(cls, values: tuple[pa.Array, ...], ids: Array, n: int, greatest: bool) -> Self:
        by = values[-1]
        if len(values) == 1 and not by.null_count and is_of_words(by.type):
            # Every group has a row.
            words = np.full(n, np.iinfo(np.int64).max)
            np.minimum.at(words, ids, order_words(by, greatest=greatest))
            return cls((values_of_words(words, by.type, greatest=greatest),), greatest)
        places = np.flatnonzero(_has_order(values))
        for column, reverse in ((by, greatest), (values[0], False))[: len(values)]:
            if not places.size:
                break
            ranks = ranks_of(column, greatest=reverse)[places]
            least = np.full(n, np.iinfo(np.int64).max)
            np.minimum.at(least, ids[places], ranks)
            places = places[ranks == least[ids[places]]]
        taken = np.full(n, -1, np.int64)
        # Those that are left are equal but for their bits, as two zeros are: the choice must not depend on their order.
        taken[ids[places]] = places
        index = pa.array(taken, mask=taken < 0)
        return cls(tuple(column.take(index) for column in values), greatest)

    @classmethod
    def of_nothing(cls, n: int, like: Self) -> Self:
        """That of groups without a row."""
        return cls(tuple(pa.nulls(n, column.type) for column in like.values), like.greatest)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """One after the other."""
        columns = zip(*(part.values for part in parts), strict=True)
        return cls(tuple(pa.concat_arrays(column) for column in columns), parts[0].greatest)

    @classmethod
    def unpacked(cls, columns: Sequence[pa.Array], _numbers: Sequence[int], kind: SlotKind) -> Self:
        """What `packed` gave."""
        return cls(tuple(columns), kind == "greatest")

    def taken(self, places: Array) -> BestPart:
        """That of some groups."""
        return BestPart(tuple(column.take(pa.array(places)) for column in self.values), self.greatest)

    def regrouped(self, ids: Array, n: int) -> BestPart:
        """The best of each."""
        return BestPart._best(self.values, ids, n, self.greatest)

    def packed(self) -> tuple[list[pa.Array], list[int]]:
        """As columns."""
        return list(self.values), []

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(sum(column.nbytes for column in self.values))


@dataclass(frozen=True)
class ValuesPart:
    """All different values, with the number of rows that have each; `owners` are the groups, ascending."""

    owners: Array
    values: pa.Array
    counts: Array
    groups: int

    @classmethod
    def of_rows(
        cls, arguments: Sequence[pa.Array], ids: Array, n: int, _kind: SlotKind, times: Array | None = None
    ) -> Self:
        """That of rows."""
        present = np.flatnonzero(_present(arguments))
        values = keys_without_signs(arguments[0].take(pa.array(present)))
        counts = np.ones(present.size, np.int64) if times is None else times[present]
        return cls._distinct(ids[present], values, counts, n)

    @classmethod
    def _distinct(cls, owners: Array, values: pa.Array, counts: Array, n: int) -> Self:
        own, firsts = number_keys([values], len(values))
        ids, codes = number_codes(owners * firsts.size + own, n * firsts.size)
        chosen = values.take(pa.array(firsts[codes % max(1, firsts.size)]))
        return cls(codes // max(1, firsts.size), chosen, added(counts, ids, codes.size), n)

    @classmethod
    def of_nothing(cls, n: int, like: Self) -> Self:
        """That of groups without a row."""
        empty = np.empty(0, np.int64)
        return cls(empty, like.values.slice(0, 0), empty, n)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """One after the other."""
        shifts = np.cumsum([0, *(part.groups for part in parts)])
        owners = [part.owners + shift for part, shift in zip(parts, shifts, strict=False)]
        values = pa.concat_arrays([part.values for part in parts])
        counts = np.concatenate([part.counts for part in parts])
        return cls(np.concatenate(owners), values, counts, int(shifts[-1]))

    @classmethod
    def unpacked(cls, columns: Sequence[pa.Array], _numbers: Sequence[int], _kind: SlotKind) -> Self:
        """What `packed` gave."""
        lists, counts = columns
        sizes = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        owners = np.repeat(np.arange(len(lists)), sizes)
        return cls(owners, pc.list_flatten(lists), pc.list_flatten(counts).to_numpy(), len(lists))

    def taken(self, places: Array) -> ValuesPart:
        """That of some groups."""
        begins = np.searchsorted(self.owners, np.arange(self.groups + 1))
        sizes = begins[places + 1] - begins[places]
        own = np.repeat(np.arange(places.size), sizes)
        kept = np.arange(own.size) + np.repeat(begins[places] - (np.cumsum(sizes) - sizes), sizes)
        return ValuesPart(own, self.values.take(pa.array(kept)), self.counts[kept], places.size)

    def regrouped(self, ids: Array, n: int) -> ValuesPart:
        """Put together."""
        return ValuesPart._distinct(ids[self.owners], self.values, self.counts, n)

    def packed(self) -> tuple[list[pa.Array], list[int]]:
        """As columns of lists."""
        offsets = np.searchsorted(self.owners, np.arange(self.groups + 1)).astype(np.int64)
        lists = (pa.LargeListArray.from_arrays(pa.array(offsets), own) for own in (self.values, pa.array(self.counts)))
        return list(lists), []

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self.owners.nbytes + self.counts.nbytes + self.values.nbytes)


_PARTS: Final[Mapping[SlotKind, Any]] = {
    "count": CountPart,
    "sum": SumPart,
    "least": BestPart,
    "greatest": BestPart,
    "values": ValuesPart,
}


def _present(columns: Sequence[pa.Array]) -> Array:
    """In which rows no value is NULL."""
    present = np.ones(len(columns[0]), np.bool_)
    for column in columns:
        if column.null_count:
            present &= column.is_valid().to_numpy(zero_copy_only=False)
    return present


def _has_order(values: Sequence[pa.Array]) -> Array:
    """Which rows one may be chosen from: by what decides the order, the last column."""
    present, by = _present(values), values[-1]
    if len(values) > 1 and pa.types.is_floating(by.type):
        # NaN is neither the least nor the greatest.
        present &= ~np.isnan(by.fill_null(0.0).to_numpy(zero_copy_only=False))
    return present


# Runs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupRun:
    """Groups by pane and key, ascending by pane: how many rows each has, and the parts by the key of their slot.

    `keys` are the distinct ones, a column for each expression, and `ids` says which each group has.
    """

    panes: Array
    ids: Array
    keys: tuple[pa.Array, ...]
    counts: Array
    parts: Mapping[str, GroupPart]

    @property
    def n(self) -> int:
        """How many groups there are."""
        return int(self.panes.size)

    @property
    def distinct(self) -> int:
        """How many distinct keys there are."""
        return len(self.keys[0]) if self.keys else 1

    @cached_property
    def nbytes(self) -> int:
        """Bytes in memory."""
        own = self.panes.nbytes + self.ids.nbytes + self.counts.nbytes
        keys, parts = (sum(one.nbytes for one in some) for some in (self.keys, self.parts.values()))
        return int(own + keys + parts)

    def taken(self, places: Array) -> GroupRun:
        """Some groups."""
        parts = {key: part.taken(places) for key, part in self.parts.items()}
        return GroupRun(self.panes[places], self.ids[places], self.keys, self.counts[places], parts)

    def at(self, panes: Array) -> GroupRun:
        """The same groups in other panes."""
        return GroupRun(panes, self.ids, self.keys, self.counts, self.parts)

    @cached_property
    def marks(self) -> Array:
        """The panes that there are, ascending."""
        return self.panes[_begins(self.panes)]

    @cached_property
    def totals(self) -> PaneTotals:
        """What windows of many panes are summed up by."""
        return PaneTotals(self)

    @property
    def has_totals(self) -> bool:
        """Whether these are there already."""
        return "totals" in self.__dict__

    @property
    def is_dense(self) -> bool:
        """Whether most keys have a group in most panes."""
        return self.distinct * self.marks.size <= _DENSE * self.n

    def windows(self, begins: Array, ends: Array, wanted: Collection[str]) -> list[GroupRun]:
        """The groups of windows, in pieces to be added up; their panes are the numbers of the windows."""
        low, high = np.searchsorted(self.panes, begins), np.searchsorted(self.panes, ends)
        sizes = high - low
        reads = int(sizes.sum())
        if not reads:
            return []
        plain = all(kind_of(key) != "values" for key in wanted)
        if plain and (self.has_totals or reads > _WORTH_TOTALS * self.n) and self.is_dense:
            rows = max(1, _MOST_AT_ONCE // self.distinct)
            cuts = range(0, begins.size, rows)
            return [self.totals.windows(begins[a : a + rows], ends[a : a + rows], a, wanted) for a in cuts]
        offsets = np.cumsum(sizes) - sizes
        numbers = np.repeat(np.arange(begins.size), sizes)
        places = np.arange(reads) + np.repeat(low - offsets, sizes)
        return [self.with_parts(wanted).taken(places).at(numbers)]

    def keyed(self, keys: tuple[pa.Array, ...], numbers: Array) -> GroupRun:
        """The same groups where `numbers` says which of other keys each of the keys here is."""
        return GroupRun(self.panes, numbers[self.ids], keys, self.counts, self.parts)

    def with_parts(self, wanted: Collection[str]) -> GroupRun:
        """With some parts alone."""
        parts = {key: part for key, part in self.parts.items() if key in wanted}
        return GroupRun(self.panes, self.ids, self.keys, self.counts, parts)

    @property
    def key_columns(self) -> tuple[pa.Array, ...]:
        """The keys of each group."""
        index = pa.array(self.ids)
        return tuple(key.take(index) for key in self.keys)

    # Files --------------------------------------------------------------------------------------------------------

    @cached_property
    def packed(self) -> bytes:
        """As bytes, for a file."""
        columns = [pa.array(self.panes), pa.array(self.counts), *self.key_columns]
        described = []
        for key, part in self.parts.items():
            own, numbers = part.packed()
            described.append([key, len(own), numbers])
            columns += own
        about = {b"groups": json.dumps([len(self.keys), described]).encode()}
        fields = [pa.field(str(number), column.type) for number, column in enumerate(columns)]
        table = pa.Table.from_arrays(columns, schema=pa.schema(fields, about))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    @classmethod
    def unpacked(cls, data: bytes) -> GroupRun:
        """What `packed` gave."""
        table = pa.ipc.open_stream(data).read_all().combine_chunks()
        columns = [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in table.columns]
        n_keys, described = json.loads(table.schema.metadata[b"groups"])
        at, parts = 2 + n_keys, dict[str, GroupPart]()
        for key, count, numbers in described:
            kind = kind_of(key)
            parts[key] = _PARTS[kind].unpacked(columns[at : at + count], numbers, kind)
            at += count
        keys = columns[2 : 2 + n_keys]
        ids, firsts = number_keys(keys, table.num_rows)
        distinct = tuple(key.take(pa.array(firsts)) for key in keys)
        return cls(columns[0].to_numpy(), ids, distinct, columns[1].to_numpy(), parts)


def part_of_rows(
    slot: Slot, arguments: Sequence[pa.Array], ids: Array, n: int, times: Array | None = None
) -> GroupPart:
    """What is kept for a slot of rows that belong to `n` groups, and count as often as `times` says, if given."""
    part: GroupPart = _PARTS[slot.kind].of_rows(arguments, ids, n, slot.kind, times)
    return part


def run_of_rows(
    marks: Array,
    places: Array,
    keys: Sequence[pa.Array],
    slots: Sequence[Slot],
    part: Callable[[Slot, Array, int], GroupPart],
    times: Array | None = None,
) -> GroupRun:
    """Rows as a run: panes begin at `marks`, ascending, and `places` says in which each row is.

    `part` makes that of a slot, of rows that belong to so many groups; each row counts as often as `times` says.
    """
    own, firsts = number_keys(keys, places.size)
    ids, codes = number_codes(places * firsts.size + own, marks.size * firsts.size)
    n, index = codes.size, pa.array(firsts)
    parts = {slot.key: part(slot, ids, n) for slot in slots}
    distinct = tuple(key.take(index) for key in keys)
    counts = np.bincount(ids, minlength=n) if times is None else added(times, ids, n)
    return GroupRun(marks[codes // firsts.size], codes % firsts.size, distinct, counts, parts)


class PaneTotals:
    """The groups of a run by key and then by pane, added up along each key: a window is the difference of two places.

    The least and the greatest values are on ladders. For every key and pane `_before` has the groups before it.
    """

    def __init__(self, run: GroupRun) -> None:
        self._run = run
        _, self._order = sort_entries(run.ids, np.arange(run.n))
        panes = np.cumsum(_begins(run.panes)) - 1
        there = np.zeros(run.distinct * run.marks.size, np.bool_)
        there[run.ids * run.marks.size + panes] = True
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(there)])
        self._rows = RangeCounts(run.counts[self._order])
        self._counts: dict[str, RangeCounts] = {}
        self._sums: dict[str, RangeSums] = {}
        self._bests: dict[str, RangeBests] = {}

    def windows(self, begins: Array, ends: Array, first: int, wanted: Collection[str]) -> GroupRun:
        """The groups of windows, in the order of these and of keys; their panes are numbers from `first` on.

        Who looks at what is open is another thread: what is missing here may be made twice.
        """
        run = self._run
        keys = np.arange(run.distinct) * run.marks.size
        low, high = (self._before[keys + np.searchsorted(run.marks, edges)[:, np.newaxis]] for edges in (begins, ends))
        windows, ids = np.nonzero(high > low)
        ranges = Ranges.whole(low[windows, ids], high[windows, ids] - 1)
        parts: dict[str, GroupPart] = {}
        for key, part in run.parts.items():
            if key not in wanted:
                continue
            if isinstance(part, CountPart):
                if key not in self._counts:
                    self._counts[key] = RangeCounts(part.counts[self._order])
                parts[key] = CountPart(self._counts[key].of(ranges))
            elif isinstance(part, SumPart):
                if key not in self._sums:
                    self._sums[key] = RangeSums(part.rows[self._order], part.layout)
                parts[key] = SumPart(self._sums[key].of(ranges), part.layout)
            elif isinstance(part, BestPart):
                if key not in self._bests:
                    words, present = choice_ranks(part.values, greatest=part.greatest)
                    self._bests[key] = RangeBests(words[self._order], present[self._order])
                places = self._bests[key].of(ranges)
                index = pa.array(self._order[places], mask=places == NONE)
                parts[key] = BestPart(tuple(column.take(index) for column in part.values), part.greatest)
        return GroupRun(windows + first, ids, run.keys, self._rows.of(ranges), parts)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        parts: list[RangeCounts | RangeSums | RangeBests]
        parts = [self._rows, *self._counts.values(), *self._sums.values(), *self._bests.values()]
        return int(self._order.nbytes + self._before.nbytes + sum(part.nbytes for part in parts))


def _begins(values: Array) -> Array:
    """Where a run of equal values begins."""
    begins = np.ones(values.size, np.bool_)
    begins[1:] = values[1:] != values[:-1]
    return begins


def common_keys(runs: Sequence[GroupRun], *, ordered: bool = False) -> tuple[tuple[pa.Array, ...], list[Array]]:
    """One list of the distinct keys of runs, in order if asked for, and which of them each key of each run is."""
    if not runs or not runs[0].keys:
        return (), [np.zeros(1, np.int64) for _ in runs]
    columns = tuple(pa.concat_arrays(own) for own in zip(*(run.keys for run in runs), strict=True))
    ids, firsts = number_keys(columns, len(columns[0]))
    keys = tuple(column.take(pa.array(firsts)) for column in columns)
    if ordered:
        order = np.lexsort([order_ranks(key) for key in reversed(keys)])
        keys = tuple(key.take(pa.array(order)) for key in keys)
        place = np.empty(order.size, np.int64)
        place[order] = np.arange(order.size)
        ids = place[ids]
    ends = np.cumsum([0, *(run.distinct for run in runs)])
    return keys, [ids[a:b] for a, b in pairwise(ends.tolist())]


def same_keys(runs: Sequence[GroupRun]) -> list[GroupRun]:
    """The same runs with one list of distinct keys."""
    keys, numbers = common_keys(runs)
    return [run.keyed(keys, own) for run, own in zip(runs, numbers, strict=True)]


def merged(runs: Sequence[GroupRun], wanted: Collection[str] | None = None) -> GroupRun:
    """Several runs as one, with the `wanted` parts, or all; what one has no part of had no rows there that count."""
    if len(runs) == 1:
        return runs[0]
    return added_up(same_keys(runs), wanted)


def added_up(runs: Sequence[GroupRun], wanted: Collection[str] | None = None, marks: Array | None = None) -> GroupRun:
    """Runs of the same keys as one, groups in order of pane and key; keys that no group has are left out.

    With `marks` the panes of the runs are places there.
    """
    panes, ids = (np.concatenate([getattr(run, name) for run in runs]) for name in ("panes", "ids"))
    distinct = runs[0].distinct
    if marks is None:
        marks, panes = np.unique(panes, return_inverse=True)
        panes = panes.reshape(-1)
    into, codes = number_codes(panes * distinct + ids, marks.size * distinct)
    n, found = codes.size, {key: part for run in runs for key, part in run.parts.items()}
    parts: dict[str, Any] = {}
    for key, like in found.items():
        if wanted is None or key in wanted:
            kind: Any = type(like)
            own = [run.parts.get(key) or kind.of_nothing(run.n, like) for run in runs]
            parts[key] = (own[0] if len(own) == 1 else kind.joined(own)).regrouped(into, n)
    counts = added(np.concatenate([run.counts for run in runs]), into, n)
    own_ids, used = number_codes(codes % distinct, distinct)
    keys = runs[0].keys if used.size == distinct else tuple(key.take(pa.array(used)) for key in runs[0].keys)
    return GroupRun(marks[codes // distinct], own_ids, keys, counts, parts)


def groups_of_windows(
    runs: Sequence[GroupRun],
    keys: tuple[pa.Array, ...],
    numbers: Sequence[Array],
    windows: tuple[Array, Array],
    wanted: Collection[str],
) -> GroupRun | None:
    """The groups of windows that begin and end somewhere, in the order of these and of keys.

    Their panes are the numbers of the windows. `numbers` says which of the `keys` each key of each run is.
    """
    begins, ends = windows
    pieces = [
        piece.keyed(keys, own)
        for run, own in zip(runs, numbers, strict=True)
        for piece in run.windows(begins, ends, wanted)
        if piece.n
    ]
    return added_up(pieces, marks=np.arange(begins.size)) if pieces else None


def values_of(
    run: GroupRun, aggregate: Aggregate, arguments: Sequence[pa.DataType], type_: pa.DataType
) -> tuple[pa.Array, int]:
    """The value of an aggregate for each group, and how many sums their type could not hold."""
    slot = slot_of(aggregate)
    if slot is None:
        return pa.array(run.counts), 0
    part: Any = run.parts[slot.key]
    if slot.kind == "count":
        return pa.array(part.counts), 0
    if slot.kind == "sum":
        rows = part.rows.copy()
        if aggregate.function == "AVG":
            return average_column(rows, part.layout, arguments[0]), 0
        return sum_column(rows, part.layout, type_)
    if slot.kind != "values":
        return part.values[0], 0
    owners, values = part.owners, part.values
    if aggregate.function != "COUNT":
        every = np.repeat(np.arange(owners.size), part.counts)
        owners, values = owners[every], values.take(pa.array(every))
    return FUNCTIONS[aggregate.function](aggregate, [values], owners, run.n), 0
