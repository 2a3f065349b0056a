"""Summaries at every door: live joins, complete tables of any library, columns, limits, and what is told of them."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

import streamjoin as sj
from streamjoin.joins.kinds import summary_operator, summary_rows
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.joins.kinds.left_operator import LeftOperator
from streamjoin.model.binding import bind
from streamjoin.model.errors import NotSupportedError, SchemaError, TooManyRowsError
from streamjoin.windows.workers import Workers
from tests.joins.live_runs import ending
from tests.joins.summary_runs import SCHEMA, Case, rows_in, summary_cases, table_of
from tests.seeds import examples

SUMMARIES = {"n": "count(*)", "x": "sum(r.px)", "top": "max(r.px)", "mid": "median(r.px)"}


def tables(n: int = 2_000, seed: int = 3) -> tuple[pa.Table, pa.Table]:
    """Trades and quotes in the order of time."""
    rng = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        sides.append(
            pa.table(
                {
                    "sym": [f"s{key}" for key in rng.integers(0, 5, n)],
                    "t": np.sort(rng.integers(0, n, n)),
                    "px": rng.choice([0.1, 1e16, -1e16, 3.25, 7e-9], n),
                }
            )
        )
    return sides[0], sides[1]


def spec(**settings: Any) -> sj.JoinSpec:
    match = sj.Summary(settings.pop("summaries", SUMMARIES), settings.pop("between", (-20, 5)))
    return sj.JoinSpec(**{"on": "sym", "time": "t", "how": "left", "match": match, **settings})


@settings(deadline=None, max_examples=examples(120))
@given(case=summary_cases())
def test_a_live_join_gives_the_same_bits(case: Case) -> None:
    sides = ("left",) if case.spec.self_join else ("left", "right")
    schemas = {f"{side}_schema": SCHEMA for side in sides}
    with ending(), sj.live(case.spec, **schemas) as live:
        inlets = {(side, name): live.source(side, name) for side in sides for name in ("a", "b")}
        for right, source, rows in case.pushes:
            inlets["right" if right else "left", source].push(table_of(rows))
        live.close()
        batches = list(live)
    found = [row for batch in batches for row in rows_in(batch, case)]
    assert found == case.expected()


def test_no_cut_changes_a_bit() -> None:
    left, right = tables()
    results = []
    for size in (7, 100, 5_000):
        with sj.open(spec()) as join:
            parts = [
                join.push(left.slice(begin, size), right.slice(begin, size)) for begin in range(0, len(left), size)
            ]
            results.append(pa.concat_tables([*parts, join.close()]))
    assert results[0].num_rows == len(left)
    assert results[0].equals(results[1]) and results[0].equals(results[2])
    complete = sj.join(left, right, "sym", time="t", how="left", match=spec().match)
    assert complete.equals(results[0])


def test_frames_come_back_as_what_they_were() -> None:
    left, right = tables(300)
    wanted = sj.join(left, right, "sym", time="t", how="left", match=spec().match)
    frame = sj.join(left.to_pandas(), right.to_pandas(), "sym", time="t", how="left", match=spec().match)
    assert isinstance(frame, pd.DataFrame)
    assert frame.equals(wanted.to_pandas())
    rows = sj.join(pl.from_arrow(left), right, "sym", time="t", how="left", match=spec().match, columns=["t", "n"])
    assert isinstance(rows, pl.DataFrame)
    assert rows.equals(pl.from_arrow(wanted.select(["t", "n"])))
    shuffled = right.take(pa.array(np.random.default_rng(1).permutation(len(right))))
    inner = sj.join(left, shuffled, "sym", time="t", match=spec(summaries={"n": "count(*)"}).match)
    assert inner["n"].to_pylist() == [n for n in wanted["n"].to_pylist() if n]


def test_a_row_without_a_time_has_an_empty_window() -> None:
    left = pa.table({"sym": ["A", "A"], "t": pa.array([None, 5], pa.int64())})
    right = pa.table({"sym": ["A"], "t": [5], "px": [1.5]})
    rows = sj.join(left, right, "sym", time="t", how="left", match=spec().match)
    assert rows.to_pylist() == [
        {"sym": "A", "t": 5, "n": 1, "x": 1.5, "top": 1.5, "mid": 1.5},
        {"sym": "A", "t": None, "n": 0, "x": None, "top": None, "mid": None},
    ]


def test_pandas_rolling_is_a_summary_of_a_self_join() -> None:
    rng = np.random.default_rng(8)
    times = np.cumsum(rng.integers(1, 4, 500))
    frame = pd.DataFrame({"t": times, "px": np.round(rng.uniform(1, 100, 500), 2)})
    match = sj.Summary({"mean": "avg(r.px)", "low": "min(r.px)", "n": "count(*)"}, between=(-10, 0), itself=True)
    with sj.open(sj.JoinSpec(on=None, time="t", self_join=True, match=match)) as join:
        rows = pa.concat_tables([join.push(frame), join.close()]).to_pandas()
    stamped = frame.set_index(pd.to_datetime(frame["t"], unit="s"))["px"].rolling("10s", closed="both")
    np.testing.assert_allclose(rows["mean"], stamped.mean(), rtol=1e-12)
    assert rows["low"].tolist() == stamped.min().tolist()
    assert rows["n"].tolist() == stamped.count().tolist()


def test_a_tuple_at_the_start_of_its_own_window_does_not_hide_the_one_in_force() -> None:
    rows = pa.table({"sym": ["A"] * 4, "t": [0, 3, 5, 5], "px": [1.0, 2.0, 4.0, 8.0]})
    match = sj.Summary({"x": "sum(r.px)"}, between=(0, 0), prevailing=True)
    with sj.open(sj.JoinSpec(on="sym", time="t", how="left", self_join=True, match=match)) as join:
        assert pa.concat_tables([join.push(rows), join.close()])["x"].to_pylist() == [None, 1.0, 8.0, 4.0]


def test_duckdb_and_a_summary_agree() -> None:
    import duckdb

    left, right = tables(400, 5)
    right = right.set_column(2, "px", pa.array(np.random.default_rng(2).uniform(1, 100, 400)))
    rows = sj.join(
        left, right, "sym", time="t", how="left",
        match=sj.Summary({"n": "count(*)", "x": "avg(r.px)", "top": "max(r.px)", "mid": "median(r.px)",
                          "q": "quantile(r.px, 0.3)", "sd": "stddev_samp(r.px)"}, between=(-20, 5)),
    )  # fmt: skip
    numbered = left.append_column("place", pa.array(range(len(left))))
    with duckdb.connect() as database:
        database.register("l", numbered)
        database.register("r", right)
        wanted = database.sql(
            "SELECT place, count(r.px) n, avg(r.px) x, max(r.px) top, median(r.px) mid, quantile_cont(r.px, 0.3) q, "
            "stddev_samp(r.px) sd FROM l LEFT JOIN r ON l.sym = r.sym AND r.t BETWEEN l.t - 20 AND l.t + 5 "
            "GROUP BY place ORDER BY place"
        ).fetchall()
    for row, other in zip(rows.to_pylist(), wanted, strict=True):
        for name, value in zip(("n", "x", "top", "mid", "q", "sd"), other[1:], strict=True):
            assert row[name] == (None if value is None else pytest.approx(value, rel=1e-9)), name


def test_columns_that_are_not_wanted_are_not_computed() -> None:
    left, right = tables(100)
    with sj.open(spec(), columns=["t", "n"]) as join:
        rows = pa.concat_tables([join.push(left, right), join.close()])
        assert "MEDIAN" in join.explain() and rows.schema.names == ["t", "n"]
    assert (
        rows["n"].to_pylist() == sj.join(left, right, "sym", time="t", how="left", match=spec().match)["n"].to_pylist()
    )


@pytest.mark.parametrize(
    "type_", [pa.decimal32(7, 2), pa.decimal64(12, 2), pa.decimal128(10, -2), pa.decimal256(50, 2)]
)
def test_decimals_of_every_width(type_: pa.DataType) -> None:
    values = pa.array([150, None, -225, 300, 150], pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2))
    values = pa.array([None if v is None else v * 100 for v in values.to_pylist()], type_)
    right = pa.table({"sym": ["A"] * 5, "t": [1] * 5, "px": values})
    names = ("sum", "min", "max", "first", "last")
    summaries = {name: f"{name}(r.px)" for name in names} | {"kinds": "count(DISTINCT r.px)", "mean": "avg(r.px)"}
    rows = sj.join(pa.table({"sym": ["A"], "t": [1]}), right, "sym", time="t", match=sj.Summary(summaries, (-1, 0)))
    wanted = {"sum": 37500, "min": -22500, "max": 30000, "first": 15000, "last": 15000, "kinds": 3, "mean": 9375.0}
    assert rows.drop_columns(["sym", "t"]).to_pylist() == [wanted]


@pytest.mark.parametrize(
    ("type_", "stored", "wanted"),
    [
        (pa.uuid(), [b"b" * 16, bytes(16), b"b" * 16, b"\xff" * 16], {"d": 3, "lo": bytes(16), "at": 4}),
        (pa.json_(), ["2", "1", "2", "3"], {"d": 3, "lo": "1", "at": 4}),
        (pa.bool8(), [5, 0, 1, 0], {"d": 2, "lo": 0, "at": 1}),
    ],
)
def test_values_of_arrows_own_extension_types(type_: pa.DataType, stored: list[Any], wanted: dict[str, Any]) -> None:
    column = pa.ExtensionArray.from_storage(type_, pa.array(stored, type_.storage_type))
    right = pa.table({"sym": ["A"] * 4, "t": [1, 2, 3, 4], "v": column})
    summaries = {"d": "count(DISTINCT r.v)", "lo": "min(r.v)", "at": "arg_max(r.t, r.v)"}
    left = pa.table({"sym": ["A"], "t": [4]})
    rows = sj.join(left, right, "sym", time="t", match=spec(summaries=summaries).match)
    own = rows["lo"].combine_chunks()
    assert own.type == type_
    assert {"d": rows["d"][0].as_py(), "lo": own.storage[0].as_py(), "at": rows["at"][0].as_py()} == wanted
    for function in ("sum", "avg", "median"):
        with pytest.raises(SchemaError, match="takes numbers"):
            sj.join(left, right, "sym", time="t", match=spec(summaries={"x": f"{function}(r.v)"}).match)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([-1.7e308, 1.7e308], [0.0, 0.75 * -1.7e308 + 0.25 * 1.7e308]),
        ([-math.inf, 1.0], [-math.inf, -math.inf]),
        ([1.0, math.inf], [math.inf, math.inf]),
    ],
)
def test_a_quantile_lies_between_its_neighbours_however_far_apart_they_are(
    values: list[float], wanted: list[float]
) -> None:
    right = pa.table({"sym": ["A", "A"], "t": [1, 2], "v": values})
    summaries = {"median": "median(r.v)", "quarter": "quantile(r.v, 0.25)"}
    match = spec(summaries=summaries).match
    rows = sj.join(pa.table({"sym": ["A"], "t": [4]}), right, "sym", time="t", match=match)
    assert [rows[name][0].as_py() for name in summaries] == wanted


def test_a_sum_beyond_its_type_is_null_and_counted() -> None:
    right = pa.table({"sym": ["A", "A"], "t": [1, 1], "px": pa.array([2**63 - 1, 1], pa.int64())})
    left = pa.table({"sym": ["A"], "t": [1]})
    with sj.open(spec(summaries={"x": "sum(r.px)", "mid": "avg(r.px)"})) as join:
        rows = pa.concat_tables([join.push(left, right), join.close()])
        assert rows.to_pylist() == [{"sym": "A", "t": 1, "x": None, "mid": 2.0**62}]
        assert join.metrics()["overflowed"] == 1


def test_a_row_comes_out_when_no_right_tuple_can_follow() -> None:
    with sj.open(spec(between=(-5, 3)), left_schema=tables(1)[0].schema, right_schema=tables(1)[0].schema) as join:
        row = {"sym": "A", "px": 1.0}
        assert join.push(left=[{**row, "t": 10}]).num_rows == 0
        assert join.push(right=[{**row, "t": 12}]).num_rows == 0
        assert join.advance(13).num_rows == 0
        assert join.advance(14).to_pylist() == [{**row, "t": 10, "n": 1, "x": 1.0, "top": 1.0, "mid": 1.0}]
    with sj.open(spec(between=(-5, -3)), left_schema=tables(1)[0].schema, right_schema=tables(1)[0].schema) as join:
        join.push(right=[{**row, "t": 6}])
        join.push(left=[{**row, "t": 10}])
        assert join.advance(11, side="right")["n"].to_pylist() == [1]


def test_limits_and_plans() -> None:
    left, right = tables(100)
    with sj.open(spec(), max_rows=5) as join:
        with pytest.raises(TooManyRowsError):
            join.push(left, right)
        assert join.metrics()["tuples_left"] == 0
        plan = join.explain()
    assert "n, x, top, mid from -20 to 5" in repr(join)
    with sj.open(spec()) as join:
        join.push(left, right)
        plan = join.explain()
        join.close()
    assert "COUNT(*), SUM(r.px), MAX(r.px) while windows slide, however many match" in plan
    assert "MEDIAN(r.px) by enumerating every match" in plan
    with sj.open(spec(on="l.px < r.px")) as join:
        join.push(left, right)
        assert "more than equalities" in join.explain()
        join.close()
    with pytest.raises(NotSupportedError, match="algorithm='auto'"):
        sj.open(spec(), "sweep").push(left, right)
    with pytest.raises(SchemaError, match="did you mean"):
        sj.open(spec(summaries={"x": "sum(r.pxx)"})).push(left, right)


def test_state_is_bounded_by_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.joins.kinds.summary_operator._LEAST_STORED", 100)
    with sj.open(spec(summaries={"x": "sum(r.px)", "n": "count(*)"})) as join:
        largest = 0
        for begin in range(0, 200_000, 2_000):
            side = pa.table(
                {"sym": [f"k{i}" for i in range(begin, begin + 2_000)], "t": range(begin, begin + 2_000),
                 "px": np.full(2_000, math.pi)}
            )  # fmt: skip
            join.push(side, side)
            largest = max(largest, join.metrics()["stored"], join.metrics()["keys"])
        assert largest < 10_000
        join.close()


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_a_failed_call_finds_its_tuples_where_they_were(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides are built anew in every step, in the memory of earlier ones, also in the call that fails."""
    monkeypatch.setattr(summary_operator, "_LEAST_STORED", 2)
    monkeypatch.setattr(LeftOperator, "largest_chunk", 8)
    left, right = tables(300)
    wanted = sj.join(left, right, "sym", time="t", how="left", match=spec(between=(-2, 1)).match)
    made, calls = summary_rows.SummaryRows.table, [0]

    def failing(self: Any, *arguments: Any) -> pa.Table:
        calls[0] += 1
        if calls[0] == steps:
            raise MemoryError
        return made(self, *arguments)

    parts = []
    with sj.open(spec(between=(-2, 1))) as join:
        for begin in range(0, 300, 30):
            sides = left.slice(begin, 30), right.slice(begin, 30)
            calls[0] = 0
            with monkeypatch.context() as patch, pytest.raises(MemoryError):
                patch.setattr(summary_rows.SummaryRows, "table", failing)
                join.push(*sides)
            parts.append(join.push(*sides))
        parts.append(join.close())
    assert pa.concat_tables(parts).equals(wanted)


