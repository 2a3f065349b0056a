"""Measures the constants of `estimate.py` for one join on this machine.

The join's stages run in this process at a few sizes (`rehearsal.py`); what tasks, rows and pieces take is fitted to the
processor time of all batches, so that no constant is negative. What Spark itself takes is measured with stages that do
nothing, in the session that also resolved the join.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin._arrays import Array
from streamjoin.spark.capacity.estimate import Bytes, JoinShape, MachineConstants, Seconds
from streamjoin.spark.capacity.rehearsal import BatchOfRehearsal, Rehearsal, shape_of
from streamjoin.spark.runtime.internals import map_in_arrow, task_seconds
from streamjoin.storage.blueprint import Blueprint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RANGES, _ROWS, _COMPARED_ROWS, _BATCHES, _COLD = (2, 16), (4_000, 60_000), (1_000, 4_000), 10, 2
_FEW, _MANY, _EMPTY, _LARGE, _SPARK_BATCHES = 2, 34, 8, 4 << 20, 7
_DDL = "partition int, rows binary"


def calibrated(
    plan: Blueprint, spark: SparkSession, rows: tuple[int, int] | None = None, batches: int = _BATCHES
) -> MachineConstants:
    """The constants of a join on this machine; `rows` are those of a small and of a large batch."""
    sizes = rows or (_ROWS if plan.indexed else _COMPARED_ROWS)
    with tempfile.TemporaryDirectory(prefix="streamjoin-capacity-") as scratch:
        found = rehearsed(plan, Path(scratch), sizes, batches)
        spark_takes = spark_seconds(spark, Path(scratch) / "spark")
    return fitted(shape_of(plan), found, spark_takes)


def rehearsed(plan: Blueprint, scratch: Path, sizes: Sequence[int], batches: int = _BATCHES) -> list[BatchOfRehearsal]:
    """Batches of a few sizes with a few ranges, without those that compile or fill the window; the last is watched."""
    found = []
    for ranges in _RANGES:
        for rows in sizes:
            rehearsal = Rehearsal(plan, scratch / f"{ranges}-{rows}", ranges, rows)
            ran = [rehearsal.batch(watched=number == batches - 1) for number in range(batches)]
            found += ran[_COLD:]
    return found


@dataclass(frozen=True)
class SparkSeconds:
    """What Spark takes: for a batch, to launch a task, for a task without rows, and for a shuffled byte."""

    batch: float
    launch: float
    task: float
    shuffled_byte: float


def fitted(shape: JoinShape, found: Sequence[BatchOfRehearsal], spark: SparkSeconds) -> MachineConstants:
    """The constants that fit what was found."""
    timed = [batch for batch in found if batch.memory is None]
    watched = [batch for batch in found if batch.memory is not None]

    def of(
        columns: Sequence[Callable[[BatchOfRehearsal], float]], what: str, own: Sequence[BatchOfRehearsal]
    ) -> list[float]:
        rows = np.array([[column(batch) for column in columns] for batch in own], np.float64)
        fit = not_negative(rows, np.array([getattr(batch, what) for batch in own], np.float64))
        return [float(value) for value in fit]

    every, lone = shape.gate == "every range", shape.gate == "one task"
    route = of([lambda b: b.senders, lambda b: b.rows, lambda b: b.parts * (not lone)], "route", timed)
    join = of(
        [
            lambda b: b.ranges,
            lambda b: b.ranges * b.looked_in,
            lambda b: b.rows + b.copies,
            lambda b: b.folded,
            lambda b: b.rows * b.ranges * every,
            lambda b: 0.0 if shape.indexed else (b.rows + b.copies) * b.stored,
        ],
        "join",
        timed,
    )
    gate = of([lambda b: b.rows], "gate", timed)[0] if lone else join[4]
    footer = of([lambda b: b.ranges], "version", timed)[0]
    manifest_byte = of([lambda b: b.manifest_bytes], "parse", timed)[0]
    manifest = of([lambda b: b.entries, lambda b: b.samples], "manifest_bytes", timed)
    merges = [batch for batch in timed if batch.merged]
    # A merge is swapped in by the batch after it.
    merged = sum(batch.merge for batch in timed) / sum(batch.merged for batch in merges) if merges else join[3]
    told = of([lambda b: b.senders * b.ranges, lambda b: b.rows * b.ranges], "told_bytes", timed)
    size = of([lambda b: b.parts, lambda b: b.rows + b.copies], "part_bytes", timed)
    memory = of(
        [lambda _: 1, lambda b: (b.rows + b.copies + b.folded) / b.ranges, lambda b: b.rows * every], "memory", watched
    )
    seconds = Seconds(
        route_task=route[0],
        route_row=route[1],
        route_part=route[2],
        join_task=join[0],
        join_run=join[1],
        join_row=join[2],
        folded_row=join[3],
        gate_row=gate,
        compared=join[5],
        footer=footer,
        manifest_byte=manifest_byte,
        merged_row=merged,
        batch=spark.batch,
        launch=spark.launch,
        task=spark.task,
        shuffled_byte=spark.shuffled_byte,
    )
    sizes = Bytes(
        part=size[0],
        row=size[1],
        time_part=told[0],
        time=told[1],
        stored_row=_share(timed, lambda b: b.stored_bytes, lambda b: b.rows + b.folded),
        entry=manifest[0],
        sample=manifest[1],
        task_memory=memory[0],
        row_memory=memory[1],
        gate_memory=memory[2],
    )
    return MachineConstants(shape, seconds, sizes, _share(timed, lambda b: b.copies, lambda b: b.rows * (b.ranges - 1)))


def _share(
    batches: Sequence[BatchOfRehearsal],
    what: Callable[[BatchOfRehearsal], float],
    of: Callable[[BatchOfRehearsal], float],
) -> float:
    """One sum over all batches by another; 0 where there is nothing."""
    whole = sum(map(of, batches))
    return sum(map(what, batches)) / whole if whole else 0.0


def not_negative(columns: Array, values: Array) -> Array:
    """The coefficients from 0 on that fit best, by relative distance; a column that would be negative is left out.

    >>> not_negative(np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 6.0]]), np.array([5.0, 9.0, 13.0])).round(6).tolist()
    [1.0, 2.0]
    >>> not_negative(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([2.0, 1.0])).round(1).tolist()
    [1.2, 0.0]
    """
    weights = 1 / np.maximum(values, max(1e-9, float(values.max()) / 1000))
    used = [i for i in range(columns.shape[1]) if columns[:, i].any()]
    found = np.zeros(columns.shape[1])
    while used:
        own = columns[:, used] * weights[:, None]
        scale = np.linalg.norm(own, axis=0)
        best = np.linalg.lstsq(own / scale, values * weights, rcond=None)[0] / scale
        if (best >= 0).all():
            found[used] = best
            break
        used.pop(int(np.argmin(best * scale)))
    return found


@dataclass(frozen=True)
class _Send:
    """A first stage that sends each range a value of so many bytes."""

    ranges: int
    size: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        body = np.random.default_rng(0).bytes(self.size)
        for partition in range(self.ranges):
            yield pa.record_batch([pa.array([partition], pa.int32()), pa.array([body])], names=["partition", "rows"])


def _taken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A second stage that reads what it gets and gives its number of bytes."""
    size = sum(batch.column(1).nbytes for batch in batches)
    yield pa.record_batch([pa.array([size])], names=["bytes"])


