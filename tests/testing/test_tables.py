"""Tables written as text, and joins tested with them."""

from __future__ import annotations

import datetime as dt
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.testing import assert_rows, table

TRADES = """
    ts                   sym   px
    2026-01-02T09:30:00  AAPL  10.5
    2026-01-02T09:30:04  AAPL  11
"""
QUOTES = """
    | ts                  | sym  | bid  |
    | 2026-01-02T09:30:02 | AAPL | NULL |
    | 2026-01-02T09:30:09 | AAPL | 11.5 |
"""


def test_a_join_in_text() -> None:
    spec = sj.JoinSpec(on=sj.Equi("sym"), window=sj.TimeWindow("2 seconds"), time="ts", order="event_time")
    with sj.open(spec) as join:
        rows = pa.concat_tables([join.push(table(TRADES), table(QUOTES)), join.close()])
    expected = """
        px    bid
        10.5  NULL
        11    NULL
    """
    assert_rows(rows, expected)
    with pytest.raises(
        AssertionError, match=r"px, bid\nfound:\n\(10.5, None\)\n\(11.0, None\)\nexpected:\n\(10.5, None\)"
    ):
        assert_rows(rows, "px bid\n10.5 NULL\n11 12")


def test_types_are_those_of_the_values_unless_given() -> None:
    shown = table(TRADES)
    assert shown.schema.types == [pa.timestamp("s"), pa.string(), pa.float64()]
    assert shown["ts"][0].as_py() == dt.datetime(2026, 1, 2, 9, 30)
    given_types = {"a": pa.uint64(), "b": pa.decimal128(5, 2), "c": pa.dictionary(pa.int32(), pa.string())}
    typed = table("a b c\n18446744073709551615 1.25 x", given_types)
    assert typed.schema.types == [*given_types.values()]
    assert typed.to_pylist() == [{"a": 2**64 - 1, "b": typed["b"][0].as_py(), "c": "x"}]
    assert table("a b").num_rows == 0


def test_order_counts_unless_it_does_not() -> None:
    rows = pa.table({"a": [2.0, math.nan, None], "b": ["x", "y", "y"]})
    assert_rows(rows, "a b\n2 x\nnan y\nNULL y")
    assert_rows(rows, "b a\ny NULL\nx 2\ny nan", ordered=False)
    with pytest.raises(AssertionError):
        assert_rows(rows, "b a\ny NULL\nx 2\ny nan")
    with pytest.raises(AssertionError):
        assert_rows(rows, "a b\n2 x\nnan y", ordered=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with a line of column names"),
        ("a b\n1", "1 values for 2 columns"),
        ('a\n"x', "a quote is not closed"),
        ("a a\n1 2", "two columns have one name"),
        ("big\n1\n5000000000000000000000", "does not fit its columns"),
    ],
)
def test_text_that_is_no_table(text: str, message: str) -> None:
    with pytest.raises(sj.StreamJoinError, match=message):
        table(text, {"big": pa.int64()} if "big" in text else None)


def test_columns_that_are_not_there() -> None:
    with pytest.raises(sj.SchemaError, match="types= names b"):
        table("a\n1", {"b": pa.int64()})
    with pytest.raises(sj.SchemaError, match="the result has no column b; it has a"):
        assert_rows(pa.table({"a": [1]}), "a b\n1 2")


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1) | st.none(), st.text("ab ,|\\'\t", max_size=4))))
def test_what_is_written_is_read(rows: list[tuple[int | None, str]]) -> None:
    text = "\n".join(["n t", *(f'{"NULL" if n is None else n} "{t}"' for n, t in rows)])
    read = table(text, {"n": pa.int64(), "t": pa.string()})
    assert [tuple(row.values()) for row in read.to_pylist()] == rows
