"""Random conditions and rows, for comparison with the slow evaluator of `tests.oracles.row_evaluator`."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from streamjoin.model.expression import nodes as x

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


# Rows -----------------------------------------------------------------------------------------------------------

SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "h": pa.int8(),
        "u": pa.uint64(),
        "f": pa.float64(),
        "e": pa.float32(),
        "d": pa.decimal128(9, 3),
        "w": pa.decimal128(38, 4),
        "s": pa.string(),
        "b": pa.bool_(),
        "t": pa.timestamp("us"),
        "n": pa.timestamp("ns"),
        "v": pa.duration("ms"),
    }
)
_INTS = st.sampled_from([0, 1, -1, 2, 3, 7, INT64_MIN, INT64_MAX, INT64_MIN + 1, 2**53 + 1, 2**62]) | st.integers(
    INT64_MIN, INT64_MAX
)
_TEXT = st.sampled_from(["", "a", "A", "ab", "aB", "b", "a%b", "a_b", "é", "É", "z\n", "😀a"]) | st.text(
    "abA%_", max_size=4
)
_SPECIAL = [0.0, -0.0, 1.0, 0.5, -2.5, math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324, 2.0**53, 0.1]
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "i": _INTS,
    "h": st.integers(-128, 127),
    "u": st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1]) | st.integers(0, 5),
    "f": st.sampled_from(_SPECIAL) | st.floats(-10, 10),
    "e": st.sampled_from([0.0, 0.5, -1.5, math.inf, math.nan, 0.10000000149011612]),
    "d": st.integers(-999_999_999, 999_999_999) | st.sampled_from([0, 500, 1500, -1500, 2000]),
    "w": st.sampled_from([0, 5000, 15000, -25000, 10**37, -(10**37) + 1, 2**63 * 7]) | st.integers(-99999, 99999),
    "s": _TEXT,
    "b": st.booleans(),
    "t": st.sampled_from([0, 1, 10**6, INT64_MIN, INT64_MAX, 1_700_000_000_000_000]) | st.integers(-5, 5),
    "n": st.sampled_from([0, 1, 1000, 10**9, INT64_MIN, INT64_MAX]) | st.integers(-5000, 5000),
    "v": st.sampled_from([0, 1, -1, 1000, INT64_MAX, INT64_MIN]),
}

CORNERS: dict[str, st.SearchStrategy[Any]] = CELLS | {
    "i": st.sampled_from([0, -1, 3, INT64_MIN, INT64_MAX, 2**53 + 1]),
    "u": st.sampled_from([0, 3, 2**63, 2**64 - 1]),
    "f": st.sampled_from([math.inf, -math.inf, 0.0, -2.5, 2.0**53]),
    "e": st.sampled_from([math.inf, -math.inf, -0.0, 1.5]),
    "t": st.sampled_from([INT64_MIN, INT64_MAX, 0, 1, -1]),
    "n": st.sampled_from([INT64_MIN, INT64_MAX, 0, 1, -1, 1000, 1001, -1000]),
}


@st.composite
def tables(
    draw: st.DrawFn, rows: int, names: list[str], cells_of: dict[str, st.SearchStrategy[Any]] = CELLS
) -> pa.Table:
    arrays = []
    for name in names:
        type_ = SCHEMA.field(name).type
        cells = draw(st.lists(st.none() | cells_of[name], min_size=rows, max_size=rows))
        if pa.types.is_decimal(type_):
            cells = [c if c is None else Decimal(c).scaleb(-type_.scale) for c in cells]
        arrays.append(pa.array(cells, type_))
    return pa.table(arrays, names)


# Trees ----------------------------------------------------------------------------------------------------------

COLUMNS = {
    "integer": "ihu",
    "float": "fe",
    "decimal": "dw",
    "string": "s",
    "boolean": "b",
    "moment": "tn",
    "span": "v",
}
_LITERALS: dict[str, st.SearchStrategy[x.Expression]] = {
    "integer": st.builds(x.Literal, _INTS | st.sampled_from([2**64, -(10**20)])),
    "float": st.builds(
        x.Literal, st.sampled_from([Decimal("0.5"), Decimal("1e300"), Decimal("-2.25"), Decimal("0.1")])
    ),
    "decimal": st.builds(x.Column, st.sampled_from("lr"), st.sampled_from("dw")),
    "string": st.builds(x.Literal, _TEXT),
    "boolean": st.builds(x.Literal, st.sampled_from([True, False, None])),
    "moment": st.builds(x.Timestamp, st.sampled_from([0, 1000, 10**9, 1_700_000_000 * 10**9, -(10**18)])),
    "span": st.builds(x.Interval, st.sampled_from([0, 1, 5 * 10**9, -(10**6), 86_400 * 10**9])),
}
_NUMBERS = ("integer", "float", "decimal")
_PATTERNS = st.text("ab%_!", max_size=5).map(lambda p: p.replace("!", "!!"))


@st.composite
def trees(draw: st.DrawFn, kind: str = "boolean", depth: int = 3) -> x.Expression:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        column = st.builds(x.Column, st.sampled_from("lr"), st.sampled_from(COLUMNS[kind]))
        return draw(column | _LITERALS[kind] if draw(st.booleans()) else column)

    def sub(*kinds: str) -> x.Expression:
        return draw(trees(draw(st.sampled_from(kinds)), depth - 1))

    shape = draw(st.integers(0, 12))
    if shape == 12:
        default = sub(kind) if draw(st.booleans()) else x.NULL
        return x.Case(((sub("boolean"), _solid(sub(kind), kind)),), _solid(default, kind))
    if shape == 11:
        name = draw(st.sampled_from(["COALESCE", "LEAST", "GREATEST"]))
        return x.Function(name, (_solid(sub(kind), kind), _solid(sub(kind), kind)))
    return _BUILDERS[kind](draw, sub, max(2, shape - 1))


def _solid(tree: x.Expression, kind: str) -> x.Expression:
    # A bare number literal takes its kind from its neighbours: the slow evaluator can't see those.
    return x.Column("l", "f") if kind == "float" and isinstance(tree, x.Literal) and tree.value is not None else tree


def _boolean(draw: Any, sub: Any, shape: int) -> x.Expression:
    if shape in (2, 3):
        terms = tuple(sub("boolean") for _ in range(draw(st.integers(2, 4))))
        return x.And(terms) if shape == 2 else x.Or(terms)
    if shape == 4:
        return x.Not(sub("boolean"))
    if shape == 5:
        return draw(st.sampled_from([x.IsTruth(sub("boolean"), True), x.IsTruth(sub("boolean"), False)]))  # type: ignore[no-any-return]
    if shape == 6:
        kind = draw(st.sampled_from(list(COLUMNS)))
        return x.IsNull(_solid(sub(kind), kind))
    if shape == 7:
        escape = draw(st.sampled_from([None, "!"]))
        pattern = draw(_PATTERNS) if escape else draw(_PATTERNS).replace("!", "")
        return x.Like(sub("string"), pattern, escape, draw(st.booleans()))
    family = draw(st.sampled_from([_NUMBERS, ("string",), ("boolean",), ("moment",), ("span",)]))
    if shape == 8:
        operator_ = draw(st.sampled_from(x.COMPARISONS))
        return x.Compare(operator_, sub(*family), sub(*family))
    if draw(st.booleans()):
        return x.Between(sub(*family), sub(*family), sub(*family))
    kind = draw(st.sampled_from(family))
    constants = (
        _LITERALS[kind].filter(lambda node: isinstance(node, x.Constant))
        if kind != "decimal"
        else st.just(x.Literal(Decimal("1.5")))
    )
    return x.In(sub(kind), tuple(draw(st.lists(constants | st.just(x.NULL), min_size=1, max_size=6))))


def _integer(draw: Any, sub: Any, shape: int) -> x.Expression:
    if shape in (2, 3, 4, 5, 6):
        return x.Arithmetic(draw(st.sampled_from("+-*%")), sub("integer"), sub("integer"))
    if shape == 7:
        return x.Negative(sub("integer"))
    if shape == 8:
        return x.Function("LENGTH", (sub("string"),))
    return x.Function(draw(st.sampled_from(["ABS", "FLOOR", "CEIL", "ROUND"])), (sub("integer"),))


def _float(draw: Any, sub: Any, shape: int) -> x.Expression:
    if shape in (2, 3):
        return x.Arithmetic("/", sub(*_NUMBERS), sub(*_NUMBERS))
    if shape in (4, 5, 6):
        return x.Arithmetic(draw(st.sampled_from("+-*%")), x.Column("r", "f"), sub(*_NUMBERS))
    if shape == 7:
        return x.Function("SQRT", (sub(*_NUMBERS),))
    if shape == 8:
        return x.Negative(_solid(sub("float"), "float"))
    return x.Function(draw(st.sampled_from(["ABS", "FLOOR", "CEIL", "ROUND"])), (_solid(sub("float"), "float"),))


def _decimal(draw: Any, sub: Any, shape: int) -> x.Expression:
    if shape in (2, 3, 4, 5):
        return x.Arithmetic(draw(st.sampled_from("+-*%")), sub("decimal"), sub("decimal", "integer"))
    if shape == 6:
        return x.Arithmetic(draw(st.sampled_from("+-*%")), x.Literal(Decimal("-1.25")), sub("decimal"))
    if shape == 7:
        return x.Negative(sub("decimal"))
    return x.Function(draw(st.sampled_from(["ABS", "FLOOR", "CEIL", "ROUND"])), (sub("decimal"),))


def _string(draw: Any, sub: Any, shape: int) -> x.Expression:
    return x.Function(draw(st.sampled_from(["LOWER", "UPPER"])), (sub("string"),))


def _moment(draw: Any, sub: Any, shape: int) -> x.Expression:
    if shape < 7:
        return x.Arithmetic(draw(st.sampled_from("+-")), sub("moment"), sub("span"))
    return x.Arithmetic("+", sub("span"), sub("moment"))


def _span(draw: Any, sub: Any, shape: int) -> x.Expression:
    if shape in (2, 3, 4):
        return x.Arithmetic("-", sub("moment"), sub("moment"))
    if shape == 5:
        return x.Arithmetic(draw(st.sampled_from("+-")), sub("span"), sub("span"))
    if shape == 6:
        return x.Arithmetic("*", sub("integer"), sub("span"))
    if shape == 7:
        return x.Negative(sub("span"))
    return x.Function("ABS", (sub("span"),))


_BUILDERS = {
    "boolean": _boolean,
    "integer": _integer,
    "float": _float,
    "decimal": _decimal,
    "string": _string,
    "moment": _moment,
    "span": _span,
}
