"""Canonical forms keep the value of every row, and are canonical themselves."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.model.expression import nodes as x
from streamjoin.model.expression.canonical import canonical, conjuncts, renamed
from streamjoin.model.expression.parsing import parse_condition
from tests.model.expression_trees import tables, trees
from tests.oracles.row_evaluator import evaluate_row, rows_of


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees("boolean"), st.data())
def test_a_canonical_form_has_the_value_of_what_was_written(tree: x.Expression, data: st.DataObject) -> None:
    names = [sorted({c.name for c in tree.columns if c.qualifier == q} | {"b"}) for q in "lr"]
    sides: list[pa.Table] = [data.draw(tables(2, used)) for used in names]
    found = canonical(tree)
    assert canonical(found) == found
    for left, right in zip(*map(rows_of, sides), strict=True):
        row = {x.Column(q, name): value for q, side in (("l", left), ("r", right)) for name, value in side.items()}
        assert evaluate_row(found, row) == evaluate_row(tree, row), (str(tree), str(found))
        holds = all(evaluate_row(term, row) is True for term in conjuncts(tree))
        assert holds == (evaluate_row(tree, row) is True)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees("boolean"))
def test_renaming_there_and_back_is_canonical(tree: x.Expression) -> None:
    assert renamed(renamed(tree, {"l": "r", "r": "l"}), {"l": "r", "r": "l"}) == canonical(tree)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("NOT (l.a AND NOT l.b)", "NOT l.a OR l.b"),
        ("NOT NOT l.a", "l.a"),
        ("5 >= l.a", "l.a <= 5"),
        ("l.b = l.a", "l.a = l.b"),
        ("l.a IN (3, 1, 3)", "l.a IN (1, 3)"),
        ("2 + l.a > 3 * 4", "l.a + 2 > 12"),
        ("l.a AND l.b AND l.a", "l.a AND l.b"),
        ("NOT (l.a IS DISTINCT FROM 1)", "l.a IS NOT DISTINCT FROM 1"),
        ("NOT TRUE OR NOT NULL", "FALSE OR NULL"),
        ("l.a - 1 < 2", "l.a - 1 < 2"),
        ("NOT CASE WHEN 1 > l.a THEN l.b END", "NOT CASE WHEN l.a < 1 THEN l.b END"),
    ],
)
def test_canonical_forms(text: str, wanted: str) -> None:
    found = canonical(parse_condition(text))
    assert str(found) == wanted
    assert canonical(found) == found
