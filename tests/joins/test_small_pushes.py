"""Compiled steps give the rows of the general way, whatever the columns are; NumPy arrays are read as they are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins import auto
from streamjoin.joins.engine import operator
from streamjoin.joins.engine.adapting import MeasuredCosts
from streamjoin.model.binding import bind
from streamjoin.testing.conformance import algorithms
from tests.joins.opened import opened

NEVER = 10**9


def rows(n: int, seed: int, nulls: bool = False) -> pa.Table:
    """Columns of every way to store them; with `nulls`, some values of each."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 12, n)

    def column(values: list[Any], type_: pa.DataType) -> pa.Array:
        return pa.array([None if nulls and i % 5 == 3 else value for i, value in enumerate(values)], type_)

    times = np.sort(rng.integers(0, 20, n)) + 20 * seed
    return pa.table(
        {
            "i8": column(numbers.tolist(), pa.int8()),
            "u16": column(numbers.tolist(), pa.uint16()),
            "i32": column((numbers - 6).tolist(), pa.int32()),
            "i64": column(numbers.tolist(), pa.int64()),
            "u64": column([int(k) + 2**63 - 6 for k in numbers], pa.uint64()),
            "f32": column(numbers.tolist(), pa.float32()),
            "f64": column([float("nan") if k == 11 else k / 3 for k in numbers.tolist()], pa.float64()),
            "day": column([dt.date(2024, 1, 1 + int(k)) for k in numbers], pa.date32()),
            "ms": column([dt.datetime(2024, 1, 1 + int(k), 0, 0, int(k)) for k in numbers], pa.timestamp("ms")),
            "text": column([f"s{k}" * 4 for k in numbers], pa.string()),
            "flag": column([bool(k % 2) for k in numbers], pa.bool_()),
            "exact": column([Decimal(int(k)) for k in numbers], pa.decimal128(20, 2)),
            "many": column([[int(k)] * int(k % 3) for k in numbers], pa.list_(pa.int64())),
            "t": pa.array(times, pa.int64()),
            "id": np.arange(n) + 1000 * seed,
        }
    )


def cut(table: pa.Table) -> pa.Table:
    """The same rows, from the middle of larger buffers and in chunks."""
    padded = pa.concat_tables([table.slice(0, 1), table, table.slice(0, 1)]).combine_chunks().slice(1, table.num_rows)
    half = table.num_rows // 2
    return pa.concat_tables([padded.slice(0, half), padded.slice(half)])


PUSHES: list[tuple[pa.Table | None, pa.Table | None]] = [
    (rows(30, 1), rows(30, 2)),
    (rows(0, 1), rows(7, 3)),
    (rows(1, 3), None),
    (None, rows(25, 4, nulls=True)),
    (cut(rows(20, 4, nulls=True)), cut(rows(20, 5))),
    (rows(20, 6).slice(3, 9), rows(20, 6).slice(5, 11)),
    (rows(30, 7), rows(30, 7)),
]
WINDOW = sj.CountWindow(40)
SPECS = {
    "integers": sj.JoinSpec(on=sj.Band("i8", "i32", 2), window=WINDOW),
    "units": sj.JoinSpec(on=sj.Band("day", "ms", "9 seconds"), window=WINDOW),
    "unsigned": sj.JoinSpec(on=sj.Equi("u64") & sj.Band("u16", "u16", 1), window=WINDOW),
    "floats": sj.JoinSpec(on=sj.Band("f64", "f64", 0.4), window=(WINDOW, sj.CountWindow(9))),
    "key and band": sj.JoinSpec(on=sj.Equi("f32") & sj.Band("f64", "f64", 1.5), window=WINDOW),
    "text and time": sj.JoinSpec(on=sj.Equi("text"), window=sj.TimeWindow(25), time="t", order="arrival"),
    "time, not windowed": sj.JoinSpec(on=sj.Equi("i64"), window=WINDOW, time="ms", order="arrival"),
    "condition": sj.JoinSpec(on=sj.Equi("i64") & sj.Theta("l.f64 < r.f64 + 1"), window=WINDOW),
    "not compiled": sj.JoinSpec(on=sj.Equi("exact"), window=WINDOW),
    "event time": sj.JoinSpec(on=sj.Equi("i64"), window=sj.TimeWindow(25), time="t", order="event_time"),
    "self": sj.JoinSpec(on=sj.Band("i64", "i64", below=1), window=(WINDOW, sj.CountWindow(9)), self_join=True),
    "self by time": sj.JoinSpec(
        on=sj.Band("i64", "i32", 1), window=sj.TimeWindow(25), time="t", order="arrival", self_join=True
    ),
}


