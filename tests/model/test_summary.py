"""Summaries as data: what is read, what is refused and with which words, and the types of the new columns."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.model.binding import bind
from streamjoin.model.errors import ExpressionError, SchemaError, SpecError
from streamjoin.model.expression.parsing import parse_summary
from streamjoin.model.window import LONGEST

SCHEMA = pa.schema(
    [
        ("sym", pa.string()),
        ("ts", pa.timestamp("us")),
        ("px", pa.float64()),
        ("qty", pa.int32()),
        ("id", pa.uint64()),
        ("amount", pa.decimal128(20, 4)),
        ("wait", pa.duration("ms")),
        ("ok", pa.bool_()),
        ("tags", pa.list_(pa.string())),
    ]
)
BETWEEN = ("-5 s", "1 s")


def spec(summaries: dict[str, str] | None = None, between: Any = BETWEEN, **settings: Any) -> sj.JoinSpec:
    flags = {name: settings.pop(name) for name in ("prevailing", "itself") if name in settings}
    match = sj.Summary(summaries or {"n": "count(*)"}, between, **flags)
    return sj.JoinSpec(**{"on": "sym", "time": "ts", "match": match, **settings})


@pytest.mark.parametrize(
    ("between", "ticks"),
    [
        (("-5 seconds", "1 second"), (-5_000_000, 1_000_000)),
        (("-10 s", "-5 s"), (-10_000_000, -5_000_000)),
        (("1 s", "+5 s"), (1_000_000, 5_000_000)),
        ((timedelta(seconds=-1), np.timedelta64(2, "ms")), (-1_000_000, 2_000)),
        (("-1500 ns", "1500 ns"), (-1, 1)),
        (("- 1 us", "0 s"), (-1, 0)),
        ((f"-{LONGEST} d", f"{LONGEST} d"), (-LONGEST, LONGEST)),
    ],
)
def test_bounds_have_a_sign_and_lie_within_the_window(between: Any, ticks: tuple[int, int]) -> None:
    bound = bind(spec(between=between), SCHEMA, SCHEMA).summary
    assert bound is not None
    assert (bound.low, bound.high) == ticks


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sj.Summary({}, BETWEEN), "takes new columns"),
        (lambda: sj.Summary({"n": "count(*)"}, ("1 s", "-1 s")), "swap them"),
        (lambda: sj.Summary({"n": "count(*)"}, ("1 s", 5)), "two durations"),
        (lambda: sj.Summary({"n": "count(*)"}, ("-x", "5 s")), "is not a duration"),
        (lambda: sj.Summary({"n": "count(*)"}, "5 s"), "the first and the last time"),  # type: ignore[arg-type]
        (lambda: sj.Summary({"n": 5}, BETWEEN), "the summary 'n' is a text"),  # type: ignore[dict-item]
        (lambda: sj.Summary({"n": "count(*)"}, BETWEEN, prevailing=1), "prevailing=1"),  # type: ignore[arg-type]
        (lambda: spec(window="5 s"), "leave out window="),
        (lambda: spec(how="anti"), "it is 'left'"),
        (lambda: spec(order="arrival"), "leave out order='arrival'"),
        (lambda: spec(time=None), "add time="),
        (lambda: spec(result_time="t"), "leave out result_time="),
        (lambda: spec(prevailing=True, on=sj.Band("px", "px", 1)), "which right tuple is in force"),
        (lambda: spec(itself=True), "add self_join=True"),
    ],
)
def test_a_mistake_in_a_spec_is_named(make: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("r.px", "outside of every aggregate"),
        ("sum(r.px) + r.px", "outside of every aggregate"),
        ("1 + 2", "has an aggregate, one of COUNT, SUM"),
        ("sum(avg(r.px))", "can't summarise another aggregate"),
        ("sum(DISTINCT r.px)", "DISTINCT is only for COUNT"),
        ("min(r.px, r.qty)", "MIN takes no argument"),
        ("quantile(r.px, 2)", "from 0 to 1"),
        ("sum(px)", "has no qualifier"),
        ("mode(r.px)", "MODE"),
        ("", "is empty"),
        ("count(*);", "not part of a summary"),
        ("sum(r.px) OVER ()", "window function"),
    ],
)
def test_a_mistake_in_an_expression_names_the_summary(text: str, words: str) -> None:
    with pytest.raises(ExpressionError, match="the summary 'n'") as caught:
        sj.Summary({"n": text}, BETWEEN)
    assert words in str(caught.value)


def test_an_aggregate_is_still_refused_in_a_condition() -> None:
    with pytest.raises(ExpressionError, match="aggregate SUM is not allowed in a condition"):
        sj.Theta("sum(r.px) > 5")


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("count(*)", pa.int64()),
        ("count(DISTINCT r.sym)", pa.int64()),
        ("sum(r.px)", pa.float64()),
        ("sum(r.qty)", pa.int64()),
        ("sum(r.id)", pa.uint64()),
        ("sum(r.amount)", pa.decimal128(38, 4)),
        ("sum(r.wait)", pa.duration("ms")),
        ("avg(r.qty)", pa.float64()),
        ("avg(r.amount)", pa.float64()),
        ("min(r.qty)", pa.int32()),
        ("max(r.sym)", pa.string()),
        ("first(r.ts)", pa.timestamp("us")),
        ("last(r.ok)", pa.bool_()),
        ("arg_max(r.sym, r.px)", pa.string()),
        ("median(r.qty)", pa.float64()),
        ("quantile(r.px, 0.9)", pa.float64()),
        ("stddev_samp(r.px)", pa.float64()),
        ("sum(r.px * r.qty) / sum(r.qty)", pa.float64()),
        ("max(r.qty) - min(r.qty)", pa.int64()),
        ("avg(r.px) - min(l.px)", pa.float64()),
    ],
)
def test_new_columns_have_types_and_follow_the_left_ones(text: str, type_: pa.DataType) -> None:
    bound = bind(spec({"new": text}), SCHEMA, SCHEMA)
    assert bound.schema.names == [*SCHEMA.names, "new"]
    assert bound.schema.field("new").type == type_


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sum(r.sym)", "SUM takes numbers and durations; r.sym is string"),
        ("avg(r.wait)", "AVG takes numbers"),
        ("sum(r.price)", "unknown column r.price"),
        ("first(r.tags)", "which a condition can't use"),
    ],
)
def test_a_summary_that_does_not_fit_the_columns_is_named(text: str, words: str) -> None:
    with pytest.raises(SchemaError, match="the summary 'new'") as caught:
        bind(spec({"new": text}), SCHEMA, SCHEMA)
    assert words in str(caught.value)


def test_a_new_column_has_a_name_of_its_own() -> None:
    for name in ("px", "PX"):
        with pytest.raises(SchemaError, match="called like the left column 'px': give it another name"):
            bind(spec({name: "count(*)"}), SCHEMA, SCHEMA)


@pytest.mark.parametrize(
    ("text", "on", "enumerated"),
    [
        ("min(r.px)", "sym", False),
        ("sum(r.px * r.qty)", None, False),
        ("min(r.sym)", "sym", True),
        ("median(r.px)", "sym", True),
        ("sum(l.px - r.px)", "sym", True),
        ("count(*)", "abs(l.px - r.px) < 5", True),
    ],
)
def test_what_takes_every_match_is_known(text: str, on: Any, enumerated: bool) -> None:
    bound = bind(spec({"n": text}, on=on), SCHEMA, SCHEMA).summary
    assert bound is not None
    assert bound.enumerated == (enumerated,)


def test_a_filter_leaves_out_what_it_does_not_choose() -> None:
    between = ("-1 s", "1 s")
    filtered = sj.Summary({"s": "sum(r.x) FILTER (WHERE r.x > l.y)"}, between=between)
    meant = sj.Summary({"s": "sum(CASE WHEN r.x > l.y THEN r.x END)"}, between=between)
    assert filtered.expressions == meant.expressions


def test_a_summary_is_a_value() -> None:
    one = sj.Summary({"n": "count(*)", "x": "avg(r.px)"}, ("-5 seconds", "1 s"), prevailing=True)
    assert one == sj.Summary({"n": "count(*)", "x": "avg(r.px)"}, ("-5 s", "1000 ms"), prevailing=True)
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))
    assert eval(repr(one), {"Summary": sj.Summary}) == one
    assert str(one) == "n, x from -5 s to 1 s, with the one in force"
    assert eval(repr(sj.Summary({"n": "count(*)"}, (-3, 0))), {"Summary": sj.Summary}).between == (-3, 0)


def test_the_text_of_an_expression_reads_as_the_same() -> None:
    text = "COUNT(DISTINCT r.x) + QUANTILE(r.y, 0.5) * ARG_MIN(r.x, r.y) - COUNT(*) / STDDEV_POP(-r.x)"
    assert str(parse_summary(str(parse_summary(text)))) == str(parse_summary(text))
    assert parse_summary(str(parse_summary(text))) == parse_summary(text)
