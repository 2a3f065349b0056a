"""A side's live tuples, column by column, addressed by their position in the stream.

Tuples are appended at the end and dropped at the front, so position p is at p - base in every column. Columns of
8 bytes are stored together, row by row, narrower ones in separate arrays; the rest (strings, decimals, lists, ...)
stay in Arrow arrays. `saved` is cheap and returns a function that restores the tuples of that moment: appending and
dropping never overwrite them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.gather import gather, gather_rows
from streamjoin.windows.buffer import Buffer, Restore
from streamjoin.windows.encoding import fixed_width, flat
from streamjoin.windows.workers import Workers, cuts

# Below this many rows a second thread does not pay.
_LEAST_PART = 8192


class StoredColumn(Protocol):
    """A stored payload column."""

    def append(self, array: pa.Array) -> None:
        """Add the values of `array`."""

    def forget(self, n: int) -> None:
        """Drop the oldest `n`."""

    def gather(self, places: Array, base: int) -> pa.Array:
        """The values at places - base."""

    def saved(self) -> Restore:
        """Return a function that restores these values."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""


class FixedColumn:
    """Values of 1, 2 or 4 bytes, with a validity array from the first NULL on."""

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
        bitmap = None if self._valid is None else _bitmap(self._valid, places, base)
        return pa.Array.from_buffers(self._type, n, [bitmap, data])

    def saved(self) -> Restore:
        """Return a function that restores these values."""
        valid = self._valid
        parts = [buffer.saved() for buffer in (self._values, valid) if buffer is not None]

        def restore() -> None:
            self._valid = valid
            for part in parts:
                part()

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._values.nbytes + (self._valid.nbytes if self._valid is not None else 0)


class WideRows:
    """The 8-byte columns of a side, stored row by row: gathering a row reads one cache line."""

    def __init__(self, schema: pa.Schema) -> None:
        self.names = [f.name for f in schema if _is_fixed(f.type) and f.type.bit_width == 64]
        self._types = [schema.field(name).type for name in self.names]
        self._rows = Buffer(np.int64, len(self.names))
        self._valid: dict[str, Buffer] = {}

    def append(self, table: pa.Table, n: int) -> None:
        """Add the rows of `table`."""
        first = len(self._rows)
        rows = self._rows.room_for(n)
        for i, name in enumerate(self.names):
            array = flat(table.column(name))
            rows[:, i] = fixed_width(array).view(np.int64)
            if array.null_count and name not in self._valid:
                self._valid[name] = Buffer(np.uint8)
                self._valid[name].append(np.ones(first, np.uint8))
            if name in self._valid:
                self._valid[name].append(array.is_valid().to_numpy(zero_copy_only=False).view(np.uint8))

    def forget(self, n: int) -> None:
        """Drop the oldest `n`."""
        for buffer in (self._rows, *self._valid.values()):
            buffer.forget(n)

    def start(self, n: int) -> tuple[pa.Buffer, Array]:
        """Memory for `n` gathered rows: column after column."""
        data = pa.allocate_buffer(8 * n * len(self.names))
        return data, np.frombuffer(data, np.int64).reshape(len(self.names), n)

    def gather(self, places: Array, base: int, out: Array, begin: int, end: int) -> None:
        """Fill rows begin to end of the output; ranges can be filled in parallel."""
        gather_rows(self._rows.values.reshape(-1), places, base, out, begin, end)

    def finish(self, data: pa.Buffer, places: Array, base: int) -> dict[str, pa.Array]:
        """The gathered rows as Arrow columns over the same memory."""
        n = places.size
        columns = {}
        for i, (name, type_) in enumerate(zip(self.names, self._types, strict=True)):
            bitmap = _bitmap(self._valid[name], places, base) if name in self._valid else None
            columns[name] = pa.Array.from_buffers(type_, n, [bitmap, data.slice(8 * n * i, 8 * n)])
        return columns

    def saved(self) -> Restore:
        """Return a function that restores these rows."""
        valid = dict(self._valid)
        parts = [buffer.saved() for buffer in (self._rows, *valid.values())]

        def restore() -> None:
            self._valid = dict(valid)
            for part in parts:
                part()

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._rows.nbytes + sum(buffer.nbytes for buffer in self._valid.values())


def _bitmap(valid: Buffer, places: Array, base: int) -> pa.Buffer:
    chosen = np.empty(places.size, np.uint8)
    gather(valid.values, places, base, chosen, 0, places.size)
    return pa.py_buffer(np.packbits(chosen, bitorder="little"))


