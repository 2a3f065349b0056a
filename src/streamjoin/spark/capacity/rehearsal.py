"""Batches of a join through its real stages in this process, with what they count and what they take.

Rows are drawn for the columns of the join: times that rise, and as many keys as the window has rows, so that a row has
about one match. The window, a tolerance and the bounds of a summary are cut to a few batches; nothing may be late.
"""

from __future__ import annotations

import functools
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.spark.capacity.estimate import JoinShape
from streamjoin.spark.stages.facts import TaskFacts
from streamjoin.spark.stages.figures import standing
from streamjoin.spark.stages.gate import Collect, GateOfBatch
from streamjoin.spark.stages.output import plain, to_order
from streamjoin.spark.stages.parts import COPIES, Part, Received, opened, to_all, unpack
from streamjoin.spark.stages.route import Route, longest_stored, part_schema
from streamjoin.spark.stages.scaling import planned
from streamjoin.spark.stages.task import RangeOfBatch
from streamjoin.spark.stages.task_times import TimesOfTask, times_in
from streamjoin.storage.background import merge_due
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog, new_epoch
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.merging import MergePolicy
from streamjoin.storage.places import Place

T = TypeVar("T")

_STEP, _WINDOW = 1000, 6
Sent = Mapping[tuple[int, int], pa.RecordBatch]
"""What each source, by side and place, sends in one batch."""


@dataclass(frozen=True)
class BatchOfRehearsal:
    """One batch: what was counted, and the processor seconds of each part of it, all tasks together."""

    rows: int
    senders: int
    ranges: int
    copies: int
    parts: int
    part_bytes: int
    told_bytes: int
    stored: int
    """Rows in the log before the batch, and its runs."""
    looked_in: int
    folded: int
    merged: int
    stored_bytes: int
    """Bytes of the pieces written."""
    entries: int
    """Pieces in the manifest after the batch, words that are sampled there, and its bytes."""
    samples: int
    manifest_bytes: int
    runs: int
    results: int
    skew: float
    """Rows of the largest range over the average."""
    version: float
    parse: float
    route_tasks: tuple[float, ...]
    gate: float
    join_tasks: tuple[float, ...]
    merge: float
    memory: int | None = None
    """The largest task's, if it was watched."""

    @property
    def route(self) -> float:
        """The seconds of all routing tasks."""
        return sum(self.route_tasks)

    @property
    def join(self) -> float:
        """The seconds of the tasks of all ranges."""
        return sum(self.join_tasks)


def shape_of(plan: Blueprint) -> JoinShape:
    """What of a join decides its counts."""
    one_range = plan.summarises and not plan.indexed
    ordered = plan.gate is not None and plan.gate.ordered
    if plan.gate is None:
        return JoinShape("facts" if plan.on_arrival else "none", plan.indexed, one_range, plan.policy.whole)
    gate = JoinShape("every range" if plan.shared_gate else "one task", plan.indexed, one_range, plan.policy.whole)
    return replace(gate, ordered=ordered)


