"""The values that aggregates take, computed over columns; NaN stays NaN.

In a condition NaN is NULL, as both compare with nothing. In a sum it is not: a NULL is left out and a NaN makes the sum
NaN. Invariant: where every column that decides a value is there, a float that is no number comes out as NaN.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.kinds.summary import LEAST, order_floats, ordered_floats
from streamjoin.model.binding import BoundSummary
from streamjoin.model.expression.arrow_results import to_arrow
from streamjoin.model.expression.evaluation import evaluate, from_arrow
from streamjoin.model.expression.nodes import Arithmetic, Column, Constant, Expression, Function, Literal, Negative
from streamjoin.model.expression.values import Values
from streamjoin.model.plain_types import without_extension
from streamjoin.windows.encoding import fixed_width, flat, for_kernels, integer_values

_PASS_ON = ("ABS", "CEIL", "FLOOR", "ROUND")
_LEAST = np.int64(LEAST)


def computed(expression: Expression, type_: pa.DataType, columns: Mapping[Column, pa.Array], n: int) -> pa.Array:
    """The value of an expression for each of `n` rows."""
    if isinstance(expression, Column):
        column = flat(columns[expression])
        return column if column.type.equals(type_) else column.cast(type_)
    values = {column: from_arrow(columns[column]) for column in expression.columns}
    result = to_arrow(evaluate(expression, values), type_, n)
    if not (pa.types.is_floating(type_) and result.null_count):
        return result
    missing = np.broadcast_to(_missing(expression, columns, values), (n,))
    numbers = result.fill_null(np.nan).to_numpy(zero_copy_only=False)
    return pa.array(numbers, type_, mask=missing.copy())


def of_nothing(summary: BoundSummary, field: pa.Field, n: int) -> pa.Array:
    """A summary of empty windows: a count is 0, the rest NULL."""
    columns = {}
    for number, (aggregate, own) in enumerate(zip(summary.aggregates, summary.types, strict=True)):
        zeros = pa.array(np.zeros(n, np.int64))
        columns[Column("s", str(number))] = zeros if aggregate.function == "COUNT" else pa.nulls(n, own.type)
    return computed(summary.results[summary.schema.get_field_index(field.name)], field.type, columns, n)


def _missing(expression: Expression, columns: Mapping[Column, pa.Array], values: Mapping[Column, Values]) -> Array:
    """Where an expression is NULL rather than NaN."""
    if isinstance(expression, Column):
        mask: Array = columns[expression].is_null().to_numpy(zero_copy_only=False)
        return mask
    if isinstance(expression, Constant):
        return np.array([isinstance(expression, Literal) and expression.value is None])
    passes = isinstance(expression, Function) and expression.name in _PASS_ON
    if passes or isinstance(expression, Arithmetic | Negative):
        masks = [_missing(child, columns, values) for child in expression.children]
        if isinstance(expression, Arithmetic) and expression.operator in "/%":
            divisor = evaluate(expression.right, values)
            masks.append(np.atleast_1d(divisor.data == 0) & (True if divisor.valid is None else divisor.valid))
        result: Array = np.logical_or.reduce(np.broadcast_arrays(*masks))
        return result
    own = evaluate(expression, values)
    return np.zeros(1, np.bool_) if own.valid is None else ~own.valid


def numbered(array: pa.Array) -> pa.Array:
    """The same values in a type that Arrow numbers and sorts: extensions, short decimals and half floats are not."""
    array, type_ = without_extension(array), array.type
    if isinstance(type_, pa.BaseExtensionType) and type_.extension_name == "arrow.bool8":
        return array.cast(pa.bool_())
    if pa.types.is_decimal(array.type) and array.type.bit_width < 128:
        return array.cast(pa.decimal128(array.type.precision, array.type.scale))
    return array.cast(pa.float32()) if pa.types.is_float16(array.type) else array


def is_of_words(type_: pa.DataType) -> bool:
    """Whether a word is all of a value of this type, which takes no more room itself."""
    timed = pa.types.is_timestamp(type_) or pa.types.is_duration(type_)
    return timed or type_ in (pa.float64(), pa.int64())


def values_of_words(
    words: Array, type_: pa.DataType, *, greatest: bool = False, missing: Array | None = None
) -> pa.Array:
    """The values of which `order_words` made words; NULL where they are `missing`."""
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(
            type_, values_of_words(words, type_.storage_type, greatest=greatest, missing=missing)
        )
    bits = ~words if greatest else words
    if pa.types.is_floating(type_):
        numbers = np.empty(len(words))
        ordered_floats(words, greatest, numbers)
        bits = numbers.astype(type_.to_pandas_dtype(), copy=False)
    elif pa.types.is_boolean(type_):
        return pa.array(bits.astype(np.bool_), type_, mask=missing)
    elif pa.types.is_decimal(type_) and type_.bit_width > 64:
        # The upper words are the sign.
        bits = np.stack([bits, *[bits >> np.int64(63)] * (type_.bit_width // 64 - 1)], axis=1)
    else:
        # In memory of their own: words are of use again.
        bits = (bits ^ _LEAST if type_ == pa.uint64() else bits).astype(f"i{type_.bit_width // 8}")
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(type_, len(words), [valid, pa.py_buffer(np.ascontiguousarray(bits))])


def order_words(array: pa.Array, *, greatest: bool = False) -> Array:
    """Words in the order of values of at most 8 bytes, NaN before all; for the `greatest` first, in reverse order."""
    type_ = array.type
    if pa.types.is_floating(type_):
        words = np.empty(len(array), np.int64)
        order_floats(for_kernels(fixed_width(array).astype(np.float64, copy=False)), greatest, words)
        return words
    words = integer_values(array)
    if type_ == pa.uint64():
        words = words ^ _LEAST
    return ~words if greatest else np.array(words, np.int64)
