"""The JSON encoding of values, rows and records: one rule for REST, Kafka, the command line and files.

- Integers beyond 2^53, decimals, NaN and infinities are strings: many JSON readers round or reject them.
- Dates, times and timestamps are ISO 8601 strings. A timestamp with a time zone is in UTC and ends with `Z`.
- A duration is its number of seconds.
- Binary values are base64 strings.
- Lists are arrays, structs are objects, NULL is null.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import json
import math
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

_EXACT: Final = (1 << 53) - 1


def plain(value: Any) -> Any:
    """A value as JSON represents it.

    >>> plain([1 << 60, float("nan"), decimal.Decimal("1.50"), b"x", None])
    ['1152921504606846976', 'NaN', '1.50', 'eA==', None]
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if -_EXACT <= value <= _EXACT else str(value)
    if isinstance(value, float):
        return (
            value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return plain(value.item()) if hasattr(value, "item") else str(value)


def rows(table: pa.Table) -> list[list[Any]]:
    """A table's rows."""
    columns = [column_values(column) for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)] if columns else []


def row_texts(table: pa.Table) -> list[str]:
    """Each row as a JSON object in one line.

    >>> row_texts(pa.table({"a": [1, None], "b": [b"x", b""]}))
    ['{"a":1,"b":"eA=="}', '{"a":null,"b":""}']
    """
    names = table.column_names
    return [text(dict(zip(names, row, strict=True))) for row in rows(table)]


def flat(table: pa.Table) -> pa.Table:
    """A table whose columns CSV can hold: others are written as in JSON."""
    for index, field in enumerate(table.schema):
        plain = pa.types.is_string(field.type) or pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)
        if not plain and not pa.types.is_floating(field.type):
            values = column_values(table.column(index))
            texts = [value if value is None or isinstance(value, str) else text(value) for value in values]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    return table


def column_values(column: pa.ChunkedArray) -> list[Any]:
    """A column's values."""
    type_ = column.type
    if pa.types.is_timestamp(type_):
        # Python's times have microseconds; Arrow prints nanoseconds too.
        zone = "" if type_.tz is None else "Z"
        texts = column.cast(pa.timestamp(type_.unit)).cast(pa.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T") + zone for text in texts]
    values = column.to_pylist()
    if pa.types.is_string(type_) or pa.types.is_boolean(type_) or (pa.types.is_integer(type_) and type_.bit_width < 64):
        return list(values)
    return [plain(value) for value in values]


def columns(table: pa.Table) -> list[list[str]]:
    """The names and types of a table's columns."""
    return [[field.name, str(field.type)] for field in table.schema]


def text(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value, separators=(",", ":"))