def shown(table: pa.Table) -> str:
    """The rows as text: NaN equals nothing, not even itself."""
    return str(table.to_pydict())


def results(spec: sj.JoinSpec, algorithm: str, general: int, form: Callable[[pa.Table], Any]) -> list[pa.Table]:
    """The rows of each push, and the late rows; `general` pushes take the general way."""
    with opened(general, spec, algorithm) as join:
        tables = []
        for left, right in PUSHES:
            if spec.self_join and left is None:
                continue
            pair = [None if table is None else form(table) for table in (left, None if spec.self_join else right)]
            tables.append(join.push(*pair))
        figures = join.metrics()
        tables += [join.close(), join.late()]
        names = ("results", "expired", "late", "rejected", "window_left")
        return [*tables, pa.table({name: [figures[name]] for name in names})]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_compiled_steps_give_the_rows_of_the_general_way(spec: sj.JoinSpec) -> None:
    wanted = results(spec, "nested_loop", NEVER, lambda table: table)
    assert sum(table.num_rows for table in wanted) > 40
    for algorithm in ("nested_loop", "indexed", "sweep"):
        for general in (0, 2):
            for number, (table, other) in enumerate(
                zip(results(spec, algorithm, general, lambda table: table), wanted, strict=True)
            ):
                table.validate(full=True)
                assert shown(table) == shown(other), (algorithm, general, number)
                assert table.schema.equals(other.schema), (algorithm, general, number)


def test_a_record_batch_gives_the_rows_of_a_table() -> None:
    spec = SPECS["text and time"]
    wanted = results(spec, "indexed", 0, lambda table: table)
    batches = results(spec, "indexed", 0, lambda table: table.combine_chunks().to_batches()[0] if table else table)
    assert list(map(shown, batches)) == list(map(shown, wanted))


def test_a_push_with_too_many_rows_is_undone() -> None:
    spec = sj.JoinSpec(on=sj.Equi("i64"), window=sj.CountWindow(1000))
    with opened(0, spec, "indexed", max_rows=400) as join, sj.open(spec, "nested_loop") as twin:
        for other in (join, twin):
            other.push(rows(20, 1), rows(20, 2))
        with pytest.raises(sj.TooManyRowsError):
            join.push(rows(100, 3), rows(100, 4))
        assert shown(join.push(rows(9, 3), rows(9, 4))) == shown(twin.push(rows(9, 3), rows(9, 4)))
        pieces = list(join.push_iter(rows(100, 5), rows(100, 6), batch_rows=300))
        assert max(piece.num_rows for piece in pieces) <= 300
        assert shown(pa.concat_tables(pieces)) == shown(twin.push(rows(100, 5), rows(100, 6)))


FORMS_OF_TABLES: dict[str, Callable[[pa.Table], Any]] = {
    "tables": lambda table: table,
    "record batches": lambda table: table.to_batches()[0],
    "arrays": lambda table: {name: table[name].to_numpy() for name in table.column_names},
}


