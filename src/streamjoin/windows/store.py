"""A side's live tuples, column by column, addressed by their position in the stream.

Tuples are appended at the end and dropped at the front, so position p is at p - base in every column. Columns of
fixed width are arrays of one `ColumnBlock`: those of 8 bytes are stored together, row by row, so that gathering a row
reads one cache line; narrower ones have arrays of their own. The rest (strings, decimals, lists, ...) stay in Arrow
arrays. `saved` is cheap and returns a function that restores the tuples of that moment: appending and dropping never
overwrite them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.jit.calls import Each, KernelCalls
from streamjoin.kernels.gather import gather, gather_rows
from streamjoin.model import large_columns
from streamjoin.model.plain_types import plain_array
from streamjoin.windows.buffer import ColumnBlock, Restore, copy_arrays
from streamjoin.windows.encoding import fixed_width, flat
from streamjoin.windows.workers import Workers, cuts

# Below this many rows a second thread does not pay.
_LEAST_PART = 8192
_FOREVER = (1 << 63) - 1
_ALONE = Workers(1)


class ArrowColumn:
    """Values of any type in a few chunks: a new chunk is merged with preceding chunks that are no larger."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._chunks: list[pa.Array] = []
        self._skipped = 0

    def append(self, array: pa.Array) -> None:
        """Add the values of `array`."""
        tail = [array]
        while self._chunks and len(self._chunks[-1]) <= sum(len(chunk) for chunk in tail) and self._fits(tail):
            tail.insert(0, self._chunks.pop())
        self._chunks.append(pa.concat_arrays(tail) if len(tail) > 1 else array)

    def _fits(self, tail: list[pa.Array]) -> bool:
        """Whether the newest chunk and `tail` are small enough for one chunk: an array has at most 2 GiB of text."""
        return bool(self._chunks[-1].nbytes + sum(chunk.nbytes for chunk in tail) <= large_columns.CHUNK_BYTES)

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
        values = large_columns.take_values(column, places - (base - self._skipped))
        if values.num_chunks > 1 and values.nbytes > large_columns.CHUNK_BYTES:
            try:
                return pa.concat_arrays(values.chunks)
            except pa.ArrowInvalid as error:
                large_columns.refuse_large_result(error)
        return flat(values)

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


def is_fixed(type_: pa.DataType) -> bool:
    """Whether values of a type are stored as 1, 2, 4 or 8 bytes."""
    primitive = pa.types.is_primitive(type_) and not pa.types.is_boolean(type_)
    return bool(primitive and type_.bit_width in (8, 16, 32, 64))


def _pieces(out: Array, column: pa.ChunkedArray) -> Iterator[tuple[Array, Array]]:
    """The bits of a column of fixed width, chunk by chunk, and the places of `out` that they are for."""
    begin = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
        yield out[begin : begin + len(chunk)], fixed_width(plain_array(chunk)).view(out.dtype)
        begin += len(chunk)


class Gathering:
    """Columns of a store while their values are gathered, range by range."""

    def __init__(self, store: SideStore, names: list[str], seqs: Array, workers: Workers) -> None:
        self._store, self._seqs, n = store, seqs, seqs.size
        self._wide = store.wide if any(name in store.wide for name in names) else []
        width = len(self._wide)
        out, self._wide_data = workers.memory.take_bytes(8 * n * width)
        self._wide_rows, self._out = store.wide_rows, out.view(np.int64).reshape(width, n)
        self._narrow = {name: store.narrow(name) for name in names if store.is_narrow(name)}
        self._narrow_out = {
            name: workers.memory.take_bytes(n * source.itemsize) for name, source in self._narrow.items()
        }
        self._others = [name for name in names if name in store.arrow_names]

    def wide(self, parts: Sequence[tuple[int, int]]) -> KernelCalls:
        """The calls that gather the columns of 8 bytes of ranges of rows."""
        rows = map(Each, np.array(parts).T)
        return KernelCalls(
            len(parts) if self._wide else 0, self._wide_rows, self._seqs, self._store.base, self._out, *rows
        )

    def narrow(self, parts: Sequence[tuple[int, int]]) -> list[KernelCalls]:
        """The calls that gather the narrower columns of ranges of rows."""
        rows = [Each(ends) for ends in np.array(parts).T]
        return [
            KernelCalls(
                len(parts), source, self._seqs, self._store.base, self._narrow_out[name][0].view(source.dtype), *rows
            )
            for name, source in self._narrow.items()
        ]

    def columns(self, workers: Workers) -> dict[str, pa.Array]:
        """All columns, once all rows are gathered."""
        store, seqs, n = self._store, self._seqs, 8 * self._seqs.size
        columns = {name: store.fixed(name, seqs, data) for name, (_, data) in self._narrow_out.items()}
        for i, name in enumerate(self._wide):
            columns[name] = store.fixed(name, seqs, self._wide_data.slice(n * i, n))
        arrays = workers.spread(lambda name: store.arrow(name, seqs), self._others)
        return {**columns, **dict(zip(self._others, arrays, strict=True))}


