"""Summaries on real Spark: the rows of the embedded engine to the bit, through restarts and to the end of input."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import streamjoin as sj
from streamjoin.config.pipeline_file import read_pipeline
from streamjoin.spark import Source, join
from streamjoin.spark.pipeline.run import refused_part, run
from tests.spark.joining import read_parquet
from tests.spark.three_sources import rows_in_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DDL = "t timestamp, sym string, px double, qty long, amount decimal(20,2), id long"
SCHEMA = pa.schema(
    [
        ("t", pa.timestamp("us", "UTC")),
        ("sym", pa.string()),
        ("px", pa.float64()),
        ("qty", pa.int64()),
        ("amount", pa.decimal128(20, 2)),
        ("id", pa.int64()),
    ]
)
SUMMARIES = {
    "n": "count(*)",
    "x": "sum(r.px)",
    "mean": "avg(r.px)",
    "vwap": "sum(r.px * r.qty) / sum(r.qty)",
    "q": "sum(r.qty)",
    "money": "sum(r.amount)",
    "low": "min(r.px)",
    "top": "max(r.amount)",
    "former": "first(r.sym)",
    "latest": "last(r.id)",
    "mid": "median(r.px)",
    "edge": "max(l.px - r.px)",
}
AROUND = sj.Summary(SUMMARIES, between=("-40 ms", "10 ms"))
SPECS = {
    "around": sj.JoinSpec("sym", match=AROUND, time="t", how="left"),
    "prevailing": sj.JoinSpec(
        "sym", match=sj.Summary(SUMMARIES, ("-9 ms", "-3 ms"), prevailing=True), time="t", how="left"
    ),
    "all": sj.JoinSpec(None, match=sj.Summary(SUMMARIES, between=("1 ms", "20 ms")), time="t", how="inner"),
    "rolling": sj.JoinSpec(
        "sym", match=sj.Summary(SUMMARIES, ("-30 ms", "0 s"), itself=True), time="t", how="left", self_join=True
    ),
}


def _side(seed: int, n: int = 240) -> pa.Table:
    rng = np.random.default_rng(seed)
    units = pa.array(rng.integers(-(10**6), 10**6, n)).cast(pa.decimal128(38, 0)).cast(pa.decimal128(20, 2))
    columns = [
        pa.array(np.sort(rng.integers(0, n * 1000, n)), pa.timestamp("us", "UTC")),
        pa.array(rng.choice(["A", "B", "C", None], n).tolist(), pa.string()),
        pa.array(rng.choice([0.1, 1e16, -1e16, 3.25, 7e-9, float("nan"), -0.0], n), mask=rng.random(n) < 0.1),
        pa.array(rng.choice([1, -7, 2**62, 100], n)),
        units,
        pa.array(np.arange(n)),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _write(directory: Path, table: pa.Table, first: int, files: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        begin, end = len(table) * i // files, len(table) * (i + 1) // files
        path = directory / f"{first + i:04}.parquet"
        pq.write_table(table.slice(begin, end - begin), path)
        os.utime(path, (1_700_000_000 + first + i, 1_700_000_000 + first + i))


def _source(spark: SparkSession, directory: Path) -> Source:
    frame = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(directory))
    return Source(frame, position="id")


def _start(spark: SparkSession, files: Path, run: Path, spec: sj.JoinSpec, **options: Any) -> Any:
    right = None if spec.self_join else _source(spark, files / "r")
    frame = join(_source(spark, files / "l"), right, spec, **options)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(run / "checkpoint"))
    return writer.option("path", str(run / "out")).trigger(availableNow=True).start()


def _embedded(spec: sj.JoinSpec, left: pa.Table, right: pa.Table) -> pa.Table:
    sides = {"left": left} if spec.self_join else {"left": left, "right": right}
    with sj.open(spec) as running:
        return pa.concat_tables([running.push(**sides), running.close()])


def _same(rows: pa.Table, wanted: pa.Table) -> None:
    """Equal to the bit, NaN and the zeros' signs included."""
    assert rows.schema.names == wanted.schema.names
    rows = rows.set_column(0, "t", rows["t"].cast(wanted.schema.field("t").type))
    for name in wanted.schema.names:
        assert list(map(repr, rows[name].to_pylist())) == list(map(repr, wanted[name].to_pylist())), name


