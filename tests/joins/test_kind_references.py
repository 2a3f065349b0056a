"""The join kinds on finite input against pandas, Polars and DuckDB, wherever their rules agree with ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import streamjoin as sj
from tests.seeds import FRESH

N = 400
# As wide as all times: every tuple meets every other, as in a join of tables.
EVERYTHING = 10**9


def tables(seed: int, spread: int = 900, *, distinct: bool) -> tuple[pa.Table, pa.Table]:
    """Two tables sorted by time. Where references break ties by other rules, the right times of a key are distinct."""
    rng = np.random.default_rng(seed + FRESH)
    times = [np.sort(rng.integers(0, spread, N)) for _ in range(2)]
    if distinct:
        times[1] = np.sort(rng.choice(spread, N, replace=False))
    left, right = (rng.integers(0, 12, N) for _ in range(2))
    return (
        pa.table({"k": left, "t": times[0], "a": np.arange(N)}),
        pa.table({"k": right, "t": times[1], "b": np.arange(N)}),
    )


def joined(spec: sj.JoinSpec, left: pa.Table, right: pa.Table) -> pa.Table:
    """The whole result, pushed in three parts."""
    cuts = [slice(0, N // 5), slice(N // 5, N // 2), slice(N // 2, N)]
    with sj.open(spec) as join:
        parts = [join.push(left.slice(c.start, c.stop - c.start), right.slice(c.start, c.stop - c.start)) for c in cuts]
        return pa.concat_tables([table for table in (*parts, join.close()) if table.num_columns])


def as_of(direction: Any, tolerance: int | None, exact: bool, how: Any = "left", on: Any = sj.Equi("k")) -> sj.JoinSpec:  # noqa: B008
    return sj.JoinSpec(on=on, match=sj.AsOf(direction, tolerance, exact), time="t", order="event_time", how=how)


def answer(sql: str, one: pa.Table, other: pa.Table) -> list[tuple[Any, ...]]:
    """DuckDB's rows of a query over the tables l and r."""
    with duckdb.connect() as connection:
        connection.register("l", one)
        connection.register("r", other)
        return connection.execute(sql).fetchall()


def pairs(table: pa.Table) -> list[tuple[int, int | None]]:
    return list(zip(table["a"].to_pylist(), table["b"].to_pylist(), strict=True))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_as_of_is_that_of_pandas_and_polars(direction: Any, exact: bool) -> None:
    for tolerance, distinct in ((40, False), (7, True), (EVERYTHING, True)):
        # pandas: equal times on the right as here. Polars' nearest takes the one ahead of two equally far.
        left, right = tables(tolerance, distinct=distinct or direction != "backward")
        result = pairs(joined(as_of(direction, tolerance, exact), left, right))
        frame = pd.merge_asof(
            left.to_pandas(), right.to_pandas(), on="t", by="k", direction=direction, tolerance=tolerance,
            allow_exact_matches=exact,
        )  # fmt: skip
        assert result == [(a, None if pd.isna(b) else int(b)) for a, b in zip(frame["a"], frame["b"], strict=True)]
        if direction != "nearest":
            one, other = (pl.DataFrame(table).set_sorted("t") for table in (left, right))
            polars = one.join_asof(
                other, on="t", by="k", strategy=direction, tolerance=tolerance, allow_exact_matches=exact,
                check_sortedness=False,
            )  # fmt: skip
            assert result == list(zip(polars["a"].to_list(), polars["b"].to_list(), strict=True))


def test_as_of_without_a_tolerance_is_that_of_duckdb() -> None:
    one, other = tables(3, distinct=True)
    for how, kind in (("left", "ASOF LEFT JOIN"), ("inner", "ASOF JOIN")):
        wanted = answer(f"SELECT a, b FROM l {kind} r ON l.k = r.k AND l.t >= r.t ORDER BY a", one, other)
        assert pairs(joined(as_of("backward", None, True, how), one, other)) == wanted
    missing = joined(as_of("backward", None, True, "anti"), one, other)
    every = pairs(joined(as_of("backward", None, True), one, other))
    assert missing["a"].to_pylist() == [a for a, b in every if b is None]


def test_as_of_with_no_condition_is_that_of_pandas() -> None:
    left, right = tables(4, spread=3_000, distinct=False)
    frame = pd.merge_asof(left.to_pandas(), right.drop_columns("k").to_pandas(), on="t", tolerance=5)
    wanted = [(a, None if pd.isna(b) else int(b)) for a, b in zip(frame["a"], frame["b"], strict=True)]
    assert pairs(joined(as_of("backward", 5, True, on=None), left, right)) == wanted


