"""Buckets: the tuples of one stream that arrived in one micro-batch, read-only, shared by all queries and attributes.

A bucket is a table, the tuples' times, and their places: `first` + row is the tuple's number in its own stream, and
`gates` its number among the tuples of all streams, by batch, time, stream name and position. What is derived (masks of
predicates, words, sorted indexes) is made once, when first asked for, and kept as long as the bucket. The invariant: a
bucket's content never changes, so a plan may come and go over the same buckets. (AJoin, section 3.2: data layout.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.kernels.sorting import sort_entries
from streamjoin.model.errors import CheckpointError
from streamjoin.model.evaluation import Values, evaluate, from_arrow, truth
from streamjoin.model.expression import Expression
from streamjoin.model.keys import KeyTerm, Kind
from streamjoin.windows.encoding import SideEncoder, SideName, TermWords, flat

Array = np.ndarray[Any, np.dtype[Any]]
IndexKey = tuple[str, Kind]
"""The column and the kind of word: all joins by this attribute share the index."""
_META = b"streamjoin.bucket"
_TICK, _GATE = "#tick", "#gate"


@dataclass(frozen=True)
class OneTerm:
    """The keys of an index over a single term, for the encoder."""

    terms: tuple[KeyTerm, ...]
    index: tuple[KeyTerm, ...] = ()


@dataclass(frozen=True)
class SortedIndex:
    """Words in order, and the row of each; `distinct` words there are."""

    words: Array
    rows: Array

    @cached_property
    def distinct(self) -> int:
        """How many different words there are."""
        return int(np.count_nonzero(np.diff(self.words))) + 1 if self.words.size else 0


@dataclass(frozen=True)
class ProbeWords:
    """The intervals by which a bucket's tuples probe, and which of them have a key at all."""

    words: TermWords
    valid: Array


@dataclass(frozen=True, eq=False)
class Bucket:
    """See the module. `seen` says how many tuples of each stream came in the batches before."""

    stream: str
    batch: int
    table: pa.Table
    ticks: Array
    gates: Array
    first: int
    seen: Mapping[str, int]
    _masks: dict[Expression, Array] = field(default_factory=dict, repr=False)
    _values: dict[str, Values] = field(default_factory=dict, repr=False)
    _probes: dict[tuple[KeyTerm, SideName], ProbeWords] = field(default_factory=dict, repr=False)
    _indexes: dict[IndexKey, SortedIndex] = field(default_factory=dict, repr=False)

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
        return (int(self.ticks.min()), int(self.ticks.max())) if self.n else (0, 0)

    def column(self, name: str) -> pa.Array:
        """A column as one array."""
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def mask(self, condition: Expression) -> Array:
        """Which tuples pass a condition over `row.*`; the bits are kept, one a tuple."""
        packed = self._masks.get(condition)
        if packed is None:
            columns = {column: self._column_values(column.name) for column in condition.columns}
            found = truth(evaluate(condition, columns), (self.n,))
            self._masks[condition] = np.packbits(found)
            return found
        return np.unpackbits(packed, count=self.n).view(np.bool_)

    def _column_values(self, name: str) -> Values:
        if name not in self._values:
            self._values[name] = from_arrow(self.column(name))
        return self._values[name]

    def settle(self) -> None:
        """Forget what only the tuples' own batch needs: the columns as values."""
        self._values.clear()

    def probe_words(self, term: KeyTerm, side: SideName) -> ProbeWords:
        """What the tuples match on the other side of a term."""
        key = (term, side)
        if key not in self._probes:
            encoded = SideEncoder(OneTerm((term,)), side).encode(self.table)
            valid = np.ones(self.n, np.bool_) if encoded.valid is None else encoded.valid
            self._probes[key] = ProbeWords(encoded.terms[0], valid)
        return self._probes[key]

    def index(self, term: KeyTerm | None, side: SideName) -> SortedIndex:
        """The sorted index of the attribute that a term has on this side; without a term every word is 0."""
        if term is None:
            return SortedIndex(np.zeros(self.n, np.int64), np.arange(self.n, dtype=np.int64))
        key = index_key(term, side)
        if key not in self._indexes:
            words = self.probe_words(term, side)
            rows = np.flatnonzero(words.valid)
            self._indexes[key] = SortedIndex(*sort_entries(words.words.word[rows], rows))
        return self._indexes[key]

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        """The attributes that have an index."""
        return tuple(self._indexes)

    def distinct(self, key: IndexKey) -> int:
        """The distinct words of an index that is there."""
        return self._indexes[key].distinct

    def forget(
        self, conditions: set[Expression], indexes: set[IndexKey], probes: set[tuple[KeyTerm, SideName]]
    ) -> None:
        """Drop what is derived for attributes and conditions that no query uses any more."""
        for condition in self._masks.keys() - conditions:
            del self._masks[condition]
        for key in self._indexes.keys() - indexes:
            del self._indexes[key]
        for probe in self._probes.keys() - probes:
            del self._probes[probe]

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes of tuples, query masks and indexes."""
        indexes = sum(index.words.nbytes + index.rows.nbytes for index in self._indexes.values())
        probes = sum(p.valid.nbytes + p.words.lo.nbytes + p.words.hi.nbytes for p in self._probes.values())
        return {
            "tuples": self.table.nbytes + self.ticks.nbytes + self.gates.nbytes,
            "masks": sum(mask.nbytes for mask in self._masks.values()),
            "indexes": indexes + probes,
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
        ticks, gates = (flat(table.column(name)).to_numpy() for name in (_TICK, _GATE))
        rows = table.drop_columns([_TICK, _GATE]).replace_schema_metadata(metadata or None)
        return cls(about["stream"], about["batch"], rows, ticks, gates, about["first"], about["seen"])


def index_key(term: KeyTerm, side: SideName) -> IndexKey:
    """Which index a term's column of this side needs: a word depends on the column and the kind alone."""
    return (term.left if side == "left" else term.right).name, term.kind