def gather_values(gatherings: Sequence[Gathering], parts: Sequence[tuple[int, int]], workers: Workers) -> None:
    """Gather the columns of fixed width of ranges of rows."""
    workers.call(gather_rows, *(gathering.wide(parts) for gathering in gatherings))
    workers.call(gather, *(calls for gathering in gatherings for calls in gathering.narrow(parts)))


class SideStore:
    """One side's live tuples: payload columns, the words of exact terms, and times."""

    def __init__(self, schema: pa.Schema, n_terms: int, timed: bool) -> None:
        self.schema = schema
        self.base = 0
        self.count = 0
        self.timed = timed
        self.block = ColumnBlock()
        fixed = [field for field in schema if is_fixed(field.type)]
        self._wide = [field.name for field in fixed if field.type.bit_width == 64]
        self._wide_rows = self.block.add(np.int64, len(self._wide))
        self._narrow = {
            field.name: self.block.add(f"u{field.type.bit_width // 8}") for field in fixed if field.type.bit_width < 64
        }
        self._words = [self.block.add(np.int64) for _ in range(n_terms)]
        self._ticks = self.block.add(np.int64) if timed else 0
        # The arrays that say which values are not NULL, from the first NULL of a column on.
        self._valid: dict[str, int] = {}
        self._others = {field.name: ArrowColumn(field.type) for field in schema if not is_fixed(field.type)}
        self.arrow_names = tuple(self._others)
        """The columns that stay in Arrow arrays."""
        self._layout: tuple[tuple[Array, ...], Array] | None = None

    @property
    def words(self) -> list[Array]:
        """The words of each exact term."""
        return [self.block.values(number) for number in self._words]

    @property
    def wide(self) -> list[str]:
        """The columns of 8 bytes."""
        return self._wide

    @property
    def wide_rows(self) -> Array:
        """The values of the columns of 8 bytes, row after row."""
        return self.block.values(self._wide_rows).reshape(-1)

    def is_narrow(self, name: str) -> bool:
        """Whether a column has a fixed width of less than 8 bytes."""
        return name in self._narrow

    def narrow(self, name: str) -> Array:
        """The values of a narrower column."""
        return self.block.values(self._narrow[name])

    def arrow(self, name: str, seqs: Array) -> pa.Array:
        """The values at stream positions of a column that stays in Arrow arrays."""
        return self._others[name].gather(seqs, self.base)

    @property
    def ticks(self) -> Array | None:
        """The times, where the join needs them."""
        return self.block.values(self._ticks) if self.timed else None

    def time_at(self, position: int) -> int:
        """The time of the tuple at a position; the largest if it has not come yet."""
        return _FOREVER if self.ticks is None or position >= self.count else int(self.ticks[position - self.base])

    def ticks_upto(self, n: int) -> Array:
        """The times, and those of `n` rows that were written behind the last one."""
        return self.block.arrays[self._ticks][self.block.begin : self.block.end + n]

    @property
    def nullable(self) -> Mapping[str, int]:
        """The columns of fixed width that have had a NULL; another object whenever these are others."""
        return self._valid

    def has_nulls(self, name: str) -> bool:
        """Whether a column of fixed width has ever had a NULL."""
        return name in self._valid

    def append(
        self, table: pa.Table, words: list[Array], ticks: Array | None, n: int, workers: Workers = _ALONE
    ) -> None:
        """Add `n` tuples in stream order."""
        columns = {field.name: table.column(i) for i, field in enumerate(self.schema)}
        self.mark_nulls([name for name, column in columns.items() if column.null_count])
        self.block.reserve(n, workers)
        arrays, rows = self.block.arrays, slice(self.block.end, self.block.end + n)
        copies: list[tuple[Array, Array]] = []
        for i, name in enumerate(self._wide):
            copies += _pieces(arrays[self._wide_rows][rows, i], columns[name])
        for name, number in self._narrow.items():
            copies += _pieces(arrays[number][rows], columns[name])
        for name, number in self._valid.items():
            copies.append((arrays[number][rows], columns[name].is_valid().to_numpy(zero_copy_only=False)))
        copies += [(arrays[number][rows], values) for number, values in zip(self._words, words, strict=True)]
        if ticks is not None and self.timed:
            copies.append((arrays[self._ticks][rows], ticks))
        copy_arrays(copies, workers)
        self.include({name: flat(columns[name]) for name in self._others}, n)

    def include(self, columns: dict[str, pa.Array], n: int) -> None:
        """Add the `n` rows that were written behind the last one, and the columns that stay in Arrow arrays."""
        if self._others:
            for name, column in self._others.items():
                column.append(columns[name])
        self.block.end += n
        self.count += n

    def mark_nulls(self, names: list[str]) -> None:
        """From now on these columns of fixed width may hold NULL."""
        for name in names:
            if name not in self._valid and name not in self._others:
                self._valid = {**self._valid, name: self.block.add(np.uint8, fill=1)}

    def layout(self) -> Array:
        """Where the arrays are, for compiled steps: see `kernels.rows`."""
        layout = self._layout
        if layout is None or layout[0] is not self.block.arrays:
            layout = self._layout = self.block.arrays, self._lay_out()
        return layout[1]

    def _lay_out(self) -> Array:
        addresses = [array.ctypes.data for array in self.block.arrays]
        rows = []
        for field in self.schema:
            valid = addresses[self._valid[field.name]] if field.name in self._valid else 0
            if field.name in self._narrow:
                width = field.type.bit_width // 8
                rows.append((addresses[self._narrow[field.name]], width, width, valid))
            elif field.name in self._others:
                rows.append((0, 0, 0, 0))
            else:
                at = addresses[self._wide_rows] + 8 * self._wide.index(field.name)
                rows.append((at, 8 * len(self._wide), 8, valid))
        own = [*self._words, *([self._ticks] if self.timed else [])]
        rows += [(addresses[number], 8, 8, 0) for number in own]
        return np.array(rows, np.int64).reshape(-1, 4)

    def retype(self, schema: pa.Schema) -> None:
        """Adopt a schema that gives types to columns that were all NULL so far."""
        for field in schema:
            if field.name in self._others:
                self._others[field.name].retype(field.type)
        self.schema = schema

    def forget(self, min_seq: int) -> int:
        """Drop the tuples before position `min_seq`; returns how many."""
        n = (min_seq if min_seq < self.count else self.count) - self.base
        if n <= 0:
            return 0
        if self._others:
            for column in self._others.values():
                column.forget(n)
        self.block.begin += n
        self.base += n
        return n

    def state(self) -> tuple[Any, ...]:
        """The current tuples; `restore` makes them current again."""
        parts = [column.saved() for column in self._others.values()] if self._others else ()
        return self.base, self.count, self.schema, self._valid, self._others, self.block.state(), parts

    def restore(self, state: tuple[Any, ...]) -> None:
        """Return to the tuples of `state`."""
        self.base, self.count, self.schema, self._valid, self._others, block, parts = state
        self.block.restore(block)
        for part in parts:
            part()

    def saved(self) -> Restore:
        """Return a function that restores these tuples."""
        return partial(self.restore, self.state())

    def gather(self, names: list[str], seqs: Array, workers: Workers) -> dict[str, pa.Array]:
        """The values of the named columns at stream positions `seqs`; each worker gathers a range of rows."""
        gathering = self.gathering(names, seqs, workers)
        gather_values([gathering], cuts(seqs.size, min(workers.n, seqs.size // _LEAST_PART)), workers)
        return gathering.columns(workers)

    def gathering(self, names: list[str], seqs: Array, workers: Workers) -> Gathering:
        """Memory for the values of the named columns at positions `seqs`, which may be written later."""
        return Gathering(self, names, seqs, workers)

    def fixed(self, name: str, seqs: Array, data: pa.Buffer) -> pa.Array:
        """A column of fixed width from its gathered values."""
        return pa.Array.from_buffers(self.schema.field(name).type, seqs.size, [self._bitmap(name, seqs), data])

    def _bitmap(self, name: str, seqs: Array) -> pa.Buffer | None:
        if name not in self._valid:
            return None
        valid = np.empty(seqs.size, np.uint8)
        gather(self.block.values(self._valid[name]), seqs, self.base, valid, 0, seqs.size)
        return pa.py_buffer(np.packbits(valid, bitorder="little"))

    @property
    def nbytes(self) -> int:
        """Bytes held by all columns."""
        return self.block.nbytes + sum(column.nbytes for column in self._others.values())
