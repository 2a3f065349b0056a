"""From pairs to result rows, and the last stage of a join whose output is ordered.

Without an order, rows leave the join's tasks as they are found. With one, rows carry the gate position of their later
tuple and the position of the earlier one, and go to tasks that each own a range of the batch's gate positions and sort
them. The rows of a batch are then in result order, from the first partition to the last. With punctuations, the last
row of a batch is its punctuation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.common_types import as_type
from streamjoin.spark.stages.pairing import SortedProbes
from streamjoin.spark.stages.parts import Part, Spool, markers, opened
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.ranges import MOST
from streamjoin.storage.segments import Segment

POSITION, PARTNER = "position", "partner"
"""The columns that define the result's order: the later tuple's gate position, the earlier one's in its side."""

PUNCTUATION = "punctuation"
"""The column that distinguishes a punctuation from a result."""

_RANK = "#rank"
_RESULTS, _BOUND = 0, 1

_ROWS = 1 << 18


class TaskRows(Protocol):
    """Result rows of a task."""

    def columns(self, blueprint: Blueprint) -> list[Any]:
        """The columns of the rows."""

    def order(self, blueprint: Blueprint) -> tuple[Array, ...]:
        """The values that the rows are sorted by."""


@dataclass(frozen=True)
class FoundPairs:
    """Pairs: positions among the probes and among the stored rows."""

    probes: SortedProbes
    stored: Segment
    probe: Array
    place: Array
    probes_left: bool

    def columns(self, blueprint: Blueprint) -> list[Any]:
        """The columns of both sides, and the later time."""
        probing = self.probes.rows.rows.take(pa.array(self.probe))
        stored_rows = self.stored.rows.take(pa.array(self.place))
        left, right = (probing, stored_rows) if self.probes_left else (stored_rows, probing)
        fields = zip(blueprint.bound.columns, blueprint.bound.schema, strict=False)
        columns: list[Any] = [
            as_type((left if c.side == "left" else right).column(c.source), field.type) for c, field in fields
        ]
        ticks = np.maximum(self.probes.rows.ticks[self.probe], self.stored.ticks[self.place])
        columns.append(_times(blueprint, ticks))
        return columns

    def order(self, blueprint: Blueprint) -> tuple[Array, ...]:
        """The place of each pair; among the rows of one place, pairs come after the tuples that leave there."""
        position, partner = self.places(blueprint)
        if blueprint.bound.spec.how == "inner":
            return position, partner
        return position, np.full(position.size, MOST), partner

    def places(self, blueprint: Blueprint) -> tuple[Array, Array]:
        """The gate position of the later tuple, which is the probe, and the position of the earlier one, of each pair.

        In a self-join a pair has both roles; the position is doubled, and odd if the later tuple is on the right.
        """
        upto, own, others = self.probes.upto, self.probes.rows.seqs, self.stored.seqs
        if upto is None or own is None or others is None:
            raise AssertionError("an order without a gate")
        seq, partner = own[self.probe], others[self.place]
        if blueprint.bound.spec.self_join:
            return seq, 2 * partner + (not self.probes_left)
        return seq + upto[self.probe], partner


@dataclass(frozen=True)
class GatheredRows:
    """Rows of a kind of join other than inner: one side may be missing.

    `ticks` are their times. `places` are what they are sorted by, if the output is ordered: the gate position of a row,
    its rank among the rows there, and the position of its tuple.
    """

    left: pa.Table | None
    right: pa.Table | None
    ticks: Array
    places: tuple[Array, Array, Array] | None = None

    def columns(self, blueprint: Blueprint) -> list[Any]:
        """The columns of the side that is there, and NULLs; a key that appears once is that of either side."""
        bound, n = blueprint.bound, self.ticks.size
        columns: list[Any] = []
        for column, field in zip(bound.columns, bound.schema, strict=False):
            own, other = (self.left, self.right) if column.side == "left" else (self.right, self.left)
            if own is not None:
                columns.append(as_type(own.column(column.source), field.type))
            elif column.is_key and other is not None:
                columns.append(as_type(other.column(column.source), field.type))
            else:
                columns.append(pa.nulls(n, field.type))
        if bound.time_field is not None:
            columns.append(_times(blueprint, self.ticks))
        return columns

    def order(self, blueprint: Blueprint) -> tuple[Array, ...]:  # noqa: ARG002
        """The place of each row."""
        if self.places is None:
            raise AssertionError("rows without their places in an ordered output")
        return self.places


