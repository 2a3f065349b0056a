"""A canonical form for equivalent conditions, so that queries can share them.

Invariant: `canonical(e)` has the value of `e` on every row, in three-valued logic, and is its own canonical form.
Only rewrites that are exact for every type are applied: numbers are not reassociated, and columns are not moved
across a comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression.nodes import (
    And,
    Arithmetic,
    Between,
    Column,
    Compare,
    Constant,
    Expression,
    In,
    Literal,
    Not,
    Or,
)

_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATED: Final = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
    "IS DISTINCT FROM": "IS NOT DISTINCT FROM",
    "IS NOT DISTINCT FROM": "IS DISTINCT FROM",
}


def canonical(expr: Expression) -> Expression:
    """The canonical form of `expr`, the same for all variants that differ only in order and negation.

    >>> from streamjoin.model.expression.parsing import parse_condition
    >>> str(canonical(parse_condition("NOT (5 >= l.x OR l.x NOT BETWEEN 3 AND l.y)")))
    'l.x <= l.y AND l.x > 5 AND l.x >= 3'
    """
    if isinstance(expr, Not):
        return _negated(canonical(expr.operand))
    if isinstance(expr, Between):
        bounds = (Compare(">=", expr.operand, expr.low), Compare("<=", expr.operand, expr.high))
        return canonical(And(bounds))
    return _ordered(expr.rebuilt(canonical))


def conjuncts(expr: Expression) -> tuple[Expression, ...]:
    """The canonical conditions that must all hold, without those that are always true."""
    form = canonical(expr)
    terms = form.terms if isinstance(form, And) else (form,)
    return tuple(term for term in terms if term != Literal(True))


def renamed(expr: Expression, qualifiers: Mapping[str, str]) -> Expression:
    """The canonical form of `expr` with its columns' qualifiers replaced."""

    def rename(node: Expression) -> Expression:
        if isinstance(node, Column):
            return Column(qualifiers.get(node.qualifier, node.qualifier), node.name)
        return node.rebuilt(rename)

    return canonical(rename(expr))


def _rank(expr: Expression) -> tuple[bool, str]:
    return isinstance(expr, Constant), str(expr)


def _ordered(expr: Expression) -> Expression:
    if isinstance(expr, And | Or):
        terms = tuple(sorted(dict.fromkeys(expr.terms), key=_rank))
        return terms[0] if len(terms) == 1 else type(expr)(terms)
    if isinstance(expr, Compare) and _rank(expr.right) < _rank(expr.left):
        return Compare(_MIRRORED.get(expr.operator, expr.operator), expr.right, expr.left)
    if isinstance(expr, In):
        choices = tuple(sorted(dict.fromkeys(expr.choices), key=str))
        return _ordered(Compare("=", expr.operand, choices[0])) if len(choices) == 1 else In(expr.operand, choices)
    if isinstance(expr, Arithmetic):
        return _arithmetic(expr)
    return expr


def _arithmetic(expr: Arithmetic) -> Expression:
    left, right = expr.left, expr.right
    if isinstance(left, Literal) and isinstance(right, Literal) and expr.operator in "+-*":
        a, b = left.value, right.value
        if type(a) is int and type(b) is int:
            try:
                return Literal(a + b if expr.operator == "+" else a - b if expr.operator == "-" else a * b)
            except ExpressionError:  # more digits than a literal may have
                return expr
    if expr.operator in "+*" and _rank(right) < _rank(left):
        return Arithmetic(expr.operator, right, left)
    return expr


def _negated(expr: Expression) -> Expression:
    """NOT of a canonical expression, pushed down to the leaves and absorbed by comparisons."""
    if isinstance(expr, Not):
        return expr.operand
    if isinstance(expr, Compare):
        return Compare(_NEGATED[expr.operator], expr.left, expr.right)
    if isinstance(expr, And | Or):
        other = Or if isinstance(expr, And) else And
        return _ordered(other(tuple(_negated(term) for term in expr.terms)))
    if isinstance(expr, Literal) and isinstance(expr.value, bool | None):
        return Literal(None if expr.value is None else not expr.value)
    return Not(expr)