@pytest.mark.parametrize("form", FORMS_OF_TABLES.values(), ids=FORMS_OF_TABLES)
def test_small_pushes_take_the_short_way(form: Callable[[pa.Table], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = sj.JoinSpec(on=sj.Band("i8", "i32", 2), window=WINDOW)
    names = ["i8", "i32", "f64", "t", "id"]
    parts = [(rows(n, seed).select(names), rows(n, seed + 1).select(names)) for seed, n in enumerate((9, 9, 30, 1, 9))]
    with sj.open(spec, "nested_loop") as twin:
        wanted = [twin.push(left, right) for left, right in parts]
        wanted += [twin.push(parts[0][0]), twin.push(right=parts[0][1])]
    with opened(0, spec, "indexed") as join:
        tables = [join.push(*parts[0])]
        monkeypatch.setattr(join, "_whole", None)
        tables += [join.push(form(left), form(right)) for left, right in parts[1:]]
        tables += [join.push(form(parts[0][0])), join.push(right=form(parts[0][1]))]
        monkeypatch.undo()
        assert list(map(shown, tables)) == list(map(shown, wanted))
        # What the short way does not take goes the other way, and both go on with the same windows.
        left, right = rows(9, 7, nulls=True).select(names), cut(rows(9, 8).select(names))
        assert shown(join.push(left, right)) == shown(twin_rows(spec, [*parts, (parts[0])], left, right))
        with pytest.raises(sj.InputError, match="push needs"):
            join.push()
        join.close()
        with pytest.raises(sj.StateError, match="closed"):
            join.push(*parts[0])


def twin_rows(spec: sj.JoinSpec, before: list[tuple[pa.Table, pa.Table]], left: pa.Table, right: pa.Table) -> pa.Table:
    """The rows of one push after others, by the general way."""
    with opened(NEVER, spec, "nested_loop") as twin:
        for pair in before:
            twin.push(*pair)
        return twin.push(left, right)


def test_a_column_that_gets_a_type_later_ends_the_short_way() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=WINDOW)
    untyped = pa.table({"k": [1, 2], "note": pa.nulls(2)})
    typed = pa.table({"k": [1, 2], "note": ["a", "b"]})
    right = pa.table({"k": [2, 3]})
    with opened(0, spec, "indexed") as join, opened(NEVER, spec, "nested_loop") as twin:
        for table in (untyped, untyped, typed, typed):
            assert join.push(table, right).equals(twin.push(table, right))


# -- NumPy ----------------------------------------------------------------------------------------------------


def columns(n: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "k": rng.integers(0, 9, n),
        "small": rng.integers(0, 9, n).astype(np.uint8),
        "x": rng.random(n).astype(np.float32),
        "at": np.sort(rng.integers(0, 50, n)).astype("datetime64[us]"),
        "took": rng.integers(0, 9, n).astype("timedelta64[ns]"),
        "flag": rng.random(n) < 0.5,
        "text": np.array([f"t{i % 4}" for i in range(n)]),
    }


def structured(arrays: dict[str, Any]) -> Any:
    records = np.empty(len(arrays["k"]), [(name, array.dtype) for name, array in arrays.items()])
    for name, array in arrays.items():
        records[name] = array
    return records


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dict": dict,
    "other order": lambda arrays: dict(reversed(arrays.items())),
    "structured": structured,
    "recarray": lambda arrays: structured(arrays).view(np.recarray),
    "strided": lambda arrays: {name: np.repeat(array, 2)[::2] for name, array in arrays.items()},
    "big-endian": lambda arrays: {**arrays, "k": arrays["k"].astype(">i8"), "x": arrays["x"].astype(">f4")},
    "narrower": lambda arrays: {**arrays, "k": arrays["k"].astype(np.int16)},
    "objects": lambda arrays: {**arrays, "text": arrays["text"].astype(object)},
    "masked": lambda arrays: {**arrays, "k": np.ma.masked_array(arrays["k"], np.zeros(len(arrays["k"]), bool))},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_numpy_columns_give_the_rows_of_their_table(form: Callable[[dict[str, Any]], Any]) -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow("20 us"), time="at", order="arrival")
    with opened(1, spec, "indexed") as join, sj.open(spec, "nested_loop") as twin:
        for seed in range(4):
            left, right = columns(12, seed), columns(15, seed + 10)
            # The first push has no schema to fit, so types must be those of the tables.
            given = (left, right) if seed == 0 else (form(left), form(right))
            assert join.push(*given).equals(twin.push(pa.table(left), pa.table(right)))


