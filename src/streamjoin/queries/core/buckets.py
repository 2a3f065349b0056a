"""Buckets: the tuples of one stream that arrived in one micro-batch, read-only, shared by all queries and attributes.

A bucket is a table, the tuples' times, and their places: `first` + row is the tuple's number in its own stream, and
`gates` its number among the tuples of all streams, by batch, time, stream name and position. What is derived (masks of
predicates, words, sorted indexes) is made once, when first asked for. The invariant: a bucket's content never
changes, so a plan may come and go over the same buckets. (AJoin, section 3.2: data layout.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.model.errors import CheckpointError
from streamjoin.model.expression.evaluation import Values, from_arrow, holds
from streamjoin.model.expression.nodes import Expression
from streamjoin.model.keys import KeyTerm
from streamjoin.model.predicates import Equi
from streamjoin.windows.encoding import Encoded, SideEncoder, SideName, flat, integer_values
from streamjoin.windows.words import TermWords

IndexKey = tuple[str, str]
"""The column and the kind of word, by name: all joins by this attribute share the index."""
_META = b"streamjoin.bucket"
_TICK, _GATE = "#tick", "#gate"


@dataclass(frozen=True)
class OneTerm:
    """The keys of an index over a single term, for the encoder."""

    terms: tuple[KeyTerm, ...]
    index: tuple[KeyTerm, ...] = ()


@dataclass(frozen=True, eq=False)
class KeyAttribute:
    """One side of a fitted term: what its column is encoded for, and under which key words and index are shared."""

    term: KeyTerm
    side: SideName

    @cached_property
    def index_key(self) -> IndexKey:
        """The index that serves it: a word depends on the column and the kind alone."""
        column = self.term.left if self.side == "left" else self.term.right
        return column.name, self.term.kind.value

    @cached_property
    def encoder(self) -> SideEncoder:
        """What makes the column's words."""
        return SideEncoder(OneTerm((self.term,)), self.side)

    @cached_property
    def words_key(self) -> tuple[object, ...]:
        """What the intervals depend on: the column, for equalities of one type; otherwise the whole term."""
        same = self.term.left.type == self.term.right.type and self.term.exact
        return self.index_key if same and isinstance(self.term.term, Equi) else (self.term, self.side)


class Encoder(Protocol):
    """Makes words of a column, or of several."""

    def encode(self, table: pa.Table) -> Encoded:
        """The words of every tuple."""


class Attribute(Protocol):
    """What a side of a join is looked up by: `KeyAttribute`, or an interval."""

    @property
    def index_key(self) -> IndexKey:
        """The index that serves it."""

    @property
    def words_key(self) -> tuple[object, ...]:
        """What its words depend on."""

    @property
    def encoder(self) -> Encoder:
        """What makes its words."""


@dataclass(frozen=True)
class SortedIndex:
    """Words in order, and the row of each; `distinct` words there are."""

    words: Array
    rows: Array

    @cached_property
    def distinct(self) -> int:
        """How many different words there are."""
        return int(np.count_nonzero(np.diff(self.words))) + 1 if self.words.size else 0

    @property
    def nbytes(self) -> int:
        """The bytes of words and rows."""
        return self.words.nbytes + self.rows.nbytes


@dataclass(frozen=True)
class ProbeWords:
    """The intervals by which a bucket's tuples probe, and which of them have a key at all."""

    words: TermWords
    valid: Array