def test_as_of_differs_from_others_as_the_page_on_joins_says() -> None:
    left = pa.table({"k": pa.array([1, None], pa.int64()), "t": [10, 10], "a": [0, 1]})
    right = pa.table({"k": pa.array([1, 1, None, 1, 1], pa.int64()), "t": [8, 8, 9, 12, 12], "b": [0, 1, 2, 3, 4]})
    with sj.open(as_of("nearest", 5, True)) as join:
        ours = pa.concat_tables([join.push(left, right), join.close()])
    assert pairs(ours) == [(0, 1), (1, None)]
    frame = pd.merge_asof(
        left.to_pandas(types_mapper=pd.ArrowDtype), right.to_pandas(types_mapper=pd.ArrowDtype), on="t", by="k",
        direction="nearest",
    )  # fmt: skip
    assert frame["b"].tolist() == [1, 2]
    one, other = (pl.DataFrame(table).set_sorted("t") for table in (left, right))
    polars = one.join_asof(other, on="t", by="k", strategy="nearest", check_sortedness=False)
    assert polars["b"].to_list() == [4, None]


@pytest.mark.parametrize("how", ["left", "right", "full", "semi", "anti"])
def test_outer_semi_and_anti_are_those_of_duckdb(how: Any) -> None:
    one, other = tables(5, distinct=False)
    other = other.filter(pa.array(np.asarray(other["k"]) % 3 > 0))
    one = one.set_column(0, "k", pa.array([None if k == 7 else k for k in one["k"].to_pylist()], pa.int64()))
    spec = sj.JoinSpec(
        on="l.k = r.k AND l.t < r.t", window=sj.TimeWindow(EVERYTHING), time="t", order="event_time", how=how
    )
    result = joined(spec, one, other)
    columns = "a" if how in ("semi", "anti") else "a, b"
    wanted = answer(f"SELECT {columns} FROM l {how} JOIN r ON l.k = r.k AND l.t < r.t", one, other)
    order: Any = lambda row: tuple((value is None, value or 0) for value in row)  # noqa: E731
    ours = list(zip(*(result[name].to_pylist() for name in columns.split(", ")), strict=True))
    assert sorted(ours, key=order) == sorted(wanted, key=order)


@pytest.mark.parametrize(
    ("on", "sql"),
    [
        (sj.Within("t", "lo", "hi"), "l.t BETWEEN r.lo AND r.hi"),
        (sj.Within("t", "lo", "hi", interval="left"), "r.t BETWEEN l.lo AND l.hi"),
        (sj.Overlaps(("lo", "hi"), ("lo", "hi")), "l.lo <= r.hi AND r.lo <= l.hi"),
        ("l.t > r.lo AND l.t < r.hi AND l.k = r.k", "l.t > r.lo AND l.t < r.hi AND l.k = r.k"),
    ],
)
def test_conditions_on_intervals_are_those_of_duckdb(on: Any, sql: str) -> None:
    rng = np.random.default_rng(6 + FRESH)
    sides = []
    for side, table in zip("ab", tables(6, spread=5_000, distinct=False), strict=True):
        low = rng.integers(0, 5_000, N)
        high = low + (10 ** rng.uniform(0, 3, N)).astype(np.int64)
        sides.append(
            table.append_column("lo", pa.array(low)).append_column("hi", pa.array(high)).rename_columns({side: side})
        )
    l, r = sides
    result = joined(sj.JoinSpec(on=on, window=sj.CountWindow(N)), l, r)
    assert sorted(pairs(result)) == sorted(answer(f"SELECT l.a, r.b FROM l JOIN r ON {sql}", l, r))
    assert result.num_rows > 100


DAY = 86_400 * 10**9


def centuries(seed: int) -> tuple[pa.Table, pa.Table]:
    """Two tables with times of all that nanoseconds can count, from 1677 to 2262, and their ends."""
    rng = np.random.default_rng(seed + FRESH)
    sides = []
    for name in "ab":
        times = rng.integers(-(2**63) + 1, 2**63 - 1, N, endpoint=True)
        times[:8] = [-(2**63) + 1, -(2**63) + 5, -1, 0, 1, 2**63 - 6, 2**63 - 2, 2**63 - 1]
        times = np.unique(times)
        columns = {"k": rng.integers(0, 3, times.size), "t": pa.array(times, pa.timestamp("ns"))}
        sides.append(pa.table({**columns, name: np.arange(times.size)}))
    return sides[0], sides[1]


def run_live(spec: sj.JoinSpec, left: pa.Table, right: pa.Table) -> pa.Table:
    with sj.live(spec, left_schema=left.schema, right_schema=right.schema, result_rows=1 << 20) as join:
        for side, table in (("left", left), ("right", right)):
            join.source(side).push(table)
        join.close()
        return pa.Table.from_batches(list(join))


