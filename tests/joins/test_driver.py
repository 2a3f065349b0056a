"""`open` and `Join` as users meet them: pushes, errors that change nothing, late rows, metrics, threads."""

from __future__ import annotations

import datetime as dt
import sys
import threading
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins.engine import calls
from streamjoin.joins.engine.calls import Calls
from streamjoin.windows.clock import GRACE
from streamjoin.windows.workers import Workers
from tests.pauses import functions_of

SPEC = sj.JoinSpec(on=sj.Band("x", "a", 1), window=sj.CountWindow(3))


def left(*xs: int | None) -> pa.Table:
    return pa.table({"x": pa.array(xs, pa.int64())})


def right(*xs: int | None) -> pa.Table:
    return pa.table({"a": pa.array(xs, pa.int64())})


def pairs(result: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in result.to_pylist()]


def test_left_comes_before_right_and_rows_come_in_order() -> None:
    with sj.open(SPEC) as join:
        assert pairs(join.push(left(1, 5, 2), right(2, 9))) == [(1, 2), (2, 2)]
        assert pairs(join.push(left=left(8))) == [(8, 9)]


def test_interleave_says_otherwise() -> None:
    with sj.open(SPEC) as join:
        out = join.push(left(1, 1), right(1, 1), interleave=[False, True, True, False])
        assert out.num_rows == 4
    with sj.open(sj.JoinSpec(on=sj.Equi("x", "a"), window=sj.CountWindow(1))) as join:
        assert join.push(left(1, 2), right(1, 2), interleave=[False, True, False, True]).num_rows == 2
        assert join.push(left(7, 8), right(7, 8)).num_rows == 1


@pytest.mark.parametrize("make", [lambda t: t.to_batches()[0], lambda t: t], ids=["batch", "table"])
def test_inputs_of_several_kinds(make: object) -> None:
    with sj.open(SPEC) as join:
        assert join.push(make(left(1)), make(right(1))).num_rows == 1  # type: ignore[operator]


def test_dictionary_columns_are_decoded() -> None:
    keys = pa.array(["a", "b", "a"]).dictionary_encode()
    with sj.open(sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(9))) as join:
        out = join.push(pa.table({"k": keys}), pa.table({"k": pa.array(["b", "a"]).dictionary_encode()}))
    assert out.schema.types == [pa.string()]
    assert pairs(out) == [("b",), ("a",), ("a",)]


def test_one_side_alone_waits_for_the_schema_of_the_other() -> None:
    join = sj.open(SPEC)
    assert join.schema is None
    assert join.push(left=left(1)).num_rows == 0
    assert join.push(left=left(2)).num_rows == 0
    assert "chosen when the schemas" in join.explain()
    assert join.metrics()["waiting"] == 2
    assert pairs(join.push(right=right(2))) == [(1, 2), (2, 2)]
    assert join.schema is not None
    assert join.schema.names == ["x", "a"]  # type: ignore[unreachable]
    assert join.close().num_rows == 0


def test_schemas_can_be_given_first() -> None:
    with sj.open(SPEC, left_schema=left().schema, right_schema=right().schema) as join:
        assert join.push(left=left(1)).schema.names == ["x", "a"]
    with pytest.raises(sj.SchemaError, match="no column 'x'"):
        sj.open(SPEC, left_schema=right().schema, right_schema=right().schema)


@pytest.mark.parametrize(
    ("push", "error", "says"),
    [
        ({}, sj.InputError, "needs left=, right= or both"),
        ({"left": [1, 2]}, sj.InputError, "pyarrow Table"),
        ({"left": pa.table({"x": pa.array(["a"])})}, sj.InputError, "x is string instead of int64"),
        ({"left": pa.table({"y": [1]})}, sj.InputError, "missing x; unexpected y"),
        ({"left": left(1), "right": right(1), "interleave": [True, True]}, sj.InputError, "2 right tuples of 2"),
        ({"left": left(1), "interleave": [1]}, sj.InputError, "booleans"),
        ({"left": left(1), "interleave": [False, False]}, sj.InputError, "one value for each tuple"),
        ({"left": left(1), "source": "s"}, sj.InputError, "order='event_time'"),
    ],
)
def test_a_bad_push_changes_nothing(push: dict[str, object], error: type[Exception], says: str) -> None:
    with sj.open(SPEC) as join:
        join.push(left(1), right())
        before = {k: v for k, v in join.metrics().items() if "seconds" not in k}
        with pytest.raises(error, match=says):
            join.push(**push)  # type: ignore[arg-type]
        assert {k: v for k, v in join.metrics().items() if "seconds" not in k} == before
        assert join.push(right=right(1)).num_rows == 1


