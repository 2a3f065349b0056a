"""Comparison and arithmetic of values, exact wherever the kinds are.

Integers never wrap: the operands' bounds, taken before they are broadcast, show whether a result can exceed int64,
in which case it is computed with Python ints. NaN in a float result becomes NULL; if the bounds of the operands
are finite, this check is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.errors import SchemaError
from streamjoin.model.expression.value_kinds import EXACT, ValueKind, arithmetic_kind, common_kind, negative_kind
from streamjoin.model.expression.values import INT64, Bounds, Mask, Values, all_null, both_valid, from_floats

_COMPARE: Final[dict[str, np.ufunc]] = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EXACT_FLOAT: Final = 2**53
_RANKING_PAYS: Final = 8


def within_int64(*bounds: Bounds) -> bool:
    """Whether all numbers between these bounds are int64."""
    return all(INT64.min <= low and high <= INT64.max for low, high in bounds)


def unify(values: Sequence[Values]) -> list[Values]:
    """The same values in their common kind, scale and dtype.

    Raises:
        SchemaError: there is no common kind.
    """
    kind = common_kind(value.kind for value in values)
    if kind is None:
        raise SchemaError(f"{' and '.join(value.kind.value for value in values)} can't be combined")
    if kind is ValueKind.FLOAT:
        return [to_float(value) for value in values]
    scale = max(value.scale for value in values)
    results = [_cast(value, kind, scale) for value in values]
    if kind in EXACT:
        dtype = _dtype(*(value.bounds for value in results))
        results = [replace(value, data=value.data.astype(dtype, copy=False)) for value in results]
    return results


def _cast(value: Values, kind: ValueKind, scale: int) -> Values:
    if value.kind is ValueKind.NULL:
        return all_null(kind, value.shape, scale)
    return replace(rescale(value, scale), kind=kind)


def _dtype(*bounds: Bounds) -> type[Any]:
    return np.int64 if within_int64(*bounds) else object


def rescale(value: Values, scale: int) -> Values:
    """The same exact values with ``scale`` decimals, which must not be fewer than now."""
    if value.scale == scale:
        return value
    factor = 10 ** (scale - value.scale)
    low, high = value.bounds
    bounds = int(low) * factor, int(high) * factor
    dtype = _dtype(value.bounds, bounds, (0, factor))
    return replace(value, data=value.data.astype(dtype) * factor, scale=scale, known_bounds=bounds)


def to_float(value: Values) -> Values:
    """The nearest float64 of each number."""
    if value.kind is ValueKind.FLOAT:
        return value
    if value.kind is ValueKind.NULL:
        return all_null(ValueKind.FLOAT, value.shape)
    low, high = (int(bound) for bound in value.bounds)
    power = 10**value.scale
    if value.data.dtype != object and value.scale == 0:
        data = value.data.astype(np.float64)
    elif low >= -_EXACT_FLOAT and high <= _EXACT_FLOAT and value.scale <= 22:
        # Both operands of this division are exact, so its result is the nearest float.
        data = value.data.astype(np.float64) / float(power)
    else:
        data = np.frompyfunc(lambda whole: _quotient(whole, power), 1, 1)(value.data).astype(np.float64)
    return Values(data, value.valid, ValueKind.FLOAT, 0, (_quotient(low, power), _quotient(high, power)))


def _quotient(whole: int, power: int) -> float:
    try:
        return int(whole) / power
    except OverflowError:
        return math.inf if whole > 0 else -math.inf


def compare(operator: str, left: Values, right: Values) -> Mask:
    """``left operator right`` for one of = <> < <= > >=; undefined at NULLs.

    Raises:
        SchemaError: the kinds don't compare.
    """
    kind = common_kind((left.kind, right.kind))
    if kind is None:
        raise SchemaError(f"can't compare {left.kind.value} with {right.kind.value}")
    if ValueKind.NULL in (left.kind, right.kind):
        return np.zeros(np.broadcast_shapes(left.shape, right.shape), np.bool_)
    if kind is ValueKind.FLOAT:
        left, right = to_float(left), to_float(right)
    if kind in EXACT and left.scale != right.scale:
        return _compare_scaled(operator, left, right)
    return _compare_data(operator, left.data, right.data)


def _compare_scaled(operator: str, coarse: Values, fine: Values) -> Mask:
    if coarse.scale > fine.scale:
        return _compare_scaled(_MIRRORED[operator], fine, coarse)
    factor = 10 ** (fine.scale - coarse.scale)
    low, high = coarse.bounds
    int64 = coarse.data.dtype == fine.data.dtype == np.int64
    if not int64 or within_int64((low * factor, high * factor), (0, factor)) or factor > INT64.max:
        return _compare_data(operator, rescale(coarse, fine.scale).data, fine.data)
    # The coarse side would overflow: c * factor < f is c < ceil(f / factor), and so on, in whole numbers.
    floor = fine.data // factor
    exact = floor * factor == fine.data
    if operator in ("=", "<>"):
        equal: Mask = (coarse.data == floor) & exact
        return equal if operator == "=" else ~equal
    edge = floor + ~exact if operator in ("<", ">=") else floor
    return _compare_data(operator, coarse.data, edge)


def _compare_data(operator: str, left: Array, right: Array) -> Mask:
    size = math.prod(np.broadcast_shapes(left.shape, right.shape))
    if object in (left.dtype, right.dtype) and size > _RANKING_PAYS * (left.size + right.size):
        left, right = _ranks(left, right)
    mask: Mask = _COMPARE[operator](left, right)
    return mask


def _ranks(left: Array, right: Array) -> tuple[Array, Array]:
    """Both arrays as ranks in their common order: one sort instead of a comparison of objects per pair."""
    sides = [left.ravel().tolist(), right.ravel().tolist()]
    places = {value: place for place, value in enumerate(sorted({*sides[0], *sides[1]}))}
    ranks = [np.fromiter(map(places.__getitem__, side), np.int64, len(side)) for side in sides]
    return ranks[0].reshape(left.shape), ranks[1].reshape(right.shape)


def arithmetic(operator: str, left: Values, right: Values) -> Values:
    """``left operator right`` for one of + - * / %.

    Raises:
        SchemaError: the kinds don't combine.
    """
    kind = arithmetic_kind(operator, left.kind, right.kind)
    if kind is None:
        raise SchemaError(f"{operator} can't take {left.kind.value} and {right.kind.value}")
    if ValueKind.NULL in (left.kind, right.kind):
        return all_null(kind, np.broadcast_shapes(left.shape, right.shape), max(left.scale, right.scale))
    if kind is ValueKind.FLOAT:
        return _float_arithmetic(operator, to_float(left), to_float(right))
    return _exact_arithmetic(operator, left, right, kind)


def _result_bounds(operator: str, left: Bounds, right: Bounds) -> Bounds:
    if operator == "+":
        return left[0] + right[0], left[1] + right[1]
    if operator == "-":
        return left[0] - right[1], left[1] - right[0]
    if operator == "*":
        corners = [a * b for a in left for b in right]
        return min(corners), max(corners)
    # A remainder has the sign of the dividend and is no further from zero.
    return min(left[0], 0), max(left[1], 0)


def _nonzero(divisor: Values) -> Values:
    """The divisor with its zeros made NULL (and 1, so that dividing by them is harmless)."""
    zero = divisor.data == 0
    if not zero.any():
        return divisor
    data = np.where(zero, divisor.data.dtype.type(1) if divisor.data.dtype != object else 1, divisor.data)
    return replace(divisor, data=data, valid=both_valid(divisor.valid, ~zero), known_bounds=None)


def _exact_arithmetic(operator: str, left: Values, right: Values, kind: ValueKind) -> Values:
    if operator == "*":
        scale = left.scale + right.scale
    else:
        scale = max(left.scale, right.scale)
        left, right = rescale(left, scale), rescale(right, scale)
    if operator == "%":
        right = _nonzero(right)
    bounds = _result_bounds(operator, left.bounds, right.bounds)
    dtype = _dtype(left.bounds, right.bounds, bounds)
    remainder: Callable[..., Array] = np.fmod if dtype is np.int64 else _object_remainder
    operations: dict[str, Callable[..., Array]] = {
        "+": np.add,
        "-": np.subtract,
        "*": np.multiply,
        "%": remainder,
    }
    data = operations[operator](left.data.astype(dtype, copy=False), right.data.astype(dtype, copy=False))
    return Values(data, both_valid(left.valid, right.valid), kind, scale, bounds)


def _object_remainder(left: Array, right: Array) -> Array:
    remainders: Array = np.frompyfunc(lambda a, b: -(-a % abs(b)) if a < 0 else a % abs(b), 2, 1)(left, right)
    return remainders


def _float_arithmetic(operator: str, left: Values, right: Values) -> Values:
    if operator in "/%":
        right = _nonzero(right)
    operation = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "%": np.fmod}[operator]
    with np.errstate(all="ignore"):
        data = operation(left.data, right.data)
    finite = all(map(math.isfinite, (*left.bounds, *right.bounds)))
    result = from_floats(data, both_valid(left.valid, right.valid), may_be_nan=not finite)
    if finite and operator in "+-*":
        return replace(result, known_bounds=_result_bounds(operator, left.bounds, right.bounds))
    return result


def negative(value: Values) -> Values:
    """``-value``.

    Raises:
        SchemaError: the value is neither a number nor an interval.
    """
    if negative_kind(value.kind) is None:
        raise SchemaError(f"unary minus can't take {value.kind.value}")
    if value.kind is ValueKind.NULL:
        return value
    low, high = value.bounds
    return _unary(np.negative, value, (-high, -low))


def absolute(value: Values) -> Values:
    """The absolute value of a number or an interval."""
    low, high = value.bounds
    least = 0 if low <= 0 <= high else min(abs(low), abs(high))
    return _unary(np.absolute, value, (least, max(abs(low), abs(high))))


def _unary(operation: np.ufunc, value: Values, bounds: Bounds) -> Values:
    if value.kind in EXACT:
        dtype = _dtype(value.bounds, bounds)
        return replace(value, data=operation(value.data.astype(dtype, copy=False)), known_bounds=bounds)
    return replace(value, data=operation(value.data), known_bounds=bounds)
