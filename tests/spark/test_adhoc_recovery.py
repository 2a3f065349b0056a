"""An engine that comes back: queries, buckets and counts after a stop, and checkpoints that can't be gone on from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from streamjoin.adhoc import CallbackSink, Engine
from streamjoin.model.errors import CheckpointError, SchemaError, StateError
from streamjoin.queries.engine.info import LATENCY_STAGES
from tests.spark.adhoc_streams import PAIRS, FileStream, counted

pytestmark = pytest.mark.spark


def engine_on(spark: Any, directory: Path, **options: Any) -> Engine:
    engine = Engine(spark, directory / "checkpoint", **options)
    for name in ("l", "r"):
        engine.register(name, FileStream(directory / name).frame(spark), lateness="1 minute")
    return engine


def test_an_engine_goes_on_where_it_stopped(spark: Any, tmp_path: Path) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    got: list[Counter[Any]] = []
    with engine_on(spark, tmp_path) as engine:
        engine.create(PAIRS, name="kept")
        engine.create(PAIRS, name="gone")
        engine.create(PAIRS, name="paused")
        engine.create(PAIRS, name="calls", sink=CallbackSink(lambda _, rows: got.append(counted(rows))))
        left.rows((1, 10, 0.0), (2, 11, 0.0))
        engine.process_all_available()
        left.rows((3, 9, -300.0))
        right.rows((1, 20, 1.0))
        engine.process_all_available()
        engine.pause("paused")
        engine.drop("gone")
        sums = engine.metrics()
        stages = engine.query("kept").latency
        # Its events are of long ago; how it came to its rows took seconds.
        assert tuple(stages) == LATENCY_STAGES and stages["read"] > 0 and sum(stages.values()) < 600_000
        with pytest.raises(StateError, match="another engine"):
            Engine(spark, tmp_path / "checkpoint")
    assert got == [Counter([(10, 20)])]
    # What comes while nobody is there is read later.
    right.rows((2, 21, 1.0))
    again = engine_on(spark, tmp_path)
    try:
        assert {info.name: (info.state, info.rows) for info in again.queries()} == {
            "kept": ("running", 1),
            "paused": ("paused", 1),
            "calls": ("degraded", 1),
        }
        assert again.streams()[0].late == 1
        assert again.metrics().rows_out == sums.rows_out and again.metrics().rows_in == sums.rows_in == 4
        assert again.late("l")["p"].to_pylist() == [9]
        again.start()
        again.process_all_available()
        assert counted(again.rows("kept")) == Counter([(11, 21)])
        assert again.query("kept").rows == 2
        lost = again.query("calls")
        assert (lost.state, lost.rows_undelivered) == ("degraded", 1)
        assert "attach" in str(lost.error)
        again.attach("calls", CallbackSink(lambda _, rows: got.append(counted(rows))))
        again.process_all_available()
        assert got[1:] == [Counter([(11, 21)])]
        assert again.query("calls").rows == 2
        left.rows((2, 12, 2.0))
        again.process_all_available()
        assert got[2:] == [Counter([(12, 21)])]
        assert [r.serial for r in again.changelog()] == list(range(1, len(again.changelog()) + 1))
    finally:
        again.stop()
    # Old records go on a thread of their own, which the stop waits for.
    assert len(list((tmp_path / "checkpoint" / "batches").iterdir())) <= 2


def test_a_stream_gets_another_lateness_at_a_restart(spark: Any, tmp_path: Path) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    with engine_on(spark, tmp_path) as engine:
        engine.create(PAIRS, name="q")
        left.rows((1, 10, 100.0))
        right.rows((1, 20, 100.0))
        engine.process_all_available()
    again = Engine(spark, tmp_path / "checkpoint")
    again.register("l", left.frame(spark), lateness="0 seconds")
    again.register("r", right.frame(spark), lateness="1 minute")
    with again:
        left.rows((1, 11, 99.0), (1, 12, 100.0))
        again.process_all_available()
        assert again.streams()[0].late == 1
        assert counted(again.rows("q"))[(12, 20)] == 1


def test_a_checkpoint_that_cannot_be_gone_on_from_is_refused(spark: Any, tmp_path: Path) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    with engine_on(spark, tmp_path) as engine:
        engine.create(PAIRS, name="q")
        left.rows((1, 10, 0.0))
        right.rows((1, 20, 1.0))
        engine.process_all_available()
    other = Engine(spark, tmp_path / "checkpoint")
    try:
        frame = FileStream(tmp_path / "l", "k BIGINT, p INT, ts TIMESTAMP_NTZ").frame(spark)
        with pytest.raises(SchemaError, match="other columns"):
            other.register("l", frame, lateness="1 minute")
        more = FileStream(tmp_path / "l", "k BIGINT, p BIGINT, ts TIMESTAMP_NTZ, more INT").frame(spark)
        with pytest.raises(SchemaError, match="which only an engine without Spark can add"):
            other.register("l", more, lateness="1 minute")
        with pytest.raises(CheckpointError, match=r"is read from parquet path=.*/l, and not from parquet path=.*/r"):
            other.register("l", right.frame(spark), lateness="1 minute")
        with pytest.raises(CheckpointError, match=r"and not from rate,"):
            columns = ["value AS k", "value AS p", "CAST(timestamp AS TIMESTAMP_NTZ) AS ts"]
            other.register("l", spark.readStream.format("rate").load().selectExpr(*columns), lateness="1 minute")
        other.start()
        assert "not registered" in str(other.streams()[0].error)
    finally:
        other.stop()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="no checkpoint of an ad-hoc engine"):
        Engine(spark, tmp_path / "foreign")
    spark_part = tmp_path / "checkpoint" / "streams" / "l"
    spark_part.rename(tmp_path / "moved")
    halved = engine_on(spark, tmp_path)
    with pytest.raises(CheckpointError, match="is incomplete"):
        halved.start()
    (tmp_path / "moved").rename(spark_part)
