"""Query-sets: for each tuple, the queries whose selection it passes, as bits in words of 64 (AJoin, section 3.1).

Selections of many queries are evaluated together: a table for each attribute says which of them a value passes.
Conditions `attribute op constant` over whole numbers become rows of bits, one row for each value from the least
constant to the greatest and one for all beyond at either end; where constants lie far apart, one row for each constant
and each gap. A tuple's query-set is then one row of each table ANDed, whatever the number of queries. Any other
condition is evaluated once for all that have it.

A layout says which bit is whose. Bits are given out once and not again, so that a query may come and go without a look
at the tuples that are there: an old tuple has no bit of a newer query, and joins intersect sets, so that it needs
no other test of when a query was created.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.expression.nodes import Column, Compare, Expression, Literal
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.stored_stream import BucketRun, StoredStream, TupleArray, allocate
from streamjoin.queries.kernels.sets import and_by_place, and_by_row, and_by_value, clear_failing, places_of, unpack

BITS: Final = 64
DENSE: Final = 1 << 12
"""The most rows of a table by value; constants further apart are searched for."""
_LIMIT: Final = 1 << 62
_OPERATORS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WHOLE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())


@dataclass(frozen=True)
class Selected:
    """What a tuple must be for one query's bit: of the batch `created` or later, and passing all conditions.

    `serial` and `alias` say whose it is; two with the same are the same.
    """

    serial: int
    alias: str
    created: int
    conditions: tuple[Expression, ...] = field(compare=False)


Bits = tuple[Selected | None, ...]
"""What each bit asks of a tuple; None leaves it unset."""


def words_of(bits: int) -> int:
    """The words of a set of this many bits."""
    return max(1, -(-bits // BITS))


class SelectionTables:
    """The selections behind the bits of a set."""

    def __init__(self, bits: Bits, schema: pa.Schema) -> None:
        self.bits = bits
        self.width = words_of(len(bits))
        self._base = pack_bits(np.array([selected is not None for selected in bits], np.bool_), self.width)
        self.latest = max((selected.created for selected in bits if selected is not None), default=-1)
        """The batch that the newest query was created in."""
        simple: dict[str, list[tuple[int, str, int]]] = {}
        others: dict[Expression, list[int]] = {}
        for place, selected in enumerate(bits):
            for condition in selected.conditions if selected is not None else ():
                test = comparison_of(condition, schema)
                if test is None:
                    others.setdefault(condition, []).append(place)
                else:
                    simple.setdefault(test[0], []).append((place, *test[1:]))
        self.tables = {name: _table(tests, len(bits), self.width) for name, tests in simple.items()}
        self._others = [(condition, _by_word(places)) for condition, places in others.items()]

    def fill(self, bucket: Bucket, out: Array) -> None:
        """Write the sets of a bucket's tuples."""
        there = self.in_force(bucket.batch)
        out[:] = there
        if there.any():
            self.clear(bucket, out)

    def clear(self, bucket: Bucket, out: Array, done: Set[str] = frozenset()) -> None:
        """Clear the bits whose selection a tuple does not pass; the tables in `done` have been applied."""
        for name, table in self.tables.items():
            if name not in done:
                table.clear(out, *bucket.whole_numbers(name))
        for condition, words in self._others:
            passing = bucket.mask(condition)
            for word, bits in words:
                clear_failing(out, passing, word, bits)

    def ends_with(self, done: Set[str]) -> bool:
        """Whether the tables in `done` are all there is to apply."""
        return not self._others and self.tables.keys() <= done

    def in_force(self, batch: int) -> Array:
        """The bits of the queries that there were when the batch came."""
        if batch >= self.latest:
            return self._base
        there = [selected is not None and selected.created <= batch for selected in self.bits]
        return pack_bits(np.array(there, np.bool_), self.width)


@dataclass(frozen=True)
class PackedWord:
    """Where a word of one of several sets lies in a packed set: which word of which part, and its bits there."""

    part: int
    word: int
    packed: int
    shift: np.uint64
    mask: np.uint64


