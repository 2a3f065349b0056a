"""What grouped queries may say: their meaning, their types, and every refusal at its place."""

from __future__ import annotations

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.queries.language.grouping import GroupWindow
from streamjoin.queries.language.plan import Query, Stream
from streamjoin.queries.language.sql import parse

TRADES = Stream("trades", pa.schema({"ts": pa.timestamp("us"), "sym": pa.string(), "px": pa.float64()}), "ts")
QUOTES = Stream("quotes", pa.schema({"ts": pa.timestamp("us"), "sym": pa.string(), "bid": pa.float64()}), "ts")
DAYS = Stream("days", pa.schema({"d": pa.date32(), "n": pa.decimal128(10, 2)}), "d")
NUMBERS = Stream("numbers", pa.schema({"t": pa.int32(), "v": pa.int16(), "l": pa.list_(pa.int64())}), "t")
JOIN = "FROM trades t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym"
MINUTE = "TUMBLE(t.ts, INTERVAL '1' MINUTE)"


def read(text: str) -> Query:
    return parse(text, [TRADES, QUOTES, DAYS, NUMBERS])


def test_a_grouped_query_reads_what_its_keys_aggregates_and_windows_need() -> None:
    query = read(
        f"SELECT t.sym, window_start, window_end, count(*) AS n, max(q.bid) AS top, sum(t.px) / count(t.px) AS mean "
        f"{JOIN} WHERE t.px > 1 GROUP BY t.sym, {MINUTE} HAVING n > 3 AND sum(t.px) > 2 "
        "QUALIFY row_number() OVER (PARTITION BY window_end ORDER BY n DESC, t.sym NULLS FIRST) <= 10"
    )
    types = [pa.string(), pa.timestamp("us"), pa.timestamp("us"), pa.int64(), pa.float64(), pa.float64()]
    assert query.schema.types == types
    assert [str(output.expression) for output in query.feed.outputs] == ["t.px", "t.sym", "t.ts", "q.bid"]
    grouping = query.grouping
    assert grouping is not None and grouping.top is not None
    assert [str(aggregate) for aggregate in grouping.aggregates] == [
        "COUNT(*)",
        "MAX(q.bid)",
        "SUM(t.px)",
        "COUNT(t.px)",
    ]
    assert (grouping.top.most, grouping.top.ties) == (10, False)
    assert [order[1:] for order in grouping.top.order] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("count(*) FILTER (WHERE t.px > 1)", "count(CASE WHEN t.px > 1 THEN 1 END)"),
        ("sum(t.px) FILTER (WHERE t.sym = 'A')", "sum(CASE WHEN t.sym = 'A' THEN t.px END)"),
        ("count(DISTINCT t.sym) FILTER (WHERE t.px > 1)", "count(DISTINCT CASE WHEN t.px > 1 THEN t.sym END)"),
        ("arg_max(t.px, t.ts) FILTER (WHERE t.px > 1)", "arg_max(CASE WHEN t.px > 1 THEN t.px END, t.ts)"),
        ("countIf(t.px > 1)", "count(CASE WHEN t.px > 1 THEN 1 END)"),
        ("bool_or(t.px > 1)", "max(t.px > 1)"),
        ("bool_and(t.px > 1)", "min(t.px > 1)"),
        ("percentile_cont(0.25) WITHIN GROUP (ORDER BY t.px)", "quantile(t.px, 0.25)"),
    ],
)
def test_other_ways_to_write_aggregates(written: str, meant: str) -> None:
    plans = [read(f"SELECT {one} AS x FROM trades t GROUP BY t.sym, {MINUTE}") for one in (written, meant)]
    assert plans[0].grouping == plans[1].grouping


def test_a_key_may_be_the_place_of_an_output() -> None:
    plans = [read(f"SELECT t.sym, count(*) AS n FROM trades t GROUP BY {key}, {MINUTE}") for key in ("1", "t.sym")]
    assert plans[0].grouping == plans[1].grouping


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("sum(px) AS px, avg(px) AS mean", "sum(t.px) AS px, avg(t.px) AS mean"),
        ("count(*) AS sym, sym AS s", "count(*) AS sym, t.sym AS s"),
        ("count(*) AS n, n * 2 AS twice", "count(*) AS n, count(*) * 2 AS twice"),
        ("max(px) AS px HAVING px > 1 AND sum(px) > 2", "max(t.px) AS px HAVING max(t.px) > 1 AND sum(t.px) > 2"),
    ],
)
def test_a_name_is_a_column_in_select_and_aggregates_and_an_output_after_them(written: str, meant: str) -> None:
    plans = []
    for text in (written, meant):
        outputs, _, having = text.partition(" HAVING ")
        after = f" HAVING {having}" if having else ""
        plans.append(read(f"SELECT {outputs} FROM trades t GROUP BY t.sym, {MINUTE}{after}"))
    assert plans[0].outputs == plans[1].outputs
    assert plans[0].grouping == plans[1].grouping