def test_rows_are_those_of_the_embedded_engine_to_the_bit(spark: SparkSession, tmp_path: Path) -> None:
    """Two batches, a restart with another number of partitions, two more, and the end of input."""
    left, right = _side(1), _side(2)
    half = 120
    for start, partitions in ((0, 3), (1, 2)):
        for name, table in (("l", left), ("r", right)):
            _write(tmp_path / name, table.slice(start * half, half), 2 * start, 2)
        queries = [
            _start(
                spark, tmp_path, tmp_path / name, spec, partitions=partitions, ordered=name != "around",
                end_of_input=start == 1,
            )
            for name, spec in SPECS.items()
        ]  # fmt: skip
        for query in queries:
            query.awaitTermination()
    for name, spec in SPECS.items():
        wanted = _embedded(spec, left, right)
        if name == "around":
            rows = read_parquet(tmp_path / name / "out").sort_by("id")
            wanted = wanted.sort_by("id")
        else:
            rows = rows_in_order(tmp_path / name)
        assert wanted["n"].to_numpy().max() > 3, name
        _same(rows, wanted)


def test_a_row_comes_out_once_its_window_is_complete(spark: SparkSession, tmp_path: Path) -> None:
    """Without the end of input, what the embedded engine holds back too waits in the checkpoint."""
    left, right = _side(3), _side(4)
    for name, table in (("l", left), ("r", right)):
        _write(tmp_path / name, table, 0, 3)
    _start(spark, tmp_path, tmp_path, SPECS["around"], ordered=True).awaitTermination()
    with sj.open(SPECS["around"], on_close=lambda _: None) as running:
        wanted = running.push(left, right)
    assert 200 < wanted.num_rows < 240
    _same(rows_in_order(tmp_path), wanted)


def test_what_spark_does_not_summarise_is_refused_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    for name in "lr":
        _write(tmp_path / name, _side(5, 3), 0, 1)
    sides = _source(spark, tmp_path / "l"), _source(spark, tmp_path / "r")
    by_condition = sj.JoinSpec("l.qty < r.qty", match=AROUND, time="t")
    with pytest.raises(sj.NotSupportedError, match=r"on Spark the condition is equalities, or none \(on=None\)"):
        join(*sides, by_condition)
    for option, why in (("positions", "numbers the two tuples"), ("punctuate", "match=Summary has none")):
        with pytest.raises(sj.NotSupportedError, match=why):
            join(*sides, SPECS["around"], ordered=True, **{option: True})


PIPELINE = """\
checkpoint = "checkpoint"
trigger = "available now"
partitions = 2
[source.left]
format = "parquet"
path = "l"
schema = "DDL"
position = "id"
[source.right]
format = "parquet"
path = "r"
schema = "DDL"
position = "id"
[join]
on = "sym"
how = "left"
summary = { n = "count(*)", x = "sum(r.px)" }
between = ["-40 ms", "10 ms"]
time = "t"
end_of_input = true
[sink]
format = "parquet"
path = "out"
""".replace("DDL", DDL)


def test_a_pipeline_file_summarises(spark: SparkSession, tmp_path: Path) -> None:
    left, right = _side(6), _side(7)
    for name, table in (("l", left), ("r", right)):
        _write(tmp_path / name, table, 0, 1)
    file = tmp_path / "join.toml"
    file.write_text(PIPELINE)
    pipeline = read_pipeline(file)
    run(pipeline, Console(file=io.StringIO()), spark=spark)
    _same(read_parquet(tmp_path / "out").sort_by("id"), _embedded(pipeline.spec, left, right).sort_by("id"))
    for change, part in (
        (('"sym"', '"l.qty < r.qty"'), "on.0"),
        (("r.px", "r.pxx"), "join.summary"),
    ):
        file.write_text(PIPELINE.replace(*change))
        refused = read_pipeline(file)
        frames = {name: spark.readStream.schema(DDL).parquet(str(tmp_path / name[0])) for name in ("left", "right")}
        assert refused_part(refused, frames) == part
