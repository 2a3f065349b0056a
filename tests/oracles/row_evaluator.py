"""Row-at-a-time evaluation in plain Python: slow, and independent of the engine's evaluation.

The Python type of a value determines its kind: bool, int, float, Fraction (a decimal), Decimal (a number
literal with a point), str, bytes, Moment and TimeSpan (exact seconds). None is NULL, and NaN never appears.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from streamjoin.model.expression import nodes as x

_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, order=True)
class Moment:
    """A date or timestamp, in seconds since 1970."""

    seconds: Fraction


@dataclass(frozen=True, order=True)
class TimeSpan:
    """A length of time in seconds."""

    seconds: Fraction


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as values of this module."""
    columns = [[_cell(value) for value in column] for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _cell(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    type_ = scalar.type
    if pa.types.is_dictionary(type_):
        return _cell(scalar.dictionary[scalar.index.as_py()])
    if pa.types.is_date32(type_):
        return Moment(Fraction(scalar.value * 86_400))
    if pa.types.is_date64(type_):
        return Moment(Fraction(scalar.value // 86_400_000 * 86_400))
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        kind = TimeSpan if pa.types.is_duration(type_) else Moment
        return kind(Fraction(scalar.value, _TICKS[type_.unit]))
    return plain(scalar.as_py())


def plain(value: Any) -> Any:
    """A Python value as this module represents it: a Decimal is a Fraction, and NaN is NULL."""
    if isinstance(value, Decimal):
        return Fraction(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def as_type(value: Any, type_: pa.DataType) -> Any:
    """A value as a column of this type stores it."""
    if value is None or not pa.types.is_floating(type_):
        return plain(value)
    return _to_float(value)


_COMPARE = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def evaluate_row(node: x.Expression, row: Mapping[x.Column, Any]) -> Any:
    """The value of an expression for one row."""
    match node:
        case x.Column():
            return row[node]
        case x.Literal():
            return node.value
        case x.Date():
            return Moment(Fraction(node.days * 86_400))
        case x.Timestamp():
            return Moment(Fraction(node.nanoseconds, 10**9))
        case x.Interval():
            return TimeSpan(Fraction(node.nanoseconds, 10**9))
        case x.And() | x.Or():
            return _chain(isinstance(node, x.Or), [evaluate_row(term, row) for term in node.terms])
        case x.Not():
            value = evaluate_row(node.operand, row)
            return None if value is None else not value
        case x.IsNull():
            return evaluate_row(node.operand, row) is None
        case x.IsTruth():
            return evaluate_row(node.operand, row) is node.value
        case x.Compare():
            return _compare(node.operator, evaluate_row(node.left, row), evaluate_row(node.right, row))
        case x.Between():
            value = evaluate_row(node.operand, row)
            low = _compare(">=", value, evaluate_row(node.low, row))
            return _chain(False, [low, _compare("<=", value, evaluate_row(node.high, row))])
        case x.In():
            value = evaluate_row(node.operand, row)
            return _chain(True, [_compare("=", value, evaluate_row(choice, row)) for choice in node.choices])
        case x.Like():
            value = evaluate_row(node.operand, row)
            return None if value is None else _like(value, node)
        case x.Negative():
            value = evaluate_row(node.operand, row)
            return None if value is None else TimeSpan(-value.seconds) if isinstance(value, TimeSpan) else -value
        case x.Arithmetic():
            return _arithmetic(node.operator, evaluate_row(node.left, row), evaluate_row(node.right, row))
        case x.Case():
            for condition, value in node.branches:
                if evaluate_row(condition, row) is True:
                    return evaluate_row(value, row)
            return evaluate_row(node.default, row)
        case x.Function():
            return _function(node.name, [evaluate_row(argument, row) for argument in node.arguments])
    raise AssertionError(node)


def _chain(decisive: bool, values: list[Any]) -> bool | None:
    if any(value is decisive for value in values):
        return decisive
    return None if any(value is None for value in values) else not decisive


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _pair(left: Any, right: Any) -> tuple[Any, Any]:
    if isinstance(left, int | float | Fraction | Decimal) and not isinstance(left, bool):
        kinds = {type(left), type(right)}
        if float in kinds or (Decimal in kinds and Fraction not in kinds):
            return _to_float(left), _to_float(right)
        if Fraction in kinds:
            return Fraction(left), Fraction(right)
    return left, right


def _compare(symbol: str, left: Any, right: Any) -> bool | None:
    if "DISTINCT" in symbol:
        same = left is right if left is None or right is None else operator.eq(*_pair(left, right))
        return same if "NOT" in symbol else not same
    if left is None or right is None:
        return None
    return bool(_COMPARE[symbol](*_pair(left, right)))


def _remainder(left: Any, right: Any) -> Any:
    if isinstance(left, float):
        return math.nan if math.isinf(left) else math.fmod(left, right)
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _arithmetic(symbol: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    if isinstance(left, Moment | TimeSpan) or isinstance(right, Moment | TimeSpan):
        return _times(symbol, left, right)
    left, right = _pair(left, right)
    if symbol == "/":
        left, right = _to_float(left), _to_float(right)
    if symbol in "/%" and right == 0:
        return None
    operations = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": _remainder}
    value = operations[symbol](left, right)
    return None if isinstance(value, float) and math.isnan(value) else value


def _times(symbol: str, left: Any, right: Any) -> Any:
    if symbol == "*":
        number, span = (left, right) if isinstance(right, TimeSpan) else (right, left)
        return TimeSpan(number * span.seconds)
    seconds = left.seconds + right.seconds if symbol == "+" else left.seconds - right.seconds
    return Moment(seconds) if isinstance(left, Moment) != isinstance(right, Moment) else TimeSpan(seconds)


def _like(text: str, node: x.Like) -> bool:
    pattern, escape = node.pattern, node.escape
    if node.ignore_case:
        text, pattern = text.lower(), pattern.lower()
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == escape:
        return text[:1] == rest[0] and _like(text[1:], x.Like(node.operand, rest[1:], escape))
    shorter = x.Like(node.operand, rest, escape)
    if head == "%":
        return any(_like(text[start:], shorter) for start in range(len(text) + 1))
    return bool(text) and (head == "_" or text[0] == head) and _like(text[1:], shorter)


def _function(name: str, values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    if name in ("COALESCE", "LEAST", "GREATEST"):
        if not known:
            return None
        return known[0] if name == "COALESCE" else min(known) if name == "LEAST" else max(known)
    if len(known) < len(values):
        return None
    value = values[0]
    if name == "ABS":
        return TimeSpan(abs(value.seconds)) if isinstance(value, TimeSpan) else abs(value)
    if name in ("LOWER", "UPPER"):
        return value.lower() if name == "LOWER" else value.upper()
    if name == "LENGTH":
        return len(value)
    if name == "POWER":
        return _power(_to_float(value), _to_float(values[1]))
    if name == "SQRT":
        number = _to_float(value)
        return math.sqrt(number) if number >= 0 else None
    if isinstance(value, float) and math.isinf(value):
        return value
    whole = math.floor(value) if name == "FLOOR" else math.ceil(value) if name == "CEIL" else _half_away(value)
    return type(value)(whole)


def _power(base: float, exponent: float) -> float | None:
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and exponent % 2 == 1 else math.inf
    except ValueError:
        return math.inf if base == 0 else None


def _half_away(value: Any) -> int:
    exact = Fraction(value)
    whole = math.floor(abs(exact) + Fraction(1, 2))
    return -whole if exact < 0 else whole
