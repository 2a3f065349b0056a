"""Fitting specs to schemas: what goes together, what does not, and how the output is named."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.model.binding import bind

COUNT = sj.CountWindow(5)


def bound(on: sj.Equi, left: dict[str, pa.DataType], right: dict[str, pa.DataType], **rest: object):  # type: ignore[no-untyped-def]
    spec = sj.JoinSpec(**{"on": on, "window": COUNT, **rest})  # type: ignore[arg-type]
    return bind(spec, pa.schema(list(left.items())), pa.schema(list(right.items())))


TS = pa.timestamp("us")
UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("on", "left", "right", "says"),
    [
        (sj.Equi("a"), {"b": pa.int64()}, {"a": pa.int64()}, "left side has no column 'a'"),
        (sj.Equi("price"), {"price": pa.int64()}, {"prices": pa.int64()}, "did you mean 'prices'"),
        (sj.Equi("a"), {}, {"a": pa.int64()}, "no columns"),
        (sj.Equi("a"), {"a": pa.int64()}, {"a": pa.string()}, "don't compare"),
        (sj.Equi("a"), {"a": pa.string()}, {"a": pa.binary()}, "don't compare"),
        (sj.Equi("a"), {"a": pa.list_(pa.int64())}, {"a": pa.list_(pa.int64())}, "don't compare"),
        (sj.Equi("a"), {"a": TS}, {"a": UTC}, "time zone"),
        (sj.Equi("a"), {"a": TS}, {"a": pa.int64()}, "don't compare"),
        (sj.Band("a", "a", 1), {"a": pa.string()}, {"a": pa.string()}, "needs numbers or times"),
        (sj.Band("a", "a", 1), {"a": pa.bool_()}, {"a": pa.bool_()}, "don't compare"),
        (sj.Band("a", "a", 1), {"a": TS}, {"a": TS}, "as a duration"),
        (sj.Band("a", "a", "1 s"), {"a": pa.int64()}, {"a": pa.int64()}, "between timestamps, dates"),
        (sj.Band("a", "a", 2**63), {"a": pa.int64()}, {"a": pa.int64()}, "whole type"),
        (sj.Theta("l.a < r.zz"), {"a": pa.int64()}, {"a": pa.int64()}, "zz"),
        (sj.Theta("l.a < r.a"), {"a": pa.int64()}, {"a": pa.string()}, "(?i)compare"),
    ],
)
def test_what_does_not_fit(on: sj.Equi, left: dict[str, pa.DataType], right: dict[str, pa.DataType], says: str) -> None:
    with pytest.raises(sj.SchemaError, match=says):
        bound(on, left, right)


@pytest.mark.parametrize(
    ("rest", "left", "right", "says"),
    [
        ({"time": "t", "window": sj.TimeWindow("1 s")}, {"t": pa.int64()}, {"t": pa.int64()}, "whole number"),
        ({"time": "t", "window": sj.TimeWindow(1)}, {"t": TS}, {"t": TS}, "a duration"),
        ({"time": "t"}, {"t": pa.float64()}, {"t": pa.float64()}, "timestamp, a date, a duration or an integer"),
        ({"time": "t"}, {"t": pa.int64()}, {"t": TS}, "count differently"),
        ({"time": "t"}, {"t": UTC}, {"t": TS}, "time zone"),
        ({"time": ("t", "u")}, {"t": TS}, {"t": TS}, "right side has no column 'u'"),
        ({"time": "t", "order": "event_time", "lateness": 5}, {"t": TS}, {"t": TS}, "lateness"),
    ],
)
def test_times_that_do_not_fit(
    rest: dict[str, object], left: dict[str, pa.DataType], right: dict[str, pa.DataType], says: str
) -> None:
    with pytest.raises(sj.SchemaError, match=says):
        bound(sj.Equi("a"), {"a": pa.int64(), **left}, {"a": pa.int64(), **right}, **rest)


def test_output_columns_are_left_then_right_with_suffixes_and_time_last() -> None:
    schema = bound(
        sj.Equi("k"),
        {"k": pa.int64(), "ts": TS, "px": pa.float64()},
        {"k": pa.int64(), "t": pa.timestamp("ns"), "bid": pa.float64()},
        time=("ts", "t"),
    ).schema
    assert schema.names == ["k", "ts", "px", "t", "bid", "result_time"]
    assert schema.field("result_time").type == pa.timestamp("ns")


def test_without_a_time_there_is_no_result_time() -> None:
    assert bound(sj.Equi("k"), {"k": pa.int64(), "ts": TS}, {"k": pa.int64()}).schema.names == ["k", "ts"]


def names(on: sj.Equi | sj.Band | str, left: str, right: str, **rest: object) -> list[str]:
    """The result's columns of two sides whose columns are all numbers."""
    sides = [dict.fromkeys(side.split(), pa.int64()) for side in (left, right)]
    found: list[str] = bound(on, *sides, **rest).schema.names
    return found


