"""Parts: the rows of one input batch for one range, packed as one value for the shuffle.

Spark shuffles a packed part as one value; it would convert single rows column by column on both ends. A part has the
number of its task and batch, so the receiver restores the order in which parts were made. Rows that the range stores
and copies that only probe are in separate parts. Every routing task also sends each range an empty part. It tells the
receiver which range it has, and its mark shows whether both tasks use the same version of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

DDL = "partition int, side int, source int, number int, rows binary"
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("side", pa.int32()),
        ("source", pa.int32()),
        ("number", pa.int32()),
        ("rows", pa.binary()),
    ]
)
MARKER = -1
COPIES = 2
MOST_BYTES = 64 << 20
"""Larger parts are split in two: several values must fit into Spark's 2 GB."""
_MOST_CUTS = 64


@dataclass(frozen=True)
class Part:
    """Rows of one side for one partition; `source` and `number` identify the sending task and its input batch.

    `side` is any small number that the receiver knows; for a range it is 0 or 1, plus `COPIES` for copies.
    """

    partition: int
    side: int
    source: int
    number: int
    rows: pa.RecordBatch

    def packed(self) -> Iterator[pa.RecordBatch]:
        """The part as a record batch for the shuffle."""
        pieces = max(1, -(-self.rows.nbytes // MOST_BYTES))
        size = max(1, -(-self.rows.num_rows // pieces))
        for i, begin in enumerate(range(0, self.rows.num_rows, size)):
            body = self.rows.slice(begin, size).serialize()
            yield _row(self.partition, self.side, self.source, self.number * _MOST_CUTS + i, body)


def markers(partitions: int, mark: int = 0) -> pa.RecordBatch:
    """An empty part for each range, with `mark`."""
    n = partitions
    return pa.record_batch(
        [
            pa.array(range(n), pa.int32()),
            pa.array([MARKER] * n, pa.int32()),
            pa.array([0] * n, pa.int32()),
            pa.array([mark] * n, pa.int32()),
            pa.nulls(n, pa.binary()),
        ],
        schema=SCHEMA,
    )


def _row(partition: int, side: int, source: int, number: int, body: pa.Buffer) -> pa.RecordBatch:
    offsets = pa.array([0, body.size], pa.int32()).buffers()[1]
    return pa.record_batch(
        [
            *(pa.array([value], pa.int32()) for value in (partition, side, source, number)),
            pa.Array.from_buffers(pa.binary(), 1, [None, offsets, body]),
        ],
        schema=SCHEMA,
    )


@dataclass(frozen=True)
class Received:
    """The rows of one side in a range: those that it stores, and copies that only probe."""

    table: pa.Table
    owned: int


def opened(batches: Iterable[pa.RecordBatch]) -> tuple[int | None, list[tuple[int, int, int, pa.Buffer]]]:
    """The partition of the parts, if there are any, and (side, source, number, body), sorted."""
    partition: int | None = None
    parts: list[tuple[int, int, int, pa.Buffer]] = []
    for batch in batches:
        numbers = [batch.column(i).to_pylist() for i in range(4)]
        bodies = batch.column(4)
        for i, (own, side, source, number) in enumerate(zip(*numbers, strict=True)):
            partition = own
            if side != MARKER:
                parts.append((side, source, number, bodies[i].as_buffer()))
    parts.sort(key=lambda part: part[:3])
    return partition, parts


def marks(batches: Iterable[pa.RecordBatch]) -> set[int]:
    """The marks of all sending tasks."""
    return {
        number
        for batch in batches
        for side, number in zip(batch.column(1).to_pylist(), batch.column(3).to_pylist(), strict=True)
        if side == MARKER
    }


def unpack(
    batches: Iterable[pa.RecordBatch], schemas: tuple[pa.Schema, pa.Schema]
) -> tuple[int | None, tuple[Received, Received]]:
    """The partition of the parts, if there are any, and the rows of both sides."""
    partition, parts = opened(batches)
    sides = []
    for side, schema in enumerate(schemas):
        own, copies = (
            [pa.ipc.read_record_batch(body, schema) for code, _, _, body in parts if code == side + kind]
            for kind in (0, COPIES)
        )
        table = pa.Table.from_batches([*own, *copies], schema=schema)
        sides.append(Received(table, sum(batch.num_rows for batch in own)))
    return partition, (sides[0], sides[1])