def test_masked_values_and_nat_are_null() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=WINDOW)
    with sj.open(spec, "indexed") as join:
        join.push({"k": np.arange(3), "at": np.arange(3).astype("datetime64[ms]")}, {"k": np.arange(3)})
        masked = np.ma.masked_array([0, 1, 2], [False, True, False])
        at = np.array(["NaT", "2024-01-01", "2024-01-02"], "datetime64[ms]")
        assert join.push({"k": masked, "at": at})["at"].to_pylist() == [None, dt.datetime(2024, 1, 2)]


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_arrays_may_be_filled_again_after_a_push(order: str) -> None:
    """Nothing that a join keeps shares memory with the caller's arrays."""
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow("1 second"), time="at", order=order)
    arrays = columns(10, 0)
    with opened(0, spec, "indexed") as join, sj.open(spec, "indexed") as twin:
        tables = []
        for seed in range(5):
            for name, array in columns(10, seed).items():
                arrays[name][:] = array
            # Only the left side at first: the push waits until the right side's columns are known.
            side = {"left": arrays} if seed < 2 else {"right": arrays}
            copied = {name: pa.table({key: array.copy() for key, array in arrays.items()}) for name in side}
            rows_of_push = join.push_iter(**side) if seed == 3 else join.push(**side)
            for array in arrays.values():
                array[:] = array[:1]
            pieces = [rows_of_push] if isinstance(rows_of_push, pa.Table) else list(rows_of_push)
            tables.append((sum(piece.num_rows for piece in pieces), twin.push(**copied).num_rows))
        assert join.close().equals(twin.close())
    assert all(mine == other for mine, other in tables)
    assert sum(mine for mine, _ in tables) or order == "event_time"


K = np.arange(3)
REFUSED = {
    "ragged": ({"k": K, "v": np.arange(4)}, "not of one length: k has 3, v has 4"),
    "a list beside arrays": ({"k": K, "v": [1, 2, 3]}, "'v' of left is a list beside NumPy arrays"),
    "two dimensions": ({"k": np.zeros((3, 2))}, "'k' of left has 2 dimensions"),
    "a scalar array": ({"k": np.array(1)}, "'k' of left has 0 dimensions"),
    "a name that is no text": ({1: K}, "names of left's columns must be text, not 1"),
    "no names": (K, "int64 without names"),
    "nested fields": (np.zeros(2, [("k", "i8"), ("p", [("x", "i4")])]), "'p' of left is fields of its own"),
    "fields with a shape": (np.zeros(2, [("k", "i8", (2,))]), "'k' of left is an array of"),
    "one record": (np.zeros(1, [("k", "i8")])[0], "an array of records"),
    "records in a grid": (np.zeros((2, 2), [("k", "i8")]), "2 dimensions"),
    "complex": ({"k": K.astype(complex)}, "NumPy complex128, for which Arrow has no type"),
    "hours": ({"k": K.astype("datetime64[h]")}, "NumPy datetime64.h., which has no Arrow form"),
    "bytes without a type": ({"k": np.zeros(3, "V5")}, "NumPy .V5, which has no Arrow form"),
    "mixed objects": ({"k": np.array([1, "a", None], object)}, "'k' of left is NumPy object"),
    "a row": ({"k": 1}, "may be a row or columns"),
    "a value beside lists": ({"k": [1, 2], "v": 3}, "may be a row or columns"),
    "ragged lists": ({"k": [1, 2], "v": [3]}, "not of one length: k has 2, v has 1"),
    "lists of many types": ({"k": [1, "a"]}, "'k' in left's rows are not of one type"),
}