def test_a_schema_that_does_not_fit_can_be_pushed_again_mended() -> None:
    join = sj.open(SPEC)
    join.push(left=left(1))
    with pytest.raises(sj.SchemaError, match="right side has no column 'a'"):
        join.push(right=pa.table({"b": [1]}))
    assert join.push(right=right(1)).num_rows == 1
    join.close()


def test_a_push_has_the_columns_of_the_result_once_they_are_known() -> None:
    sides = pa.schema({"k": pa.int64(), "a": pa.string()}), pa.schema({"k": pa.int64(), "b": pa.string()})
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(5))
    given = sj.open(spec, left_schema=sides[0], right_schema=sides[1])
    assert given.push(left=sides[0].empty_table()).schema.names == ["k", "a", "b"]
    learnt = sj.open(spec)
    before = learnt.push(left=sides[0].empty_table())
    assert before.num_columns == 0
    assert (
        b"right side are not known; push it, if only an empty table, or give right_schema= to open"
        in before.schema.metadata[b"streamjoin"]
    )
    assert learnt.push(right=sides[1].empty_table()).schema == given.schema
    untyped = sj.open(spec).push(pa.table({"k": pa.nulls(1)}), sides[1].empty_table())
    assert b"only NULLs" in untyped.schema.metadata[b"streamjoin"]


@pytest.mark.parametrize("order", ["arrival", "event_time"])
@pytest.mark.parametrize("self_join", [False, True])
@pytest.mark.parametrize("algorithm", ["sweep", "indexed", "nested_loop"])
def test_only_the_columns_that_are_wanted_are_given_and_stored(order: Any, self_join: bool, algorithm: str) -> None:
    table = pa.table({"k": [1, 2, 1], "t": [1, 2, 3], "v": [5, 6, 7], "blob": ["x" * 100] * 3})
    spec = sj.JoinSpec(
        on="l.k = r.k and l.v <= r.v", window=sj.TimeWindow(5), time="t", order=order, self_join=self_join
    )
    whole, some = sj.open(spec, algorithm), sj.open(spec, algorithm, columns=["v_right", "k"])
    results = []
    for join in (whole, some):
        sides = {"left": table} if self_join else {"left": table, "right": table}
        results.append(pa.concat_tables([join.push(**sides), join.push(**sides), join.close()]))
    assert results[0].num_rows > 0
    assert results[1].schema.names == ["k", "v_right", "t"]
    assert results[1].equals(results[0].select(["k", "v_right", "t"]))
    with pytest.raises(sj.SchemaError, match="did you mean 'v_left'"):
        sj.open(spec, columns=["v_lft"]).push(**sides)
    with pytest.raises(sj.SpecError, match="a list of names"):
        sj.open(spec, columns="k")


def test_columns_that_are_not_wanted_take_no_memory_and_are_not_among_late_rows() -> None:
    table = pa.table({"k": [1, 1], "t": [1000, 1], "v": [5, 6], "blob": ["x" * 10_000] * 2})
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(5), time="t", order="event_time")
    held = []
    for columns in (None, ["k"]):
        with sj.open(spec, columns=columns, on_close=lambda rows: None) as join:
            join.push(table, table)
            join.advance(900)
            held.append(join.metrics()["bytes"])
            late = join.late()
    assert held[1] < held[0] - 10_000
    assert late.schema.names == ["side", "source", "reason", "k_left", "k_right"]
    assert late.select(["side", "k_left", "k_right"]).to_pylist() == [
        {"side": "left", "k_left": 1, "k_right": None},
        {"side": "right", "k_left": None, "k_right": 1},
    ]


