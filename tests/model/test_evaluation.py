"""Evaluation against the slow evaluator and against DuckDB."""

from __future__ import annotations

import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.model.expression import nodes as x
from streamjoin.model.expression.evaluation import evaluate, from_arrow
from streamjoin.model.expression.nodes import NULL
from streamjoin.model.expression.parsing import parse_condition
from streamjoin.model.expression.typing_rules import check
from tests.model.evaluated import both_sides, decode, slow_rows
from tests.model.expression_trees import COLUMNS, CORNERS, SCHEMA, tables, trees
from tests.oracles.row_evaluator import evaluate_row
from tests.seeds import examples

SLOW = settings(max_examples=examples(350), deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def cases(draw: st.DrawFn) -> tuple[x.Expression, pa.Table, pa.Table]:
    """A condition, and tables of the columns it reads and at least one more."""
    tree = draw(trees(draw(st.sampled_from(["boolean", "boolean", "boolean", *COLUMNS]))))
    names = [sorted({c.name for c in tree.columns if c.qualifier == q} | {"b"}) for q in "lr"]
    left, right = (draw(tables(draw(st.integers(least, 4)), used)) for least, used in zip((0, 1), names, strict=True))
    return tree, left, right


@SLOW
@given(cases())
def test_every_pair_is_what_the_slow_evaluator_says(case: tuple[x.Expression, pa.Table, pa.Table]) -> None:
    tree, left, right = case
    check(tree, {"l": SCHEMA, "r": SCHEMA})
    shape = (len(left), len(right))
    found = decode(evaluate(tree, both_sides(left, right)), shape)
    wanted = [evaluate_row(tree, row) for row in slow_rows(left, right)]
    assert found == wanted, str(tree)
    for one, two in zip(found, wanted, strict=True):
        assert type(one) is type(two) or {type(one), type(two)} == {Fraction, Decimal}, str(tree)


@st.composite
def two_columns(draw: st.DrawFn) -> tuple[x.Expression, pa.Table, pa.Table]:
    """One operator over one column of each side: the rows, not the tree, are what varies."""
    family = draw(st.sampled_from(["ihufedw", "tn", "v"]))
    names = [draw(st.sampled_from(family)) for _ in "lr"]
    left, right = (x.Column(q, name) for q, name in zip("lr", names, strict=True))
    if draw(st.booleans()):
        tree: x.Expression = x.Compare(draw(st.sampled_from(x.COMPARISONS)), left, right)
    else:
        symbols = {"ihufedw": "+-*/%", "tn": "-", "v": "+-"}[family]
        tree = x.Arithmetic(draw(st.sampled_from(symbols)), left, right)
    return tree, draw(tables(4, names[:1], CORNERS)), draw(tables(4, names[1:], CORNERS))


@settings(SLOW, max_examples=examples(400))
@given(two_columns())
def test_operators_at_the_extremes(case: tuple[x.Expression, pa.Table, pa.Table]) -> None:
    tree, left, right = case
    found = decode(evaluate(tree, both_sides(left, right)), (4, 4))
    assert found == [evaluate_row(tree, row) for row in slow_rows(left, right)], str(tree)


@settings(SLOW, max_examples=examples(80))
@given(cases(), st.data())
def test_a_broadcast_equals_the_gathered_pairs(
    case: tuple[x.Expression, pa.Table, pa.Table], data: st.DataObject
) -> None:
    tree, left, right = case
    pairs = [(i, j) for i in range(len(left)) for j in range(len(right))]
    picked = data.draw(st.lists(st.sampled_from(pairs), max_size=6)) if pairs else []
    rows = [np.array([pair[side] for pair in picked], np.int64) for side in (0, 1)]
    gathered = {
        x.Column(q, name): from_arrow(table[name]).take(rows[side])
        for side, (q, table) in enumerate((("l", left), ("r", right)))
        for name in table.column_names
    }
    everything = decode(evaluate(tree, both_sides(left, right)), (len(left), len(right)))
    found = decode(evaluate(tree, gathered), (len(picked),))
    assert found == [everything[i * len(right) + j] for i, j in picked], str(tree)


# DuckDB ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database() -> Any:
    random = np.random.default_rng(7)

    def column(values: list[Any], type_: pa.DataType, rows: int) -> pa.Array:
        picks = [None if random.random() < 0.15 else values[random.integers(len(values))] for _ in range(rows)]
        return pa.array(picks, type_)

    def table(rows: int) -> pa.Table:
        return pa.table(
            {
                "i": column(list(range(-4, 5)), pa.int64(), rows),
                "j": column(list(range(-20, 20)), pa.int32(), rows),
                "f": column([-2.5, -0.5, 0.0, 0.25, 1.0, 3.75], pa.float64(), rows),
                "s": column(["", "a", "ab", "Ab", "b_", "a%c", "abc"], pa.string(), rows),
                "b": column([True, False], pa.bool_(), rows),
                "t": column(
                    [datetime.datetime(2024, 1, d, h) for d in (1, 2) for h in (0, 5, 23)], pa.timestamp("us"), rows
                ),
                "day": column([datetime.date(2024, 1, d) for d in (1, 2, 3)], pa.date32(), rows),
            }
        )

    left, right = table(7), table(9)
    with duckdb.connect() as connection:
        connection.register("l_data", left.append_column("n", pa.array(range(7))))
        connection.register("r_data", right.append_column("n", pa.array(range(9))))
        connection.execute("CREATE TABLE l AS FROM l_data; CREATE TABLE r AS FROM r_data")
        connection.execute("SET ieee_floating_point_ops = false")
        yield connection, left, right


def agrees_with_duckdb(database: Any, text: str) -> None:
    connection, left, right = database
    wanted = [row[0] for row in connection.execute(f"SELECT ({text}) FROM l, r ORDER BY l.n, r.n").fetchall()]
    condition = parse_condition(text)
    # A bare NULL is a condition too, of no type.
    wanted_type = pa.null() if condition == NULL else pa.bool_()
    assert check(condition, {"l": left.schema, "r": right.schema}) == wanted_type
    found = decode(evaluate(condition, both_sides(left, right)), (len(left), len(right)))
    assert found == wanted, text


def _joined(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(" ".join)


_COMPARISON = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
_NUMBER = st.recursive(
    st.sampled_from(["l.i", "r.i", "l.j", "r.f", "l.f", "3", "-2", "0.5", "2.25", "0", "NULL"]),
    lambda inner: st.one_of(
        _joined(inner, st.sampled_from(["+", "-", "*"]), inner).map("({})".format),
        # The operators' precedence and grouping, left to each parser.
        _joined(inner, st.sampled_from(["+", "-", "*"]), inner, st.sampled_from(["+", "-", "*"]), inner).map(
            "ABS({})".format
        ),
        _joined(inner, st.sampled_from(["/", "%"]), st.sampled_from(["4", "-2", "l.i"])).map("({})".format),
        inner.map("(- {})".format),
        inner.map("ROUND({})".format),
        inner.map("FLOOR({})".format),
        st.tuples(inner, inner).map(lambda pair: "COALESCE({}, {})".format(*pair)),
        st.tuples(inner, inner).map(lambda pair: "GREATEST({}, {}, l.i)".format(*pair)),
    ),
    max_leaves=4,
)
_STRING = st.sampled_from(["l.s", "r.s", "LOWER(l.s)", "UPPER(r.s)", "'ab'", "COALESCE(l.s, r.s)"])
_TIME = st.sampled_from(
    ["l.t", "r.t", "l.day", "r.day", "TIMESTAMP '2024-01-01 05:00:00'", "DATE '2024-01-02'", "l.t + INTERVAL '5' HOUR"]
)
_TEST = st.one_of(
    _joined(_NUMBER, _COMPARISON, _NUMBER),
    _joined(_STRING, _COMPARISON, _STRING),
    _joined(_TIME, _COMPARISON, _TIME),
    _joined(_NUMBER, st.sampled_from(["BETWEEN", "NOT BETWEEN"]), _NUMBER, st.just("AND"), _NUMBER),
    _joined(_NUMBER, st.sampled_from(["IN (1, 2, NULL)", "NOT IN (0, -2)", "IS NULL", "IS NOT NULL"])),
    _joined(_STRING, st.sampled_from(["IN ('a', 'ab')", "NOT IN ('b', NULL)"])),
    _joined(
        _STRING,
        st.sampled_from(["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"]),
        st.sampled_from(["'a%'", "'%b%'", "'_b'", "''", "'a!%_' ESCAPE '!'", "'%'"]),
    ),
    st.sampled_from(["l.b", "r.b", "l.b IS TRUE", "r.b IS NOT FALSE", "l.b = r.b", "LENGTH(l.s) > l.i", "NULL"]),
    st.sampled_from(["ABS(l.i) = 2", "CASE WHEN l.b THEN l.i = 1 WHEN r.b THEN NULL ELSE r.b END"]),
)
_CONDITION = st.recursive(
    _TEST,
    lambda inner: st.one_of(
        _joined(inner, st.sampled_from(["AND", "OR"]), inner),
        _joined(inner, st.just("AND"), inner, st.just("OR NOT"), inner),
        inner.map("NOT ({})".format),
        inner.map("({})".format),
    ),
    max_leaves=5,
)


@settings(SLOW, max_examples=examples(200))
@given(text=_CONDITION)
def test_duckdb_agrees(database: Any, text: str) -> None:
    agrees_with_duckdb(database, text)


@pytest.mark.parametrize(
    "text",
    [
        "l.i + r.i * 2 - 1 < 3",
        "-l.i % 3 = -1",
        "l.j / 4 > 1.25",
        "NOT l.i = 1 AND NOT l.b",
        "NOT l.b OR r.b AND l.i > 0",
        "l.i - r.i - 1 = -1",
        "l.f * 2 BETWEEN r.i AND r.i + 3 AND l.b",
        "l.t - r.t < INTERVAL '6 hours'",
        "l.t - INTERVAL '1 day' > r.day",
        "SQRT(ABS(l.f)) > 1 AND POWER(l.i, 2) > 4",
        "CEIL(l.f) = r.i OR LEAST(l.i, r.i, 0) = -2",
        "CASE l.i WHEN 1 THEN 'one' WHEN 2 THEN 'two' ELSE 'many' END <> 'many'",
    ],
)
def test_duckdb_agrees_by_hand(database: Any, text: str) -> None:
    agrees_with_duckdb(database, text)
