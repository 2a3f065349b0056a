"""Conditions against schemas: the types of nodes, and errors that name the column and the type."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamjoin.model.errors import SchemaError
from streamjoin.model.expression.nodes import Column, Expression, Literal
from streamjoin.model.expression.parsing import parse_condition
from streamjoin.model.expression.typing_rules import check, check_condition

LEFT = pa.schema(
    {
        "i": pa.int32(),
        "u": pa.uint64(),
        "f": pa.float32(),
        "d": pa.decimal128(10, 2),
        "price": pa.float64(),
        "sym": pa.string(),
        "tag": pa.dictionary(pa.int8(), pa.string()),
        "raw": pa.binary(),
        "b": pa.bool_(),
        "t": pa.timestamp("ms"),
        "z": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "v": pa.duration("s"),
        "nothing": pa.null(),
        "list": pa.list_(pa.int64()),
    }
)
SCHEMAS = {"l": LEFT, "r": LEFT}


def operand(text: str) -> Expression:
    """The node of a text that is a value, not a condition."""
    return parse_condition(f"({text}) IS NULL").children[0]


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("l.i", pa.int32()),
        ("l.tag", pa.string()),
        ("l.i + r.u", pa.int64()),
        ("l.i / 2", pa.float64()),
        ("l.i * 1.5", pa.float64()),
        ("l.d * 1.5", pa.decimal128(38, 3)),
        ("l.d + l.i", pa.decimal128(38, 2)),
        ("l.d + l.f", pa.float64()),
        ("1.5", pa.float64()),
        ("-l.d", pa.decimal128(38, 2)),
        ("ROUND(l.d)", pa.decimal128(38, 0)),
        ("FLOOR(l.f)", pa.float64()),
        ("SQRT(l.i)", pa.float64()),
        ("LENGTH(l.sym)", pa.int64()),
        ("UPPER(l.tag)", pa.string()),
        ("l.t - r.t", pa.duration("ms")),
        ("l.t - l.day", pa.duration("ms")),
        ("l.t + l.v", pa.timestamp("ms")),
        ("l.t + INTERVAL '1' NANOSECOND", pa.timestamp("ns")),
        ("l.z - INTERVAL '1' SECOND", pa.timestamp("us", "UTC")),
        ("INTERVAL '1' DAY + l.day", pa.timestamp("s")),
        ("ABS(l.v - r.v)", pa.duration("s")),
        ("2 * l.v", pa.duration("s")),
        ("COALESCE(l.i, l.f)", pa.float64()),
        ("LEAST(l.day, l.t)", pa.timestamp("ms")),
        ("CASE WHEN l.b THEN l.i ELSE l.d END", pa.decimal128(38, 2)),
        ("CASE WHEN l.b THEN NULL END", pa.null()),
        ("l.nothing + 1", pa.int64()),
        ("DATE '2024-01-01'", pa.date32()),
        ("l.i = 1 AND l.b", pa.bool_()),
        ("l.raw", pa.binary()),
    ],
)
def test_types(text: str, type_: pa.DataType) -> None:
    assert check(operand(text), SCHEMAS) == type_


@pytest.mark.parametrize(
    "text",
    [
        "l.i < r.u AND l.i < r.d AND l.d < r.f AND l.i = 1.5",
        "l.sym = r.tag AND l.sym LIKE 'a%' AND l.sym IN ('a', NULL)",
        "l.raw = r.raw AND l.b = TRUE AND l.nothing = r.sym",
        "l.t < r.day AND l.z < TIMESTAMPTZ '2024-01-01' AND l.v > INTERVAL '1 second'",
        "l.nothing AND NULL",
        "l.i BETWEEN 1 AND 2.5 AND l.nothing IS TRUE",
    ],
)
def test_accepts(text: str) -> None:
    check_condition(parse_condition(text), SCHEMAS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l.prize > 1", r"unknown column l.prize; did you mean l.price\? there are: i, u"),
        ("l.SYM = 'a'", r"did you mean l.sym\?"),
        ("l.zzz = 1", "unknown column l.zzz; there are: i, u"),
        ("l.list = 1", r"l.list is list<.*>, which a condition can't use; it takes booleans, numbers"),
        ("l.sym < 5", r"can't compare l.sym \(string\) with 5 \(integer\) in: l.sym < 5"),
        ("l.i IN (1, 'a')", r"can't compare l.i \(int32\) with 'a' \(string\)"),
        ("l.i BETWEEN 1 AND 'a'", r"can't compare l.i \(int32\) with 'a' \(string\)"),
        ("l.b = 1", r"l.b \(bool\) with 1 \(integer\)"),
        ("l.z < r.t", r"l.z \(timestamp\[us, tz=UTC\]\) with r.t \(timestamp\[ms\]\).*give both a time zone"),
        ("l.z < TIMESTAMP '2024-01-01'", "TIMESTAMPTZ '2024-01-31"),
        ("l.t < '2024-01-01'", "write a moment as DATE"),
        ("l.t - r.t < 5", "INTERVAL '5 seconds'"),
        ("l.raw = 'a'", "binary"),
        ("l.i AND l.b", r"AND takes booleans; l.i \(int32\) is not one"),
        ("NOT l.i", r"NOT takes booleans; l.i \(int32\)"),
        ("l.i IS TRUE", r"IS TRUE and IS FALSE takes booleans; l.i \(int32\)"),
        ("l.i LIKE 'a'", r"LIKE takes strings; l.i \(int32\)"),
        ("l.sym + 1 = 2", r"\+ can't take l.sym \(string\) and 1 \(integer\) in: l.sym \+ 1"),
        ("l.t + r.t = 2", r"\+ can't take l.t \(timestamp\[ms\]\) and r.t"),
        ("l.z - r.t = l.v", "- can't take l.z"),
        ("l.v - l.t = l.t", "- can't take l.v"),
        ("l.v * l.v = l.v", r"\* can't take"),
        ("l.v / 2 = l.v", "/ can't take"),
        ("l.v * 1.5 = l.v", r"\* can't take"),
        ("-l.t = l.t", r"unary minus can't take l.t"),
        ("ABS(l.sym) = 1", r"ABS can't take l.sym \(string\)"),
        ("LOWER(l.i) = 'a'", r"LOWER can't take l.i \(int32\)"),
        ("COALESCE(l.i, l.sym) = 1", r"COALESCE can't take l.i \(int32\), l.sym \(string\)"),
        ("CASE WHEN l.i THEN 1 END = 1", r"WHEN takes booleans; l.i \(int32\)"),
        ("CASE WHEN l.b THEN 1 ELSE 'a' END = 1", "values of a CASE must be of one kind, not integer, string"),
        ("l.i", r"the condition must be a boolean; l.i \(int32\) is not one"),
    ],
)
def test_refuses(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check_condition(parse_condition(text), SCHEMAS)


def test_streams_and_ambiguous_names() -> None:
    with pytest.raises(SchemaError, match="no stream 'r'; there are: l"):
        check(parse_condition("r.i = 1"), {"l": LEFT})
    twice = pa.schema([("x", pa.int64()), ("x", pa.string())])
    with pytest.raises(SchemaError, match=r"l.x is ambiguous: the schema has 2 columns"):
        check(Column("l", "x"), {"l": twice})
    assert check(Literal(None), {}) == pa.null()
