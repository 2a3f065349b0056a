"""For the tests of joins behind a gate: the stages run one after the other, without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

import streamjoin as sj
from streamjoin.model.binding import bind
from streamjoin.model.comparisons import with_interval_index
from streamjoin.spark.stages.gate import Collect, GateOfBatch
from streamjoin.spark.stages.output import OrderTask, plain, result_schema, to_order
from streamjoin.spark.stages.parts import Part, Received, opened, to_all, unpack
from streamjoin.spark.stages.route import Route, longest_stored, part_schema
from streamjoin.spark.stages.scaling import planned
from streamjoin.spark.stages.task import RangeOfBatch
from streamjoin.spark.stages.task_times import TimesOfTask, times_in
from streamjoin.storage.blueprint import Blueprint, GatePlan, SourcePlan
from streamjoin.storage.log import WindowLog
from streamjoin.storage.merging import MergePolicy
from streamjoin.testing import conformance
from streamjoin.testing.cases import JoinCase
from tests.spark.joining import EAGER

SCHEMA = pa.schema([("t", pa.int64()), ("x", pa.int64()), ("id", pa.int64())])
Sent = Mapping[tuple[int, int], pa.Table]
"""What each source, by side and place, sends in one batch."""
SOURCES = ("a", "b")
PLANS = tuple(SourcePlan(name) for name in SOURCES)


def deal(case: JoinCase, rng: random.Random) -> Iterator[Sent]:
    """The tuples of a case in batches of random sizes, at least one, until every source is empty."""
    sides = (0,) if case.spec.self_join else (0, 1)
    queues = {
        (side, i): [e.row for e in case.events if e.right == bool(side) and e.source == name]
        for side in sides
        for i, name in enumerate(SOURCES)
    }
    first = True
    while first or any(queues.values()):
        first = False
        sent = {}
        for key, queue in queues.items():
            n = rng.choice([0, 1, 5, 20])
            sent[key] = conformance.table(queue[:n], case.schemas[key[0]])
            del queue[:n]
        yield sent


def gated_blueprint(
    spec: sj.JoinSpec,
    schemas: tuple[pa.Schema, pa.Schema],
    partitions: int,
    sources: tuple[Sequence[SourcePlan], Sequence[SourcePlan]],
    idle_ms: int | None = None,
    ordered: bool = True,
    *,
    shared: bool | None = None,
    policy: MergePolicy = EAGER,
) -> Blueprint:
    """A join with a gate: in every range, where it can be, unless `shared` says otherwise."""
    inner = spec.how == "inner" and spec.match is None
    bound = bind(spec, *schemas)
    can_be = bound.summary is None and with_interval_index(bound).intervals is None
    gate = GatePlan(
        (tuple(sources[0]), tuple(sources[1])),
        idle_ms,
        ordered,
        positions=inner,
        shared=can_be if shared is None else shared and can_be,
    )
    return Blueprint(bound, "join", partitions, policy, token="0" * 32, gate=gate)


def gated_batch(
    plan: Blueprint,
    root: Path,
    batch: int,
    sent: Sent,
    now_ms: int | None = None,
    epoch: int = 1,
    task: int = 0,
    *,
    ends: bool = False,
    rows_a_task: int | None = None,
    one_by_one: bool = True,
    only: Sequence[int] | None = None,
) -> pa.Table:
    """One batch through all stages; the rows in the order in which Spark would hold them.

    Where every range decides, each source has tasks of its own, unless Spark reads the sources not `one_by_one` but in
    the same tasks; and `only` may name the ranges whose tasks get to run.
    """
    log = WindowLog(root, epoch, plan, batch if ends else None)
    if plan.shared_gate:
        return _shared_batch(plan, log, batch, sent, now_ms, rows_a_task or 64, one_by_one, only)
    collected = [
        row
        for (side, source), table in sent.items()
        for number, rows in enumerate(table.combine_chunks().to_batches(max_chunksize=64))
        for row in Collect(plan, side, source).part(rows, task, number).packed()
    ]
    _, found = opened(reversed(collected))
    received = _by_partition(plan, GateOfBatch(plan, log, batch).parts(found, now_ms))
    schemas = part_schema(plan, 0), part_schema(plan, 1)
    shares = [
        (RangeOfBatch(plan, log, batch, partition), unpack(reversed(parts), schemas)[1])
        for partition, parts in received.items()
    ]
    return _joined(plan, shares)


def _shared_batch(
    plan: Blueprint,
    log: WindowLog,
    batch: int,
    sent: Sent,
    now_ms: int | None,
    rows_a_task: int,
    one_by_one: bool,
    only: Sequence[int] | None,
) -> pa.Table:
    """The same where every range decides as a gate."""
    before = log.version(batch - 1)
    points, longest = planned(plan, before), longest_stored(plan, before)
    received: dict[int, list[pa.RecordBatch]] = {p: [] for p in range(plan.partitions)}
    task = 0
    for (side, source), table in sorted(sent.items()):
        task = task if one_by_one else 0
        for rows in table.combine_chunks().to_batches(max_chunksize=rows_a_task):
            route, times = Route(plan, side, source), TimesOfTask(plan, side, source)
            for part in route.cut(rows, points, longest, task, 0, 0):
                received[part.partition] += part.packed()
            if rows.num_rows:
                times.add(rows)
                for partition, row in enumerate(to_all(points.ranges, times.code, task, times.packed(), None)):
                    received[partition].append(row)
            task += 1
    schemas = part_schema(plan, 0), part_schema(plan, 1)
    shares = []
    for partition, parts in received.items():
        if only is not None and partition not in only:
            continue
        share = RangeOfBatch(plan, log, batch, partition)
        shares.append((share, share.gated(unpack(reversed(parts), schemas)[1], times_in(reversed(parts)), now_ms)))
    return _joined(plan, shares)


def _joined(plan: Blueprint, shares: Sequence[tuple[RangeOfBatch, tuple[Received, Received]]]) -> pa.Table:
    """What all ranges and the last stage make of the rows that the ranges get."""
    results: list[pa.RecordBatch] = []
    to_sort: dict[int, list[pa.RecordBatch]] = {p: [] for p in range(plan.partitions)}
    for partition, (share, received) in enumerate(shares):
        pairs = share.join(received)
        if plan.gate is None or not plan.gate.ordered:
            results += list(plain(plan, pairs))
            continue
        for row in to_order(plan, share.positions, pairs, partition):
            for i, target in enumerate(row.column(0).to_pylist()):
                to_sort[target].append(row.slice(i, 1))
    for parts in to_sort.values():
        results += list(OrderTask(plan)(iter(reversed(parts))))
    return pa.Table.from_batches(results, schema=result_schema(plan))


def _by_partition(plan: Blueprint, parts: Iterator[Part]) -> dict[int, list[pa.RecordBatch]]:
    received: dict[int, list[pa.RecordBatch]] = {p: [] for p in range(plan.partitions)}
    for part in parts:
        received[part.partition] += part.packed()
    return received


def gated_table(*rows: tuple[int | None, int, int]) -> pa.Table:
    return pa.Table.from_pylist([{"t": t, "x": x, "id": i} for t, x, i in rows], SCHEMA)


def gated_spec(**changes: object) -> sj.JoinSpec:
    given_ = {"on": sj.Equi("x"), "window": sj.CountWindow(3), "time": "t", "order": "event_time"}
    return sj.JoinSpec(**{**given_, **changes})  # type: ignore[arg-type]


def gated_plan(spec: sj.JoinSpec | None = None, idle_ms: int | None = None, position: str | None = None) -> Blueprint:
    source = (SourcePlan("0000", position=position),)
    return gated_blueprint(spec or gated_spec(), (SCHEMA, SCHEMA), 2, (source, source), idle_ms)
