"""What a caller pushes into a stream, checked before it reaches a batch: columns, types, times."""

from __future__ import annotations

import numbers

import pyarrow as pa

from streamjoin.adhoc.language.plan import Stream
from streamjoin.joins.engine.inputs import as_table
from streamjoin.joins.engine.lossless import lossless
from streamjoin.model.errors import InputError
from streamjoin.model.plain_types import plain_table
from streamjoin.windows.clock import to_ticks


def as_tuples(stream: Stream, data: object) -> pa.Table:
    """`data` with the columns and types of the stream.

    Raises:
        InputError: it is no table, or a column is missing, unexpected, or would lose a value.
    """
    if isinstance(data, pa.Table) and data.schema.equals(stream.schema):
        return data
    table = as_table(data, f"stream {stream.name!r}", stream.schema.names)
    if not table.num_columns and not table.num_rows:
        return stream.schema.empty_table()
    if table.schema.equals(stream.schema):
        return table
    doubled = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    for what, names in (
        ("have more than one column", doubled),
        ("have no column", [name for name in stream.schema.names if name not in table.column_names]),
        ("have an unexpected column", [name for name in table.column_names if name not in stream.schema.names]),
    ):
        if names:
            raise InputError(
                f"the tuples of stream {stream.name!r} {what} {names[0]!r}; its columns are: "
                f"{', '.join(stream.schema.names)}"
            )
    table = plain_table(table)
    columns = []
    for column in stream.schema:
        cast = lossless(table.column(column.name), column.type)
        if cast is None:
            raise InputError(
                f"column {column.name!r} of stream {stream.name!r} is {column.type}; these tuples have "
                f"{table.schema.field(column.name).type}, which can't be cast without loss: cast it before pushing"
            )
        columns.append(cast)
    return pa.Table.from_arrays(columns, schema=stream.schema)


def as_time(stream: Stream, time: object) -> int:
    """A time of the stream's time column in ticks.

    Raises:
        InputError: it is no such time.
    """
    type_ = stream.time_type
    time = time.as_py() if isinstance(time, pa.Scalar) else time
    try:
        if pa.types.is_integer(type_) and (isinstance(time, bool) or not isinstance(time, numbers.Integral)):
            raise TypeError("it is no whole number")
        column = pa.chunked_array([pa.array([time], type_)])
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise InputError(
            f"{time!r} is no time of stream {stream.name!r}: its time column {stream.time!r} is {type_}"
        ) from error
    ticks, bad = to_ticks(column, stream.tick_ns or 1)
    if bad is not None and bad.any():
        raise InputError(f"{time!r} is no time of stream {stream.name!r}: it is NULL or out of range")
    return int(ticks[0])
