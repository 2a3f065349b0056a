"""Columns that travel past a ScaleGate by number: text, booleans and other values that no ring has room for.

A source's tuples leave the gate in the order in which they entered it, so their rows are a queue of Arrow tables: the
collector takes as many rows of each source as the gate has let out. Invariant: rows are queued before their tuples are
added to the gate, and a source's place goes to another one only when both are empty.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.large_columns import take_rows
from streamjoin.windows.encoding import flat
from streamjoin.windows.store import is_fixed

_KINDS = (
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_decimal,
)
Columns = dict[str, pa.Array]


def can_travel(schema: pa.Schema) -> bool:
    """Whether all columns are of fixed width or can be carried."""
    return all(is_fixed(field.type) or any(matches(field.type) for matches in _KINDS) for field in schema)


@dataclass(slots=True)
class _Queued:
    """A table whose rows from `begin` on have not been taken."""

    rows: pa.Table
    begin: int = 0


class CarriedRows:
    """The carried columns of all sources of a gate, by their place in it."""

    def __init__(self, schemas: tuple[pa.Schema, pa.Schema]) -> None:
        self._schemas = [pa.schema([field for field in schema if not is_fixed(field.type)]) for schema in schemas]
        self._queues: dict[int, deque[_Queued]] = {}
        self.row_bytes = 0.0
        """Bytes of a row's carried columns, at a recent maximum; any thread may ask."""

    def note(self, side: int, rows: pa.Table) -> None:
        """Find out how much of these rows is carried."""
        names = self._schemas[side].names
        if names and rows.num_rows:
            own = rows.select(names).nbytes / rows.num_rows
            self.row_bytes = max(own, 0.9 * self.row_bytes + 0.1 * own)

    def put(self, slot: int, side: int, rows: pa.Table) -> None:
        """Queue the rows of tuples that are about to be added at a place of the gate; one thread calls it for each."""
        names = self._schemas[side].names
        if names:
            self._queues.setdefault(slot, deque()).append(_Queued(rows.select(names)))

    def take(self, slots: Array, sides: Array) -> tuple[Columns, Columns]:
        """The carried columns of the next tuples, in gate order by side; the collector's."""
        left, right = (self._of_side(side, slots[sides == side]) for side in (0, 1))
        return left, right

    def _of_side(self, side: int, slots: Array) -> Columns:
        schema = self._schemas[side]
        if not schema.names:
            return {}
        if not slots.size:
            return {field.name: pa.nulls(0, field.type) for field in schema}
        order = np.argsort(slots, kind="stable")
        counts = np.bincount(slots)
        parts = [part for slot in np.flatnonzero(counts).tolist() for part in self._next(slot, int(counts[slot]))]
        rows = pa.concat_tables(parts)
        if len(np.flatnonzero(counts)) > 1:
            places = np.empty_like(order)
            places[order] = np.arange(order.size)
            rows = take_rows(rows, places)
        return {name: flat(rows.column(name)) for name in schema.names}

    def _next(self, slot: int, n: int) -> list[pa.Table]:
        """The next `n` rows of a place."""
        queue, parts = self._queues[slot], []
        while n:
            first = queue[0]
            count = min(n, first.rows.num_rows - first.begin)
            parts.append(first.rows.slice(first.begin, count))
            first.begin, n = first.begin + count, n - count
            if first.begin == first.rows.num_rows:
                queue.popleft()
        return parts