def _pack(parts: Sequence[SelectionTables]) -> list[PackedWord]:
    """Places for all words of sets, as near to each other as they go without one in two words."""
    places: list[PackedWord] = []
    packed = shift = 0
    for number, part in enumerate(parts):
        for word in range(part.width):
            bits = min(BITS, len(part.bits) - word * BITS)
            if shift + bits > BITS:
                packed, shift = packed + 1, 0
            places.append(PackedWord(number, word, packed, np.uint64(shift), np.uint64((1 << bits) - 1)))
            shift += bits
    return places


class JointSelections:
    """The selections of several sets over one stream: a value is looked up once for all of them.

    Sets are made packed, as most have a few bits, and taken apart at the end.
    """

    def __init__(self, parts: Sequence[SelectionTables]) -> None:
        self.parts = tuple(parts)
        self._words = _pack(parts)
        self._width = self._words[-1].packed + 1
        tables = {
            name: table
            for name in dict.fromkeys(name for part in parts for name in part.tables)
            if (table := self._joint_table(name)) is not None
        }
        firsts = np.cumsum([0, *(len(table.rows) for table in tables.values())]).tolist()
        self._tables = {name: (first, table) for first, (name, table) in zip(firsts, tables.items(), strict=False)}
        empty = np.empty((0, self._width), np.uint64)
        self._rows: Array = np.concatenate([empty, *(table.rows for table in tables.values())]).T.copy()
        self._unfinished = [n for n, part in enumerate(parts) if not part.ends_with(self._tables.keys())]
        self._latest = max(part.latest for part in parts)
        self._base = self._packed_base(self._latest)

    def _joint_table(self, name: str) -> ValueTable | None:
        """The tables of an attribute as one; None where they are not by value, or too large together."""
        tables = [part.tables.get(name) for part in self.parts]
        if any(table is not None and table.constants is not None for table in tables):
            return None
        known = [table for table in tables if table is not None]
        least, most = min(table.least for table in known), max(table.most for table in known)
        if most - least >= DENSE:
            return None
        values = np.arange(least, most + 1)
        full = np.full((most - least + 2, 1), ~np.uint64(0))
        parts = []
        for part, table in zip(self.parts, tables, strict=True):
            if table is None:
                parts.append(np.broadcast_to(full, (len(full), part.width)))
            else:
                rows = table.rows[np.clip(values, table.least, table.most) - table.least]
                parts.append(np.concatenate([rows, table.rows[-1:]]))
        return ValueTable(least, None, self._packed(parts))

    def _packed(self, parts: Sequence[Array]) -> Array:
        """Sets of all parts as packed ones."""
        packed = np.zeros((len(parts[0]), self._width), np.uint64)
        for at in self._words:
            packed[:, at.packed] |= (parts[at.part][:, at.word] & at.mask) << at.shift
        return packed

    def fill(self, bucket: Bucket, outs: Sequence[Array]) -> None:
        """Write the sets of a bucket's tuples, each part's to its own array."""
        places = np.empty((len(self._tables), bucket.n), np.int32)
        for chosen, (name, (first, table)) in zip(places, self._tables.items(), strict=True):
            values, valid = bucket.whole_numbers(name)
            places_of(values, table.least, len(table.rows) - 2, first, chosen)
            if valid is not None:
                chosen[~valid] = first + len(table.rows) - 1
        base = self._base if bucket.batch >= self._latest else self._packed_base(bucket.batch)
        packed = allocate(self._width * bucket.n, np.uint64).reshape(self._width, bucket.n)
        and_by_place(places, self._rows, base, packed)
        for at in self._words:
            unpack(packed[at.packed], at.shift, at.mask, outs[at.part], at.word)
        for number in self._unfinished:
            self.parts[number].clear(bucket, outs[number], self._tables.keys())

    def _packed_base(self, batch: int) -> Array:
        """The bits that a tuple of a batch may have."""
        base: Array = self._packed([part.in_force(batch)[np.newaxis] for part in self.parts])[0]
        return base


@dataclass(frozen=True)
class ValueTable:
    """Rows of bits; the last is for NULL. By value from `least` on, or by place among `constants`."""

    least: int
    constants: Array | None
    rows: Array

    @property
    def most(self) -> int:
        """The value of the last row but one, which stands for all above too."""
        return self.least + len(self.rows) - 2

    def clear(self, sets: Array, values: Array, valid: Array | None) -> None:
        """Clear the bits that a tuple's value does not have."""
        table = self.rows[:-1]
        if self.constants is None and valid is None:
            and_by_value(sets, values, self.least, table)
            return
        if self.constants is None:
            # The difference of two int64 may not fit, but the clipped one does.
            places = np.clip(values, self.least, self.least + len(table) - 1) - self.least
        else:
            after = np.searchsorted(self.constants, values, side="right")
            places = np.searchsorted(self.constants, values, side="left") + after
        if valid is not None:
            places = np.where(valid, places, len(table))
        and_by_row(sets, places, self.rows)


