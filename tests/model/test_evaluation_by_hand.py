"""Evaluation by hand at the corners: extremes, NULL and NaN, types of Arrow and NumPy, shapes."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.model.errors import SchemaError
from streamjoin.model.expression import nodes as x
from streamjoin.model.expression.evaluation import Values, evaluate, from_arrow, from_numpy, truth
from streamjoin.model.expression.parsing import parse_condition
from tests.model.evaluated import both_sides, decode

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


# By hand --------------------------------------------------------------------------------------------------------


def result(text: str, left: dict[str, Any] | None = None, right: dict[str, Any] | None = None) -> list[Any]:
    """A condition over columns of equal length, each an Arrow array or a list."""
    columns = {
        x.Column(q, name): from_arrow(values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values))
        for q, side in (("l", left or {}), ("r", right or {}))
        for name, values in side.items()
    }
    found = evaluate(parse_condition(text), columns)
    rows = max((len(values.data) for values in columns.values()), default=1)
    return decode(found, (rows,))


def test_integers_never_wrap() -> None:
    edge = {"x": [INT64_MAX, INT64_MIN, 0]}
    assert result("l.x + 1 > l.x", edge) == [True, True, True]
    assert result("l.x - 1 < l.x", edge) == [True, True, True]
    assert result("-l.x = 9223372036854775808", edge) == [False, True, False]
    assert result("ABS(l.x) > 0", edge) == [True, True, False]
    assert result("l.x * l.x >= 0", edge) == [True, True, True]
    assert result("l.x * 4 / 4 = l.x", edge) == [True, True, True]
    assert result("l.x % -1 = 0", edge) == [True, True, True]
    assert result("l.x + 1 - 1 = l.x", edge) == [True, True, True]


def test_int64_and_uint64_compare_exactly() -> None:
    unsigned = pa.array([2**63, 2**63 - 1, 2**64 - 1, 0], pa.uint64())
    signed = pa.array([INT64_MIN, INT64_MAX, -1, 0], pa.int64())
    assert result("l.u = r.x", {"u": unsigned}, {"x": signed}) == [False, True, False, True]
    assert result("l.u > r.x", {"u": unsigned}, {"x": signed}) == [True, False, True, False]
    assert result("l.u - r.x >= 0", {"u": unsigned}, {"x": signed}) == [True, True, True, True]
    assert result("COALESCE(l.u, 0) = 18446744073709551615", {"u": unsigned}) == [False, False, True, False]


def test_nan_is_null_wherever_it_comes_from() -> None:
    floats = {"f": [math.nan, math.inf, 1.0, None]}
    assert result("l.f IS NULL", floats) == [True, False, False, True]
    assert result("l.f - l.f IS NULL", floats) == [True, True, False, True]
    assert result("l.f * 0 = 0", floats) == [None, None, True, None]
    assert result("l.f = l.f", floats) == [None, True, True, None]
    assert result("l.f IS NOT DISTINCT FROM NULL", floats) == [True, False, False, True]
    assert result("SQRT(-1 - l.f) IS NULL", floats) == [True, True, True, True]
    assert result("l.f % 2 IS NULL", floats) == [True, True, False, True]
    assert result("POWER(-2, 0.5) IS NULL") == [True]


def test_division_by_zero_is_null_and_division_is_true() -> None:
    assert result("l.x / r.y IS NULL", {"x": [1, 1, 0]}, {"y": [0, 2, 0]}) == [True, False, True]
    assert result("l.x % r.y IS NULL", {"x": [1, 1, 0]}, {"y": [0, 2, 0]}) == [True, False, True]
    assert result("l.x / 2 = 0.5", {"x": [1]}) == [True]
    assert result("l.x / l.z IS NULL", {"x": [1.0, 1.0], "z": [-0.0, 2.0]}) == [True, False]
    assert result("l.d % 0 IS NULL", {"d": [Decimal("1.5")]}) == [True]
    assert result("l.d / 0 IS NULL AND l.d % 0 IS NULL", {"d": [5, 0]}) == [True, True]
    assert result("l.d / 0 IS NULL AND l.d % 0 IS NULL", {"d": [1.5, 0.0]}) == [True, True]


def test_remainder_truncates() -> None:
    numbers = {"x": [7, -7, 7, -7], "y": [3, 3, -3, -3]}
    assert result("l.x % l.y = 1", numbers) == [True, False, True, False]
    assert result("l.x % l.y = -1", numbers) == [False, True, False, True]
    assert result("l.d % 0.5 = -0.2", {"d": [Decimal("-1.2")]}) == [True]


def test_zeros_are_equal() -> None:
    assert result("l.x = r.y AND NOT l.x < r.y", {"x": [-0.0]}, {"y": [0.0]}) == [True]


def test_decimals_are_exact_beside_decimals_integers_and_literals() -> None:
    cents = {"d": pa.array([Decimal("0.10"), Decimal("0.30"), None], pa.decimal128(5, 2))}
    assert result("l.d + l.d + l.d = 0.3", cents) == [True, False, None]
    assert result("l.d * 3 = 0.30", cents) == [True, False, None]
    assert result("l.d * l.d = 0.01", cents) == [True, False, None]
    assert result("l.d IN (0.1, 7)", cents) == [True, False, None]
    assert result("l.d = -(-0.1)", cents) == [True, False, None]
    wide = {"d": pa.array([Decimal("12345678901234567890123456789012345678")], pa.decimal128(38, 0))}
    assert result("l.d = 12345678901234567890123456789012345678", wide) == [True]
    assert result("l.d + 1 > l.d AND l.d % 10 = 8", wide) == [True]
    # Beside a float both are float64, and beside an integer a literal is.
    assert result("l.d = r.f", {"d": [Decimal("0.1")]}, {"f": [0.1]}) == [True]
    assert result("l.x * 0.1 = 0.3", {"x": [3]}) == [False]


def test_float_of_a_wide_decimal_is_the_nearest() -> None:
    value = Decimal("9007199254740993.5")
    assert result("l.d = r.f", {"d": [value]}, {"f": [float(value)]}) == [True]
    big = {"x": [INT64_MAX] * 2}
    assert result("l.x*l.x*l.x*l.x*l.x*l.x*l.x*l.x*l.x*l.x*l.x*l.x*l.x*l.x*l.x*l.x*l.x*l.x > 1.5", big) == [True] * 2


def test_timestamps_of_different_units_compare_exactly() -> None:
    seconds = pa.array([INT64_MAX, INT64_MIN, 1, 0, 9_300_000_000], pa.timestamp("s"))
    nanos = pa.array([INT64_MAX, INT64_MIN, 10**9, 1, 0], pa.timestamp("ns"))
    sides = {"t": seconds}, {"t": nanos}
    assert result("l.t = r.t", *sides) == [False, False, True, False, False]
    assert result("l.t <> r.t", *sides) == [True, True, False, True, True]
    assert result("l.t < r.t", *sides) == [False, True, False, True, False]
    assert result("l.t <= r.t", *sides) == [False, True, True, True, False]
    assert result("l.t > r.t", *sides) == [True, False, False, False, True]
    assert result("l.t >= r.t", *sides) == [True, False, True, False, True]
    assert result("r.t < l.t", *sides) == [True, False, False, False, True]
    assert result("l.t - r.t > INTERVAL '0' SECOND", *sides) == [True, False, False, False, True]


def test_times_and_intervals() -> None:
    times = {"ts": pa.array([0, 2_999, 3_000, 3_001, None], pa.timestamp("ms"))}
    other = {"ts": pa.array([0] * 5, pa.timestamp("us"))}
    wanted = [True, True, True, False, None]
    assert result("ABS(r.ts - l.ts) <= INTERVAL '3 seconds'", times, other) == wanted
    assert result("l.ts <= r.ts + INTERVAL '3' SECOND", times, other) == wanted
    assert result("l.ts - 3 * INTERVAL '1 second' <= r.ts", times, other) == wanted
    assert result("l.ts = TIMESTAMP '1970-01-01 00:00:03.001'", times) == [False, False, False, True, None]
    aware = {"ts": pa.array([0, 3_600], pa.timestamp("s", "Europe/Paris"))}
    assert result("l.ts = TIMESTAMP '1970-01-01 01:00:00+01:00'", aware) == [True, False]
    days = {"d": pa.array([1, 2], pa.date32())}, {"d": pa.array([86_400_000, 0], pa.date64())}
    assert result("l.d = r.d", *days) == [True, False]
    assert result("l.d = DATE '1970-01-02'", *days) == [True, False]
    assert result("l.d - r.d = INTERVAL '2 days'", *days) == [False, True]
    assert result("l.d > TIMESTAMP '1970-01-02 00:00:01'", *days) == [False, True]
    assert result("l.v = INTERVAL '5 ms'", {"v": pa.array([5_000], pa.duration("us"))}) == [True]


def test_least_and_greatest_pass_over_nulls() -> None:
    sides = {"x": [1, None, None, 5]}, {"y": [2, 3, None, 4]}
    assert result("LEAST(l.x, r.y) <= 3", *sides) == [True, True, None, False]
    assert result("GREATEST(l.x, r.y) >= 3", *sides) == [False, True, None, True]
    assert result("COALESCE(l.x, r.y, 9) = 9", *sides) == [False, False, True, False]


def test_rounding_is_half_away_from_zero() -> None:
    floats = {"f": [0.5, -0.5, 1.5, 2.5, 0.49999999999999994, math.inf]}
    assert result("ROUND(l.f) = 1", floats) == [True, False, False, False, False, False]
    assert result("ROUND(l.f) = 3", floats) == [False, False, False, True, False, False]
    assert result("ROUND(l.f) = -1", floats) == [False, True, False, False, False, False]
    decimals = {"d": [Decimal("2.5"), Decimal("-2.5"), Decimal("-2.4")]}
    assert result("ROUND(l.d) = 3 OR ROUND(l.d) = -3", decimals) == [True, True, False]
    assert result("FLOOR(l.d) = -3", decimals) == [False, True, True]
    assert result("CEIL(l.d) = -2", decimals) == [False, True, True]


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("A%", ["A", "AB", "A\nB"], ["a", "BA", ""]),
        ("%b%b", ["bb", "abxb", "bbb"], ["b", "ba"]),
        ("_", ["a", "é", "😀"], ["", "ab"]),
        ("a.c", ["a.c"], ["abc"]),
        ("%", ["", "x"], []),
        ("", [""], ["x"]),
        ("a%a", ["aa", "aba"], ["a"]),
        ("%ab%ba%", ["abba", "xabyba"], ["aba"]),
    ],
)
def test_like(pattern: str, matching: list[str], other: list[str]) -> None:
    texts = {"s": pa.array([*matching, *other, None])}
    wanted = [True] * len(matching) + [False] * len(other) + [None]
    assert result(f"l.s LIKE '{pattern}'", texts) == wanted
    assert result(f"l.s NOT LIKE '{pattern}'", texts) == [v if v is None else not v for v in wanted]


def test_like_takes_time_in_proportion_to_the_text() -> None:
    # Plain backtracking over ten % would not come back.
    assert result("l.s LIKE '%a%a%a%a%a%a%a%a%a%a%b'", {"s": ["a" * 3_000]}) == [False]


def test_ilike_and_escape() -> None:
    texts = {"s": ["Ab", "aB", "50%", "50x", "É"]}
    assert result("l.s ILIKE 'ab'", texts) == [True, True, False, False, False]
    assert result("l.s LIKE '50!%' ESCAPE '!'", texts) == [False, False, True, False, False]
    assert result("l.s ILIKE 'é'", texts) == [False, False, False, False, True]


def test_in_with_many_values() -> None:
    numbers, texts = {"x": [3, 50, None, INT64_MAX]}, {"s": ["s3", "no", None]}
    many = ", ".join(str(n) for n in range(10))
    assert result(f"l.x IN ({many}, 99999999999999999999)", numbers) == [True, False, None, False]
    assert result(f"l.x IN ({many}, NULL)", numbers) == [True, None, None, None]
    assert result("l.s IN ('s1', 's2', 's3', 's4', 's5', 's6')", texts) == [True, False, None]
    assert result("l.x IN (NULL)", numbers) == [None] * 4
    assert result("l.u IN (1, 2, 3, 4, 5, 18446744073709551615)", {"u": pa.array([2**64 - 1], pa.uint64())}) == [True]
    assert result("NULL IN (1)") == [None]


def test_strings_in_a_large_broadcast_compare_by_rank() -> None:
    texts = pa.array([*(f"k{n % 7}" for n in range(60)), None])
    columns = both_sides(pa.table({"s": texts}), pa.table({"s": texts}))
    for symbol, test in (("=", lambda a, b: a == b), ("<", lambda a, b: a < b), (">=", lambda a, b: a >= b)):
        found = decode(evaluate(parse_condition(f"l.s {symbol} r.s"), columns), (61, 61))
        plain = texts.to_pylist()
        assert found == [None if a is None or b is None else test(a, b) for a in plain for b in plain]


# Arrow types ----------------------------------------------------------------------------------------------------

_STRINGS = ["b", None, "a", "b", "ünï"]


@pytest.mark.parametrize(
    ("array", "text"),
    [
        *((pa.array([1, None, 3], t), "l.x >= 2") for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        *((pa.array([1, None, 3], t), "l.x >= 2") for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
        *((pa.array(np.array([1, np.nan, 3], np.float16)), "l.x >= 2") for _ in (0,)),
        *((pa.array([1, None, 3], t), "l.x >= 2") for t in (pa.float32(), pa.float64())),
        *(
            (pa.array([1, None, 3], pa.int64()).cast(t), "l.x >= 2")
            for t in (pa.decimal128(20, 1), pa.decimal256(40, 2))
        ),
        *((pa.array([1, None, 3], pa.timestamp(u)), "l.x > TIMESTAMP '1970-01-01 00:00:02'") for u in ("s",)),
        *((pa.array([1, None, 3], t), "l.x >= DATE '1970-01-03'") for t in (pa.date32(),)),
        (pa.array([False, None, True]), "l.x"),
        *((pa.array(["a", None, "c"], t), "l.x > 'b'") for t in (pa.string(), pa.large_string(), pa.string_view())),
        (pa.array(["a", None, "c"]).dictionary_encode(), "l.x > 'b'"),
        (pa.array([1, None, 3]).dictionary_encode(), "l.x >= 2"),
        (pa.chunked_array([["a"], [None, "c"], []], pa.string()), "l.x > 'b'"),
        (pa.chunked_array([["a"], [None, "c"]], pa.string()).dictionary_encode(), "l.x > 'b'"),
        (pa.chunked_array([[1, None], [3]]), "l.x >= 2"),
        (pa.array([9, 1, None, 3, 9])[1:4], "l.x >= 2"),
        (pa.array([9, 1, None, 3, 9]).cast(pa.decimal128(30, 2))[1:4], "l.x >= 2"),
        (pa.array(["z", "a", None, "c"])[1:], "l.x > 'b'"),
        (pa.array([True, False, None, True])[1:], "l.x"),
    ],
    ids=lambda value: str(value.type) if hasattr(value, "type") else "",
)
def test_arrow_types(array: Any, text: str) -> None:
    assert result(text, {"x": array}) == [False, None, True]


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.binary(1)])
def test_binary_columns_compare(type_: pa.DataType) -> None:
    sides = {"x": pa.array([b"a", None, b"b"], type_)}, {"y": pa.array([b"b", b"b", b"b"])}
    assert result("l.x = r.y", *sides) == [False, None, True]
    assert result("l.x < r.y", *sides) == [True, None, False]


def test_null_columns() -> None:
    nothing = {"x": pa.nulls(2)}
    for text in ("l.x = 1", "l.x < 'a'", "l.x + 1 > 2", "l.x AND TRUE", "NOT l.x", "l.x LIKE 'a'", "-l.x = 1", "l.x"):
        assert result(text, nothing) == [None, None], text
    assert result("COALESCE(l.x, 1) = 1", nothing) == [True, True]
    assert result("l.x IS NULL", nothing) == [True, True]
    assert result("l.x OR TRUE", nothing) == [True, True]
    assert result("ABS(l.x) = LENGTH(l.x)", nothing) == [None, None]
    empty = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int8()), pa.array([], pa.string()))
    assert result("l.x = 'a'", {"x": empty}) == [None, None]
    assert from_arrow(pa.chunked_array([], pa.decimal128(5, 2))).shape == (0,)


def test_values_under_nulls_do_not_show() -> None:
    data = pa.py_buffer(np.array([[1, 5], [2, 0]], np.int64))
    mask = pa.py_buffer(b"\x02")
    array = pa.Array.from_buffers(pa.decimal128(38, 0), 2, [mask, data])
    assert from_arrow(array).data.dtype == np.int64
    assert result("l.x = 2", {"x": array}) == [None, True]


def test_narrow_decimals_are_int64() -> None:
    array = pa.array([Decimal("-1.50"), Decimal("2.00")], pa.decimal128(38, 2))
    values = from_arrow(array)
    assert (values.data.dtype, values.scale, values.data.tolist()) == (np.int64, 2, [-150, 200])  # type: ignore[comparison-overlap]
    coarse = from_arrow(pa.array([Decimal(200)], pa.decimal128(5, -2)))
    assert (coarse.data.tolist(), coarse.scale) == ([200], 0)


def test_other_arrow_types_are_refused() -> None:
    with pytest.raises(SchemaError, match="list"):
        from_arrow(pa.array([[1]]))


def test_numpy_values() -> None:
    columns = {
        x.Column("l", "a"): from_numpy(np.array([1, 2], np.int32)),
        x.Column("l", "b"): from_numpy(np.array([np.nan, 2.5], np.float32)),
        x.Column("l", "c"): from_numpy(np.array(["2024-01-01", "NaT"], "datetime64[us]")),
        x.Column("l", "d"): from_numpy(np.array(["a", "b"])),
        x.Column("l", "e"): from_numpy(np.array([True, False]), np.array([True, False])),
    }
    for text, wanted in (
        ("l.a > 1", [False, True]),
        ("l.b > 1", [None, True]),
        ("l.c = DATE '2024-01-01'", [True, None]),
        ("l.d = 'a'", [True, False]),
        ("l.e", [True, None]),
    ):
        assert decode(evaluate(parse_condition(text), columns), (2,)) == wanted
    with pytest.raises(SchemaError, match="complex"):
        from_numpy(np.array([1j]))


# Shapes and truth -----------------------------------------------------------------------------------------------


def test_one_sided_parts_stay_at_their_own_size() -> None:
    seen: list[tuple[int, ...]] = []

    class Spy(dict[x.Column, Values]):
        pass

    columns = Spy(both_sides(pa.table({"x": [1, 2, 3]}), pa.table({"y": [1, 2]})))
    for text, shape in (
        ("l.x + 1 > 2", (3, 1)),
        ("r.y * 2 = 4 OR r.y IS NULL", (1, 2)),
        ("l.x = r.y", (3, 2)),
        ("1 = 1", (1,)),
    ):
        seen.append(evaluate(parse_condition(text), columns).shape)
        assert seen[-1] == shape
    assert truth(evaluate(parse_condition("1 = 1"), columns), (3, 2)).all()


def test_truth_is_true_and_valid_and_does_not_share() -> None:
    column = from_arrow(pa.array([True, False, None]))
    found = truth(column, (3,))
    assert found.tolist() == [True, False, False]
    plain = from_arrow(pa.array([True, True]))
    mine = truth(plain, (2,))
    mine[:] = False
    assert plain.data.all()
    assert truth(from_arrow(pa.nulls(2)), (2,)).tolist() == [False, False]
    with pytest.raises(SchemaError, match="boolean"):
        truth(from_arrow(pa.array([1])), (1,))


def test_empty_sides() -> None:
    columns = both_sides(pa.table({"x": pa.array([], pa.int64())}), pa.table({"y": [1, 2]}))
    assert truth(evaluate(parse_condition("l.x + 1 < r.y AND l.x > 0"), columns), (0, 2)).shape == (0, 2)


def test_a_thousand_terms() -> None:
    text = " AND ".join(f"(l.x <> {n} OR r.y = {n})" for n in range(1_000))
    columns = both_sides(pa.table({"x": [5, 2_000]}), pa.table({"y": [5, 6]}))
    assert decode(evaluate(parse_condition(text), columns), (2, 2)) == [True, False, True, True]


@pytest.mark.parametrize(
    "text",
    ["l.s + 1 = 2", "l.s = 1", "-l.s = 1", "ABS(l.s) = 1", "l.x LIKE 'a'", "l.x AND TRUE", "l.missing = 1",
     "CASE WHEN l.x = 1 THEN l.x ELSE l.s END = 1"],
)  # fmt: skip
def test_unchecked_conditions_fail_with_our_error(text: str) -> None:
    with pytest.raises(SchemaError):
        result(text, {"x": [1], "s": ["a"]})
