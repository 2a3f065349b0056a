"""Evaluation of conditions over columns, one NumPy pass per node, in SQL's three-valued logic.

Columns may have any shapes that broadcast: with the left side as ``(P, 1)`` and the right as ``(1, S)`` every
pair is tested, and a subexpression that reads one side is computed at that side's size. NaN is NULL everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np

from streamjoin.model.errors import SchemaError
from streamjoin.model.expression import nodes
from streamjoin.model.expression.arrow_values import from_arrow
from streamjoin.model.expression.calculation import arithmetic, compare, negative, unify
from streamjoin.model.expression.functions import call, choose, matches
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.expression.patterns import matcher
from streamjoin.model.expression.value_kinds import ValueKind
from streamjoin.model.expression.values import INT64, Mask, Values, both_valid, from_constant, from_numpy

__all__ = ["Values", "evaluate", "from_arrow", "from_numpy", "truth"]

_FEW: Final = 4


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
