"""The Parquet files of late rows: each row once, written within its batch, whoever runs it again or begins anew."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamjoin as sj
from streamjoin.spark import join, late
from streamjoin.spark.runtime import checkpoints
from streamjoin.spark.stages.late_output import catch_up, forget_uncommitted
from streamjoin.storage.log import WindowLog, new_epoch
from tests.spark.joining import CASES, EPOCH, Row, blueprint, in_process, tables
from tests.spark.three_sources import read_source, write_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAND = CASES[0]


def _timeless(ids: list[int]) -> list[Row]:
    return [{"ts": None, "x": 1, "id": i} for i in ids]


def _ids(target: Path) -> list[int]:
    found: list[int] = sorted(pq.read_table(target)["id_left"].to_pylist()) if target.exists() else []
    return found


def test_the_task_that_ends_a_batch_writes_its_late_rows(tmp_path: Path) -> None:
    target = tmp_path / "late"
    plan = replace(blueprint(BAND, 2), late=str(target))
    first = new_epoch(tmp_path / "log", plan.description)
    right = [{"ts": EPOCH, "a": 1, "id": 0}]
    (sides,) = tables(BAND, _timeless([1, 2, 3]), right, 1)
    in_process(plan, tmp_path / "log", 0, sides, first, only=[1])
    assert _ids(target) == []
    # Of this start no piece of the other range is there, though its batch was begun by the one before.
    again = new_epoch(tmp_path / "log", plan.description)
    in_process(plan, tmp_path / "log", 0, sides, again, only=[0])
    assert _ids(target) == []
    in_process(plan, tmp_path / "log", 0, sides, again)
    in_process(plan, tmp_path / "log", 0, sides, again)
    assert _ids(target) == [1, 2, 3]
    (more,) = tables(BAND, _timeless([4]), right, 1)
    in_process(plan, tmp_path / "log", 1, more, again)
    assert [path.name for path in sorted(target.iterdir())] == [
        f"late-log-{first}-0000000000.parquet", f"late-log-{first}-0000000001.parquet",
    ]  # fmt: skip
    # Batch 1 was never committed, and leads to nothing late when it runs again.
    forget_uncommitted(tmp_path / "log", target, 0)
    assert _ids(target) == [1, 2, 3]
    # Another log, in the same place and with the same output.
    shutil.rmtree(tmp_path / "log")
    anew = new_epoch(tmp_path / "log", plan.description)
    forget_uncommitted(tmp_path / "log", target, -1)
    in_process(plan, tmp_path / "log", 0, more, anew)
    assert _ids(target) == [1, 2, 3, 4]
    # And another join of the same query, that began in the same moment.
    shutil.copytree(tmp_path / "log/epochs", tmp_path / "other/epochs")
    in_process(plan, tmp_path / "other", 0, more, anew)
    assert _ids(target) == [1, 2, 3, 4, 4]


def test_what_is_missing_is_made_up_for(tmp_path: Path) -> None:
    log = WindowLog(tmp_path / "log", 1, blueprint(BAND, 2))
    for batch in (0, 2, 3, 4):
        for partition in (0, 1):
            log.write_late(batch, partition, pa.table({"id_left": [batch, partition]}))
    target = tmp_path / "late"
    assert [path.name[-9:] for path in catch_up(log.root, target, 2)] == ["0.parquet", "2.parquet"]
    assert catch_up(log.root, target, 2) == []
    # As earlier versions of streamjoin wrote it.
    pq.write_table(pa.table({"id_left": [3, 0, 3, 1]}), target / "late-0000000003.parquet")
    assert len(catch_up(log.root, target, 9)) == 1
    assert catch_up(log.root, target, 9, after=4) == []
    assert _ids(target) == sorted(number for batch in (0, 2, 3, 4) for number in (batch, batch, 0, 1))


@pytest.mark.spark
def test_late_rows_are_there_when_a_query_ends_and_after_a_restart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that ends after awaitTermination() never hears of its last batch."""
    monkeypatch.setattr(checkpoints, "_progressed", lambda run, batch: None)
    spec = sj.JoinSpec(sj.Equi("x"), sj.TimeWindow(5), time="t", order="event_time")
    target, (a, b) = tmp_path / "late", (tmp_path / "a", tmp_path / "b")

    def run(location: Path) -> None:
        joined = join(read_source(spark, a), read_source(spark, b), spec, late=location, partitions=2)
        writer = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    rows = [{"t": t, "x": i, "id": i} for i, t in enumerate((50, 51, 52, 3, 53, 4))]
    write_source(a, rows[:4], 2)
    write_source(b, rows[:1], 1)
    run(target)
    assert _ids(target) == [3]
    # The next batch can't write them, and the listener never comes: the next start does it, though no batch follows.
    (tmp_path / "file").touch()
    pq.write_table(pa.Table.from_pylist(rows[4:]), a / "more.parquet")
    run(tmp_path / "file/late")
    run(target)
    assert _ids(target) == [3, 5] == late(tmp_path / "checkpoint")["id_left"].to_pylist()
