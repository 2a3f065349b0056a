"""What the AJoin experiments on Spark share: streams as files, and three ways to run queries over the same files.

*Engine*: one ad-hoc engine for all queries. *One Spark query each*: what Spark offers, a stream-stream join on
equality with a condition on event time, selections before it and watermarks that bound its state. *spark.join*: this
library's join of two streams. Every way materializes all columns of all rows and counts them by query.

A rate is measured with files waiting, so that every system takes tuples as fast as it can, which is how the paper's
driver serves them. The first files are not counted: they start Spark's machinery and fill the windows.
"""

from __future__ import annotations

import operator
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streamjoin as sj
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.spark.spark_workaround import BEST_SETTINGS, session_settings
from streamjoin.adhoc import Engine, Settings
from streamjoin.queries.engine.info import BatchEvent
from streamjoin.queries.sinks.base import Sink
from streamjoin.spark import join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DDL: Final = ", ".join([*(f"a{n} BIGINT" for n in range(ajoin.ATTRIBUTES)), f"{ajoin.TIME} TIMESTAMP"])
# What a user who runs many joins in one session would set, besides the better state store.
SPARK_SETTINGS: Final = {
    **BEST_SETTINGS,
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}
_POLL: Final = 0.02
_Compare = Callable[[Any, Any], Any]
OPERATORS: Final[dict[str, _Compare]] = {
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


def timed(table: pa.Table) -> pa.Table:
    """The tuples with times that Spark takes as instants, without which it has no watermark."""
    place = table.schema.get_field_index(ajoin.TIME)
    return table.set_column(place, ajoin.TIME, table.column(ajoin.TIME).cast(pa.timestamp("us", "UTC")))


@dataclass(frozen=True)
class StreamFiles:
    """A directory for each stream, with files of `batch` tuples each, at `rate` tuples a second of event time."""

    root: Path
    streams: tuple[str, ...]
    batch: int
    files: int
    rate: float
    seed: int
    keys: int = 1
    """How many times the values of the other attributes the first one has."""

    def write(self) -> StreamFiles:
        """Make the files, unless they are there."""
        for number, stream in enumerate(self.streams):
            directory = self.directory(stream)
            directory.mkdir(parents=True, exist_ok=True)
            for file in range(len(list(directory.iterdir())), self.files):
                tuples = ajoin.tuples(number, self.batch, self.seed, rate=self.rate, first=file * self.batch)
                if self.keys > 1:
                    place = np.arange(file * self.batch, (file + 1) * self.batch) % self.keys
                    tuples = tuples.set_column(0, "a0", pa.array(tuples.column(0).to_numpy() * self.keys + place))
                path = directory / f"{file:06d}.parquet"
                pq.write_table(timed(tuples), path)
                # Spark takes files in the order of their times, of which two may else be the same.
                os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))
        return self

    def directory(self, stream: str) -> Path:
        """One stream's files."""
        return self.root / f"{self.batch}-{self.files}" / stream

    def frame(self, spark: SparkSession, stream: str) -> DataFrame:
        """A stream that reads one file a batch."""
        reader = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.directory(stream)))

    @property
    def tuples(self) -> int:
        """Of all streams."""
        return self.batch * self.files * len(self.streams)


@dataclass(frozen=True)
class Ran:
    """What a system did: tuples of the input a second, rows by query, and in words how far it came."""

    tuples_per_s: float
    rows: tuple[int, ...]
    whole: bool = True
    how: str = ""
    deploy_s: float = 0.0
    deploy_batches: int = 0
    """Batches from the call that creates a query to the first that it sees."""
    batches: int = 0


# The engine ---------------------------------------------------------------------------------------------------------


