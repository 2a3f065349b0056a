"""The left tuples of a join that gives each one's row once it is decided."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.plain_types import retyped
from streamjoin.windows.buffer import Buffer, Restore
from streamjoin.windows.clock import FOREVER

# Tables of fewer rows are put together.
_SMALL = 4096


class UndecidedRows:
    """One side's tuples from position `base` to `count`, with the times and the key numbers of each.

    They stay in the Arrow tables in which they came: rows are given out without a copy.
    """

    timed = True

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.base = 0
        self.count = 0
        self._tables: list[pa.Table] = []
        self._ticks = Buffer(np.int64)
        self._keys = Buffer(np.int64)

    @property
    def ticks(self) -> Array:
        """The times."""
        return self._ticks.values

    def time_at(self, position: int) -> int:
        """The time of the tuple at a position; the largest if it has not come yet."""
        return FOREVER if position >= self.count else int(self.ticks[position - self.base])

    @property
    def keys(self) -> Array:
        """The numbers of the keys."""
        return self._keys.values

    def append(self, table: pa.Table, keys: Array, ticks: Array) -> None:
        """Add tuples in stream order."""
        tail = [table]
        while self._tables and self._tables[-1].num_rows + sum(part.num_rows for part in tail) <= _SMALL:
            tail.insert(0, self._tables.pop())
        self._tables.append(pa.concat_tables(tail).combine_chunks() if len(tail) > 1 else table)
        self._keys.append(keys)
        self._ticks.append(ticks)
        self.count += table.num_rows

    def first(self, n: int) -> pa.Table:
        """The oldest `n` rows."""
        pieces = []
        for table in self._tables:
            if n <= 0:
                break
            pieces.append(table if table.num_rows <= n else table.slice(0, n))
            n -= table.num_rows
        return pieces[0] if len(pieces) == 1 else pa.concat_tables([self.schema.empty_table(), *pieces])

    def forget(self, position: int) -> int:
        """Drop the tuples before a position; returns how many."""
        n = rest = position - self.base
        while self._tables and rest >= self._tables[0].num_rows:
            rest -= self._tables.pop(0).num_rows
        if rest:
            self._tables[0] = self._tables[0].slice(rest)
        self._keys.forget(n)
        self._ticks.forget(n)
        self.base = position
        return n

    def renumber(self, numbers: Array) -> None:
        """Replace the numbers of the keys."""
        # In new memory: a failed call returns to the old numbers.
        self._keys = Buffer(np.int64)
        self._keys.append(numbers)

    def retype(self, schema: pa.Schema) -> None:
        """Adopt a schema that gives types to columns that were all NULL so far."""
        self._tables = [retyped(table, schema) for table in self._tables]
        self.schema = schema

    def saved(self) -> Restore:
        """Return a function that restores these tuples."""
        state = self.base, self.count, self.schema, self._keys
        tables, parts = list(self._tables), [self._keys.saved(), self._ticks.saved()]

        def restore() -> None:
            self.base, self.count, self.schema, self._keys = state
            self._tables = list(tables)
            for part in parts:
                part()

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(int(table.nbytes) for table in self._tables) + self._keys.nbytes + self._ticks.nbytes
