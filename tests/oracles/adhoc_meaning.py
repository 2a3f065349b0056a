"""Converts a parsed query to the oracle's form, with the row-at-a-time evaluator.

Queries are read by duck typing (`streamjoin.adhoc` is a layer above), and no engine code is used for evaluation: terms
are tested by the definition of `Equi` and `Band`, other conditions by `row_evaluator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.window import CountWindow
from streamjoin.testing import oracle
from streamjoin.testing.cases import float32
from tests.oracles.adhoc_oracle import Arrival, Condition, JointWindow, Meaning, Rows
from tests.oracles.row_evaluator import Moment, as_type, evaluate_row, rows_of


def meaning_of(query: Any) -> Meaning:
    """The meaning of a `streamjoin.adhoc.Query`."""
    windows = tuple(
        JointWindow(pair.left, pair.right, "rows", pair.window.n)
        if isinstance(pair.window, CountWindow)
        else JointWindow(pair.left, pair.right, "time", pair.window.length)
        for pair in query.pairs
    )
    conditions: list[Condition] = []
    for step in query.steps:
        conditions += [_term(term, query.schemas) for term in step.terms]
        conditions += [_condition(other) for other in step.others]
    for alias, selection in zip(query.aliases, query.selections, strict=True):
        conditions += [_selection(alias, predicate.condition) for predicate in selection]
    conditions += [_condition(condition) for condition in query.residual]
    outputs = [(output.expression, output.type) for output in query.outputs]

    def output(rows: Rows) -> tuple[Any, ...]:
        values = _values(rows)
        return tuple(as_type(evaluate_row(expression, values), type_) for expression, type_ in outputs)

    sources = tuple((source.alias, source.stream.name) for source in query.sources)
    return Meaning(sources, windows, tuple(conditions), output)


def arrivals_of(stream: str, table: pa.Table, time: str, batch: int = 0) -> list[Arrival]:
    """The rows of a table as arrivals; times are nanoseconds, or the units of an integer column."""
    return [Arrival(stream, row, _ticks(row[time]), batch) for row in rows_of(table)]


def _ticks(value: Any) -> int:
    return int(value.seconds * 10**9) if isinstance(value, Moment) else int(value)


def _values(rows: Rows) -> dict[Column, Any]:
    return {Column(alias, name): value for alias, row in rows.items() for name, value in row.items()}


def _condition(expression: Expression) -> Condition:
    aliases = frozenset(column.qualifier for column in expression.columns)
    return Condition(aliases, lambda rows: evaluate_row(expression, _values(rows)) is True)


def _selection(alias: str, expression: Expression) -> Condition:
    def holds(rows: Rows) -> bool:
        values = {Column(c.qualifier, c.name): rows[alias][c.name] for c in expression.columns}
        return evaluate_row(expression, values) is True

    return Condition(frozenset([alias]), holds)


def _term(term: Any, schemas: Mapping[str, pa.Schema]) -> Condition:
    left, right = term.left, term.right
    if not hasattr(term, "below"):
        return _condition(term.condition)
    types = [schemas[column.qualifier].field(column.name).type for column in (left, right)]
    test = _band(term, types)
    return Condition(
        frozenset([left.qualifier, right.qualifier]),
        lambda rows: test(rows[left.qualifier][left.name], rows[right.qualifier][right.name]),
    )


def _band(term: Any, types: Sequence[pa.DataType]) -> Callable[[Any, Any], bool]:
    """The design's band: |left - right| <= d in the arithmetic of the common type, without wrap-around."""
    unit = 10**9 if term.is_duration else 1
    below, above = (Fraction(Decimal(d)) / unit for d in (term.below, term.above))
    single = all(pa.types.is_float32(type_) or pa.types.is_float16(type_) for type_ in types)

    def holds(left: Any, right: Any) -> bool:
        if left is None or right is None:
            return False
        if isinstance(left, Moment):
            left, right = left.seconds, right.seconds
        if single:
            difference = float32(left - right)
            return oracle.within(difference, 0.0, float32(float(below)), float32(float(above)), term.strict)
        return oracle.within(left, right, below, above, term.strict)

    return holds
