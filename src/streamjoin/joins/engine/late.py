"""Rows that were not joined, stored until they are read: late ones, and those without a usable time.

Invariants: rows are returned in the order in which they came. When a call begins they are at most `KEPT_ROWS` and take
at most `KEPT_BYTES`; beyond that the oldest are dropped, and counted. The late rows of a push are a table of their own,
which takes kilobytes even for one row; many small ones are combined, so that a row takes about its own bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.binding import BoundSpec
from streamjoin.model.plain_types import retyped, typed_column

KEPT_ROWS = 1_000_000
"""How many rows are stored at the most."""
KEPT_BYTES = 1 << 28
"""How many bytes they take at the most."""
# Columns of tables that were not combined, in all: each takes some hundred bytes.
_MOST_COLUMNS = 2048
_LEAST_COMBINED = 8
_SIDES = ("left", "right")


def late_schema(bound: BoundSpec) -> pa.Schema:
    """side, source, reason, then the columns of both sides under their names in the result, keys with suffixes."""
    head = [pa.field("side", pa.string()), pa.field("source", pa.string()), pa.field("reason", pa.string())]
    columns = bound.late_schema
    return pa.schema([*head, *columns], columns.metadata)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one side, source and reason."""

    side: int
    source: str
    reason: str
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class _LateBlock:
    """The rows of many parts, each side's in one table."""

    tables: tuple[pa.Table | None, pa.Table | None]
    is_right: Array
    """The side of each row."""
    labels: pa.Table
    """The source and the reason of each row, as dictionaries."""

    @property
    def nbytes(self) -> int:
        tables = sum(int(table.nbytes) for table in self.tables if table is not None)
        return tables + int(self.is_right.nbytes + self.labels.nbytes)

    def newest(self, n: int) -> _LateBlock:
        """The last `n` rows, without the memory of the others."""
        is_right = self.is_right[self.is_right.size - n :].copy()
        counts = n - int(is_right.sum()), int(is_right.sum())
        tables = [None if table is None else _copied(table, n) for table, n in zip(self.tables, counts, strict=True)]
        return _LateBlock((tables[0], tables[1]), is_right, _copied(self.labels, n))

    def as_output(self, bound: BoundSpec, schema: pa.Schema) -> pa.Table:
        """The rows under the names and types of the result."""
        sides = np.flatnonzero(~self.is_right), np.flatnonzero(self.is_right)
        outputs = [
            _as_output(side, self.labels.take(pa.array(places)), table, bound, schema)
            for side, (places, table) in enumerate(zip(sides, self.tables, strict=True))
            if table is not None
        ]
        order = np.empty(self.is_right.size, np.int64)
        order[np.concatenate(sides)] = np.arange(order.size)
        return pa.concat_tables(outputs).take(pa.array(order))


class LateRows:
    """The late output of one join."""

    def __init__(self) -> None:
        self._blocks: list[tuple[_LateBlock, int]] = []
        """The older rows, and their bytes."""
        self._parts: list[_Part] = []
        self._held = self._bytes = 0
        # The columns of all parts.
        self._columns = 0
        self.dropped = 0
        """How many rows were dropped before anybody read them."""

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self._bytes

    def add(self, side: str, source: str, reason: str, rows: pa.Table) -> None:
        """Store `rows`."""
        if rows.num_rows:
            self._parts.append(_Part(_SIDES.index(side), source, reason, rows))
            self._held += rows.num_rows
            self._bytes += int(rows.nbytes)
            self._columns += rows.num_columns + 1

    def trim(self) -> None:
        """Combine small tables, and drop the oldest rows beyond the limits.

        Between calls, since a failed call removes its rows again.
        """
        is_full = self._held > KEPT_ROWS or self._bytes > KEPT_BYTES
        if is_full or (self._columns > _MOST_COLUMNS and len(self._parts) >= _LEAST_COMBINED):
            self._combine()
        while self._held > KEPT_ROWS or self._bytes > KEPT_BYTES:
            self._drop_oldest()

    # In both, one assignment changes the state: nothing is lost or counted twice when a line before it fails.

    def _combine(self) -> None:
        block = _combined(self._parts)
        stored = block, block.nbytes
        grown = self._bytes + stored[1] - sum(int(part.rows.nbytes) for part in self._parts)
        self._blocks, self._parts, self._columns, self._bytes = [*self._blocks, stored], [], 0, grown

    def _drop_oldest(self) -> None:
        """Drop the oldest block, or as many rows of it as are too many if it is the only one."""
        (block, nbytes), *others = self._blocks
        n = block.is_right.size
        kept = 0 if others else min(n, KEPT_ROWS)
        held, before = self._held - n, self._bytes - nbytes
        if 0 < kept < n:
            block = block.newest(kept)
            nbytes = block.nbytes
        while kept and nbytes > KEPT_BYTES:
            # Again where the newest rows are the widest.
            kept = min(kept - 1, kept * KEPT_BYTES // nbytes)
            block = block.newest(kept)
            nbytes = block.nbytes
        if kept:
            others, held, before = [(block, nbytes)], held + kept, before + nbytes
        self._blocks, self._held, self._bytes, self.dropped = others, held, before, self.dropped + n - kept

    def take(self, bound: BoundSpec) -> pa.Table:
        """Remove and return all rows, as one table."""
        if self._parts:
            self._combine()
        schema = late_schema(bound)
        tables = [block.as_output(bound, schema) for block, _ in self._blocks]
        rows = pa.concat_tables([schema.empty_table(), *tables])
        self._blocks, self._held, self._bytes = [], 0, 0
        return rows

    def saved(self) -> Callable[[], None]:
        """Return a function that removes the rows added from now on."""
        n, state = len(self._parts), (self._held, self._bytes, self._columns)

        def restore() -> None:
            del self._parts[n:]
            self._held, self._bytes, self._columns = state

        return restore


def _combined(parts: list[_Part]) -> _LateBlock:
    sizes = [part.rows.num_rows for part in parts]
    tables: list[pa.Table | None] = [None, None]
    for side in (0, 1):
        own = [part.rows for part in parts if part.side == side]
        if own:
            # A column that was all NULL when a row arrived may have a type by now.
            own = [table if table.schema.equals(own[-1].schema) else retyped(table, own[-1].schema) for table in own]
            tables[side] = pa.concat_tables(own).combine_chunks()
    labels = {
        name: pa.array([getattr(part, name) for part in parts], pa.string())
        .dictionary_encode()
        .take(pa.array(np.repeat(np.arange(len(parts)), sizes)))
        for name in ("source", "reason")
    }
    is_right = np.repeat(np.array([part.side == 1 for part in parts], np.bool_), sizes)
    return _LateBlock((tables[0], tables[1]), is_right, pa.table(labels))


def _copied(table: pa.Table, n: int) -> pa.Table:
    """The last `n` rows in memory of their own."""
    return table.take(pa.array(np.arange(table.num_rows - n, table.num_rows)))


def _as_output(side: int, labels: pa.Table, rows: pa.Table, bound: BoundSpec, schema: pa.Schema) -> pa.Table:
    n = rows.num_rows
    columns = [pa.chunked_array([pa.repeat(pa.scalar(_SIDES[side]), n)])]
    columns += [labels.column(name).cast(pa.string()) for name in ("source", "reason")]
    for column in bound.late_columns:
        own = column.side == _SIDES[side] or bound.spec.self_join
        type_ = schema.field(column.name).type
        values = rows.column(column.source) if own else pa.chunked_array([pa.nulls(n, type_)])
        columns.append(typed_column(values, type_))
    return pa.Table.from_arrays(columns, schema=schema)