@pytest.mark.parametrize("days", [50_000, 70_000, 106_751, 106_752, 150_000, 213_503, 213_504, 300_000])
def test_windows_of_centuries_are_those_of_duckdb(days: int) -> None:
    """A window of nanoseconds was once cut to 146 years without a word."""
    left, right = centuries(days)
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(f"{days} days"), time="t", order="event_time")
    # As numbers: DuckDB takes the first and the last nanosecond for infinite.
    numbers = [table.set_column(1, "t", table["t"].cast(pa.int64())) for table in (left, right)]
    apart = f"l.k = r.k AND abs(l.t::HUGEINT - r.t::HUGEINT) <= {days * DAY}"
    wanted = sorted(answer(f"SELECT a, b FROM l JOIN r ON {apart}", *numbers))
    assert len(wanted) > 10_000
    assert sorted(pairs(joined(spec, left, right))) == wanted
    for algorithm in ("indexed", "nested_loop", "sweep"):
        with sj.open(spec, algorithm) as join:
            result = pa.concat_tables([join.push(left, right), join.close()])
        assert sorted(pairs(result)) == wanted, algorithm
    assert sorted(pairs(run_live(spec, left, right))) == wanted
    lonely = answer(f"SELECT a FROM l WHERE NOT EXISTS (FROM r WHERE {apart}) ORDER BY a", *numbers)
    assert [(a,) for a in sorted(joined(replace(spec, how="anti"), left, right)["a"].to_pylist())] == lonely


@pytest.mark.parametrize("days", [1, 70_000, 106_751])
@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_tolerances_of_centuries_are_those_of_pandas(direction: Any, days: int) -> None:
    left, right = centuries(days)
    spec = sj.JoinSpec(
        on=sj.Equi("k"), match=sj.AsOf(direction, f"{days} days"), time="t", order="event_time", how="left"
    )
    frame = pd.merge_asof(
        left.to_pandas(), right.to_pandas(), on="t", by="k", direction=direction, tolerance=pd.Timedelta(days=days)
    )
    wanted = [(a, None if pd.isna(b) else int(b)) for a, b in zip(frame["a"], frame["b"], strict=True)]
    assert pairs(joined(spec, left, right)) == wanted
    assert pairs(run_live(spec, left, right)) == wanted


@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_a_tolerance_beyond_all_distances_is_none(direction: Any) -> None:
    """Sparse keys over all of int64: the partner may be further away than an int64 can say."""
    left = pa.table({"k": [1, 2, 3], "t": [2**63 - 1, 2**63 - 1, -(2**63)], "a": [0, 1, 2]})
    right = pa.table({"k": [1, 3, 2], "t": [-(2**63), 2**63 - 1, 2**63 - 2], "b": [0, 1, 2]}).sort_by("t")
    wanted = {"backward": [(0, 0), (1, 2), (2, None)], "forward": [(0, None), (1, None), (2, 1)]}[direction]
    for tolerance in (2**64 - 1, 2**64, 10**40):
        for on in (sj.Equi("k"), sj.Band("k", "k", 0)):
            with sj.open(as_of(direction, tolerance, True, on=on)) as join:
                result = pa.concat_tables([join.push(left.sort_by("t"), right), join.close()])
            assert sorted(pairs(result)) == wanted, (tolerance, on)
    with sj.open(as_of(direction, 2**64 - 2, True)) as join:
        result = pa.concat_tables([join.push(left.sort_by("t"), right), join.close()])
    assert sorted(pairs(result)) == [(a, None if b in (0, 1) else b) for a, b in wanted]


def test_a_pair_from_1850_and_2020() -> None:
    """As the documentation of a user's archive would have it."""
    old, new = pd.Timestamp("1850-01-01"), pd.Timestamp("2020-01-01")
    left, right = pd.DataFrame({"k": [1], "t": [new], "a": [0]}), pd.DataFrame({"k": [1], "t": [old], "b": [0]})
    for arguments in (
        {"window": sj.TimeWindow("70000 days")},
        {"window": sj.TimeWindow("70000 days"), "order": "arrival"},
        {"match": sj.AsOf("backward", "70000 days")},
        {"match": sj.AsOf("backward", "1 day"), "lateness": "70000 days", "expected": 0},
        {"window": sj.TimeWindow("60000 days"), "expected": 0},
    ):
        expected = arguments.pop("expected", 1)
        spec = sj.JoinSpec(on=sj.Equi("k"), time="t", **{"order": "event_time", **arguments})  # type: ignore[arg-type]
        with sj.open(spec) as join:
            rows = join.push(right=right).num_rows + join.push(left=left).num_rows + join.close().num_rows
        assert rows == expected, arguments
