"""The distributed ad-hoc engine: no row in the driver, shares of state, sinks that tasks write to, and restarts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from streamjoin.adhoc import CallbackSink, Engine, ParquetSink, Settings
from streamjoin.adhoc.executors.distributed import executor as distributed_executor
from streamjoin.adhoc.executors.distributed import loop as distributed_loop
from streamjoin.model.errors import CheckpointError, SpecError, StateError
from tests.spark.adhoc_streams import PAIRS, FileStream, counted, engine_on, written

pytestmark = pytest.mark.spark


def test_no_row_passes_the_driver_and_cells_share_the_state(spark: Any, tmp_path: Path) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    with engine_on(spark, tmp_path, newest_rows=0) as engine:
        engine.create(PAIRS, name="pairs", sink=ParquetSink(str(tmp_path / "out")))
        wanted: Counter[Any] = Counter()
        for step in range(3):
            left.rows(*((key, 100 * step + key, 20.0 * step) for key in range(64)))
            right.rows(*((key, 100 * step + key, 20.0 * step + 1) for key in range(64)))
            wanted += Counter((100 * step + key, 100 * step + key) for key in range(64))
        left.rows((1, 1, 0.0), (1, 9, 40.0))
        wanted[9, 201] += 1
        engine.process_all_available()
        metrics, tasks = engine.metrics(), engine.explain().tasks
        assert engine.query("pairs").rows == sum(wanted.values())
        assert engine.late("l")["p"].to_pylist() == [1]
        assert engine.streams()[0].late == 1
    assert metrics.driver_rows == 0
    assert metrics.rows_in == 6 * 64 + 2
    assert metrics.partitions == len(tasks) == 2
    held = [task.tuples for task in tasks]
    assert all(0.3 * sum(held) < share < 0.7 * sum(held) for share in held), held
    assert written(tmp_path / "out") == wanted


def test_sinks_of_the_driver_get_all_rows_and_views_the_newest(spark: Any, tmp_path: Path) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    calls: Counter[Any] = Counter()
    with engine_on(spark, tmp_path, newest_rows=2) as engine:
        engine.create(PAIRS, name="called", sink=CallbackSink(lambda _, rows: calls.update(counted(rows))))
        engine.create(PAIRS, name="files", sink=ParquetSink(str(tmp_path / "out")))
        left.rows(*((key, key, 0.0) for key in range(20)))
        right.rows(*((key, key, 1.0) for key in range(20)))
        engine.process_all_available()
        everything = Counter((key, key) for key in range(20))
        assert calls == everything
        assert engine.newest("files", 100).total == 20
        assert engine.rows("files").num_rows == 2
        # All rows for the function, and the newest of each cell for the view.
        assert engine.metrics().driver_rows == 20 + 2 * 2
    assert written(tmp_path / "out") == everything


def test_a_sink_that_refuses_has_its_rows_kept_and_gets_them_once(spark: Any, tmp_path: Path) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    out = tmp_path / "out"
    with engine_on(spark, tmp_path) as engine:
        engine.create(PAIRS, name="bad", sink=ParquetSink(str(out)))
        engine.create(PAIRS, name="good")
        out.rmdir()
        out.write_text("in the way")
        left.rows(*((key, key, 0.0) for key in range(8)))
        right.rows(*((key, key, 1.0) for key in range(8)))
        engine.process_all_available()
        info = engine.query("bad")
        assert (info.rows, info.rows_undelivered) == (0, 8)
        assert engine.query("good").rows == 8
        out.unlink()
        engine.resume("bad")
        left.rows((1, 50, 2.0))
        engine.process_all_available()
    assert written(out) == Counter([*((key, key) for key in range(8)), (50, 1)])


def test_rows_that_were_listed_before_a_crash_are_not_computed_again(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    engine = engine_on(spark, tmp_path, cells=3)
    with engine:
        engine.create(PAIRS, name="q", sink=ParquetSink(str(tmp_path / "out")))
        left.rows(*((key, key, 0.0) for key in range(9)))
        right.rows(*((key, key, 1.0) for key in range(9)))
        with monkeypatch.context() as patch:
            names = iter(range(100))

            def publish(hidden: str, name: str) -> None:
                if next(names):
                    raise RuntimeError("the process dies here")
                Path(hidden).rename(tmp_path / "out" / name)

            patch.setattr(distributed_loop, "publish", publish)
            with pytest.raises(StateError, match="dies here"):
                engine.wait(60)
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1
    with pytest.raises(CheckpointError, match="distributed"):
        Engine(spark, tmp_path / "checkpoint")
    with monkeypatch.context() as patch:
        patch.setattr(distributed_executor, "run_cells", lambda *_: pytest.fail("computed again"))
        with engine_on(spark, tmp_path, cells=2) as engine:
            engine.process_all_available()
            assert engine.query("q").rows == 9
    with engine_on(spark, tmp_path, cells=1) as engine:
        left.rows((3, 30, 2.0))
        engine.process_all_available()
        assert engine.query("q").rows == 10
    assert written(tmp_path / "out") == Counter([*((key, key) for key in range(9)), (30, 3)])


def test_what_it_refuses(spark: Any, tmp_path: Path) -> None:
    for options in ({"executor": "elsewhere"}, {"executor": "distributed", "partitions": 0}):
        with pytest.raises(SpecError, match=r"executor is|partitions"):
            Engine(spark, tmp_path / "checkpoint", **options)
    with pytest.raises(SpecError, match="share nothing"):
        Engine(spark, tmp_path / "checkpoint", Settings(sharing="nothing"), executor="distributed")
    with pytest.raises(SpecError, match="runs on Spark"):
        Engine(executor="distributed")
