"""What the experiments on Spark share: one session, files that a source reads in order, and a timed query over them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Cell, Context, Experiment
from benchmarks.workload import Side
from streamjoin.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIDES: tuple[Side, Side] = ("left", "right")
SCHEMA = "ts timestamp, key long, payload long"
ROW_BYTES = 24
"""A row of `SCHEMA`: a 16-byte tuple and its time."""
_LONGEST_MS = 120_000
"""How long to wait for Spark's listeners: on a busy machine the ten seconds that Spark gives them are too few."""
Build = Callable[["DataFrame", "DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Timed:
    """One micro-batch: rows, results, seconds by part, those of the tasks of each stage, and observed metrics."""

    rows: int
    results: int
    seconds: float
    parts: Mapping[str, float]
    stages: Sequence[Sequence[float]] = field(default=())
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def tasks(self) -> Sequence[float]:
        """The seconds of the tasks of the last stage."""
        return self.stages[-1] if self.stages else ()


class SparkExperiment(Experiment):
    """An experiment that runs streaming queries in one session."""

    unit = "rows/s"
    repeats = 1
    warmups = 0

    def __init__(self) -> None:
        self._spark: SparkSession | None = None
        self._runs = 0
        self.checkpoint: Path | None = None

    @property
    def spark(self) -> SparkSession:
        """The session, started by the first run."""
        if self._spark is None:
            self._spark = session(type(self).__name__, memory="4g", config={"spark.ui.enabled": False})
            self._spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
        return self._spark

    def close(self) -> None:
        """Stop Spark, if a run started it."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def timed(self, build: Build, files: Files, checkpoint: Path, per_batch: int = 1) -> list[Timed]:
        """Run `build(left, right)` over all files, `per_batch` of each side a batch, and throw the counted rows away.

        Every run has a checkpoint of its own next to `checkpoint`; the last one is in `self.checkpoint`.
        """
        from pyspark.sql import functions as f

        self._runs += 1
        checkpoint = checkpoint.with_name(f"{checkpoint.name}-{self._runs}")
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", per_batch)
        left, right = (reader.parquet(str(files.directory(side))) for side in SIDES)
        counted = build(left, right).observe("results", f.count(f.lit(1)).alias("rows"))
        writer = counted.writeStream.format("noop").trigger(availableNow=True)
        self.checkpoint = checkpoint
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()
        reports = query.recentProgress
        stages = self._stages(str(query.runId))
        return [
            Timed(
                int(progress["numInputRows"]),
                int(progress["observedMetrics"].get("results", {"rows": 0})["rows"]),
                progress["durationMs"]["triggerExecution"] / 1000,
                {part: ms / 1000 for part, ms in progress["durationMs"].items()},
                stages[i] if i < len(stages) else (),
                {name: row.asDict() for name, row in progress["observedMetrics"].items()},
            )
            for i, progress in enumerate(reports)
        ]

    def _stages(self, run: str) -> list[list[list[float]]]:
        """The seconds of each task, by stage, of each job of a query."""
        context = self.spark.sparkContext
        # Spark writes down what tasks did on a thread of its own.
        context._jsc.sc().listenerBus().waitUntilEmpty(_LONGEST_MS)
        tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
        found = []
        for job in sorted(tracker.getJobIdsForGroup(run)):
            info = tracker.getJobInfo(job)
            if info is not None and info.stageIds:
                lists = [store.taskList(stage, 0, 10_000) for stage in sorted(info.stageIds)]
                durations = [[tasks.apply(i).duration() for i in range(tasks.size())] for tasks in lists]
                found.append([[each.get() / 1000 for each in stage if each.isDefined()] for stage in durations])
        return found


class Files:
    """Two directories of files, one a batch, which a file source reads in order."""

    def __init__(self, context: Context, name: str) -> None:
        self._root = context.scratch / name

    def directory(self, side: Side) -> Path:
        """One side's files."""
        return self._root / side

    def write(self, tables: Callable[[Side], Sequence[pa.Table]]) -> Files:
        """Make the files, unless they are there."""
        for side in SIDES:
            directory = self.directory(side)
            if directory.exists():
                continue
            directory.mkdir(parents=True)
            for number, table in enumerate(tables(side)):
                path = directory / f"{number:06d}.parquet"
                pq.write_table(table, path)
                # Spark takes files in the order of their times, of which two may else be the same.
                os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        return self


def state_bytes(spark: SparkSession, checkpoint: Path | None) -> int:
    """What the log of a join takes on disk, once the last batch is tidied up after."""
    if checkpoint is None:
        raise ValueError("nothing ran yet")
    spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(_LONGEST_MS)
    return sum(path.stat().st_size for path in (checkpoint / "streamjoin").rglob("*") if path.is_file())


def steady(batches: Sequence[Timed], skip: int) -> list[Timed]:
    """The batches that count: with rows, after those that filled the window."""
    kept = [batch for batch in batches[skip:] if batch.rows]
    if not kept:
        raise ValueError(f"{len(batches)} batches leave none to measure after skipping {skip}")
    return kept


def speed(batches: Sequence[Timed]) -> float:
    """The median of rows a second."""
    return statistics.median(batch.rows / batch.seconds for batch in batches)


def same_results(seen: dict[Any, list[int]], key: Any, batches: Sequence[Timed], cell: Cell) -> None:
    """Fail unless every cell with `key` gave as many rows, batch by batch."""
    mine = [batch.results for batch in batches if batch.rows]
    if seen.setdefault(key, mine) != mine:
        raise AssertionError(f"{dict(cell)}: rows by batch are {mine}, but were {seen[key]} before")