def test_rows_that_were_given_out_do_not_change() -> None:
    """Windows keep their answers in memory that they use again."""
    rng = np.random.default_rng(4)
    summaries = {name: f"{name}(r.px)" for name in ("count", "sum", "avg", "min", "max", "first", "last")}
    given, copies = [], []
    with sj.open(spec(summaries=summaries, between=(-3, 0))) as join:
        for begin in range(0, 200, 10):
            times = np.arange(begin, begin + 10)
            sides = [pa.table({"sym": ["A"] * 10, "t": times, "px": rng.integers(-99, 99, 10)}) for _ in range(2)]
            given.append(join.push(*sides))
            copies.append(given[-1].to_pylist())
        join.close()
    assert [table.to_pylist() for table in given] == copies


@pytest.mark.parametrize(
    ("type_", "least", "middle", "most"),
    [
        (pa.bool_(), False, False, True),
        (pa.int8(), -128, 0, 127),
        (pa.uint16(), 0, 5, 2**16 - 1),
        (pa.int64(), -(2**63), -1, 2**63 - 1),
        (pa.uint64(), 0, 2**63, 2**64 - 1),
        (pa.float32(), -math.inf, -0.0, 0.1),
        (pa.float64(), -5e-324, 0.0, math.inf),
        (pa.date32(), dt.date(1, 1, 1), dt.date(1970, 1, 2), dt.date(9999, 12, 31)),
        (pa.date64(), dt.date(1, 1, 1), dt.date(1970, 1, 2), dt.date(9999, 12, 31)),
        (pa.timestamp("us"), dt.datetime(1, 1, 1), dt.datetime(2000, 1, 1), dt.datetime(9999, 1, 1)),
        (pa.duration("ms"), dt.timedelta(-5), dt.timedelta(0), dt.timedelta(5)),
        (pa.decimal128(18, 3), Decimal("-999999999999999.999"), Decimal("0.001"), Decimal("1.000")),
        (pa.decimal256(18, 3), Decimal("-999999999999999.999"), Decimal("0.001"), Decimal("1.000")),
    ],
    ids=str,
)
def test_extremes_are_values_of_their_type(type_: pa.DataType, least: Any, middle: Any, most: Any) -> None:
    right = pa.table({"sym": ["A"] * 5, "t": range(5), "v": pa.array([None, middle, most, None, least], type_)})
    left = pa.table({"sym": ["A"] * 4, "t": [0, 1, 3, 4]})
    summaries = {"low": "min(r.v)", "high": "max(r.v)"}
    rows = sj.join(left, right, "sym", time="t", how="left", match=spec(summaries=summaries, between=(-2, 0)).match)
    wanted = [(None, None), (middle, middle), (middle, most), (least, most)]
    assert [(row["low"], row["high"]) for row in rows.to_pylist()] == [
        tuple(pa.scalar(value, type_).as_py() for value in pair) for pair in wanted
    ]
    assert rows["low"].type == rows["high"].type == type_


