"""Nodes: what they reject, what they print, and that printing and parsing are inverse."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression import nodes as x
from streamjoin.model.expression.parsing import parse_condition
from tests.model.expression_trees import trees

A, B = x.Column("l", "a"), x.Column("r", "b")
TEST = x.Compare("<", A, B)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees("boolean", 3))
def test_printing_and_parsing_are_inverse(tree: x.Expression) -> None:
    again = parse_condition(str(tree))
    assert again == tree
    assert hash(again) == hash(tree)
    assert str(again) == str(tree)
    assert pickle.loads(pickle.dumps(tree)) == tree


@settings(max_examples=150, deadline=None)
@given(st.text(min_size=1, max_size=8).filter(lambda s: s.isprintable()), st.text(max_size=8))
def test_any_name_and_any_string_survive(name: str, text: str) -> None:
    try:
        tree = x.Compare("=", x.Column("l", name), x.Literal(text))
    except ExpressionError:
        text.encode("utf-8", "surrogatepass")
        return
    assert parse_condition(str(tree)) == tree


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**76) + 1, 10**76 - 1) | st.decimals(allow_nan=False, allow_infinity=False, places=9))
def test_any_number_survives(number: int | Decimal) -> None:
    try:
        tree = x.Compare("=", A, x.Literal(number))
    except ExpressionError:
        assert len(Decimal(number).as_tuple().digits) > 76
        return
    assert parse_condition(str(tree)) == tree


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (x.Column("l", "x"), "l.x"),
        (x.Column("l", "X y"), 'l."X y"'),
        (x.Column("order", 'a"b'), 'order."a""b"'),
        (x.Column("select", "from"), '"select"."from"'),
        (x.Literal(None), "NULL"),
        (x.Literal(True), "TRUE"),
        (x.Literal(-5), "-5"),
        (x.Literal(1.5), "1.5"),
        (x.Literal(Decimal("100.00")), "100.0"),
        (x.Literal(Decimal("1e300")), "1E+300"),
        (x.Literal(Decimal("-0.0")), "0.0"),
        (x.Literal("it's"), "'it''s'"),
        (x.Date(0), "DATE '1970-01-01'"),
        (x.Timestamp(1_500_000_000), "TIMESTAMP '1970-01-01 00:00:01.5'"),
        (x.Timestamp(-1, True), "TIMESTAMPTZ '1969-12-31 23:59:59.999999999+00:00'"),
        (x.Interval(90 * 10**9), "INTERVAL '90' SECOND"),
        (x.Interval(0), "INTERVAL '0' DAY"),
        (x.Interval(-1), "INTERVAL '-1' NANOSECOND"),
        (x.Negative(A), "-l.a"),
        (x.Negative(x.Literal(5)), "-(5)"),
        (x.Negative(x.Negative(A)), "-(-l.a)"),
        (x.Arithmetic("-", A, x.Arithmetic("-", B, A)), "l.a - (r.b - l.a)"),
        (x.Arithmetic("-", x.Arithmetic("-", A, B), A), "l.a - r.b - l.a"),
        (x.Arithmetic("*", x.Arithmetic("+", A, B), A), "(l.a + r.b) * l.a"),
        (x.Arithmetic("+", A, x.Arithmetic("%", B, x.Literal(-2))), "l.a + r.b % -2"),
        (x.And((TEST, x.Or((TEST, TEST)))), "l.a < r.b AND (l.a < r.b OR l.a < r.b)"),
        (x.Not(TEST), "NOT (l.a < r.b)"),
        (x.Not(A), "NOT l.a"),
        (x.Compare("=", TEST, x.Literal(True)), "(l.a < r.b) = TRUE"),
        (x.IsNull(x.Arithmetic("+", A, B)), "l.a + r.b IS NULL"),
        (x.IsTruth(TEST, False), "(l.a < r.b) IS FALSE"),
        (x.In(A, (x.Literal(1), x.Literal(None))), "l.a IN (1, NULL)"),
        (x.Like(A, "a%", "!", True), "l.a ILIKE 'a%' ESCAPE '!'"),
        (x.Between(A, x.Literal(1), B), "l.a BETWEEN 1 AND r.b"),
        (x.Case(((TEST, A),), B), "CASE WHEN l.a < r.b THEN l.a ELSE r.b END"),
        (x.Function("LEAST", (A, B)), "LEAST(l.a, r.b)"),
    ],
)
def test_text(node: x.Expression, text: str) -> None:
    assert str(node) == text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: x.Column("", "x"), "qualifier is a non-empty string"),
        (lambda: x.Column("l", 5), "name is a non-empty string"),
        (lambda: x.Literal(b"x"), "not b'x'"),
        (lambda: x.Literal(10**76), "at most 76 digits"),
        (lambda: x.Literal(Decimal("1" * 77 + ".5")), "at most 76 digits"),
        (lambda: x.Literal(float("nan")), "finite"),
        (lambda: x.Literal(Decimal("1e400")), "range of float64"),
        (lambda: x.Literal(Decimal("1e-999999")), "range of float64"),
        (lambda: x.Literal(Decimal("1e999999")), "range of float64"),
        (lambda: x.Literal("\ud800"), "not valid Unicode"),
        (lambda: x.Date(10**7), "years 1 to 9999"),
        (lambda: x.Timestamp(10**21), "years 1 to 9999"),
        (lambda: x.Interval(10**21), "9999 years"),
        (lambda: x.Not(x.Literal(1)), "NOT takes booleans; 1 is not one"),
        (lambda: x.Not("l.a"), "takes expressions, not 'l.a'"),
        (lambda: x.And((TEST,)), "at least two terms, not 1"),
        (lambda: x.Or((TEST, x.Negative(A))), "OR takes booleans; -l.a is not one"),
        (lambda: x.Negative(TEST), "unary minus takes no booleans"),
        (lambda: x.Arithmetic("+", TEST, A), r"\+ takes no booleans"),
        (lambda: x.Arithmetic("**", A, A), r"unknown operator '\*\*'; known: \+"),
        (lambda: x.Compare("==", A, A), "unknown comparison '=='; known: ="),
        (lambda: x.In(A, ()), "at least one value"),
        (lambda: x.In(A, (B,)), "r.b is not one"),
        (lambda: x.Like(A, 5), "string as its pattern"),
        (lambda: x.Like(A, "a", "ab"), "one character"),
        (lambda: x.Like(A, "a!", "!"), "stands before the end"),
        (lambda: x.Like(A, "!a", "!"), "stands before 'a'"),
        (lambda: x.Like(TEST, "a"), "LIKE takes no booleans"),
        (lambda: x.IsTruth(A, None), "TRUE or FALSE"),
        (lambda: x.IsTruth(x.Literal(1), True), "takes booleans"),
        (lambda: x.Function("FOO", (A,)), "unknown function FOO; known: ABS, ACOS"),
        (lambda: x.Function("ABS", ()), "ABS takes 1 argument, not 0"),
        (lambda: x.Function("POWER", (A,)), "POWER takes 2 arguments, not 1"),
        (lambda: x.Function("LEAST", ()), "LEAST takes 1 or more arguments, not 0"),
        (lambda: x.Function("ABS", (TEST,)), "ABS takes no booleans"),
        (lambda: x.Case(()), "at least one WHEN"),
        (lambda: x.Case(((x.Literal(1), A),)), "WHEN takes booleans"),
    ],
)
def test_constructors_reject(make: Any, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        make()


def test_literals_of_different_types_differ() -> None:
    values = [1, True, Decimal(1), "1", None]
    assert len({x.Literal(value) for value in values}) == 5
    assert x.Literal(Decimal("1.50")) == x.Literal(1.5)
    assert x.Literal(1) != 1


def test_chains_are_flat_however_they_were_built() -> None:
    one, two, three = (x.Compare("=", A, x.Literal(n)) for n in range(3))
    assert x.And((x.And((one, two)), three)) == x.And((one, x.And((two, three)))) == x.And((one, two, three))
    chain: x.Expression = one
    for _ in range(1_500):
        chain = x.Or((chain, two))
    assert chain.depth == 3
    assert len(chain.children) == 1_501
    assert x.conjunction(()) == x.Literal(True)
    assert x.conjunction((one,)) is one
    assert x.conjunction((one, two)) == x.And((one, two))


def test_depth_has_a_limit_with_our_error() -> None:
    node: x.Expression = A
    with pytest.raises(ExpressionError, match="more than 100 levels"):
        for _ in range(200):
            node = x.Negative(node)
    assert node.depth == x.MAX_DEPTH
    assert hash(node) == hash(pickle.loads(pickle.dumps(node)))
    assert str(node).endswith("l.a" + ")" * 98)


def test_columns_come_once_in_the_order_of_the_text() -> None:
    tree = parse_condition("r.b < l.a AND (l.c = 1 OR r.b LIKE 'x') AND CASE WHEN l.d THEN l.e ELSE ABS(l.f) END = 1")
    assert [str(column) for column in tree.columns] == ["r.b", "l.a", "l.c", "l.d", "l.e", "l.f"]
    assert x.Literal(1).columns == ()


def test_nodes_are_frozen() -> None:
    with pytest.raises(AttributeError):
        A.name = "z"  # type: ignore[misc]
