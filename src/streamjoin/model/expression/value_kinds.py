"""The kinds of values in a condition, and which kinds compare and combine: the typing rules.

Type checking and evaluation both use these rules, so they can't disagree. Exact kinds are
integers with a scale: the value is ``data / 10**scale``, in units of 1 or of a second.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from streamjoin.model.durations import DECIMALS
from streamjoin.model.plain_types import storage_type


class ValueKind(enum.Enum):
    """The kinds of value, with their names in messages."""

    NULL = "NULL"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    DECIMAL = "decimal"
    NUMERAL = "number literal"
    """A number written with a point: exact beside a decimal, float64 beside anything else."""
    FLOAT = "float"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp without time zone"
    INSTANT = "timestamp with time zone"
    INTERVAL = "interval"


NUMBERS: Final = frozenset({ValueKind.INTEGER, ValueKind.DECIMAL, ValueKind.NUMERAL, ValueKind.FLOAT})
EXACT: Final = frozenset(
    {
        ValueKind.INTEGER,
        ValueKind.DECIMAL,
        ValueKind.NUMERAL,
        ValueKind.DATE,
        ValueKind.TIMESTAMP,
        ValueKind.INSTANT,
        ValueKind.INTERVAL,
    }
)
_WALL_CLOCK: Final = frozenset({ValueKind.DATE, ValueKind.TIMESTAMP})


def common_kind(kinds: Iterable[ValueKind]) -> ValueKind | None:
    """The kind in which these values compare, or None if they don't."""
    distinct = set(kinds) - {ValueKind.NULL}
    if not distinct:
        return ValueKind.NULL
    if distinct <= NUMBERS:
        if ValueKind.FLOAT in distinct:
            return ValueKind.FLOAT
        if ValueKind.DECIMAL in distinct:
            return ValueKind.DECIMAL
        return ValueKind.FLOAT if ValueKind.NUMERAL in distinct else ValueKind.INTEGER
    if distinct == _WALL_CLOCK:
        return ValueKind.TIMESTAMP
    return distinct.pop() if len(distinct) == 1 else None


def arithmetic_kind(operator: str, left: ValueKind, right: ValueKind) -> ValueKind | None:
    """The kind of ``left operator right``, or None if there is no such operation."""
    if {left, right} <= NUMBERS | {ValueKind.NULL}:
        return ValueKind.FLOAT if operator == "/" else common_kind((left, right))
    if operator == "*":
        scalable = {left, right} <= {ValueKind.INTERVAL, ValueKind.INTEGER, ValueKind.NULL} and left is not right
        return ValueKind.INTERVAL if scalable else None
    if operator not in "+-":
        return None
    span = (ValueKind.INTERVAL, ValueKind.NULL)
    if left in span and right in span:
        return ValueKind.INTERVAL
    if right in span:
        return _moved(left)
    if left in span:
        return _moved(right) if operator == "+" else None
    if operator == "-" and ({left, right} <= _WALL_CLOCK or left is right is ValueKind.INSTANT):
        return ValueKind.INTERVAL
    return None


def _moved(moment: ValueKind) -> ValueKind | None:
    return {
        ValueKind.DATE: ValueKind.TIMESTAMP,
        ValueKind.TIMESTAMP: ValueKind.TIMESTAMP,
        ValueKind.INSTANT: ValueKind.INSTANT,
    }.get(moment)


def negative_kind(operand: ValueKind) -> ValueKind | None:
    """The kind of ``-operand``."""
    return operand if operand in NUMBERS or operand in (ValueKind.INTERVAL, ValueKind.NULL) else None


def arrow_kind(type_: pa.DataType) -> tuple[ValueKind, int] | None:
    """The kind and scale of a column of this Arrow type; None if a condition can't use it."""
    types = pa.types
    type_ = storage_type(type_)
    if types.is_dictionary(type_):
        return arrow_kind(type_.value_type)
    if types.is_decimal(type_):
        return ValueKind.DECIMAL, max(0, type_.scale)
    if types.is_timestamp(type_):
        return (ValueKind.TIMESTAMP if type_.tz is None else ValueKind.INSTANT), DECIMALS[type_.unit]
    if types.is_duration(type_):
        return ValueKind.INTERVAL, DECIMALS[type_.unit]
    for matches, kind in (
        (types.is_null, ValueKind.NULL),
        (types.is_boolean, ValueKind.BOOLEAN),
        (types.is_integer, ValueKind.INTEGER),
        (types.is_floating, ValueKind.FLOAT),
        (types.is_string, ValueKind.STRING),
        (types.is_large_string, ValueKind.STRING),
        (types.is_string_view, ValueKind.STRING),
        (types.is_binary, ValueKind.BINARY),
        (types.is_large_binary, ValueKind.BINARY),
        (types.is_binary_view, ValueKind.BINARY),
        (types.is_fixed_size_binary, ValueKind.BINARY),
        (types.is_date, ValueKind.DATE),
    ):
        if matches(type_):
            return kind, 0
    return None


def result_type(kind: ValueKind, scale: int) -> pa.DataType:
    """The Arrow type of a computed kind; always int64 for integers."""
    if kind is ValueKind.DECIMAL:
        return pa.decimal128(38, scale) if scale <= 38 else pa.decimal256(76, min(scale, 76))
    unit = next((unit for unit, limit in DECIMALS.items() if scale <= limit), "ns")
    return {
        ValueKind.NULL: pa.null(),
        ValueKind.BOOLEAN: pa.bool_(),
        ValueKind.INTEGER: pa.int64(),
        ValueKind.NUMERAL: pa.float64(),
        ValueKind.FLOAT: pa.float64(),
        ValueKind.STRING: pa.string(),
        ValueKind.BINARY: pa.binary(),
        ValueKind.DATE: pa.date32(),
        ValueKind.TIMESTAMP: pa.timestamp(unit),
        ValueKind.INSTANT: pa.timestamp(unit, "UTC"),
        ValueKind.INTERVAL: pa.duration(unit),
    }[kind]
