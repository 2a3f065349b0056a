"""Every function and cast against DuckDB, and by hand where the two differ on purpose."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.model.errors import ExpressionError, SchemaError
from streamjoin.model.expression import nodes as x
from streamjoin.model.expression.aggregates import AGGREGATES
from streamjoin.model.expression.arrow_results import to_arrow
from streamjoin.model.expression.cast_types import CAST_TYPES
from streamjoin.model.expression.evaluation import evaluate, from_arrow
from streamjoin.model.expression.functions import EVALUATED
from streamjoin.model.expression.json_paths import parse_path, path_text
from streamjoin.model.expression.parsing import Scan
from streamjoin.model.expression.signatures import FUNCTIONS, PARTS, UNITS
from streamjoin.model.expression.source_text import SourceText
from streamjoin.model.expression.typing_rules import check
from tests.seeds import examples

SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "f": pa.float64(),
        "d": pa.decimal128(12, 3),
        "s": pa.string(),
        "p": pa.string(),
        "j": pa.string(),
        "b": pa.bool_(),
        "t": pa.timestamp("us"),
        "day": pa.date32(),
        "z": pa.timestamp("us", "UTC"),
        "v": pa.duration("us"),
    }
)
TIMES = [
    dt.datetime(1970, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(2024, 2, 29, 13, 45, 30, 123_456),
    dt.datetime(2024, 12, 30, 0, 0, 0, 5_000),
    dt.datetime(2021, 1, 3, 7),
    dt.datetime(1582, 10, 10, 3),
    dt.datetime(9998, 12, 31, 23, 59, 59),
    dt.datetime(2, 1, 1),
]
CELLS: dict[str, list[Any]] = {
    "i": [None, 0, 1, -1, 2, 5, -3, 100, -12345, 2**40],
    "f": [None, 0.0, 0.5, -0.5, 1.5, -2.5, 2.25, 3.75, -7.125, 100.0, 1234.5],
    "d": [None, *map(Decimal, ("0", "0.5", "-0.5", "1.499", "-1.5", "2.675", "123.456", "-999.999"))],
    "s": [None, "", "a", " a b ", "aXbXc", "héllo", "xxaxx", "a,b,,c", "AbC", "no 12 and 345", "xay\n"],
    "p": [None, "", "a", "X", ",", "b", "l", "xx"],
    "j": [
        *(None, "", "null", "[1,2,3]", '"text"', '{"a": {"b": "x"}}', '{"a": {"b": [1, true, null]}}', "{'a'}", "12"),
        *(
            '{"a": 1.5, "c d": 2}',
            '{"a": {"b": null}}',
            '{"a": "\\u00e9\\n"}',
            '{"a": [{"b": 7}]}',
            '{"a": {"b": 1e2}}',
        ),
    ],
    "b": [None, True, False],
    "t": [None, *TIMES],
    "day": [None, *(time.date() for time in TIMES)],
    "z": [None, *(time.replace(tzinfo=dt.UTC) for time in TIMES)],
    "v": [None, *(dt.timedelta(microseconds=n) for n in (0, 1, -1, 1_500_000, -86_400_000_001))],
}
ROWS = max(map(len, CELLS.values()))
TABLE = pa.table({name: pa.array((cells * ROWS)[:ROWS], SCHEMA.field(name).type) for name, cells in CELLS.items()})

AS_DUCKDB: dict[str, list[str]] = {
    "ABS": ["abs(i)", "abs(f)", "abs(d)"],
    "ACOS": ["acos(f / 2000)"],
    "ASIN": ["asin(f / 2000)"],
    "ATAN": ["atan(f)", "atan(i)"],
    "ATAN2": ["atan2(f, i)"],
    "CEIL": ["ceil(f)", "ceiling(d)"],
    "COALESCE": ["coalesce(s, p)", "ifnull(i, 7)", "coalesce(f, i, 0)"],
    "CONCAT": ["concat(s, p)", "concat(s, NULL, '-', p)", "concat(NULL)"],
    "CONTAINS": ["contains(s, p)"],
    "COS": ["cos(f)"],
    "DATE_PART": [
        *(f"extract({part} FROM t)" for part in PARTS),
        *(f"date_part('{part}', day)" for part in ("year", "week", "isodow", "doy")),
        *(f"{part}(t)" for part in ("year", "quarter", "month", "week", "day", "hour", "minute", "second")),
    ],
    "DATE_TRUNC": [*(f"date_trunc('{unit}', t)" for unit in UNITS), "date_trunc('month', day)"],
    "DEGREES": ["degrees(f)"],
    "ENDS_WITH": ["suffix(s, p)"],
    "EPOCH": ["epoch(t)", "epoch(day)", "extract(epoch FROM t)", "epoch(t - TIMESTAMP '2020-01-01')"],
    "EPOCH_MS": ["epoch_ms(date_trunc('second', t))"],
    "EXP": ["exp(f / 10)"],
    "FLOOR": ["floor(f)", "floor(d)"],
    "GREATEST": ["greatest(i, 2, NULL)", "greatest(s, p)"],
    "JSON_EXTRACT": [],
    "JSON_EXTRACT_STRING": [],
    "LEAST": ["least(f, 0.5)", "least(s, p)"],
    "LEFT": ["left(s, 2)", "left(s, i % 7)", "left(s, -1)"],
    "LENGTH": ["length(s)", "len(p)", "char_length(s)"],
    "LN": ["ln(f + 8)"],
    "LOG10": ["log10(f + 8)", "log(10, f + 8)"],
    "LOG2": ["log2(f + 8)"],
    "LOWER": ["lower(s)"],
    "LTRIM": ["ltrim(s)", "ltrim(s, p)", "trim(LEADING 'x' FROM s)"],
    "POWER": ["power(f, 2)", "pow(2, i % 10)"],
    "RADIANS": ["radians(f)"],
    "REGEXP_EXTRACT": [
        "regexp_extract(s, '[0-9]+')",
        "regexp_extract(s, '(n.)( )([(0-9]+)\\s(?:and)', 3)",
        "regexp_extract(s, '(a)|(b)', 2)",
        "regexp_extract(s, '^$')",
    ],
    "REGEXP_MATCHES": [
        *("regexp_matches(s, 'a.b')", "regexp_matches(s, 'ABC', 'i')", "regexp_matches(s, '^(a|x).*[bc]$')"),
    ],
    "REGEXP_REPLACE": ["regexp_replace(s, '[aX]', '<\\0>')", "regexp_replace(s, '([a-z])', '\\1\\1', 'g')"],
    "REPLACE": ["replace(s, 'X', '--')", "replace(s, p, 'y')"],
    "REVERSE": ["reverse(p)"],
    "RIGHT": ["right(s, 2)", "right(s, i % 7)", "right(s, -1)"],
    "ROUND": ["round(f)", "round(d)", "round(d, 2)", "round(f, 1)", "round(i, -2)", "round(f, -2)", "round(d, 5)"],
    "RTRIM": ["rtrim(s)", "rtrim(s, p)", "trim(TRAILING 'x' FROM s)"],
    "SIGN": ["sign(f)", "sign(i)", "sign(d)"],
    "SIN": ["sin(f)"],
    "SPLIT_PART": ["split_part(s, ',', 2)", "split_part(s, 'X', -1)", "split_part(s, p, 1)", "split_part(s, ',', i)"],
    "SQRT": ["sqrt(abs(f))"],
    "STARTS_WITH": ["starts_with(s, p)", "prefix(s, p)"],
    "STRPOS": ["strpos(s, p)", "position(p IN s)", "instr(s, p)"],
    "SUBSTR": [
        "substr(s, 2)",
        "substr(s, 2, 3)",
        "substring(s FROM 1 FOR 2)",
        "substr(s, i % 7, 2)",
        "substr(s, i % 7)",
    ],
    "TAN": ["tan(f)"],
    "TO_TIMESTAMP": ["to_timestamp(i % 100000)", "to_timestamp(f)"],
    "TRIM": ["trim(s)", "trim(s, p)", "trim(BOTH 'x' FROM s)"],
    "TRUNC": ["trunc(f)", "trunc(d)"],
    "UPPER": ["upper(s)"],
    "||": ["s || p", "s || '-' || p", "s || NULL"],
}
OTHERS = [
    *("nullif(i, 5)", "nullif(s, p)", "CASE i WHEN 1 THEN 'one' WHEN 2 THEN s ELSE p END", "if(b, i, 0)"),
    *("mod(i, 3)", "t + INTERVAL '1 day'", "date_add(t, INTERVAL '2' HOUR)", "t - INTERVAL '90 minutes'", "t - t"),
    *("s LIKE '%X%'", "s ILIKE 'a%'", "NOT s LIKE 'a_'", "i IN (1, 2, NULL)", "s = p || 'b'"),
]
CASTS = [
    *("CAST(i AS DOUBLE)", "CAST(i AS VARCHAR)", "i::BIGINT", "CAST(f AS VARCHAR)", "CAST(d AS VARCHAR)", "b::VARCHAR"),
    *("CAST(t AS VARCHAR)", "CAST(day AS VARCHAR)", "t::DATE", "day::TIMESTAMP", "CAST(b AS INTEGER)", "b::DOUBLE"),
    *("TRY_CAST(f AS INTEGER)", "TRY_CAST(d AS BIGINT)", "TRY_CAST(i AS TINYINT)", "TRY_CAST(i AS SMALLINT)"),
    *(
        "TRY_CAST(d AS DECIMAL(5, 1))",
        "TRY_CAST(i AS DECIMAL(6, 2))",
        "CAST(i AS DECIMAL(38, 2))",
        "CAST(i AS BOOLEAN)",
    ),
    *("TRY_CAST(f AS DECIMAL(6, 1))", "TRY_CAST(f AS REAL)", "CAST(i AS REAL)", "date(t)", "z::TIMESTAMP", "z::DATE"),
]
TEXTS = ["5", " 5 ", "+5", "-5", "300", "1.5", "x", "", "1e3", "true", "F", "no", "inf", "2024-01-31", "99999999999"]
TEXTS += ["2024-01-31 12:00:00", "2024-01-31 12:00:00.25", "2024-02-30", "1.255", "-0.005", "123456.7"]
# DuckDB reads these too: a number as the whole one next to it, and infinity as a time.
FROM_TEXT = {
    **dict.fromkeys(("INTEGER", "TINYINT", "BIGINT"), frozenset({"1.5", "1e3", "1.255", "-0.005", "123456.7"})),
    "DOUBLE": set(),
    "BOOLEAN": set(),
    "DATE": {"inf"},
    "TIMESTAMP": {"inf"},
    "DECIMAL(5, 2)": set(),
}


def read(text: str) -> x.Expression:
    scan = Scan.of(SourceText(text))
    return scan.read(0, len(scan.source.words), lambda _, name, __: x.Column("l", name)).expression


def computed(text: str, table: pa.Table = TABLE) -> list[Any]:
    tree = read(text)
    type_ = check(tree, {"l": table.schema})
    columns = {column: from_arrow(table[column.name]) for column in tree.columns}
    return to_arrow(evaluate(tree, columns), type_, len(table)).to_pylist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("data", TABLE.append_column("n", pa.array(range(ROWS))))
        yield connection


def plain(value: Any) -> Any:
    """A value as both have it: NaN is NULL here, and DuckDB has narrower whole numbers."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    if isinstance(value, pa.MonthDayNano):
        return dt.timedelta(days=value.days, microseconds=value.nanoseconds // 1000)
    return value


def assert_as_duckdb(database: duckdb.DuckDBPyConnection, text: str) -> None:
    # As Arrow's values: DuckDB's own times with a zone need another library.
    (column,) = database.sql(f"SELECT {text} FROM data ORDER BY n").to_arrow_table().columns
    wanted, found = list(map(plain, column.to_pylist())), computed(text)
    for one, two in zip(found, wanted, strict=True):
        if isinstance(two, float) and one is not None:
            assert one == two or math.isclose(one, two, rel_tol=1e-12), text
        else:
            assert one == two, (text, found, wanted)


@pytest.mark.parametrize("text", [*(text for texts in AS_DUCKDB.values() for text in texts), *OTHERS, *CASTS])
def test_it_is_what_duckdb_says(database: duckdb.DuckDBPyConnection, text: str) -> None:
    assert_as_duckdb(database, text)


def test_every_function_has_an_evaluation_and_a_reference() -> None:
    assert EVALUATED == set(FUNCTIONS) == set(AS_DUCKDB)
    for name, texts in AS_DUCKDB.items():
        for text in texts:
            tree = read(text)
            assert any(isinstance(node, x.Function) and node.name == name for node in tree.walk()), text
            assert read(str(tree)) == tree
    for text in (*OTHERS, *CASTS):
        assert read(str(read(text))) == read(text)


PATHS = ["$.a", "$.a.b", "$.a.b[0]", "$.a[0].b", "$[1]", "$[-1]", '$."c d"', "$", "$.a.b[9]"]


@pytest.mark.parametrize("path", PATHS)
def test_json_is_what_duckdb_says(database: duckdb.DuckDBPyConnection, path: str) -> None:
    # DuckDB refuses the whole query for a text that is no JSON; here it has nothing at any path.
    valid = "CASE WHEN json_valid(j) THEN {} END"
    for written, theirs in (
        (f"json_extract_string(j, '{path}')", f"json_extract_string(j, '{path}')"),
        (f"json_extract(j, '{path}')", f"json_extract(j, '{path}')"),
    ):
        wanted = [row[0] for row in database.execute(f"SELECT {valid.format(theirs)} FROM data ORDER BY n").fetchall()]
        if "string" not in written:
            wanted = [None if value == "null" else value for value in wanted]
        assert computed(written) == wanted, written
    assert path_text(parse_path(path)) == path


def test_json_operators_take_keys_places_and_paths() -> None:
    assert str(read("j ->> 'a'")) == "JSON_EXTRACT_STRING(l.j, '$.a')"
    assert str(read("j -> 'a' ->> '$.b[0]'")) == "JSON_EXTRACT_STRING(JSON_EXTRACT(l.j, '$.a'), '$.b[0]')"
    table = pa.table({"j": ["[" * 100_000, '{"a": NaN}', '{"a": 1e999}', '{"a": 12345678901234567890}', '{"a": "1"}']})
    assert computed("json_extract_string(j, '$.a')", table) == [None, None, None, "12345678901234567890", "1"]
    halves = pa.table({"j": ['{"a": "\\ud800"}', '{"a": ["\\ud83d"]}', '{"a": "\\ud83d\\ude00"}']})
    assert computed("json_extract_string(j, '$.a')", halves) == [None, None, "\U0001f600"]
    assert computed("json_extract(j, '$.a')", halves) == [None, None, '"\U0001f600"']


@pytest.mark.parametrize("type_", FROM_TEXT)
def test_strings_are_read_as_duckdb_does(type_: str) -> None:
    table = pa.table({"s": TEXTS})
    found = computed(f"TRY_CAST(s AS {type_})", table)
    for text, value in zip(TEXTS, found, strict=True):
        wanted = duckdb.execute(f"SELECT TRY_CAST(? AS {type_})", [text]).fetchall()[0][0]
        assert value == (None if text in FROM_TEXT[type_] else wanted), text


def test_what_differs_from_duckdb_on_purpose() -> None:
    table = pa.table({"f": [-1.0, 0.0, 1e300], "i": [2**62, -5, 0], "s": ["a", "b", "c"]})
    assert computed("sqrt(f)", table) == [None, 0.0, 1e150]
    assert computed("ln(f)", table) == [None, -math.inf, math.log(1e300)]
    assert computed("exp(f)", table)[2] == math.inf
    assert computed("round(f, 20)", table)[2] == 1e300
    assert computed("TRY_CAST(f AS REAL)", table) == [-1.0, 0.0, None]
    assert computed("to_timestamp(i)", table) == [
        None,
        dt.datetime(1969, 12, 31, 23, 59, 55, tzinfo=dt.UTC),
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
    ]
    assert computed("TRY_CAST(s AS DATE)", table) == [None, None, None]
    assert computed("substr(s, 3, -2)", table) == ["", "", ""]
    nothing = pa.table({"i": pa.array([], pa.int64()), "s": pa.array([], pa.string())})
    for text in ("concat(s, s)", "CAST(i AS VARCHAR)", "regexp_extract(s, 'a')", "json_extract(s, '$.a')"):
        assert computed(text, nothing) == []


def test_times_of_other_units_keep_them() -> None:
    table = pa.table({"n": pa.array([1_700_000_000_123_456_789, -1], pa.timestamp("ns"))})
    assert check(read("date_trunc('second', n)"), {"l": table.schema}) == pa.timestamp("ns")
    assert computed("epoch_ms(n)", table) == [1_700_000_000_123, -1]
    assert computed("extract(microsecond FROM n)", table) == [20_123_456, 59_999_999]
    assert computed("CAST(n AS VARCHAR)", table) == ["2023-11-14 22:13:20.123456789", "1969-12-31 23:59:59.999999999"]
    seconds = pa.table({"n": pa.array([-(2**63), 2**63 - 1, 5], pa.timestamp("s"))})
    assert computed("CAST(n AS VARCHAR)", seconds) == [None, None, "1970-01-01 00:00:05"]
    for text in ("date_trunc('millisecond', n)", "date_trunc('hour', n) > TIMESTAMP '2020-01-01'", "year(n) > 5"):
        tree = read(text)
        check(tree, {"l": seconds.schema})
        assert evaluate(tree, {x.Column("l", "n"): from_arrow(seconds["n"])}).shape == (3,)
    zoned = pa.table({"n": pa.array([0], pa.timestamp("ms", "Europe/Berlin"))})
    assert computed("extract(hour FROM n)", zoned) == [0]
    assert check(read("date_trunc('day', n)"), {"l": zoned.schema}) == pa.timestamp("ms", "UTC")


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_nested_calls_are_what_duckdb_says(database: duckdb.DuckDBPyConnection, data: st.DataObject) -> None:
    def draw(*options: str) -> str:
        return data.draw(st.sampled_from(options))

    def text(depth: int) -> str:
        if not depth:
            return draw("s", "p", "'a'", "NULL::VARCHAR", "CAST(i AS VARCHAR)")
        return draw(
            "upper({0})", "({0} || {1})", "concat({0}, {1})", "replace({0}, {1}, 'z')", "substr({0}, {2}, 2)",
            "trim({0}, {1})", "CASE WHEN {3} THEN {0} ELSE {1} END", "split_part({0}, ',', 1)", "coalesce({0}, {1})",
            "regexp_replace({0}, '[ab]+', '<\\0>', 'g')", "left({0}, {2})", "reverse(right({0}, 2))",
        ).format(text(depth - 1), text(depth - 1), number(depth - 1), test(depth - 1))  # fmt: skip

    def number(depth: int) -> str:
        if not depth:
            return draw("i % 100", "3", "-1", "length(s)", "NULL::BIGINT")
        return draw(
            "length({0})", "strpos({0}, 'a')", "greatest({1}, 2)", "nullif({1}, 1)", "TRY_CAST({0} AS BIGINT)",
            "extract(day FROM t)", "abs({1})", "sign({1})",
        ).format(text(depth - 1), number(depth - 1))  # fmt: skip

    def test(depth: int) -> str:
        if not depth:
            return draw("b", "i > 1", "s LIKE '%a%'")
        return draw(
            "starts_with({0}, {1})", "contains({0}, 'a')", "regexp_matches({0}, '[a-c]X?')", "{0} = {1}", "{2} > 1",
            "NOT {3}", "({3} OR {2} IS NULL)",
        ).format(text(depth - 1), text(depth - 1), number(depth - 1), test(depth - 1))  # fmt: skip

    written = data.draw(st.sampled_from([text, number, test]))(2)
    assert_as_duckdb(database, written)
    tree = read(written)
    assert read(str(tree)) == tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("date_trunc('fortnight', t)", "'fortnight' is no unit of time; known: microsecond"),
        ("extract(century FROM t)", "'century' is no part of a time"),
        ("date_trunc(upper(s), t)", "argument 1 of DATE_TRUNC is a string that is written out"),
        ("regexp_matches(s, p)", "argument 2 of REGEXP_MATCHES is a string that is written out"),
        ("regexp_matches(s, '(')", "is no regular expression that can be used"),
        ("regexp_matches(s, '(?=a)')", "is no regular expression that can be used"),
        ("regexp_matches(s, 'a', 'x')", "the flag 'x' is not known here; there is 'i'"),
        ("regexp_extract(s, '(a)', 2)", "has 1 groups, so there is no number 2"),
        ("regexp_extract(s, '(a)', true)", "argument 3 of REGEXP_EXTRACT is a whole number that is written out"),
        ("round(f, true)", "argument 2 of ROUND is a whole number that is written out"),
        (r"regexp_extract(s, 'a\C')", "matches a part of a character"),
        ("regexp_replace(s, 'a', '\\2')", "is no regular expression that can be used"),
        ("regexp_replace(s, 'a', 'b', 'i')", "there is 'g': all matches are replaced"),
        ("json_extract(s, 'a')", None),
        ("json_extract(s, '$.*')", "a path into JSON has keys and places"),
        ("json_extract_string(s, 'a.b')", "'a.b' is not a path into JSON"),
        ("round(f, i)", "argument 2 of ROUND is a whole number that is written out"),
        ("round(f, 99)", "ROUND takes -30 to 30 digits, not 99"),
        ("substr(s)", "SUBSTR takes 2 to 3 arguments, not 1"),
        ("split_part(s, ',')", "SPLIT_PART takes 3 arguments, not 2"),
        ("CAST(s AS VARCHAR(5))", r"can't cast to VARCHAR\(5\); write one of: BOOLEAN"),
        ("CAST(i AS DECIMAL(99, 2))", "a decimal has 1 to 38 digits"),
        ("CAST(s AS UUID)", "can't cast to UUID"),
        ("log(f)", "databases disagree about the base of LOG"),
        ("now()", "NOW is not allowed: a row comes out the same whenever it is computed"),
        ("date_diff('day', t, t)", "EPOCH.b.ts - a.ts. are the seconds between them"),
        ("dayofweek(t)", "write EXTRACT.dow FROM x., where 0 is Sunday"),
        ("t AT TIME ZONE 'UTC'", "AT TIME ZONE is not allowed: times with a zone are read in UTC"),
        ("strftime(t, '%Y')", r"CAST\(x AS VARCHAR\) writes a time"),
        ("i ^ 2", "write POWER"),
        ("s SIMILAR TO 'a'", "write regexp_matches"),
        ("date_add(t, 5)", "a time is moved by an interval"),
        ("lpad(s, 5, '0')", "PAD is not allowed: make it a column before the join"),
    ],
)
def test_refuses_with_advice(text: str, message: str | None) -> None:
    if message is None:
        assert str(read(text)) == "JSON_EXTRACT(l.s, '$.a')"
        return
    with pytest.raises(ExpressionError, match=message) as told:
        read(text)
    assert "\n  line 1, column " in str(told.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("upper(i)", "UPPER can't take l.i .int64."),
        ("s || i", r"can't take l.s .string., l.i .int64.; write CAST\(... AS VARCHAR\) around"),
        ("CAST(s AS INTEGER)", r"not every string has a value as INTEGER: write TRY_CAST\(l.s AS INTEGER\)"),
        ("i::INT", "for whole numbers BIGINT has room"),
        ("CAST(f AS BIGINT)", "write TRY_CAST"),
        ("CAST(b AS DATE)", "can't be cast to DATE"),
        ("extract(year FROM s)", "DATE_PART can't take"),
        ("epoch(i)", "EPOCH can't take"),
        ("left(s, f)", "LEFT can't take"),
    ],
)
def test_checks_types(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check(read(text), {"l": SCHEMA})


def test_the_page_lists_every_function_and_type() -> None:
    script = (Path(__file__).parents[2] / "src/streamjoin/service/page/sql-language.js").read_text()
    (listed,) = re.findall(r"FUNCTIONS = \[(.*?)\]", script)
    names = re.findall(r'"(\w+)"', listed)
    assert names == sorted(names)
    assert set(names) >= {name for name in FUNCTIONS if name.isidentifier()}
    for name in names:
        assert name in FUNCTIONS or name in ("CAST", "EXTRACT", "NULLIF", "TRY_CAST")
    (listed,) = re.findall(r"SUMMARIES = \[(.*?)\]", script)
    assert re.findall(r'"(\w+)"', listed) == sorted([*AGGREGATES, "HOP", "TUMBLE"])
    page = (Path(__file__).parents[2] / "docs/adhoc-sql.md").read_text()
    table = page.partition("## Functions")[2].partition("## ")[0]
    told = set(re.findall(r"`([A-Z_0-9]+)", table))
    assert told >= {name for name in FUNCTIONS if name.isidentifier()}
    assert all(name.partition("(")[0] in told for name in CAST_TYPES)
