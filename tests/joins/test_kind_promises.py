"""Outer, semi, anti and as-of joins by hand: the cases that stream engines got wrong, and what a call promises."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.model.binding import bind

LEFT = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("a", pa.string())])
RIGHT = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("b", pa.string())])


def rows(schema: pa.Schema, *tuples: tuple[int | None, int, str]) -> pa.Table:
    columns = list(zip(*tuples, strict=True)) or [(), (), ()]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def left(*tuples: tuple[int | None, int, str]) -> pa.Table:
    return rows(LEFT, *tuples)


def right(*tuples: tuple[int | None, int, str]) -> pa.Table:
    return rows(RIGHT, *tuples)


def opened(spec: sj.JoinSpec, **arguments: Any) -> sj.Join:
    return sj.open(spec, left_schema=LEFT, right_schema=RIGHT, **arguments)


def timed(how: str, window: Any = None, **arguments: Any) -> sj.JoinSpec:
    return sj.JoinSpec(
        on=sj.Equi("k"), window=window, time="t", order="event_time", how=how, **arguments  # type: ignore[arg-type]
    )  # fmt: skip


def names(table: pa.Table) -> list[str]:
    """Each row as its left and right name, or a dash."""
    empty = [None] * table.num_rows
    both = (table[name].to_pylist() if name in table.column_names else empty for name in ("a", "b"))
    return [f"{a or '-'}{b or '-'}" for a, b in zip(*both, strict=True)]


# -- what stream engines got wrong -------------------------------------------------------------------------


def test_a_match_and_an_eviction_in_one_batch() -> None:
    with opened(timed("full", sj.TimeWindow(5))) as join:
        # The right tuple at 5 matches a, and the one at 20 evicts both, in one call.
        result = join.push(left((1, 0, "a"), (2, 1, "b")), right((1, 5, "x"), (3, 20, "y")))
        result = pa.concat_tables([result, join.push(left((9, 30, "c")))])
        assert names(pa.concat_tables([result, join.close()])) == ["ax", "b-", "-y", "c-"]


def test_asymmetric_windows() -> None:
    with opened(timed("left", (sj.TimeWindow(10), sj.TimeWindow(2)))) as join:
        join.push(left((1, 0, "a"), (2, 0, "b")), right((2, 9, "x")))
        # The left window is the longer one: b still matches at 9, and a is not given out before 10 has passed.
        assert names(join.advance(10)) == ["bx"]
        assert names(join.advance(11)) == ["a-"]
        assert names(join.close()) == []


def test_a_full_join_with_asymmetric_windows_keeps_gate_order_for_every_call() -> None:
    spec = timed("full", (sj.TimeWindow(10), sj.TimeWindow(5)))
    first, second = (left((1, 0, "a")), right((2, 3, "x"))), (left((3, 20, "b")), right((4, 20, "y")))
    with opened(spec) as join:
        together = [join.push(pa.concat_tables([first[0], second[0]]), pa.concat_tables([first[1], second[1]]))]
        together.append(join.close())
    with opened(spec) as join:
        apart = [join.push(*first)]
        # x is beyond its window, but a may leave at the same place and precedes it.
        apart.append(join.advance(9))
        assert not names(apart[-1])
        apart += [join.push(*second), join.close()]
    assert names(pa.concat_tables(together)) == names(pa.concat_tables(apart)) == ["a-", "-x", "b-", "-y"]


def test_the_watermark_moves_in_the_batch_that_matches() -> None:
    with opened(timed("left", sj.TimeWindow(5), lateness=3)) as join:
        join.push(left((1, 0, "a")), right((7, 0, "w")))
        # The bound passes a's window in the call that brings its match.
        result = join.push(left((5, 20, "b")), right((1, 4, "x"), (8, 20, "y")))
        assert names(result) == ["ax"]
        assert names(join.close()) == ["b-"]


def test_a_stream_that_falls_silent_before_anything_is_decided() -> None:
    for spec in (timed("left", sj.TimeWindow(5)), timed("left", match=sj.AsOf("nearest", tolerance=5))):
        with opened(spec) as join:
            assert not names(join.push(left((1, 0, "a"), (2, 3, "b"))))
            assert not names(join.advance(6, side="right"))
            join.finish(side="right")
            assert names(join.advance(9, side="left")) == ["a-", "b-"]
            assert not names(join.close())


@pytest.mark.parametrize("how", ["left", "semi", "anti"])
def test_a_failed_call_between_match_and_eviction_changes_nothing(how: str) -> None:
    spec = timed(how, sj.TimeWindow(5))
    pushes = [
        (left((1, 0, "a"), (2, 1, "b")), right((1, 1, "x"))),
        (left((1, 3, "c"), (4, 12, "d")), right((1, 4, "y"), (1, 5, "z"), (5, 12, "u"))),
        (left((4, 30, "e")), right((4, 30, "v"))),
    ]
    with opened(spec) as join:
        wanted = [names(join.push(*push)) for push in pushes] + [names(join.close())]
    with opened(spec, max_rows=1) as join:
        pieces = []
        for push in pushes:
            try:
                pieces.append(names(join.push(*push)))
            except sj.TooManyRowsError:
                pieces.append([name for table in join.push_iter(*push, batch_rows=1) for name in names(table)])
        pieces.append([name for table in join.close_iter(batch_rows=1) for name in names(table)])
    assert pieces == wanted


def test_nearest_without_exact_matches() -> None:
    spec = timed("left", match=sj.AsOf("nearest", tolerance=10, exact=False))
    with opened(spec) as join:
        result = [join.push(left((1, 10, "a"), (1, 10, "b")), right((1, 3, "x"), (1, 10, "y"), (1, 15, "z")))]
        result.append(join.close())
    assert names(pa.concat_tables(result)) == ["az", "bz"]


def test_nearest_with_a_tolerance_on_both_sides() -> None:
    spec = timed("left", match=sj.AsOf("nearest", tolerance=3))
    with opened(spec) as join:
        result = [
            join.push(left((1, 10, "a"), (1, 20, "b"), (1, 30, "c")), right((1, 7, "x"), (1, 23, "y"), (1, 34, "z")))
        ]
        result.append(join.close())
    assert names(pa.concat_tables(result)) == ["ax", "by", "c-"]


def test_equidistant_neighbours_go_backward_and_ties_by_gate_order() -> None:
    spec = timed("left", match=sj.AsOf("nearest", tolerance=5))
    with opened(spec) as join:
        result = [
            join.push(left((1, 10, "a"), (1, 11, "b")), right((1, 8, "w"), (1, 8, "x"), (1, 12, "y"), (1, 12, "z")))
        ]
        result.append(join.close())
    # a is 2 from 8 and from 12: backward, and of the equal times the last. b is nearest to 12: of these the first.
    assert names(pa.concat_tables(result)) == ["ax", "by"]


def test_chained_as_of() -> None:
    trades = left((1, 1, "a"), (2, 2, "b"), (1, 5, "c"))
    with opened(timed("left", match=sj.AsOf(tolerance=2))) as join:
        first = pa.concat_tables([join.push(trades, right((1, 0, "x"), (1, 4, "y"), (2, 9, "z"))), join.close()])
    assert names(first) == ["ax", "b-", "cy"]
    rates = pa.table({"at": [0, 3], "rate": [1.5, 2.5]})
    spec = sj.JoinSpec(on=None, match=sj.AsOf(), time=("t", "at"), order="event_time", how="left")
    with sj.open(spec) as join:
        second = pa.concat_tables([join.push(first, rates), join.close()])
    assert second["rate"].to_pylist() == [1.5, 1.5, 2.5]
    assert second["b"].to_pylist() == ["x", None, "y"]


# -- rows and columns --------------------------------------------------------------------------------------


def test_tuples_out_of_order_leave_by_the_other_sides_clock() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(0), time="t", order="arrival", how="left", lateness=5)
    with opened(spec) as join:
        join.push(left((1, 10, "a"), (2, 6, "b")))
        # 12 - 5 passes 6 and not 10: b leaves before a, which came first.
        assert names(join.push(right=right((9, 12, "x")))) == ["b-"]
        assert names(join.push(right=right((1, 10, "y")))) == ["ay"]
        assert names(join.close()) == []


def test_late_tuples_give_no_row() -> None:
    with opened(timed("full", sj.TimeWindow(5))) as join:
        join.push(left((1, 10, "a")), right((2, 10, "x")))
        join.push(left((1, 3, "late")), right((2, 4, "late")))
        assert sorted(names(join.close())) == ["-x", "a-"]
        assert join.late().num_rows == 2


def test_rows_of_tuples_that_came_before_the_other_sides_columns_were_known() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(1), how="left")
    with sj.open(spec) as join:
        assert join.push(left((1, 0, "a"), (2, 0, "b"), (None, 0, "c"))).num_rows == 0
        with pytest.raises(sj.StateError, match="right side are not known"):
            join.close()
        assert names(join.push(right=right((2, 0, "x")))) == ["a-", "b-", "c-"]
        assert names(join.close()) == []


@pytest.mark.parametrize(
    ("how", "nullable"), [("left", {"tr", "b"}), ("right", {"tl", "a"}), ("full", {"tl", "a", "tr", "b"})]
)
def test_the_columns_of_a_missing_side_are_nullable(how: str, nullable: set[str]) -> None:
    schemas = [
        pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field(t, pa.int64(), nullable=False),
                   pa.field(v, pa.string(), nullable=False)])
        for t, v in (("tl", "a"), ("tr", "b"))
    ]  # fmt: skip
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(1), time=("tl", "tr"), order="arrival", how=how)  # type: ignore[arg-type]
    assert {field.name for field in bind(spec, *schemas).schema if field.nullable} == {*nullable, "result_time"}
    with sj.open(spec, left_schema=schemas[0], right_schema=schemas[1]) as join:
        join.push([{"k": 1, "tl": 3, "a": "a"}], [{"k": 2, "tr": 4, "b": "x"}])
        result = join.close()
        # A key that appears once has the value of the side that is there, and the time is its tuple's own.
        wanted = {"left": [(1, 3)], "right": [(2, 4)], "full": [(1, 3), (2, 4)]}[how]
        assert list(zip(result["k"].to_pylist(), result["result_time"].to_pylist(), strict=True)) == wanted


def test_a_key_that_the_result_cant_hold_is_refused() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(1), how="full")
    wide, unsigned = pa.schema([("k", pa.int64())]), pa.schema([("k", pa.uint64())])
    for left, right in ((wide, unsigned), (unsigned, wide)):
        with pytest.raises(sj.SchemaError, match="both_keys=True"):
            sj.open(spec, left_schema=left, right_schema=right)
    sj.open(spec, left_schema=wide, right_schema=pa.schema([("k", pa.int32())])).close()


def test_semi_and_anti_give_the_left_columns_alone() -> None:
    for how, wanted in (("semi", ["a-"]), ("anti", ["b-"])):
        with opened(timed(how, sj.TimeWindow(5))) as join:
            result = [join.push(left((1, 0, "a"), (2, 0, "b")), right((1, 1, "x"), (1, 2, "y"))), join.close()]
            assert join.schema == LEFT
            assert names(pa.concat_tables(result)) == wanted


def test_the_state_of_an_as_of_join_is_one_tuple_per_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.joins.kinds.asof_operator._LEAST_STORED", 1 << 10)
    with opened(timed("left", match=sj.AsOf())) as join:
        join.push(right=right((7, 0, "old")))
        for batch in range(4):
            times = range(1 + 5_000 * batch, 1 + 5_000 * (batch + 1))
            join.push(left((7, times[-1], "a")), right(*((k % 3, t, "new") for k, t in enumerate(times))))
        assert join.metrics()["window_right"] < 10
        # The rare key's only tuple is still there, twenty thousand tuples later.
        assert names(join.advance(10**6)) == ["aold"]


def test_keys_of_a_call_that_failed_keep_their_numbers() -> None:
    numbers = KeyNumbers(bind(timed("left", match=sj.AsOf()), LEFT, RIGHT).keys)
    one, other = left((7, 0, "a"), (8, 0, "b")), left((9, 0, "c"), (7, 0, "d"))
    before = numbers.count
    assert numbers.number(0, one).tolist() == [0, 1]
    assert numbers.count == before + 2
    # Again, as after a failure behind the numbering; then new keys.
    assert numbers.number(0, one).tolist() == [0, 1]
    assert numbers.number(0, other).tolist() == [2, 0]
    many = left(*((k, 0, "x") for k in range(5_000)))
    assert len(set(numbers.number(1, many.rename_columns(["k", "t", "b"])).tolist())) == 5_000 == numbers.count


def test_an_algorithm_that_needs_a_window_says_so() -> None:
    with pytest.raises(sj.NotSupportedError, match="add tolerance="):
        opened(timed("left", match=sj.AsOf()), algorithm="sweep")
    with pytest.raises(sj.NotSupportedError, match="looks up intervals"):
        opened(timed("inner", sj.TimeWindow(5)), algorithm="interval")


def test_the_plan_names_the_kind() -> None:
    with opened(timed("left", match=sj.AsOf("nearest", tolerance=5))) as join:
        assert "left on l.k = r.k, as of nearest, tolerance 5 time units" in join.explain()
        assert "asof: both sides are read once" in join.explain()
    schemas = {
        "left_schema": pa.schema([("t", pa.int64())]),
        "right_schema": pa.schema([("u", pa.int64()), ("v", pa.int64())]),
    }
    spec = sj.JoinSpec(on="l.t BETWEEN r.u AND r.v", window=sj.CountWindow(10**6))
    with sj.open(spec, **schemas) as join:
        assert "interval once the intervals are short enough: intervals are looked up by" in join.explain()
