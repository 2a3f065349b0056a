"""`:name` in a query's text: values become literals, at every door, and nothing else of the text changes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamjoin.adhoc import Engine
from streamjoin.model.errors import QueryError, SpecError
from streamjoin.model.expression.nodes import Literal
from streamjoin.model.expression.parsing import parse_condition
from streamjoin.queries.language.clauses import QueryText
from streamjoin.queries.language.parameters import literal, with_values
from tests.queries.catalog import TICKS


class Level(IntEnum):
    HIGH = 2


def text_with(text: str, **parameters: Any) -> str:
    return with_values(QueryText(text), parameters)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_stays_one_value(value: str) -> None:
    condition: Any = parse_condition(f"l.x = {literal(value)} AND l.y = 1")
    assert Literal(value) in list(condition.walk())


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.decimals(-10, 10, places=3))
def test_any_number_stays_the_same(value: Any) -> None:
    condition: Any = parse_condition(f"l.x - {literal(value)} > 3")
    numbers = [node.value for node in condition.walk() if isinstance(node, Literal)]
    exact = Decimal(repr(value) if isinstance(value, float) else value)
    assert exact in numbers or -exact in numbers


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "NULL"),
        (True, "TRUE"),
        (np.int32(-7), "(-7)"),
        (np.float32(1.5), "1.5"),
        (datetime(2024, 1, 2, 3, 4, 5, 6), "TIMESTAMP '2024-01-02 03:04:05.000006'"),
        (datetime(2024, 1, 2, tzinfo=UTC), "TIMESTAMPTZ '2024-01-02 00:00:00+00:00'"),
        (np.datetime64("2024-01-02T03"), "TIMESTAMP '2024-01-02 03:00:00'"),
        (np.datetime64("1969-12-31T23:59:59.123456789"), "TIMESTAMP '1969-12-31 23:59:59.123456789'"),
        (-0.0, "(-0.0)"),
        (Decimal("-0"), "(-0)"),
        (Decimal("1E-30"), "1E-30"),
        (Level.HIGH, "2"),
        (date(2024, 1, 2), "DATE '2024-01-02'"),
        (timedelta(days=-1), "INTERVAL '-86400000000 microseconds'"),
        (np.timedelta64(5, "ns"), "INTERVAL '5 nanoseconds'"),
        (("a", "b"), "('a', 'b')"),
    ],
)
def test_every_kind_of_value_is_a_literal(value: Any, written: str) -> None:
    assert literal(value) == written
    parse_condition(f"l.x IN {written}" if isinstance(value, tuple) else f"l.x = {written}")


def test_only_parameters_are_replaced() -> None:
    text = "SELECT x.a:b, ':p', x.k::int FROM s x WHERE x.k=:p AND x.v IN :all -- :p\n AND \":p\" = :p"
    assert text_with(text, p=5, all=[1]) == (
        "SELECT x.a:b, ':p', x.k::int FROM s x WHERE x.k=5 AND x.v IN (1) -- :p\n AND \":p\" = 5"
    )


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        ("x.v > 3 -:p AND x.k = 1", -0.0, "x.v > 3 -(-0.0) AND x.k = 1"),
        ("x.v > 3 -:p AND x.k = 1", Decimal("-0.00"), "x.v > 3 -(-0.00) AND x.k = 1"),
        ("NOT:p", True, "NOT TRUE"),
        ("x.k =:p'a'", "it's", "x.k ='it''s' 'a'"),
    ],
)
def test_a_value_becomes_no_part_of_what_stands_beside_it(text: str, value: Any, written: str) -> None:
    assert text_with(text, p=value) == written


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        ("SELECT :p", None, ":p has no value: give parameters={'p': ...}"),
        ("SELECT :p", {"q": 1}, "parameters has 'q', and the text has no :q; in it are: :p"),
        ("SELECT 1", {"q": 1}, "in it are: none"),
        ("SELECT ?", {}, "a parameter has a name: write :sym"),
        ("SELECT $1", {}, "a parameter has a name: write :sym"),
        ("SELECT :1", {}, "a parameter has a name: write :sym"),
        ("SELECT :p", {"p": float("nan")}, "the parameter 'p' is nan"),
        ("SELECT :p", {"p": Decimal("sNaN")}, "the parameter 'p' is sNaN"),
        ("SELECT :p", {"p": -(10**400)}, "the parameter 'p' is an integer of this size, which no literal writes"),
        ("SELECT :p", {"p": 10**5000}, "the parameter 'p' is an integer of this size, which no literal writes"),
        ("SELECT :p", {"p": np.datetime64("NaT")}, "the parameter 'p' is NaT, which no literal writes; give None"),
        ("SELECT :p", {"p": np.datetime64("20240-01-01")}, "a time lies between the years 1 and 9999"),
        ("SELECT :p", {"p": [[1], [2]]}, "the parameter 'p' is a list: give a number"),
        ("SELECT :p", {"p": []}, "IN needs at least one value"),
        ("SELECT :p", {"p": {}}, "the parameter 'p' is a dict: give a number"),
        ("SELECT :p", {"p": "\0"}, "a NUL character"),
        ("SELECT :p", [1], "parameters is a dict of values by name"),
    ],
)
def test_what_is_refused(text: str, parameters: Any, message: str) -> None:
    with pytest.raises((QueryError, SpecError)) as told:
        with_values(QueryText(text), parameters)
    assert message in str(told.value)


def test_an_engine_stores_the_text_with_its_values() -> None:
    with Engine() as engine:
        engine.register("ticks", schema=TICKS.schema, time="t")
        text = "SELECT x.k FROM ticks x JOIN ticks y WITHIN :reach UNITS ON x.k = y.k WHERE x.k IN :keys"
        assert engine.preview(text, parameters={"reach": 5, "keys": [1, 2]}).columns
        query = engine.create(text, parameters={"reach": 5, "keys": [1, 2]})
        assert query.info().sql == (
            "SELECT x.k FROM ticks x JOIN ticks y WITHIN 5 UNITS ON x.k = y.k WHERE x.k IN (1, 2)"
        )
        with pytest.raises(QueryError, match=":reach has no value"):
            engine.create(text)
