"""Exact conversion of computed :class:`~streamjoin.model.expression.values.Values` to Arrow columns.

The type is the one that ``typing_rules.check`` gave the expression. Integers may exceed any type while they are
computed; a result that does not fit its column is an error and never wraps.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.durations import DECIMALS
from streamjoin.model.errors import InputError
from streamjoin.model.expression.calculation import rescale, to_float
from streamjoin.model.expression.value_kinds import ValueKind
from streamjoin.model.expression.values import DAY_SECONDS, Mask, Values

_WORD: Final = 64


def to_arrow(values: Values, type_: pa.DataType, length: int) -> pa.Array:
    """The values as a column of `length` rows; a constant is repeated.

    Raises:
        InputError: a number does not fit the type.
    """
    if values.kind is ValueKind.NULL:
        return pa.nulls(length, type_)
    if pa.types.is_floating(type_):
        values = to_float(values)
    data = np.broadcast_to(values.data, (length,))
    valid = None if values.valid is None else np.broadcast_to(values.valid, (length,))
    if values.kind in (ValueKind.BOOLEAN, ValueKind.FLOAT, ValueKind.STRING, ValueKind.BINARY):
        return pa.array(data, type_, mask=None if valid is None else ~valid)
    scale = _scale(type_)
    if values.scale > scale:
        raise InputError(f"a computed value has {values.scale} decimals, more than {type_} holds")
    scaled = rescale(Values(data, valid, values.kind, values.scale, values.known_bounds), scale)
    if pa.types.is_decimal(type_):
        return _decimals(scaled.data, valid, type_)
    whole = scaled.data // DAY_SECONDS if pa.types.is_date32(type_) else scaled.data
    return _whole(whole, valid, type_)


def _scale(type_: pa.DataType) -> int:
    if pa.types.is_decimal(type_):
        return int(type_.scale)
    if pa.types.is_date64(type_):
        return DECIMALS["ms"]
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        return DECIMALS[type_.unit]
    return 0


def _whole(data: Array, valid: Mask | None, type_: pa.DataType) -> pa.Array:
    stored = type_ if pa.types.is_integer(type_) else pa.int32() if pa.types.is_date32(type_) else pa.int64()
    dtype = np.dtype(stored.to_pandas_dtype())
    limits = np.iinfo(dtype)
    known = data if valid is None else data[valid]
    if len(known):
        low, high = int(known.min()), int(known.max())
        if low < limits.min or high > limits.max:
            worst = high if high > limits.max else low
            raise InputError(f"the computed value {worst} does not fit {type_}; simplify the expression")
    fitting = (data if valid is None else np.where(valid, data, 0)).astype(dtype)
    return pa.array(fitting, stored, mask=None if valid is None else ~valid).view(type_)


def _decimals(data: Array, valid: Mask | None, type_: pa.DataType) -> pa.Array:
    """Decimals from their unscaled whole numbers, as little-endian two's-complement words."""
    count = type_.byte_width * 8 // _WORD
    limit = 10**type_.precision
    known = data if valid is None else data[valid]
    if len(known) and not (-limit < int(known.min()) and int(known.max()) < limit):
        raise InputError(f"a computed value does not fit {type_}; simplify the expression")
    fitting = data if valid is None else np.where(valid, data, 0)
    if fitting.dtype == np.int64:
        words = np.stack([fitting, *[fitting >> 63] * (count - 1)], axis=1)
        buffer = pa.py_buffer(np.ascontiguousarray(words))
    else:
        buffer = pa.py_buffer(b"".join(int(v).to_bytes(type_.byte_width, "little", signed=True) for v in fitting))
    mask = None if valid is None else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(type_, len(fitting), [mask, buffer])