def test_columns_may_come_in_any_order() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(5))
    with sj.open(spec) as join:
        join.push(pa.table({"k": [1], "v": [2]}), pa.table({"k": [9]}))
        assert pairs(join.push(pa.table({"v": [7], "k": [9]}))) == [(9, 7)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"algorithm": "magic"}, "is not known; it is one of auto"),
        ({"workers": 0}, "number of threads"),
        ({"workers": "two"}, "number of threads"),
        ({"sources": {"left": ["a"]}}, "order='event_time'"),
    ],
)
def test_open_is_checked(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(sj.SpecError, match=says):
        sj.open(SPEC, **arguments)  # type: ignore[arg-type]


def test_open_takes_a_spec() -> None:
    with pytest.raises(sj.SpecError, match="JoinSpec"):
        sj.open("x = y")  # type: ignore[arg-type]


def test_sweep_refuses_a_theta_alone() -> None:
    spec = sj.JoinSpec(on=sj.Theta("l.x < r.a"), window=sj.CountWindow(3))
    with pytest.raises(sj.NotSupportedError, match="nested_loop"):
        sj.open(spec, algorithm="sweep", left_schema=left().schema, right_schema=right().schema)


def test_a_closed_join_says_so() -> None:
    join = sj.open(SPEC)
    join.push(left(1), right(1))
    join.close()
    assert join.close().num_rows == 0
    with pytest.raises(sj.StateError, match="closed"):
        join.push(left(1))
    assert join.metrics()["results"] == 1


def test_explain_says_which_algorithm_and_why() -> None:
    with sj.open(SPEC, left_schema=left().schema, right_schema=right().schema) as join:
        assert "nested_loop: few tuples so far, and scanning compiles fastest; later sweep" in join.explain()
    wide = sj.JoinSpec(on=sj.Band("x", "a", 1) & sj.Theta("l.x <> r.a"), window=sj.CountWindow(10_000))
    with sj.open(wide, left_schema=left().schema, right_schema=right().schema) as join:
        text = join.explain()
    assert "sweep: tuples are looked up by |l.x - r.a| <= 1 in sorted runs" in text
    assert "then tests  l.x <> r.a" in text
    theta = sj.JoinSpec(on=sj.Theta("l.x < r.a"), window=sj.CountWindow(10_000))
    with sj.open(theta, left_schema=left().schema, right_schema=right().schema) as join:
        assert "no key or band" in join.explain()


def test_metrics_count_what_happened() -> None:
    with sj.open(SPEC, algorithm="sweep") as join:
        join.push(left(1, 2, 3, 4, 5), right(4, None))
        figures = join.metrics()
    assert (figures["tuples_left"], figures["tuples_right"], figures["results"]) == (5, 2, 3)
    assert figures["expired"] == 2
    assert figures["window_left"] == 3
    assert figures["bytes"] > 0
    assert set(figures["seconds"]) == {"order", "encode", "store", "pair", "gather", "expire"}


TIMED = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(10), time="t", order="event_time")


def timed(*rows: tuple[int, int | None]) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in rows], pa.int64()), "t": pa.array([t for _, t in rows], pa.int64())})


def test_event_time_holds_tuples_until_they_are_ready() -> None:
    with sj.open(TIMED) as join:
        assert join.push(left=timed((1, 5))).num_rows == 0
        assert join.push(right=timed((1, 4), (1, 9))).num_rows == 1
        assert join.metrics()["waiting"] == 1
        assert join.advance(20, side="left").num_rows == 1
        assert join.metrics()["waiting"] == 0


def test_a_late_tuple_is_counted_and_can_be_read_once() -> None:
    with sj.open(TIMED) as join:
        join.push(left=timed((1, 5), (1, 3), (1, None)), right=timed((2, 5)))
        figures = join.metrics()
        assert (figures["late"], figures["rejected"]) == (1, 1)
        late = join.late()
        assert late.to_pylist() == [
            {"side": "left", "source": "", "reason": "no usable time",
             "k_left": 1, "t_left": None, "k_right": None, "t_right": None},
            {"side": "left", "source": "", "reason": "late",
             "k_left": 1, "t_left": 3, "k_right": None, "t_right": None},
        ]  # fmt: skip
        assert join.late().num_rows == 0


def test_lateness_lets_a_source_be_out_of_order() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(10), time="t", order="event_time", lateness=3)
    with sj.open(spec) as join:
        join.push(left=timed((1, 5), (2, 3), (3, 1)), right=timed((2, 9)))
        assert join.metrics()["late"] == 1
        rest = join.close()
    assert rest["t_left"].to_pylist() == [3]


def test_a_source_that_finished_holds_nobody_and_can_send_no_more() -> None:
    with sj.open(TIMED, sources={"left": ["a", "b"], "right": ["q"]}) as join:
        assert join.push(left=timed((1, 1)), source="a").num_rows == 0
        join.push(right=timed((1, 2)), source="q")
        assert join.finish("b", side="left").num_rows == 0
        assert join.push(left=timed((9, 7)), source="a").num_rows == 1
        with pytest.raises(sj.InputError, match="is finished"):
            join.push(left=timed((1, 8)), source="b")


def test_a_source_that_appears_behind_the_gate_is_late() -> None:
    with sj.open(TIMED) as join:
        join.push(left=timed((1, 50)), right=timed((1, 50)))
        join.push(left=timed((1, 10)), source="newcomer")
        assert join.metrics()["late"] == 1
        assert join.close().num_rows == 1


