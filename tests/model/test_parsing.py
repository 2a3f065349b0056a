"""Texts: what is read, what is refused, and that every refusal shows the place."""

from __future__ import annotations

import logging
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot.tokens import Tokenizer

from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression import nodes as x
from streamjoin.model.expression.parsing import parse_condition

A, B = x.Column("l", "a"), x.Column("r", "b")


def test_the_example_of_the_design() -> None:
    assert parse_condition("l.x < r.a AND l.sym LIKE 'A%'") == x.And(
        (x.Compare("<", x.Column("l", "x"), x.Column("r", "a")), x.Like(x.Column("l", "sym"), "A%"))
    )


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("l.a = 5", x.Compare("=", A, x.Literal(5))),
        ("l.a == 5", x.Compare("=", A, x.Literal(5))),
        ("l.a != -5", x.Compare("<>", A, x.Literal(-5))),
        ("l.a = - 5.50", x.Compare("=", A, x.Literal(Decimal("-5.5")))),
        ("l.a = .5", x.Compare("=", A, x.Literal(Decimal("0.5")))),
        ("l.a = 1e3", x.Compare("=", A, x.Literal(Decimal("1E+3")))),
        ("l.a = 'x''y'", x.Compare("=", A, x.Literal("x'y"))),
        ("l.a = 'x\\n'", x.Compare("=", A, x.Literal("x\\n"))),
        ("l.a = true", x.Compare("=", A, x.Literal(True))),
        ("NULL", x.NULL),
        ('"l"."a" IS NULL', x.IsNull(A)),
        ("l.a IS NOT NULL", x.Not(x.IsNull(A))),
        ("l.a IS TRUE", x.IsTruth(A, True)),
        ("l.a IS NOT FALSE", x.Not(x.IsTruth(A, False))),
        ("l.a IS UNKNOWN", x.IsNull(A)),
        ("l.a IS DISTINCT FROM r.b", x.Compare("IS DISTINCT FROM", A, B)),
        ("l.a IS NOT DISTINCT FROM r.b", x.Compare("IS NOT DISTINCT FROM", A, B)),
        ("l.a <=> r.b", x.Compare("IS NOT DISTINCT FROM", A, B)),
        ("l.a BETWEEN 1 AND r.b", x.Between(A, x.Literal(1), B)),
        ("l.a NOT BETWEEN 1 AND 2", x.Not(x.Between(A, x.Literal(1), x.Literal(2)))),
        ("l.a IN (1, NULL)", x.In(A, (x.Literal(1), x.NULL))),
        ("l.a NOT IN ('x')", x.Not(x.In(A, (x.Literal("x"),)))),
        ("l.a LIKE 'x%'", x.Like(A, "x%")),
        ("l.a NOT LIKE 'x!%' ESCAPE '!'", x.Not(x.Like(A, "x!%", "!"))),
        ("l.a ILIKE 'x'", x.Like(A, "x", None, True)),
        ("l.a NOT ILIKE 'x'", x.Not(x.Like(A, "x", None, True))),
        ("NOT l.a", x.Not(A)),
        ("not l.a or l.a AND r.b", x.Or((x.Not(A), x.And((A, B))))),
        ("((l.a))", A),
        ("l.a = DATE '2024-02-29'", x.Compare("=", A, x.Date(19_782))),
        ("l.a = TIMESTAMP '1970-01-01'", x.Compare("=", A, x.Timestamp(0))),
        ("l.a = TIMESTAMP '1970-01-01T00:00:01.000000001'", x.Compare("=", A, x.Timestamp(10**9 + 1))),
        ("l.a = TIMESTAMP '1970-01-01 01:00+01'", x.Compare("=", A, x.Timestamp(0, True))),
        ("l.a = TIMESTAMPTZ '1970-01-01 00:00:00'", x.Compare("=", A, x.Timestamp(0, True))),
        ("l.a = TIMESTAMP '1970-01-01 00:00:00Z'", x.Compare("=", A, x.Timestamp(0, True))),
        ("l.a = TIMESTAMP '1969-12-31 22:30:00 -0130'", x.Compare("=", A, x.Timestamp(0, True))),
        ("l.a = INTERVAL '5 seconds'", x.Compare("=", A, x.Interval(5 * 10**9))),
        ("l.a = INTERVAL '5' SECOND", x.Compare("=", A, x.Interval(5 * 10**9))),
        ("l.a = INTERVAL 5 seconds", x.Compare("=", A, x.Interval(5 * 10**9))),
        ("l.a = INTERVAL '-1.5 ms'", x.Compare("=", A, x.Interval(-1_500_000))),
        ("l.a = INTERVAL '2 hours 3 minutes'", x.Compare("=", A, x.Interval(7_380 * 10**9))),
        ("l.a = INTERVAL '1' WEEK", x.Compare("=", A, x.Interval(604_800 * 10**9))),
        ("l.a = INTERVAL '1' NANOSECOND", x.Compare("=", A, x.Interval(1))),
        ("l.a + 1 * 2 = r.b", x.Compare("=", x.Arithmetic("+", A, x.Arithmetic("*", x.Literal(1), x.Literal(2))), B)),
        ("MOD(l.a, 2) = 1", x.Compare("=", x.Arithmetic("%", A, x.Literal(2)), x.Literal(1))),
        ("CEILING(l.a) = 1", x.Compare("=", x.Function("CEIL", (A,)), x.Literal(1))),
        ("pow(l.a, 2) = 1", x.Compare("=", x.Function("POWER", (A, x.Literal(2))), x.Literal(1))),
        ("COALESCE(l.a, r.b, TRUE)", x.Function("COALESCE", (A, B, x.Literal(True)))),
        ("CASE WHEN l.a THEN r.b END", x.Case(((A, B),))),
        ("CASE l.a WHEN 1 THEN r.b ELSE FALSE END", x.Case(((x.Compare("=", A, x.Literal(1)), B),), x.Literal(False))),
        ("l.a -- a comment\n = /* another */ r.b", x.Compare("=", A, B)),
        ("l.date = l.timestamp", x.Compare("=", x.Column("l", "date"), x.Column("l", "timestamp"))),
        ("(l.a = r.b) IS NULL", x.IsNull(x.Compare("=", A, B))),
    ],
)  # fmt: skip
def test_reads(text: str, node: x.Expression) -> None:
    assert parse_condition(text) == node


