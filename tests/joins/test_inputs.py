"""What can be pushed: rows, frames, and pushes that differ from the first one without a loss."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import streamjoin as sj

SPEC = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(9))
RIGHT = pa.table({"k": [1, 2, 3]})
UTC = pa.timestamp("us", "UTC")


def column(values: list[Any], type_: pa.DataType) -> pa.Table:
    return pa.table({"k": pa.array(range(1, len(values) + 1), pa.int64()), "v": pa.array(values, type_)})


def pushed(first: pa.Table, later: Any) -> pa.Table:
    with sj.open(SPEC) as join:
        join.push(first, RIGHT)
        return join.push(later)


@pytest.mark.parametrize(
    ("first", "later", "values"),
    [
        (pa.string(), pa.large_string(), ["a", None]),
        (pa.large_string(), pa.string(), ["a", None]),
        (pa.string(), pa.string_view(), ["a", None]),
        (pa.string(), pa.dictionary(pa.int8(), pa.large_string()), ["a", None]),
        (pa.binary(), pa.binary_view(), [b"a", None]),
        (pa.int64(), pa.int32(), [1, None]),
        (pa.int8(), pa.uint64(), [127, None]),
        (pa.int64(), pa.float64(), [3.0, None]),
        (pa.float64(), pa.int64(), [2**53, None]),
        (pa.float32(), pa.float64(), [0.5, float("inf"), None]),
        (pa.float64(), pa.float32(), [0.5, None]),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), [Decimal("1.5000"), None]),
        (pa.timestamp("us"), pa.timestamp("ns"), [dt.datetime(2024, 1, 1), None]),
        (UTC, pa.timestamp("s", "Europe/Berlin"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None]),
        (pa.date32(), pa.date64(), [dt.date(2024, 1, 1), None]),
        (pa.list_(pa.string()), pa.large_list(pa.string_view()), [["a"], [], None]),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int8())]), [{"a": 1}, None]),
        (pa.struct([("a", pa.int64()), ("b", pa.string())]), pa.struct([("b", pa.large_string())]), [{"b": "x"}, None]),
        (pa.int64(), pa.null(), [None]),
        (pa.int64(), pa.string(), [None]),
    ],
    ids=str,
)
def test_a_later_push_is_cast_where_no_value_changes(first: pa.DataType, later: pa.DataType, values: list[Any]) -> None:
    result = pushed(column([], first), column(values, later))
    assert result.schema.field("v").type == first
    given = column(values, later)["v"].to_pylist()
    assert result["v"].to_pylist() == [{"a": None, **v} if isinstance(v, dict) else v for v in given]


@pytest.mark.parametrize(
    ("first", "later", "values", "says"),
    [
        (pa.int32(), pa.int64(), [1, 2**31], "v is int64 instead of int32, which can't hold 2147483648"),
        (pa.uint8(), pa.int8(), [-1], "which can't hold -1"),
        (pa.int64(), pa.float64(), [1.0, 1.5], "which can't hold 1.5"),
        (pa.float64(), pa.int64(), [2**53 + 1], "which can't hold 9007199254740993"),
        (pa.float32(), pa.float64(), [0.1], "which can't hold 0.1"),
        (pa.timestamp("s"), pa.timestamp("us"), [dt.datetime(2024, 1, 1, 0, 0, 0, 1)], "which can't hold 2024-01-01"),
        (pa.timestamp("us"), UTC, [dt.datetime(2024, 1, 1)], "v is timestamp.us, tz=UTC. instead of timestamp.us."),
        (pa.string(), pa.int64(), [1], "v is int64 instead of string. A join's sides"),
        (pa.int64(), pa.string(), ["1"], "v is string instead of int64. A join's sides"),
        (
            pa.struct([("a", pa.int8())]),
            pa.struct([("a", pa.int8()), ("b", pa.int8())]),
            [{"a": 1, "b": 2}],
            "v is struct",
        ),
        (pa.decimal128(5, 1), pa.decimal128(5, 2), [Decimal("1.25")], "which can't hold 1.25"),
    ],
    ids=str,
)
def test_a_later_push_that_would_lose_a_value_is_refused(
    first: pa.DataType, later: pa.DataType, values: list[Any], says: str
) -> None:
    with sj.open(SPEC) as join:
        join.push(column([], first), RIGHT)
        before = {k: v for k, v in join.metrics().items() if "seconds" not in k}
        with pytest.raises(sj.InputError, match=says):
            join.push(column(values, later))
        assert {k: v for k, v in join.metrics().items() if "seconds" not in k} == before
        assert join.push(column([None], first)).num_rows == 1


NULLS = pa.table({"k": [1, 2], "v": pa.nulls(2), "w": [[], None]})
TYPED = pa.table({"k": [3, 1], "v": ["x", None], "w": [["y"], []]})


@pytest.mark.parametrize("algorithm", ["nested_loop", "sweep", "indexed", "scalejoin"])
def test_a_column_that_was_all_null_takes_the_type_that_comes(algorithm: str) -> None:
    with sj.open(SPEC, algorithm) as join:
        first = join.push(NULLS, pa.table({"k": [1]}))
        assert (first["v"].type, first["v"].to_pylist()) == (pa.null(), [None])
        assert join.push(TYPED)["w"].to_pylist() == [[]]
        result = join.push(right=RIGHT)
        assert result["v"].type == pa.string()
        assert result["w"].type == pa.list_(pa.string())
        assert sorted(zip(*(result[name].to_pylist() for name in ("k", "v")), strict=True), key=str) == [
            (1, None), (1, None), (2, None), (3, "x"),
        ]  # fmt: skip
        assert join.schema == result.schema
        assert join.push(NULLS).num_rows == 3


@pytest.mark.parametrize("order", ["arrival", "event_time"])
@pytest.mark.parametrize("untyped", ["k", "t", "v"])
def test_keys_and_times_that_were_all_null_wait_for_their_type(order: Any, untyped: str) -> None:
    """Rows that wait, at the gate or as late ones, get the type as well."""
    left = pa.table({"k": ["a", "b", "a"], "t": [1, 2, 4], "v": [1.5, 2.5, 3.5]})
    right = pa.table({"k": ["a", "b"], "t": [3, 4], "v": [0, 1]})
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(5), time="t", order=order)
    nulls = left.set_column(left.schema.get_field_index(untyped), untyped, pa.nulls(3)).slice(0, 2)
    with sj.open(spec) as join:
        results = [join.push(nulls, right), join.push(left.slice(2)), join.close()]
        pairs = [
            (row["k"], row["t_left"], row["v_left"], row["t_right"]) for result in results for row in result.to_pylist()
        ]
        late = join.late()
    kept = [("a", 4, 3.5, 3)]
    wanted = {"k": kept, "t": kept, "v": [("a", 1, None, 3), ("b", 2, None, 4), *kept]}[untyped]
    assert sorted(pairs, key=str) == sorted(wanted, key=str)  # type: ignore[call-overload]
    assert late["t_left"].to_pylist() == ([None, None] if untyped == "t" else [])
    if untyped == "t":
        assert late.schema.field("t_left").type == pa.int64()


@pytest.mark.parametrize(
    ("on", "before", "after"),
    [
        ("l.v > r.k", 0, 3),
        ("l.v + 1 = r.k + 1.5", 0, 1),
        ("abs(l.v - r.k) <= 1", 0, 1),
        ("l.v IS NULL OR l.v > r.k", 6, 3),
        ("l.v IS NOT DISTINCT FROM r.k + 0.5", 0, 1),
        ("COALESCE(l.v, 2) = r.k", 2, 0),
    ],
)
def test_a_type_that_comes_late_must_fit_the_condition(on: str, before: int, after: int) -> None:
    with sj.open(sj.JoinSpec(on=on, window=sj.CountWindow(9))) as join:
        assert join.push(pa.table({"v": pa.nulls(2)}), RIGHT).num_rows == before
        with pytest.raises(sj.SchemaError, match="can't"):
            join.push(pa.table({"v": ["a"]}))
        assert join.push(pa.table({"v": [3.5]})).num_rows == after


def test_rows_may_be_dicts() -> None:
    rows: list[dict[str, object]] = [{"k": 1, "v": "a"}, {"k": 2}, {"v": "c", "k": 3, "w": 1.5}]

    def generated() -> Iterator[dict[str, object]]:
        yield from rows

    for given in (rows, tuple(rows), generated()):
        with sj.open(SPEC) as join:
            assert join.push(given, [{"k": 3}, {"k": 1}]).to_pylist() == [
                {"k": 3, "v": "c", "w": 1.5},
                {"k": 1, "v": "a", "w": None},
            ]
            assert join.push([]).num_rows == 0
            assert join.push([{"w": 2, "k": 1, "v": None}])["w"].to_pylist() == [2.0]
            with pytest.raises(sj.InputError, match=r"missing v; unexpected vv \(did you mean v"):
                join.push([{"k": 1, "vv": 2, "w": None}])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"k": 1}, "pa.Table.from_pylist"),
        ([1, 2], "item 0 of this list is int"),
        ([{"k": 1}, None], "item 1 of this list is NoneType"),
        ([{"k": 1}, {"k": "a"}], "'k' in left's rows are not of one type.*from_pylist"),
        ([{"k": 2**70}], "'k' in left's rows"),
        ([{1: 2}], "must be text, not 1"),
        ([], "neither rows nor columns"),
        ("text", "not str"),
        (5, "not int"),
        (pd.Series([1], name="k"), "is a Series, which is one column"),
        (pl.Series("k", [1]), "is a Series, which is one column"),
        (pa.array([1]), "one column"),
        (pa.chunked_array([[1]]), "one column"),
        (pl.LazyFrame({"k": [1]}), "collect"),
        (pl.DataFrame({"k": pl.Series([1], dtype=pl.Int128)}), "Arrow can't read"),
        (pd.DataFrame({"k": [1, "a"]}), "has no Arrow form"),
        (pd.DataFrame([[1, 2]], columns=["k", "k"]), "more than one column 'k'"),
        (pd.DataFrame({"k": [1]}).set_index("k"), "'k' is the index of the left frame.*reset_index"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_what_is_no_table_gets_an_error_of_ours(data: object, says: str) -> None:
    with sj.open(SPEC) as join:
        with pytest.raises(sj.InputError, match=says):
            join.push(data)
        assert join.push([{"k": 1}], RIGHT).num_rows == 1


def test_an_index_of_pandas_is_no_column() -> None:
    frame = pd.DataFrame({"k": [1, 2, 3], "v": ["a", "b", "c"]}, index=[5, 3, 4])
    with sj.open(SPEC) as join:
        assert join.push(frame.reset_index(drop=True), RIGHT).schema.names == ["k", "v"]
        assert join.push(frame[frame.v > "a"])["v"].to_pylist() == ["b", "c"]
        assert join.push(frame.set_index(pd.Index([9, 8, 7], name="n"))).num_rows == 3
        with pytest.raises(sj.InputError, match="preserve_index=False"):
            join.push(pa.Table.from_pandas(frame))


def test_a_frame_may_change_after_a_push() -> None:
    values = np.arange(4)
    frame = pd.DataFrame({"k": 1, "t": range(4), "v": values}, copy=False)
    spec = sj.JoinSpec(on=sj.Equi("k"), match=sj.AsOf(), time="t", order="event_time", how="left")
    with sj.open(spec) as join:
        rows = join.push(frame, pa.table({"k": [1], "t": [3]}))
        values[:] = -1
        assert [*rows["v"].to_pylist(), *join.close()["v"].to_pylist()] == [0, 1, 2, 3]


def test_schemas_given_to_open_are_checked() -> None:
    with pytest.raises(sj.SpecError, match="left_schema= takes a pyarrow Schema"):
        sj.open(SPEC, left_schema={"k": "int"})  # type: ignore[arg-type]
    views = pa.schema([("k", pa.string_view()), ("v", pa.dictionary(pa.int8(), pa.string()))])
    with sj.open(SPEC, left_schema=views, right_schema=pa.schema([("k", pa.string())])) as join:
        assert join.schema == pa.schema([("k", pa.large_string()), ("v", pa.string())])
        assert join.push(pl.DataFrame({"k": ["a"], "v": [None]}), [{"k": "a"}])["v"].to_pylist() == [None]


def test_readers_are_read() -> None:
    table = pa.table({"k": [1, 2]})
    with sj.open(SPEC) as join:
        assert join.push(pa.RecordBatchReader.from_batches(table.schema, table.to_batches()), RIGHT).num_rows == 2


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame([[1, 2]], columns=["k", "k"]), "more than one column 'k': rename one"),
        (pd.DataFrame([[1, 2, 3]], columns=["k", 0, "0"]), "more than one column '0': rename one"),
        (pd.DataFrame({"k": [1], "s": pd.arrays.SparseArray([0])}), r"'s' is sparse; push column.sparse.to_dense\(\)"),
        (
            pd.DataFrame({"k": [1], "z": [1j]}),
            "'z' is complex128, for which Arrow has no type; push real and imaginary",
        ),
        (pd.DataFrame({"k": [1], "v": [2**70]}), f"'v' has a whole number beyond 64 bits, {2**70}; make them texts"),
        (pd.DataFrame({"k": [1, 2], "v": [1, "x"]}), "'v' is object: .*Give it values of one type"),
        ([{"k": 1, "v": 2**70}], f"'v' in left's rows has a whole number beyond 64 bits, {2**70}"),
        ({"k": np.array([1]), "v": np.array([2**70], object)}, "'v' of left is NumPy object, with a whole number"),
        ({"k": np.array([1]), "z": np.array([1j])}, "'z' of left is NumPy complex128, for which Arrow has no type"),
        (pa.table([[1], [2]], ["k", "k"]), "left side has more than one column 'k': rename one"),
        (pa.table([[1], [2], [3]], ["k", "v", "v"]), "left side has more than one column 'v': rename one"),
    ],
    ids=str,
)
def test_what_has_no_arrow_form_is_named_with_what_to_do(frame: Any, message: str) -> None:
    with sj.open(SPEC) as join:
        with pytest.raises(sj.InputError, match=message):
            join.push(frame)
        assert join.push(pd.DataFrame({"k": [1]}), RIGHT).num_rows == 1


def test_a_number_beyond_64_bits_in_a_later_push() -> None:
    for later in (pd.DataFrame({"k": [1], "v": [2**70]}), {"k": np.array([1]), "v": np.array([2**70], object)}):
        with sj.open(SPEC) as join:
            join.push(pa.table({"k": [1], "v": ["x"]}), RIGHT)
            with pytest.raises(sj.InputError, match=r"beyond 64 bits|NumPy object"):
                join.push(later)
            assert join.push(pa.table({"k": [2], "v": ["y"]})).num_rows == 1


def test_rows_as_dicts_may_have_numbers_of_uint64() -> None:
    rows = [{"u": 2**64 - 1}, {"u": None}, {"u": 2**63}]
    with sj.open(sj.JoinSpec(on="u", window=sj.CountWindow(5))) as join:
        assert join.push(rows, rows[:1]).to_pylist() == [{"u": 2**64 - 1}]
    with pytest.raises(sj.InputError, match="beyond 64 bits"):
        sj.join([{"u": 2**64 - 1}, {"u": -1}], rows, "u")
