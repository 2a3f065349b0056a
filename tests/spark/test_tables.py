"""Joins on Spark into Delta and Iceberg tables: `foreachBatch`, a pipeline file, and batches that Spark runs again."""

from __future__ import annotations

import io
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from streamjoin.config.pipeline_file import read_pipeline
from streamjoin.formats.tables import LakeWriter
from streamjoin.model.errors import PipelineFileError, SpecError
from streamjoin.spark import DeltaSink, join, table_writer
from streamjoin.spark.pipeline.run import run
from tests.formats.lakes import KINDS, Lake
from tests.spark.joining import CASES, expected, pairs, stream, streams, tables, write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BAND = CASES[0]
ROWS = stream(BAND, 5, 40)


def started(spark: SparkSession, directory: Path, writer: Any, checkpoint: Path) -> Any:
    joined = join(*streams(spark, directory, BAND.left, BAND.right), BAND.bound_spec(), partitions=2)
    options = {"checkpointLocation": str(checkpoint)}
    return joined.writeStream.foreachBatch(writer).options(**options).trigger(availableNow=True).start()


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_of_a_join_is_in_the_table_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It dies between files and commit, and between the table's commit and Spark's; then a query begins anew."""
    lake = Lake(kind, tmp_path / "lake")
    write_files(tmp_path, tables(BAND, *ROWS, 2))
    dies_at = iter([(0, False), (1, True)])
    write, death = LakeWriter.write, next(dies_at)

    def dying(self: LakeWriter, batch: int, rows: Any) -> None:
        if death != (batch, False):
            write(self, batch, rows)
        if batch == death[0]:
            raise OSError("the driver is gone")

    def run_on(checkpoint: Path) -> None:
        # Where Spark says which query it is, it need not be given.
        writer = table_writer(lake.sink("t"), None if kind == "delta" else str(checkpoint))
        started(spark, tmp_path, writer, checkpoint).awaitTermination(120)

    monkeypatch.setattr(LakeWriter, "write", dying)
    for rows in (0, 1):
        with pytest.raises(Exception, match="the driver is gone"):
            run_on(tmp_path / "checkpoint")
        assert (lake.table("t").num_rows > 0) == rows
        death = next(dies_at, (-1, False))
    run_on(tmp_path / "checkpoint")
    wanted = expected(BAND, *ROWS)
    assert pairs(lake.table("t")) == wanted
    if kind == "delta":
        # Numbers of batches begin again with a new checkpoint: its rows are not those that the table has.
        run_on(tmp_path / "another")
        assert pairs(lake.table("t")) == Counter({pair: 2 * count for pair, count in wanted.items()})


def test_what_is_no_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="DeltaSink or an IcebergSink"):
        table_writer("t")
    frame = spark.range(1)
    with pytest.raises(SpecError, match="give its checkpointLocation as checkpoint="):
        table_writer(DeltaSink(str(tmp_path / "t")))(frame, 0)
    with pytest.raises(SpecError, match="is no checkpoint of a query"):
        table_writer(DeltaSink(str(tmp_path / "t")), str(tmp_path))(frame, 0)


FILE = """\
checkpoint = "checkpoint"
trigger = "available now"
[source.left]
format = "json"
path = "trades"
schema = "ts TIMESTAMP, sym STRING, px DOUBLE"
[join]
on = "l.sym = r.sym"
window = "5 seconds"
time = "ts"
self_join = true
[sink]
select = ["sym", "px_left", "px_right"]
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_into_a_table(
    spark: SparkSession, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing of a pipeline needs pandas, which `streamjoin[spark]` does not bring.
    monkeypatch.setitem(sys.modules, "pandas", None)
    lake = Lake(kind, tmp_path)
    options = "".join(f"options.{key} = '{value}'\n" for key, value in lake.catalog.items())
    sink = 'format = "delta"\npath = "t"\n' if kind == "delta" else f'format = "iceberg"\ntable = "tests.t"\n{options}'
    file = tmp_path / "join.toml"
    file.write_text(FILE + sink)
    (tmp_path / "trades").mkdir()
    for number, prices in enumerate(([1.0, 2.0], [3.0])):
        lines = [f'{{"ts": "2026-01-01T00:00:0{number}Z", "sym": "A", "px": {price}}}' for price in prices]
        (tmp_path / "trades" / str(number)).write_text("\n".join(lines))
        console = Console(file=io.StringIO(), width=200)
        totals = run(read_pipeline(file), console, spark=spark)
        assert totals.rows_out == (2, 4)[number]
    assert lake.rows("t") == [("A", *pair) for pair in [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)]]

    file.write_text((FILE + sink).replace('"px_right"', '"ts"'))
    with pytest.raises(PipelineFileError, match=r"line 12: the table .*t has no column 'ts'"):
        run(read_pipeline(file), Console(file=io.StringIO()), spark=spark)


def test_a_table_without_a_namespace_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "join.toml"
    file.write_text(FILE + 'format = "iceberg"\ntable = "matches"\n')
    with pytest.raises(PipelineFileError, match=r"line 15: table = 'matches': a table has a namespace"):
        read_pipeline(file)
