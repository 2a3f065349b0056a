"""Specs and predicates reject what can't be, and say what to write instead."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.model import durations
from streamjoin.model.binding import bind


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("15 minutes", 900 * 10**9),
        ("1h 30m", 5400 * 10**9),
        ("1 hour, 30 min and 2 s", 5402 * 10**9),
        ("1.5 h", 5400 * 10**9),
        ("250ms", 250 * 10**6),
        ("0.5us", 500),
        ("7 ns", 7),
        ("2 weeks", 14 * 86400 * 10**9),
        (dt.timedelta(milliseconds=3), 3_000_000),
        (dt.timedelta(days=-1, seconds=5), (-86400 + 5) * 10**9),
        (pd.Timedelta("5ns"), 5),
        (pd.Timedelta("1 day 2us 7ns"), 86400 * 10**9 + 2007),
        (pd.Timedelta("-5ns"), -5),
        (pd.Timedelta("3s").as_unit("s"), 3 * 10**9),
        (np.timedelta64(5, "ns"), 5),
        (np.timedelta64(-2, "25s"), -50 * 10**9),  # type: ignore[call-overload]
        (np.timedelta64(1, "W"), 7 * 86400 * 10**9),
        (np.timedelta64(3, "m"), 180 * 10**9),
    ],
)
def test_durations(text: durations.Duration, ns: int) -> None:
    assert durations.nanoseconds(text) == ns
    if ns >= 0:
        assert sj.Band("a", "b", text).below == sj.TimeWindow(text).length == ns


def test_numbers_of_numpy_are_numbers() -> None:
    assert sj.CountWindow(np.int64(5)) == sj.CountWindow(5)
    assert sj.TimeWindow(np.uint8(5)) == sj.TimeWindow(5)
    assert sj.Band("a", "b", np.int32(5)) == sj.Band("a", "b", 5)
    assert repr(sj.Band("a", "b", np.float32(0.5))) == repr(sj.Band("a", "b", 0.5))
    spec = sj.JoinSpec(on=EQUI, window=COUNT, time="t", lateness=np.int64(3))
    assert spec == sj.JoinSpec(on=EQUI, window=COUNT, time="t", lateness=3)


@pytest.mark.parametrize("value", [np.timedelta64("NaT"), np.timedelta64(1, "M"), np.timedelta64(5), np.bool_(True)])
def test_what_numpy_has_that_is_no_length(value: Any) -> None:
    for make in (sj.TimeWindow, lambda distance: sj.Band("a", "b", distance)):
        with pytest.raises(sj.SpecError, match="duration"):
            make(value)


@pytest.mark.parametrize(
    ("combine", "says"),
    [
        (lambda a, b: a and b, "with &, not with `and`"),
        (lambda a, b: a or b, "with &, not with `and`"),
        (lambda a, b: not a, "neither true nor false"),
        (lambda a, b: a | b, "Theta"),
        (lambda a, b: "l.x = r.x" | a, "Theta"),
        (lambda a, b: ~a, "Theta"),
        (lambda a, b: (a & b) and b, "with &, not with `and`"),
    ],
)
def test_conditions_are_joined_by_and_alone(combine: Any, says: str) -> None:
    for other in (sj.Equi("b"), sj.Band("p", "q", 1), sj.Theta("l.p < r.q")):
        with pytest.raises(sj.SpecError, match=says):
            combine(sj.Equi("a"), other)


@pytest.mark.parametrize("text", ["", "   ", "5", "minutes", "5 parsecs", "5 s x", "-3 s", "0.5 ns", "1e3 s"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(sj.SpecError, match="duration"):
        durations.nanoseconds(text)


def test_a_duration_is_described_in_its_largest_unit() -> None:
    assert [durations.describe(n * 10**9) for n in (0, 60, 90, 7200, 86400)] == ["0 ns", "1 min", "90 s", "2 h", "1 d"]


@pytest.mark.parametrize("n", [0, -1, 1.5, "3", True, None, 2**41])
def test_count_windows_are_checked(n: object) -> None:
    with pytest.raises(sj.SpecError, match="CountWindow"):
        sj.CountWindow(n)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [-1, "soon", 1.5, None, True, dt.timedelta(seconds=-1)])
def test_time_windows_are_checked(length: object) -> None:
    with pytest.raises(sj.SpecError):
        sj.TimeWindow(length)  # type: ignore[arg-type]


def test_windows_compare_and_print() -> None:
    assert sj.TimeWindow("60 s") == sj.TimeWindow("1 minute") == sj.TimeWindow(dt.timedelta(minutes=1))
    assert sj.TimeWindow(5) != sj.TimeWindow("5 ns")
    assert repr(sj.TimeWindow("60 s")) == "TimeWindow('1 min')"
    assert str(sj.CountWindow(100_000)) == "100,000 tuples"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sj.Band("a", "b"), "one distance, or below= and/or above="),
        (lambda: sj.Band("a", "b", 1, below=2), "not both"),
        (lambda: sj.Band("a", "b", -1), "negative"),
        (lambda: sj.Band("a", "b", below=-1), "below -1 is negative"),
        (lambda: sj.Band("a", "b", math.nan), "not finite"),
        (lambda: sj.Band("a", "b", math.inf), "use Theta"),
        (lambda: sj.Band("a", "b", "5 lightyears"), "not a duration"),
        (lambda: sj.Band("a", "b", True), "must be a number"),
        (lambda: sj.Band("a", "b", 0, strict=True), "matches nothing"),
        (lambda: sj.Band("a", "b", below="1 s", above=5), "both be durations or both numbers"),
        (lambda: sj.Band("", "b", 1), "left column"),
        (lambda: sj.Equi(3), "left column"),  # type: ignore[arg-type]
        (lambda: sj.Theta(3), "SQL condition"),  # type: ignore[arg-type]
        (lambda: sj.Equi("a") & "b", "use predicates on both"),
    ],
)
def test_predicates_are_checked(make: object, says: str) -> None:
    with pytest.raises(sj.SpecError, match=says):
        make()  # type: ignore[operator]


def test_predicates_print_as_people_write_them() -> None:
    on = sj.Equi("sym") & sj.Band("px", "bid", 0.5) & sj.Band("ts", "ts", below="5 s") & sj.Theta("l.q < r.q")
    assert str(on) == ("l.sym = r.sym and |l.px - r.bid| <= 0.5 and -0 ns <= l.ts - r.ts <= 5 s and (l.q < r.q)")
    assert sj.Equi("a") == sj.Equi("a", "a")
    assert len((sj.Equi("a") & (sj.Equi("b") & sj.Equi("c"))).terms()) == 3


EQUI = sj.Equi("a")
COUNT = sj.CountWindow(5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"on": "a = b"}, "has no qualifier: write l.a or r.a"),
        ({"on": 5}, "on= takes"),
        ({"window": 5}, r"write CountWindow\(5\) .* or TimeWindow\(5\)"),
        ({"window": (COUNT, "5")}, r"window='5' has two meanings"),
        ({"window": (COUNT, COUNT, COUNT)}, "window= takes"),
        ({"window": sj.TimeWindow(5)}, "needs a time column"),
        ({"order": "event_time"}, "needs a time column"),
        ({"order": "random"}, "'arrival' or 'event_time'"),
        ({"how": "outer"}, "one of 'inner'"),
        ({"suffixes": "_l"}, "two different texts"),
        ({"suffixes": ("_l", "_l")}, "two different texts"),
        ({"suffixes": ("_l", "_m", "_r")}, "two different texts"),
        ({"suffixes": ("_l", 5)}, "two different texts"),
        ({"both_keys": "yes"}, "True or False"),
        ({"result_time": "at"}, "result_time= needs a time column"),
        ({"result_time": "", "time": "t"}, "the name of a column"),
        ({"time": 5}, "time= takes"),
        ({"time": ("a",)}, "time= takes"),
        ({"time": ("a", "b", "c")}, "time= takes"),
        ({"time": ""}, "time= takes"),
        ({"lateness": "5 s"}, "lateness= needs a time column"),
        ({"lateness": -5, "time": "t"}, "negative"),
        ({"lateness": 1.5, "time": "t"}, "duration"),
    ],
)
def test_specs_are_checked(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(sj.SpecError, match=says):
        sj.JoinSpec(**{"on": EQUI, "window": COUNT, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"how": "cross"}, "one of 'inner'"),
        ({"window": None}, "window= takes"),
        ({"on": None}, "on= takes"),
        ({"how": "semi", "time": "t", "result_time": "at"}, "left columns alone"),
        ({"how": "left", "self_join": True}, "not for a self-join"),
        ({"how": "full", "window": sj.TimeWindow(5), "time": "t", "order": "arrival"}, "needs lateness="),
        ({"match": "backward"}, "match= takes AsOf"),
        ({"match": sj.AsOf(), "order": "event_time", "time": "t"}, "has no window="),
        ({"match": sj.AsOf(), "window": None, "order": "event_time"}, "needs a time column"),
        ({"match": sj.AsOf(), "window": None, "how": "full"}, "'inner', 'left' or 'anti'"),
        ({"match": sj.AsOf(), "window": None, "self_join": True}, "two streams"),
        ({"match": sj.AsOf(), "window": (COUNT, COUNT), "order": "arrival"}, "one window"),
        ({"match": sj.AsOf("forward"), "window": None, "order": "event_time", "time": "t"}, "needs tolerance="),
        ({"match": sj.AsOf("forward", 5), "window": None, "order": "arrival", "time": "t"}, "order='event_time'"),
        ({"match": sj.AsOf(tolerance=5), "window": None, "order": "arrival", "time": "t"}, "neither tolerance="),
        ({"match": sj.AsOf(exact=False), "window": None, "order": "arrival"}, "neither tolerance="),
        ({"match": sj.AsOf(), "window": None, "order": "arrival", "on": sj.Band("a", "a", 1)}, "needs window="),
        (
            {"match": sj.AsOf(), "window": None, "order": "event_time", "time": "t", "on": "l.a < r.a"},
            "needs tolerance=",
        ),
    ],
)
def test_kinds_of_join_are_checked(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(sj.SpecError, match=says):
        sj.JoinSpec(**{"on": EQUI, "window": COUNT, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sj.AsOf("sideways"), "direction is"),  # type: ignore[arg-type]
        (lambda: sj.AsOf(exact=1), "True or False"),  # type: ignore[arg-type]
        (lambda: sj.AsOf(tolerance=-1), "negative"),
        (lambda: sj.AsOf(tolerance="soon"), "tolerance"),
        (lambda: sj.Within("t", "", "hi"), "low column"),
        (lambda: sj.Within("t", "lo", "hi", interval="both"), "side of the interval"),  # type: ignore[arg-type]
        (lambda: sj.Overlaps(("a", "b"), ("c", "d", "e")), "right interval"),  # type: ignore[arg-type]
        (lambda: sj.Overlaps(("a", "b"), ("c", 4)), "right column"),  # type: ignore[arg-type]
    ],
)
def test_matches_and_intervals_are_checked(make: Callable[[], object], says: str) -> None:
    with pytest.raises(sj.SpecError, match=says):
        make()


def test_equalities_in_sql_need_no_tolerance() -> None:
    spec = sj.JoinSpec(on="l.a = r.b AND l.c = r.c", match=sj.AsOf(), time="t", order="event_time")
    assert spec.by_equalities
    assert str(sj.AsOf("nearest", "5 seconds", exact=False)) == "nearest, tolerance 5 s, without equal times"


def test_an_order_that_is_not_given_is_event_time_wherever_there_is_a_time() -> None:
    spec = sj.JoinSpec(on=EQUI, window=COUNT, time="t", suffixes=["_a", "_b"])  # type: ignore[arg-type]
    assert (spec.order, spec.runs_in) == (None, "event_time")
    assert spec.in_order().order == "event_time"
    assert spec.in_order().suffixes == ("_a", "_b")
    assert replace(spec, order="arrival").in_order().order == "arrival"
    assert replace(spec, time=None).in_order().order == "arrival"
    schema = pa.schema([("a", pa.int64()), ("t", pa.int64())])
    assert bind(spec, schema, schema).spec.order == "event_time"
    with pytest.raises(sj.SpecError, match="order='arrival', window= does"):
        sj.JoinSpec(on=EQUI, match=sj.AsOf(), window=COUNT, time="t")
    # Neither needs order='event_time' any more.
    assert sj.JoinSpec(on=EQUI, window=sj.TimeWindow(5), time="t", how="left").runs_in == "event_time"
    assert sj.JoinSpec(on=EQUI, match=sj.AsOf("forward", 5), time="t").runs_in == "event_time"


@pytest.mark.parametrize("start", [sj.open, sj.live])
def test_open_and_live_warn_where_the_default_order_has_changed(start: Callable[..., Any]) -> None:
    spec = sj.JoinSpec(on=EQUI, window=sj.TimeWindow(5), time="t")
    with pytest.warns(FutureWarning, match="order='arrival' for the old one") as caught:
        join = start(spec)
    assert join.spec.order == "event_time"
    assert [warning.filename for warning in caught] == [__file__]
    # What was refused in arrival order, or says its order, or has no time, means what it always did.
    for silent in (
        replace(spec, order="event_time"),
        replace(spec, order="arrival"),
        replace(spec, how="left"),
        sj.JoinSpec(on=EQUI, match=sj.AsOf("forward", 5), time="t"),
        sj.JoinSpec(on=EQUI, window=COUNT),
    ):
        start(silent)


def test_specs_are_frozen_and_comparable() -> None:
    spec = sj.JoinSpec(on=EQUI, window=COUNT)
    assert spec == sj.JoinSpec(on=sj.Equi("a"), window=sj.CountWindow(5))
    assert hash(spec) == hash(sj.JoinSpec(on=EQUI, window=COUNT))
    with pytest.raises(AttributeError):
        spec.how = "left"  # type: ignore[assignment, misc]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"on": "sym"}, {"on": sj.Equi("sym")}),
        ({"on": "größe"}, {"on": sj.Equi("größe")}),
        ({"on": ["sym", "venue"]}, {"on": sj.Equi("sym") & sj.Equi("venue")}),
        ({"on": ("sym", sj.Band("px", "bid", 1))}, {"on": sj.Equi("sym") & sj.Band("px", "bid", 1)}),
        ({"on": ["l.a < r.b"]}, {"on": sj.Theta("l.a < r.b")}),
        ({"window": "5 s"}, {"window": sj.TimeWindow("5 s")}),
        ({"window": dt.timedelta(seconds=5)}, {"window": sj.TimeWindow("5 s")}),
        ({"window": np.timedelta64(5, "s")}, {"window": sj.TimeWindow("5 s")}),
        ({"window": "1000 rows"}, {"window": sj.CountWindow(1000)}),
        ({"window": ("1 tuple", "5 s")}, {"window": (sj.CountWindow(1), sj.TimeWindow("5 s"))}),
        ({"window": ["5 s", COUNT]}, {"window": (sj.TimeWindow("5 s"), COUNT)}),
    ],
)
def test_what_people_type_is_the_same_spec(short: dict[str, Any], long: dict[str, Any]) -> None:
    common = {"on": EQUI, "window": COUNT, "time": "t"}
    spec, same = sj.JoinSpec(**common | short), sj.JoinSpec(**common | long)
    assert spec == same
    assert hash(spec) == hash(same)
    assert spec.predicate.terms() == same.predicate.terms()
    assert spec.windows == same.windows


def test_a_text_that_is_no_plain_name_is_sql() -> None:
    spec = sj.JoinSpec(on="abs(l.px - r.bid) <= 0.25", window=COUNT)
    assert spec.on == "abs(l.px - r.bid) <= 0.25"
    assert isinstance(spec.predicate, sj.Theta)
    for text in ("TRUE", "null"):
        assert isinstance(sj.JoinSpec(on=text, window=COUNT).predicate, sj.Theta)
    with pytest.raises(sj.ExpressionError):
        sj.JoinSpec(on="trade id", window=COUNT)
    for wrong in (["sym", 5], [], b"sym", [["sym"], None]):
        with pytest.raises(sj.SpecError, match="on= takes"):
            sj.JoinSpec(on=wrong, window=COUNT)


@pytest.mark.parametrize("wrong", [5, np.int64(5), "5", " 5 "])
def test_a_bare_number_as_window_names_both_meanings(wrong: object) -> None:
    with pytest.raises(sj.SpecError, match=r"CountWindow\(5\) for the newest 5 tuples .* TimeWindow\(5\) for 5 units"):
        sj.JoinSpec(on=EQUI, window=wrong, time="t")
