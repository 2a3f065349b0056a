"""A side's live tuples, column by column, addressed by their position in the stream.

Tuples are appended at the end and forgotten at the front, so position p lies at p - base in every column.
Columns of 1, 2, 4 or 8 bytes are plain arrays; the rest (strings, decimals, lists, ...) stay Arrow.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from streamjoin.kernels.gather import gather
from streamjoin.windows.encoding import fixed_width, flat

Array = np.ndarray[Any, np.dtype[Any]]

_LEAST_CAPACITY = 1024


class Buffer:
    """A growing array that forgets from the front: each value is moved a constant number of times."""

    def __init__(self, dtype: Any) -> None:
        self._data: Array = np.empty(0, dtype)
        self._begin = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def values(self) -> Array:
        """What is held, oldest first."""
        return self._data[self._begin : self._end]

    @property
    def nbytes(self) -> int:
        """The memory behind it, spare room included."""
        return int(self._data.nbytes)

    def append(self, values: Array) -> None:
        """Add `values` at the end."""
        n = len(values)
        if self._end + n > self._data.size:
            held = len(self)
            if held + n > self._data.size // 2:
                grown = np.empty(max(_LEAST_CAPACITY, 2 * (held + n)), self._data.dtype)
            else:
                grown = self._data
            # Within one array the live part lies in the upper half and moves to the lower: no overlap.
            grown[:held] = self.values if grown is not self._data else self.values.copy()
            self._data, self._begin, self._end = grown, 0, held
        self._data[self._end : self._end + n] = values
        self._end += n

    def forget(self, n: int) -> None:
        """Drop the oldest `n`."""
        self._begin += n


class Column(Protocol):
    """A stored payload column."""

    def append(self, array: pa.Array) -> None:
        """Add the values of `array`."""

    def forget(self, n: int) -> None:
        """Drop the oldest `n`."""

    def gather(self, places: Array, base: int) -> pa.Array:
        """The values at places - base."""

    @property
    def nbytes(self) -> int:
        """The memory it holds."""


class FixedColumn:
    """Values of 1, 2, 4 or 8 bytes, with a validity array from the first NULL on."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._values = Buffer(np.dtype(f"u{type_.bit_width // 8}"))
        self._valid: Buffer | None = None

    def append(self, array: pa.Array) -> None:
        """Add the values of `array`."""
        if array.null_count and self._valid is None:
            self._valid = Buffer(np.uint8)
            self._valid.append(np.ones(len(self._values), np.uint8))
        if self._valid is not None:
            self._valid.append(array.is_valid().to_numpy(zero_copy_only=False).view(np.uint8))
        values = fixed_width(array)
        self._values.append(values.view(f"u{values.itemsize}"))

    def forget(self, n: int) -> None:
        """Drop the oldest `n`."""
        self._values.forget(n)
        if self._valid is not None:
            self._valid.forget(n)

    def gather(self, places: Array, base: int) -> pa.Array:
        """The values at places - base."""
        n = places.size
        source = self._values.values
        data = pa.allocate_buffer(n * source.itemsize)
        gather(source, places, base, np.frombuffer(data, source.dtype), 0, n)
        bitmap = None
        if self._valid is not None:
            valid = np.empty(n, np.uint8)
            gather(self._valid.values, places, base, valid, 0, n)
            bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(self._type, n, [bitmap, data])

    @property
    def nbytes(self) -> int:
        """The memory it holds."""
        return self._values.nbytes + (self._valid.nbytes if self._valid is not None else 0)


class ArrowColumn:
    """Values of any type, as a few chunks: a new chunk swallows those before it that are no larger."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._chunks: list[pa.Array] = []
        self._skipped = 0

    def append(self, array: pa.Array) -> None:
        """Add the values of `array`."""
        tail = [array]
        while self._chunks and len(self._chunks[-1]) <= sum(len(chunk) for chunk in tail):
            tail.insert(0, self._chunks.pop())
        self._chunks.append(pa.concat_arrays(tail) if len(tail) > 1 else array)

    def forget(self, n: int) -> None:
        """Drop the oldest `n`; memory goes back when a whole chunk is out, or most of it."""
        self._skipped += n
        while self._chunks and self._skipped >= len(self._chunks[0]):
            self._skipped -= len(self._chunks.pop(0))
        if self._chunks and 2 * self._skipped > len(self._chunks[0]):
            rest = self._chunks[0].slice(self._skipped)
            self._chunks[0], self._skipped = pa.concat_arrays([rest]), 0

    def gather(self, places: Array, base: int) -> pa.Array:
        """The values at places - base."""
        whole = pa.chunked_array(self._chunks, self._type)
        return flat(whole.take(pa.array(places - (base - self._skipped))))

    @property
    def nbytes(self) -> int:
        """The memory it holds."""
        return sum(int(chunk.get_total_buffer_size()) for chunk in self._chunks)


def _column(type_: pa.DataType) -> Column:
    primitive = pa.types.is_primitive(type_) and not pa.types.is_boolean(type_)
    return FixedColumn(type_) if primitive and type_.bit_width in (8, 16, 32, 64) else ArrowColumn(type_)


class SideStore:
    """One side's live tuples: payload columns, the words of exact terms, and times."""

    def __init__(self, schema: pa.Schema, n_terms: int, timed: bool) -> None:
        self.schema = schema
        self.base = 0
        self.count = 0
        self.words = [Buffer(np.int64) for _ in range(n_terms)]
        self.ticks = Buffer(np.int64) if timed else None
        self._columns = {name: _column(schema.field(name).type) for name in schema.names}

    def append(self, table: pa.Table, words: list[Array], ticks: Array | None, n: int) -> None:
        """Add `n` tuples in stream order."""
        for name, column in self._columns.items():
            column.append(flat(table.column(name)))
        for buffer, values in zip(self.words, words, strict=True):
            buffer.append(values)
        if self.ticks is not None and ticks is not None:
            self.ticks.append(ticks)
        self.count += n

    def forget(self, min_seq: int) -> int:
        """Drop the tuples before position `min_seq`; returns how many."""
        n = min(min_seq, self.count) - self.base
        if n <= 0:
            return 0
        for column in self._columns.values():
            column.forget(n)
        for buffer in (*self.words, *([self.ticks] if self.ticks is not None else [])):
            buffer.forget(n)
        self.base += n
        return n

    def gather(self, name: str, seqs: Array) -> pa.Array:
        """The values of one column at stream positions `seqs`."""
        return self._columns[name].gather(seqs, self.base)

    @property
    def nbytes(self) -> int:
        """The memory all of it holds."""
        buffers = (*self.words, *([self.ticks] if self.ticks is not None else []))
        return sum(c.nbytes for c in self._columns.values()) + sum(b.nbytes for b in buffers)
