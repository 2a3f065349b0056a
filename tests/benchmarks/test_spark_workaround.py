"""Spark's workaround gives the rows of a plain join, and the runner reports what it ran."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from benchmarks.spark.spark_workaround import SCHEMA, run_files, session_settings, workaround
from benchmarks.workload import BandWorkload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS, FILES, STEP_US, WINDOW_MS = 200, 4, 1_000, 100
WORKLOAD = BandWorkload(window=ROWS, match_rate=6, seed=5, domain=1 << 20)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("feeds")
    for side in ("left", "right"):
        WORKLOAD.write_files(root / side, side, ROWS, FILES, STEP_US)
    return root / "left", root / "right"


def plain_join(spark: SparkSession, left: Path, right: Path) -> list[tuple[int, int]]:
    """The batch join of the same files, as (left payload, right payload)."""
    left_df, right_df = (
        spark.read.schema(SCHEMA).parquet(str(directory)).alias(name) for directory, name in ((left, "l"), (right, "r"))
    )
    near = F.abs(F.col("l.key") - F.col("r.key")) <= WORKLOAD.band
    apart = F.unix_micros("l.ts") - F.unix_micros("r.ts")
    rows = left_df.join(right_df, near & (F.abs(apart) <= WINDOW_MS * 1000))
    return sorted((row[0], row[1]) for row in rows.select("l.payload", "r.payload").collect())


@pytest.mark.parametrize("cells_a_band", [0.3, 4])
@pytest.mark.thorough
def test_workaround_equals_a_batch_join(
    spark: SparkSession, files: tuple[Path, Path], tmp_path: Path, cells_a_band: float
) -> None:
    cell = max(1, round(WORKLOAD.band * cells_a_band))
    left, right = files

    def build(left_df: DataFrame, right_df: DataFrame) -> DataFrame:
        return workaround(left_df, right_df, band=WORKLOAD.band, window_ms=WINDOW_MS, cell=cell)

    streams = [spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(path)) for path in files]
    query = (
        build(*streams)
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    out = spark.read.parquet(str(tmp_path / "out"))
    pairs = sorted((row.payload_left, row.payload_right) for row in out.collect())
    assert pairs == plain_join(spark, left, right)
    assert len(pairs) > ROWS, "the workload must join something"


@pytest.mark.thorough
def test_runner_counts_every_row_and_pair(spark: SparkSession, files: tuple[Path, Path], tmp_path: Path) -> None:
    shuffles = spark.conf.get("spark.sql.shuffle.partitions")
    run = run_files(
        spark,
        lambda left, right: workaround(left, right, band=WORKLOAD.band, window_ms=WINDOW_MS, cell=4 * WORKLOAD.band),
        *files,
        checkpoint=tmp_path / "checkpoint",
        skip=1,
        settings={"spark.sql.shuffle.partitions": "1"},
    )
    assert spark.conf.get("spark.sql.shuffle.partitions") == shuffles
    assert sum(batch.rows for batch in run.batches) == 2 * ROWS * FILES
    assert run.results == len(plain_join(spark, *files))
    assert len(run.steady) == FILES - 1
    assert min(run.rates) <= run.rows_per_second <= max(run.rates)


def test_settings_are_put_back_also_after_a_failure(spark: SparkSession) -> None:
    key = "spark.sql.streaming.join.stateFormatVersion"
    before = spark.conf.get(key)
    with pytest.raises(RuntimeError, match="stop"), session_settings(spark, {key: "1"}):
        assert spark.conf.get(key) == "1"
        raise RuntimeError("stop")
    assert spark.conf.get(key) == before


def test_cell_must_hold_a_key(spark: SparkSession) -> None:
    frame = spark.range(0).select(F.current_timestamp().alias("ts"), F.col("id").alias("key"))
    with pytest.raises(ValueError, match="at least one key"):
        workaround(frame, frame, band=1, window_ms=1, cell=0)
