"""A stream as the joins read it: what is kept for each tuple, by number, and sorted runs of its attributes.

What is kept by number are arrays that grow at one end and shrink at the other: a batch appends once and old tuples are
let go by moving a bound; what lives is copied only when the room is used up, so a tuple costs the same however long the
window is. A batch is a run of its own at first; neighbouring runs that are small are merged, so that a long window of
small batches is a few runs. All of it is derived from the buckets and can be made again at any time. The invariants:
`view(a, b)` has the values of tuples a to b - 1; the runs follow each other without a gap and hold every tuple of the
buckets; tuples that have left the window may be there too, which no window lets join.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.indexes.sorted_runs import first_merged
from streamjoin.kernels.batch.sorting import merged_entries
from streamjoin.kernels.gather import gather
from streamjoin.model import large_columns
from streamjoin.model.expression.evaluation import Values, from_arrow
from streamjoin.queries.core.buckets import Attribute, Bucket, IndexKey, ProbeWords, SortedIndex
from streamjoin.queries.core.intervals import IntervalAttribute, split_by_length
from streamjoin.queries.kernels.sets import count_live, live_entries
from streamjoin.queries.language.plan import Stream
from streamjoin.windows.buffer import Buffer
from streamjoin.windows.words import TermWords


class TupleArray:
    """A `Buffer` addressed by the tuples' numbers."""

    def __init__(self, first: int, dtype: Any, width: int | None = None) -> None:
        self.first = self.end = first
        """The number of the oldest, and that after the newest."""
        self._buffer = Buffer(dtype, *(() if width is None else (width,)))

    def grow(self, first: int, count: int) -> Array:
        """Room for `count` values from number `first` on, to be written; what was there from `first` on is gone."""
        if not self.first <= first <= self.end:
            self.first = first
        self._buffer.truncate(first - self.first)
        room = self._buffer.room_for(count)
        self.end = first + count
        return room

    def append(self, first: int, values: Array) -> None:
        """Write values from number `first` on."""
        self.grow(first, len(values))[:] = values

    def view(self, first: int | None = None, end: int | None = None) -> Array:
        """The values of these numbers; all, without any."""
        begin = 0 if first is None else first - self.first
        return self._buffer.values[begin : None if end is None else end - self.first]

    def at(self, numbers: Array) -> Array:
        """The values of chosen tuples."""
        chosen: Array = self._buffer.values[numbers - self.first]
        return chosen

    def cut(self, end: int) -> None:
        """Take back what is from number `end` on."""
        self.end = max(self.first, min(self.end, end))
        self._buffer.truncate(self.end - self.first)

    def drop(self, first: int) -> None:
        """Let go of what is before number `first`."""
        first = min(max(first, self.first), self.end)
        self._buffer.forget(first - self.first)
        self.first = first

    def widen(self, width: int) -> None:
        """Rows of more words; the new ones are 0."""
        self._buffer.widen(width)

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept, without spare room."""
        return int(self._buffer.values.nbytes)


def allocate(count: int, dtype: Any) -> Array:
    """An array from Arrow's memory pool, which keeps what is given back.

    Large arrays that come and go with every batch would otherwise go back to the system, and every page of
    the next ones be asked for anew: for columns of results that took longer than to write them.
    """
    type_ = np.dtype(dtype)
    return np.frombuffer(pa.allocate_buffer(max(1, count) * type_.itemsize), type_)[:count]


def concatenate(arrays: Sequence[Array]) -> Array:
    """Arrays one after the other; a single one as it is."""
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays, out=allocate(sum(map(len, arrays)), arrays[0].dtype))


@dataclass(frozen=True)
class HeldColumn:
    """The values of a column at one moment, from number `first` on; whoever has it can still read what is let go of."""

    type: pa.DataType
    first: int
    plain: Array | None
    """The values as integers of their width; None where they are in `chunks`."""
    chunks: tuple[pa.Array, ...]

    def take(self, numbers: Array) -> pa.Array:
        """The values of chosen tuples."""
        if self.plain is not None:
            values = allocate(len(numbers), self.plain.dtype)
            gather(self.plain, numbers, self.first, values, 0, len(numbers))
            return pa.Array.from_buffers(self.type, len(values), [None, pa.py_buffer(values)])
        places = numbers - self.first
        if len(self.chunks) == 1:
            return self.chunks[0].take(pa.array(places))
        whole = pa.chunked_array(self.chunks, self.type)
        if pa.types.is_dictionary(self.type):
            whole = whole.unify_dictionaries()
        column = large_columns.take_values(whole, places)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    @property
    def width(self) -> int | None:
        """The bytes of a value; None where values differ."""
        return None if self.plain is None else int(self.plain.itemsize)

    @cached_property
    def mean_width(self) -> float:
        """The bytes of a value, on average."""
        if self.plain is not None:
            return float(self.plain.itemsize)
        return float(sum(chunk.nbytes for chunk in self.chunks) / max(1, sum(map(len, self.chunks))))


class TupleColumn:
    """A column of a stream by number: as an array where its type and its values allow, as Arrow chunks otherwise."""

    def __init__(self, first: int, type_: pa.DataType) -> None:
        self.type = type_
        self._plain = TupleArray(first, _plain_dtype(type_) or np.int8)
        self._chunks: list[pa.Array] = []
        self._is_plain = _plain_dtype(type_) is not None
        self._first = self.end = first

    def append(self, first: int, column: pa.Array) -> bool:
        """Write a column from number `first` on; false if it can't be kept as it was: it has its first NULL."""
        if self._is_plain:
            if column.null_count:
                return False
            self._plain.append(first, _plain_values(column))
        else:
            self._truncate(first)
            self._chunks.append(column)
            self._merge()
        self.end = first + len(column)
        return True

    @classmethod
    def in_chunks(cls, first: int, type_: pa.DataType) -> TupleColumn:
        """One that holds anything."""
        column = cls(first, type_)
        column._is_plain = False
        return column

    @property
    def held(self) -> HeldColumn:
        """What is there now, which stays as it is whatever comes and goes."""
        if self._is_plain:
            return HeldColumn(self.type, self._plain.first, self._plain.view(), ())
        return HeldColumn(self.type, self._first, None, tuple(self._chunks))

    def take(self, numbers: Array) -> pa.Array:
        """The values of chosen tuples."""
        return self.held.take(numbers)

    @property
    def width(self) -> int | None:
        """The bytes of a value; None where values differ."""
        return self.held.width

    def sizes(self, numbers: Array) -> Array:
        """The bytes of chosen tuples' values: of texts and binaries their own, of nested values an average."""
        if self.width is not None:
            return np.full(len(numbers), self.width)
        lengths = [_lengths(chunk) for chunk in self._chunks]
        sizes: Array = np.concatenate(lengths)[numbers - self._first]
        return sizes

    def cut(self, end: int) -> None:
        """Take back what is from number `end` on."""
        self.end = min(self.end, end)

    def drop(self, first: int) -> None:
        """Let go of what is before number `first`; of chunks whole ones only."""
        self._plain.drop(first)
        while self._chunks and self._first + len(self._chunks[0]) <= first:
            self._first += len(self._chunks.pop(0))

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept."""
        return self._plain.nbytes if self._is_plain else sum(chunk.nbytes for chunk in self._chunks)

    def _truncate(self, first: int) -> None:
        held = sum(map(len, self._chunks))
        if not self._first <= first <= self._first + held:
            self._chunks, self._first, held = [], first, 0
        while held and self._first + held > first:
            last = self._chunks.pop()
            held -= len(last)
            if self._first + held < first:
                self._chunks.append(last.slice(0, first - self._first - held))
                held = first - self._first

    def _merge(self) -> None:
        """Chunks halve from the oldest to the newest, so that there are few."""
        chunks = self._chunks
        while len(chunks) > 1 and len(chunks[-2]) < 2 * len(chunks[-1]):
            if chunks[-2].nbytes + chunks[-1].nbytes > large_columns.CHUNK_BYTES:
                # An array has at most 2 GiB of text.
                break
            pair = [chunks[-2], chunks[-1]]
            if pa.types.is_dictionary(self.type):
                pair = pa.chunked_array(pair, self.type).unify_dictionaries().chunks
            chunks[-2:] = [pa.concat_arrays(pair)]


def _lengths(column: pa.Array) -> Array:
    """The bytes of each value."""
    if any(is_of(column.type) for is_of in (pa.types.is_string, pa.types.is_binary, _is_large)):
        lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        return np.asarray(lengths, np.int64) + np.dtype(np.int32).itemsize
    return np.full(len(column), -(-column.nbytes // max(1, len(column))))


def _is_large(type_: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(type_) or pa.types.is_large_binary(type_))


def _plain_dtype(type_: pa.DataType) -> Any:
    """The integers that hold a type's bits; None for one that is no fixed number of bytes."""
    if pa.types.is_primitive(type_) and type_.bit_width in (8, 16, 32, 64):
        return np.dtype(f"i{type_.bit_width // 8}")
    return None


