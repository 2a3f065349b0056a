"""The least and greatest values of a data file's columns, as a Delta commit has them for readers that skip files.

The invariant: bounds are never tighter than the values. And each column that has a value has bounds: readers differ in
what they make of a file without them, and some would skip it.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_LONGEST: Final = 32
_LAST: Final = chr(sys.maxunicode)


class ColumnBounds:
    """What is known of the columns of some tables, part by part."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = [column.name for column in schema if _has_bounds(column.type)]
        self._ends: dict[str, tuple[Any, Any]] = {}
        self.nulls: dict[str, int] = dict.fromkeys(self._names, 0)

    def add(self, rows: pa.Table) -> None:
        """Take in rows."""
        for name in self._names:
            column = rows.column(name)
            self.nulls[name] += column.null_count
            least, greatest = pc.min_max(column).as_py().values()
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                # NaN is less and greater than nothing, or greater than all: that depends on the reader.
                least, greatest = -math.inf, math.inf
            if least is not None:
                known = self._ends.get(name, (least, greatest))
                self._ends[name] = min(known[0], least), max(known[1], greatest)

    def ends(self) -> dict[str, tuple[Any, Any]]:
        """The bounds, as JSON has them."""
        return {name: (_below(least), _above(greatest)) for name, (least, greatest) in self._ends.items()}


def _has_bounds(type_: pa.DataType) -> bool:
    types = pa.types
    plain = types.is_boolean(type_) or types.is_integer(type_) or types.is_floating(type_) or types.is_string(type_)
    return bool(plain or types.is_date(type_) or types.is_timestamp(type_) or types.is_decimal(type_))


def _below(value: Any) -> Any:
    """A JSON value that is not greater."""
    if isinstance(value, float):
        return max(value, -sys.float_info.max)
    if isinstance(value, Decimal):
        return math.nextafter(float(value), -math.inf)
    return value[:_LONGEST] if isinstance(value, str) else _moment(value)


def _above(value: Any) -> Any:
    """A JSON value that is not less."""
    if isinstance(value, float):
        return min(value, sys.float_info.max)
    if isinstance(value, Decimal):
        return math.nextafter(float(value), math.inf)
    if isinstance(value, str) and len(value) > _LONGEST and value[_LONGEST] != _LAST:
        return value[:_LONGEST] + _LAST
    return _moment(value)


def _moment(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        text = value.isoformat(timespec="microseconds")
        return f"{text.removesuffix('+00:00')}Z" if value.tzinfo is not None else text
    return value.isoformat() if isinstance(value, dt.date) else value