@pytest.mark.parametrize(
    "on", [sj.Equi("k"), sj.Equi("k") & sj.Theta("l.a < r.b"), "l.k = r.k", "r.k = l.k and l.a < r.b"]
)
def test_a_key_of_one_name_comes_out_once(on: Any) -> None:
    assert names(on, "k a", "k b") == ["k", "a", "b"]
    assert names(on, "k a", "k b", both_keys=True) == ["k_left", "a", "k_right", "b"]
    assert names(on, "k a b", "k a b", suffixes=("", "2")) == ["k", "a", "b", "a2", "b2"]


def test_only_an_equality_that_must_hold_makes_one_column_of_two() -> None:
    assert names("l.k = r.k or l.a = r.b", "k a", "k b") == ["k_left", "a", "k_right", "b"]
    assert names(sj.Equi("k", "b"), "k", "k b") == ["k_left", "k_right", "b"]
    assert names(sj.Band("k", "k", 1), "k", "k") == ["k_left", "k_right"]


@pytest.mark.parametrize(
    ("left", "right", "rest", "wanted"),
    [
        ("k t", "k t", {"time": "t"}, "k t_left t_right t"),
        ("k t ts", "k t", {"time": "t"}, "k t_left ts t_right t"),
        ("k t ts", "k u", {"time": ("t", "u")}, "k t ts u result_time"),
        ("k t", "k t", {"time": "t", "result_time": "at"}, "k t_left t_right at"),
        ("k ts", "k u", {"time": ("ts", "u"), "result_time": "ts"}, "k ts_left u ts"),
        ("k result_time", "k u", {"time": ("result_time", "u")}, "k result_time_left u result_time"),
        ("k t", "k t", {"time": "t", "suffixes": ("", "_r")}, "k t t_r result_time"),
        ("t", "t", {"time": "t", "on": sj.Equi("t")}, "t_left t_right t"),
    ],
)
def test_the_time_of_the_result_never_takes_the_name_of_a_column(
    left: str, right: str, rest: dict[str, Any], wanted: str
) -> None:
    assert names(rest.pop("on", sj.Equi("k")), left, right, **rest) == wanted.split()


def test_names_that_differ_only_in_case_get_suffixes() -> None:
    assert names(sj.Equi("k"), "k id", "k ID") == ["k", "id_left", "ID_right"]
    assert names(sj.Equi("k", "K"), "k a", "K A b") == ["k_left", "a_left", "K_right", "A_right", "b"]
    assert names(sj.Equi("k"), "k TS", "k ts", time=("TS", "ts"), result_time="Ts") == [
        "k",
        "TS_left",
        "ts_right",
        "Ts",
    ]
    assert names(sj.Equi("k"), "k id ID", "k b") == ["k", "id", "ID", "b"]


@pytest.mark.parametrize(
    ("left", "right", "rest"),
    [
        ("k k_left", "k", {"both_keys": True}),
        ("k a a_left", "k a", {}),
        ("k t at", "k t", {"time": "t", "result_time": "at", "suffixes": ("", "_r")}),
    ],
)
def test_names_that_would_clash_are_refused(left: str, right: str, rest: dict[str, Any]) -> None:
    with pytest.raises(sj.SchemaError, match=r"two columns of the result would be called .*suffixes= or result_time="):
        names(sj.Equi("k"), left, right, **rest)


def test_a_key_with_a_band_make_one_index_word() -> None:
    plan = bound(
        sj.Band("px", "px", 1.0) & sj.Equi("sym") & sj.Theta("l.q < r.q"),
        {"px": pa.float64(), "sym": pa.string(), "q": pa.int64()},
        {"px": pa.float64(), "sym": pa.string(), "q": pa.int64()},
    )
    assert [str(t.term) for t in plan.index] == ["l.sym = r.sym", "|l.px - r.px| <= 1.0"]
    assert [str(t.term) for t in plan.terms] == ["|l.px - r.px| <= 1.0"]
    assert plan.residual is not None


def test_a_single_numeric_band_is_decided_by_the_index() -> None:
    plan = bound(sj.Band("a", "a", 3), {"a": pa.int32()}, {"a": pa.int64()})
    assert plan.residual is None
    assert plan.settled == {0}
