"""Computed values as Arrow columns: what the slow evaluator says, and errors instead of wrapping."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.model.expression import nodes as x
from streamjoin.model.expression.arrow_results import to_arrow
from streamjoin.model.expression.evaluation import evaluate, from_arrow
from streamjoin.model.expression.typing_rules import check
from tests.model.expression_trees import COLUMNS, SCHEMA, tables, trees
from tests.oracles.row_evaluator import as_type, evaluate_row, rows_of


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(COLUMNS)).flatmap(trees), st.data())
def test_columns_are_what_the_slow_evaluator_says(tree: x.Expression, data: st.DataObject) -> None:
    names = {q: sorted({c.name for c in tree.columns if c.qualifier == q} | {"b"}) for q in "lr"}
    sides: dict[str, pa.Table] = {q: data.draw(tables(3, names[q])) for q in "lr"}
    type_ = check(tree, {"l": SCHEMA, "r": SCHEMA})
    columns = {x.Column(q, name): from_arrow(side[name]) for q, side in sides.items() for name in names[q]}
    rows = [
        {x.Column(q, name): value for q, row in (("l", left), ("r", right)) for name, value in row.items()}
        for left, right in zip(rows_of(sides["l"]), rows_of(sides["r"]), strict=True)
    ]
    wanted = [as_type(evaluate_row(tree, row), type_) for row in rows]
    try:
        found = to_arrow(evaluate(tree, columns), type_, 3)
    except sj.InputError:
        with pytest.raises((OverflowError, pa.ArrowInvalid, pa.ArrowTypeError)):
            _stored(wanted, type_)
        return
    found.validate(full=True)
    assert found.type == type_
    assert [row["v"] for row in rows_of(pa.table({"v": found}))] == wanted, str(tree)


def _stored(wanted: list[object], type_: pa.DataType) -> None:
    """Put values into a column the way Arrow itself does; fails if one does not fit."""
    for value in wanted:
        if hasattr(value, "seconds"):
            ticks = value.seconds * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[type_.unit]
            pa.array([int(ticks)], pa.int64())
        elif pa.types.is_decimal(type_) and value is not None:
            if abs(int(value * 10**type_.scale)) >= 10**type_.precision:
                raise OverflowError(value)
        else:
            pa.array([value], type_)


@pytest.mark.parametrize(
    ("expression", "type_", "wanted"),
    [
        (x.Literal(5), pa.int64(), [5, 5]),
        (x.NULL, pa.string(), [None, None]),
        (x.Literal(Decimal("1.5")), pa.float64(), [1.5, 1.5]),
        (x.Literal("a"), pa.string(), ["a", "a"]),
    ],
)
def test_constants_are_repeated(expression: x.Expression, type_: pa.DataType, wanted: list[object]) -> None:
    assert to_arrow(evaluate(expression, {}), type_, 2).to_pylist() == wanted
    assert len(to_arrow(evaluate(expression, {}), type_, 0)) == 0


def test_a_number_that_does_not_fit_is_an_error() -> None:
    column = x.Column("l", "i")
    values = {column: from_arrow(pa.array([2**62, None], pa.int64()))}
    with pytest.raises(sj.InputError, match="9223372036854775808 does not fit int64"):
        to_arrow(evaluate(x.Arithmetic("*", column, x.Literal(2)), values), pa.int64(), 2)
