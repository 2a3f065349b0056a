"""Rows that were not joined, stored until they are read: late ones, and those without a usable time."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from streamjoin.model.binding import BoundSpec
from streamjoin.model.plain_types import typed_column

# The maximum number of stored rows; beyond it the oldest are dropped, but still counted.
KEPT_ROWS = 1_000_000


def late_schema(bound: BoundSpec) -> pa.Schema:
    """side, source, reason, then the columns of both sides under their names in the result, keys with suffixes."""
    head = [pa.field("side", pa.string()), pa.field("source", pa.string()), pa.field("reason", pa.string())]
    return pa.schema([*head, *bound.late_schema])


class LateRows:
    """The late output of one join."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, str, str, pa.Table]] = []
        self._held = 0

    def add(self, side: str, source: str, reason: str, rows: pa.Table) -> None:
        """Store `rows`."""
        if rows.num_rows:
            self._parts.append((side, source, reason, rows))
            self._held += rows.num_rows

    def trim(self) -> None:
        """Drop the oldest rows beyond the limit; between calls, since a failed call removes its rows again."""
        while self._held > KEPT_ROWS and len(self._parts) > 1:
            self._held -= self._parts.pop(0)[3].num_rows

    def take(self, bound: BoundSpec) -> pa.Table:
        """Remove and return all rows, as one table."""
        schema = late_schema(bound)
        tables = [_as_output(part, bound, schema) for part in self._parts]
        rows = pa.concat_tables([schema.empty_table(), *tables])
        self._parts, self._held = [], 0
        return rows

    def saved(self) -> Callable[[], None]:
        """Return a function that removes the rows added from now on."""
        n, held = len(self._parts), self._held

        def restore() -> None:
            del self._parts[n:]
            self._held = held

        return restore


def _as_output(part: tuple[str, str, str, pa.Table], bound: BoundSpec, schema: pa.Schema) -> pa.Table:
    side, source, reason, rows = part
    n = rows.num_rows
    columns = [pa.array([value] * n, pa.string()) for value in (side, source, reason)]
    for column in bound.late_columns:
        own = column.side == side or bound.spec.self_join
        type_ = schema.field(column.name).type
        values = rows.column(column.source) if own else pa.chunked_array([pa.nulls(n, type_)])
        # A column that was all NULL when the row arrived may have a type now.
        columns.append(typed_column(values, type_))
    return pa.Table.from_arrays(columns, schema=schema)