def result_schema(blueprint: Blueprint) -> pa.Schema:
    """The columns of the result, with the optional columns of its order and of punctuations."""
    schema, gate = blueprint.bound.schema, blueprint.gate
    if gate is not None and gate.positions:
        schema = _with_order(schema, (POSITION, PARTNER))
    if gate is not None and gate.punctuated:
        schema = schema.append(pa.field(PUNCTUATION, pa.bool_()))
    return schema


def _order_names(blueprint: Blueprint) -> tuple[str, ...]:
    """The names of the values that rows are sorted by."""
    spec = blueprint.bound.spec
    return (POSITION, PARTNER) if spec.how == "inner" and spec.match is None else (POSITION, _RANK, PARTNER)


def _ordered_schema(blueprint: Blueprint) -> pa.Schema:
    return _with_order(blueprint.bound.schema, _order_names(blueprint))


def _with_order(schema: pa.Schema, names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([*schema, *(pa.field(name, pa.int64()) for name in names)])


def plain(blueprint: Blueprint, results: Iterator[TaskRows]) -> Iterator[pa.RecordBatch]:
    """Result rows in any order."""
    numbered = blueprint.gate is not None and blueprint.gate.positions
    for rows in results:
        columns = rows.columns(blueprint)
        if numbered:
            columns += [pa.array(column) for column in rows.order(blueprint)]
        yield from pa.Table.from_arrays(columns, schema=result_schema(blueprint)).combine_chunks().to_batches()


def _times(blueprint: Blueprint, ticks: Array) -> pa.Array:
    """Ticks as values of the result's time column."""
    schema = blueprint.bound.schema
    type_ = schema.field(len(schema) - 1).type
    narrow = ticks.astype(f"i{type_.bit_width // 8}", copy=False)
    return pa.Array.from_buffers(type_, len(narrow), [None, pa.py_buffer(narrow)])


def to_order(
    blueprint: Blueprint,
    positions: tuple[int, int],
    results: Iterator[TaskRows],
    partition: int,
    spool: Spool | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows packed for the task that owns their position; the end of the batch belongs to the last one."""
    yield markers(blueprint.partitions)
    first, last = positions
    for number, rows in enumerate(results):
        order = rows.order(blueprint)
        target = np.minimum((order[0] - first) * blueprint.partitions // max(1, last - first), blueprint.partitions - 1)
        columns = [*rows.columns(blueprint), *map(pa.array, order)]
        table = pa.Table.from_arrays(columns, schema=_ordered_schema(blueprint)).combine_chunks()
        for own in np.unique(target):
            part = table.filter(pa.array(target == own)).combine_chunks()
            for batch in part.to_batches():
                yield from Part(int(own), _RESULTS, partition, number, batch).packed(spool)


def bound_to_order(blueprint: Blueprint, bound: int, position: int) -> Iterator[pa.RecordBatch]:
    """The punctuation of a batch, packed for the task that owns the last positions."""
    schema = _ordered_schema(blueprint)
    ts = len(blueprint.bound.schema) - 1
    nothing = [pa.nulls(1, field.type) for field in schema]
    rank = [pa.array([MOST])] * (len(schema) - ts - 3)
    nothing[ts:] = [_times(blueprint, np.array([bound])), pa.array([position]), *rank, pa.array([0])]
    row = pa.RecordBatch.from_arrays(nothing, schema=schema)
    yield from Part(blueprint.partitions - 1, _BOUND, 0, 0, row).packed()


@dataclass(frozen=True)
class OrderTask:
    """The stage that sorts."""

    blueprint: Blueprint

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put the rows of one range of positions into result order."""
        gate, schema = self.blueprint.gate, _ordered_schema(self.blueprint)
        _, parts = opened(batches)
        rows = [(kind, pa.ipc.read_record_batch(body, schema)) for kind, _, _, body in parts]
        table = pa.Table.from_batches([batch for _, batch in rows], schema=schema).combine_chunks()
        if table.num_rows == 0:
            return
        width = len(self.blueprint.bound.schema)
        order = np.lexsort([column.to_numpy() for column in reversed(table.columns[width:])])
        if gate is None or not gate.positions:
            table = table.select(range(width))
        if gate is not None and gate.punctuated:
            is_punctuation = np.repeat([kind == _BOUND for kind, _ in rows], [batch.num_rows for _, batch in rows])
            table = table.append_column(PUNCTUATION, pa.array(is_punctuation))
        for begin in range(0, order.size, _ROWS):
            yield from table.take(pa.array(order[begin : begin + _ROWS])).combine_chunks().to_batches()
