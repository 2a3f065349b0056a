"""Columns of values with NULLs, as NumPy arrays: the input and output of evaluation.

Invariants of :class:`Values`:

- ``data`` is bool (BOOLEAN), float64 (FLOAT), an object array of str or bytes (STRING, BINARY), or whole
  numbers (every other kind) as int64, uint64 or, where these are too narrow, an object array of Python ints;
- ``valid`` broadcasts to the shape of ``data``; where it is False ``data`` holds an arbitrary valid value;
- there is no NaN in ``data``: NaN is NULL.

Dates and timestamps count seconds, intervals too, as scaled whole numbers: a ``timestamp[us]`` has scale 6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamjoin._arrays import Array
from streamjoin.model.durations import DECIMALS
from streamjoin.model.errors import SchemaError
from streamjoin.model.expression.nodes import Constant, Date, Interval, Literal, Timestamp
from streamjoin.model.expression.value_kinds import ValueKind

Mask = npt.NDArray[np.bool_]
Bounds = tuple[int, int] | tuple[float, float]

INT64: Final = np.iinfo(np.int64)
DAY_SECONDS: Final = 86_400
FILLERS: Final[dict[ValueKind, tuple[Any, Any]]] = {
    ValueKind.BOOLEAN: (False, np.bool_),
    ValueKind.NULL: (False, np.bool_),
    ValueKind.FLOAT: (0.0, np.float64),
    ValueKind.STRING: ("", object),
    ValueKind.BINARY: (b"", object),
}
"""What is stored where a value is NULL, with its dtype; for the other kinds it is 0 as int64."""


@dataclass(frozen=True, eq=False)
class Values:
    """An array of one kind of value; the module lists the invariants of ``data`` and ``valid``.

    ``known_bounds``, if set, encloses ``data``; this avoids a search for the extremes of a large array.
    """

    data: Array
    valid: Mask | None = None
    kind: ValueKind = ValueKind.INTEGER
    scale: int = 0
    known_bounds: Bounds | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``data``."""
        shape: tuple[int, ...] = self.data.shape
        return shape

    @property
    def bounds(self) -> Bounds:
        """Numbers that enclose every entry of ``data``, NULLs included: Python ints, or floats for FLOAT."""
        if self.known_bounds is None:
            extremes = (0, 0) if self.data.size == 0 else (self.data.min(), self.data.max())
            number = float if self.kind is ValueKind.FLOAT else int
            object.__setattr__(self, "known_bounds", (number(extremes[0]), number(extremes[1])))
        return self.known_bounds  # type: ignore[return-value]

    def reshape(self, *shape: int) -> Values:
        """The same values in another shape, such as ``(-1, 1)`` for the left side of a broadcast."""
        valid = None if self.valid is None else np.broadcast_to(self.valid, self.shape).reshape(shape)
        return replace(self, data=self.data.reshape(shape), valid=valid)

    def take(self, positions: npt.NDArray[np.integer[Any]] | slice) -> Values:
        """The values at these positions of a one-dimensional array."""
        valid = None if self.valid is None else self.valid[positions]
        return replace(self, data=self.data[positions], valid=valid)


def both_valid(*masks: Mask | None) -> Mask | None:
    """The mask of rows where all are valid; None if all rows are."""
    result: Mask | None = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else result & mask
    return result


def all_null(kind: ValueKind, shape: tuple[int, ...], scale: int = 0) -> Values:
    """NULLs of a kind."""
    filler, dtype = FILLERS.get(kind, (0, np.int64))
    return Values(np.full(shape, filler, dtype), np.zeros(shape, np.bool_), kind, scale)


def from_floats(data: Array, valid: Mask | None = None, *, may_be_nan: bool = True) -> Values:
    """FLOAT values; NaN becomes NULL."""
    if may_be_nan:
        nan = np.isnan(data)
        if nan.any():
            data = np.where(nan, 0.0, data)
            valid = both_valid(valid, ~nan)
    return Values(data, valid, ValueKind.FLOAT)


def from_numpy(data: Array, valid: Mask | None = None) -> Values:
    """Values of a NumPy array of booleans, numbers, str objects, ``datetime64`` or ``timedelta64``.

    Raises:
        SchemaError: the array is of another type.
    """
    code = data.dtype.kind
    if code == "b":
        return Values(data, valid, ValueKind.BOOLEAN)
    if code in "iu":
        wide = data if data.dtype == np.uint64 else data.astype(np.int64, copy=False)
        return Values(wide, valid, ValueKind.INTEGER)
    if code == "f":
        return from_floats(data.astype(np.float64, copy=False), valid)
    if code in "mM":
        unit = np.datetime_data(data.dtype)[0]
        if unit in DECIMALS:
            missing = np.isnat(data)
            whole = np.where(missing, 0, data.astype(np.int64))
            kind = ValueKind.TIMESTAMP if code == "M" else ValueKind.INTERVAL
            known = both_valid(valid, ~missing if missing.any() else None)
            return Values(whole, known, kind, DECIMALS[unit])
    if code in "OUT":
        return Values(data.astype(object), valid, ValueKind.STRING)
    raise SchemaError(f"a condition can't use NumPy values of type {data.dtype}")


def from_constant(constant: Constant) -> Values:
    """The constant as an array of shape ``(1,)``, at the smallest scale that holds it."""
    if isinstance(constant, Date):
        return _whole(constant.days * DAY_SECONDS, ValueKind.DATE, 0)
    if isinstance(constant, Timestamp):
        return _whole(constant.nanoseconds, ValueKind.INSTANT if constant.aware else ValueKind.TIMESTAMP, 9)
    if isinstance(constant, Interval):
        return _whole(constant.nanoseconds, ValueKind.INTERVAL, 9)
    value = constant.value if isinstance(constant, Literal) else None
    if isinstance(value, bool):
        return Values(np.array([value]), None, ValueKind.BOOLEAN)
    if isinstance(value, int):
        return _whole(value, ValueKind.INTEGER, 0)
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        whole = int("".join(map(str, digits))) * 10 ** max(0, int(exponent))
        return _whole(-whole if sign else whole, ValueKind.NUMERAL, max(0, -int(exponent)))
    if isinstance(value, str):
        return Values(np.array([value], object), None, ValueKind.STRING)
    return all_null(ValueKind.NULL, (1,))


def _whole(value: int, kind: ValueKind, scale: int) -> Values:
    while scale and value % 10 == 0:
        value, scale = value // 10, scale - 1
    dtype = np.int64 if INT64.min <= value <= INT64.max else object
    return Values(np.array([value], dtype), None, kind, scale, (value, value))
