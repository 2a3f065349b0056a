"""Results keep what Arrow's own round trip through pandas keeps: types with NULL, zones, the metadata of fields."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import streamjoin as sj
from tests.joins.opened import opened

BIG = 2**53 + 1
TYPES = {
    "Int64": [BIG, None, 3],
    "UInt8": [1, None, 255],
    "boolean": [True, None, False],
    "string": ["a", None, "c"],
    "Float32": [0.5, None, 1.5],
    "int64[pyarrow]": [BIG, None, 3],
    "bool[pyarrow]": [True, None, False],
    "timestamp[us, tz=UTC][pyarrow]": [
        pd.Timestamp("2024-01-01", tz="UTC"),
        None,
        pd.Timestamp("2024-01-02", tz="UTC"),
    ],
    "period[D]": [pd.Period("2024-01-01", "D"), None, pd.Period("2024-01-03", "D")],
    "interval[float64, right]": [pd.Interval(0.0, 1.0), None, pd.Interval(1.0, 2.0)],
    "datetime64[ns, Europe/Paris]": [pd.Timestamp("2024-01-01", tz="Europe/Paris"), None, None],
}


def frame(prefix: str) -> pd.DataFrame:
    """A frame with a column of each type that has a NULL."""
    columns = {"k": np.arange(3), "t": pd.array([10, 20, 30], "Int64")}
    columns |= {f"{prefix}{i}": pd.array(values, dtype=name) for i, (name, values) in enumerate(TYPES.items())}
    return pd.DataFrame(columns)


def dtypes(table: pa.Table, prefix: str) -> list[str]:
    """The types of the columns of a side, as pandas gets them."""
    got = table.to_pandas()
    return [str(got[f"{prefix}{i}"].dtype) for i in range(len(TYPES))]


SPECS = {
    "count": sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(100)),
    "time": sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(5), time="t", order="event_time"),
    "full": sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(5), time="t", order="event_time", how="full"),
    "as-of": sj.JoinSpec(on=sj.Equi("k"), match=sj.AsOf("backward"), time="t", order="event_time", how="left"),
    "semi": sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(100), how="semi"),
    "condition": sj.JoinSpec(on="l.k <= r.k AND l.k >= r.k", window=sj.CountWindow(100)),
    "self": sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(100), self_join=True),
}


def rows_of(spec: sj.JoinSpec, left: object, right: object) -> pa.Table:
    with sj.open(spec) as join:
        pushed = join.push(left) if spec.self_join else join.push(left, right)
        return pa.concat_tables([pushed, join.close()])


@pytest.mark.parametrize("name", SPECS)
def test_types_with_nulls_come_back(name: str) -> None:
    spec = SPECS[name]
    left, right = frame("a"), frame("b")
    if spec.self_join:
        rows = rows_of(spec, pd.concat([left, left]), None)
        got = rows.to_pandas()
        assert [str(got[f"a{i}_left"].dtype) for i in range(len(TYPES))] == list(TYPES)
        return
    rows = rows_of(spec, left, right)
    assert rows.num_rows == 3
    assert dtypes(rows, "a") == list(TYPES)
    assert rows.to_pandas()["a0"].tolist() == [BIG, pd.NA, 3]
    if name != "semi":
        assert dtypes(rows, "b") == list(TYPES)
        assert rows.to_pandas()["b5"].tolist()[0] == BIG
    if spec.time and name != "semi":
        assert str(rows.to_pandas()["t"].dtype) == "Int64"


def test_a_missing_side_keeps_its_values() -> None:
    left = pd.DataFrame({"k": [1, 2]})
    right = pd.DataFrame({"k": [2], "v": pd.array([BIG], "Int64"), "w": pd.array([True], "boolean")})
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(10), how="left")
    got = rows_of(spec, left, right).to_pandas().sort_values("k")
    assert got["v"].tolist() == [pd.NA, BIG]
    assert got["w"].tolist() == [pd.NA, True]


@pytest.mark.parametrize("size", [1, 100])
def test_small_pushes_and_streams_of_tables(size: int) -> None:
    """Every way of a push gives the same schema, also the compiled ones, and `push_iter`."""
    table = pa.Table.from_pandas(pd.DataFrame({"k": np.arange(size), "v": pd.array([BIG] * size, "Int64")}))
    spec = sj.JoinSpec(on=sj.Band("k", "k", 0), window=sj.CountWindow(1000))
    with opened(0, spec, algorithm="indexed") as join:
        schemas = [join.push(table, table).schema for _ in range(4)]
        schemas += [rows.schema for rows in join.push_iter(table, table)]
        schemas += [join.push(table.slice(0, 0), table.slice(0, 0)).schema, join.schema]
        assert all(schema.equals(schemas[0], check_metadata=True) for schema in schemas)
        assert str(join.push(table, table).to_pandas()["v_left"].dtype) == "Int64"
        assert join.metrics()["results"] > 0


def test_renamed_dropped_and_added_columns() -> None:
    left = pd.DataFrame({"k": pd.array([1], "Int64"), "v": pd.array([BIG], "Int64"), "t": [1], "gone": ["x"]})
    right = pd.DataFrame({"k": pd.array([1], "Int32"), "v": pd.array([True], "boolean"), "t": [2]})
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(5), time="t", order="event_time", both_keys=True)
    with sj.open(spec, columns=["k_left", "k_right", "v_left", "v_right", "t"]) as join:
        rows = pa.concat_tables([join.push(left, right), join.close()])
    assert rows.to_pandas().dtypes.astype(str).to_dict() == {
        "k_left": "Int64", "k_right": "Int32", "v_left": "Int64", "v_right": "boolean", "t": "int64",
    }  # fmt: skip
    told = json.loads(rows.schema.metadata[b"pandas"])
    assert {entry["field_name"] for entry in told["columns"]} <= set(rows.column_names)


@pytest.mark.parametrize("how", ["inner", "right", "full"])
@pytest.mark.parametrize(("left", "right", "result"), [("int64", "Int64", "Int64"), ("Int64", "int64", "Int64")])
def test_a_key_that_appears_once(how: str, left: str, right: str, result: str) -> None:
    frames = [pd.DataFrame({"k": pd.array([i, BIG], type_)}) for i, type_ in enumerate((left, right))]
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(10), how=how)
    got = rows_of(spec, *frames).to_pandas()
    assert str(got["k"].dtype) == (left if how == "inner" else result)
    assert BIG in got["k"].tolist()


def test_an_index_is_no_index_of_the_result() -> None:
    """The index of a frame is a column, or nothing; the rows of a result are not those of the frame."""
    left = pd.DataFrame({"v": pd.array([BIG, None], "Int64")}, index=pd.Index([7, 8], name="k"))
    right = pd.DataFrame({"k": [8, 7], "w": [1, 2]}, index=pd.Index(["x", "y"]))
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(10))
    got = rows_of(spec, pa.Table.from_pandas(left), pa.Table.from_pandas(right)).to_pandas()
    assert got.index.tolist() == [0, 1]
    assert sorted(got["k"].tolist()) == [7, 8]
    assert got["v"].tolist() == [pd.NA, BIG] or got["v"].tolist() == [BIG, pd.NA]
    ranged = rows_of(spec, pa.Table.from_pandas(left.reset_index()), pa.Table.from_pandas(right))
    assert ranged.to_pandas().index.tolist() == [0, 1]


def test_columns_named_by_numbers() -> None:
    left = pd.DataFrame({0: [1], 1: pd.array([BIG], "Int64")})
    spec = sj.JoinSpec(on=sj.Equi("0"), window=sj.CountWindow(10))
    assert rows_of(spec, left, left).to_pandas().columns.tolist() == ["0", "1_left", "1_right"]


def test_categoricals_give_their_values() -> None:
    left = pd.DataFrame({"k": [1, 2], "c": pd.Categorical([BIG, None]), "s": pd.Categorical(["x", None])})
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(10), how="left")
    got = rows_of(spec, left, pd.DataFrame({"k": [0]})).to_pandas()
    assert got["c"].tolist() == [BIG, pd.NA]
    assert got["s"].tolist()[0] == "x"
    assert got["s"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    "type_",
    [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.dictionary(pa.int32(), pa.string())],
)
def test_what_arrow_itself_can_not_read_back_is_left_out(type_: pa.DataType) -> None:
    values = pa.array([None, None], type_)
    left = pa.Table.from_pandas(pd.DataFrame({"k": [1, 2], "v": pd.Series(values, dtype=pd.ArrowDtype(type_))}))
    with pytest.raises((TypeError, ValueError)):
        left.to_pandas()
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(10))
    assert rows_of(spec, left, pd.DataFrame({"k": [1]})).to_pandas()["v"].isna().tolist() == [True]


def test_late_rows() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(5), time="t", order="event_time")
    with sj.open(spec) as join:
        times = pd.array([None, 10], "Int64")
        join.push(pd.DataFrame({"k": [1, 2], "t": times, "v": pd.array([BIG, None], "Int64")}), frame("b"))
        late = join.late().to_pandas()
        join.close()
    assert late["v"].tolist() == [BIG]
    assert str(late["b0"].dtype) == "Int64"


def test_live() -> None:
    left, right = frame("a"), frame("b")
    for algorithm in ("auto", "handshake", "pim_parallel", "scalejoin"):
        on = sj.Band("k", "k", 0)
        with sj.live(sj.JoinSpec(on=on, window=sj.CountWindow(10)), algorithm=algorithm) as join:
            join.source("left").push(left)
            join.source("right").push(right)
            join.close()
            rows = pa.Table.from_batches(list(join))
        assert rows.num_rows == 3, algorithm
        assert dtypes(rows, "a") == list(TYPES), algorithm
        assert dtypes(rows, "b") == list(TYPES), algorithm


def test_fields_and_schemas_keep_their_own() -> None:
    def table(side: str) -> pa.Table:
        fields = [pa.field("k", pa.int64(), metadata={"unit": side}), pa.field(side, pa.int8(), False, {"u": side})]
        metadata = {"who": side, side: "yes", "org.apache.spark.sql.parquet.row.metadata": "{}"}
        return pa.table([[1], [2]], schema=pa.schema(fields, metadata))

    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(10))
    schema = rows_of(spec, table("left"), table("right")).schema
    assert schema.metadata == {b"who": b"left", b"left": b"yes", b"right": b"yes"}
    assert [field.metadata for field in schema] == [{b"unit": b"left"}, {b"u": b"left"}, {b"u": b"right"}]


def test_a_type_learned_later() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(10))
    with sj.open(spec) as join:
        join.push(pd.DataFrame({"k": [1], "v": pd.Series([None], dtype=object)}), pd.DataFrame({"k": [1, 2]}))
        got = join.push(pd.DataFrame({"k": [2, 1], "v": pd.array([BIG, None], "Int64")})).to_pandas()
    assert got["v"].tolist() == [BIG, pd.NA]


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"columns": 5}', b'{"columns": [1, {}, {"field_name": 3}]}', b"\xff"]
)
def test_unreadable_metadata_is_left_alone(text: bytes) -> None:
    left = pa.table({"k": [1]}).replace_schema_metadata({b"pandas": text})
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(10))
    assert rows_of(spec, left, pa.table({"k": [1]})).to_pandas()["k"].tolist() == [1]
