"""What Spark's UI calls the stages of a join."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import streamjoin as sj
from streamjoin.spark import Progress, join
from streamjoin.spark.runtime import driver_classes
from tests.spark.three_sources import read_source, write_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [{"t": t, "x": 1, "id": t} for t in range(4)]
SPEC = sj.JoinSpec(sj.Equi("x"), sj.TimeWindow(3), time="t", order="event_time")


def _stages(spark: SparkSession, directory: Path, query_name: str, **options: bool) -> list[str]:
    """The names of the stages that a query ran, in the order in which they ran."""
    frames = read_source(spark, directory / "a"), read_source(spark, directory / "b")
    writer = join(*frames, SPEC, partitions=2, **options).writeStream.format("noop").queryName(query_name)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = Progress(spark)
    progress.settle()
    progress.close()
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(query.runId))]
    ids = sorted(stage for job in jobs if job is not None for stage in job.stageIds)
    return [info.name for info in map(tracker.getStageInfo, ids) if info is not None]


@pytest.mark.spark
def test_stages_have_the_query_and_what_they_do_in_their_names(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write_source(tmp_path / name, ROWS, 1)
    assert _stages(spark, tmp_path, "near") == ["near: route", "near: join"]
    assert _stages(spark, tmp_path, "in order", ordered=True, positions=True) == [
        "in order: route", "in order: join", "in order: order",
    ]  # fmt: skip
    # Where the class can't be had, names are Spark's and the query runs.
    monkeypatch.setattr(driver_classes, "STAGES_CLASS", "streamjoin.spark.Nowhere")
    monkeypatch.setattr(driver_classes, "cache_dir", lambda: tmp_path)
    assert [name.split()[0] for name in _stages(spark, tmp_path, "plain")] == ["start", "start"]