def _plain_values(column: pa.Array) -> Array:
    dtype = _plain_dtype(column.type)
    buffer = column.buffers()[1]
    if buffer is None or len(column) == 0:
        return np.zeros(len(column), dtype)
    return np.frombuffer(buffer, dtype)[column.offset : column.offset + len(column)]


SMALL: Final = 1 << 12
"""Runs of so few tuples are merged, and others up to `SHARE` of what is held."""
SHARE: Final = 1 / 8
_SLACK: Final = 199
_FEW: Final = 0.5
_EMPTY: Final = SortedIndex(np.empty(0, np.int64), np.empty(0, np.int64))


class BucketRun:
    """Neighbouring buckets with their common indexes; rows count from `first`."""

    def __init__(self, buckets: Sequence[Bucket], ticks: Array, gates: Array) -> None:
        self.buckets = tuple(buckets)
        self.first, self.end = buckets[0].first, buckets[-1].end
        self.n = self.end - self.first
        self.low = min(bucket.span[0] for bucket in buckets)
        self.high = max(bucket.span[1] for bucket in buckets)
        self.ascending = all(a.span[1] <= b.span[0] for a, b in pairwise(buckets))
        self.ticks, self.gates = ticks, gates
        self.indexes: dict[IndexKey, SortedIndex] = {}
        self._live: dict[tuple[int, IndexKey | None], SortedIndex] = {}
        self._classes: dict[tuple[int | None, IndexKey], tuple[tuple[SortedIndex, int], ...]] = {}
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()

    def index(self, attribute: Attribute | None) -> SortedIndex:
        """The index of an attribute; without one all have the same word."""
        if attribute is None:
            return SortedIndex(np.zeros(self.n, np.int64), np.arange(self.n, dtype=np.int64))
        key = attribute.index_key
        with self._lock:
            if key not in self.indexes:
                self.indexes[key] = self._index(attribute)
                self._hand_over(key)
            return self.indexes[key]

    def _index(self, attribute: Attribute) -> SortedIndex:
        indexes = [bucket.index(attribute) for bucket in self.buckets]
        starts = [bucket.first - self.first for bucket in self.buckets]
        while len(indexes) > 1:
            pairs = range(0, len(indexes) - 1, 2)
            rest = indexes[len(pairs) * 2 :], starts[len(pairs) * 2 :]
            merged = [_merge_indexes(indexes[i], indexes[i + 1], starts[i + 1] - starts[i]) for i in pairs]
            indexes, starts = merged + rest[0], [starts[i] for i in pairs] + rest[1]
        return indexes[0]

    def _hand_over(self, key: IndexKey) -> None:
        if len(self.buckets) > 1:
            for bucket in self.buckets:
                bucket.hand_over((key,))

    def live(self, attribute: Attribute | None, serial: int, sets: Array) -> SortedIndex:
        """The index with the tuples alone that are in some set, where these are few; `serial` names the sets."""
        if serial not in self._counts:
            self._counts[serial] = count_live(sets)
        if not self._counts[serial]:
            return _EMPTY
        whole = self.index(attribute)
        if self._counts[serial] >= _FEW * self.n:
            return whole
        key = serial, None if attribute is None else attribute.index_key
        if key not in self._live:
            words, rows = np.empty(whole.words.size + 1, np.int64), np.empty(whole.words.size + 1, np.int64)
            n = live_entries(whole.words, whole.rows, sets, words, rows)
            self._live[key] = SortedIndex(words[:n].copy(), rows[:n].copy())
        return self._live[key]

    def live_parts(self, attribute: Attribute | None, serial: int, sets: Array) -> tuple[tuple[SortedIndex, int], ...]:
        """The same in parts, with how much further down than it begins a probe looks in each: intervals, by length."""
        live = self.live(attribute, serial, sets)
        if not isinstance(attribute, IntervalAttribute) or not live.rows.size:
            return ((live, 0),)
        key = None if live is self.indexes.get(attribute.index_key) else serial, attribute.index_key
        if key not in self._classes:
            ends = np.concatenate([bucket.probe_words(attribute).words.hi for bucket in self.buckets])
            self._classes[key] = split_by_length(live, ends)
        return self._classes[key]

    def forget(self, indexes: set[IndexKey], serials: set[int]) -> None:
        """Drop the indexes that no join uses any more."""
        self._classes = {
            (serial, key): parts
            for (serial, key), parts in self._classes.items()
            if key in indexes and (serial is None or serial in serials)
        }
        for key in self.indexes.keys() - indexes:
            del self.indexes[key]
        for bucket in self.buckets:
            bucket.hand_over(set(bucket.index_keys) - indexes)
        self._counts = {serial: n for serial, n in self._counts.items() if serial in serials}
        self._live = {
            (serial, key): index
            for (serial, key), index in self._live.items()
            if serial in serials and (key is None or key in indexes)
        }

    def join_with(self, later: BucketRun) -> BucketRun:
        """This run and the next as one."""
        ticks, gates = (np.concatenate(pair) for pair in ((self.ticks, later.ticks), (self.gates, later.gates)))
        run = BucketRun((*self.buckets, *later.buckets), ticks, gates)
        for key in self.indexes.keys() & later.indexes.keys():
            run.indexes[key] = _merge_indexes(self.indexes[key], later.indexes[key], self.n)
            run._hand_over(key)
        return run

    @property
    def nbytes(self) -> int:
        """The bytes of indexes that are not the buckets' own."""
        own = self.indexes if len(self.buckets) > 1 else {}
        times = self.ticks.nbytes + self.gates.nbytes if len(self.buckets) > 1 else 0
        classes = (index for parts in self._classes.values() for index, _ in parts)
        return times + sum(index.nbytes for index in (*own.values(), *self._live.values(), *classes))