class StreamView:
    """Neighbouring buckets of one stream, addressed by the tuples' numbers; arrays are joined when asked for."""

    def __init__(self, buckets: Iterable[Bucket], next_number: int) -> None:
        self.buckets = tuple(buckets)
        self.first = self.buckets[0].first if self.buckets else next_number
        self._columns: dict[str, pa.Array] = {}
        self._batches: dict[tuple[str, ...], pa.RecordBatch] = {}
        self._probes: dict[tuple[KeyTerm, SideName], ProbeWords] = {}

    @cached_property
    def ticks(self) -> Array:
        """The times by number."""
        return _joined([bucket.ticks for bucket in self.buckets])

    @cached_property
    def gates(self) -> Array:
        """The places among all streams by number; they ascend."""
        return _joined([bucket.gates for bucket in self.buckets])

    def take(self, names: tuple[str, ...], numbers: Array) -> pa.RecordBatch:
        """Columns of chosen tuples."""
        if names not in self._batches:
            self._batches[names] = pa.record_batch([self._column(name) for name in names], names=list(names))
        return self._batches[names].take(pa.array(numbers - self.first))

    def probe_words(self, term: KeyTerm, side: SideName) -> ProbeWords:
        """What the tuples match on the other side of a term, by number."""
        key = (term, side)
        if key not in self._probes:
            found = [bucket.probe_words(term, side) for bucket in self.buckets]
            if len(found) == 1:
                self._probes[key] = found[0]
            else:
                words = [_joined([getattr(f.words, part) for f in found]) for part in ("word", "lo", "hi")]
                self._probes[key] = ProbeWords(TermWords(*words), _joined([f.valid for f in found], np.bool_))
        return self._probes[key]

    def values(self, name: str, numbers: Array) -> Values:
        """A column of chosen tuples as a condition reads it."""
        return from_arrow(self._column(name).take(pa.array(numbers - self.first)))

    def _column(self, name: str) -> pa.Array:
        if name not in self._columns:
            chunks = [bucket.column(name) for bucket in self.buckets]
            if len(chunks) > 1 and pa.types.is_dictionary(chunks[0].type):
                chunks = pa.chunked_array(chunks).unify_dictionaries().chunks
            self._columns[name] = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        return self._columns[name]


def _joined(arrays: list[Array], dtype: type = np.int64) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