def test_qualifiers_are_the_callers() -> None:
    assert parse_condition("trades.px > q.bid", ("trades", "q")).columns == (
        x.Column("trades", "px"),
        x.Column("q", "bid"),
    )
    with pytest.raises(ExpressionError, match="unknown qualifier 'l'; allowed: trades, q"):
        parse_condition("l.px > 1", ("trades", "q"))


def test_every_keyword_can_be_a_quoted_name_and_prints_so_that_it_reads_again() -> None:
    words = {word.lower() for word in Tokenizer.KEYWORDS if word.replace("_", "").isalpha()}
    for word in words | {"if", "case", "interval", "abs", "end"}:
        tree = x.Compare("=", x.Column(word, word), x.Literal(1))
        assert parse_condition(str(tree), (word,)) == tree, word


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ("", "the condition is empty", ""),
        ("  -- nothing", "the condition is empty", " "),
        ("l.a = ", "something is missing after '='", "="),
        ("l.a = 1 AND", "something is missing after 'AND'", "AND"),
        ("l.a LIKE", "something is missing after 'LIKE'", "LIKE"),
        ("l.a = 1 y", "unexpected 'y'", "y"),
        ("l.a = 1 l.b = 2", "unexpected 'l'", "l"),
        ("l.a = 1)", "unexpected '\\)'", ")"),
        ("(l.a = 1", "expected '\\)' after '1'", "1"),
        ("l.a = 1;", "';' is not part", ";"),
        ("l.a = 'x", "never closed", "'"),
        ('l.a = "x', "never closed", '"'),
        ("l.a = 1 /* x", "never closed", "/"),
        ("l.a = x + 1", "column 'x' has no qualifier: write l.x or r.x", "x"),
        ('l.a = "x y"', "if it is a string, write 'x y'", '"x y"'),
        ("q.a = 1", "unknown qualifier 'q'; allowed: l, r", "q.a"),
        ("L.a = 1", "unknown qualifier 'L'; allowed: l, r", "L.a"),
        ("x.l.a = 1", "one qualifier", "x.l.a"),
        ("v.w.x.l.a = 1", "qualifier.name", "v.w.x.l.a"),
        ("l.a.b(1) = 1", "functions have no qualifier", "l.a.b(1"),
        ("l.* = 1", "name one", "*"),
        ("l.select = 1", "reserved word", "select"),
        ("foo(l.a) = 1", "unknown function FOO; did you mean FLOOR. known: ABS, .* UPPER", "foo(l.a"),
        ("NOW() > l.a", "NOW is not allowed: a row comes out the same", "NOW"),
        ("UPPERCASE(l.a) = 'A'", "unknown function UPPERCASE; did you mean UPPER", "UPPERCASE(l.a"),
        ("IF(l.a + 1, 1, 2) = 1", "WHEN takes booleans", "l.a + 1, 1, 2"),
        ("SUM(l.a) > 1", "aggregate SUM is not allowed", "SUM(l.a"),
        ("COUNT(*) > 1", "aggregate COUNT", "COUNT(*"),
        ("ABS(l.a) OVER () > 1", "window function", "OVER"),
        ("SELECT 1", "subquery is not allowed", "SELECT"),
        ("l.a = (SELECT 1)", "subquery is not allowed", "SELECT"),
        ("l.a IN (SELECT 1)", "subquery is not allowed", "SELECT"),
        ("EXISTS(SELECT 1)", "subquery is not allowed", "EXISTS"),
        ("l.a = ALL (SELECT 1)", "subquery is not allowed", "ALL"),
        ("l.a = ANY (SELECT 1)", "ANY is not allowed", "ANY"),
        ("l.a = ?", "placeholder", "?"),
        ("l.a = :x", "placeholder", ":"),
        ("@x = 1", "parameter", "@"),
        ("(l.a, r.b) = (1, 2)", "only allowed after IN", "l.a, r.b"),
        ("CAST(l.a AS INTERVAL) = 1", "can't cast to INTERVAL; write one of: BOOLEAN", "l.a"),
        ("TIME '10:00' = l.a", "can't cast to TIME", "'10:00'"),
        ("l.a & 1 = 1", "operator is not allowed", "l.a & 1"),
        ("l.a SIMILAR TO 'x'", "write regexp_matches", "l.a SIMILAR TO 'x'"),
        ("l.a[1] = 1", "make it a column before the join", "l.a[1"),
        ("{'a': 1} = 1", "braces", "{"),
        ("1 < l.a < 5", "'<' follows a comparison; join them with AND", "<"),
        ("l.a = r.b IS NULL", "'IS' follows a comparison", "IS"),
        ("l.a BETWEEN 1 AND 2 = TRUE", "'=' follows a comparison", "="),
        ("l.a = r.b NOT IN (1)", "'IN' follows a comparison", "IN"),
        ("l.a IS 5", "IS takes", "l.a IS 5"),
        ("l.a LIKE r.b", "string literal as its pattern", "r.b"),
        ("l.a LIKE 'x!' ESCAPE '!'", "stands before the end", "l.a LIKE 'x!'"),
        ("l.a LIKE 'x' ESCAPE 'ab'", "one character", "l.a LIKE 'x'"),
        ("l.a IN (1, r.b)", "list of literals; r.b is not one", "r.b"),
        ("l.a IN r.b", "in parentheses", "r.b"),
        ("l.a IN ()", "at least one value", "l.a"),
        ("l.a BETWEEN SYMMETRIC 1 AND 2", "no argument or option 'SYMMETRIC'", "l.a BETWEEN SYMMETRIC 1 AND 2"),
        ("FLOOR(l.a TO HOUR) = 1", "FLOOR takes no argument or option 'TO'", "l.a"),
        ("ABS() = 1", "argument is missing before '\\)'", ")"),
        ("ABS(l.a, 1) = 1", "too many arguments", ")"),
        ("ABS(DISTINCT l.a) = 1", "DISTINCT is only allowed in IS", "DISTINCT"),
        ("CASE END", "Expected END after CASE", "END"),
        ("l.a = DATE '2024-02-30'", "not a date; write DATE", "'2024-02-30'"),
        ("l.a = DATE '20240201'", "not a date; write DATE", "'20240201'"),
        ("l.a = TIMESTAMP '2024-01-01 25:00:00'", "not a timestamp; write TIMESTAMP", "'2024-01-01 25:00:00'"),
        ("l.a = TIMESTAMP 'noon'", "not a timestamp", "'noon'"),
        ("l.a = TIMESTAMP '0001-01-01 00:00:00+10'", "years 1 to 9999", "'0001-01-01 00:00:00+10'"),
        ("l.a = INTERVAL '5'", "with a unit", "INTERVAL '5'"),
        ("l.a = INTERVAL '1 month'", "no fixed length", "INTERVAL '1 month'"),
        ("l.a = INTERVAL '1 fortnight'", "unknown interval unit", "INTERVAL '1 fortnight'"),
        ("l.a = INTERVAL '0.1 ns'", "whole number of nanoseconds", "INTERVAL '0.1 ns'"),
        ("l.a = INTERVAL '9999999 days'", "9999 years", "INTERVAL '9999999 days'"),
        ("l.a = INTERVAL '1:30' MINUTE TO SECOND", "number with a unit", "INTERVAL '1:30'"),
        ("l.a = INTERVAL r.b SECOND", "number with a unit", "r.b"),
        ("l.a = 1e999", "range of float64", "1e999"),
        ("l.a = " + "9" * 80, "at most 76 digits", "9" * 80),
        ("l.a + 1", "not a boolean", "l.a + 1"),
        ("'x'", "not a boolean", "'x'"),
        ("5", "not a boolean", "5"),
        ("ABS(l.a)", "not a boolean", "ABS(l.a)"),
        ("l.a AND 5", "AND takes booleans; 5 is not one", "l.a AND 5"),
        ("NOT 5", "NOT takes booleans", "5"),
        ("-(l.a = 1) = 2", "unary minus takes no booleans", "l.a = 1"),
        ("(l.a = 1) + 1 = 2", "\\+ takes no booleans", "l.a = 1) + 1"),
        ("CASE WHEN 5 THEN 1 END = 1", "WHEN takes booleans", "5 THEN 1"),
        ("CREATE TABLE x", "unexpected 'CREATE'", "CREATE"),
        ("l.a = N'x'", "NATIONAL is not allowed", "N'x'"),
    ],
)  # fmt: skip
def test_refuses_and_shows_the_place(text: str, message: str, marked: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExpressionError, match=message) as raised:
        parse_condition(text)
    *_, place, shown, carets = str(raised.value).split("\n")
    assert place.startswith("  line 1, column ")
    start = carets.index("^")
    assert shown[start : start + carets.count("^")] == marked
    assert int(place.rstrip(":").split()[-1]) == start - 3
    assert capfd.readouterr() == ("", "")


