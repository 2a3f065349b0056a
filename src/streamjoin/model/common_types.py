"""The type of a column that has the values of two columns, such as the key of a full join, and casts to it.

The type holds every value of both exactly, or there is none. It is the same whichever of the two comes first:

| types | common type |
|---|---|
| integers, floats | the narrowest that holds both; none for 64-bit integers with floats, or int64 with uint64 |
| decimals, also with integers | the digits of both before and behind the point |
| strings, binaries | the large one; binaries of two widths are binaries |
| timestamps of one unit | UTC, if their zones differ |
| dates, dates with timestamps | the finer one, if its range is not smaller |
| times of day | the finer one |
| extension types of Arrow with others | as their storage |
| a column of NULLs with another | the other's |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.model.plain_types import storage_type, without_extension

_types = pa.types
Rule = Callable[[Any, Any], pa.DataType | None]


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type that holds every value of both types exactly, or None."""
    if left.equals(right):
        return left
    if _types.is_null(left) or _types.is_null(right):
        return right if _types.is_null(left) else left
    left, right = storage_type(left), storage_type(right)
    if left.equals(right):
        return left
    for is_kind, rule in _RULES:
        if is_kind(left) and is_kind(right):
            return rule(left, right)
    return None


def as_type(column: Any, type_: pa.DataType) -> Any:
    """An array or a chunked array in a type that holds its values."""
    if column.type.equals(type_):
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([as_type(chunk, type_) for chunk in column.chunks], type_)
    return without_extension(column).cast(type_)


def either(first: pa.Array, second: pa.Array, type_: pa.DataType) -> pa.Array:
    """The values of `first`, those of `second` where it is NULL, as their common type."""
    # Arrow chooses among values of plain types alone.
    stored = [without_extension(as_type(array, type_)) for array in (first, second)]
    array = pc.coalesce(*stored)
    return type_.wrap_array(array) if isinstance(type_, pa.BaseExtensionType) else array


def _number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    common = np.promote_types(left.to_pandas_dtype(), right.to_pandas_dtype())
    exact = common.kind != "f" or all(_types.is_floating(type_) or type_.bit_width < 64 for type_ in (left, right))
    return pa.from_numpy_dtype(common) if exact else None


def _decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    digits, scales = [], []
    for type_ in (left, right):
        scale = type_.scale if _types.is_decimal(type_) else 0
        digits.append(type_.precision - scale if _types.is_decimal(type_) else _digits(type_))
        scales.append(scale)
    precision = max(digits) + max(scales)
    if precision > 76:
        return None
    return (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, max(scales))


def _digits(integer: pa.DataType) -> int:
    return len(str(np.iinfo(integer.to_pandas_dtype()).max))


def _moment(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Dates and timestamps; a date of 32 bits counts days, one of 64 bits milliseconds."""
    if _types.is_timestamp(left) and _types.is_timestamp(right):
        one_kind = left.unit == right.unit and (left.tz is None) == (right.tz is None)
        return pa.timestamp(left.unit, "UTC") if one_kind else None
    date, other = (left, right) if _types.is_date32(left) or _types.is_timestamp(right) else (right, left)
    if _types.is_date(other):
        return other
    fitting = ("s", "ms") if _types.is_date32(date) else ("ms",)
    return other if other.tz is None and other.unit in fitting else None


def _time_of_day(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    return max(left, right, key=lambda type_: ("s", "ms", "us", "ns").index(type_.unit))


def _is_plain_number(type_: pa.DataType) -> bool:
    return bool(_types.is_integer(type_) or _types.is_floating(type_))


def _is_whole(type_: pa.DataType) -> bool:
    return bool(_types.is_integer(type_) or _types.is_decimal(type_))


def _is_moment(type_: pa.DataType) -> bool:
    return bool(_types.is_date(type_) or _types.is_timestamp(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(_types.is_string(type_) or _types.is_large_string(type_))


def _is_binary(type_: pa.DataType) -> bool:
    large = _types.is_large_binary(type_) or _types.is_binary(type_)
    return bool(large or _types.is_fixed_size_binary(type_))


def _bytes(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    return pa.large_binary() if pa.large_binary() in (left, right) else pa.binary()


_RULES: Final[tuple[tuple[Callable[[pa.DataType], bool], Rule], ...]] = (
    (_is_plain_number, _number),
    (_is_whole, _decimal),
    (_is_text, lambda _, __: pa.large_string()),
    (_is_binary, _bytes),
    (_is_moment, _moment),
    (_types.is_time, _time_of_day),
)
