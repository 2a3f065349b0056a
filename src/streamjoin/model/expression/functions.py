"""The functions a condition may call, over values; `signatures` says what they take and give.

A NULL argument gives NULL, except that COALESCE, LEAST, GREATEST and CONCAT leave NULLs out. No function fails on a
value: what has no result, such as LN of -1, is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.errors import SchemaError
from streamjoin.model.expression.calculation import absolute, rescale, to_float, unify
from streamjoin.model.expression.signatures import FUNCTIONS, function_kind
from streamjoin.model.expression.text_functions import TEXT_FUNCTIONS, constant
from streamjoin.model.expression.time_functions import TIME_FUNCTIONS
from streamjoin.model.expression.value_kinds import ValueKind
from streamjoin.model.expression.values import INT64, Bounds, Mask, Values, all_null, both_valid, from_floats

_Step = Callable[[Array, Array, int], Mask]


def call(name: str, arguments: Sequence[Values]) -> Values:
    """The value of a function of ``expression.FUNCTIONS``.

    Raises:
        SchemaError: the function does not take such arguments.
    """
    kind = function_kind(name, [argument.kind for argument in arguments])
    if kind is None:
        kinds = ", ".join(argument.kind.value for argument in arguments)
        raise SchemaError(f"{name} can't take {kinds}")
    if name in _CHOICES:
        return reduce(_CHOICES[name], unify(arguments))
    if not FUNCTIONS[name].skips_null and any(argument.kind is ValueKind.NULL for argument in arguments):
        return all_null(kind, np.broadcast_shapes(*(argument.shape for argument in arguments)))
    return _PLAIN[name](*arguments)


def choose(condition: Mask, chosen: Values, other: Values) -> Values:
    """``chosen`` where the condition holds, else ``other``; both of one kind, scale and dtype."""
    valid: Mask | None = None
    if chosen.valid is not None or other.valid is not None:
        masks = [np.True_ if value.valid is None else value.valid for value in (chosen, other)]
        valid = np.where(condition, *masks)
    bounds: Bounds | None = None
    if chosen.known_bounds and other.known_bounds:
        (low, high), (low2, high2) = chosen.known_bounds, other.known_bounds
        bounds = min(low, low2), max(high, high2)
    return replace(chosen, data=np.where(condition, chosen.data, other.data), valid=valid, known_bounds=bounds)


def coalesce(first: Values, second: Values) -> Values:
    """``first`` where it is not NULL, else ``second``."""
    return first if first.valid is None else choose(first.valid, first, second)


def _extreme(better: np.ufunc) -> Callable[[Values, Values], Values]:
    def pick(first: Values, second: Values) -> Values:
        takes = better(second.data, first.data)
        if second.valid is not None:
            takes = takes & second.valid
        if first.valid is not None:
            takes = takes | ~first.valid
        return choose(takes, second, first)

    return pick


def _float(function: Callable[[Array], Array]) -> Callable[[Values], Values]:
    """A function of floats; what is no number is NULL."""

    def calculated(value: Values) -> Values:
        number = to_float(value)
        with np.errstate(all="ignore"):
            return from_floats(function(number.data), number.valid)

    return calculated


def _float_of_two(function: Callable[[Array, Array], Array]) -> Callable[[Values, Values], Values]:
    def calculated(first: Values, second: Values) -> Values:
        left, right = to_float(first), to_float(second)
        with np.errstate(all="ignore"):
            return from_floats(function(left.data, right.data), both_valid(left.valid, right.valid))

    return calculated


def _sign(value: Values) -> Values:
    return Values((value.data > 0).astype(np.int64) - (value.data < 0), value.valid, ValueKind.INTEGER)


def _rounding(whole: Callable[[Array], Array], step: _Step) -> Callable[[Values], Values]:
    """A rounding function, given one for floats and one that says where to round a decimal up."""

    def rounded(value: Values) -> Values:
        if value.kind is ValueKind.INTEGER:
            return value
        if value.kind is ValueKind.DECIMAL:
            return _rounded_decimal(value, step)
        number = to_float(value)
        return Values(whole(number.data), number.valid, ValueKind.FLOAT)

    return rounded


def _rounded_decimal(value: Values, step: _Step) -> Values:
    power = 10**value.scale
    data = value.data if 2 * power <= INT64.max else value.data.astype(object)
    floor = data // power
    up = step(data, data - floor * power, power)
    return Values(floor + up, value.valid, ValueKind.DECIMAL)


def _half_away(data: Array) -> Array:
    whole = np.trunc(data)
    with np.errstate(invalid="ignore"):
        up = np.abs(data - whole) >= 0.5
    result: Array = whole + np.where(up, np.sign(data), 0.0)
    return result


def _half_away_step(data: Array, rest: Array, power: int) -> Mask:
    mask: Mask = np.where(data >= 0, 2 * rest >= power, 2 * rest > power)
    return mask


def _round(value: Values, digits: Values | None = None) -> Values:
    """To whole numbers, or to a number of digits after the point, before it if negative; halves away from zero."""
    whole = _rounding(_half_away, _half_away_step)
    if digits is None:
        return whole(value)
    count = int(constant(digits))
    if value.kind in (ValueKind.FLOAT, ValueKind.NUMERAL):
        return _rounded_float(to_float(value), count)
    dropped = value.scale - count
    if dropped <= 0:
        return value
    # As a decimal with the digits that are dropped after its point.
    rounded = whole(replace(value, kind=ValueKind.DECIMAL, scale=dropped))
    return replace(rescale(rounded, dropped), kind=value.kind, scale=value.scale)


def _rounded_float(value: Values, digits: int) -> Values:
    power = 10.0 ** abs(digits)
    with np.errstate(over="ignore"):
        scaled = value.data * power if digits >= 0 else value.data / power
        rounded = _half_away(scaled) / power if digits >= 0 else _half_away(scaled) * power
    # Beyond the largest float there are no digits to round.
    return Values(np.where(np.isfinite(scaled), rounded, value.data), value.valid, ValueKind.FLOAT)


_CHOICES: Final[dict[str, Callable[[Values, Values], Values]]] = {
    "COALESCE": coalesce,
    "LEAST": _extreme(np.less),
    "GREATEST": _extreme(np.greater),
}
_PLAIN: Final[dict[str, Callable[..., Values]]] = {
    "ABS": absolute,
    "ACOS": _float(np.arccos),
    "ASIN": _float(np.arcsin),
    "ATAN": _float(np.arctan),
    "ATAN2": _float_of_two(np.arctan2),
    "CEIL": _rounding(np.ceil, lambda _, rest, __: rest != 0),
    "COS": _float(np.cos),
    "DEGREES": _float(np.degrees),
    "EXP": _float(np.exp),
    "FLOOR": _rounding(np.floor, lambda _, rest, __: np.zeros(rest.shape, np.bool_)),
    "LN": _float(np.log),
    "LOG10": _float(np.log10),
    "LOG2": _float(np.log2),
    "POWER": _float_of_two(np.power),
    "RADIANS": _float(np.radians),
    "ROUND": _round,
    "SIGN": _sign,
    "SIN": _float(np.sin),
    "SQRT": _float(np.sqrt),
    "TAN": _float(np.tan),
    "TRUNC": _rounding(np.trunc, lambda data, rest, _: (rest != 0) & (data < 0)),
    **TEXT_FUNCTIONS,
    **TIME_FUNCTIONS,
}
EVALUATED: Final = frozenset((*_CHOICES, *_PLAIN))
"""The functions that there are here: those of `signatures.FUNCTIONS`."""
