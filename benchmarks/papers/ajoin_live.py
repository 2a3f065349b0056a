"""Streams of AJoin tuples that live: files that appear as time goes on; and a scenario of changes played to an engine.

Every tuple is stamped with the moment it stands for, so that the time from an event to a sink can be told. A writer
that falls behind the clock would look like latency of the engine: it says how far it was behind.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_spark import DDL, timed
from streamjoin.adhoc import CallbackSink, Engine
from streamjoin.queries.engine.info import BatchEvent, ChangeRecord
from streamjoin.spark.demo.feeds import drop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TICK: Final = 0.25
"""Seconds of tuples in a file."""
_LONGEST: Final = 60.0


class LiveStreams:
    """A directory for each stream, into which a thread puts a file every quarter of a second."""

    def __init__(self, root: Path, streams: Sequence[str], rate: int, seed: int) -> None:
        self.streams = tuple(streams)
        self.behind = 0.0
        """The most seconds that a file came too late."""
        self._root, self._rate, self._seed = root, rate, seed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True, name="live streams")
        for stream in self.streams:
            (root / stream).mkdir(parents=True)

    def frame(self, spark: SparkSession, stream: str) -> DataFrame:
        """The stream."""
        return spark.readStream.schema(DDL).parquet(str(self._root / stream))

    def __enter__(self) -> LiveStreams:
        self._began = time.time()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _write(self) -> None:
        size = round(self._rate * TICK)
        shift = pa.scalar(np.datetime64(round(self._began * 1e6), "us") - np.datetime64(ajoin.START, "us"))
        file = 0
        while not self._stopping.wait(max(0.0, self._began + (file + 1) * TICK - time.time())):
            for number, stream in enumerate(self.streams):
                tuples = ajoin.tuples(number, size, self._seed, rate=self._rate, first=file * size)
                place = tuples.schema.get_field_index(ajoin.TIME)
                moved = pa.compute.add(tuples.column(ajoin.TIME), shift)
                drop(timed(tuples.set_column(place, ajoin.TIME, moved)), self._root / stream / f"{file:06d}.parquet")
            file += 1
            self.behind = max(self.behind, time.time() - self._began - file * TICK)


@dataclass
class Latencies:
    """Milliseconds from the newest event of a result row to its sink: the number of rows, sum, least and most."""

    clock: Callable[[], float] = time.time
    rows: int = 0
    total: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def take(self, batch: int, rows: pa.Table) -> None:  # noqa: ARG002 - what a CallbackSink calls
        """Count rows that are there now."""
        now = self.clock() * 1e3
        times = [column for column in rows.columns if pa.types.is_timestamp(column.type)]
        newest = reduce(np.maximum, (column.cast(pa.int64()).to_numpy() for column in times)) / 1e3
        least = now - float(newest.max())
        self.least = min(self.least, least) if self.rows else least
        self.rows += newest.size
        self.total += float((now - newest).sum())
        self.most = max(self.most, now - float(newest.min()))

    @property
    def mean(self) -> float:
        """Over all rows; 0 without any."""
        return self.total / self.rows if self.rows else 0.0


@dataclass(frozen=True)
class Asked:
    """A change, and the Unix time at which it was asked for."""

    change: ajoin.TimedChange
    at: float


@dataclass
class Outcome:
    """What a scenario did: the changes, the batches, and the latencies of all rows."""

    asked: list[Asked] = field(default_factory=list)
    events: list[BatchEvent] = field(default_factory=list)
    records: list[ChangeRecord] = field(default_factory=list)
    latencies: Latencies = field(default_factory=Latencies)

    def deployments(self) -> list[tuple[float, int]]:
        """Of each change: milliseconds until it was in force, and the batches until the first that it is in force for.

        Those are the batches of tuples that ended meanwhile, and that first one: two where it waited for one that ran.
        """
        made = {(record.action, record.name): record for record in self.records}
        ends = [(event.batch, event.at) for event in self.events if event.rows_in]
        found = []
        for asked in self.asked:
            record = made[asked.change.action, asked.change.name]
            waited = sum(end > asked.at for batch, end in ends if batch < record.batch)
            found.append(((record.at - asked.at) * 1e3, waited + 1))
        return found

    def growth(self) -> tuple[float, float]:
        """How many times a batch with tuples takes, and gives rows, with most queries as with few of them.

        Few are at most three tenths of the most that there were, many at least eight. Zeros where too few had rows.
        """
        running, at = 0, []
        for event in self.events:
            running += sum(change.action == "create" for change in event.changes)
            running -= sum(change.action == "drop" for change in event.changes)
            if event.rows_in and running:
                at.append((running, event.seconds, sum(event.rows_out.values())))
        most = max((queries for queries, _, _ in at), default=0)
        few = [(seconds, rows) for queries, seconds, rows in at if queries <= 0.3 * most and rows]
        many = [(seconds, rows) for queries, seconds, rows in at if queries >= 0.8 * most and rows]
        if not few or not many:
            return 0.0, 0.0
        (few_s, few_rows), (many_s, many_rows) = (
            [statistics.median(values) for values in zip(*part, strict=True)] for part in (few, many)
        )
        return many_s / few_s, many_rows / few_rows


def play(engine: Engine, changes: Iterable[ajoin.TimedChange], tail: float) -> Outcome:
    """Ask a running engine for the changes at their times; look on for `tail` seconds more, and a batch with tuples."""
    outcome = Outcome()
    cancel = engine.on_batch(outcome.events.append)
    handles = []
    begin = time.time()
    for change in changes:
        _wait(engine, begin + change.at)
        outcome.asked.append(Asked(change, time.time()))
        if change.action == "create":
            sink = CallbackSink(outcome.latencies.take)
            handles.append(engine.create(change.query.text, change.name, sink, wait=False))
        else:
            engine.drop(change.name, wait=False)
    _wait(engine, time.time() + tail)
    for handle in handles:
        handle.wait(timeout=_LONGEST)
    had, until = len(outcome.events), time.monotonic() + _LONGEST
    while not any(event.rows_in for event in outcome.events[had:]):
        _wait(engine, time.time() + TICK)
        if time.monotonic() > until:
            raise RuntimeError(f"no batch had tuples for {_LONGEST:.0f} s")
    outcome.records = engine.changelog()
    cancel()
    return outcome


def _wait(engine: Engine, until: float) -> None:
    left = until - time.time()
    if left > 0 and engine.wait(left):
        raise RuntimeError("the engine ended before the scenario")


def check(engine: Engine) -> None:
    """Fail unless all tuples were in time and all queries run: what is measured else is something else."""
    late = engine.metrics().late
    failed = [info.name for info in engine.queries() if info.state != "running"]
    if late or failed:
        raise AssertionError(f"{late} tuples were late, and these queries do not run: {failed}")


class SparkQuery:
    """One Spark query over live streams: when it had its first rows, and the latencies of all."""

    def __init__(self) -> None:
        self.latencies = Latencies()
        self.first = threading.Event()

    def take(self, frame: Any, batch: int) -> None:
        """The rows of a batch."""
        rows = frame.toArrow()
        if rows.num_rows:
            self.latencies.take(batch, rows)
            self.first.set()
