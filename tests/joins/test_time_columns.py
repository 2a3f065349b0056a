"""Time columns of every type that counts in whole ticks, and what is said about those that do not."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import streamjoin as sj
from tests.joins.opened import opened

MOST = 2**64 - 1
HALF = 2**63
EVENT: Any = "event_time"


def table(times: list[Any], type_: pa.DataType, name: str = "t") -> pa.Table:
    return pa.table(
        {"k": pa.array([1] * len(times), pa.int64()), name: pa.array(times, type_), "id": np.arange(len(times))}
    )


def spec(window: Any, how: Any = "inner", order: Any = EVENT, **more: Any) -> sj.JoinSpec:
    return sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(window), time="t", how=how, order=order, **more)


def rows(
    of: sj.JoinSpec, left: pa.Table, right: pa.Table, algorithm: str = "auto", general_pushes: int | None = None
) -> list[tuple[Any, ...]]:
    with opened(general_pushes, of, algorithm) as join:
        if of.order == "arrival":
            # Tuples come in the order of their times.
            places = sorted(
                [(t, 0, i) for i, t in enumerate(left["t"].to_pylist())]
                + [(t, 1, i) for i, t in enumerate(right["t"].to_pylist())]
            )
            pushed = [
                join.push(None if side else left.slice(i, 1), right.slice(i, 1) if side else None)
                for _, side, i in places
            ]
            result = pa.concat_tables([part for part in pushed if part.num_columns])
        else:
            result = pa.concat_tables([join.push(left, right), join.close()])
        assert result.schema.field("t").type == left.schema.field("t").type
        return sorted((r["id_left"], r["id_right"], r["t"]) for r in result.to_pylist())


TIMES = [0, 3, HALF - 2, HALF - 1, HALF, HALF + 4, MOST - 6, MOST]


@pytest.mark.parametrize("order", ["event_time", "arrival"])
@pytest.mark.parametrize("window", [0, 3, 5, 2**62])
@pytest.mark.parametrize("general", [0, 10**6])
def test_unsigned_times(order: str, window: int, general: int) -> None:
    """Order and distances over the whole range, on both sides of 2^63, by compiled steps and without."""
    expected = sorted(
        (i, j, max(a, b)) for i, a in enumerate(TIMES) for j, b in enumerate(TIMES) if abs(a - b) <= window
    )
    both = table(TIMES, pa.uint64())
    assert rows(spec(window, order=order), both, both, general_pushes=general) == expected


def test_unsigned_times_in_small_pushes() -> None:
    of = spec(5)
    with opened(0, of, "indexed") as join:
        got = [join.push(table([t], pa.uint64()), table([t + 1], pa.uint64())) for t in TIMES[:-1]]
        got.append(join.close())
    times = pa.concat_tables(got)["t"].to_pylist()
    assert times == sorted(times)
    assert times == sorted(max(a, b + 1) for a in TIMES[:-1] for b in TIMES[:-1] if abs(a - b - 1) <= 5)


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_as_of_unsigned_times(direction: Any) -> None:
    match = sj.AsOf(direction, 10)
    of = sj.JoinSpec(on=sj.Equi("k"), match=match, time="t", order=EVENT, how="left")
    with sj.open(of) as join:
        left, right = table([HALF - 1, MOST], pa.uint64()), table([HALF - 4, HALF + 1, MOST - 1], pa.uint64())
        result = pa.concat_tables([join.push(left, right), join.close()])
    wanted = {"backward": [0, 2], "forward": [1, None], "nearest": [1, 2]}[direction]
    assert result["id_right"].to_pylist() == wanted


@pytest.mark.parametrize("how", ["left", "full", "anti"])
def test_unmatched_unsigned_times_and_advance(how: Any) -> None:
    with sj.open(spec(5, how)) as join:
        given = [join.push(table([HALF - 3, HALF + 52], pa.uint64()), table([HALF - 20], pa.uint64()))]
        given.append(join.advance(HALF + 60))
        name = "id" if how == "anti" else "id_left"
        got = [row for part in given for row in part[name].to_pylist() if row is not None]
        assert got == [0, 1]
        join.push(table([HALF - 2], pa.uint64()))
        assert join.late()["reason"].to_pylist() == ["late"]
        join.close()


@pytest.mark.parametrize("algorithm", ["auto", "scalejoin", "handshake", "pim_parallel"])
@pytest.mark.parametrize("type_", [pa.uint64(), pa.duration("ms")])
def test_live(algorithm: str, type_: pa.DataType) -> None:
    times: list[Any] = [HALF - 1, HALF + 2, MOST - 9]
    window: Any = 4
    if pa.types.is_duration(type_):
        times, window = [dt.timedelta(seconds=s) for s in (1, 3, 30)], "3 seconds"
    of = sj.JoinSpec(on=sj.Band("k", "k", 0), window=sj.TimeWindow(window), time="t", order=EVENT)
    with sj.live(of, algorithm=algorithm) as join:
        join.source("left").push(table(times, type_))
        join.source("right").push(table(times, type_))
        join.close()
        result = pa.Table.from_batches(list(join))
    near = [max(a, b) for a in times for b in times if abs(a - b) <= (dt.timedelta(seconds=3) if window != 4 else 4)]
    assert sorted(result["t"].to_pylist()) == sorted(near)


@pytest.mark.parametrize("order", ["event_time", "arrival"])
def test_durations(order: str) -> None:
    seconds = [1, 4, 9, 20]
    left = table([dt.timedelta(seconds=s) for s in seconds], pa.duration("ms"))
    right = table([dt.timedelta(seconds=s + 1) for s in seconds], pa.duration("ms"))
    got = rows(spec("3 seconds", order=order), left, right)
    assert [(i, j) for i, j, _ in got] == sorted(
        (i, j) for i, a in enumerate(seconds) for j, b in enumerate(seconds) if abs(a - b - 1) <= 3
    )


def test_durations_of_two_units_and_an_advance() -> None:
    with sj.open(spec("3 seconds", "left")) as join:
        left = table([dt.timedelta(seconds=5)], pa.duration("s"))
        join.push(left, table([dt.timedelta(seconds=1)], pa.duration("us")))
        assert join.schema is not None
        assert join.schema.field("t").type == pa.duration("us")
        assert join.advance(np.timedelta64(9, "s"))["t"].to_pylist() == [dt.timedelta(seconds=5)]
        join.close()
    frame = pd.DataFrame({"k": [1], "t": pd.to_timedelta(["1h"])})
    of = sj.JoinSpec(on=sj.Equi("k"), match=sj.AsOf("backward", "1 day"), time="t", order=EVENT)
    with sj.open(of) as join:
        assert join.push(frame, frame).num_rows + join.close().num_rows == 1


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (pa.float64(), pa.float64(), "'t' is double.*distances of floats are rounded.*cast it to an integer"),
        (pa.int64(), pa.float64(), "'u' is double"),
        (
            pa.string(),
            pa.timestamp("us"),
            "'t' is string; a time column is a timestamp, a date, a duration or an integer",
        ),
        (pa.int64(), pa.timestamp("us"), r"'t' \(int64\) and 'u' \(timestamp\[us\]\) count differently"),
        (pa.timestamp("us"), pa.int64(), r"'t' \(timestamp\[us\]\) and 'u' \(int64\) count differently"),
        (pa.uint64(), pa.int64(), r"'t' \(uint64\) and 'u' \(int64\) count differently"),
        (pa.duration("s"), pa.date32(), "count differently"),
        (pa.time64("us"), pa.time64("us"), "'t' is time64"),
    ],
    ids=str,
)
def test_the_column_at_fault_is_named(left: pa.DataType, right: pa.DataType, message: str) -> None:
    of = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(5), time=("t", "u"), order=EVENT)
    with pytest.raises(sj.SchemaError, match=message):
        sj.open(of, left_schema=table([], left).schema, right_schema=table([], right, "u").schema)


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_a_tolerance_is_called_by_its_name(direction: Any) -> None:
    of = sj.JoinSpec(on=sj.Equi("k"), match=sj.AsOf(direction, 1), time="t", order=EVENT)
    schema = table([], pa.timestamp("us")).schema
    with pytest.raises(sj.SchemaError, match="the tolerance of 1 time unit does not fit the time column 't'"):
        sj.open(of, left_schema=schema, right_schema=schema)


def test_a_left_tuple_without_a_time_is_set_aside() -> None:
    """As the table of differences says."""
    of = sj.JoinSpec(on=sj.Equi("k"), match=sj.AsOf("backward"), time="t", order=EVENT, how="left")
    with sj.open(of) as join:
        join.push(table([None, 3], pa.int64()), table([1], pa.int64()))
        assert join.close()["id_left"].to_pylist() == [1]
        assert join.late()["reason"].to_pylist() == ["no usable time"]
