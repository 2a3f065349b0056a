"""What travels from the routing stage to the join tasks: a range's rows of one input batch, packed as one value.

Spark moves a packed part as it is, where it would take rows apart and put them together again, column by
column, on both ends of the shuffle. A part names where it was cut, so a task puts parts back in the same order
whichever arrives first. Every routing task also sends each range an empty part, from which its task
learns which range is its own.
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
MOST_BYTES = 64 << 20
"""A part is cut in two above this: one value must fit Spark's 2 GB many times."""
_MOST_CUTS = 64


@dataclass(frozen=True)
class Part:
    """Rows of one side for one partition; `source` and `number` say which task cut it, and when."""

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


def markers(partitions: int) -> pa.RecordBatch:
    """An empty part for each range."""
    n = partitions
    return pa.record_batch(
        [
            pa.array(range(n), pa.int32()),
            pa.array([MARKER] * n, pa.int32()),
            pa.array([0] * n, pa.int32()),
            pa.array([0] * n, pa.int32()),
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


def unpack(
    batches: Iterable[pa.RecordBatch], schemas: tuple[pa.Schema, pa.Schema]
) -> tuple[int | None, tuple[pa.Table, pa.Table]]:
    """The partition that the parts were sent to, if anything says so, and the rows of both sides."""
    partition: int | None = None
    found: list[tuple[int, int, int, pa.RecordBatch]] = []
    for batch in batches:
        numbers = [batch.column(i).to_pylist() for i in range(4)]
        bodies = batch.column(4)
        for i, (own, side, source, number) in enumerate(zip(*numbers, strict=True)):
            partition = own
            if side != MARKER:
                rows = pa.ipc.read_record_batch(bodies[i].as_buffer(), schemas[side])
                found.append((side, source, number, rows))
    found.sort(key=lambda part: part[:3])
    left, right = (
        pa.Table.from_batches([part[3] for part in found if part[0] == side], schema=schemas[side]) for side in (0, 1)
    )
    return partition, (left, right)
