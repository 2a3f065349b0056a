"""What `streamjoin capacity` computes beside what the real stages take.

The constants of one join are measured once, with 2 and 16 ranges. Batches with 10, 100 and 1,000 ranges then run
through the stages in this process, whose processor time, manifest and bytes are compared with what is computed. Batches
on clusters of 1 and 2 executors with a core each are compared by their seconds, driver and shuffle included.
"""

from __future__ import annotations

import functools
import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Figure, Finding, Row, judge_aim
from benchmarks.spark.spark_runs import Files, SparkExperiment, Timed, steady
from benchmarks.workload import Side
from streamjoin.model.binding import bind
from streamjoin.spark import session
from streamjoin.spark.capacity.calibrate import calibrated
from streamjoin.spark.capacity.estimate import Load, MachineConstants, estimate
from streamjoin.spark.capacity.rehearsal import BatchOfRehearsal, Rehearsal
from streamjoin.storage.blueprint import Blueprint

_WINDOW, _STEP_US, _SKIPPED, _ROWS_A_RANGE, _ROWS = 6, 100, 3, 60, 60_000
_LEAST, _MOST = 0.67, 1.5
_EXECUTORS, _CLUSTER_RANGES = (1, 2), 4
_SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("key", pa.int64()), ("payload", pa.int64())])