class Rehearsal:
    """A join with a log of its own, batch after batch.

    Each source has `inputs` routing tasks; a share of the rows, `heavy`, is on one key.
    """

    def __init__(
        self,
        plan: Blueprint,
        root: Place,
        ranges: int,
        rows: int,
        policy: MergePolicy | None = None,
        window: int = _WINDOW,
        *,
        inputs: int = 1,
        heavy: float = 0.0,
        seed: int = 0,
    ) -> None:
        bound, span = plan.bound, rows * window // 2
        length = span * _STEP
        windows = tuple(replace(window, size=span if window.kind == "count" else length) for window in bound.windows)
        match, summary = bound.match, bound.summary
        if match is not None and match.tolerance is not None:
            match = replace(match, tolerance=length)
        if summary is not None:
            summary = replace(summary, low=-length if summary.low < 0 else 0, high=length if summary.high > 0 else 0)
        bound = replace(bound, windows=(windows[0], windows[1]), match=match, summary=summary, lateness=0)
        self.plan = replace(
            plan, bound=bound, partitions=ranges, first=ranges, auto=False, spool=None, late=None, unattended=False,
            policy=policy or MergePolicy(),
        )  # fmt: skip
        self._inputs, self._heavy = inputs, heavy
        self._root, self._rows, self._keys, self._seed, self._number = root, rows, max(2, span), seed, 0
        self._epoch = new_epoch(root, self.plan.description)
        self._sides = (0,) if bound.spec.self_join else (0, 1)
        sources = [1, 1] if plan.gate is None else [max(1, len(side)) for side in plan.gate.sources]
        self._sources = [(side, source) for side in self._sides for source in range(sources[side])]

    def drawn(self, number: int) -> Sent:
        """The rows of a batch."""
        share = max(1, self._rows // len(self._sources))
        return {
            (side, source): _drawn(
                self.plan,
                side,
                source,
                share,
                number,
                self._keys,
                self._heavy,
                np.random.default_rng([self._seed, side, source, number]),
            )
            for side, source in self._sources
        }

    def batch(self, *, watched: bool = False) -> BatchOfRehearsal:
        """Run the next batch; if `watched`, its times count for nothing, as memory is traced."""
        number, plan = self._number, self.plan
        self._number += 1
        sent, log = self.drawn(number), WindowLog(self._root, self._epoch, plan)
        before = log.version(number - 1)
        route_tasks, received, part_bytes, told, parts, copies, facts = self._routed(log, number, sent)
        gate = 0.0
        if plan.gate is not None and not plan.shared_gate:
            gate, (received, part_bytes, parts, copies) = _timed(lambda: self._through_gate(log, number, received[0]))
        join_tasks, memory, results = [], 0, 0
        schemas = part_schema(plan, 0), part_schema(plan, 1)
        for partition, rows in enumerate(received):
            with _Watch(watched) as watch:
                work = functools.partial(self._joined, log, number, partition, rows, schemas, facts)
                took, found = _timed(work)
            join_tasks.append(took)
            results, memory = results + found, max(memory, watch.most)
        # The first task of the next batch finds the pieces of this one, and later ones its manifest.
        version, after = _timed(lambda: log.version(number))
        text = after.to_json()
        parse, _ = _timed(lambda: Manifest.from_json(text))
        new = [run for run in after.runs if run.batch == number and not run.key.endswith(".merge")]
        written = sum(side.rows for run in new for side in run.statistics)
        blocks = [block for run in new for piece in run.pieces for part in piece.blocks for block in part]
        known = {run.key for run in before.runs}
        swapped = [run for run in after.runs if run.key.endswith(".merge") and run.key not in known]
        merge, _ = _timed(lambda: merge_due(plan, log, number))
        rows_in = sum(batch.num_rows for batch in sent.values())
        return BatchOfRehearsal(
            rows_in,
            len(route_tasks),
            len(received),
            copies,
            parts,
            part_bytes,
            told,
            sum(side.rows for run in before.runs for side in run.statistics),
            len(before.runs),
            max(0, written - after.fresh),
            sum(side.rows for run in swapped for side in run.statistics),
            sum(block.length for block in blocks),
            sum(len(run.pieces) for run in after.runs),
            len(after.samples) + len(after.fresh_sample),
            len(text),
            len(after.runs),
            results,
            after.skew / 1000,
            version,
            parse,
            tuple(route_tasks),
            gate,
            tuple(join_tasks),
            merge,
            memory if watched else None,
        )

    def _routed(
        self, log: WindowLog, number: int, sent: Sent
    ) -> tuple[list[float], list[list[pa.RecordBatch]], int, int, int, int, list[TaskFacts]]:
        """The seconds of the first stage's tasks, what they send to each range, its bytes, and their facts."""
        plan, took = self.plan, []
        tasks = [(side, source, rows) for (side, source), whole in sent.items() for rows in self._dealt(whole)]
        if plan.gate is not None and not plan.shared_gate:
            collected: list[pa.RecordBatch] = []
            for task, (side, source, rows) in enumerate(tasks):
                work = functools.partial(self._collected, side, source, rows, task)
                seconds, own = _timed(work)
                took.append(seconds)
                collected += own
            return took, [collected], sum(row.nbytes for row in collected), 0, len(collected), 0, []
        before = log.version(number - 1)
        points, longest = planned(plan, before), longest_stored(plan, before)
        received: list[list[pa.RecordBatch]] = [[] for _ in range(points.ranges)]
        counted, facts = [0, 0, 0, 0], []
        for task, (side, source, rows) in enumerate(tasks):
            begin = time.process_time()
            for part in Route(plan, side, source).cut(rows, points, longest, task, 0, 0):
                _deal(part, received, counted)
            facts.append(TaskFacts(side, task).after(plan, rows))
            if plan.shared_gate:
                times = TimesOfTask(plan, side, source)
                times.add(rows)
                for partition, row in enumerate(to_all(points.ranges, times.code, task, times.packed(), None)):
                    received[partition].append(row)
                    counted[3] += row.nbytes
            standing(plan.partitions, before, points.ranges, 0)
            took.append(time.process_time() - begin)
        return took, received, counted[0], counted[3], counted[1], counted[2], facts

    def _dealt(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """The rows of the tasks of one source, in turn."""
        if self._inputs == 1:
            return [rows]
        return [rows.take(pa.array(np.arange(task, rows.num_rows, self._inputs))) for task in range(self._inputs)]

    def _collected(self, side: int, source: int, rows: pa.RecordBatch, task: int) -> list[pa.RecordBatch]:
        return list(Collect(self.plan, side, source).part(rows, task, 0).packed())

    def _through_gate(
        self, log: WindowLog, number: int, collected: list[pa.RecordBatch]
    ) -> tuple[list[list[pa.RecordBatch]], int, int, int]:
        gate, counted = GateOfBatch(self.plan, log, number), [0, 0, 0]
        received: list[list[pa.RecordBatch]] = [[] for _ in range(self.plan.partitions)]
        for part in gate.parts(opened(collected)[1], None):
            _deal(part, received, counted)
        return received[: gate.ranges], counted[0], counted[1], counted[2]

    def _joined(
        self,
        log: WindowLog,
        number: int,
        partition: int,
        rows: Sequence[pa.RecordBatch],
        schemas: tuple[pa.Schema, pa.Schema],
        facts: Sequence[TaskFacts],
    ) -> int:
        """The work of one range; returns how many rows it gave."""
        plan, share = self.plan, RangeOfBatch(self.plan, log, number, partition)
        both: tuple[Received, Received] = unpack(rows, schemas)[1]
        if plan.shared_gate:
            both = share.gated(both, times_in(rows), None)
        results = share.join(both, facts)
        if plan.gate is not None and plan.gate.ordered:
            return sum(row.nbytes > 0 for row in to_order(plan, share.positions, results, partition))
        return sum(batch.num_rows for batch in plain(plan, results))


def _deal(part: Part, received: list[list[pa.RecordBatch]], counted: list[int]) -> None:
    """Add a part to those of its range, and to the bytes, parts and rows of copies."""
    for row in part.packed():
        received[part.partition].append(row)
        counted[0] += row.nbytes
        counted[1] += 1
    counted[2] += part.rows.num_rows * (part.side >= COPIES)


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    """The processor seconds of this process for `work`, and what it returned."""
    begin = time.process_time()
    found = work()
    return time.process_time() - begin, found


class _Watch:
    """The most memory that NumPy and Arrow took within it, if it is wanted."""

    def __init__(self, wanted: bool) -> None:
        self._wanted, self.most = wanted, 0

    def __enter__(self) -> _Watch:
        if self._wanted:
            self._usual = pa.default_memory_pool()
            self._pool = pa.proxy_memory_pool(self._usual)
            pa.set_memory_pool(self._pool)
            tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._wanted:
            self.most = tracemalloc.get_traced_memory()[1] + (self._pool.max_memory() or 0)
            tracemalloc.stop()
            pa.set_memory_pool(self._usual)


def _drawn(
    plan: Blueprint, side: int, source: int, n: int, number: int, keys: int, heavy: float, rng: np.random.Generator
) -> pa.RecordBatch:
    """`n` rows of a source with so many `keys`, one of them `heavy`: all sources of a batch have the same times."""
    bound, schema = plan.bound, plan.schema(side)
    if bound.time is None:
        raise AssertionError("a spec without a time column is refused when the join is built")
    time_column = bound.time.right if side else bound.time.left
    per_side = 1 if plan.gate is None else len(plan.gate.sources[side])
    ticks = (number * n + np.arange(n, dtype=np.int64)) * _STEP * per_side
    columns = {time_column: ticks // bound.time.multipliers[side]}
    light = rng.random(n) >= heavy
    if bound.intervals is not None:
        # Short ones: of an interval with random ends a third of all others is a match.
        upper, lower = (bound.terms[i] for i in (bound.intervals.upper, bound.intervals.lower))
        begin, end = (lower.right, upper.right) if side else (upper.left, lower.left)
        columns[end.name] = rng.integers(0, keys, n)
        columns[begin.name] = columns[end.name]
    if plan.gate is not None:
        own = plan.gate.sources[side][source]
        if own.position is not None:
            columns[own.position] = number * n + np.arange(n, dtype=np.int64)
        if own.by is not None:
            values = own.values or ("0", "1")
            of_each = pa.array(values).take(pa.array(np.arange(n) % len(values)))
            columns[own.by] = of_each.cast(schema.field(own.by).type)
    arrays = [
        columns[field.name]
        if isinstance(columns.get(field.name), pa.Array)
        else _values(field.type, columns.get(field.name, rng.integers(0, keys, n) * light))
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _values(type_: pa.DataType, numbers: Array) -> pa.Array:
    """Values of a column's type for whole numbers; NULL for a type that has none."""
    kind = pa.types
    if kind.is_integer(type_):
        numbers = numbers % min(1 << 62, 1 << (type_.bit_width - 1))
        return pa.array(numbers).cast(type_)
    if kind.is_floating(type_):
        return pa.array(numbers.astype(np.float64)).cast(type_)
    if kind.is_boolean(type_):
        return pa.array(numbers % 2 == 1)
    if kind.is_decimal(type_):
        digits = type_.precision - type_.scale
        return pa.array((numbers % 10 ** min(18, max(1, digits))) * (digits > 0)).cast(pa.decimal128(38, 0)).cast(type_)
    if kind.is_temporal(type_):
        narrow = type_.bit_width == 32
        return pa.array(numbers.astype(np.int32 if narrow else np.int64)).cast(type_)
    if kind.is_string(type_) or kind.is_large_string(type_) or kind.is_binary(type_) or kind.is_large_binary(type_):
        return pa.array([f"value-{number}" for number in numbers.tolist()]).cast(type_)
    return pa.nulls(len(numbers), type_)