def run_engine(
    spark: SparkSession,
    files: StreamFiles,
    queries: Sequence[ajoin.AJoinQuery],
    settings: Settings,
    checkpoint: Path,
    *,
    warm: int,
    options: Mapping[str, Any] | None = None,
    sink: Callable[[str], Sink] | None = None,
    one_more: bool = False,
) -> Ran:
    """All queries in one engine, created before the streams start; the first `warm` files of a stream don't count.

    `options` are further ones of the engine. With `one_more`, a query is created half way, to see when it is in force.
    """
    events: list[BatchEvent] = []
    engine = Engine(spark, checkpoint, settings, **(options or {}))
    engine.on_batch(events.append)
    try:
        for stream in files.streams:
            engine.register(stream, files.frame(spark, stream), time=ajoin.TIME)
        handles = [engine.create(query.text, name=f"q{n}", sink=sink, wait=False) for n, query in enumerate(queries)]
        begin = time.perf_counter()
        engine.start()
        for handle in handles:
            handle.wait(timeout=120.0)
        deployed = time.perf_counter() - begin
        waited = 0
        if one_more:
            await_rows(engine, files.tuples // 2)
            asked = engine.metrics().batches
            waited = engine.create(queries[0].text, name="more", sink=sink).info().created_batch - asked
        await_rows(engine, files.tuples)
        engine.process_all_available()
        rows = tuple(handle.info().rows for handle in handles)
        seconds, batches = dict(engine.metrics().seconds), engine.metrics().batches
    finally:
        engine.stop()
    most = sorted(seconds, key=lambda part: -seconds[part])[:2]
    how = ", ".join(f"{part} {seconds[part]:.2f} s" for part in most)
    rate = input_rate(events, warm * files.batch * len(files.streams))
    return Ran(rate, rows, how=how, deploy_s=deployed, deploy_batches=waited, batches=batches)


def await_rows(engine: Engine, tuples: int) -> None:
    """Wait until the engine's batches had this many tuples."""
    while engine.metrics().rows_in < tuples:
        if engine.wait(_POLL):
            raise RuntimeError(f"the engine ended after {engine.metrics().rows_in} of {tuples} tuples")


def input_rate(events: Sequence[BatchEvent], skipped: int) -> float:
    """Tuples a second from the end of the batch that brought the first `skipped` tuples to the end of the last."""
    had, begin, counted = 0, None, 0
    end = 0.0
    for event in events:
        rows = sum(event.rows_in.values())
        if begin is not None and rows:
            counted, end = counted + rows, event.at
        had += rows
        if begin is None and had >= skipped:
            begin = event.at
    if begin is None or not counted:
        raise ValueError(f"{had} tuples leave none to measure after skipping {skipped}")
    return counted / (end - begin)


# spark.join and Spark's own -----------------------------------------------------------------------------------------


def library_join(frames: Sequence[DataFrame], query: ajoin.AJoinQuery) -> DataFrame:
    """A two-way query by `spark.join`."""
    spec = sj.JoinSpec(
        on=sj.Equi(*(f"a{attribute}" for attribute in query.links[0])),
        window=sj.TimeWindow(f"{query.window_seconds} seconds"),
        time=ajoin.TIME,
        order="event_time",
    )
    sides = [_selected(frame, x) for frame, x in zip(frames, query.selections, strict=True)]
    return join(sides[0], sides[1], spec)


def spark_join(frames: Sequence[DataFrame], query: ajoin.AJoinQuery) -> DataFrame:
    """A query of any number of streams as Spark's own joins; the columns of stream n begin with `sn_`."""
    from pyspark.sql import functions as f

    sides = [
        _selected(frame, selection)
        .select(*(f.col(c).alias(f"s{n}_{c}") for c in frame.columns))
        .withWatermark(f"s{n}_{ajoin.TIME}", "0 seconds")
        for n, (frame, selection) in enumerate(zip(frames, query.selections, strict=True))
    ]
    window = f.expr(f"INTERVAL {query.window_seconds} SECONDS")

    def joined(so_far: DataFrame, number: int) -> DataFrame:
        left, right = query.links[number - 1]
        earlier, later = f.col(f"s{number - 1}_{ajoin.TIME}"), f.col(f"s{number}_{ajoin.TIME}")
        same = f.col(f"s{number - 1}_a{left}") == f.col(f"s{number}_a{right}")
        return so_far.join(sides[number], same & later.between(earlier - window, earlier + window))

    return reduce(joined, range(1, len(sides)), sides[0])


def _selected(frame: DataFrame, selection: ajoin.Selection) -> DataFrame:
    column = frame[f"a{selection.attribute}"]
    return frame.where(OPERATORS[selection.operator](column, selection.value))


def start_counted(frame: DataFrame, checkpoint: Path) -> StreamingQuery:
    """Start a query over all files that counts its rows and throws them away."""
    from pyspark.sql import functions as f

    counted = frame.observe("results", f.count(f.lit(1)).alias("rows"))
    writer = counted.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def run_each(
    spark: SparkSession,
    frames: Sequence[Callable[[], DataFrame]],
    checkpoint: Path,
    *,
    warm: int,
    limit: float,
    batch: int,
) -> Ran:
    """A streaming query for each frame, all at once, each with its own reading and state; at most `limit` seconds.

    The rate is that of one stream of tuples that all of them follow: the mean of theirs. They run side by
    side from the first counted batch on; that the first to end leaves its processors to the others counts for them. At
    the limit the batch of `batch` tuples that each was in counts as ended: the rate is then one that they do not reach.
    """
    begin = time.perf_counter()
    started: list[StreamingQuery] = []
    try:
        with session_settings(spark, SPARK_SETTINGS):
            for number, frame in enumerate(frames):
                started.append(start_counted(frame(), checkpoint / str(number)))
                if time.perf_counter() - begin > limit:
                    break
        deployed = time.perf_counter() - begin
        for query in started:
            left = max(0.001, limit - (time.perf_counter() - begin))
            query.awaitTermination(left)  # type: ignore[arg-type]  # takes fractions of a second too
        whole = len(started) == len(frames) and not any(query.isActive for query in started)
        elapsed = time.perf_counter() - begin
        progress = [[p for p in query.recentProgress if p["numInputRows"]] for query in started]
    finally:
        stop_all(started)
    rows = tuple(sum(_results(p) for p in batches) for batches in progress)
    if whole:
        rate = statistics.mean(steady_rate(batches, warm) for batches in progress)
        return Ran(rate, rows, how=f"all started within {deployed:.1f} s", deploy_s=deployed)
    with_batch = sum(bool(batches) for batches in progress)
    had = sum(int(p["numInputRows"]) for batches in progress for p in batches) + batch * len(started)
    how = f"{len(started)} of {len(frames)} had started and {with_batch} had ended a batch after {elapsed:.0f} s"
    return Ran(had / elapsed / len(frames), rows, whole=False, how=how, deploy_s=deployed)


def stop_all(queries: Sequence[StreamingQuery]) -> None:
    """Stop them side by side: each waits for its own batch to give up."""
    if queries:
        with ThreadPoolExecutor(min(32, len(queries))) as pool:
            list(pool.map(lambda query: query.stop(), queries))


def steady_rate(progress: Sequence[Mapping[str, Any]], warm: int) -> float:
    """Tuples a second from the start of the first counted batch to the end of the last."""
    counted = progress[warm:]
    if not counted:
        raise ValueError(f"{len(progress)} batches leave none to measure after skipping {warm}")
    first, last = counted[0], counted[-1]
    span = _began(last) + last["durationMs"]["triggerExecution"] / 1000 - _began(first)
    return float(sum(int(p["numInputRows"]) for p in counted) / span)


def _began(progress: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(progress["timestamp"]).timestamp()


def _results(progress: Mapping[str, Any]) -> int:
    observed = progress["observedMetrics"].get("results")
    return int(observed["rows"]) if observed else 0
