"""`sj.join`: two complete tables against `sj.open`, pandas, Polars and DuckDB, in every kind of frame; hostile ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any, Literal

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import streamjoin as sj
from streamjoin.joins.engine import frames
from streamjoin.windows.encoding import Texts
from tests.seeds import FRESH, crossed

N = 300
HOWS = ("inner", "left", "right", "full", "semi", "anti")
Row = tuple[Any, ...]


def tables(seed: int, *, untimed: bool = True) -> tuple[pa.Table, pa.Table]:
    """Two tables in any order, with NULLs among keys and, if `untimed`, times."""
    rng = np.random.default_rng(seed + FRESH)
    made = []
    for payload in ("a", "b"):
        keys = rng.choice(np.array(["x", "y", "z", "", "ü", None], object), N)
        times = pa.array(rng.integers(0, 200, N), mask=rng.random(N) < 0.1 * untimed)
        made.append(pa.table({"k": pa.array(keys, pa.string()), "t": times, payload: np.arange(N), "v": rng.random(N)}))
    return made[0], made[1]


def rows(table: Any) -> list[Row]:
    """The rows of any frame, NULL and NaN as None."""
    if isinstance(table, pd.DataFrame):
        table = table.astype(object).where(table.notna(), None)
        return [tuple(row) for row in table.itertuples(index=False)]
    table = table.to_arrow() if isinstance(table, pl.DataFrame) else table
    return [tuple(row.values()) for row in table.to_pylist()]


def by_open(left: pa.Table, right: pa.Table, **spec: Any) -> list[Row]:
    """What a join of streams gives for both tables, sorted by time, and then the rows that have none."""
    spec = {"window": sj.CountWindow(N), "on": "k"} | spec
    time, how = spec.get("time"), spec.get("how", "inner")
    sides, untimed = [left, right], [left[:0], right[:0]]
    if time is not None:
        untimed = [table.filter(pc.is_null(table[time])) for table in sides]
        sides = [table.filter(pc.is_valid(table[time])).sort_by(time) for table in sides]
    with sj.open(sj.JoinSpec(**spec).in_order()) as join:
        parts = [join.push(*sides), join.close()]
    found = [row for part in parts for row in rows(part)]
    names = parts[0].column_names
    for side, table in zip(("left", "right"), untimed, strict=True):
        if how in {"left": ("left", "full", "anti"), "right": ("right", "full")}[side]:
            cells = [{f"{name}_{side}": value for name, value in row.items()} | row for row in table.to_pylist()]
            found += [tuple(row.get(name) for name in names) for row in cells]
    return found


def in_pandas(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


AS_OF = [("backward", None), ("backward", 20), ("forward", 20), ("nearest", 20)]


@pytest.mark.parametrize(
    ("how", "spec"),
    crossed(
        [(how,) for how in HOWS],
        [
            {},
            {"time": "t"},
            {"time": "t", "window": sj.TimeWindow(5)},
            {"time": "t", "window": (sj.CountWindow(3), sj.TimeWindow(5))},
            {"on": "l.k = r.k AND l.v < r.v", "time": "t", "window": sj.TimeWindow(9)},
            {"on": sj.Band("v", "v", 0.001)},
        ],
    ),
)
def test_rows_and_order_are_those_of_open(how: str, spec: dict[str, Any]) -> None:
    left, right = tables(1)
    expected = by_open(left, right, how=how, **spec)
    assert rows(sj.join(left, right, **{"on": "k"} | spec, how=how)) == expected
    assert expected
    for frame in (pl.DataFrame, in_pandas):
        assert rows(sj.join(frame(left), frame(right), **{"on": "k"} | spec, how=how)) == expected


@pytest.mark.parametrize(("direction", "tolerance", "how"), crossed(AS_OF, ["left", "inner", "anti"]))
@pytest.mark.parametrize("exact", [True, False])
def test_as_of_joins_are_those_of_open(direction: Any, tolerance: int | None, how: str, exact: bool) -> None:
    left, right = tables(2)
    match = sj.AsOf(direction, tolerance, exact)
    expected = by_open(left, right, how=how, match=match, time="t", window=None)
    assert expected
    for frame in (lambda table: table, pl.DataFrame, in_pandas):
        assert rows(sj.join(frame(left), frame(right), on="k", how=how, match=match, time="t")) == expected


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
@pytest.mark.parametrize("seed", range(2))
def test_as_of_joins_without_a_tolerance_are_those_of_pandas_and_polars(direction: Any, seed: int) -> None:
    left, right = tables(seed, untimed=False)
    # pandas takes NULL for a value, and needs sorted input; ties are broken alike.
    left, right = (table.filter(pc.is_valid(table["k"])).sort_by("t") for table in (left, right))
    one, other = left.to_pandas(), right.to_pandas()
    wanted = pd.merge_asof(one, other, on="t", by="k", direction=direction)["b"]
    found = sj.join(one, other, on="k", time="t", match=direction, how="left")["b"]
    pd.testing.assert_series_equal(found, wanted)
    found = sj.join(pl.DataFrame(left), pl.DataFrame(right), on="k", time="t", match=direction, how="left")
    if direction != "nearest":
        polars = pl.DataFrame(left).join_asof(
            pl.DataFrame(right), on="t", by="k", strategy=direction, check_sortedness=False
        )
        assert found["b"].to_list() == polars["b"].to_list()


def test_a_backward_as_of_join_is_that_of_duckdb() -> None:
    left, right = tables(3)
    # DuckDB defines no order among equal times.
    right = right.set_column(1, "t", pc.add(pc.multiply(pa.array(np.random.default_rng(FRESH).permutation(N)), 2), 1))
    with duckdb.connect() as connection:
        connection.register("l", left).register("r", right)
        wanted = connection.execute("SELECT a, b FROM l ASOF LEFT JOIN r ON l.k = r.k AND l.t >= r.t").fetchall()
    found = sj.join(left, right, on="k", time="t", match="backward", how="left", columns=["a", "b"])
    assert sorted(row[:2] for row in rows(found)) == sorted(wanted)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_joins_by_key_are_those_of_pandas(how: str) -> None:
    left, right = (t.filter(pc.is_valid(t["k"])).to_pandas() for t in tables(4, untimed=False))
    right["k"] = right["k"].replace("z", "w")
    wanted = pd.merge(left, right, on="k", how="outer" if how == "full" else how, suffixes=("_left", "_right"))
    found = sj.join(left, right, on="k", how=how)
    assert list(found.columns) == list(wanted.columns)
    assert found.dtypes.to_dict() == wanted.dtypes.to_dict()
    keys = ["a", "b"]
    pd.testing.assert_frame_equal(
        found.sort_values(keys, ignore_index=True), wanted.sort_values(keys, ignore_index=True)
    )


BIG, NAN, INFINITY = 2**63 - 1, float("nan"), float("inf")
MOMENT = dt.datetime(2024, 5, 1, 12)
KEYS: dict[str, tuple[pa.Array, pa.Array]] = {
    "dense": (pa.array([5, 3, None, 5, 9]), pa.array([9, 5, 4, None, 5, 77])),
    "sparse": (pa.array([5, 10**15, None, 5, -7]), pa.array([-7, 10**15, 4, None, 5])),
    "ends": (pa.array([BIG, -BIG - 1, 0, None]), pa.array([-BIG - 1, BIG, BIG, 1])),
    "narrow": (pa.array([300, -1, 7, None, 255]), pa.array([7, 255, None, 7], pa.uint8())),
    "unsigned": (pa.array([-1, 7, 0]), pa.array([2**64 - 1, 7, 2**63], pa.uint64())),
    "booleans": (pa.array([True, None, False]), pa.array([False, True, True])),
    "floats": (pa.array([0.0, NAN, None, 0.1, INFINITY]), pa.array([-0.0, NAN, 0.1, INFINITY])),
    "float widths": (pa.array([0.1, 0.5, 3.0]), pa.array([0.1, 0.5, 3.0], pa.float32())),
    "float and int": (pa.array([3.0, 2.5, NAN]), pa.array([3, 2, None])),
    "units": (pa.array([MOMENT, None], pa.timestamp("s")), pa.array([MOMENT, MOMENT], pa.timestamp("ns"))),
    "dates": (pa.array([MOMENT.date(), None]), pa.array([dt.datetime(2024, 5, 1), MOMENT])),
    "decimals": (pa.array([Decimal("1.50"), None, Decimal("2.00")]), pa.array([2, 1, None])),
    "wide decimals": (pa.array([Decimal(10**30), None]), pa.array([Decimal(10**30), Decimal(10**30 + 1)])),
    "texts": (pa.array(["a", "", None, "bb", "a"]), pa.array(["bb", "", None, "a", "c"], pa.large_string())),
    "dictionaries": (
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, None, 2]), pa.array(["a", None, "b"])),
        pa.array(["b", "a", None, "a"]).dictionary_encode(),
    ),
    "no texts": (pa.array([None, None], pa.string()).dictionary_encode(), pa.array(["a", None])),
    "views": (pa.array(["a", None, "c"], pa.string_view()), pa.array(["c", "c", None])),
    "binaries": (pa.array([b"ab", None, b"c"]), pa.array([b"ab", b"zz"], pa.binary(2))),
    "uuids": (pa.array([bytes(16), None], pa.binary(16)).cast(pa.uuid()),) * 2,
    "nulls": (pa.nulls(2), pa.array(["a", None])),
    "empty": (pa.array([], pa.int64()), pa.array([1, None])),
}  # fmt: skip


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("keys", KEYS)
def test_keys_of_every_type_join_as_streams_do(keys: str, how: str) -> None:
    (one, other), on = KEYS[keys], sj.Equi("k", "j")
    left, right = pa.table({"k": one, "a": range(len(one))}), pa.table({"j": other, "b": range(len(other))})
    # As texts, because NaN is not equal to itself, and -0.0 is to 0.0.
    expected = str(by_open(left, right, on=on, how=how))
    assert str(rows(sj.join(left, right, on=on, how=how))) == expected
    if one.type == other.type:
        # The key appears once.
        named = right.rename_columns(["k", "b"])
        assert str(rows(sj.join(left, named, on="k", how=how))) == str(by_open(left, named, on="k", how=how))
    if not isinstance(one.type, pa.BaseExtensionType):
        assert str(rows(sj.join(pl.DataFrame(left), pl.DataFrame(right), on=on, how=how))) == expected


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("columns", [("i", "j"), ("i", "wide"), ("s", "i"), ("wide", "s", "f")])
def test_several_keys_join_as_streams_do(columns: tuple[str, ...], how: str) -> None:
    rng, sides = np.random.default_rng(9 + FRESH), []
    for payload in ("a", "b"):
        small = rng.integers(-3, 4, (4, N))
        masked = {name: pa.array(v, mask=rng.random(N) < 0.1) for name, v in zip("ij", small[:2], strict=True)}
        wide, floats = pa.array(small[2] * 10**17), pa.array(small[3] / 3)
        texts = pa.array([f"text {n}" for n in small[3]])
        sides.append(pa.table({**masked, "wide": wide, "f": floats, "s": texts, payload: np.arange(N)}))
    left, right = (side.select([*columns, side.column_names[-1]]) for side in sides)
    right = right.slice(0, N // 8)
    expected = by_open(left, right, on=list(columns), how=how)
    assert expected
    assert rows(sj.join(left, right, on=list(columns), how=how)) == expected


@pytest.mark.parametrize("how", ["inner", "full"])
def test_no_hash_decides_which_texts_are_equal(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = pa.table({"k": ["a", "b", "c", "a"]}), pa.table({"k": ["c", "d", "a"], "x": [1, 2, 3]})
    for texts in (left, right):
        expected = by_open(left, texts, how=how)
        with monkeypatch.context() as patch:
            patch.setattr(Texts, "hashed", lambda own: np.zeros(own.bounds.size - 1, np.int64))
            assert rows(sj.join(left, texts, on="k", how=how)) == expected


@pytest.mark.parametrize(("how", "n"), [("inner", 5), ("semi", 3), ("anti", 2), ("left", 7), ("right", 7), ("full", 9)])
def test_rows_are_counted_before_they_are_made(how: str, n: int) -> None:
    left, right = pa.table({"k": [1, 1, 2, 3, None]}), pa.table({"k": [1, 2, 1, 9, None]})
    assert len(sj.join(left, right, on="k", how=how, max_rows=n)) == n
    with pytest.raises(sj.TooManyRowsError, match=f"more than max_rows={n - 1} rows"):
        sj.join(left, right, on="k", how=how, max_rows=n - 1)


TRADES = pa.table({"sym": ["A", "B", "A"], "t": [5, 6, 30], "qty": [100, 50, 7]})
QUOTES = pa.table({"sym": ["A", "A"], "t": [4, 29], "bid": [10.5, 10.25]})
RESULT = [("A", 5, 100, 4, 10.5, 5), ("B", 6, 50, None, None, 6), ("A", 30, 7, 29, 10.25, 30)]
AS_OF_JOIN: dict[str, Any] = {"on": "sym", "time": "t", "match": "backward", "how": "left"}


def columns(table: pa.Table) -> dict[str, Any]:
    return {name: np.array(table[name].to_numpy()) for name in table.column_names}


KINDS: dict[str, tuple[Callable[[pa.Table], Any], type, Callable[[Any], list[Row]]]] = {
    "Table": (lambda t: t, pa.Table, rows),
    "RecordBatch": (lambda t: t.to_batches()[0], pa.RecordBatch, rows),
    "reader": (lambda t: t.to_reader(), pa.Table, rows),
    "pandas": (lambda t: t.to_pandas(), pd.DataFrame, rows),
    "DataFrame": (pl.DataFrame, pl.DataFrame, rows),
    "LazyFrame": (lambda t: pl.DataFrame(t).lazy(), pl.LazyFrame, lambda found: rows(found.collect())),
    "DuckDB": (lambda t: duckdb.from_arrow(t), pa.Table, rows),
    "dicts": (lambda t: t.to_pylist(), list, lambda found: [tuple(row.values()) for row in found]),
    "arrays": (columns, dict, lambda found: list(zip(*(array.tolist() for array in found.values()), strict=True))),
    "records": (lambda t: t.to_pandas().to_records(index=False), np.ndarray, lambda found: found.tolist()),
}


@pytest.mark.parametrize(("kind", "other"), [*((kind, kind) for kind in KINDS), *pairwise([*KINDS, *list(KINDS)[:2]])])
def test_the_result_is_what_the_left_table_is(kind: str, other: str) -> None:
    make, type_, read = KINDS[kind]
    found = sj.join(make(TRADES), KINDS[other][0](QUOTES), **AS_OF_JOIN)
    assert isinstance(found, type_)
    assert [tuple(row) for row in read(found)] == RESULT
    # A join that runs as one of streams does.
    found = read(sj.join(make(TRADES), KINDS[other][0](QUOTES), on="sym", how="full"))
    assert [(row[0], row[2], row[4]) for row in found] == [
        ("A", 100, 10.5), ("A", 7, 10.5), ("A", 100, 10.25), ("A", 7, 10.25), ("B", 50, None)
    ]  # fmt: skip


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    "make", [lambda t: t, lambda t: t.to_pandas(), pl.DataFrame], ids=["arrow", "pandas", "polars"]
)
def test_empty_tables(make: Callable[[pa.Table], Any], how: str) -> None:
    """As an empty pandas frame has them, the columns have no types in one of the cases."""
    for left, right in ((TRADES[:0], QUOTES), (TRADES, QUOTES[:0]), (TRADES[:0], QUOTES[:0])):
        kept = {"left": left, "anti": left, "right": right, "full": left if left.num_rows else right}.get(how, left[:0])
        for spec in ({}, {"time": "t", "window": sj.TimeWindow(9)}):
            assert len(sj.join(make(left), make(right), on="sym", how=how, **spec)) == kept.num_rows
        if how in ("inner", "left", "anti"):
            found = sj.join(make(left), make(right), on="sym", how=how, time="t", match="backward")
            assert len(found) == kept.num_rows
            assert len(found.columns) == (3 if how == "anti" else 6)


def test_pandas_keeps_its_types_and_gives_a_new_index() -> None:
    left = pd.DataFrame(
        {
            "k": pd.Categorical(["b", "a", "b"], categories=["b", "a", "c"]),
            "at": pd.to_datetime(["2024-05-01 12:00", "2024-05-01 12:02", "2024-05-01 12:01"]).tz_localize(
                "Europe/Rome"
            ),
            "n": pd.array([1, None, 3], "Int64"),
            "c": [1j, 2j, 3j],
            "mixed": ["one", 2, None],
            "text": pd.array(["x", None, "z"], "string"),
        },
        index=[7, 7, 9],
    )
    right = pd.DataFrame(
        {"k": ["a", "b"], "at": pd.to_datetime(["2024-05-01 09:00", "2024-05-01 09:30"]).tz_localize("UTC")}
    )
    right = right.assign(i=[1, 2], flag=[True, False], kind=pd.Categorical(["p", "q"]), b=np.array([1, 2], np.int8))
    found = sj.join(left, right, on="k", time="at", match="backward", how="left")
    assert found.index.tolist() == [0, 1, 2]
    for name in ("k", "n", "c", "mixed", "text"):
        assert found[name].dtype == left[name].dtype
    assert found["at"].dtype == found["at_left"].dtype == left["at"].dtype
    assert found["k"].tolist() == ["b", "b", "a"]
    assert found["mixed"].tolist() == ["one", None, 2]
    assert found["i"].tolist() == [2, 2, 1]
    assert found.dtypes[["i", "flag", "b"]].astype(str).tolist() == ["int64", "bool", "int8"]
    assert found["kind"].dtype == right["kind"].dtype
    # NULL in columns of NumPy types, as by pandas.merge.
    lacking = sj.join(left, right[:1], on="k", time="at", match="backward", how="left")
    assert lacking.dtypes[["i", "flag", "b", "kind"]].astype(str).tolist() == [
        "float64",
        "object",
        "float64",
        "category",
    ]
    assert lacking["at_right"].isna().tolist() == [True, True, False]


@pytest.mark.parametrize(
    "spec", [AS_OF_JOIN, {"on": "sym"}, {"on": "sym", "how": "full"}, {"on": "sym", "how": "semi"}]
)
def test_a_result_shares_no_memory_with_what_was_given(spec: dict[str, Any]) -> None:
    left, right = TRADES.to_pandas(), QUOTES.to_pandas()
    left["n"] = pd.array([1, 2, 3], "Int64")
    found = sj.join(left, right, **spec)
    before = found.copy(deep=True)
    for frame in (left, right):
        for name in frame.columns:
            frame.loc[:, name] = frame[name].iloc[0]
    pd.testing.assert_frame_equal(found, before)
    for name in found.columns:
        found.loc[0, name] = found.loc[0, name]
    arrays = columns(TRADES)
    out = sj.join(arrays, columns(QUOTES), **spec)
    arrays["qty"][:] = 0
    assert out["qty"].tolist()[0] == 100
    out["qty"][0] = 3


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        (["a", "b", None], ["b", "c", None], [(1, 0)]),
        (["a", "".join(["b", "c"]), float("nan")], ["".join(["b", "c"]), "a", pd.NA], [(0, 1), (1, 0)]),
        ([Text("a"), "b"], ["a", Text("b")], [(0, 0), (1, 1)]),
        ([None, None], ["a", None], []),
        ([b"a", b"b"], [b"b", None], [(1, 0)]),
        ([dt.date(2024, 5, 1), None], [dt.date(2024, 5, 1), None], [(0, 0)]),
        ([f"{n}" for n in range(9)], [f"{n}" for n in range(9)][::-1], [(n, 8 - n) for n in range(9)]),
    ],
)
@pytest.mark.parametrize("few", [1 << 15, 4])
def test_python_objects_as_keys(
    left: list[Any], right: list[Any], pairs: list[Row], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_FEW_TEXTS", few)
    one = pd.DataFrame({"k": pd.Series(left, dtype=object), "t": 5, "x": np.arange(len(left))})
    other = pd.DataFrame({"k": pd.Series(right, dtype=object), "t": 5, "y": np.arange(len(right))})
    for spec in ({}, {"time": "t", "match": "backward"}):
        found = sj.join(one, other, on="k", **spec)
        assert sorted(zip(found["x"], found["y"], strict=True)) == pairs


def test_an_object_column_as_a_view_of_a_wide_block() -> None:
    wide = pd.DataFrame(np.array([["a", "p"], ["b", "q"], ["a", "p"]], object)[::-1], columns=["k", "v"]).assign(t=1)
    found = sj.join(wide, pd.DataFrame({"k": ["a"], "t": [0], "w": [1]}), on="k", time="t", match="backward")
    assert found["v"].tolist() == ["p", "p"]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"match": "backward", "time": None}, sj.SpecError, "needs a time column"),
        ({"match": "sideways"}, sj.SpecError, "'backward', 'forward' or 'nearest'"),
        ({"match": 5, "time": "t"}, sj.SpecError, "match= takes"),
        ({"on": None}, sj.SpecError, "on= takes"),
        ({"on": "symbol"}, sj.SchemaError, "the left side has no column 'symbol'; did you mean 'sym'?"),
        ({"on": sj.Equi("sym", "bud")}, sj.SchemaError, "the right side has no column 'bud'; did you mean 'bid'?"),
        ({"on": sj.Equi("sym", "bid")}, sj.SchemaError, "sym"),
        ({"columns": ["qti"]}, sj.SchemaError, "did you mean 'qty'?"),
        ({"columns": "qty"}, sj.SpecError, "list of names"),
        ({"time": "bid"}, sj.SchemaError, "the left side has no column 'bid'"),
        ({"time": ("t", "bid"), "window": "5 s"}, sj.SchemaError, "time column 'bid'"),
        ({"time": "t", "window": "5 s"}, sj.SchemaError, "does not fit the time column"),
        ({"window": 5, "time": "t"}, sj.SpecError, "two meanings"),
        ({"match": "backward", "time": "t", "window": "5 rows"}, sj.SpecError, "has no window="),
        ({"match": "backward", "time": "t", "how": "full"}, sj.SpecError, "'inner', 'left' or 'anti'"),
        ({"suffixes": ("", "")}, sj.SpecError, "suffixes="),
        ({"algorithm": "swep"}, sj.SpecError, "is not known"),
        ({"workers": 0}, sj.SpecError, "workers="),
        ({"max_rows": 0}, sj.SpecError, "max_rows="),
        ({"max_rows": 3}, sj.TooManyRowsError, "more than max_rows=3 rows"),
        ({"max_rows": 2, "match": "backward", "time": "t", "how": "left"}, sj.TooManyRowsError, "max_rows=2"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    for make in (lambda table: table, pl.DataFrame, lambda table: table.to_pandas()):
        with pytest.raises(error, match=says.replace("?", r"\?")):
            sj.join(make(TRADES), make(QUOTES), **{"on": "sym"} | arguments)


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (pd.Series([1]), "one column"),
        (5, "left must be"),
        (None, "left must be"),
        ({"sym": 1}, "may be a row or columns"),
        (TRADES.to_pandas().set_index("sym"), "is the index of the left frame"),
        (TRADES.to_pandas().rename(columns={"qty": "sym"}), "more than one column 'sym'"),
        (TRADES.to_pandas().assign(sym=pd.Series(["a", "b\ud800", "c"], dtype=object)), "half of a surrogate pair"),
        (TRADES.to_pandas().assign(sym=["a", 5, "c"]), "Give it values of one type"),
    ],
)
def test_tables_that_are_refused(left: Any, says: str) -> None:
    with pytest.raises((sj.InputError, sj.SchemaError), match=says):
        sj.join(left, QUOTES, on="sym")


def test_lists_by_column_are_tables_and_come_back_as_that() -> None:
    left, right = TRADES.to_pydict(), QUOTES.to_pydict()
    found = sj.join(left, {name: tuple(values) for name, values in right.items()}, on="sym")
    assert found == sj.join(TRADES, QUOTES, on="sym").to_pydict()


@pytest.mark.parametrize(
    ("how", "meant"),
    [
        ("outer", "'full'"),
        ("left_outer", "'left'"),
        ("LEFT ANTI", "'anti'"),
        ("leftsemi", "'semi'"),
        ("asof", "match="),
    ],
)
def test_other_names_of_a_join_type(how: str, meant: str) -> None:
    with pytest.raises(sj.SpecError, match=f"here it is {meant}"):
        sj.join(TRADES, QUOTES, on="sym", how=how)


@pytest.mark.parametrize("how", ["left", "right", "full"])
def test_an_empty_pandas_frame_has_keys_of_any_type(how: Literal["left", "right", "full"]) -> None:
    """Without values pandas makes them floats."""
    one, none = pd.DataFrame({"k": ["a"], "x": [1]}), pd.DataFrame({"k": [], "y": []})
    for left, right in ((one, none), (none.rename(columns={"y": "z"}), one)):
        wanted = [] if how == ("right" if left is one else "left") else ["a"]
        assert sj.join(left, right, "k", how=how)["k"].tolist() == wanted
        with sj.open(sj.JoinSpec(on="k", window=sj.CountWindow(5), how=how)) as join:
            rows = [join.push(left, right), join.close()]
        assert [key for table in rows if table.num_rows for key in table["k"].to_pylist()] == wanted


@pytest.mark.parametrize("make", [pl.from_arrow, lambda table: table.to_pandas(), lambda table: table])
def test_two_columns_of_one_name_are_refused(make: Callable[[pa.Table], Any]) -> None:
    twice = pa.table([["a"], ["b"]], names=["sym", "sym"])
    with pytest.raises(sj.InputError, match="the right side has more than one column 'sym'"):
        sj.join(make(TRADES), twice, "sym")
    with pytest.raises(sj.InputError, match="the left side has more than one column 'sym'"):
        sj.join(twice, make(TRADES), "sym")


def test_names_of_columns() -> None:
    left = pa.table({"left row": [1, 2], "k": [1, 2], "K2": [0, 0], "v": [5, 6]})
    right = pa.table({"right row": [1, 2], "k": [2, 1], "k2": [0, 0], "v": [7, 8]})
    for make in (lambda table: table, pl.DataFrame, lambda table: table.to_pandas()):
        found = sj.join(make(left), make(right), on="k")
        assert list(getattr(found, "column_names", found.columns)) == [
            "left row", "k", "K2_left", "v_left", "right row", "k2_right", "v_right"
        ]  # fmt: skip
        found = sj.join(make(left), make(right), on="k", columns=["v_right", "v_left"], suffixes=("_left", "_right"))
        assert rows(found) == [(6, 7), (5, 8)]
        assert rows(sj.join(make(left), make(right), on="k", both_keys=True, columns=["k_right"])) == [(2,), (1,)]
    numbered = pd.DataFrame({0: [1, 2], 1: [3, 4]})
    assert rows(sj.join(numbered, numbered, on=sj.Equi("0"))) == [(1, 3, 3), (2, 4, 4)]


def test_rows_without_a_time_come_last_where_they_are_kept() -> None:
    left = pl.DataFrame({"k": ["a", "b", "a"], "t": [None, 4, 3], "x": [1, 2, 3]})
    right = pl.DataFrame({"k": ["a", "c"], "t": [2, None], "y": [1, 2]})
    wanted = {
        "inner": [(3, 1)],
        "left": [(3, 1), (2, None), (1, None)],
        "right": [(3, 1), (None, 2)],
        "full": [(3, 1), (2, None), (1, None), (None, 2)],
    }
    for how, pairs in wanted.items():
        found = sj.join(left, right, on="k", time="t", window=sj.TimeWindow(9), how=how)
        assert found.select("x", "y").rows() == pairs
        assert found["t"].to_list() == [3, 4, None, None][: len(pairs)] if how != "right" else [3, None]
    assert sj.join(left, right, on="k", time="t", window=sj.TimeWindow(9), how="anti")["x"].to_list() == [2, 1]
    assert sj.join(left, right, on="k", time="t", match="backward", how="anti")["x"].to_list() == [2, 1]


def test_times_of_two_units_and_zones() -> None:
    moments = [dt.datetime(2024, 5, 1, 12, second=s, tzinfo=dt.UTC) for s in (5, 1, 9)]
    left = pa.table({"t": pa.array(moments, pa.timestamp("s", "UTC")), "x": [1, 2, 3]})
    right = pa.table({"t": pa.array(moments, pa.timestamp("ns", "Europe/Rome")), "y": [1, 2, 3]})
    found = sj.join(left, right, time="t", match="backward", how="left")
    assert found.schema.field("t").type == pa.timestamp("ns", "Europe/Rome")
    assert list(zip(found["x"].to_pylist(), found["y"].to_pylist(), strict=True)) == [(2, 2), (1, 1), (3, 3)]
    frame = sj.join(left.to_pandas(), right.to_pandas(), time="t", match="backward", how="left")
    assert frame["y"].tolist() == [2, 1, 3]
    for time in ("date32", "date64"):
        dated = [table.set_column(0, "t", table["t"].cast(time)) for table in (left, right)]
        assert sj.join(*dated, time="t", match=sj.AsOf("nearest"), how="left").num_rows == 3


def test_columns_of_every_type_beside_missing_rows() -> None:
    right = pa.table(
        {
            "k": [1, 2],
            "uuid": pa.array([bytes(16), None], pa.binary(16)).cast(pa.uuid()),
            "struct": [{"a": 1}, {"a": 2}],
            "list": [[1], [2, 3]],
            "code": pa.array(["x", "y"]).dictionary_encode(),
            "view": pa.array(["x", "y"], pa.string_view()),
            "none": pa.nulls(2),
        }
    )
    left = pa.table({"k": [1, 3]})
    for table in (right, right[:0]):
        found = sj.join(left, table, on="k", how="left")
        for name in right.column_names[1:]:
            wanted = [right[name][0].as_py() if table.num_rows else None, None]
            assert found[name].to_pylist() == wanted


@pytest.mark.parametrize("how", ["right", "full"])
@pytest.mark.parametrize("keys", [[None, None], [1, 2]])
def test_a_key_of_nulls_alone(keys: list[int | None], how: Literal["right", "full"]) -> None:
    """Arrow gives it no type of its own; the rows are those of `open`."""
    left, right = pa.table({"k": pa.nulls(2), "v": [1, 2]}), pa.table({"k": pa.array(keys), "w": [3, 4]})
    with sj.open(sj.JoinSpec(on="k", window="2 rows", how=how)) as join:
        join.push(left, right)
        wanted = join.close()
    found = sj.join(left, right, on="k", how=how)
    assert found.schema == wanted.schema
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, wanted.to_pylist()))
    frame = sj.join(pl.DataFrame(left), pl.DataFrame(right), on="k", how=how)
    assert frame.rows() == [tuple(row.values()) for row in found.to_pylist()]


def test_lazy_frames_of_either_side_are_collected() -> None:
    lazy = pl.DataFrame(QUOTES).lazy()
    for left in (TRADES, TRADES.to_pandas(), pl.DataFrame(TRADES)):
        assert rows(sj.join(left, lazy, **AS_OF_JOIN)) == RESULT


def test_every_pair_of_rows() -> None:
    one, other = pl.DataFrame({"x": [1, 2]}), pl.DataFrame({"y": [5, 6]})
    assert sj.join(one, other, on="TRUE").rows() == [(1, 5), (2, 5), (1, 6), (2, 6)]


def test_an_algorithm_by_name() -> None:
    for algorithm in ("sweep", "nested_loop", "indexed"):
        assert len(rows(sj.join(TRADES, QUOTES, on="sym", algorithm=algorithm))) == 4
    assert rows(sj.join(TRADES, QUOTES, **AS_OF_JOIN, algorithm="sweep")) == RESULT
