"""Query texts: what is read, and that every refusal shows the place and says what is allowed."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.model.errors import QueryError
from streamjoin.model.expression.parsing import parse_condition
from streamjoin.queries.language.plan import Query, Stream
from streamjoin.queries.language.sql import parse
from tests.queries.catalog import QUOTES, STREAMS, TRADES, joined, plan

FRAME = "SELECT t.px FROM trades t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym"


def shown(query: Query) -> dict[str, list[str]]:
    """What a query says, as text."""
    return {
        "terms": [str(term) for step in query.steps for term in step.terms],
        "others": [str(other) for step in query.steps for other in step.others],
        "selections": [str(p.condition) for selection in query.selections for p in selection],
        "residual": [str(condition) for condition in query.residual],
    }


def test_a_whole_query() -> None:
    query = parse(
        "select t.sym, q.ask - t.px as spread from trades as t "
        "inner join quotes q within 1.5 seconds on q.sym = t.sym and t.px between q.bid - 2 and q.bid + 3 "
        "join news within 10 rows on news.sym = q.sym and t.qty > score "
        "where qty in (1, 2) and not (ask < 5 or t.sym like 'A%') and t.qty < ask;",
        STREAMS,
        "q1",
    )
    assert query.name == "q1"
    assert query.aliases == ("t", "q", "news")
    assert [step.window for step in query.steps] == [sj.TimeWindow("1500 ms"), sj.CountWindow(10)]
    assert [step.related for step in query.steps] == [("t",), ("q", "t")]
    assert shown(query) == {
        "terms": ["t.sym = q.sym", "t.px - q.bid BETWEEN -2 AND 3", "q.sym = news.sym"],
        "others": ["news.score < t.qty"],
        "selections": ["NOT (row.sym LIKE 'A%')", "row.qty IN (1, 2)", "row.ask >= 5"],
        "residual": ["q.ask > t.qty"],
    }
    assert query.schema == pa.schema({"sym": pa.string(), "spread": pa.float64()})
    assert [(p.left, p.right) for p in query.pairs] == [("t", "q"), ("q", "news"), ("t", "news")]
    assert hash(query) == hash(pickle.loads(pickle.dumps(query)))


def test_star_names_the_alias_where_a_name_is_there_twice() -> None:
    names = joined("t.sym = q.sym", outputs="*").schema.names
    assert names == ["sym_t", "px", "qty", "ts", "sym_q", "bid", "ask", "at"]
    assert joined("t.sym = q.sym", outputs="q.*, px").schema.names == ["sym", "bid", "ask", "at", "px"]


def test_outputs_take_names_with_and_without_as() -> None:
    query = joined(
        "t.sym = q.sym", outputs="px + 1 one, INTERVAL '5' SECOND AS gap, (px) two, ts - INTERVAL 5 SECONDS x"
    )
    assert query.schema.names == ["one", "gap", "two", "x"]
    assert query.schema.field("gap").type == pa.duration("s")


def test_a_self_join_and_integer_times() -> None:
    query = plan("SELECT x.k AS a, y.k AS b FROM ticks x JOIN ticks y WITHIN 5 UNITS ON x.k < y.k")
    assert query.steps[0].window == sj.TimeWindow(5)
    assert shown(query)["others"] == ["x.k < y.k"]


@pytest.mark.parametrize(
    ("on", "terms", "others"),
    [
        ("ABS(t.px - q.bid) <= 5", ["t.px - q.bid BETWEEN -5 AND 5"], []),
        ("5 > ABS(q.bid - t.px)", ["t.px - q.bid > -5 AND t.px - q.bid < 5"], []),
        ("t.px BETWEEN q.bid - 2 AND 3 + q.bid", ["t.px - q.bid BETWEEN -2 AND 3"], []),
        ("q.bid BETWEEN t.px - 2 AND t.px + 3", ["t.px - q.bid BETWEEN -3 AND 2"], []),
        ("t.px - q.bid <= 3 AND q.bid <= 2 + t.px", ["t.px - q.bid BETWEEN -2 AND 3"], []),
        ("ABS(t.px - q.bid) <= 5 AND t.px <= q.bid", ["t.px - q.bid BETWEEN -5 AND 0"], []),
        ("t.px BETWEEN q.ask - 0.5 AND q.ask + 0.25", ["t.px - q.ask BETWEEN -0.5 AND 0.25"], []),
        ("q.at BETWEEN t.ts AND t.ts + INTERVAL '2' SECOND",
         ["t.ts - q.at BETWEEN INTERVAL '-2' SECOND AND INTERVAL '0' DAY"], []),
        # No band says these exactly: a wider one finds the candidates.
        ("t.px = q.bid + 2", ["t.px - q.bid BETWEEN 0 AND 2"], ["q.bid + 2 = t.px"]),
        ("t.px - q.bid BETWEEN 1 AND 4", ["t.px - q.bid BETWEEN 0 AND 4"],
         ["t.px - q.bid <= 4", "t.px - q.bid >= 1"]),
        ("t.px - q.bid > -1 AND t.px - q.bid <= 4", ["t.px - q.bid BETWEEN -1 AND 4"],
         ["t.px - q.bid <= 4", "t.px - q.bid > -1"]),
        # No band at all.
        ("t.px < q.bid", [], ["q.bid > t.px"]),
        ("ABS(t.px - q.bid) <= -1", [], ["ABS(t.px - q.bid) <= -1"]),
        ("ABS(t.px - q.bid) >= 5", [], ["ABS(t.px - q.bid) >= 5"]),
        ("ABS(t.px - 2 * q.bid) <= 5", [], ["ABS(t.px - q.bid * 2) <= 5"]),
        ("t.px + t.qty = q.bid", [], ["q.bid = t.px + t.qty"]),
        ("t.sym = q.sym OR t.px = q.bid", [], ["q.bid = t.px OR q.sym = t.sym"]),
    ],
)  # fmt: skip
def test_terms(on: str, terms: list[str], others: list[str]) -> None:
    found = shown(joined(on))
    assert (found["terms"], found["others"]) == (terms, others)


def test_conditions_on_one_stream_are_selections_wherever_they_stand() -> None:
    found = shown(joined("t.sym = q.sym AND t.px > 1", "WHERE q.bid > 2 AND TRUE AND 1 + 1 > q.bid AND NULL"))
    assert found["selections"] == ["NULL", "row.px > 1", "row.bid < 2", "row.bid > 2"]
    for text in found["selections"]:
        assert str(parse_condition(text, ("row",))) == text


OUTER = "SELECT t.px FROM trades t LEFT JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym"
SEMI = "SELECT t.px FROM trades t SEMI JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym"
LOOKUP = (
    "SELECT t.px FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts >= q.at) ON t.sym = q.sym TOLERANCE 5 SECONDS"
)
UNBOUNDED = LOOKUP.replace(" TOLERANCE 5 SECONDS", "")
REFUSED = [
    ("", "the query is empty; write SELECT", ""),
    ("BEGIN x", "a query starts with SELECT", "BEGIN"),
    ("WITH x AS (SELECT 1) SELECT * FROM x", "WITH is not allowed here", "WITH"),
    ("SELECT", "something is missing after SELECT", "SELECT"),
    ("SELECT t.px", "FROM is missing", ""),
    ("SELECT t.px, FROM trades", "something is missing after ,", ","),
    ("SELECT t.px AS FROM trades", "a name is missing after AS", "AS"),
    ("SELECT * FROM", "the name of a stream is missing", ""),
    ("SELECT DISTINCT px FROM trades", "DISTINCT needs a window of time", "DISTINCT"),
    ("SELECT * FROM trades, quotes", "a comma between streams is not allowed", ","),
    ("SELECT * FROM db.trades t", "plain name", "."),
    ("SELECT * FROM generate(5) t", "table function", "generate"),
    ("SELECT * FROM (SELECT 1) t", "a subquery is not allowed here: name a stream", "("),
    ("SELECT * FROM trades t RIGHT SEMI JOIN quotes q", "allowed before JOIN: INNER, LEFT", "RIGHT SEMI JOIN"),
    ("SELECT * FROM trades t LEFT quotes q", "JOIN is missing; allowed before JOIN", "LEFT"),
    ("SELECT * FROM trades t FULL OUTER JOIN quotes q ON t.sym = q.sym", "WITHIN is missing", "quotes q"),
    (f"{OUTER} JOIN trades u WITHIN 3 SECONDS ON u.sym = t.sym", "an inner join after an outer, semi, anti", "JOIN"),
    (f"{OUTER} LEFT JOIN trades u WITHIN 3 ROWS ON u.sym = t.sym", "an outer join is the only join after", "LEFT JOIN"),
    (f"{LOOKUP} LEFT JOIN trades u WITHIN 3 ROWS ON u.sym = t.sym", "an outer join is the only join", "LEFT JOIN"),
    (f"{LOOKUP} SEMI JOIN trades u WITHIN 3 ROWS ON u.sym = q.sym", "q is joined after the inner joins", "q.sym"),
    (f"{SEMI} WHERE q.bid > 1", "q is joined by SEMI JOIN: its columns are not in the result", "q.bid"),
    (SEMI.replace("t.px", "q.*"), "q is joined by SEMI JOIN", "q.*"),
    (OUTER.replace("WITHIN 3 SECONDS", "MATCH_CONDITION (t.ts > q.at)"), "belongs to an as-of join", "MATCH_CONDITION"),
    (UNBOUNDED.replace(">=", "<="), "TOLERANCE is missing: looking ahead a tuple would wait for ever", "ASOF JOIN"),
    (UNBOUNDED.replace("t.ts >= q.at", "NEAREST(t.ts, q.at)"), "TOLERANCE is missing: looking ahead", "ASOF JOIN"),
    (f"{UNBOUNDED} AND t.px > q.bid", "TOLERANCE is missing: with more than equalities", "ASOF JOIN"),
    (
        UNBOUNDED.replace("ASOF", "JOIN trades u WITHIN 3 ROWS ON u.sym = t.sym ASOF"),
        "TOLERANCE is missing: after a join WITHIN ROWS",
        "ASOF JOIN",
    ),
    (LOOKUP.replace("t.ts >= q.at", "NEAREST(t.ts)"), "NEAREST takes the two times", "NEAREST(t.ts)"),
    (LOOKUP.replace("t.ts >= q.at", "NEAREST(t.ts, t.ts)"), "NEAREST takes the time column", "t.ts, t.ts"),
    (
        LOOKUP.replace("t.ts >= q.at", "NEAREST(t.ts, q.at) AND t.ts > q.at"),
        "with that of q by <>, as in t.ts <> q.at",
        "t.ts > q.at",
    ),
    (LOOKUP.replace("ASOF", "ASOF ANTI").replace("t.px", "q.bid"), "q is joined by ANTI JOIN", "q.bid"),
    (LOOKUP.replace("5 SECONDS", "5 ROWS"), "a TOLERANCE is a distance in time", "TOLERANCE 5 ROWS"),
    (LOOKUP.replace("5 SECONDS", "5 UNITS"), "write the window in MILLISECONDS", "TOLERANCE 5 UNITS"),
    (LOOKUP.replace("t.ts >= q.at", "t.px >= q.bid"), "MATCH_CONDITION compares the time column", "t.px >= q.bid"),
    (LOOKUP.replace("t.ts >= q.at", "t.ts = q.at"), "by >=, >, <= or <", "t.ts = q.at"),
    (LOOKUP.replace("MATCH_CONDITION (t.ts >= q.at)", "WITHIN 3 SECONDS"), "has a TOLERANCE and no WITHIN", "WITHIN"),
    (LOOKUP.replace("MATCH_CONDITION (t.ts >= q.at) ", ""), "MATCH_CONDITION is missing", "quotes q"),
    (LOOKUP.replace("ASOF", "ASOF RIGHT"), "allowed before JOIN", "ASOF RIGHT JOIN"),
    (
        f"{FRAME} FULL JOIN trades u WITHIN 3 ROWS ON u.sym = t.sym",
        "a FULL JOIN after other joins needs windows in time",
        "WITHIN 3 ROWS",
    ),
    ("SELECT * FROM trades t CROSS JOIN quotes q", "a cross join is not allowed here", "CROSS"),
    ("SELECT * FROM trades t NATURAL JOIN quotes q", "NATURAL is not allowed here", "NATURAL"),
    ("SELECT * FROM trades t JOIN quotes q ON t.sym = q.sym", "WITHIN is missing: say how far apart", "quotes q"),
    ("SELECT * FROM trades t JOIN quotes q x WITHIN 3 SECONDS ON t.sym = q.sym", "after the stream and its alias", "x"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 3 SECONDS", "ON is missing.*cross joins are not allowed", ""),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 3 SECONDS WHERE 1 = 1", "ON is missing", "WHERE"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 3 SECONDS USING (sym)", "USING is not allowed", "USING"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 3 SECONDS ON", "something is missing after ON", "ON"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 0 SECONDS ON t.sym = q.sym", "window of zero", "WITHIN 0 SECONDS"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 0 ROWS ON t.sym = q.sym", "window of zero", "WITHIN 0 ROWS"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 1.5 ROWS ON t.sym = q.sym", "whole numbers", "WITHIN 1.5 ROWS"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 9999 DAYS ON t.sym = q.sym", "too long.*366", "WITHIN 9999 DAYS"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 2e12 ROWS ON t.sym = q.sym", "too long: at most", "WITHIN 2e12 ROWS"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 9e99999999 DAYS ON t.sym = q.sym", "long", "WITHIN 9e99999999 DAYS"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 9e99999999 ROWS ON t.sym = q.sym", "long", "WITHIN 9e99999999 ROWS"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 1e-99999999 DAYS ON t.sym = q.sym", "whole number of nanoseconds",
     "WITHIN 1e-99999999 DAYS"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 3 YEARS ON t.sym = q.sym", "'YEARS' is no unit", "WITHIN 3 YEARS"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 3 ON t.sym = q.sym", "a unit is missing", "WITHIN 3"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN ON t.sym = q.sym", "WITHIN needs a number", "WITHIN"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN", "WITHIN needs a number", "WITHIN"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN '3 s' ON t.sym = q.sym", "WITHIN needs a number", "WITHIN '3 s'"),
    ("SELECT * FROM trades t JOIN quotes q WITHIN 3 UNITS ON t.sym = q.sym", "is timestamp.us.: write the window in",
     "WITHIN 3 UNITS"),
    ("SELECT * FROM ticks a JOIN ticks b WITHIN 3 SECONDS ON a.k = b.k", "WITHIN n UNITS", "WITHIN 3 SECONDS"),
    ("SELECT * FROM trades t JOIN ticks k WITHIN 3 ROWS ON t.px = k.k", "don't compare", "ticks k"),
    ("SELECT * FROM trades t JOIN zoned z WITHIN 3 ROWS ON t.sym = z.sym", "time zone, or neither", "zoned z"),
    ("SELECT * FROM trades t JOIN trades WITHIN 3 ROWS ON t.sym = t.sym", "which makes a cross join", "t.sym = t.sym"),
    ("SELECT * FROM trades JOIN trades WITHIN 3 ROWS ON 1 = 1", "a self-join needs an alias for each", "trades"),
    ("SELECT * FROM trads t JOIN quotes q WITHIN 3 ROWS ON t.sym = q.sym", "did you mean trades.*there are", "trads t"),
    (f"{FRAME} AND t.px = q.bidd", "q has no column 'bidd'; did you mean q.bid", "q.bidd"),
    (f"{FRAME} WHERE sym = 'x'", "'sym' is ambiguous: write t.sym or q.sym", "sym"),
    (f"{FRAME} WHERE pxx = 5", "no stream of this query has a column 'pxx'; did you mean px", "pxx"),
    (f'{FRAME} WHERE t.sym = "AAPL"', "if it is a string, write 'AAPL'", '"AAPL"'),
    (f"{FRAME} WHERE trades.px = 5", "trades is called t here", "trades.px"),
    (f"{FRAME} WHERE n.px = 5", "unknown stream or alias 'n'.*here are: t, q", "n.px"),
    (f"{FRAME} AND t.px > n.score JOIN news n WITHIN 3 ROWS ON n.sym = t.sym", "n is joined later", "n.score"),
    (f"{FRAME} JOIN news n WITHIN 3 ROWS ON t.px = q.bid", "relates n to no stream before it .t, q.", "t.px = q.bid"),
    (f"{FRAME} AND t.px = q.sym", "can't compare t.px .int64. with q.sym .string.", "t.px = q.sym"),
    (f"{FRAME} AND (t.px > 1 OR t.sym + 1 > 2)", "can't take t.sym", "t.sym + 1"),
    (f"{FRAME} WHERE t.px", "must be a boolean", "t.px"),
    (f"{FRAME} WHERE t.px > (SELECT 1)", "a subquery is not allowed in an ad-hoc", "SELECT"),
    (f"{FRAME} WHERE SUM(t.px) > 1", "the aggregate SUM is not allowed in an ad-hoc", "SUM(t.px"),
    (f"{FRAME} WHERE t.px > 1 > 2", "follows a comparison", ">"),
    (f"{FRAME} WHERE", "something is missing after WHERE", "WHERE"),
    (f"{FRAME} WHERE t.px =", "something is missing after '='", "="),
    (f"{FRAME} WHERE (t.px = 1", "expected '\\)'", "1"),
    (f"{FRAME} WHERE t.px = 1 GROUP BY t.px", "groups need a window of time", "GROUP BY"),
    (f"{FRAME} ORDER BY 1", "ORDER BY is not allowed here", "ORDER BY"),
    (f"{FRAME} LIMIT 5", "LIMIT is not allowed here", "LIMIT"),
    (f"{FRAME} UNION {FRAME}", "UNION is not allowed here", "UNION"),
    (f"{FRAME}; {FRAME}", "one query at a time", ";"),
    (f"{FRAME} WHERE t.sym = 'x", "never closed", "'"),
    (f"{FRAME} WHERE t.px = 1 WHERE t.px = 2", "unexpected 'WHERE'", "WHERE"),
    (FRAME.replace("t.px", "t.px, q.bid AS px"), "two outputs are called 'px'", "q.bid AS px"),
    (FRAME.replace("t.px", "t.px + 1"), "needs a name: add AS", "t.px + 1"),
    (FRAME.replace("t.px", "NULL AS n"), "NULL in every row", "NULL AS n"),
    (FRAME.replace("t.px", "* AS n"), "takes no name", "* AS n"),
    (FRAME.replace("t.px", "tt.*"), "unknown stream or alias 'tt'; did you mean t", "tt.*"),
    (FRAME.replace("t.px", "COUNT(*) AS n"), "the aggregate COUNT is not allowed", "COUNT(*"),
    (FRAME.replace("t.px", "UPPER(t.px) AS n"), "UPPER can't take t.px", "UPPER(t.px"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "marked"), REFUSED)
def test_refuses_at_the_place(text: str, message: str, marked: str) -> None:
    with pytest.raises(sj.QueryError, match=message) as caught:
        parse(text, STREAMS)
    error = caught.value
    start = sum(len(line) + 1 for line in text.split("\n")[: error.line - 1]) + error.column - 1
    assert text[start : start + error.length] == marked
    *_, shown_line, carets = str(error).split("\n")
    assert len(carets) <= len(shown_line) + 1
    assert error.message == str(error).split("\n  line ")[0]


def test_the_place_counts_lines() -> None:
    with pytest.raises(sj.QueryError) as caught:
        parse(FRAME + "\nWHERE t.px > 5\n  AND t.pz = 1", STREAMS)
    assert (caught.value.line, caught.value.column, caught.value.length) == (3, 7, 4)
    assert str(caught.value).endswith("      AND t.pz = 1\n          ^^^^")


def test_six_streams_are_too_many() -> None:
    joins = " ".join(f"JOIN trades x{n} WITHIN 3 ROWS ON x{n}.sym = x0.sym" for n in range(1, 6))
    with pytest.raises(sj.QueryError, match="at most 5 streams; this is number 6") as caught:
        plan(f"SELECT x0.px FROM trades x0 {joins}")
    assert caught.value.length == len("trades")
    assert len(plan(f"SELECT x0.px FROM trades x0 {joins[: joins.rindex('JOIN')]}").sources) == 5


def test_keywords_as_names() -> None:
    schema = pa.schema({"left": pa.int64(), "from": pa.int64(), "limit": pa.int64(), "ts": pa.int64()})
    stream = sj.adhoc.Stream("window", schema, "ts")
    query = parse(
        'SELECT a.left AS x, "b"."from" AS y, a.limit AS "z w" FROM "window" a JOIN "window" AS "b" WITHIN 3 UNITS '
        'ON a.left = "b".left AND a.limit IS NOT DISTINCT FROM "b".limit',
        [stream],
    )
    assert query.schema.names == ["x", "y", "z w"]
    assert [str(term) for term in query.steps[0].terms] == ["a.left = b.left"]


def test_the_query_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "adhoc-sql.md").read_text()
    text, alone, outer, around, grouped, united = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    news = {"sym": pa.string(), "kind": pa.string(), "reach": pa.int64(), "ts": pa.timestamp("us")}
    query = parse(text, [TRADES, QUOTES, sj.adhoc.Stream("news", pa.schema(news), "ts")])
    assert shown(query) == {
        "terms": ["t.sym = q.sym", "t.px - q.bid BETWEEN -2 AND 3", "t.sym = n.sym"],
        "others": [],
        "selections": ["row.px > 10", "row.kind IN ('merger', 'profit')"],
        "residual": ["n.reach > t.qty"],
    }
    assert parse(alone, [TRADES]).steps == ()
    assert shown(parse(alone, [TRADES]))["selections"] == ["row.px > 10"]
    orders = sj.adhoc.Stream("orders", pa.schema({"id": pa.int64(), "ts": pa.timestamp("us")}), "ts")
    payment = pa.schema({"order_id": pa.int64(), "amount": pa.float64(), "ts": pa.timestamp("us")})
    assert parse(outer, [orders, sj.adhoc.Stream("payments", payment, "ts")]).steps[0].kind == "left"
    assert parse(around, [TRADES, QUOTES]).schema.names == ["sym", "px", "mid", "n"]
    assert parse(grouped, [TRADES, QUOTES]).schema.names == ["sym", "window_start", "window_end", "n", "top"]
    assert parse(united, [TRADES, QUOTES]).schema.names == ["sym", "px", "kind"]
    for row in re.findall(r"^\| `(.* b\..*)` \| ", page.partition("## Conditions")[2], re.MULTILINE):
        schema = pa.schema({"p": pa.int64(), "q": pa.int64(), "t": pa.timestamp("us")})
        streams = [sj.adhoc.Stream(name, schema, "t") for name in "ab"]
        assert len(parse(f"SELECT a.p FROM a JOIN b WITHIN 1 DAYS ON {row}", streams).steps[0].bands) == 1


SENTENCE = (
    "SELECT px AS a , q . * FROM trades AS t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym AND ( ABS ( t.px - q.bid "
    ") <= 5 OR CASE WHEN t.px > 1 THEN TRUE ELSE q.ask BETWEEN 1 AND 2 END ) JOIN news n WITHIN 10 ROWS ON n.sym IN ( "
    "'a' , 'b' ) AND n.sym = t.sym WHERE t.ts > TIMESTAMP '2024-01-01' - INTERVAL '5' SECOND AND NOT t.sym LIKE 'a%'"
)
WORDS = [*SENTENCE.split(), ";", "LEFT", "GROUP BY", '"x"', "'", "--", "/*", ".5", "9e9", "SUM", "DISTINCT", "\n", "é"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_text_is_read_or_refused_with_a_place(data: st.DataObject) -> None:
    words = SENTENCE.split()
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(words) - 1))
        change = data.draw(st.sampled_from(["drop", "swap", "insert", "cut"]))
        if change == "cut":
            words = words[: place + 1]
        elif change == "drop" and len(words) > 1:
            del words[place]
        elif change == "swap":
            other = data.draw(st.integers(0, len(words) - 1))
            words[place], words[other] = words[other], words[place]
        else:
            words.insert(place, data.draw(st.sampled_from(WORDS)))
    text = " ".join(words)
    try:
        query = parse(text, STREAMS)
    except sj.QueryError as error:
        assert 1 <= error.column <= len(text) + 2
        assert "\n  line " in str(error)
    else:
        assert query.text == text


NEAR = "SELECT x.p FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{NEAR} AND x.s ~ 'a.*'", "write regexp_matches(x, 'pattern')"),
        (f"{NEAR} AND x.s !~ 'a.*'", "write regexp_matches(x, 'pattern')"),
        (f"{NEAR} AND x.s ~* 'a.*'", "write regexp_matches(x, 'pattern')"),
        (f"{NEAR} AND x.s SIMILAR TO 'a'", "write regexp_matches(x, 'pattern')"),
        (f"{NEAR} AND ~x.k = 1", "allowed operators: "),
        (f"{NEAR} WHERE x.k > $1", "write the value itself"),
        (f"{NEAR} WHERE x.k > ?", "write the value itself"),
        ("SELECT x.p FROM l x WHERE EXISTS (SELECT 1 FROM r y WHERE y.k = x.k)", "with SEMI JOIN b WITHIN"),
        ("SELECT x.p FROM l x WHERE x.k NOT IN (SELECT y.k FROM r y)", "ANTI JOIN for NOT EXISTS and NOT IN"),
        (f"{NEAR} WHERE EXISTS (SELECT 1 FROM r z WHERE z.k = x.k)", "with SEMI JOIN b WITHIN"),
        (f"{NEAR} WHERE x.k IN (SELECT z.k FROM r z)", "with SEMI JOIN b WITHIN"),
        *(
            (f"{NEAR} WHERE {access} = 'v'", "make it a column before the join")
            for access in ("x.s#>'a'", "x.s['a']", "x.s:a", "json_array_length(x.s)")
        ),
        (f"{NEAR} WHERE x.s @> 'a'", "make it a column before the join"),
        *((nothing, "the query is empty; write SELECT ... FROM a [JOIN b") for nothing in ("", "  ", ";", "-- x")),
    ],
)
def test_what_other_dialects_have_is_told_what_to_write(text: str, message: str) -> None:
    columns = pa.schema({"k": pa.int64(), "p": pa.int64(), "s": pa.string(), "t": pa.int64()})
    with pytest.raises(QueryError) as told:
        parse(text, [Stream(name, columns, "t") for name in "lr"])
    assert message in told.value.message
