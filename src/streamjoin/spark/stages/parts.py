"""What travels from the routing stage to the join tasks: a range's rows of one input batch, packed as one value.

Spark moves a packed part as it is, where it would take rows apart and put them together again, column by
column, on both ends of the shuffle. A part names where it was cut, so a task puts parts back in the same order
whichever arrives first. Rows that the range will store and copies that only probe it travel in parts of their own.
Every routing task also sends each range an empty part, from which its task learns which range is its own, and by its
mark whether both go by the same version of the log.
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
"""A part is cut in two above this: one value must fit Spark's 2 GB many times."""
_MOST_CUTS = 64


@dataclass(frozen=True)
class Part:
    """Rows of one side for one partition; `source` and `number` say which task cut it, and when.

    `side` may be any small number that the receiver knows; for a range it is 0 or 1, and `COPIES` more for copies.
    """

    partition: int
    side: int
    source: int
    number: int
    rows: pa.RecordBatch

    def packed(self) -> Iterator[pa.RecordBatch]:
        """As Spark carries it."""
        pieces = max(1, -(-self.rows.nbytes // MOST_BYTES))
        size = max(1, -(-self.rows.num_rows // pieces))
        for i, begin in enumerate(range(0, self.rows.num_rows, size)):
            body = self.rows.slice(begin, size).serialize()
            yield _row(self.partition, self.side, self.source, self.number * _MOST_CUTS + i, body)


def markers(partitions: int, mark: int = 0) -> pa.RecordBatch:
    """An empty part for each range; `mark` is for all their tasks to see."""
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
    """One side's rows in a range: those it will store, then copies that only probe."""

    table: pa.Table
    owned: int


def opened(batches: Iterable[pa.RecordBatch]) -> tuple[int | None, list[tuple[int, int, int, pa.Buffer]]]:
    """The partition that the parts were sent to, if anything says so, and (side, source, number, body), sorted."""
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
    """The marks of all the tasks that parts came from."""
    return {
        number
        for batch in batches
        for side, number in zip(batch.column(1).to_pylist(), batch.column(3).to_pylist(), strict=True)
        if side == MARKER
    }


def unpack(
    batches: Iterable[pa.RecordBatch], schemas: tuple[pa.Schema, pa.Schema]
) -> tuple[int | None, tuple[Received, Received]]:
    """The partition that the parts were sent to, if anything says so, and the rows of both sides."""
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
