"""Evaluation of conditions over columns, one NumPy pass per node, in SQL's three-valued logic.

Columns may have any shapes that broadcast: with the left side as ``(P, 1)`` and the right as ``(1, S)`` every
pair is tested, and a subexpression that reads one side is computed at that side's size. NaN is NULL everywhere.

Arrow columns are converted exactly. Strings become arrays of Python objects: compared with NumPy's ``StringDType``
these are created in half the time and compare two to six times faster in a broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.errors import SchemaError
from streamjoin.model.expression import nodes
from streamjoin.model.expression.calculation import arithmetic, compare, negative, unify
from streamjoin.model.expression.casts import cast
from streamjoin.model.expression.functions import call, choose
from streamjoin.model.expression.nodes import Column, Expression, matcher
from streamjoin.model.expression.text_functions import matches
from streamjoin.model.expression.value_kinds import ValueKind, arrow_kind
from streamjoin.model.expression.values import (
    DAY_SECONDS,
    INT64,
    Mask,
    Values,
    all_null,
    both_valid,
    from_constant,
    from_floats,
    from_numpy,
)
from streamjoin.model.plain_types import without_extension

__all__ = ["Values", "evaluate", "from_arrow", "from_numpy", "grid_holds", "holds", "truth"]

Read = Callable[[Column], Values]
"""Gives a column's values: of rows, or of one side of pairs of rows."""

_FEW: Final = 4


_DAY_MILLISECONDS: Final = DAY_SECONDS * 1000


def from_arrow(array: pa.Array | pa.ChunkedArray) -> Values:
    """The column as values: NULL and NaN are invalid, whole numbers, times and decimals keep every digit.

    Raises:
        SchemaError: a condition can't use this type.
    """
    kind_and_scale = arrow_kind(array.type)
    if kind_and_scale is None:
        raise SchemaError(f"a condition can't use a column of type {array.type}")
    kind, scale = kind_and_scale
    if isinstance(array, pa.ChunkedArray):
        chunks = [from_arrow(chunk) for chunk in array.chunks] or [all_null(kind, (0,), scale)]
        return _concatenate(chunks)
    array = without_extension(array)
    if kind is ValueKind.NULL:
        return all_null(kind, (len(array),))
    if pa.types.is_dictionary(array.type):
        return _decode(array)
    valid = _valid(array)
    if kind is ValueKind.FLOAT:
        return from_floats(array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False), valid)
    return Values(_data(array, kind), valid, kind, scale)


