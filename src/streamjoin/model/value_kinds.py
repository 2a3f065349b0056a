"""What the values of a condition are, and which kinds compare and combine: the one table of typing rules.

Checking a condition against schemas and evaluating it both ask here, so they can't disagree. Exact kinds are
integers with a scale: the value is ``data / 10**scale``, in units of 1 or of a second.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from streamjoin.model.plain_types import storage_type
from streamjoin.model.time_units import DECIMALS


class Kind(enum.Enum):
    """The sorts of value; the text is what messages call them."""

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


NUMBERS: Final = frozenset({Kind.INTEGER, Kind.DECIMAL, Kind.NUMERAL, Kind.FLOAT})
EXACT: Final = frozenset(
    {Kind.INTEGER, Kind.DECIMAL, Kind.NUMERAL, Kind.DATE, Kind.TIMESTAMP, Kind.INSTANT, Kind.INTERVAL}
)
_WALL_CLOCK: Final = frozenset({Kind.DATE, Kind.TIMESTAMP})


def common_kind(kinds: Iterable[Kind]) -> Kind | None:
    """The kind in which these values compare, or None if they don't."""
    found = set(kinds) - {Kind.NULL}
    if not found:
        return Kind.NULL
    if found <= NUMBERS:
        if Kind.FLOAT in found:
            return Kind.FLOAT
        if Kind.DECIMAL in found:
            return Kind.DECIMAL
        return Kind.FLOAT if Kind.NUMERAL in found else Kind.INTEGER
    if found == _WALL_CLOCK:
        return Kind.TIMESTAMP
    return found.pop() if len(found) == 1 else None


def arithmetic_kind(operator: str, left: Kind, right: Kind) -> Kind | None:
    """The kind of ``left operator right``, or None if there is no such operation."""
    if {left, right} <= NUMBERS | {Kind.NULL}:
        return Kind.FLOAT if operator == "/" else common_kind((left, right))
    if operator == "*":
        scalable = {left, right} <= {Kind.INTERVAL, Kind.INTEGER, Kind.NULL} and left is not right
        return Kind.INTERVAL if scalable else None
    if operator not in "+-":
        return None
    span = (Kind.INTERVAL, Kind.NULL)
    if left in span and right in span:
        return Kind.INTERVAL
    if right in span:
        return _moved(left)
    if left in span:
        return _moved(right) if operator == "+" else None
    if operator == "-" and ({left, right} <= _WALL_CLOCK or left is right is Kind.INSTANT):
        return Kind.INTERVAL
    return None


def _moved(moment: Kind) -> Kind | None:
    return {Kind.DATE: Kind.TIMESTAMP, Kind.TIMESTAMP: Kind.TIMESTAMP, Kind.INSTANT: Kind.INSTANT}.get(moment)


def negative_kind(operand: Kind) -> Kind | None:
    """The kind of ``-operand``."""
    return operand if operand in NUMBERS or operand in (Kind.INTERVAL, Kind.NULL) else None


def function_kind(name: str, arguments: Sequence[Kind]) -> Kind | None:
    """The kind of a call, or None if the function does not take such arguments."""
    if name in ("COALESCE", "LEAST", "GREATEST"):
        return common_kind(arguments)
    if name == "ABS":
        return negative_kind(arguments[0])
    takes = {Kind.STRING} if name in ("LOWER", "UPPER", "LENGTH") else NUMBERS
    if not set(arguments) <= takes | {Kind.NULL}:
        return None
    if name in ("LOWER", "UPPER"):
        return Kind.STRING
    if name == "LENGTH":
        return Kind.INTEGER
    if name in ("SQRT", "POWER"):
        return Kind.FLOAT
    return {Kind.NUMERAL: Kind.FLOAT, Kind.NULL: Kind.INTEGER}.get(arguments[0], arguments[0])


def arrow_kind(type_: pa.DataType) -> tuple[Kind, int] | None:
    """The kind and scale of a column of this Arrow type; None if a condition can't use it."""
    types = pa.types
    type_ = storage_type(type_)
    if types.is_dictionary(type_):
        return arrow_kind(type_.value_type)
    if types.is_decimal(type_):
        return Kind.DECIMAL, max(0, type_.scale)
    if types.is_timestamp(type_):
        return (Kind.TIMESTAMP if type_.tz is None else Kind.INSTANT), DECIMALS[type_.unit]
    if types.is_duration(type_):
        return Kind.INTERVAL, DECIMALS[type_.unit]
    for matches, kind in (
        (types.is_null, Kind.NULL),
        (types.is_boolean, Kind.BOOLEAN),
        (types.is_integer, Kind.INTEGER),
        (types.is_floating, Kind.FLOAT),
        (types.is_string, Kind.STRING),
        (types.is_large_string, Kind.STRING),
        (types.is_string_view, Kind.STRING),
        (types.is_binary, Kind.BINARY),
        (types.is_large_binary, Kind.BINARY),
        (types.is_binary_view, Kind.BINARY),
        (types.is_fixed_size_binary, Kind.BINARY),
        (types.is_date, Kind.DATE),
    ):
        if matches(type_):
            return kind, 0
    return None


def result_type(kind: Kind, scale: int) -> pa.DataType:
    """The Arrow type that stands for a computed kind; int64 for integers, however large they may grow."""
    if kind is Kind.DECIMAL:
        return pa.decimal128(38, scale) if scale <= 38 else pa.decimal256(76, min(scale, 76))
    unit = next((unit for unit, limit in DECIMALS.items() if scale <= limit), "ns")
    return {
        Kind.NULL: pa.null(),
        Kind.BOOLEAN: pa.bool_(),
        Kind.INTEGER: pa.int64(),
        Kind.NUMERAL: pa.float64(),
        Kind.FLOAT: pa.float64(),
        Kind.STRING: pa.string(),
        Kind.BINARY: pa.binary(),
        Kind.DATE: pa.date32(),
        Kind.TIMESTAMP: pa.timestamp(unit),
        Kind.INSTANT: pa.timestamp(unit, "UTC"),
        Kind.INTERVAL: pa.duration(unit),
    }[kind]
