"""Tuples that a join holds as copies, because the streams let them go: the newest of each key.

Invariant: they are in the order of time, of equal times in gate order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array

MOST_HELD: Final = 1 << 20
"""Tuples that one join holds; with more keys its query fails, as what is held is written with every batch."""
_TIME: Final = "#ticks"
_ID: Final = "#number"
_FIRST: Final = b"streamjoin.ids-first"
"""In the metadata of what `packed` gives."""


@dataclass(frozen=True)
class HeldTuples:
    """Tuples by time, then in gate order: their ids, times, and the columns that are used."""

    ids: Array
    ticks: Array
    rows: pa.Table

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.ids)

    def keep(self, places: Array) -> HeldTuples:
        """Those at ascending places."""
        if len(places) == self.n:
            return self
        return HeldTuples(self.ids[places], self.ticks[places], _taken(self.rows, places))

    def joined_by(self, others: HeldTuples) -> HeldTuples:
        """With others, of which some may be here already."""
        ids, ticks = np.concatenate([self.ids, others.ids]), np.concatenate([self.ticks, others.ticks])
        _, first = np.unique(ids, return_index=True)
        order = first[np.lexsort((ids[first], ticks[first]))]
        rows = pa.concat_tables([self.rows, others.rows.cast(self.rows.schema)])
        return HeldTuples(ids[order], ticks[order], _taken(rows, order))

    def take(self, name: str, ids: Array) -> pa.Array:
        """A column of the tuples with these ids, NULL where an id is negative."""
        order = np.argsort(self.ids)
        missing = ids < 0
        if missing.all():
            return pa.nulls(len(ids), self.rows.schema.field(name).type)
        at = np.searchsorted(self.ids, np.where(missing, self.ids[order[0]], ids), sorter=order)
        return self.rows.column(name).combine_chunks().take(pa.array(order[at], mask=missing))

    def packed(self) -> bytes:
        """As bytes, for a file: ids and times are the first two columns, whatever the others are called."""
        arrays = [pa.array(self.ids), pa.array(self.ticks), *self.rows.columns]
        # A table without columns has no rows; these have.
        names = [_ID, _TIME, *self.rows.column_names]
        table = pa.Table.from_arrays(arrays, names=names).replace_schema_metadata({_FIRST: b""})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    @classmethod
    def unpacked(cls, data: bytes) -> HeldTuples:
        """What `packed` gave."""
        table = pa.ipc.open_stream(data).read_all()
        if _FIRST in (table.schema.metadata or {}):
            ids, ticks, *columns = table.columns
            rows = pa.Table.from_arrays(columns, names=table.column_names[2:])
            return cls(ids.to_numpy(), ticks.to_numpy(), rows)
        # Earlier versions wrote them last, and the earliest one column more behind them.
        own = table.num_columns - (2 if table.column_names[-2:] == [_ID, _TIME] else 3)
        ids, ticks = (table.column(own + place).to_numpy() for place in range(2))
        return cls(ids, ticks, table.select(list(range(own))))


def _taken(rows: pa.Table, places: Array) -> pa.Table:
    """Rows at some places; a table without columns has none to take."""
    return rows.take(places) if rows.num_columns else rows