class ArrowColumn:
    """Values of any type in a few chunks: a new chunk is merged with preceding chunks that are no larger."""

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
        """Drop the oldest `n`; memory is released once a chunk is empty or mostly empty."""
        self._skipped += n
        while self._chunks and self._skipped >= len(self._chunks[0]):
            self._skipped -= len(self._chunks.pop(0))
        if self._chunks and 2 * self._skipped > len(self._chunks[0]):
            rest = self._chunks[0].slice(self._skipped)
            self._chunks[0], self._skipped = pa.concat_arrays([rest]), 0

    def retype(self, type_: pa.DataType) -> None:
        """Change the type: stored values are NULL wherever the type was unknown."""
        if not type_.equals(self._type):
            null = pa.types.is_null(self._type)
            self._chunks = [pa.nulls(len(chunk), type_) if null else chunk.cast(type_) for chunk in self._chunks]
            self._type = type_

    def gather(self, places: Array, base: int) -> pa.Array:
        """The values at places - base."""
        column = pa.chunked_array(self._chunks, self._type)
        return flat(column.take(pa.array(places - (base - self._skipped))))

    def saved(self) -> Restore:
        """Return a function that restores these values."""
        type_, chunks, skipped = self._type, list(self._chunks), self._skipped

        def restore() -> None:
            self._type, self._chunks, self._skipped = type_, list(chunks), skipped

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(int(chunk.get_total_buffer_size()) for chunk in self._chunks)


def _is_fixed(type_: pa.DataType) -> bool:
    primitive = pa.types.is_primitive(type_) and not pa.types.is_boolean(type_)
    return bool(primitive and type_.bit_width in (8, 16, 32, 64))


class SideStore:
    """One side's live tuples: payload columns, the words of exact terms, and times."""

    def __init__(self, schema: pa.Schema, n_terms: int, timed: bool) -> None:
        self.schema = schema
        self.base = 0
        self.count = 0
        self.words = [Buffer(np.int64) for _ in range(n_terms)]
        self.ticks = Buffer(np.int64) if timed else None
        self._wide = WideRows(schema)
        self._columns: dict[str, StoredColumn] = {
            f.name: FixedColumn(f.type) if _is_fixed(f.type) else ArrowColumn(f.type)
            for f in schema
            if f.name not in self._wide.names
        }

    def append(self, table: pa.Table, words: list[Array], ticks: Array | None, n: int) -> None:
        """Add `n` tuples in stream order."""
        self._wide.append(table, n)
        for name, column in self._columns.items():
            column.append(flat(table.column(name)))
        for buffer, values in zip(self.words, words, strict=True):
            buffer.append(values)
        if self.ticks is not None and ticks is not None:
            self.ticks.append(ticks)
        self.count += n

    def retype(self, schema: pa.Schema) -> None:
        """Adopt a schema that gives types to columns that were all NULL so far."""
        for field in schema:
            column = self._columns.get(field.name)
            if isinstance(column, ArrowColumn):
                column.retype(field.type)
        self.schema = schema

    def forget(self, min_seq: int) -> int:
        """Drop the tuples before position `min_seq`; returns how many."""
        n = min(min_seq, self.count) - self.base
        if n <= 0:
            return 0
        self._wide.forget(n)
        for column in self._columns.values():
            column.forget(n)
        for buffer in (*self.words, *([self.ticks] if self.ticks is not None else [])):
            buffer.forget(n)
        self.base += n
        return n

    def saved(self) -> Restore:
        """Return a function that restores these tuples."""
        state = self.base, self.count, self.schema, self._wide, dict(self._columns)
        parts = [self._wide.saved(), *(column.saved() for column in self._columns.values())]
        buffers = (*self.words, *([self.ticks] if self.ticks is not None else []))
        parts += [buffer.saved() for buffer in buffers]

        def restore() -> None:
            self.base, self.count, self.schema, self._wide, columns = state
            self._columns = dict(columns)
            for part in parts:
                part()

        return restore

    def gather(self, names: list[str], seqs: Array, workers: Workers) -> dict[str, pa.Array]:
        """The values of the named columns at stream positions `seqs`."""
        columns: dict[str, pa.Array] = {}
        if any(name in self._wide.names for name in names):
            data, out = self._wide.start(seqs.size)
            parts = cuts(seqs.size, max(1, min(workers.n, seqs.size // _LEAST_PART)))
            workers.map(lambda part: self._wide.gather(seqs, self.base, out, *part), parts)
            columns = self._wide.finish(data, seqs, self.base)
        others = [name for name in names if name in self._columns]
        arrays = workers.spread(lambda name: self._columns[name].gather(seqs, self.base), others)
        return {**columns, **dict(zip(others, arrays, strict=True))}

    @property
    def nbytes(self) -> int:
        """Bytes held by all columns."""
        buffers = (*self.words, *([self.ticks] if self.ticks is not None else []))
        return self._wide.nbytes + sum(c.nbytes for c in self._columns.values()) + sum(b.nbytes for b in buffers)
