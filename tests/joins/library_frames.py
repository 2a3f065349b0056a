"""Frames with a column of every type that pandas, Polars, DuckDB and Spark hand out as Arrow, and of Arrow's rest.

A column is named by its type and made from two different values; `rows` says which of them each row has, None for NULL.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

Rows = Sequence[int | None]
DAY = dt.date(2024, 5, 1), dt.date(2024, 5, 2)
MOMENT = dt.datetime(2024, 5, 1, 12, 0, 0, 1000), dt.datetime(2024, 5, 1, 12, 0, 3)
INSTANT = tuple(moment.replace(tzinfo=dt.UTC) for moment in MOMENT)
CLOCK = dt.time(1, 2, 3), dt.time(1, 2, 5)
SPAN = dt.timedelta(seconds=1), dt.timedelta(seconds=3)
PRICE = decimal.Decimal("1.5"), decimal.Decimal("3.25")
TEXT = "short", "a text that is too long to be inlined in a view"
BYTES = b"\x00", b"more than twelve bytes of something"
WHOLE = 1, 3
ENTRIES = [("k", 1)], [("k", 2), ("l", 3)]


def values(pair: Sequence[Any], rows: Rows) -> list[Any]:
    return [None if row is None else pair[row] for row in rows]


def pandas_frame(rows: Rows) -> pd.DataFrame:
    """With an index that is not a plain range, as after a selection."""
    whole = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32", "Float64")
    dtypes: dict[str, tuple[Sequence[Any], Any]] = {name: (WHOLE, name) for name in whole}
    dtypes |= {
        "float64": (WHOLE, "float64"),
        "boolean": ((False, True), "boolean"),
        "object_text": (TEXT, object),
        "object_bytes": (BYTES, object),
        "object_decimal": (PRICE, object),
        "object_date": (DAY, object),
        "object_time": (CLOCK, object),
        "object_list": (([1], [2, 3]), object),
        "object_dict": (({"a": 1}, {"a": 2}), object),
        "object_none": ((None, None), object),
        "string": (TEXT, "string"),
        "string_of_pandas_3": (TEXT, pd.StringDtype("pyarrow", na_value=np.nan)),
        "category": (TEXT, "category"),
        "category_of_numbers": (WHOLE, "category"),
        "datetime64[ns]": (MOMENT, "datetime64[ns]"),
        "datetime64[us]": (MOMENT, "datetime64[us]"),
        "datetime64[s]": (MOMENT, "datetime64[s]"),
        "datetime64[ns, UTC]": (INSTANT, "datetime64[ns, UTC]"),
        "datetime64[us, Europe/Berlin]": (INSTANT, "datetime64[us, Europe/Berlin]"),
        "timedelta64[ns]": (SPAN, "timedelta64[ns]"),
        "period[D]": ((pd.Period("2024-05-01"), pd.Period("2024-05-02")), "period[D]"),
        "interval": ((pd.Interval(0.0, 1.0), pd.Interval(1.0, 2.0)), "interval[float64, right]"),
        "arrow_text": (TEXT, pd.ArrowDtype(pa.string_view())),
    }
    frame = pd.DataFrame({name: pd.Series(values(pair, rows), dtype=dtype) for name, (pair, dtype) in dtypes.items()})
    frame["bool"] = np.array([bool(row) for row in rows])
    frame["int64"] = np.array([row or 0 for row in rows])
    frame.index = pd.Index([7 * i for i in range(len(rows))])
    return frame


def polars_frame(rows: Rows) -> pl.DataFrame:
    dtypes: dict[str, tuple[Sequence[Any], Any]] = {
        str(dtype): (WHOLE, dtype)
        for dtype in (
            pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64,
        )
    }  # fmt: skip
    dtypes |= {
        "Boolean": ((False, True), pl.Boolean),
        "String": (TEXT, pl.String),
        "Binary": (BYTES, pl.Binary),
        "Categorical": (TEXT, pl.Categorical),
        "Enum": (TEXT, pl.Enum(TEXT)),
        "Date": (DAY, pl.Date),
        "Time": (CLOCK, pl.Time),
        "Duration": (SPAN, pl.Duration),
        "Datetime": (MOMENT, pl.Datetime),
        "Datetime(ns)": (MOMENT, pl.Datetime("ns")),
        "Datetime(ms, UTC)": (INSTANT, pl.Datetime("ms", "UTC")),
        "Datetime(us, Berlin)": (INSTANT, pl.Datetime("us", "Europe/Berlin")),
        "Decimal": (PRICE, pl.Decimal(12, 2)),
        "List": (([1], [2, 3]), pl.List(pl.Int64)),
        "List(String)": (([TEXT[0]], [*TEXT]), pl.List(pl.String)),
        "Array": (([1, 2], [3, 4]), pl.Array(pl.Int64, 2)),
        "Struct": (({"s": TEXT[0]}, {"s": TEXT[1]}), pl.Struct({"s": pl.String})),
        "Null": ((None, None), pl.Null),
    }
    return pl.DataFrame({name: pl.Series(values(pair, rows), dtype=dtype) for name, (pair, dtype) in dtypes.items()})


def duckdb_frame(rows: Rows) -> duckdb.DuckDBPyRelation:
    integers = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
    literals = dict.fromkeys((*integers, "HUGEINT", "FLOAT", "DOUBLE"), ("1", "3"))
    moments = "'2024-05-01 12:00:00'", "'2024-05-01 12:00:03'"
    literals |= dict.fromkeys(("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_NS", "TIMESTAMP_MS", "TIMESTAMP_S"), moments)
    literals |= {
        "BOOLEAN": ("false", "true"),
        "DECIMAL(4,1)": ("1.5", "3.2"),
        "DECIMAL(18,3)": ("1.5", "3.2"),
        "DECIMAL(38,10)": ("1.5", "3.2"),
        "VARCHAR": ("'short'", "'a text that is too long to be inlined in a view'"),
        "BLOB": ("'a'", "'b'"),
        "UUID": ("'3e1ef835-9ab1-49a5-96af-0727d4c89b66'", "'4e1ef835-9ab1-49a5-96af-0727d4c89b66'"),
        "BIT": ("'101'", "'0101'"),
        "ENUM('a', 'b')": ("'a'", "'b'"),
        "DATE": ("'2024-05-01'", "'2024-05-02'"),
        "TIME": ("'01:02:03'", "'01:02:05'"),
        "INTERVAL": ("'1 day'", "'1 month'"),
        "INTEGER[]": ("[1]", "[2, 3]"),
        "INTEGER[2]": ("[1, 2]", "[3, 4]"),
        "STRUCT(a INTEGER)": ("{'a': 1}", "{'a': 2}"),
        "MAP(VARCHAR, INTEGER)": ("map {'a': 1}", "map {'a': 2}"),
        "UNION(num INTEGER, str VARCHAR)": ("union_value(num := 1)", "union_value(str := 'x')"),
    }
    columns = []
    for type_, pair in literals.items():
        casts = [f"CAST({literal or 'NULL'} AS {type_})" for literal in values(pair, rows)]
        columns.append(f'unnest([{", ".join(casts)}]) AS "{type_}"')
    return duckdb.sql(f"SELECT {', '.join(columns)}")  # type: ignore[return-value]


def spark_frame(rows: Rows) -> pa.Table:
    """What `DataFrame.toArrow` gives, without a session."""
    numbers = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType, spark.FloatType, spark.DoubleType)
    pairs: dict[spark.DataType, Sequence[Any]] = {kind(): WHOLE for kind in numbers}
    pairs |= {
        spark.BooleanType(): (False, True),
        spark.DecimalType(10, 2): PRICE,
        spark.DecimalType(38, 10): PRICE,
        spark.StringType(): TEXT,
        spark.BinaryType(): BYTES,
        spark.DateType(): DAY,
        spark.TimestampType(): INSTANT,
        spark.TimestampNTZType(): MOMENT,
        spark.DayTimeIntervalType(): SPAN,
        spark.TimeType(): CLOCK,
        spark.NullType(): (None, None),
        spark.ArrayType(spark.StringType()): (["a"], ["b", "c"]),
        spark.MapType(spark.StringType(), spark.LongType()): ENTRIES,
        spark.StructType([spark.StructField("a", spark.LongType())]): ({"a": 1}, {"a": 2}),
        spark.VariantType(): ({"value": b"1", "metadata": b"m"}, {"value": b"2", "metadata": b"m"}),
    }
    return pa.table(
        {
            kind.simpleString(): pa.array(values(pair, rows), to_arrow_type(kind, timezone="UTC"))
            for kind, pair in pairs.items()
        }
    )


def _runs(pair: Sequence[Any], type_: pa.DataType) -> Callable[[Rows], pa.Array]:
    def made(rows: Rows) -> pa.Array:
        ends = pa.array(range(1, len(rows) + 1), pa.int32())
        return pa.RunEndEncodedArray.from_arrays(ends, pa.array(values(pair, rows), type_))

    return made


def _union(dense: bool) -> Callable[[Rows], pa.Array]:
    """A number or a text, by turns."""

    def made(rows: Rows) -> pa.Array:
        kinds = pa.array([int(row or 0) for row in rows], pa.int8())
        children = [pa.array(values((1, 0), rows), pa.int64()), pa.array(values(("", "x"), rows), pa.string_view())]
        names = ["num", "str"]
        if dense:
            return pa.UnionArray.from_dense(kinds, pa.array(range(len(rows)), pa.int32()), children, names)
        return pa.UnionArray.from_sparse(kinds, children, names)

    return made


def arrow_table(rows: Rows) -> pa.Table:
    """Types of Arrow that none of the libraries gives by default."""
    dictionary = pa.dictionary(pa.int8(), pa.string())
    pairs: dict[pa.DataType, Sequence[Any]] = {
        pa.float16(): WHOLE,
        pa.large_string(): TEXT,
        pa.string_view(): TEXT,
        pa.large_binary(): BYTES,
        pa.binary_view(): BYTES,
        pa.binary(2): (b"ab", b"cd"),
        pa.decimal32(5, 2): PRICE,
        pa.decimal64(15, 2): PRICE,
        pa.decimal256(50, 2): PRICE,
        pa.date64(): DAY,
        pa.time32("s"): CLOCK,
        pa.time32("ms"): CLOCK,
        pa.time64("us"): CLOCK,
        pa.duration("s"): SPAN,
        pa.duration("ms"): SPAN,
        pa.timestamp("s", "America/New_York"): INSTANT,
        pa.timestamp("ns", "+02:00"): INSTANT,
        pa.large_list(pa.string_view()): (["a"], ["b", "c"]),
        pa.list_view(pa.string_view()): (["a"], ["b", "c"]),
        pa.list_(dictionary): (["a"], ["b", "c"]),
        pa.struct([("d", dictionary), ("v", pa.binary_view())]): ({"d": "a", "v": b"1"}, {"d": "b", "v": b"2"}),
        pa.map_(pa.string_view(), pa.int8()): ENTRIES,
        pa.month_day_nano_interval(): (pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([1, 2, 4])),
        dictionary: TEXT,
    }
    columns = {str(type_): pa.array(values(pair, rows), type_) for type_, pair in pairs.items()}
    ids = values([uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes], rows)
    columns |= {
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array(ids, pa.binary(16))),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(values(("[1]", "[2]"), rows))),
        "dictionary of moments": pa.array(values(INSTANT, rows), pa.timestamp("us", "UTC")).dictionary_encode(),
        "runs of numbers": _runs(WHOLE, pa.int64())(rows),
        "runs of views": _runs(TEXT, pa.string_view())(rows),
        "runs of moments": _runs(INSTANT, pa.timestamp("us", "UTC"))(rows),
        "dense union": _union(dense=True)(rows),
        "sparse union": _union(dense=False)(rows),
    }
    return pa.table(columns)


LIBRARIES: dict[str, Callable[[Rows], Any]] = {
    "pandas": pandas_frame,
    "polars": polars_frame,
    "duckdb": duckdb_frame,
    "spark": spark_frame,
    "arrow": arrow_table,
}


def as_arrow(frame: Any) -> pa.Table:
    """The frame as its library hands it out."""
    return pa.Table.from_pandas(frame, preserve_index=False) if isinstance(frame, pd.DataFrame) else pa.table(frame)
