"""What is kept for every tuple of a stream, by the tuple's number: arrays that grow at one end and shrink at the other.

A batch appends once and old tuples are let go by moving a bound; what lives is copied only when the room is used up,
so a tuple costs the same however long the window is. The invariant: `view(a, b)` has the values of tuples a to b - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.kernels.gather import gather
from streamjoin.model import large_columns
from streamjoin.windows.buffer import Buffer


class TupleArray:
    """A `Buffer` addressed by the tuples' numbers."""

    def __init__(self, first: int, dtype: Any, width: int | None = None) -> None:
        self.first = first
        self._buffer = Buffer(dtype, *(() if width is None else (width,)))

    @property
    def end(self) -> int:
        """The number after the newest."""
        return self.first + len(self._buffer)

    def grow(self, first: int, count: int) -> Array:
        """Room for `count` values from number `first` on, to be written; what was there from `first` on is gone."""
        if not self.first <= first <= self.end:
            self.first = first
        self._buffer.truncate(first - self.first)
        return self._buffer.room_for(count)

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
        self._buffer.truncate(max(self.first, min(self.end, end)) - self.first)

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

    def take(self, numbers: Array) -> pa.Array:
        """The values of chosen tuples."""
        if self._is_plain:
            values = allocate(len(numbers), self._plain.view().dtype)
            gather(self._plain.view(), numbers, self._plain.first, values, 0, len(numbers))
            return pa.Array.from_buffers(self.type, len(values), [None, pa.py_buffer(values)])
        places = numbers - self._first
        if len(self._chunks) == 1:
            return self._chunks[0].take(pa.array(places))
        whole = pa.chunked_array(self._chunks, self.type)
        if pa.types.is_dictionary(self.type):
            whole = whole.unify_dictionaries()
        column = large_columns.take_values(whole, places)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    @property
    def width(self) -> int | None:
        """The bytes of a value; None where values differ."""
        return int(self._plain.view().itemsize) if self._is_plain else None

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