def test_gate_calls_are_for_event_time() -> None:
    with sj.open(SPEC) as join:
        for call in (lambda: join.advance(1), join.finish):
            with pytest.raises(sj.StateError, match="event_time"):
                call()
    with sj.open(TIMED) as join:
        with pytest.raises(sj.StateError, match="schemas of both sides"):
            join.advance(1)
        join.push(timed((1, 1)), timed((1, 1)))
        with pytest.raises(sj.InputError, match="'left' or 'right'"):
            join.advance(1, side="up")
        with pytest.raises(sj.InputError, match="give a time of that type"):
            join.advance("noon")
        assert join.close().num_rows == 1


@pytest.mark.parametrize(
    "time",
    [
        dt.datetime(2024, 1, 1, 0, 0, 9, tzinfo=dt.UTC),
        pd.Timestamp("2024-01-01 01:00:09+01:00"),
        np.datetime64("2024-01-01T00:00:09"),
    ],
    ids=lambda time: type(time).__name__,
)
def test_advance_takes_times_with_a_zone(time: object) -> None:
    table = pa.table({"k": [1], "t": pa.array([dt.datetime(2024, 1, 1, 0, 0, 8)], pa.timestamp("ms", "UTC"))})
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow("1 s"), time="t", order="event_time")
    with sj.open(spec) as join:
        assert join.push(table, table).num_rows == 0
        assert join.advance(time).num_rows == 1


def test_a_time_that_the_finer_unit_cannot_count_is_null_and_not_wrong() -> None:
    left = pa.table({"k": [1, 1], "a": pa.array([dt.date(9999, 12, 31), dt.date(2024, 5, 1)])})
    right = pa.table({"k": [1], "b": pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("ns"))})
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(5), time=("a", "b"), order="arrival")
    with sj.open(spec) as join:
        assert join.push(left, right)["result_time"].cast(pa.timestamp("us")).to_pylist() == [
            None,
            dt.datetime(2024, 5, 1),
        ]


def test_result_time_is_the_later_of_the_two() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow("1 s"), time=("a", "b"), order="event_time")
    at = dt.datetime(2024, 1, 1, 12)
    l = pa.table({"k": [1], "a": pa.array([at], pa.timestamp("ms"))})
    r = pa.table({"k": [1], "b": pa.array([at + dt.timedelta(microseconds=5)], pa.timestamp("us"))})
    join = sj.open(spec)
    join.push(l, r)
    out = join.close()
    assert out.schema.field("result_time").type == pa.timestamp("us")
    assert out["result_time"].to_pylist() == [at + dt.timedelta(microseconds=5)]


def test_in_arrival_order_disorder_within_the_grace_is_exact() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(10), time="t", order="arrival")
    with sj.open(spec) as join:
        join.push(timed((1, 100)), timed())
        assert join.push(right=timed((1, 500), (1, 91), (1, 3), (1, 109), (1, 90))).num_rows == 3
        assert join.metrics()["late"] == 0


def test_in_arrival_order_state_is_bounded_and_stragglers_are_late() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(10), time="t", order="arrival")
    n = 8 * GRACE
    table = pa.table({"k": np.arange(n), "t": np.arange(n)})
    with sj.open(spec) as join:
        assert join.push(table, table).num_rows == n
        assert join.metrics()["window_left"] <= 2 * GRACE + 20
        join.push(left=timed((5, 5)))
        assert join.metrics()["late"] == 1


