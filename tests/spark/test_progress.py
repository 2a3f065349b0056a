"""What users see of a running join: its figures, its late rows as files, and only the columns they asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamjoin as sj
from streamjoin.model.binding import bind
from streamjoin.spark import Progress, join
from streamjoin.spark.blueprint import SourcePlan
from streamjoin.spark.late_output import export_late
from streamjoin.spark.log import WindowLog
from streamjoin.spark.pruning import pruned
from tests.spark.joining import CASES, blueprint
from tests.spark.three_sources import read_source, write_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WIDE = pa.schema([("t", pa.int64()), ("k", pa.int64()), ("v", pa.int64()), ("blob", pa.binary()), ("n", pa.int64())])
SPEC = sj.JoinSpec(sj.Equi("k") & sj.Theta("l.v < r.v"), sj.TimeWindow(5), time="t", order="event_time")


def test_only_what_is_asked_for_or_needed_stays() -> None:
    bound = bind(SPEC, WIDE, WIDE)
    plans = (SourcePlan("0000", by="n"),), (SourcePlan("0000"),)
    some = pruned(bound, ["blob_right", "k_left"], plans)
    assert some.schema.names == ["k_left", "blob_right", "ts"]
    assert some.left_schema.names == ["t", "k", "v", "n"]
    assert some.right_schema.names == ["t", "k", "v", "blob"]
    assert pruned(bound, None, plans) is bound
    assert pruned(bound, [], plans).schema.names == ["ts"]
    itself = sj.JoinSpec(sj.Band("k", "v", 1), sj.TimeWindow(5), time="t", order="event_time", self_join=True)
    both = pruned(bind(itself, WIDE), ["blob_left", "n_right"], plans[1:] * 2)
    assert both.left_schema.names == both.right_schema.names == ["t", "k", "v", "blob", "n"]
    with pytest.raises(sj.SchemaError, match="did you mean 'blob_left'"):
        pruned(bound, ["blobleft"], plans)
    with pytest.raises(sj.SpecError, match="a list of names"):
        pruned(bound, "k_left", plans)


def test_late_rows_are_written_once_a_committed_batch(tmp_path: Path) -> None:
    log = WindowLog(tmp_path / "log", 1, blueprint(CASES[0], 2))
    for batch in (0, 2, 3):
        for partition in (0, 1):
            log.write_late(batch, partition, pa.table({"id": [batch, partition]}))
    target = tmp_path / "late"
    assert [path.name[-9:] for path in export_late(log.root, target, 2)] == ["0.parquet", "2.parquet"]
    assert export_late(log.root, target, 2) == []
    assert len(export_late(log.root, target, 9)) == 1
    assert sorted(pq.read_table(target)["id"].to_pylist()) == sorted(
        number for batch in (0, 2, 3) for partition in (0, 1) for number in (batch, partition)
    )


@pytest.mark.spark
def test_figures_late_files_and_columns_of_a_query(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"t": t, "x": 1, "id": t} for t in range(8)]
    write_source(tmp_path / "a", [*rows[:5], {"t": 0, "x": 1, "id": 99}], 3)
    write_source(tmp_path / "b", rows[:6], 3)
    spec = sj.JoinSpec(sj.Equi("x"), sj.CountWindow(2), time="t", order="event_time")
    progress = Progress(spark)
    sides = read_source(spark, tmp_path / "a"), read_source(spark, tmp_path / "b")
    joined = join(*sides, spec, columns=["id_left", "id_right"], late=tmp_path / "late files", partitions=2)
    assert joined.columns == ["id_left", "id_right", "ts"]
    query = (
        joined.writeStream.format("memory").queryName("figures").trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    query.awaitTermination()
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    figures = progress.of(query)
    progress.close()
    assert [figure.batch for figure in figures] == [0, 1, 2]
    assert [figure.rows for figure in figures] == [4, 4, 4]
    last = figures[-1]
    assert (last.join, last.ranges, last.late, last.waiting, last.gate_lag) == ("join", 2, 1, 2, 1)
    assert last.window_bytes > 0
    assert last.skew >= 1
    assert last.runs >= 1
    assert last.rows_per_second > 0
    assert pq.read_table(tmp_path / "late files")["id_left"].to_pylist() == [99]
    assert spark.table("figures").count() > 0
