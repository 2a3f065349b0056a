"""Prepares kernels before the first task: the daemon loads them, or compiles them once per host.

Small joins through the stages of a batch call the kernels that tasks use, for the usual types of keys; forked workers
inherit them. One process per host compiles at a time: others wait at a lock and then load the compiled kernels.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from streamjoin.joins.warming import alone, sample
from streamjoin.model.asof import AsOf
from streamjoin.model.binding import bind
from streamjoin.model.predicates import Band, Equi, JoinPredicate
from streamjoin.model.spec import JoinSpec
from streamjoin.model.window import CountWindow, TimeWindow
from streamjoin.spark.stages.output import plain
from streamjoin.spark.stages.parts import unpack
from streamjoin.spark.stages.route import Route, longest_stored, part_schema
from streamjoin.spark.stages.scaling import planned
from streamjoin.spark.stages.task import RangeOfBatch
from streamjoin.spark.stages.task_times import TaskTimes, TimesOfTask
from streamjoin.storage.blueprint import Blueprint, GatePlan, SourcePlan
from streamjoin.storage.log import WindowLog

_ROWS, _RANGES, _BATCHES = 16, 2, 2
_COLUMNS = ["t", "i64", "f64", "s"]
_SCHEMA = sample().select(_COLUMNS).schema
_CONDITIONS: tuple[JoinPredicate, ...] = (
    Band("i64", "i64", 1),
    Band("f64", "f64", 0.5),
    Equi("s") & Band("f64", "f64", 0.5),
)


def warm() -> None:
    """Run the small joins; without a writable cache the daemon compiles for its own workers only."""
    with alone(), tempfile.TemporaryDirectory(prefix="streamjoin-") as scratch:
        for number, (spec, gate) in enumerate(_joins()):
            bound = bind(spec, _SCHEMA, _SCHEMA)
            _run(Blueprint(bound, "join", _RANGES, gate=gate), Path(scratch) / str(number))


def _joins() -> Iterator[tuple[JoinSpec, GatePlan | None]]:
    for on in _CONDITIONS:
        yield JoinSpec(on, TimeWindow(_ROWS), time="t", order="event_time"), None
    source = SourcePlan("0000")
    gate = GatePlan(((source,), (source,)), shared=True)
    yield JoinSpec(_CONDITIONS[0], CountWindow(_ROWS), time="t", order="event_time", how="semi"), gate
    yield JoinSpec(Equi("i64"), match=AsOf(), time="t", order="event_time"), gate


def _run(blueprint: Blueprint, root: Path) -> None:
    log = WindowLog(root, 1, blueprint)
    schemas = part_schema(blueprint, 0), part_schema(blueprint, 1)
    for batch in range(_BATCHES):
        rows, before = sample(batch, _ROWS).select(_COLUMNS).to_batches()[0], log.version(batch - 1)
        points, longest = planned(blueprint, before), longest_stored(blueprint, before)
        received: list[list[pa.RecordBatch]] = [[] for _ in range(_RANGES)]
        told = []
        for side in (0, 1):
            for part in Route(blueprint, side).cut(rows, points, longest, side, 0, 0):
                received[part.partition] += part.packed()
            if blueprint.shared_gate:
                times = TimesOfTask(blueprint, side, 0)
                times.add(rows)
                told.append(TaskTimes.unpacked(times.code, side, times.packed()))
        for partition, parts in enumerate(received):
            share, both = RangeOfBatch(blueprint, log, batch, partition), unpack(parts, schemas)[1]
            for _ in plain(blueprint, share.join(share.gated(both, told, None) if told else both)):
                pass
