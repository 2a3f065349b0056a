"""The experiment's files and batches are what it says, both systems agree, and disagreement stops it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.harness import Context, measure
from benchmarks.spark import spark_band
from benchmarks.spark.spark_band import JOIN, NOTHING, STATE, WORKAROUND, Load, SparkBand, plan
from benchmarks.spark.spark_state import ROCKSDB, by_state, spread_keys
from benchmarks.spark.spark_workaround import SCHEMA, Batch, FilesRun, session_settings
from tests.spark.joining import run_to_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINT = {"window": 1_000, "batch": 600}


def ran(*results: int) -> FilesRun:
    return FilesRun(tuple(Batch(i, 10, 0.5, n, 0) for i, n in enumerate(results)), 1)


def test_the_first_files_are_the_window_and_the_rest_are_batches(tmp_path: Path) -> None:
    load = Load(POINT, Context(3, True, tmp_path))
    for side, directory in zip(spark_band.SIDES, load.directories(2), strict=True):
        files = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime)
        tables = [pq.read_table(path) for path in files]
        assert [table.num_rows for table in tables] == [200] * 5 + [300, 300]
        whole = load.data.timed_table(side, 0, 1_600, 1_000)
        assert [row for table in tables for row in table.to_pylist()] == whole.to_pylist()
    assert load.directories(1) != load.directories(2)
    assert load.window_ms == 1_000


@pytest.mark.parametrize("quick", [True, False])
def test_every_join_has_the_others_beside_it(quick: bool) -> None:
    cells = list(SparkBand().cells(quick))
    joins = [cell for cell in cells if cell["system"] == JOIN and cell["batch"] > 100]
    assert all({**cell, "system": system} in cells for cell in joins for system in (WORKAROUND, STATE))
    assert len(joins) == (1 if quick else 4)
    plans = [plan(cell["batch"], quick, cell["system"]) for cell in cells]
    assert all(each.measured >= 2 and each.settling for each in plans)


def test_different_numbers_of_rows_stop_the_experiment() -> None:
    experiment = SparkBand()
    experiment._agree({**POINT, "system": JOIN}, "join", ran(5, 6, 7, 8))
    experiment._agree({**POINT, "system": WORKAROUND}, "cells of 4 bands", ran(5, 6))
    experiment._agree({**POINT, "window": 9, "system": WORKAROUND}, "cells of 4 bands", ran(0, 0))
    with pytest.raises(AssertionError, match=r"\[5, 7\] with cells of 8 bands and \[5, 6\] with join"):
        experiment._agree({**POINT, "system": WORKAROUND}, "cells of 8 bands", ran(5, 7))


def test_the_verdict_names_ratios_aims_and_floor() -> None:
    speeds = {JOIN: 1_200_000.0, WORKAROUND: 40_000.0, STATE: 300_000.0}
    rows: list[dict[str, Any]] = [
        {"window": 1_000_000, "batch": batch, "system": system, "rows_per_s": speed, "batch_s": 0.5}
        for batch in (100_000, 1_000_000)
        for system, speed in speeds.items()
    ]
    for row in rows:
        if row["system"] != WORKAROUND:
            row["ratio"] = row["rows_per_s"] / 40_000 if row["batch"] == 1_000_000 else 1.5
            row["state"] = 1.25
    floors = [
        {"window": 1, "batch": 20, "system": s, "rows_per_s": 1.0, "batch_s": t}
        for s, t in ((JOIN, 0.4), (NOTHING, 0.2))
    ]
    small, large, floor, bound = SparkBand().verdict([*rows, *floors])
    tail = "4 times transformWithState; on disk 1.25 times the window's rows of 24 bytes (aim 1.5: met)"
    head = "window 1,000,000 a side, batches of"
    assert small == f"{head} 100,000: 1.20 M rows/s, 1.5 times the workaround (aim 20: missed), {tail}"
    assert large == f"{head} 1,000,000: 1.20 M rows/s (aim 1 M: met), 30 times the workaround (aim 20: met), {tail}"
    assert floor.startswith("a batch of 20 rows takes 0.40 s with the join and 0.20 s in Spark without one")
    assert bound.startswith(f"{head} 100,000: 20 times can't be reached")
    assert bound.endswith("would make 6.25 times the workaround's rows")


@pytest.mark.spark
@pytest.mark.thorough
def test_a_small_grid_runs_and_agrees(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(SparkBand):
        def __init__(self) -> None:
            super().__init__()
            self._spark = spark

        def cells(self, quick: bool) -> list[dict[str, Any]]:
            return [{**POINT, "system": system} for system in (JOIN, WORKAROUND, STATE)]

        def close(self) -> None:
            """The session is shared."""

    monkeypatch.setattr(spark_band, "plan", lambda *_: spark_band.Plan(measured=1, settling=0))
    small = Small()
    ours, theirs, state = measure(small, quick=True)
    assert len(small._results) == 4
    assert state["ratio"] == state["rows_per_s"] / theirs["rows_per_s"]
    assert 0.9 < ours["state"] < 3
    assert ours["ratio"] == ours["rows_per_s"] / theirs["rows_per_s"]
    assert 1.5 < ours["match_rate"] < 2.5


def test_large_batches_run_the_better_size_of_cells_to_the_end(tmp_path: Path) -> None:
    speeds, ran_ = {4: 2.0, 8: 0.5}, []

    class Timed(SparkBand):
        def _in_cells(self, cell: Any, load: Load, plan_: spark_band.Plan, bands: int) -> FilesRun:
            ran_.append((bands, plan_))
            return FilesRun((Batch(0, 1, 1.0, 1, 0), Batch(1, 10, speeds[bands], 1, 0)), 1)

    def run(batch: int) -> Any:
        cell = {**POINT, "batch": batch, "system": WORKAROUND}
        ran_.clear()
        return Timed()._workaround(cell, Load(cell, Context(3, True, tmp_path)), plan(batch, False))

    assert run(1_000_000)["rows_per_s"] == 20
    assert ran_ == [(4, spark_band.Plan(1, 0)), (8, spark_band.Plan(1, 0)), (8, plan(1_000_000, False))]
    assert run(100_000)["rows_per_s"] == 20
    assert ran_ == [(4, plan(100_000, False)), (8, plan(100_000, False))]


@pytest.mark.spark
@pytest.mark.thorough
def test_the_join_on_the_state_store_finds_every_pair(spark: SparkSession, tmp_path: Path) -> None:
    load = Load(POINT, Context(3, True, tmp_path))
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    left, right = (reader.parquet(str(directory)) for directory in load.directories(3))
    with session_settings(spark, ROCKSDB):
        found = run_to_parquet(by_state(left, right, load.spec, load.data.domain), tmp_path)
    keys = {side: load.data.keys(side, 0, 1_900) for side in spark_band.SIDES}
    near = np.abs(keys["left"][:, None] - keys["right"][None, :]) <= load.data.band
    numbers = np.arange(1_900)
    near &= np.abs(numbers[:, None] - numbers[None, :]) <= load.window_ms
    pairs = zip(found["payload_left"].to_pylist(), found["payload_right"].to_pylist(), strict=True)
    assert sorted(pairs) == [(int(l), int(r)) for l, r in np.argwhere(near)]
    assert len(set(spread_keys(spark, 5))) == 5
