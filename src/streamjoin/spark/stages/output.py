"""From pairs to result rows, and the last stage of a join whose output is ordered.

Without an order, rows leave the join's tasks as they are found. With one, rows carry the gate position of their later
tuple and the position of the earlier one, and go to tasks that each own a range of the batch's gate positions and sort
them. The rows of a batch are then in result order, from the first partition to the last. With punctuations, the last
row of a batch is its punctuation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.spark.stages.pairing import SortedProbes
from streamjoin.spark.stages.parts import Part, markers, opened
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.segments import Segment

POSITION, PARTNER = "position", "partner"
"""The columns that define the result's order: the later tuple's gate position, the earlier one's in its side."""

PUNCTUATION = "punctuation"
"""The column that distinguishes a punctuation from a result."""

_RESULTS, _BOUND = 0, 1

_ROWS = 1 << 18


@dataclass(frozen=True)
class FoundPairs:
    """Pairs: positions among the probes and among the stored rows."""

    probes: SortedProbes
    stored: Segment
    probe: Array
    place: Array
    probes_left: bool


def result_schema(blueprint: Blueprint) -> pa.Schema:
    """The columns of the result, with the optional columns of its order and of punctuations."""
    schema, gate = blueprint.bound.schema, blueprint.gate
    if gate is not None and gate.positions:
        schema = _numbered(schema)
    if gate is not None and gate.punctuated:
        schema = schema.append(pa.field(PUNCTUATION, pa.bool_()))
    return schema


def _numbered(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(POSITION, pa.int64())).append(pa.field(PARTNER, pa.int64()))


def plain(blueprint: Blueprint, results: Iterator[FoundPairs]) -> Iterator[pa.RecordBatch]:
    """Result rows in any order."""
    numbered = blueprint.gate is not None and blueprint.gate.positions
    for pairs in results:
        columns = _columns(blueprint, pairs)
        if numbered:
            columns += [pa.array(column) for column in _order(blueprint, pairs)]
        yield from pa.Table.from_arrays(columns, schema=result_schema(blueprint)).combine_chunks().to_batches()


def _columns(blueprint: Blueprint, pairs: FoundPairs) -> list[Any]:
    bound = blueprint.bound
    probing = pairs.probes.rows.rows.take(pa.array(pairs.probe))
    stored_rows = pairs.stored.rows.take(pa.array(pairs.place))
    left, right = (probing, stored_rows) if pairs.probes_left else (stored_rows, probing)
    columns: list[Any] = [(left if c.side == "left" else right).column(c.source) for c in bound.columns]
    ticks = np.maximum(pairs.probes.rows.ticks[pairs.probe], pairs.stored.ticks[pairs.place])
    columns.append(_times(blueprint, ticks))
    return columns


def _times(blueprint: Blueprint, ticks: Array) -> pa.Array:
    """Ticks as values of the result's time column."""
    schema = blueprint.bound.schema
    type_ = schema.field(len(schema) - 1).type
    narrow = ticks.astype(f"i{type_.bit_width // 8}", copy=False)
    return pa.Array.from_buffers(type_, len(narrow), [None, pa.py_buffer(narrow)])


def _order(blueprint: Blueprint, pairs: FoundPairs) -> tuple[Array, Array]:
    """The gate position of the later tuple, which is the probe, and the position of the earlier one, of each pair.

    In a self-join a pair has both roles; the position is doubled, and odd if the later tuple is on the right.
    """
    upto, own, others = pairs.probes.upto, pairs.probes.rows.seqs, pairs.stored.seqs
    if upto is None or own is None or others is None:
        raise AssertionError("an order without a gate")
    seq, partner = own[pairs.probe], others[pairs.place]
    if blueprint.bound.spec.self_join:
        return seq, 2 * partner + (not pairs.probes_left)
    return seq + upto[pairs.probe], partner


def to_order(
    blueprint: Blueprint, positions: tuple[int, int], results: Iterator[FoundPairs], partition: int
) -> Iterator[pa.RecordBatch]:
    """Rows packed for the task that owns their position."""
    yield markers(blueprint.partitions)
    first, last = positions
    for number, pairs in enumerate(results):
        position, partner = _order(blueprint, pairs)
        target = (position - first) * blueprint.partitions // max(1, last - first)
        columns = [*_columns(blueprint, pairs), pa.array(position), pa.array(partner)]
        table = pa.Table.from_arrays(columns, schema=_numbered(blueprint.bound.schema)).combine_chunks()
        for own in np.unique(target):
            part = table.filter(pa.array(target == own)).combine_chunks()
            for batch in part.to_batches():
                yield from Part(int(own), _RESULTS, partition, number, batch).packed()


def bound_to_order(blueprint: Blueprint, bound: int, position: int) -> Iterator[pa.RecordBatch]:
    """The punctuation of a batch, packed for the task that owns the last positions."""
    schema = _numbered(blueprint.bound.schema)
    ts = len(blueprint.bound.schema) - 1
    nothing = [pa.nulls(1, field.type) for field in schema]
    nothing[ts:] = [_times(blueprint, np.array([bound])), pa.array([position]), pa.array([0])]
    row = pa.RecordBatch.from_arrays(nothing, schema=schema)
    yield from Part(blueprint.partitions - 1, _BOUND, 0, 0, row).packed()


@dataclass(frozen=True)
class OrderTask:
    """The stage that sorts."""

    blueprint: Blueprint

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put the rows of one range of positions into result order."""
        schema = _numbered(self.blueprint.bound.schema)
        _, parts = opened(batches)
        rows = [(kind, pa.ipc.read_record_batch(body, schema)) for kind, _, _, body in parts]
        table = pa.Table.from_batches([batch for _, batch in rows], schema=schema).combine_chunks()
        if table.num_rows == 0:
            return
        position, partner = (table.column(i).to_numpy() for i in (-2, -1))
        order = np.lexsort((partner, position))
        if self.blueprint.gate is not None and self.blueprint.gate.punctuated:
            is_punctuation = np.repeat([kind == _BOUND for kind, _ in rows], [batch.num_rows for _, batch in rows])
            table = table.append_column(PUNCTUATION, pa.array(is_punctuation))
        table = table.select(result_schema(self.blueprint).names)
        for begin in range(0, order.size, _ROWS):
            yield from table.take(pa.array(order[begin : begin + _ROWS])).combine_chunks().to_batches()