def _table(tests: Sequence[tuple[int, str, int]], bits: int, width: int) -> ValueTable:
    constants = np.array(sorted({constant for _, _, constant in tests}), np.int64)
    least = int(constants[0]) - 1
    dense = int(constants[-1]) - least < DENSE
    if dense:
        values = np.arange(least, int(constants[-1]) + 2)
    else:
        # Before the first constant, the constant, between it and the next, ...: in doubled places all are whole.
        values, doubled = np.arange(2 * len(constants) + 1), {c: 2 * n + 1 for n, c in enumerate(constants.tolist())}
        tests = [(place, sign, doubled[constant]) for place, sign, constant in tests]
    passing = np.ones((len(values) + 1, bits), np.bool_)
    for sign, chosen in _rounds(tests):
        places, numbers = (np.array(column) for column in zip(*chosen, strict=True))
        passing[:-1, places] &= _OPERATORS[sign](values[:, np.newaxis], numbers[np.newaxis, :])
        passing[-1, places] = False
    return ValueTable(least, None if dense else constants, pack_bits(passing, width))


def _rounds(tests: Iterable[tuple[int, str, int]]) -> list[tuple[str, list[tuple[int, int]]]]:
    """The tests by operator; a bit that has one twice gets a second round."""
    rounds: list[tuple[str, dict[int, int]]] = []
    for place, sign, constant in tests:
        for name, taken in rounds:
            if name == sign and place not in taken:
                taken[place] = constant
                break
        else:
            rounds.append((sign, {place: constant}))
    return [(sign, list(taken.items())) for sign, taken in rounds]


def pack_bits(bits: Array, width: int) -> Array:
    """Truth values, bit by bit along the last axis, as words."""
    room = np.zeros((*bits.shape[:-1], width * BITS), np.bool_)
    room[..., : bits.shape[-1]] = bits
    return np.packbits(room, axis=-1, bitorder="little").view(np.uint64)


def passing(bucket: Bucket, rows: Array, condition: Expression) -> Array:
    """Which of some rows of a bucket pass a condition."""
    test = comparison_of(condition, bucket.table.schema)
    if test is None:
        return bucket.mask(condition)[rows]
    # Many queries have one of their own: to evaluate each as an expression takes longer than the comparison.
    name, sign, constant = test
    values, valid = bucket.whole_numbers(name)
    mask = _OPERATORS[sign](values[rows], np.array(constant, np.int64))
    return mask if valid is None else mask & valid[rows]


def comparison_of(condition: Expression, schema: pa.Schema) -> tuple[str, str, int] | None:
    """The attribute, the operator and the constant of a condition that a table can hold."""
    if not isinstance(condition, Compare) or condition.operator not in _OPERATORS:
        return None
    column, literal = condition.left, condition.right
    if not isinstance(column, Column) or not isinstance(literal, Literal):
        return None
    value = literal.value
    if type(value) is not int or abs(value) >= _LIMIT or schema.field(column.name).type not in _WHOLE:
        return None
    return column.name, condition.operator, value


def _by_word(places: Iterable[int]) -> list[tuple[int, np.uint64]]:
    bits_by_word: dict[int, int] = {}
    for place in places:
        word, bit = divmod(place, BITS)
        bits_by_word[word] = bits_by_word.get(word, 0) | 1 << bit
    return [(word, np.uint64(bits)) for word, bits in bits_by_word.items()]


Owner = tuple[int, str, str]
"""A query's serial, and two of its aliases: the first two of a path."""
_SERIALS: Final = count()
_SPARE: Final = 32
_TOGETHER: Final = 16
"""Columns of sets that are made together: more would make tables that no cache holds."""


