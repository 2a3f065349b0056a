"""Keys of right and full joins: every type that compares, in one column that holds both sides' values exactly."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.model.common_types import common_type

DAYS = [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)]


def extension(values: list[Any], type_: pa.DataType) -> pa.Array:
    return type_.wrap_array(pa.array(values, type_.storage_type))


def period_array(days: list[int]) -> pa.Array:
    frame = pd.DataFrame({"k": pd.PeriodIndex([pd.Period(ordinal=day, freq="D") for day in days])})
    return pa.Table.from_pandas(frame).column("k").combine_chunks()


EXTENSIONS = {
    "uuid": lambda numbers: extension([uuid.UUID(int=n).bytes for n in numbers], pa.uuid()),
    "json": lambda numbers: extension([str(n) for n in numbers], pa.json_()),
    "bool8": lambda numbers: extension(list(numbers), pa.bool8()),
    "period": period_array,
}


def joined(how: str, left: pa.Table, right: pa.Table, order: str = "arrival") -> pa.Table:
    timed = {"window": sj.TimeWindow(100), "time": "t"} if order == "event_time" else {"window": sj.CountWindow(10)}
    with sj.open(sj.JoinSpec(on=sj.Equi("k"), how=how, order=order, **timed)) as join:
        return pa.concat_tables([join.push(left, right), join.close()])


@pytest.mark.parametrize("order", ["arrival", "event_time"])
@pytest.mark.parametrize("how", ["left", "right", "full"])
@pytest.mark.parametrize("name", EXTENSIONS)
def test_extension_types(name: str, how: str, order: str) -> None:
    make = EXTENSIONS[name]
    left = pa.table({"k": make([1, 2]), "t": [1, 2], "a": [1, 2]})
    right = pa.table({"k": make([2, 3]), "t": [1, 2], "b": [2, 3]})
    rows = joined(how, left, right, order)
    assert rows.schema.field("k").type == left.schema.field("k").type
    key = rows.column("k").combine_chunks()
    plain = dict(zip(make([1, 2, 3]).storage.to_pylist(), (1, 2, 3), strict=True))
    got = {
        (plain[k], a, b)
        for k, a, b in zip(key.storage.to_pylist(), rows["a"].to_pylist(), rows["b"].to_pylist(), strict=True)
    }
    expected = {(2, 2, 2)}
    expected |= {(1, 1, None)} if how in ("left", "full") else set()
    expected |= {(3, None, 3)} if how in ("right", "full") else set()
    assert got == expected


PAIRS: list[tuple[pa.DataType, pa.DataType, pa.DataType, list[Any]]] = [
    (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Paris"), pa.timestamp("us", "UTC"), DAYS),
    (pa.timestamp("ns", "Asia/Tokyo"), pa.timestamp("ns", "Europe/Paris"), pa.timestamp("ns", "UTC"), DAYS),
    (pa.int32(), pa.int64(), pa.int64(), [1, 2]),
    (pa.int8(), pa.uint8(), pa.int16(), [1, 2]),
    (pa.int32(), pa.uint32(), pa.int64(), [1, 2]),
    (pa.float64(), pa.int32(), pa.float64(), [1, 2]),
    (pa.float32(), pa.int32(), pa.float64(), [1, 2]),
    (pa.float32(), pa.int16(), pa.float32(), [1, 2]),
    (pa.float32(), pa.float64(), pa.float64(), [1, 2]),
    (pa.decimal128(5, 2), pa.decimal128(7, 1), pa.decimal128(8, 2), [Decimal("1.5"), Decimal("2.5")]),
    (pa.decimal128(5, 2), pa.int64(), pa.decimal128(21, 2), [1, 2]),
    (pa.string(), pa.large_string(), pa.large_string(), ["a", "b"]),
    (pa.binary(), pa.large_binary(), pa.large_binary(), [b"a", b"b"]),
    (pa.binary(), pa.binary(1), pa.binary(), [b"a", b"b"]),
    (pa.date32(), pa.date64(), pa.date64(), [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
    (pa.date32(), pa.timestamp("ms"), pa.timestamp("ms"), [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2)]),
    (pa.time32("s"), pa.time64("us"), pa.time64("us"), [dt.time(1), dt.time(2)]),
    (pa.uuid(), pa.binary(16), pa.binary(16), [b"a" * 16, b"b" * 16]),
]  # fmt: skip


def column(values: list[Any], type_: pa.DataType) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return extension(values, type_)
    if pa.types.is_date(type_):
        values = [v.date() if isinstance(v, dt.datetime) else v for v in values]
    if pa.types.is_decimal(type_):
        values = [Decimal(v) for v in values]
    return pa.array(values, type_)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("how", ["right", "full"])
@pytest.mark.parametrize(("one", "other", "common", "values"), PAIRS, ids=str)
def test_one_column_holds_both(
    one: pa.DataType, other: pa.DataType, common: pa.DataType, values: list[Any], how: str, swapped: bool
) -> None:
    left, right = (other, one) if swapped else (one, other)
    rows = joined(how, pa.table({"k": column(values[:1], left)}), pa.table({"k": column(values, right)}))
    assert rows.schema.field("k").type == common
    assert (
        rows.column("k").to_pylist() == column(values, one).cast(common).to_pylist()
        if not isinstance(one, pa.BaseExtensionType)
        else values
    )
    many = joined(how, pa.table({"k": column(values[:1] * 100, left)}), pa.table({"k": column(values * 30, right)}))
    assert many.schema.field("k").type == common


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int64(), pa.float64()),
        (pa.uint64(), pa.int64()),
        (pa.timestamp("s"), pa.timestamp("ns")),
        (pa.date32(), pa.timestamp("us")),
        (pa.float64(), pa.decimal128(5, 2)),
        (pa.duration("s"), pa.duration("ms")),
    ],
    ids=str,
)
def test_what_no_column_holds_is_refused_both_ways(one: pa.DataType, other: pa.DataType) -> None:
    assert common_type(one, other) is None
    for left, right in ((one, other), (other, one)):
        with (
            pytest.raises(sj.SchemaError, match="no type holds every value of both"),
            sj.open(sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(2), how="full")) as join,
        ):
            join.push(pa.table({"k": pa.array([], left)}), pa.table({"k": pa.array([], right)}))


def test_a_common_type_holds_the_ends_of_both() -> None:
    """Casting there and back changes nothing, for the extremes of all pairs of number types."""
    numbers = [pa.type_for_alias(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")]
    numbers += [pa.uint64(), pa.float32(), pa.float64(), pa.decimal128(38, 0), pa.decimal128(20, 10)]
    for one in numbers:
        for other in numbers:
            common = common_type(one, other)
            assert common == common_type(other, one)
            if common is None or pa.types.is_decimal(one):
                continue
            limits = np.finfo if pa.types.is_floating(one) else np.iinfo
            ends = limits(one.to_pandas_dtype())
            array = pa.array([ends.min, ends.max], one)
            assert array.cast(common).cast(one).equals(array)


KINDS = [
    ("left", "arrival"),
    ("full", "arrival"),
    ("right", "arrival"),
    ("anti", "arrival"),
    ("left", "event_time"),
    ("full", "event_time"),
    ("full", "arrival, with times"),
]


@pytest.mark.parametrize(("how", "order"), KINDS)
@pytest.mark.parametrize("empty", ["left", "right"])
def test_an_empty_frame_is_enough(how: str, order: str, empty: str) -> None:
    """An empty frame of pandas has columns without types; at the end of the input they need none."""
    full = pd.DataFrame({"k": [1, 2], "t": [5, 6], "v": ["x", "y"]})
    frames = {"left": full, "right": full} | {empty: pd.DataFrame({"k": [], "t": [], "v": []}, dtype=object)}
    window = sj.TimeWindow(9) if order == "event_time" else sj.CountWindow(9)
    time = None if order == "arrival" else "t"
    spec = sj.JoinSpec(on=sj.Equi("k"), window=window, time=time, how=how, order=order.split(",")[0])
    preserved = how == "full" or ("right" if how == "right" else "left") != empty
    with sj.open(spec) as join:
        join.push(frames["left"], frames["right"])
        rows = join.close()
    assert rows.num_rows == (2 if preserved else 0)
    assert "k" in rows.column_names
    if preserved:
        assert rows.column("k").to_pylist() == [1, 2]
    with sj.open(spec) as join:
        join.push(frames["left"], frames["right"])
        assert sum(table.num_rows for table in join.close_iter()) == rows.num_rows
    with sj.live(spec) as live:
        live.source("left").push(frames["left"])
        live.source("right").push(frames["right"])
        live.close()
        assert sum(batch.num_rows for batch in live) == rows.num_rows


@pytest.mark.parametrize(
    "on", ["l.k < r.k", "l.k = 'x' AND r.k = 'y'", "abs(l.k - r.k) <= 2", "l.k + 1 > r.k AND l.v = r.v"]
)
def test_an_empty_frame_in_conditions(on: str) -> None:
    spec = sj.JoinSpec(on=on, window=sj.CountWindow(9), how="left")
    nothing = pd.DataFrame({"k": [None, None], "v": [None, None]}, dtype=object)
    with sj.open(spec) as join:
        join.push(nothing, nothing.iloc[:0])
        assert join.close().num_rows == 2


def test_a_side_that_was_never_pushed() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(9), how="left")
    join = sj.open(spec)
    join.push(pd.DataFrame({"k": [1]}))
    with pytest.raises(sj.StateError, match="right side are not known; push it, if only an empty table"):
        join.close()
    join.push(right=pd.DataFrame({"k": []}, dtype=object))
    assert join.close().num_rows == 1


def test_a_time_column_gets_its_type_later_in_arrival_order() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(9), time="t", order="arrival")
    with sj.open(spec) as join:
        assert join.push(pd.DataFrame({"k": [1], "t": [None]}), pd.DataFrame({"k": [1], "t": [7]})).num_rows == 0
        rows = join.push(pd.DataFrame({"k": [1], "t": [6]}))
        assert [(row["t_left"], row["t_right"]) for row in rows.to_pylist()] == [(None, 7), (6, 7)]


def test_advance_says_what_is_missing() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(9), time="t", order="event_time", how="left")
    nothing = pd.DataFrame({"k": [], "t": []}, dtype=object)
    with sj.open(spec) as join:
        join.push(nothing, nothing)
        with pytest.raises(sj.StateError, match="only NULLs and no type; push a value"):
            join.advance(5)


# Two keys of NULLs on the left, of kinds that only what they are compared with can tell.
UNTYPED = pa.table({"a": pa.nulls(2), "c": pa.nulls(2), "t": [1.0, 2.0]})
TYPED = pa.table({"a": ["u"], "c": [1], "t": [1.0]})


@pytest.mark.parametrize("on", [["a", "c"], "l.a = r.a AND l.c = r.c"])
def test_keys_without_a_type_get_that_of_their_partners(on: str | list[str]) -> None:
    with sj.open(sj.JoinSpec(on=on, window="9 rows", how="full")) as join:
        join.push(UNTYPED, TYPED)
        rows = join.close()
    assert rows["a"].to_pylist() == [None, None, "u"] and rows["c"].to_pylist() == [None, None, 1]
    assert rows.schema.field("a").type == pa.string() and rows.schema.field("c").type == pa.int64()


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize(
    ("on", "time", "message"),
    [
        (sj.Equi("a", "missing"), None, "the right side has no column 'missing'"),
        ("a", "t", "time column 't' is double"),
    ],
)
def test_keys_without_a_type_hide_no_other_mistake(
    on: Any, time: str | None, message: str, how: Literal["inner", "left"]
) -> None:
    join = sj.open(sj.JoinSpec(on=on, window="9 rows", time=time, order=time and "event_time", how=how))
    join.push(UNTYPED, TYPED)
    with pytest.raises(sj.SchemaError, match=message):
        join.close()
    with pytest.raises(sj.SchemaError, match=message):
        sj.join(UNTYPED, TYPED, on=on, time=time, how=how)


def test_tables_with_keys_that_nothing_gives_a_type_to() -> None:
    """No condition holds for NULLs, whatever their type."""
    on = "upper(l.a) = upper(r.a) AND l.c + 1 > r.c + 1"
    for untyped in (UNTYPED, UNTYPED.slice(2)):
        assert sj.join(untyped, untyped, on=on).num_rows == 0
        assert sj.join(untyped, untyped, on=on, how="semi").column_names == UNTYPED.column_names
