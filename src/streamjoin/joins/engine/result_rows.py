"""The columns of result rows, as kernels and Arrow make them.

Making an Arrow array of each column costs more than gathering it, so columns of fixed width are one Arrow IPC message:
kernels fill it in, and Arrow reads all columns in one call. The header of the message depends on the schema and holds,
at known places, the number of rows and where each column's bitmap and values begin; see "Encapsulated message format"
in the specification of Arrow's columnar format. The header here is Arrow's own, taken from a batch of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.kernels.rows import LATER, LINE, OUTPUT_FIELDS
from streamjoin.model.binding import TimePlan
from streamjoin.windows.store import SideStore

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


@dataclass(frozen=True)
class OutputSource:
    """A column of the result: gathered by the kernel where it has numbers, by Arrow otherwise."""

    name: str
    side: int
    width: int
    numbers: tuple[int, int, int, int] | None
    """As `kernels.rows` reads them."""


class ResultForm:
    """What the kernel gathers and what Arrow does; it changes when a column gets its first NULL."""

    def __init__(
        self,
        outputs: Sequence[OutputSource],
        schema: pa.Schema,
        stores: tuple[SideStore, SideStore],
        time: TimePlan | None,
    ) -> None:
        self.nullable = stores[0].nullable, stores[1].nullable
        # The kernel takes the later one of two times as numbers, which NULL is not.
        null_times = time is not None and (stores[0].has_nulls(time.left) or stores[1].has_nulls(time.right))
        gathered = []
        self.others: list[tuple[int, OutputSource]] = []
        for place, output in enumerate(outputs):
            if output.numbers is None or (output.side == LATER and null_times):
                self.others.append((place, output))
            else:
                gathered.append((place, output))
        self.numbers = np.array([output.numbers for _, output in gathered], np.int64).reshape(-1, OUTPUT_FIELDS)
        self.message: ResultMessage | None = None
        if gathered:
            self.message = ResultMessage(pa.schema([schema.field(place) for place, _ in gathered], schema.metadata))
        self._bitmaps = sum(
            output.side != LATER and stores[output.side].has_nulls(output.name) for _, output in gathered
        )
        self._row_size = sum(output.width for _, output in gathered)
        header = 0 if self.message is None else 8 * self.message.header.size
        # Each column and each bitmap may end up to a line later, and a bitmap takes a byte for 8 rows.
        self._fixed_size = header + LINE * (len(gathered) + 2 * self._bitmaps)

    def size(self, n: int) -> int:
        """Bytes that hold the message of `n` rows."""
        return self._fixed_size + n * self._row_size + n * self._bitmaps // 8


def later_time(both: list[pa.Array], type_: pa.DataType) -> pa.Array:
    """The time of result rows: the later one of their two times, as `type_`."""
    # As integers: Arrow has no such function for timestamps with a time zone.
    number = type_ if pa.types.is_integer(type_) else pa.int32() if type_.bit_width == 32 else pa.int64()
    cast = [a if a.type == type_ else a.cast(type_, safe=False) for a in both]
    latest = pc.max_element_wise(*(a.view(number) for a in cast))
    for times, finer in zip(both, cast, strict=True):
        if finer is not times:
            # The year 9999 is out of range for nanoseconds: NULL rather than a wrong time.
            unchanged = pc.equal(finer.cast(times.type, safe=False), times).fill_null(True)
            latest = pc.if_else(unchanged, latest, pa.scalar(None, number))
    return latest.view(type_)