def test_the_place_in_a_text_of_several_lines() -> None:
    with pytest.raises(ExpressionError) as raised:
        parse_condition("l.a = 1\n  AND l.b = \t2\n  AND q.c = 3")
    assert str(raised.value) == (
        "unknown qualifier 'q'; allowed: l, r\n  line 3, column 7:\n      AND q.c = 3\n          ^^^"
    )


def test_a_long_line_is_cut_round_the_place() -> None:
    text = " AND ".join(["l.a = 1"] * 300 + ["oops = 1"] + ["l.a = 1"] * 300)
    with pytest.raises(ExpressionError) as raised:
        parse_condition(text)
    *_, shown, carets = str(raised.value).split("\n")
    assert shown.startswith("    ...") and shown.endswith("...")
    assert len(shown) < 200
    assert shown[carets.index("^") :].startswith("oops = 1")


def test_a_condition_is_text() -> None:
    with pytest.raises(ExpressionError, match="is a string such as"):
        parse_condition(None)  # type: ignore[arg-type]


def test_long_chains_and_deep_nests() -> None:
    tree = parse_condition(" AND ".join(f"l.a <> {n}" for n in range(1_000)))
    assert isinstance(tree, x.And)
    assert len(tree.terms) == 1_000
    assert parse_condition(str(tree)) == tree
    assert parse_condition("(" * 20 + "l.a = 1" + ")" * 20) == x.Compare("=", A, x.Literal(1))
    for text in ("(" * 3_000 + "l.a = 1" + ")" * 3_000, "NOT " * 3_000 + "l.a", "- " * 3_000 + "l.a = 1"):
        with pytest.raises(ExpressionError, match="nests"):
            parse_condition(text)
    for opening, closing in (("(", ")"), ("ABS(", ")"), ("CASE WHEN l.a = 1 THEN ", " END"), ("[", "]")):
        with pytest.raises(ExpressionError, match="nests more than 40 levels deep"):
            parse_condition(opening * 41 + "l.a" + closing * 41 + " = 1")
    with pytest.raises(ExpressionError, match="more than 100 levels"):
        parse_condition(" + ".join(["l.a"] * 500) + " = 1")
    assert parse_condition(" + ".join(["l.a"] * 90) + " = 1").depth == 91


_WORDS = """
    l.a r.b l . a ( ) , = < <= AND OR NOT IN LIKE BETWEEN IS NULL TRUE CASE WHEN THEN ELSE END 1 2.5 'x' - + * / %
    INTERVAL DATE '2024-01-01' SECOND ABS SELECT x ; ? :: INT " ' -- /* \\
""".split()  # noqa: SIM905


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(_WORDS),
        max_size=10,
    ).map(" ".join)
    | st.text(max_size=12)
)
def test_any_text_is_read_or_refused_by_our_error(text: str) -> None:
    try:
        tree = parse_condition(text)
    except ExpressionError as error:
        assert "^" in str(error)
    else:
        assert parse_condition(str(tree)) == tree


@pytest.mark.parametrize("number", [".2.5", "1e99999999999999999999"])
def test_what_only_looks_like_a_number_is_refused(number: str) -> None:
    with pytest.raises(ExpressionError, match="is not a number that can be read"):
        parse_condition(f"l.a = {number}")


def test_nothing_is_logged_and_other_threads_still_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ExpressionError):
        parse_condition("IF.x = 1")
    assert not caplog.records
    logging.getLogger("sqlglot").warning("still there")
    assert [record.getMessage() for record in caplog.records] == ["still there"]