def _valid(array: pa.Array) -> Mask | None:
    if not array.null_count:
        return None
    mask: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _data(array: pa.Array, kind: ValueKind) -> Array:
    if kind is ValueKind.DECIMAL:
        return _decimals(array)
    if kind is ValueKind.STRING:
        return _objects(array.cast(pa.large_string()), "")
    if kind is ValueKind.BINARY:
        return _objects(array.cast(pa.large_binary()), b"")
    if kind is ValueKind.BOOLEAN:
        return _filled(array, False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    if kind is ValueKind.INTEGER:
        whole = _filled(array, 0).to_numpy(zero_copy_only=False)
        return whole if whole.dtype == np.uint64 else whole.astype(np.int64, copy=False)  # type: ignore[no-any-return]
    if pa.types.is_date32(array.type):
        days = _filled(array.view(pa.int32()), 0).to_numpy(zero_copy_only=False)
        return days.astype(np.int64) * DAY_SECONDS  # type: ignore[no-any-return]
    whole = _filled(array.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
    if kind is ValueKind.DATE:
        return whole // _DAY_MILLISECONDS * DAY_SECONDS  # type: ignore[no-any-return]
    return whole  # type: ignore[no-any-return]


def _filled(array: pa.Array, filler: object) -> pa.Array:
    return array.fill_null(filler) if array.null_count else array


def _objects(array: pa.Array, filler: object) -> Array:
    data: Array = _filled(array, filler).to_numpy(zero_copy_only=False)
    return data


def _decimals(array: pa.Array) -> Array:
    """The unscaled integers, from the buffer of little-endian two's-complement words."""
    width = array.type.byte_width
    word = np.dtype(f"<i{min(width, 8)}")
    count = width // word.itemsize
    buffer = array.buffers()[1]
    flat = np.zeros(0, word) if buffer is None else np.frombuffer(buffer, word)
    words = flat[array.offset * count : (array.offset + len(array)) * count].reshape(-1, count)
    low = words[:, 0].astype(np.int64)
    valid = _valid(array)
    if valid is not None:
        # The value of a NULL slot is arbitrary.
        words = np.where(valid[:, np.newaxis], words, 0)
        low = words[:, 0].astype(np.int64)
    if count > 1 and not (words[:, 1:] == (low >> 63)[:, np.newaxis]).all():
        wide = words[:, -1].astype(object)
        for column in range(count - 2, -1, -1):
            wide = wide * 2**64 + words[:, column].view(np.uint64).astype(object)
        low = wide
    return low.astype(object) * 10**-array.type.scale if array.type.scale < 0 else low


def _decode(array: pa.DictionaryArray) -> Values:
    meanings = from_arrow(array.dictionary)
    indices = _filled(array.indices, 0).to_numpy(zero_copy_only=False)
    if not len(array.dictionary):
        return all_null(meanings.kind, (len(array),), meanings.scale)
    values = meanings.take(indices.astype(np.int64))
    return replace(values, valid=both_valid(values.valid, _valid(array)))


def _concatenate(chunks: list[Values]) -> Values:
    if len(chunks) == 1:
        return chunks[0]
    valid: Mask | None = None
    if any(chunk.valid is not None for chunk in chunks):
        valid = np.concatenate(
            [np.ones(chunk.shape, np.bool_) if chunk.valid is None else chunk.valid for chunk in chunks]
        )
    data = np.concatenate([chunk.data for chunk in chunks])
    return Values(data, valid, chunks[0].kind, chunks[0].scale)


def evaluate(expr: Expression, columns: Mapping[Column, Values]) -> Values:
    """The value of ``expr`` for each row, or each pair of rows, of ``columns``.

    Raises:
        SchemaError: a column is missing, or kinds don't fit; ``typing_rules.check`` finds that beforehand.
    """
    return _Evaluation(columns).of(expr)


def truth(values: Values, shape: tuple[int, ...]) -> Mask:
    """Where a boolean is true, neither false nor NULL, as a new or unshared array of ``shape``.

    Raises:
        SchemaError: the values are not booleans.
    """
    true, _ = _truths(values)
    return true if true.shape == shape and true is not values.data else np.array(np.broadcast_to(true, shape))


def holds(condition: Expression, read: Read, n: int) -> Mask:
    """Which of `n` rows, or pairs of rows, a condition holds for."""
    return truth(evaluate(condition, {column: read(column) for column in condition.columns}), (n,))


def grid_holds(condition: Expression, read: Read, first: str, shape: tuple[int, int]) -> Mask:
    """Which pairs of two lists of rows a condition holds for; `first` qualifies the columns of the first list.

    Columns are read once, not once per pair.
    """
    columns = {
        column: read(column).reshape(*((-1, 1) if column.qualifier == first else (1, -1)))
        for column in condition.columns
    }
    return truth(evaluate(condition, columns), shape)


def _truths(values: Values) -> tuple[Mask, Mask | None]:
    """Masks of the true and of the false values; None for the latter means all that are not true."""
    if values.kind is ValueKind.NULL:
        all_false = np.zeros(values.shape, np.bool_)
        return all_false, all_false
    if values.kind is not ValueKind.BOOLEAN:
        raise SchemaError(f"a boolean is needed, not {values.kind.value}")
    if values.valid is None:
        return values.data, None
    return values.data & values.valid, ~values.data & values.valid


def _boolean(true: Mask, false: Mask | None) -> Values:
    return Values(true, None if false is None else true | false, ValueKind.BOOLEAN)


class _Evaluation:
    def __init__(self, columns: Mapping[Column, Values]) -> None:
        self._columns = columns

    def of(self, expr: Expression) -> Values:
        if isinstance(expr, nodes.Constant):
            return from_constant(expr)
        return _METHODS[type(expr)](self, expr)

    def _column(self, expr: Column) -> Values:
        values = self._columns.get(expr)
        if values is None:
            raise SchemaError(f"no values for column {expr}; there are: {', '.join(map(str, self._columns))}")
        return values

    def _arithmetic(self, expr: nodes.Arithmetic) -> Values:
        return arithmetic(expr.operator, self.of(expr.left), self.of(expr.right))

    def _negative(self, expr: nodes.Negative) -> Values:
        return negative(self.of(expr.operand))

    def _function(self, expr: nodes.Function) -> Values:
        return call(expr.name, [self.of(argument) for argument in expr.arguments])

    def _cast(self, expr: nodes.Cast) -> Values:
        return cast(self.of(expr.operand), expr.target)

    def _case(self, expr: nodes.Case) -> Values:
        values = unify([self.of(node) for node in (*(value for _, value in expr.branches), expr.default)])
        result = values.pop()
        for (condition, _), value in zip(reversed(expr.branches), reversed(values), strict=True):
            result = choose(_truths(self.of(condition))[0], value, result)
        return result

    def _compare(self, expr: nodes.Compare) -> Values:
        left, right = self.of(expr.left), self.of(expr.right)
        if "DISTINCT" not in expr.operator:
            return _compared(expr.operator, left, right)
        same = compare("=", left, right)
        known = [_known(value) for value in (left, right)]
        same = np.where(known[0] & known[1], same, ~(known[0] | known[1]))
        return Values(same if "NOT" in expr.operator else ~same, None, ValueKind.BOOLEAN)

    def _between(self, expr: nodes.Between) -> Values:
        operand = self.of(expr.operand)
        bounds = (">=", self.of(expr.low)), ("<=", self.of(expr.high))
        return _all([_compared(operator, operand, bound) for operator, bound in bounds])

    def _in(self, expr: nodes.In) -> Values:
        operand = self.of(expr.operand)
        choices = [choice for choice in expr.choices if choice != nodes.NULL]
        mask = _member(operand, choices)
        valid = both_valid(operand.valid, None if len(choices) == len(expr.choices) else mask)
        return Values(mask, valid, ValueKind.BOOLEAN)

    def _like(self, expr: nodes.Like) -> Values:
        operand = self.of(expr.operand)
        if operand.kind is ValueKind.NULL:
            return operand
        if operand.kind is not ValueKind.STRING:
            raise SchemaError(f"LIKE takes strings, not {operand.kind.value}")
        return matches(matcher(expr.pattern, expr.escape, ignore_case=expr.ignore_case), operand)

    def _is_null(self, expr: nodes.IsNull) -> Values:
        operand = self.of(expr.operand)
        null = np.zeros(operand.shape, np.bool_) if operand.valid is None else ~operand.valid
        return Values(null, None, ValueKind.BOOLEAN)

    def _is_truth(self, expr: nodes.IsTruth) -> Values:
        true, false = _truths(self.of(expr.operand))
        mask = true if expr.value else ~true if false is None else false
        return Values(mask, None, ValueKind.BOOLEAN)

    def _not(self, expr: nodes.Not) -> Values:
        return _negated(self.of(expr.operand))

    def _and(self, expr: nodes.And) -> Values:
        return _all(self.of(term) for term in expr.terms)

    def _or(self, expr: nodes.Or) -> Values:
        return _any(self.of(term) for term in expr.terms)


def _compared(operator: str, left: Values, right: Values) -> Values:
    return Values(compare(operator, left, right), both_valid(left.valid, right.valid), ValueKind.BOOLEAN)


def _known(values: Values) -> Mask | np.bool_:
    return np.True_ if values.valid is None else values.valid


def _all(terms: Iterable[Values]) -> Values:
    """AND. Terms of one shape are combined first, so that one-sided terms are combined before they are broadcast."""
    by_shape: dict[tuple[int, ...], tuple[Mask, Mask | None]] = {}
    for term in terms:
        truths = _truths(term)
        shape = truths[0].shape
        by_shape[shape] = _both(by_shape[shape], truths) if shape in by_shape else truths
    return _boolean(*reduce(_both, sorted(by_shape.values(), key=lambda truths: truths[0].size)))


def _any(terms: Iterable[Values]) -> Values:
    """OR, which is AND with true and false exchanged."""
    result = _all(_negated(term) for term in terms)
    return _negated(result)


def _negated(values: Values) -> Values:
    true, false = _truths(values)
    return Values(~true, None, ValueKind.BOOLEAN) if false is None else _boolean(false, true)


def _both(first: tuple[Mask, Mask | None], second: tuple[Mask, Mask | None]) -> tuple[Mask, Mask | None]:
    true = first[0] & second[0]
    if first[1] is None and second[1] is None:
        return true, None
    false = [~true_ if false_ is None else false_ for true_, false_ in (first, second)]
    return true, false[0] | false[1]


def _member(operand: Values, choices: Sequence[nodes.Constant]) -> Mask:
    """Where the operand equals one of the constants."""
    literals = [choice.value for choice in choices if isinstance(choice, nodes.Literal)]
    kinds = {type(value) for value in literals}
    if len(literals) == len(choices) > _FEW and len(kinds) == 1:
        if kinds == {str} and operand.kind is ValueKind.STRING:
            return matches(frozenset(literals).__contains__, operand).data
        if kinds == {int} and operand.kind is ValueKind.INTEGER and operand.data.dtype == np.int64:
            near = [value for value in literals if INT64.min <= value <= INT64.max]  # type: ignore[operator]
            return np.isin(operand.data, np.array(near, np.int64))
    mask = np.zeros(operand.shape, np.bool_)
    for choice in choices:
        mask |= compare("=", operand, from_constant(choice))
    return mask


_METHODS: Final[dict[type[Expression], Callable[[_Evaluation, Any], Values]]] = {
    nodes.Column: _Evaluation._column,
    nodes.Arithmetic: _Evaluation._arithmetic,
    nodes.Negative: _Evaluation._negative,
    nodes.Function: _Evaluation._function,
    nodes.Case: _Evaluation._case,
    nodes.Cast: _Evaluation._cast,
    nodes.Compare: _Evaluation._compare,
    nodes.Between: _Evaluation._between,
    nodes.In: _Evaluation._in,
    nodes.Like: _Evaluation._like,
    nodes.IsNull: _Evaluation._is_null,
    nodes.IsTruth: _Evaluation._is_truth,
    nodes.Not: _Evaluation._not,
    nodes.And: _Evaluation._and,
    nodes.Or: _Evaluation._or,
}