class BitLayout:
    """Who owns which bit."""

    def __init__(self) -> None:
        self._places: dict[Owner, int] = {}

    def place(self, owner: Owner) -> int:
        """The bit of an owner, the next one if it has none yet."""
        return self._places.setdefault(owner, len(self._places))

    def __len__(self) -> int:
        return len(self._places)

    @property
    def words(self) -> int:
        """The words of a set."""
        return words_of(len(self._places))

    def __contains__(self, owner: Owner) -> bool:
        return owner in self._places

    def __iter__(self) -> Iterator[Owner]:
        return iter(self._places)

    def worn(self, living: int) -> bool:
        """Whether enough bits have no owner any more for dealing them out anew to pay."""
        return len(self._places) - living > max(_SPARE, living)

    def of(self, owners: Iterable[Owner]) -> Array:
        """The set of these owners."""
        bits = np.zeros(self.words, np.uint64)
        for owner in owners:
            word, bit = divmod(self._places[owner], BITS)
            bits[word] |= np.uint64(1 << bit)
        return bits


class SetColumn:
    """The sets of a stream's tuples, by number, for one place in a join; made when they are asked for."""

    def __init__(self, stream: StoredStream, bits: Bits) -> None:
        self.serial = next(_SERIALS)
        self.stream = stream
        self._tables = SelectionTables(bits, stream.stream.schema)
        self._sets = stream.followed_by(TupleArray(stream.first, np.uint64, self._tables.width))

    @property
    def tables(self) -> SelectionTables:
        """The selections behind the bits."""
        return self._tables

    @property
    def bits(self) -> Bits:
        """What the bits ask of a tuple."""
        return self._tables.bits

    def fits(self, stream: StoredStream, bits: Bits) -> bool:
        """Whether the sets are still right for these bits: some may be gone, and others new behind the old."""
        old = self.bits
        return (
            self.stream is stream
            and len(bits) >= len(old)
            and all(new is None or new == was for was, new in zip(old, bits, strict=False))
        )

    def extend(self, bits: Bits) -> None:
        """Take other bits from the next batch on; the tuples that are there have none of the new ones."""
        if bits != self.bits:
            self._catch_up()
            self._tables = SelectionTables(bits, self.stream.stream.schema)
            self._sets.widen(self._tables.width)

    def of(self, run: BucketRun) -> Array:
        """The sets of a run's tuples."""
        if self._sets.end != self.stream.ticks.end:
            self._catch_up()
        return self._sets.view(run.first, run.end)

    def _catch_up(self) -> None:
        for bucket in self.stream.missing(self._sets.end):
            self._tables.fill(bucket, self._sets.grow(bucket.first, bucket.n))
            if bucket is not self.stream.newest:
                bucket.settle()

    def is_behind(self, bucket: Bucket) -> bool:
        """Whether a bucket is all that is missing."""
        return self._sets.end == bucket.first and self.stream.ticks.end == bucket.end

    def grow(self, bucket: Bucket) -> Array:
        """Room for the sets of a bucket, to be written."""
        return self._sets.grow(bucket.first, bucket.n)

    @property
    def nbytes(self) -> int:
        """The bytes of the sets."""
        return self._sets.nbytes


class JointColumns:
    """The columns of sets of one stream, which are made together for a new bucket."""

    def __init__(self, columns: Sequence[SetColumn]) -> None:
        self._columns = list(columns)
        self._selections = [
            JointSelections([column.tables for column in columns[first : first + _TOGETHER]])
            for first in range(0, len(columns), _TOGETHER)
        ]

    def fits(self, columns: Sequence[SetColumn]) -> bool:
        """Whether these are the columns, with the same bits."""
        parts = [part for selections in self._selections for part in selections.parts]
        return len(columns) == len(parts) and all(
            column.tables is part for column, part in zip(columns, parts, strict=True)
        )

    def fills(self, bucket: Bucket) -> list[Callable[[], None]]:
        """What writes the sets of a bucket, in steps that are independent of each other.

        Columns that miss more than the bucket are left out: they catch up on their own.
        """
        steps: list[Callable[[], None]] = []
        for number, selections in enumerate(self._selections):
            columns = self._columns[number * _TOGETHER : (number + 1) * _TOGETHER]
            if len(columns) > 1 and all(column.is_behind(bucket) for column in columns):
                outs = [column.grow(bucket) for column in columns]
                steps.append(partial(selections.fill, bucket, outs))
        return steps