class SparkCapacity(SparkExperiment):
    """Computed over measured."""

    title = "spark_capacity: what is computed of a join on Spark, beside what its stages take"
    measure = "computed_over_measured"
    unit = "of what was measured"

    def __init__(self) -> None:
        super().__init__()
        self._constants: MachineConstants | None = None

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Numbers of ranges in this process, and of executors."""
        numbers = (10,) if quick else (10, 100, 1000)
        executors = (1,) if quick else _EXECUTORS
        sizes = (40_000,) if quick else (40_000, 400_000)
        return [
            *({"ranges": n, "executors": 0, "batch": max(_ROWS, n * _ROWS_A_RANGE)} for n in numbers),
            *({"ranges": _CLUSTER_RANGES, "executors": e, "batch": size} for e in executors for size in sizes),
        ]

    def constants(self) -> MachineConstants:
        """The constants of this machine, measured at the first call."""
        if self._constants is None:
            spark = session("spark_capacity", "local[1]", config={"spark.ui.enabled": False})
            try:
                self._constants = calibrated(_plan(), spark)
            finally:
                spark.stop()
        return self._constants

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """One cell, computed and measured."""
        constants = self.constants()
        ranges, executors, rows = cell["ranges"], cell["executors"], cell["batch"]
        load = Load(float(rows), float(_WINDOW), max(1, executors), 1, ranges, 2 * max(1, executors), 1.0)
        if executors:
            return self._on_cluster(constants, load, cell, context)
        found = estimate(constants, replace(load, inputs=2))
        root = context.scratch / f"ranges-{ranges}"
        rehearsal = Rehearsal(_plan(), root, ranges, rows)
        ran = [rehearsal.batch() for _ in range(_WINDOW + 4)][_WINDOW:]
        shutil.rmtree(root)

        def middle(name: str) -> float:
            return statistics.median(float(getattr(batch, name)) for batch in ran)

        # Of tasks in one process, without Spark's part, and with one reading of the manifest.
        took, runs, version = constants.seconds, found.counts.log.runs, middle("version")
        spark = took.task + found.counts.shuffled / 2 * took.shuffled_byte / ranges
        reading = ranges * took.footer + found.counts.manifest * took.manifest_byte
        route_spark = took.task + found.counts.shuffled / 4 * took.shuffled_byte
        computed = ranges * (found.join_task - spark) + 2 * (found.route_task - route_spark - reading)
        computed += ranges * took.footer
        measured = statistics.median(_work(batch) for batch in ran)
        return {
            "computed_over_measured": computed / measured,
            "computed_s": computed,
            "measured_s": measured,
            "computed_manifest_kb": found.counts.manifest / 1000,
            "measured_manifest_kb": middle("manifest_bytes") / 1000,
            "computed_sent_kb": (found.counts.shuffled - found.counts.markers * constants.bytes.part) / 1000,
            "measured_sent_kb": middle("part_bytes") / 1000,
            "computed_runs": runs,
            "measured_runs": middle("runs"),
            "version_ms": 1000 * version,
        }

    def _on_cluster(self, constants: MachineConstants, load: Load, cell: Cell, context: Context) -> Mapping[str, Any]:
        found = estimate(constants, load)
        files_a_batch = cell["executors"]
        share = cell["batch"] // 2 // files_a_batch
        batches = _SKIPPED + (3 if context.quick else 6) + _WINDOW

        def table(side: Side, number: int) -> pa.Table:
            batch, place = divmod(number, files_a_batch)
            rng = np.random.default_rng([context.seed, side == "right", number])
            ticks = (batch * cell["batch"] // 2 + place + np.arange(share) * files_a_batch) * _STEP_US
            keys = rng.integers(0, cell["batch"] * _WINDOW // 2, share)
            columns = [pa.array(ticks).cast(_SCHEMA.field("ts").type), pa.array(keys), pa.array(keys)]
            return pa.Table.from_arrays(columns, schema=_SCHEMA)

        self._spark = session(
            "spark_capacity",
            f"local-cluster[{cell['executors']},1,1024]",
            memory="1g",
            config={"spark.ui.enabled": False, "spark.sql.files.minPartitionNum": files_a_batch},
        )
        try:
            files = Files(context, f"cluster-{cell['executors']}-{cell['batch']}")
            files.write(lambda side: [table(side, number) for number in range(batches * files_a_batch)])
            length = cell["batch"] // 2 * _WINDOW * _STEP_US
            spec = sj.JoinSpec(sj.Equi("key"), sj.TimeWindow(np.timedelta64(length, "us")), "ts")
            build = functools.partial(sj.spark.join, spec=spec, partitions=_CLUSTER_RANGES)
            ran: list[Timed] = self.timed(build, files, context.scratch / "checkpoint", files_a_batch)
        finally:
            self.close()
        measured = statistics.median(batch.seconds for batch in steady(ran, _SKIPPED + _WINDOW))
        return {
            "computed_over_measured": found.seconds / measured,
            "computed_s": found.seconds,
            "measured_s": measured,
            "driver_share": found.driver_share,
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Processor time and manifest by ranges: measured as points, computed as lines up to any number."""
        time, manifest = figure.subplots(1, 2)
        own = sorted((row for row in rows if not row["executors"]), key=lambda row: row["ranges"])
        for axes, name, label in (
            (time, "s", "processor seconds of a batch"),
            (manifest, "manifest_kb", "manifest, KB"),
        ):
            numbers = [row["ranges"] for row in own]
            axes.plot(numbers, [row[f"computed_{name}"] for row in own], "k--", label="computed")
            axes.plot(numbers, [row[f"measured_{name}"] for row in own], "o", label="measured")
            axes.set(xscale="log", yscale="log", xlabel="ranges", ylabel=label)
            axes.legend()

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Each cell: what is computed is within a factor of one and a half of what was measured."""
        found = []
        for row in rows:
            where = (
                f"{row['ranges']:,} ranges in one process"
                if not row["executors"]
                else (f"{row['executors']} executor{'s' * (row['executors'] > 1)} of one core")
            )
            share = row["computed_over_measured"]
            found.append(
                judge_aim(
                    f"a batch of {row['batch']:,} rows with {where}",
                    f"{row['computed_s']:.3g} s computed, {row['measured_s']:.3g} s measured: {share:.2f} of it",
                    f"from {_LEAST} to {_MOST} of what was measured",
                    met=math.isfinite(share) and _LEAST <= share <= _MOST,
                )
            )
        return found


def _plan() -> Blueprint:
    spec = sj.JoinSpec(sj.Equi("key"), "10 minutes", "ts")
    return Blueprint(bind(spec.in_order(), _SCHEMA, _SCHEMA), "join", _CLUSTER_RANGES)


def _work(batch: BatchOfRehearsal) -> float:
    return batch.version + batch.route + batch.gate + batch.join


EXPERIMENT = SparkCapacity()
