"""The first stage: which rows go to which range.

A row goes to the range that owns its word, where it will be stored, and as a copy to every other range where the
words lie that it can match. A row whose key is NULL or NaN matches nothing and is not stored, but its time
counts: it goes to some range, always the same for the same row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from streamjoin.kernels.sorting import sort_entries
from streamjoin.spark.blueprint import SIDES, Blueprint
from streamjoin.spark.checkpoints import open_log
from streamjoin.spark.parts import Part, markers
from streamjoin.spark.ranges import cuts, destinations
from streamjoin.windows.clock import to_ticks
from streamjoin.windows.encoding import SideEncoder

Array = np.ndarray[Any, np.dtype[Any]]

ROW_ID = "#row"
"""In a self-join, the column that tells a tuple from its equals, so that it does not meet itself."""


@dataclass(frozen=True)
class Route:
    """The stage for one side; in a self-join one stage sends each row in both roles."""

    blueprint: Blueprint
    side: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut every batch into parts."""
        from pyspark import TaskContext

        log, batch_id = open_log(self.blueprint)
        cut = cuts(log.version(batch_id - 1).samples, self.blueprint.partitions)
        context = TaskContext.get()
        source = context.partitionId() if context else 0
        yield markers(self.blueprint.partitions)
        seen = 0
        for number, batch in enumerate(batches):
            if batch.num_rows == 0:
                continue
            for part in self.cut(batch, cut, source, number, seen):
                yield from part.packed()
            seen += batch.num_rows

    def cut(self, batch: pa.RecordBatch, cut: Array, source: int, number: int, seen: int) -> Iterator[Part]:
        """The parts of one input batch."""
        rows = conformed(batch, self.blueprint.schema(self.side))
        roles = [self.side]
        if self.blueprint.bound.spec.self_join:
            ids = np.arange(seen, seen + rows.num_rows, dtype=np.int64) + (source << 40)
            rows = rows.append_column(ROW_ID, pa.array(ids))
            roles = [0, 1]
        for role in roles:
            for partition, part in _by_range(self.blueprint, role, rows, cut):
                yield Part(partition, role, source, number, part)


def part_schema(blueprint: Blueprint, side: int) -> pa.Schema:
    """The columns of a packed part."""
    schema = blueprint.schema(side)
    return schema.append(pa.field(ROW_ID, pa.int64())) if blueprint.bound.spec.self_join else schema


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` under the schema of its side: Spark may name another zone, or the fields of lists otherwise."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _by_range(
    blueprint: Blueprint, role: int, rows: pa.RecordBatch, cut: Array
) -> Iterator[tuple[int, pa.RecordBatch]]:
    if cut.size == 0:
        yield 0, rows
        return
    side: Literal["left", "right"] = "right" if role else "left"
    table = pa.Table.from_batches([rows])
    encoded = SideEncoder(blueprint.bound, side).encode(table)
    if encoded.index is None:
        raise AssertionError("a spec without an index is refused when the join is built")
    word, lo, hi = encoded.index.word, encoded.index.lo, encoded.index.hi
    if encoded.valid is not None:
        word = np.where(encoded.valid, word, _anywhere(blueprint, role, table, cut))
        lo, hi = np.where(encoded.valid, lo, 1), np.where(encoded.valid, hi, 0)
    row, partition = destinations(cut, word, lo, hi)
    targets, order = sort_entries(partition, row)
    sorted_rows = rows.take(pa.array(order))
    edges = np.flatnonzero(np.diff(targets)) + 1
    for begin, end in zip([0, *edges], [*edges, targets.size], strict=True):
        yield int(targets[begin]), sorted_rows.slice(int(begin), int(end - begin))


def _anywhere(blueprint: Blueprint, role: int, table: pa.Table, cut: Array) -> Array:
    """Words that spread rows with no key over the ranges by their times."""
    time = blueprint.bound.time
    if time is None:
        raise AssertionError(f"the {SIDES[role]} side has no time column")
    ticks, missing = to_ticks(table.column(time.right if role else time.left), 1)
    if missing is not None:
        ticks = np.where(missing, 0, ticks)
    words: Array = cut[ticks % cut.size]
    return words
