"""What a Spark user does today for a band join of two streams, and a runner that times a streaming query.

Spark has no stream-stream join without an equality. The way around it: cut the key axis into cells, copy each
left row to every cell its band touches, join on equality of the cell, and test the exact band afterwards. A
right row lies in one cell, so no pair comes twice. Watermarks and a condition on event time bound the state.

The runner measures whole micro-batches as Spark reports them (planning, logs and state commits included) over
files written beforehand, into the sink that does nothing, the same for every query that is compared.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

SCHEMA = "ts timestamp, key long, payload long"

HDFS_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

# Chosen by single runs on two cores that had other work, so only wide gaps count. Thousand rows/s with 200,000
# tuples a side in the window, batches of 100,000 a side, match rate 2: HDFS-backed store 54-66; RocksDB 16, with a
# changelog 23, with that and join state format 3 or 4, 7 and 12; format 1 does not start. Cells of 1, 2, 4, 8 and
# 16 bands: 40, 46, 66, 48, 40. With 500,000 a side, 8 bands were ahead of 4 twice (18 to 16, 34 to 17): the two are
# too close to call here, so a comparison runs both and takes the better.
BEST_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": HDFS_PROVIDER,
    "spark.sql.streaming.join.stateFormatVersion": "2",
}
CELLS_IN_BANDS = (4, 8)
"""The sizes to try."""
BEST_MEMORY = "10g"
"""The HDFS-backed store keeps the window in the heap, so it gets plenty; whether less would do is not measured."""


def workaround(
    left_df: DataFrame, right_df: DataFrame, *, band: int, window_ms: int, cell: int, delay_ms: int = 0
) -> DataFrame:
    """Pairs with |l.key - r.key| <= band and |l.ts - r.ts| <= window_ms, by cells of `cell` keys.

    Both sides have `ts`, `key` and `payload`; a row more than `delay_ms` behind the newest is dropped.
    """
    if cell < 1:
        raise ValueError(f"a cell holds at least one key, not {cell}")
    delay = f"{delay_ms} milliseconds"
    window = F.expr(f"INTERVAL {window_ms} MILLISECONDS")
    left = left_df.withWatermark("ts", delay).select(
        F.col("ts").alias("ts_left"),
        F.col("key").alias("key_left"),
        F.col("payload").alias("payload_left"),
        F.explode(_cells_touched(F.col("key"), band, cell)).alias("cell_left"),
    )
    right = right_df.withWatermark("ts", delay).select(
        F.col("ts").alias("ts_right"),
        F.col("key").alias("key_right"),
        F.col("payload").alias("payload_right"),
        _cell(F.col("key"), cell).alias("cell_right"),
    )
    matches = (
        (F.col("cell_left") == F.col("cell_right"))
        & F.col("key_right").between(F.col("key_left") - band, F.col("key_left") + band)
        & F.col("ts_right").between(F.col("ts_left") - window, F.col("ts_left") + window)
    )
    return left.join(right, matches).drop("cell_left", "cell_right")


@dataclass(frozen=True)
class Batch:
    """One micro-batch as Spark reports it."""

    number: int
    rows: int
    seconds: float
    results: int
    state_rows: int


@dataclass(frozen=True)
class FilesRun:
    """A query's micro-batches; the first `skipped` of them filled the window and warmed the code."""

    batches: tuple[Batch, ...]
    skipped: int

    @property
    def steady(self) -> tuple[Batch, ...]:
        """The batches that count: after the skipped ones, with rows."""
        return tuple(batch for batch in self.batches[self.skipped :] if batch.rows)

    @property
    def rates(self) -> tuple[float, ...]:
        """Rows a second, both sides together, by batch."""
        return tuple(batch.rows / batch.seconds for batch in self.steady)

    @property
    def rows_per_second(self) -> float:
        """The median of `rates`."""
        return statistics.median(self.rates)

    @property
    def results(self) -> int:
        """Pairs of the whole run, the skipped batches included."""
        return sum(batch.results for batch in self.batches)


def run_files(
    spark: SparkSession,
    build: Callable[[DataFrame, DataFrame], DataFrame],
    left_dir: Path,
    right_dir: Path,
    *,
    checkpoint: Path,
    schema: str = SCHEMA,
    files_per_batch: int = 1,
    skip: int = 2,
    settings: Mapping[str, str] | None = None,
) -> FilesRun:
    """Run `build(left, right)` over both directories, `files_per_batch` files of each in a micro-batch.

    Results are counted and thrown away. `settings` hold for this query alone. The query ends with the files;
    its failure is raised here.
    """
    kept = {"spark.sql.streaming.numRecentProgressUpdates": "10000", **(settings or {})}
    with session_settings(spark, kept):
        left, right = (
            spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch).parquet(str(directory))
            for directory in (left_dir, right_dir)
        )
        counted = build(left, right).observe("results", F.count(F.lit(1)).alias("rows"))
        writer = counted.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        batches = tuple(_batch(progress) for progress in query.recentProgress)
    run = FilesRun(batches, skip)
    if not run.steady:
        raise ValueError(f"{len(batches)} batches leave none to measure after skipping {skip}: write more files")
    return run


def _cell(key: Column, cell: int) -> Column:
    """The first key of the cell that `key` lies in: floors below zero too, and divides nothing."""
    return key - F.pmod(key, F.lit(cell))


def _cells_touched(key: Column, band: int, cell: int) -> Column:
    return F.sequence(_cell(key - band, cell), _cell(key + band, cell), F.lit(cell))


def _batch(progress: Mapping[str, object]) -> Batch:
    durations, observed, states = (progress[key] for key in ("durationMs", "observedMetrics", "stateOperators"))
    assert isinstance(durations, Mapping) and isinstance(observed, Mapping) and isinstance(states, list)
    results = observed.get("results")
    return Batch(
        number=int(str(progress["batchId"])),
        rows=int(str(progress["numInputRows"])),
        seconds=durations["triggerExecution"] / 1000,
        results=results["rows"] if results else 0,
        state_rows=sum(state["numRowsTotal"] for state in states),
    )


@contextlib.contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings that hold for the queries started meanwhile."""
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