@dataclass(frozen=True, eq=False)
class Bucket:
    """One batch of a stream, in order of time; `seen` counts the tuples of each stream in the batches before."""

    stream: str
    batch: int
    table: pa.Table
    ticks: Array
    gates: Array
    first: int
    seen: Mapping[str, int]
    positions: Array | None = None
    """Where only some tuples of a stream are held: each one's number among all of its stream."""
    before: Mapping[str, Array] = field(default_factory=dict)
    """Likewise: how many tuples of another stream came before each."""
    ids: Array | None = None
    """Likewise: what every process knows each tuple by; of one time and stream, they ascend in gate order."""
    _values: dict[str, Values] = field(default_factory=dict, repr=False)
    _masks: dict[Expression, Array] = field(default_factory=dict, repr=False)
    _whole: dict[str, tuple[Array, Array | None]] = field(default_factory=dict, repr=False)
    _probes: dict[tuple[object, ...], ProbeWords] = field(default_factory=dict, repr=False)
    _indexes: dict[IndexKey, SortedIndex] = field(default_factory=dict, repr=False)
    _distinct: dict[IndexKey, int] = field(default_factory=dict, repr=False)

    @property
    def n(self) -> int:
        """How many tuples it has."""
        return len(self.ticks)

    @property
    def end(self) -> int:
        """The number of the tuple after the last."""
        return self.first + self.n

    @cached_property
    def span(self) -> tuple[int, int]:
        """The earliest and the latest time."""
        return (int(self.ticks[0]), int(self.ticks[-1])) if self.n else (0, 0)

    def column(self, name: str) -> pa.Array:
        """A column as one array."""
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def mask(self, condition: Expression) -> Array:
        """Which tuples pass a condition over `row.*`; found once until `settle`."""
        # Here and below: threads may find the same at once, and one may forget it meanwhile.
        mask = self._masks.get(condition)
        if mask is None:
            mask = self._masks[condition] = holds(condition, lambda column: self._column_values(column.name), self.n)
        return mask

    def whole_numbers(self, name: str) -> tuple[Array, Array | None]:
        """A column of integers as int64, and where it is not NULL, if it is anywhere."""
        numbers = self._whole.get(name)
        if numbers is None:
            column = flat(self.column(name))
            valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
            numbers = self._whole[name] = integer_values(column), valid
        return numbers

    def _column_values(self, name: str) -> Values:
        values = self._values.get(name)
        if values is None:
            values = self._values[name] = from_arrow(self.column(name))
        return values

    def settle(self) -> None:
        """Forget what only the tuples' own batch needs: columns as values, truths of conditions, words."""
        self._values.clear()
        self._masks.clear()
        self._whole.clear()
        self._probes.clear()

    def probe_words(self, attribute: Attribute) -> ProbeWords:
        """What the tuples match on the other side of a term; found once until `settle`."""
        key = attribute.words_key
        words = self._probes.get(key)
        if words is None:
            encoded = attribute.encoder.encode(self.table)
            valid = np.ones(self.n, np.bool_) if encoded.valid is None else encoded.valid
            words = self._probes[key] = ProbeWords(encoded.terms[0], valid)
        return words

    def index(self, attribute: Attribute) -> SortedIndex:
        """The sorted index of an attribute."""
        key = attribute.index_key
        if key not in self._indexes:
            words = self.probe_words(attribute)
            word, rows = words.words.word, np.flatnonzero(words.valid)
            self._indexes[key] = SortedIndex(*sort_entries(word if rows.size == self.n else word[rows], rows))
        return self._indexes[key]

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        """The attributes that have, or had, an index."""
        return tuple({**self._indexes, **self._distinct})

    def distinct(self, key: IndexKey) -> int:
        """The distinct words of an index that is, or was, there."""
        if key not in self._distinct:
            self._distinct[key] = self._indexes[key].distinct
        return self._distinct[key]

    def hand_over(self, keys: Iterable[IndexKey]) -> None:
        """Drop these indexes: another holds their entries; how many words they had stays known."""
        for key in keys:
            if key in self._indexes:
                self.distinct(key)
                del self._indexes[key]

    def aligned(self, schema: pa.Schema) -> Bucket:
        """With the columns of a stream that has got some since; they are NULL here."""
        if self.table.schema.names == schema.names:
            return self
        have = set(self.table.schema.names)
        columns = [self.table.column(f.name) if f.name in have else pa.nulls(self.n, f.type) for f in schema]
        return replace(self, table=pa.table(columns, schema), _values={}, _masks={}, _whole={}, _probes={}, _indexes={})

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes of tuples and of indexes."""
        return {
            "tuples": self.table.nbytes + self.ticks.nbytes + self.gates.nbytes,
            "indexes": sum(index.nbytes for index in self._indexes.values()),
        }

    def to_table(self) -> pa.Table:
        """The bucket as one table, for a file; `from_table` reads it."""
        about = {"stream": self.stream, "batch": self.batch, "first": self.first, "seen": dict(self.seen)}
        table = self.table.append_column(_TICK, pa.array(self.ticks)).append_column(_GATE, pa.array(self.gates))
        return table.replace_schema_metadata({**(table.schema.metadata or {}), _META: json.dumps(about)})

    @classmethod
    def from_table(cls, table: pa.Table) -> Bucket:
        """What `to_table` gave.

        Raises:
            CheckpointError: the table is no bucket.
        """
        metadata = dict(table.schema.metadata or {})
        if _META not in metadata:
            raise CheckpointError("this table is no bucket of the ad-hoc engine: it does not say which")
        about = json.loads(metadata.pop(_META))
        # By their places: a stream's own columns may have these names.
        own = table.num_columns - 2
        ticks, gates = (flat(table.column(own + place)).to_numpy() for place in range(2))
        rows = table.select(list(range(own))).replace_schema_metadata(metadata or None)
        return cls(about["stream"], about["batch"], rows, ticks, gates, about["first"], about["seen"])