def test_a_window_among_the_keys_may_have_its_start_and_end_beside_it() -> None:
    keys = (f"t.sym, {MINUTE}", f"t.sym, window_start, window_end, {MINUTE}", f"WINDOW_END, {MINUTE}, t.sym")
    plans = [read(f"SELECT t.sym, window_start, count(*) AS n FROM trades t GROUP BY {key}") for key in keys]
    assert plans[0].grouping == plans[1].grouping == plans[2].grouping


def test_rank_takes_all_groups_that_are_first() -> None:
    ranked = "rank() OVER (PARTITION BY window_end ORDER BY count(*) DESC) = 1"
    grouping = read(f"SELECT t.sym {JOIN} GROUP BY t.sym, {MINUTE} QUALIFY {ranked}").grouping
    assert grouping is not None and grouping.top is not None and grouping.top.ties


@pytest.mark.parametrize(
    ("window", "wanted"),
    [
        (MINUTE, ("t", 60, 60)),
        ("HOP(t.ts, INTERVAL '10' SECOND, INTERVAL '1' MINUTE)", ("t", 60, 10)),
        ("window(q.ts, '1 minute')", ("q", 60, 60)),
        ("window(t.ts, '1 minute', '30 seconds')", ("t", 60, 30)),
        ("TUMBLE(INTERVAL '1 minute')", (None, 60, 60)),
        ("tumble(INTERVAL 1 MINUTE)", (None, 60, 60)),
    ],
)
def test_windows_as_flink_and_spark_write_them(window: str, wanted: tuple[str | None, int, int]) -> None:
    grouping = read(f"SELECT count(*) AS n {JOIN} GROUP BY {window}").grouping
    assert grouping is not None
    alias, size, slide = wanted
    assert grouping.window == GroupWindow(alias, size * 10**9, slide * 10**9, pa.timestamp("us"))


def test_distinct_is_a_group_without_aggregates() -> None:
    query = read(f"SELECT DISTINCT upper(t.sym) AS s, {MINUTE} {JOIN}")
    assert query.schema.names == ["s", "window_start", "window_end"]
    assert query.grouping is not None and not query.grouping.aggregates


def test_keys_may_be_outputs_and_windows_have_the_type_of_the_time() -> None:
    query = read("SELECT n * 2 AS twice, window.end, sum(n) AS s FROM days GROUP BY twice, TUMBLE(INTERVAL '7' DAY)")
    assert query.schema.types == [pa.decimal128(38, 2), pa.date32(), pa.decimal128(38, 2)]
    hours = read("SELECT window_start FROM days GROUP BY TUMBLE(d, INTERVAL '6' HOUR)")
    assert hours.schema.types == [pa.timestamp("s")]
    assert read("SELECT window_end, avg(v) AS v FROM numbers GROUP BY HOP(t, 5, 20)").schema.types == [
        pa.int64(),
        pa.float64(),
    ]