@pytest.mark.parametrize("cut", [1, 100, GRACE, 3 * GRACE + 1])
def test_what_is_late_does_not_depend_on_the_cut(cut: int) -> None:
    rng = np.random.default_rng(7)
    n = 5 * GRACE
    ticks = np.arange(n) - rng.integers(0, 3, n) * rng.integers(0, 2 * GRACE, n)
    cut = max(cut, 7)
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(50), time="t", order="arrival")
    table = pa.table({"k": rng.integers(0, n, n), "t": ticks})
    with sj.open(spec) as join:
        join.push(table, table)
        wanted = (join.metrics()["late"], join.metrics()["results"])
    assert wanted[0] > 0
    with sj.open(spec) as join:
        rows = 0
        for at in range(0, n, n // (n // cut)):
            rows += join.push(left=table.slice(at, n // (n // cut))).num_rows
        rows += join.push(right=table).num_rows
        assert (join.metrics()["late"], rows) == wanted


def test_several_joins_run_in_one_process() -> None:
    joins = [sj.open(SPEC, workers=2) for _ in range(3)]
    for i, join in enumerate(joins):
        assert join.push(left(i), right(i)).num_rows == 1
    for join in joins:
        join.close()


def test_threads_may_share_a_join() -> None:
    spec = sj.JoinSpec(on=sj.Equi("x", "a"), window=sj.CountWindow(1_000_000))
    join = sj.open(spec, left_schema=left().schema, right_schema=right().schema)
    found: list[int] = []

    def feed(side: str) -> None:
        for i in range(200):
            found.append(join.push(**{side: left(i) if side == "left" else right(i)}).num_rows)  # type: ignore[arg-type]

    threads = [threading.Thread(target=feed, args=(side,)) for side in ("left", "right", "left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    join.close()
    assert sum(found) == 4 * 200


def test_a_failing_worker_reaches_the_caller() -> None:
    from streamjoin.windows.workers import Workers

    def step(part: int) -> int:
        if part == 2:
            raise ValueError("part 2")
        return part

    workers = Workers(3)
    with pytest.raises(ValueError, match="part 2"):
        workers.map(step, [0, 1, 2])
    assert workers.map(step, [0, 1]) == [0, 1]
    workers.close()


def test_options_of_an_algorithm_are_checked_by_name() -> None:
    with pytest.raises(sj.SpecError, match="'sweep' does not know 'task'; it takes none"):
        sj.open(SPEC, "sweep", options={"task": 8})


def test_threads_of_a_fixed_algorithm_stay_as_they_are() -> None:
    with sj.open(SPEC, "sweep") as join:
        with pytest.raises(sj.StateError, match="schemas of both sides"):
            join.set_workers(2)
        join.push(left(1), right(1))
        with pytest.raises(sj.NotSupportedError, match="fixed when it is opened"):
            join.set_workers(2)
        with pytest.raises(sj.SpecError, match="from 1 to"):
            join.set_workers(0)


def test_threads_change_while_a_call_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Workers.settle
    changed: list[bool] = []

    def settled(workers: Workers) -> None:
        join.set_workers(3)
        changed.append("broken" in repr(join))
        settle(workers)

    with sj.open(SPEC, "pim_parallel", 2, max_rows=3) as join:
        join.push(left(1), right(1))
        monkeypatch.setattr(Workers, "settle", settled)
        with pytest.raises(sj.TooManyRowsError):
            join.push(left(1, 1, 1, 1), None)
        assert changed == [False]
        assert join.push(left(1), None).num_rows == 1


def test_a_push_may_begin_at_any_step_of_a_change_of_threads() -> None:
    codes = functions_of(Calls)
    with sj.open(SPEC, "pim_parallel", 2) as join:
        join.push(left(1), right(1))
        for step in range(8):
            left_over = step

            def line(frame: FrameType, event: str, arg: Any) -> Any:
                nonlocal left_over
                del arg
                if event == "line" and frame.f_code in codes:
                    left_over -= 1
                    if left_over < 0:
                        join._broken = calls._AT_WORK
                return line

            before = sys.gettrace()
            sys.settrace(line)
            try:
                join.set_workers(2)
            finally:
                sys.settrace(before)
                join._broken = None


def test_metrics_tell_the_bytes_of_window_and_index_per_tuple() -> None:
    table = pa.table({"k": np.arange(4_096)})
    for algorithm, most in (("sweep", 40), ("nested_loop", 40), ("indexed", 200)):
        with sj.open(sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(4_096)), algorithm) as join:
            join.push(table, table)
            figures = join.metrics()
        assert figures["bytes"] == figures["window_bytes"] + figures["index_bytes"]
        assert figures["index_bytes_per_tuple"] == figures["index_bytes"] / 8_192
        # A key and a position, with room to spare.
        assert 8 <= figures["index_bytes_per_tuple"] <= most
        assert figures["window_bytes_per_tuple"] >= 8


def test_a_join_says_what_it_is() -> None:
    spec = sj.JoinSpec(on=sj.Equi("x", "a"), window=("10 rows", "20 rows"))
    with sj.open(spec, left_schema=pa.schema([("x", pa.int64())])) as join:
        what = "Join inner on l.x = r.a, window 10 tuples and 20 tuples, arrival"
        assert repr(join) == f"<{what}; no algorithm yet; 0 left and 0 right rows in the windows>"
        join.push(left(1, 2), right(2))
        assert repr(join) == f"<{what}; algorithm nested_loop; 2 left and 1 right rows in the windows>"
    assert repr(join).endswith("rows in the windows; closed>")
    match = sj.JoinSpec(on="x", match=sj.AsOf(tolerance=5), time="t", order="event_time", how="left")
    assert repr(sj.open(match)).startswith(
        "<Join left on l.x = r.x, as of backward, tolerance 5 time units, event_time;"
    )
