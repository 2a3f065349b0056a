"""A program that joins files into Parquet, by every kind of join at once, and ends; the test kills it meanwhile."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import streamjoin as sj
from streamjoin.spark import Source, session
from streamjoin.spark.stream_join import Options, build
from streamjoin.storage.merging import MergePolicy
from tests.conftest import QUICK_START
from tests.spark.joining import CASES, streams
from tests.spark.three_sources import COUNT_SPEC, SPEC, read_source

TIME_CASE = next(case for case in CASES if case.name == "key, two bands and a condition")
CONNECT = "connect "
"""Before a master: a Spark Connect server there."""
KINDS = ("time", "arrival", "full", "as_of", "summary", "ordered")
FULL_SPEC = replace(COUNT_SPEC, how="full")
ARRIVAL_SPEC = replace(COUNT_SPEC, how="full", window=sj.TimeWindow(6))
AS_OF_SPEC = sj.JoinSpec(sj.Equi("x"), match=sj.AsOf("nearest", 6), time="t", order="event_time", how="left")
SUMMARY_SPEC = sj.JoinSpec(
    sj.Equi("x"),
    match=sj.Summary(
        {"n": "count(*)", "s": "sum(r.id * 0.1)", "top": "max(r.id)", "mid": "median(r.t)"}, (-9, 3), prevailing=True
    ),
    time="t",
    order="event_time",
    how="left",
)
# Batches fold only what is tiny, so that merges run in the background; the join by time also moves the rest of runs.
BACKGROUND = MergePolicy(slack=150, floor=0, runs=1, inline=0, expired=1000)
MOVING = replace(BACKGROUND, expired=20)

SETTINGS = {
    **QUICK_START,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    # However often a task or an executor is killed, it is started again.
    "spark.task.maxFailures": 1000,
    "spark.stage.maxConsecutiveAttempts": 1000,
    "spark.deploy.maxExecutorRetries": -1,
    # A sink's log stays one file a batch.
    "spark.sql.streaming.fileSink.log.compactInterval": 1000,
}


def joined(
    spark: Any, directory: Path, kind: str, partitions: int, per_batch: int = 1, late: Path | None = None
) -> Any:
    """The join of one kind over the files of `directory`."""
    # Also the few rows of a test go from task to task in files, where all tasks run on one host.
    options: dict[str, Any] = {"partitions": partitions, "most_partitions": 4, "late": late and str(late), "spool": 1}
    if kind == "time":
        sides = streams(spark, directory, TIME_CASE.left, TIME_CASE.right, per_batch)
        return build(*sides, TIME_CASE.bound_spec(), Options(**options), MOVING)
    if kind == "arrival":
        left, right = (read_source(spark, directory / name, per_batch) for name in "ac")
        return build(left, right, ARRIVAL_SPEC, Options(**options), MOVING)
    a, b, c = (Source(read_source(spark, directory / name, per_batch), position="id") for name in "abc")
    if kind == "summary":
        return build(a, c, SUMMARY_SPEC, Options(**options, ordered=True), BACKGROUND)
    if kind != "ordered":
        return build(a, c, FULL_SPEC if kind == "full" else AS_OF_SPEC, Options(**options), BACKGROUND)
    return build([a, b], c, SPEC, Options(**options, ordered=True, positions=True), BACKGROUND)


def started(frame: Any, directory: Path) -> Any:
    """A query over all that is there."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    return writer.option("path", str(directory / "out")).trigger(availableNow=True).start()


def main(directory: Path, master: str, partitions: int) -> None:
    if master.startswith(CONNECT):
        # A port of its own: other tests may run a server at the usual one.
        os.environ["SPARK_TESTING"] = "1"
        spark = session("exactly once", remote=master.removeprefix(CONNECT), memory="512m", config=SETTINGS)
    else:
        spark = session("exactly once", master, memory="512m", config=SETTINGS)
    frames = [joined(spark, directory, kind, partitions, late=directory / kind / "late") for kind in KINDS]
    queries = [started(frame, directory / kind) for frame, kind in zip(frames, KINDS, strict=True)]
    # It ends right after its last batch, whatever Spark's listeners have not been told yet.
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