REFUSED = [
    (f"SELECT t.px, count(*) AS n {JOIN} GROUP BY t.sym, {MINUTE}", "neither in GROUP BY nor inside", "t.px"),
    (f"SELECT count(*) AS n {JOIN}", "add GROUP BY TUMBLE", "count(*)"),
    (f"SELECT t.sym {JOIN} GROUP BY t.sym", "need a window of time", "GROUP BY"),
    (f"SELECT t.sym {JOIN} GROUP BY SESSION(t.ts, INTERVAL '1' MINUTE)", "sessions are not offered", "SESSION"),
    (f"SELECT t.sym {JOIN} GROUP BY t.sym, {MINUTE} ORDER BY t.sym", "QUALIFY row_number", "ORDER BY"),
    (f"SELECT t.sym {JOIN} GROUP BY t.sym, {MINUTE} LIMIT 3", "QUALIFY row_number", "LIMIT"),
    (f"SELECT t.sym {JOIN} HAVING 1 = 1", "HAVING follows GROUP BY", "HAVING"),
    (f"SELECT DISTINCT t.sym {JOIN}", "DISTINCT needs a window", "DISTINCT"),
    (f"SELECT count(*) AS n, sum(n) AS s {JOIN} GROUP BY {MINUTE}", "n is a value of a group", "n"),
    (f"SELECT DISTINCT t.sym {JOIN} GROUP BY t.sym, {MINUTE}", "leave DISTINCT out", "DISTINCT"),
    (f"SELECT first(t.px) AS f {JOIN} GROUP BY {MINUTE}", r"ARG_MIN\(t.px, t.ts\)", "first(t.px)"),
    (f"SELECT sum(t.sym) AS s {JOIN} GROUP BY {MINUTE}", "SUM takes numbers", "sum(t.sym)"),
    (f"SELECT count(*) {JOIN} GROUP BY {MINUTE}", "needs a name", "count(*)"),
    (f"SELECT * {JOIN} GROUP BY {MINUTE}", "no place beside GROUP BY", "*"),
    (f"SELECT t.sym {JOIN} GROUP BY t.sym, TUMBLE(t.px, INTERVAL '1' MINUTE)", "over the time of a stream", "t.px"),
    (
        f"SELECT t.sym {JOIN} GROUP BY t.sym, TUMBLE(t.ts, INTERVAL '1' MONTH)",
        "no length of a window",
        "INTERVAL '1' M",
    ),
    (f"SELECT t.sym {JOIN} GROUP BY t.sym, TUMBLE(t.ts, 60)", "INTERVAL '1' MINUTE", "60"),
    (f"SELECT t.sym {JOIN} GROUP BY t.sym, TUMBLE(t.ts)", "write TUMBLE", "TUMBLE(t.ts)"),
    (f"SELECT t.sym {JOIN} GROUP BY t.sym, HOP(INTERVAL '2' DAY, INTERVAL '1' DAY)", "would be lost", "HOP"),
    (f"SELECT t.sym {JOIN} GROUP BY t.sym, HOP(INTERVAL '1' SECOND, INTERVAL '9' DAY)", "10,000 at most", "HOP"),
    (f"SELECT t.sym {JOIN} GROUP BY t.sym, {MINUTE}, TUMBLE(INTERVAL '1' DAY)", "one window", "TUMBLE(INTERVAL"),
    (f"SELECT t.sym {JOIN} GROUP BY 2, {MINUTE}", "a key is over columns", "2"),
    ("SELECT count(*) AS n FROM numbers GROUP BY l, TUMBLE(5)", "list", "l"),
    (f"SELECT t.sym {JOIN} GROUP BY t.sym, {MINUTE} HAVING t.px > 1", "neither in GROUP BY", "t.px"),
    (f"SELECT t.sym {JOIN} GROUP BY t.sym, {MINUTE} HAVING count(*)", "boolean", "count(*)"),
    (
        f"SELECT t.sym {JOIN} GROUP BY t.sym, {MINUTE} QUALIFY rank() OVER (ORDER BY t.sym) = 1",
        "QUALIFY chooses the first",
        "rank",
    ),
    (
        f"SELECT t.sym {JOIN} GROUP BY t.sym, {MINUTE} QUALIFY row_number() OVER (PARTITION BY sym ORDER BY sym) = 1",
        "PARTITION BY needs window_end",
        "sym",
    ),
    (
        "SELECT t.sym FROM trades t JOIN quotes q WITHIN 3 ROWS ON t.sym = q.sym GROUP BY t.sym, " + MINUTE,
        "leave the column out",
        "t.ts",
    ),
    (
        "SELECT t.sym FROM trades t LEFT JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym GROUP BY t.sym, " + MINUTE,
        "rows of inner joins",
        "GROUP BY",
    ),
]


@pytest.mark.parametrize(("text", "message", "marked"), REFUSED)
def test_refuses_at_the_place(text: str, message: str, marked: str) -> None:
    with pytest.raises(sj.QueryError, match=message) as caught:
        read(text)
    error = caught.value
    assert text[error.column - 1 :].startswith(marked), (text[error.column - 1 :], str(error))