@pytest.mark.parametrize(("data", "says"), REFUSED.values(), ids=REFUSED)
def test_numpy_data_without_columns_is_refused(data: Any, says: str) -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=WINDOW)
    with sj.open(spec, "indexed") as join:
        with pytest.raises(sj.InputError, match=says):
            join.push(left=data)
        join.push({"k": K}, {"k": K})
        with pytest.raises(sj.InputError):
            join.push(left=data)
        assert join.push(left={"k": K}).num_rows == 3


# -- one index, and the right algorithm -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "index"),
    [
        ("indexed", "btree"), ("sweep", None), ("nested_loop", None),
        ("scalejoin", None), ("scalejoin", "btree"),
    ],
)  # fmt: skip
def test_a_self_join_keeps_the_words_of_a_tuple_once(algorithm: str, index: str | None) -> None:
    table = pa.table({"k": np.arange(5000), "same": np.arange(5000)})
    held = []
    for other in ("k", "same"):
        spec = sj.JoinSpec(on=sj.Band("k", other, 1), window=sj.CountWindow(10_000), self_join=True)
        with sj.open(spec, algorithm, index=index) as join:
            join.push(table)
            stored = sum(store.nbytes for store in join._operator.stores)
            held.append(join.metrics()["bytes"] - stored)
    assert held[0] * 2 == held[1]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_a_self_join_finds_tuples_that_can_match_in_one_role_only(order: list[int]) -> None:
    spec = sj.JoinSpec(sj.Equi("k") & sj.Band("a", "a", 5) & sj.Band("c", "d", 5), WINDOW, self_join=True)
    table = pa.table({"k": [1, 1], "a": [1, 2], "c": pa.array([1, None], pa.int64()), "d": pa.array([None, 1])})
    for request in algorithms(bind(spec, table.schema)):
        with sj.open(spec, request.algorithm, index=request.index) as join:
            rows_of_push = join.push(table.take(pa.array(order)))
            assert rows_of_push["a_left"].to_pylist() == [1], request


def test_auto_follows_the_size_of_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model alone: what pushes took would depend on the machine's load."""
    monkeypatch.setattr(auto, "is_compiled", lambda _: True)
    monkeypatch.setattr(MeasuredCosts, "add", lambda *_: None)
    spec = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(3000))
    rng = np.random.default_rng(1)
    with sj.open(spec) as join, sj.open(spec, "nested_loop") as twin:

        def push(n: int) -> None:
            left, right = ({"k": rng.integers(0, 5000, n)} for _ in range(2))
            assert join.push(left, right).equals(twin.push(left, right))

        seen = []
        for n, times in ((20_000, 1), (1, 20), (20_000, 3)):
            for _ in range(times):
                push(n)
            seen.append(join.explain().split("algorithm   ")[1].partition(":")[0])
        assert [name.split()[0] for name in seen] == ["sweep", "indexed", "sweep"]


@pytest.mark.parametrize(("algorithm", "compiled"), [("sweep", [True, False]), ("indexed", [True, True])])
def test_larger_pushes_take_the_compiled_steps_over_an_index_alone(
    algorithm: str, compiled: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "_LARGEST_COMPILED", 8)
    seen: list[bool] = []
    step, step_compiled = operator.Operator.step, operator.Operator._step_compiled

    def noted_step(*arguments: Any) -> Any:
        seen.append(False)
        return step(*arguments)

    def noted_compiled(*arguments: Any) -> Any:
        seen[-1] = True
        return step_compiled(*arguments)

    monkeypatch.setattr(operator.Operator, "step", noted_step)
    monkeypatch.setattr(operator.Operator, "_step_compiled", noted_compiled)
    spec = sj.JoinSpec(on=sj.Band("x", "x", 1), window=sj.TimeWindow(100), time="t", order="arrival")
    with opened(0, spec, algorithm, workers=1) as join:
        for begin, n in ((0, 4), (4, 5)):
            table = pa.table({"t": list(range(begin, begin + n)), "x": list(range(begin, begin + n))})
            join.push(table, table)
    assert seen == compiled