def spark_seconds(spark: SparkSession, scratch: Path) -> SparkSeconds:
    """What Spark takes with one core, from queries whose stages do nothing; the least of a few batches counts."""
    for side in ("left", "right"):
        (scratch / side).mkdir(parents=True)
        for number in range(_SPARK_BATCHES):
            path = scratch / side / f"{number:04}.parquet"
            pq.write_table(pa.table({"n": [number]}), path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    few, few_tasks = _least(spark, scratch, _FEW, _EMPTY)
    many, many_tasks = _least(spark, scratch, _MANY, _EMPTY)
    _, large_tasks = _least(spark, scratch, _FEW, _LARGE)
    task = max(0.0, (many_tasks - few_tasks) / (_MANY - _FEW))
    both = max(task, (many - few) / (_MANY - _FEW))
    shuffled = max(0.0, large_tasks - few_tasks) / (2 * _FEW * _LARGE)
    # The two sources have a task each, besides those of the ranges.
    return SparkSeconds(max(0.0, few - (2 + _FEW) * both), both - task, task, shuffled)


def _least(spark: SparkSession, scratch: Path, ranges: int, size: int) -> tuple[float, float]:
    """The seconds of a batch with so many ranges, and of all of its tasks, where they were least."""
    reader = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
    left, right = (
        map_in_arrow(reader.parquet(str(scratch / side)), _Send(ranges, size), _DDL, "streamjoin_send")
        for side in ("left", "right")
    )
    sent = left.union(right)
    taken = map_in_arrow(sent.repartitionById(ranges, sent["partition"]), _taken, "bytes long", "streamjoin_take")
    checkpoint = scratch / f"checkpoint-{ranges}-{size}"
    writer = taken.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    batches = [
        report["durationMs"]["triggerExecution"] / 1000 for report in query.recentProgress if report["numInputRows"]
    ]
    return min(batches[_COLD:]), min(task_seconds(spark, str(query.runId))[_COLD:])