@pytest.mark.parametrize("fails", [False, True])
def test_the_first_null_of_a_column_is_none_of_its_values(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are counted from then on, those in a window included; also where the call with the NULL is undone."""
    most = 2**63 - 1
    values = [most, most, None, None, 5, None, None, None]
    wanted = [(most, 1), (most, 2), (most, 2), (most, 1), (5, 1), (5, 1), (5, 1), (None, 0)]
    summaries = {"low": "min(r.v)", "n": "count(r.v)"}
    with sj.open(spec(summaries=summaries, between=(-2, 0), on=None)) as join:
        found = []
        for t, value in enumerate(values):
            sides = pa.table({"t": [t]}), pa.table({"t": [t], "v": pa.array([value], pa.int64())})
            if fails:
                with monkeypatch.context() as patch, pytest.raises(MemoryError):
                    patch.setattr(LeftOperator, "step", _failing_after(LeftOperator.step))
                    join.push(*sides)
            found.append(join.push(*sides))
        found.append(join.close())
    assert [(row["low"], row["n"]) for row in pa.concat_tables(found).to_pylist()] == wanted


def _failing_after(step: Any) -> Any:
    def failing(*arguments: Any) -> None:
        step(*arguments)
        raise MemoryError

    return failing


def test_sums_are_short_again_once_a_wide_value_has_left() -> None:
    """A column with the smallest and the largest floats takes 34 words; one of prices two."""
    kinds = [pa.table({"t": [t], "px": [5e-324 if t == 5 else 0.25]}) for t in range(40)]
    widths, rows = [], []
    with sj.open(spec(summaries={"x": "sum(r.px)"}, between=(-3, 0), on=None)) as join:
        for right in kinds:
            rows.append(join.push(right.select(["t"]), right))
            (sums,) = join._operator._right.sums.values()  # type: ignore[union-attr]
            widths.append(sums.form.width)
        rows.append(join.close())
    assert max(widths) > 10 and widths[-1] == 3
    values = [math.fsum(row["px"][0].as_py() for row in kinds[max(0, t - 3) : t + 1]) for t in range(40)]
    assert pa.concat_tables(rows)["x"].to_pylist() == values


def test_left_tuples_of_one_time_may_come_in_any_order() -> None:
    """Windows without the tuple itself are two, and their ends ascend with it."""
    bound = bind(
        sj.JoinSpec(
            on="sym", time="t", how="left", self_join=True,
            match=sj.Summary({"a": "min(r.px)", "b": "max(r.px)", "c": "first(r.px)", "d": "sum(r.px)"}, (-2, 2)),
        ),
        SCHEMA, SCHEMA,
    )  # fmt: skip
    rng = np.random.default_rng(6)
    n = 60
    times = np.sort(rng.integers(0, 15, n))
    rows = pa.Table.from_pylist(
        [{"id": i, "sym": "AB"[i % 2], "t": int(times[i]), "px": float(rng.integers(0, 50))} for i in range(n)], SCHEMA
    )
    results = []
    for shuffles in (False, True):
        order = np.arange(n)
        if shuffles:
            order = np.lexsort((rng.permutation(n), times))
            assert (np.diff(order) < 0).any()
        summaries, numbers = summary_rows.SummaryRows(bound, Workers(1)), KeyNumbers(bound.keys)
        side = summaries.new_side(-2, 2, hidden=True)
        summaries.store(side, rows, times, numbers)
        left = rows.take(pa.array(order))
        # Of some left tuples nothing is stored.
        own = np.where(order % 5 == 0, -1, order)
        windows = side.windows(times[order], numbers.number(0, left), own)
        found, sizes = summaries.aggregates(side, windows, left)
        answers = pa.table([*found.values(), pa.array(sizes)], names=[*map(str, found), "n"])
        results.append(answers.take(pa.array(np.argsort(order))))
    assert results[0].equals(results[1])


def test_threads_change_nothing() -> None:
    left, right = tables(50)
    case_rows = []
    for workers in (1, 2):
        with sj.open(spec(), workers=workers) as join:
            case_rows.append(pa.concat_tables([join.push(left, right), join.close()]))
    assert case_rows[0].equals(case_rows[1])


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_of_two_zeros_the_first_is_taken(zeros: tuple[float, float]) -> None:
    match = sj.Summary({"a": "arg_min(r.name, r.px)", "b": "arg_max(r.name, r.px)"}, between=(-9, 0))
    right = [{"t": t, "px": px, "name": name} for t, (px, name) in enumerate(zip(zeros, "xy", strict=True))]
    with sj.open(sj.JoinSpec(on=None, time="t", how="left", match=match)) as join:
        rows = join.push([{"t": 5}], right).to_pylist() + join.close().to_pylist()
    assert rows == [{"t": 5, "a": "x", "b": "x"}]
