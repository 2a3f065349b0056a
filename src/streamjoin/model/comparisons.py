"""Comparisons of two columns, such as `l.t <= r.hi`, as terms over words; two that face each other bound an interval.

A comparison of columns of one type is exact on their words, so that no algorithm evaluates it row by row. Of the terms
`l.a <= r.d` and `l.b >= r.c` the first pair makes an index: tuples match only if the intervals between a and b and
between c and d overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from streamjoin.model.binding import BoundSpec, IntervalPlan
from streamjoin.model.expression.canonical import conjuncts
from streamjoin.model.expression.nodes import Column, Compare, Expression, conjunction
from streamjoin.model.keys import MIRRORED, Comparison, KeyTerm, WordKind, fit
from streamjoin.model.plain_types import plain_type
from streamjoin.model.predicates import Equi

TypeOf = Callable[[Column], pa.DataType]


def with_comparisons(bound: BoundSpec) -> BoundSpec:
    """`bound` with the comparisons of its residual as terms."""
    if bound.residual is None:
        return bound
    terms: list[KeyTerm] = []
    others: list[Expression] = []

    def type_of(column: Column) -> pa.DataType:
        schema = bound.left_schema if column.qualifier == "l" else bound.right_schema
        return schema.field(column.name).type

    for condition in conjuncts(bound.residual):
        found = comparison(condition, "r", type_of)
        if found is None:
            others.append(condition)
        else:
            terms.append(found[1])
    if not terms:
        return bound
    numbered = list(enumerate(terms, len(bound.terms)))
    plans = (IntervalPlan(u, v) for u, upper in numbered for v, lower in numbered if bound_an_interval(upper, lower))
    return replace(
        bound,
        terms=(*bound.terms, *terms),
        residual=conjunction(tuple(others)) if others else None,
        intervals=next(plans, None),
    )


def with_interval_index(bound: BoundSpec) -> BoundSpec:
    """`bound` with its comparisons as terms if they bound an interval and nothing else finds candidates."""
    if bound.index:
        return bound
    compared = with_comparisons(bound)
    return bound if compared.intervals is None else compared


def comparison(condition: Expression, right: str, type_of: TypeOf) -> tuple[str, KeyTerm] | None:
    """A comparison of a column of `right`, on the right side, with one of its type; before it the other's qualifier."""
    if not isinstance(condition, Compare) or condition.operator not in MIRRORED:
        return None
    one, other, operator = condition.left, condition.right, condition.operator
    if not isinstance(one, Column) or not isinstance(other, Column) or one.qualifier == other.qualifier:
        return None
    if one.qualifier == right:
        one, other, operator = other, one, MIRRORED[operator]
    if other.qualifier != right:
        return None
    types = [plain_type(type_of(column)) for column in (one, other)]
    if _word_space(types[0]) is None or _word_space(types[0]) != _word_space(types[1]):
        return None
    key = fit(Equi(one.name, other.name), *types)
    if key.kind not in (WordKind.INTEGER, WordKind.FLOAT32, WordKind.FLOAT64):
        return None
    return one.qualifier, replace(key, term=Comparison(one.name, operator, other.name))


def _word_space(type_: pa.DataType) -> str | None:
    """Types with one name have words that compare like their values; None if words don't."""
    if pa.types.is_integer(type_) and type_ != pa.uint64():
        return "integer"
    kinds = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_time, pa.types.is_duration)
    ordered = type_ == pa.uint64() or any(is_kind(type_) for is_kind in kinds)
    return str(type_) if ordered or pa.types.is_float32(type_) or pa.types.is_float64(type_) else None


def bound_an_interval(upper: KeyTerm, lower: KeyTerm) -> bool:
    """Whether two comparisons face each other over one kind of words."""
    operators = [term.term.operator for term in (upper, lower) if isinstance(term.term, Comparison)]
    faces = [operator[0] for operator in operators] == ["<", ">"]
    return faces and _word_space(upper.left.type) == _word_space(lower.left.type)
