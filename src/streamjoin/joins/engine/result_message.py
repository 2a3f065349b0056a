"""Columns of fixed width as one Arrow IPC message: kernels fill it in, and Arrow reads all columns in one call.

Making an Arrow array of each column costs more than gathering it. The header of the message depends on the schema and
holds, at known places, the number of rows and where each column's bitmap and values begin; see "Encapsulated message
format" in the specification of Arrow's columnar format. The header here is Arrow's own, taken from a batch of one row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.rows import LINE

_PREFIX = 8
"""Bytes before the metadata: a marker, and the size of the metadata."""


class ResultMessage:
    """The message of batches of one schema; every column has a fixed width."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        row = pa.record_batch([pa.nulls(1, field.type) for field in schema], schema)
        message = row.serialize()
        metadata_size = int(np.frombuffer(message, np.int32, 2)[1])
        metadata = np.frombuffer(message, np.uint8, metadata_size, _PREFIX)
        size = -(-(_PREFIX + metadata_size) // LINE) * LINE
        header = np.zeros(size, np.uint8)
        header[: _PREFIX + metadata_size] = np.frombuffer(message, np.uint8, _PREFIX + metadata_size)
        header[4:8].view(np.int32)[0] = size - _PREFIX
        self.header: Array = header.view(np.int64)
        """The header as words; the body follows it."""
        self.marks = np.array([place // 8 for place in _places(metadata)], np.int64)
        """The words that hold the rows, the bytes of the body, the first column's counts and its buffers."""

    def read(self, message: pa.Buffer) -> pa.RecordBatch:
        """The batch of a message."""
        return pa.ipc.read_record_batch(message, self.schema)


def _places(metadata: Array) -> tuple[int, int, int, int]:
    """Where the numbers that change are, in bytes from the beginning of the message."""

    def number(at: int, dtype: str) -> int:
        return int(np.frombuffer(metadata, dtype, 1, at)[0])

    def field(table: int, place: int) -> int:
        return table + number(table - number(table, "<i4") + 4 + 2 * place, "<u2")

    def reference(at: int) -> int:
        return at + number(at, "<u4")

    root = reference(0)
    batch = reference(field(root, 2))
    # A vector begins with its length, in 4 bytes.
    places = (
        field(batch, 0),
        field(root, 3),
        reference(field(batch, 1)) + 4,
        reference(field(batch, 2)) + 4,
    )
    first, size, counts, buffers = (_PREFIX + place for place in places)
    return first, size, counts, buffers
