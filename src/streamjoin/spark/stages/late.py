"""Rows that a join did not join: too far behind their side's clock, or without a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from streamjoin.model.binding import BoundSpec
from streamjoin.spark.runtime.checkpoints import known_root
from streamjoin.storage.log import late_files
from streamjoin.storage.pieces import damaged

_HEAD = pa.schema([("batch", pa.int64()), ("side", pa.string()), ("reason", pa.string())])


def late_rows(bound: BoundSpec, batch: int, side: str, rows: Mapping[str, pa.Table]) -> pa.Table:
    """Rows that were set aside, as the log stores them: batch, side, reason, and columns with the result's names."""
    schema = pa.schema([*_HEAD, *bound.late_schema])
    tables = [schema.empty_table()]
    for reason, table in rows.items():
        n = table.num_rows
        values = zip((batch, side, reason), _HEAD.types, strict=True)
        columns = [pa.array([value] * n, type_) for value, type_ in values]
        columns += [
            table.column(c.source) if c.side == side else pa.nulls(n, schema.field(c.name).type)
            for c in bound.late_columns
        ]
        tables.append(pa.Table.from_arrays(columns, schema=schema))
    return pa.concat_tables(tables)


def late(checkpoint: str | Path, name: str = "join") -> pa.Table:
    """The rows that the join under `checkpoint` did not join, since its start.

    Args:
        checkpoint: the `checkpointLocation` of the query.
        name: the name of the join, if it has one.

    Raises:
        CheckpointError: there is no such join, or its files can't be read.
    """
    root = known_root(checkpoint, name)
    tables = []
    for _, path in late_files(root):
        try:
            tables.append(pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all())
        except (OSError, pa.ArrowException) as error:
            raise damaged(path, error) from error
    # A restart may have changed column names: earlier rows have NULL in the new ones.
    return pa.concat_tables(tables, promote_options="default") if tables else _HEAD.empty_table()
