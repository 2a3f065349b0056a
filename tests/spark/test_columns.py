"""Names and types of columns that Spark reads in its own way: dots, backticks, case and collations."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.spark import Source, join, late, table_writer
from streamjoin.spark.pipeline.run import sent
from tests.formats.lakes import Lake
from tests.spark.joining import EPOCH, TS, run_to_parquet, streams, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ODD = {"k": "key.part", "v": "tick`s", "s": "a.b.c", "id": "sp ace"}
SCHEMA = pa.schema([("ts", TS), ("k", pa.string()), ("v", pa.int64()), ("s", pa.string()), ("id", pa.int64())])


def _sides(spark: SparkSession, directory: Path) -> tuple[DataFrame, DataFrame]:
    """Two streams of six rows, whose keys differ in case and in trailing spaces."""
    keys = ["a", "A", "b", "b ", "B", "é"]
    rows = [
        {"ts": EPOCH + dt.timedelta(seconds=i), "k": key, "v": i, "s": f"s{i}", "id": i} for i, key in enumerate(keys)
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    write_files(directory, [(table, table.set_column(4, "id", pa.array([10 + i for i in range(6)], pa.int64())))])
    return streams(spark, directory, SCHEMA, SCHEMA)


def _odd(frame: DataFrame) -> DataFrame:
    return frame.withColumnsRenamed(ODD)


def _spec(on: Any, **changes: Any) -> sj.JoinSpec:
    given = {"window": sj.TimeWindow("1 minute"), "time": "ts", "order": "event_time", **changes}
    return sj.JoinSpec(on=on, **given)


SAME = [(i, 10 + i) for i in range(6)]


def _ids(table: pa.Table) -> list[tuple[int, int]]:
    return sorted(zip(table["sp ace_left"].to_pylist(), table["sp ace_right"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ordered": True, "partitions": 2},
        {"columns": ["sp ace_left", "sp ace_right", "a.b.c_right"]},
    ],
)
def test_a_name_may_have_dots_backticks_and_spaces(spark: SparkSession, tmp_path: Path, options: Any) -> None:
    left, right = map(_odd, _sides(spark, tmp_path))
    on = sj.Equi("key.part") & sj.Theta('l."tick`s" <= r."tick`s"')
    found = run_to_parquet(join(left, right, _spec(on, order="event_time"), **options), tmp_path)
    # The last rows wait in a gate for later ones.
    assert _ids(found) == SAME[: found.num_rows]
    assert found.num_rows >= 5
    assert found["a.b.c_right"].to_pylist()[0].startswith("s")


def test_sources_by_such_a_column_may_have_them_in_another_order(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    left, right = map(_odd, _sides(spark, tmp_path))
    left = left.withColumn("a.b.c", f.lit("one"))
    more = left.select(*(f"`{name.replace('`', '``')}`" for name in reversed(left.columns))).where("`tick``s` < 0")
    sources = [Source(left, by="a.b.c", position="tick`s"), Source(more, by="a.b.c", position="tick`s", name="more")]
    joined = join(sources, right, _spec(sj.Equi("key.part")), partitions=2, late=tmp_path / "late")
    assert _ids(run_to_parquet(joined, tmp_path))[:3] == SAME[:3]
    assert late(tmp_path / "checkpoint").num_rows == 0


def test_names_of_one_side_may_differ_in_case_alone(spark: SparkSession, tmp_path: Path) -> None:
    left, right = _sides(spark, tmp_path)
    left = left.withColumn("K", left["v"]) if spark.conf.get("spark.sql.caseSensitive") == "true" else left
    left = left.toDF("ts", "k", "v", "K", "id")
    found = run_to_parquet(join(left, right.drop("v", "s"), _spec(sj.Equi("k"))).toDF(*"abcdefgh"), tmp_path)
    assert sorted(found["d"].to_pylist()) == [f"s{i}" for i in range(6)]


COLLATIONS = ("UTF8_LCASE", "UNICODE_CI", "UNICODE", "UTF8_BINARY_RTRIM", "UTF8_LCASE_RTRIM")


@pytest.mark.parametrize("collation", COLLATIONS)
def test_a_key_with_a_collation_is_refused_and_the_way_out_works(
    spark: SparkSession, tmp_path: Path, collation: str
) -> None:
    left, right = (
        frame.selectExpr("ts", f"k COLLATE {collation} AS k", "v", f"s COLLATE {collation} AS s", "id")
        for frame in _sides(spark, tmp_path)
    )
    with pytest.raises(
        sj.NotSupportedError, match=rf"left side of the join compares the column 'k', whose collation is {collation}"
    ) as refusal:
        join(left, right, _spec(sj.Equi("k")))
    assert "lower(`k`) COLLATE UTF8_BINARY" in str(refusal.value)
    plain = left.selectExpr("ts", "k COLLATE UTF8_BINARY AS k", "v", "s", "id")
    with pytest.raises(sj.NotSupportedError, match="right side of the join compares the column 'k'"):
        join(plain, right, _spec(sj.Equi("k")))
    # A column that nothing compares keeps its collation.
    joined = join(plain, right.selectExpr("ts", "k COLLATE UTF8_BINARY AS k", "v", "s", "id"), _spec(sj.Equi("k")))
    assert joined.schema["s_left"].dataType.simpleString() == f"string collate {collation}"
    found = run_to_parquet(joined, tmp_path)
    assert sorted(zip(found["id_left"].to_pylist(), found["id_right"].to_pylist(), strict=True)) == SAME


def test_lower_case_keys_match_as_the_collation_would(spark: SparkSession, tmp_path: Path) -> None:
    left, right = (
        frame.selectExpr("ts", "lower(k COLLATE UTF8_LCASE) COLLATE UTF8_BINARY AS k", "id")
        for frame in _sides(spark, tmp_path)
    )
    found = run_to_parquet(join(left, right, _spec(sj.Equi("k"))), tmp_path)
    cased = spark.read.parquet(str(tmp_path / "left")).selectExpr("k COLLATE UTF8_LCASE AS k")
    assert found.num_rows == cased.alias("l").join(cased.alias("r"), "k").count() == 10


@pytest.mark.parametrize(
    ("spec", "column"),
    [
        (_spec("l.v = r.v AND l.s < r.s"), "s"),
        (_spec("upper(l.k) = r.s"), "k"),
        (_spec("l.v = r.v AND r.s LIKE 'a%'"), "s"),
        (_spec(sj.Equi("v") & sj.Theta("l.k <> r.k OR l.k IS NULL")), "k"),
        (_spec(sj.Equi("k"), window=None, match=sj.AsOf("backward"), how="left"), "k"),
        (_spec(sj.Equi("k"), how="full"), "k"),
    ],
)
def test_every_place_that_compares_is_found(
    spark: SparkSession, tmp_path: Path, spec: sj.JoinSpec, column: str
) -> None:
    left, right = (
        frame.selectExpr("ts", "k COLLATE UNICODE_CI AS k", "v", "s COLLATE UTF8_LCASE AS s", "id")
        for frame in _sides(spark, tmp_path)
    )
    with pytest.raises(sj.NotSupportedError, match=f"compares the column '{column}', whose collation"):
        join(left, right, spec)


def test_sources_and_self_joins_by_a_collation_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    left, right = _sides(spark, tmp_path)
    cased = left.selectExpr("ts", "k COLLATE UTF8_LCASE AS k", "v", "s", "id")
    with pytest.raises(sj.NotSupportedError, match="compares the column 'k'"):
        join(Source(cased, by="k"), right, _spec(sj.Equi("v")))
    with pytest.raises(sj.NotSupportedError, match="compares the column 'k'"):
        join(cased, None, _spec(sj.Equi("s", "k"), self_join=True))


def test_a_stream_of_an_engine_has_no_collation(spark: SparkSession, tmp_path: Path) -> None:
    left, _ = _sides(spark, tmp_path)
    cased = left.selectExpr("ts", "named_struct('k', k COLLATE UTF8_LCASE) AS k", "v")
    engine = sj.adhoc.Engine(spark, str(tmp_path / "engine"))
    with pytest.raises(sj.NotSupportedError, match="a query of stream 'trades' compares the column 'k'"):
        engine.register("trades", cased, time="ts")
    engine.register("trades", left.selectExpr("ts", "k COLLATE UTF8_BINARY AS k", "v"), time="ts")
    engine.stop()


def test_a_query_of_an_engine_reads_such_names(spark: SparkSession, tmp_path: Path) -> None:
    engine = sj.adhoc.Engine(spark, str(tmp_path / "engine"))
    for name, frame in zip(("l", "r"), _sides(spark, tmp_path), strict=True):
        engine.register(name, _odd(frame), time="ts")
    query = engine.create(
        'SELECT l."sp ace" AS a, r."tick`s" AS b FROM l JOIN r WITHIN 1 MINUTE ON l."key.part" = r."key.part"'
    )
    with engine:
        engine.process_all_available()
        assert sorted((row["a"], row["b"]) for row in query.rows().to_pylist()) == [(i, i) for i in range(6)]


def test_columns_whose_names_differ_in_case_can_be_selected(spark: SparkSession, tmp_path: Path) -> None:
    left, right = _sides(spark, tmp_path)
    joined = join(left.drop("s"), right.drop("s").withColumnsRenamed({"id": "ID", "v": "V"}), _spec(sj.Equi("k")))
    assert joined.select("id_left", "id_right", "v_left", "v_right").columns == [
        "id_left",
        "id_right",
        "v_left",
        "v_right",
    ]
    assert joined.columns == ["ts_left", "k", "v_left", "id_left", "ts_right", "V_right", "ID_right", "ts"]


def test_a_kafka_sink_and_a_table_take_odd_names(spark: SparkSession, tmp_path: Path) -> None:
    pipeline: Any = SimpleNamespace(
        sink=SimpleNamespace(select=(), format="kafka", key="key.part"), lines={"sink.key": 1}, file="x.toml"
    )
    frame = spark.createDataFrame([("a", 1)], "`key.part` string, `tick``s` long")
    assert [tuple(row) for row in sent(frame, pipeline).collect()] == [("a", '{"key.part":"a","tick`s":1}')]
    lake = Lake("delta", tmp_path / "lake")
    table_writer(lake.sink("odd"), _checkpoint(tmp_path))(frame, 0)
    assert lake.table("odd").to_pylist() == [{"key.part": "a", "tick`s": 1}]


def _checkpoint(directory: Path) -> str:
    (directory / "metadata").write_text('{"id": "of a query"}')
    return str(directory)