def _merge_indexes(one: SortedIndex, two: SortedIndex, shift: int) -> SortedIndex:
    """Two indexes as one; the rows of the second are `shift` further."""
    return SortedIndex(*merged_entries((one.words, one.rows), (two.words, two.rows + shift)))


class StoredStream:
    """One stream's columns and sorted runs, which grow with each batch and shrink as tuples expire."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.runs: list[BucketRun] = []
        self.ticks, self.gates = TupleArray(0, np.int64), TupleArray(0, np.int64)
        self.positions: TupleArray | None = None
        """The tuples' numbers among all of the stream, where only some of these are held."""
        self.before: dict[str, TupleArray] = {}
        """Likewise: how many tuples of another stream came before each."""
        self._ids: TupleArray | None = None
        self._columns: dict[str, TupleColumn] = {}
        self._words: dict[tuple[object, ...], tuple[TupleArray, TupleArray]] = {}
        self._distinct: dict[IndexKey, tuple[int, int]] = {}
        self._followers: WeakSet[TupleArray] = WeakSet()
        # Threads that run first joins of one batch read the same columns and words.
        self._lock = threading.Lock()

    @property
    def first(self) -> int:
        """The number of the oldest tuple."""
        return self.runs[0].first if self.runs else self.ticks.end

    @property
    def newest(self) -> Bucket | None:
        """The bucket that came last."""
        return self.runs[-1].buckets[-1] if self.runs else None

    def append(self, bucket: Bucket) -> BucketRun:
        """Take a bucket in, as a run of its own."""
        self.ticks.append(bucket.first, bucket.ticks)
        self.gates.append(bucket.first, bucket.gates)
        if bucket.positions is not None:
            self.positions = self.positions or TupleArray(bucket.first, np.int64)
            self.positions.append(bucket.first, bucket.positions)
            for name, counts in bucket.before.items():
                self.before.setdefault(name, TupleArray(bucket.first, np.int64)).append(bucket.first, counts)
        if bucket.ids is not None:
            self._ids = self._ids or TupleArray(bucket.first, np.int64)
            self._ids.append(bucket.first, bucket.ids)
        self.runs.append(
            BucketRun([bucket], *(grown.view(bucket.first, bucket.end) for grown in (self.ticks, self.gates)))
        )
        return self.runs[-1]

    def cut(self, end: int) -> None:
        """Take back the runs from number `end` on."""
        self.runs = [run for run in self.runs if run.first < end]
        for grown in self._grown:
            grown.cut(end)

    def followed_by(self, grown: TupleArray) -> TupleArray:
        """Have what is kept elsewhere by this stream's numbers cut and dropped with it, as long as it is in use."""
        self._followers.add(grown)
        return grown

    @property
    def _own(self) -> list[TupleArray | TupleColumn]:
        placed = [] if self.positions is None else [self.positions, *self.before.values()]
        placed += [] if self._ids is None else [self._ids]
        return [self.ticks, self.gates, *placed, *self._columns.values(), *self._all_words]

    @property
    def _grown(self) -> list[TupleArray | TupleColumn]:
        return [*self._own, *self._followers]

    @property
    def _all_words(self) -> list[TupleArray]:
        return [grown for pair in self._words.values() for grown in pair]

    def drop(self, first: int) -> None:
        """Let go of runs that end before number `first`."""
        kept = [run for run in self.runs if run.end > first]
        if len(kept) < len(self.runs):
            self.runs = kept
            first = self.first
            for grown in self._grown:
                grown.drop(first)

    def merge(self) -> None:
        """Merge neighbours that are small, as long as the older is not twice the newer."""
        runs = self.runs
        sizes = [run.n for run in runs]
        if sizes:
            first = first_merged(sizes, _SLACK, max(SMALL, SHARE * sum(sizes)))
            while len(runs) > first + 1:
                runs[-2:] = [runs[-2].join_with(runs[-1])]

    def ids_of(self, numbers: Array) -> Array:
        """What every process knows tuples by: their numbers, unless only some tuples of the stream are held here."""
        return numbers if self._ids is None else self._ids.at(numbers)

    def numbers_of(self, ids: Array) -> Array:
        """The numbers of tuples by their ids; -1 for those that are not here."""
        if self._ids is None:
            return np.where((ids >= self.first) & (ids < self.ticks.end), ids, -1)
        known = self._ids.view()
        if not known.size:
            return np.full(ids.size, -1, np.int64)
        order = np.argsort(known)
        places = order[np.minimum(np.searchsorted(known, ids, sorter=order), known.size - 1)]
        return np.where(known[places] == ids, self._ids.first + places, -1)

    def positions_of(self, numbers: Array) -> Array:
        """The numbers of tuples among all of the stream."""
        return numbers if self.positions is None else self.positions.at(numbers)

    def take(self, name: str, numbers: Array) -> pa.Array:
        """A column of chosen tuples."""
        return self.column(name).take(numbers)

    def values(self, name: str, numbers: Array) -> Values:
        """The same as a condition reads it."""
        return from_arrow(self.take(name, numbers))

    def column(self, name: str) -> TupleColumn:
        """A column by number."""
        with self._lock:
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = TupleColumn(self.first, self.stream.schema.field(name).type)
            if column.end != self.ticks.end and not self._caught_up(column, name):
                column = self._columns[name] = TupleColumn.in_chunks(self.first, column.type)
                self._caught_up(column, name)
            return column

    def _caught_up(self, column: TupleColumn, name: str) -> bool:
        return all(column.append(b.first, b.column(name)) for b in self.missing(column.end))

    def missing(self, end: int) -> list[Bucket]:
        """The buckets from number `end` on, or all where that is not where one begins."""
        buckets: list[Bucket] = []
        for run in reversed(self.runs):
            for bucket in reversed(run.buckets):
                if bucket.first < end:
                    return buckets[::-1]
                buckets.append(bucket)
        return buckets[::-1]

    def probe_words(self, attribute: Attribute) -> ProbeWords:
        """What the tuples match on the other side of a term, by number from `first` on."""
        key = attribute.words_key
        with self._lock:
            if key not in self._words:
                self._words[key] = TupleArray(self.first, np.int64, 3), TupleArray(self.first, np.bool_)
            words, valid = self._words[key]
            if words.end != self.ticks.end:
                for bucket in self.missing(words.end):
                    encoded = bucket.probe_words(attribute)
                    room = words.grow(bucket.first, bucket.n)
                    room[:, 0], room[:, 1], room[:, 2] = encoded.words.word, encoded.words.lo, encoded.words.hi
                    valid.append(bucket.first, encoded.valid)
        view = words.view(self.first)
        return ProbeWords(TermWords(view[:, 0], view[:, 1], view[:, 2]), valid.view(self.first))

    def distinct(self, attribute: Attribute) -> int:
        """How many words of an attribute a batch has, counted now and then."""
        newest, known = self.newest, self._distinct.get(attribute.index_key)
        if newest is not None and (known is None or newest.n >= 2 * known[1]):
            words = newest.probe_words(attribute).words.word
            known = self._distinct[attribute.index_key] = int(np.unique(words).size), newest.n
        return 0 if known is None else known[0]

    def forget(self, indexes: set[IndexKey], words: set[tuple[object, ...]], serials: set[int]) -> None:
        """Drop what no join uses any more."""
        for run in self.runs:
            run.forget(indexes, serials)
        for key in self._words.keys() - words:
            del self._words[key]

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes beside the buckets': columns by number, and indexes."""
        words = sum(grown.nbytes for grown in self._all_words)
        return {
            "columns": sum(grown.nbytes for grown in self._own) - words,
            "indexes": sum(run.nbytes for run in self.runs) + words,
        }
