"""Parts: the rows of one input batch for one range, packed as one value for the shuffle.

Spark shuffles a packed part as one value; it would convert single rows column by column on both ends. A part has the
number of its task and batch, so the receiver restores the order in which parts were made. Rows that the range stores
and copies that only probe are in separate parts. Every routing task also sends each range an empty part. It tells the
receiver which range it has, and its mark shows whether both tasks use the same version of the log. In some joins it
carries facts about the task's rows (`facts.py`).

Where all tasks run on one host, the rows of a large part do not pass through Spark at all. The sender writes them to a
file of the batch, the *spool*, and sends its path; the receiver maps it. Nothing depends on the file after the batch.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from streamjoin.storage.log import WindowLog
from streamjoin.storage.pieces import damaged

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
TIMES = 4
"""Added to the side of what a routing task tells all ranges of its rows, and twice its source (`shared_gate.py`)."""
MOST_BYTES = 64 << 20
"""Larger parts are split in two: several values must fit into Spark's 2 GB."""
_MOST_CUTS = 64
_SPOOLED = 1 << 16
"""Added to the side of a part whose value is the path of the file with its rows."""


@dataclass(frozen=True)
class Spool:
    """Files that carry the rows of large parts from one task to another."""

    directory: Path
    prefix: str
    least: int

    @classmethod
    def of(cls, log: WindowLog, batch: int) -> Spool | None:
        """The spool of a batch; None where rows pass through Spark."""
        directory, least = log.spool(batch), log.least_spooled
        if least is None or not isinstance(directory, Path):
            return None
        return cls(directory, f"{log.epoch:08}", least)

    def write(self, body: pa.Buffer) -> Path | None:
        """A file with the rows; None if they are too few, or if the disk does not take them."""
        if body.size < self.least:
            return None
        path = self.directory / f"{self.prefix}.{uuid.uuid4().hex}{WindowLog.SPOOLED}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # Not synced: if the machine fails, the batch runs again and writes other files.
            path.write_bytes(body)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        return path


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

    def packed(self, spool: Spool | None = None) -> Iterator[pa.RecordBatch]:
        """The part as a record batch for the shuffle; a large part as the path of a file, if there is a spool."""
        pieces = max(1, -(-self.rows.nbytes // MOST_BYTES))
        size = max(1, -(-self.rows.num_rows // pieces))
        for i, begin in enumerate(range(0, self.rows.num_rows, size)):
            body, side = self.rows.slice(begin, size).serialize(), self.side
            file = None if spool is None else spool.write(body)
            if file is not None:
                body, side = pa.py_buffer(os.fsencode(file)), side + _SPOOLED
            yield _row(self.partition, side, self.source, self.number * _MOST_CUTS + i, body)


def to_all(partitions: int, side: int, source: int, body: pa.Buffer, spool: Spool | None) -> Iterator[pa.RecordBatch]:
    """One value for each range, as record batches for the shuffle; a large one is one file for all."""
    file = None if spool is None else spool.write(body)
    if file is not None:
        body, side = pa.py_buffer(os.fsencode(file)), side + _SPOOLED
    for partition in range(partitions):
        yield _row(partition, side, source, 0, body)


def markers(partitions: int, mark: int = 0, facts: bytes | None = None) -> pa.RecordBatch:
    """An empty part for each range, with `mark` and the facts that every range needs."""
    n = partitions
    return pa.record_batch(
        [
            pa.array(range(n), pa.int32()),
            pa.array([MARKER] * n, pa.int32()),
            pa.array([0] * n, pa.int32()),
            pa.array([mark] * n, pa.int32()),
            pa.array([facts] * n, pa.binary()),
        ],
        schema=SCHEMA,
    )


def _row(partition: int, side: int, source: int, number: int, body: pa.Buffer) -> pa.RecordBatch:
    # From buffers: there are many parts, and arrays of Python's numbers take longer.
    numbers = pa.py_buffer(np.array([partition, side, source, number], np.int32))
    offsets = pa.py_buffer(np.array([0, body.size], np.int32))
    columns = [pa.Array.from_buffers(pa.int32(), 1, [None, numbers], 0, place) for place in range(4)]
    rows = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, body])
    return pa.RecordBatch.from_arrays([*columns, rows], schema=SCHEMA)


@dataclass(frozen=True)
class Received:
    """The rows of one side in a range: those that it stores, and copies that only probe."""

    table: pa.Table
    owned: int


def opened(
    batches: Iterable[pa.RecordBatch], least: int = 0
) -> tuple[int | None, list[tuple[int, int, int, pa.Buffer]]]:
    """The partition of the parts, if there are any, and (side, source, number, body), sorted, of sides from `least`."""
    partition: int | None = None
    parts: list[tuple[int, int, int, pa.Buffer]] = []
    for batch in batches:
        numbers = [batch.column(i).to_pylist() for i in range(4)]
        bodies = batch.column(4)
        for i, (own, side, source, number) in enumerate(zip(*numbers, strict=True)):
            partition = own
            if side != MARKER and side % _SPOOLED >= least:
                body = bodies[i].as_buffer()
                parts.append((side % _SPOOLED, source, number, body if side < _SPOOLED else _mapped(body)))
    parts.sort(key=lambda part: part[:3])
    return partition, parts


def _mapped(file: pa.Buffer) -> pa.Buffer:
    path = Path(os.fsdecode(file.to_pybytes()))
    try:
        return pa.memory_map(str(path)).read_buffer()
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged(path, error) from error


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
