"""The values of CAST and TRY_CAST; NULL where a value has none of the type."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression.calculation import rescale, to_float
from streamjoin.model.expression.cast_types import CastType
from streamjoin.model.expression.literals import (
    DAY,
    FIRST_DAY,
    LAST_DAY,
    format_date,
    format_timestamp,
    parse_timestamp,
)
from streamjoin.model.expression.value_kinds import ValueKind
from streamjoin.model.expression.values import DAY_SECONDS, FILLERS, Values, all_null, both_valid

_WHOLE_TEXT: Final = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_NUMBER_TEXT: Final = re.compile(
    r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?|inf(?:inity)?)", re.ASCII | re.I
)
_TRUTHS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
_EXACT: Final = Context(prec=500)


def cast(value: Values, target: CastType) -> Values:
    """The values as those of another type, NULL where there is none."""
    if value.kind is ValueKind.NULL:
        return all_null(target.kind, value.shape, target.scale)
    return _WAYS[target.kind](value, target)


def _mapped(value: Values, function: Callable[[Any], Any], kind: ValueKind, scale: int = 0) -> Values:
    """What a function gives for each value; None is NULL."""
    filler, dtype = FILLERS.get(kind, (0, np.int64))
    found = [function(one) for one in value.data.ravel().tolist()]
    there = np.fromiter((one is not None for one in found), np.bool_, len(found)).reshape(value.shape)
    known = [filler if one is None else one for one in found]
    return Values(_array(known, dtype).reshape(value.shape), both_valid(value.valid, there), kind, scale)


def _array(values: list[Any], dtype: Any) -> Array:
    if dtype is np.int64 and any(not -(1 << 63) <= value < 1 << 63 for value in values):
        dtype = object
    return np.fromiter(values, dtype, len(values))


def _only(value: Values, there: Array) -> Values:
    """The values that are there; the others are NULL, and 0."""
    return replace(value, data=np.where(there, value.data, 0), valid=both_valid(value.valid, there), known_bounds=None)


# Numbers ----------------------------------------------------------------------------------------------------------


def _to_whole(value: Values, target: CastType) -> Values:
    low, high = -(1 << target.bits - 1), (1 << target.bits - 1) - 1
    if value.kind is ValueKind.BOOLEAN:
        return Values(value.data.astype(np.int64), value.valid)
    if value.kind is ValueKind.INTEGER and target.kind in target.always:
        return value
    if value.kind is ValueKind.STRING:
        value = _mapped(value, _whole_of, ValueKind.INTEGER)
    elif value.kind is ValueKind.FLOAT:
        # A half goes to the even neighbour; the ends are tested as floats, where the upper one is no int64.
        nearest = np.rint(value.data)
        there = (nearest >= float(low)) & (nearest < float(high + 1))
        whole = np.where(there, nearest, 0.0).astype(np.int64)
        return Values(whole, both_valid(value.valid, there))
    elif value.scale:
        value = _to_scale(value, 0)
    kept = _only(replace(value, kind=ValueKind.INTEGER), (value.data >= low) & (value.data <= high))
    return replace(kept, data=kept.data.astype(np.int64))


def _whole_of(text: str) -> int | None:
    text = text.strip()
    return int(text) if _WHOLE_TEXT.fullmatch(text) else None


def _to_scale(value: Values, scale: int) -> Values:
    """A decimal with a number of digits after the point; halves are rounded away from zero."""
    if value.scale <= scale:
        return rescale(value, scale)
    power = 10 ** (value.scale - scale)
    data = value.data.astype(object)
    whole = (2 * abs(data) + power) // (2 * power)
    return Values(np.where(data < 0, -whole, whole), value.valid, value.kind, scale)


def _to_decimal(value: Values, target: CastType) -> Values:
    if value.kind in (ValueKind.FLOAT, ValueKind.STRING):
        value = _mapped(value, lambda one: _decimal_of(one, target), ValueKind.DECIMAL, target.scale)
    limit = 10**target.digits
    value = replace(_to_scale(value, target.scale), kind=ValueKind.DECIMAL)
    return _only(value, (value.data < limit) & (value.data > -limit))


def _decimal_of(number: float | str, target: CastType) -> int | None:
    text = number.strip() if isinstance(number, str) else repr(number)
    if not _NUMBER_TEXT.fullmatch(text) or "inf" in text.lower():
        return None
    exact = Decimal(text)
    if exact and exact.adjusted() > target.digits:
        return None
    scaled = exact.scaleb(target.scale, _EXACT)
    return int(scaled.to_integral_value(ROUND_HALF_UP))


def _to_float(value: Values, target: CastType) -> Values:
    if value.kind is ValueKind.BOOLEAN:
        value = Values(value.data.astype(np.float64), value.valid, ValueKind.FLOAT)
    elif value.kind is ValueKind.STRING:
        value = _mapped(value, _float_of, ValueKind.FLOAT)
    value = to_float(value)
    if target.bits == 64:
        return value
    with np.errstate(over="ignore", under="ignore"):
        narrow = value.data.astype(np.float32).astype(np.float64)
    there = np.isfinite(narrow) | ~np.isfinite(value.data)
    return _only(replace(value, data=narrow), there)


def _float_of(text: str) -> float | None:
    text = text.strip()
    return float(text) if _NUMBER_TEXT.fullmatch(text) else None


def _to_truth(value: Values, target: CastType) -> Values:
    if value.kind is ValueKind.STRING:
        return _mapped(value, lambda text: _TRUTHS.get(text.strip().lower()), target.kind)
    return Values(np.asarray(value.data != 0, np.bool_), value.valid, target.kind)


# Times ------------------------------------------------------------------------------------------------------------


def _to_moment(value: Values, target: CastType) -> Values:
    if value.kind is ValueKind.STRING:
        return _mapped(value, _microseconds_of, target.kind, target.scale_from(value.kind, 0))
    return replace(value, kind=target.kind)


def _to_date(value: Values, target: CastType) -> Values:
    if value.kind is ValueKind.STRING:
        value = _to_moment(value, replace(target, kind=ValueKind.TIMESTAMP))
    days = value.data // (DAY_SECONDS * 10**value.scale)
    return Values(days * DAY_SECONDS, value.valid, target.kind)


def _microseconds_of(text: str) -> int | None:
    with suppress(ExpressionError):
        return parse_timestamp(text)[0] // 1000
    return None


# Texts ------------------------------------------------------------------------------------------------------------


def _to_text(value: Values, target: CastType) -> Values:
    if value.kind is ValueKind.STRING:
        return value
    return _mapped(value, _writer(value), target.kind)


def _writer(value: Values) -> Callable[[Any], str | None]:
    if value.kind is ValueKind.BOOLEAN:
        return lambda one: "true" if one else "false"
    if value.kind is ValueKind.FLOAT:
        return repr
    if value.kind in (ValueKind.INTEGER, ValueKind.DECIMAL, ValueKind.NUMERAL):
        scale = value.scale
        return lambda one: format(Decimal(one).scaleb(-scale, _EXACT), "f")
    return lambda one: _moment_text(value.kind, one, 10**value.scale)


def _moment_text(kind: ValueKind, data: int, power: int) -> str | None:
    day = data // (DAY_SECONDS * power)
    if not FIRST_DAY <= day <= LAST_DAY:
        return None
    if kind is ValueKind.DATE:
        return format_date(day)
    text = format_timestamp(data * (DAY // DAY_SECONDS) // power)
    return text + "+00" if kind is ValueKind.INSTANT else text


_WAYS: Final[dict[ValueKind, Callable[[Values, CastType], Values]]] = {
    ValueKind.BOOLEAN: _to_truth,
    ValueKind.INTEGER: _to_whole,
    ValueKind.DECIMAL: _to_decimal,
    ValueKind.FLOAT: _to_float,
    ValueKind.STRING: _to_text,
    ValueKind.DATE: _to_date,
    ValueKind.TIMESTAMP: _to_moment,
    ValueKind.INSTANT: _to_moment,
}
