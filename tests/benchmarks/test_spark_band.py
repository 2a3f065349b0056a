"""The experiment's files and batches are what it says, both systems agree, and disagreement stops it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from benchmarks import spark_band
from benchmarks.harness import Context, measure
from benchmarks.spark_band import JOIN, NOTHING, WORKAROUND, Load, SparkBand, plan
from benchmarks.spark_workaround import Batch, FilesRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINT = {"window": 1_000, "batch": 600}


def ran(*results: int) -> FilesRun:
    return FilesRun(tuple(Batch(i, 10, 0.5, n, 0) for i, n in enumerate(results)), 1)


def test_the_first_file_is_the_window_and_the_rest_are_batches(tmp_path: Path) -> None:
    load = Load(POINT, Context(3, True, tmp_path))
    for side, directory in zip(spark_band.SIDES, load.directories(2), strict=True):
        files = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime)
        tables = [pq.read_table(path) for path in files]
        assert [table.num_rows for table in tables] == [1_000, 300, 300]
        whole = load.data.timed_table(side, 0, 1_600, 1_000)
        assert [row for table in tables for row in table.to_pylist()] == whole.to_pylist()
    assert load.directories(1) != load.directories(2)
    assert load.window_ms == 1_000


@pytest.mark.parametrize("quick", [True, False])
def test_every_join_has_the_workaround_beside_it(quick: bool) -> None:
    cells = list(SparkBand().cells(quick))
    joins = [cell for cell in cells if cell["system"] == JOIN and cell["batch"] > 100]
    assert all({**cell, "system": WORKAROUND} in cells for cell in joins)
    assert len(joins) == (1 if quick else 4)
    for cell in cells:
        steps = plan(cell["batch"], quick)
        assert steps.join >= steps.workaround >= 1


def test_different_numbers_of_rows_stop_the_experiment() -> None:
    experiment = SparkBand()
    experiment._agree({**POINT, "system": JOIN}, "join", ran(5, 6, 7, 8))
    experiment._agree({**POINT, "system": WORKAROUND}, "cells of 4 bands", ran(5, 6))
    experiment._agree({**POINT, "window": 9, "system": WORKAROUND}, "cells of 4 bands", ran(0, 0))
    with pytest.raises(AssertionError, match=r"\[5, 7\] with cells of 8 bands and \[5, 6\] with join"):
        experiment._agree({**POINT, "system": WORKAROUND}, "cells of 8 bands", ran(5, 7))


def test_the_verdict_names_ratio_aim_and_floor() -> None:
    speeds = {JOIN: 900_000.0, WORKAROUND: 30_000.0}
    rows: list[dict[str, Any]] = [
        {"window": w, "batch": 100_000, "system": system, "rows_per_s": speed, "batch_s": 0.5}
        for w in (100_000, 1_000_000)
        for system, speed in speeds.items()
    ]
    for row in rows:
        if row["system"] == JOIN:
            row["ratio"] = 30.0 if row["window"] == 1_000_000 else 1.5
    floors = [
        {"window": 1, "batch": 20, "system": s, "rows_per_s": 1.0, "batch_s": t}
        for s, t in ((JOIN, 0.4), (NOTHING, 0.2))
    ]
    lines = SparkBand().verdict([*rows, *floors])
    assert lines == [
        "window 100,000 a side, batches of 100,000: 900 k rows/s, 1.5 times the workaround",
        "window 1,000,000 a side, batches of 100,000: 900 k rows/s, 30 times the workaround; aim 20: met",
        "a batch of 20 rows takes 0.40 s with the join and 0.20 s in Spark without one: no batch is faster than that",
    ]


@pytest.mark.spark
def test_a_small_grid_runs_and_agrees(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(SparkBand):
        def __init__(self) -> None:
            super().__init__()
            self._spark = spark

        def cells(self, quick: bool) -> list[dict[str, Any]]:
            return [{**POINT, "system": system} for system in (JOIN, WORKAROUND)]

        def close(self) -> None:
            """The session is shared."""

    monkeypatch.setattr(spark_band, "plan", lambda batch, quick: spark_band.Plan(join=2, workaround=1, settling=0))
    small = Small()
    ours, theirs = measure(small, quick=True)
    assert len(small._results) == 3
    assert ours["ratio"] == ours["rows_per_s"] / theirs["rows_per_s"]
    assert 1.5 < ours["match_rate"] < 2.5
