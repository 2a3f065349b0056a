"""The functions a condition may call, over values.

A NULL argument gives NULL, except that COALESCE, LEAST and GREATEST ignore NULLs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.errors import SchemaError
from streamjoin.model.expression.calculation import absolute, to_float, unify
from streamjoin.model.expression.value_kinds import ValueKind, function_kind
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
    if any(argument.kind is ValueKind.NULL for argument in arguments):
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


def _map(function: Callable[[str], Any], value: Values, dtype: Any) -> Array:
    flat = value.data.ravel().tolist()
    return np.fromiter(map(function, flat), dtype, len(flat)).reshape(value.shape)


def strings(function: Callable[[str], str]) -> Callable[[Values], Values]:
    """A function of one string as a function of values."""
    return lambda value: replace(value, data=_map(function, value, object))


def matches(function: Callable[[str], bool], value: Values) -> Values:
    """Where a test of one string holds."""
    return Values(_map(function, value, np.bool_), value.valid, ValueKind.BOOLEAN)


def _length(value: Values) -> Values:
    return Values(_map(len, value, np.int64), value.valid, ValueKind.INTEGER)


def _square_root(value: Values) -> Values:
    number = to_float(value)
    with np.errstate(all="ignore"):
        return from_floats(np.sqrt(number.data), number.valid)


def _power(base: Values, exponent: Values) -> Values:
    left, right = to_float(base), to_float(exponent)
    with np.errstate(all="ignore"):
        return from_floats(np.power(left.data, right.data), both_valid(left.valid, right.valid))


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


_CHOICES: Final[dict[str, Callable[[Values, Values], Values]]] = {
    "COALESCE": coalesce,
    "LEAST": _extreme(np.less),
    "GREATEST": _extreme(np.greater),
}
_PLAIN: Final[dict[str, Callable[..., Values]]] = {
    "ABS": absolute,
    "CEIL": _rounding(np.ceil, lambda _, rest, __: rest != 0),
    "FLOOR": _rounding(np.floor, lambda _, rest, __: np.zeros(rest.shape, np.bool_)),
    "LENGTH": _length,
    "LOWER": strings(str.lower),
    "POWER": _power,
    "ROUND": _rounding(_half_away, _half_away_step),
    "SQRT": _square_root,
    "UPPER": strings(str.upper),
}
