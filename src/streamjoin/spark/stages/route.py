"""Which rows go to which range, and the first stage of a join without a gate of one task.

A row goes to the range that owns it, where it is stored, and a copy goes to every other range with rows it can match. A
row with a NULL or NaN key matches nothing and is not stored, but its time counts; it goes to one range, always the same
for the same row.

In a join on intervals the word of a row is where its interval begins, and it can match what begins before its own end
and at most the longest interval of the other side before its begin. How long that is, is known of the stored rows, and
behind a gate of the new ones as well; without a gate, of two new rows the one that begins first reaches the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.spark.runtime.checkpoints import open_log
from streamjoin.spark.stages.facts import TASK_ROWS, TaskFacts, punctuation_of
from streamjoin.spark.stages.figures import packed, standing, told
from streamjoin.spark.stages.parts import COPIES, Part, Spool
from streamjoin.spark.stages.punctuation import progress_of
from streamjoin.spark.stages.scaling import agreed, planned
from streamjoin.spark.stages.task_times import TimesOfTask
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.ranges import SplitPoints
from streamjoin.windows import intervals
from streamjoin.windows.encoding import Encoded, SideEncoder
from streamjoin.windows.words import TermWords

ROW_ID = "#row"
"""The column that identifies a tuple of a batch: in a self-join it does not match itself, and a match marks it."""

T = TypeVar("T", pa.RecordBatch, pa.Table)
Longest = tuple[int, int]
"""For both sides the class of the longest interval, in a join on intervals."""

SEQ, UPTO = "#seq", "#upto"
"""After a gate: a tuple's position in its side, and the number of tuples of the other side before it."""


@dataclass(frozen=True)
class Route:
    """The stage for one source of a side; in a self-join one stage sends each row in both roles."""

    blueprint: Blueprint
    side: int
    source: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Split every batch into parts."""
        from pyspark import TaskContext

        log, batch_id = open_log(self.blueprint)
        context = TaskContext.get()
        task = context.partitionId() if context else 0
        with log.advising(batch_id):
            # Tasks that follow read one file instead of those of all ranges.
            before = log.version(batch_id - 1, keep=task == 0)
        points = planned(self.blueprint, before)
        longest = longest_stored(self.blueprint, before)
        facts, spool = TaskFacts(self.side, task), Spool.of(log, batch_id)
        times = TimesOfTask(self.blueprint, self.side, self.source) if self.blueprint.shared_gate else None
        for number, batch in enumerate(batches):
            if batch.num_rows == 0:
                continue
            rows = conformed(batch, self.blueprint.schema(self.side))
            for part in self.cut(rows, points, longest, task, number, facts.rows):
                yield from packed(part, spool)
            facts = facts.after(self.blueprint, rows)
            if times is not None:
                times.add(rows)
        if times is not None and facts.rows:
            yield from told(points.ranges, times.code, task, times.packed(), spool)
        yield self._told(log, before, points, facts)

    def _told(self, log: WindowLog, before: Manifest, points: SplitPoints, facts: TaskFacts) -> pa.RecordBatch:
        """What every range is told at the end, with the figures of the version before."""
        plan, mark = self.blueprint, agreed(before, points)
        if not plan.on_arrival:
            progress = None
            if plan.shared_gate and before.batch >= 0:
                progress = progress_of(before.batch, log.gate(before.batch, before.epoch)[0])
            received = (0, facts.rows) if self.side else (facts.rows, 0)
            return standing(
                plan.partitions, before, points.ranges, mark, progress, received if plan.shared_gate else None
            )
        progress = None if before.counts is None else punctuation_of(plan, before.batch, before.clocks)
        return standing(plan.partitions, before, points.ranges, mark, progress, None, facts.packed())

    def cut(
        self, batch: pa.RecordBatch, points: SplitPoints, longest: Longest, source: int, number: int, seen: int
    ) -> Iterator[Part]:
        """The parts of one input batch."""
        plan = self.blueprint
        rows = conformed(batch, plan.schema(self.side))
        if identified(plan):
            rows = with_ids(rows, sender(plan, self.side, self.source, source), seen)
        for role in [0, 1] if plan.bound.spec.self_join else [self.side]:
            for partition, kind, part in by_range(plan, role, rows, points, seen, longest):
                yield Part(partition, role + kind, source, number, part)


def part_schema(blueprint: Blueprint, side: int) -> pa.Schema:
    """The columns of a packed part."""
    schema = blueprint.schema(side)
    if identified(blueprint):
        return schema.append(pa.field(ROW_ID, pa.int64()))
    return schema if blueprint.gate is None else with_numbers(schema)


def identified(blueprint: Blueprint) -> bool:
    """Whether routing tasks number their rows."""
    alone = blueprint.gate is None and blueprint.bound.spec.self_join
    return alone or blueprint.on_arrival or blueprint.shared_gate


def sender(blueprint: Blueprint, side: int, source: int, task: int) -> int:
    """The number of a task for one source of a side: Spark's union may read the partitions of several in one task."""
    return task if blueprint.gate is None else task * len(blueprint.gate.sources[side]) + source


def with_numbers(schema: pa.Schema) -> pa.Schema:
    """The columns of rows after a gate."""
    return schema.append(pa.field(SEQ, pa.int64())).append(pa.field(UPTO, pa.int64()))


def with_ids(rows: T, task: int, first: int) -> T:
    """The rows with their ids; `first` is the number of the first row in its task."""
    ids = np.arange(first, first + rows.num_rows, dtype=np.int64) + (task << TASK_ROWS)
    return rows.append_column(ROW_ID, pa.array(ids))


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with the schema of its side: Spark may use another time zone or other names of list fields."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def longest_stored(blueprint: Blueprint, before: Manifest) -> Longest:
    """The classes of the longest intervals in the log."""
    return (before.longest(0), before.longest(1)) if blueprint.bound.intervals is not None else (0, 0)


def index_words(blueprint: Blueprint, encoded: Encoded, longest: int = 0) -> TermWords:
    """The words that rows are stored under and those they can match; without an index all rows have the same word.

    `longest` is the class of the longest interval of the other side.
    """
    if encoded.index is not None:
        return encoded.index
    if blueprint.bound.intervals is not None:
        begin, end = intervals.ends(encoded.terms, blueprint.bound.intervals)
        if encoded.valid is not None:
            # What is in the place of a NULL is not defined.
            begin, end = np.where(encoded.valid, begin, 0), np.where(encoded.valid, end, 0)
        return TermWords(begin, intervals.low_ends(begin, longest), end)
    nothing = np.zeros(encoded.n, np.int64)
    return TermWords(nothing, nothing, nothing)


def owned_by(blueprint: Blueprint, role: int, encoded: Encoded, index: TermWords) -> Array:
    """The words by which rows have their owners; by key the left rows are where the right ones are."""
    if role or not blueprint.by_key:
        return index.word
    if blueprint.summarises and encoded.valid is not None:
        # Left rows without a key have empty windows, and wait like the others.
        return np.where(encoded.valid, index.lo, 0)
    return index.lo


def by_range(
    blueprint: Blueprint,
    role: int,
    rows: pa.RecordBatch,
    points: SplitPoints,
    first: int,
    longest: Longest = (0, 0),
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """(range, 0 or `COPIES`, rows) for every range that gets some; `first` is the number of the first row."""
    if points.ranges == 1:
        yield 0, 0, rows
        return
    places = placed(blueprint, role, rows, points, first, longest)
    for kind, (row, partition) in ((0, (np.arange(rows.num_rows), places.owner)), (COPIES, places.copies)):
        for target, part in _grouped(rows, row, partition):
            yield target, kind, part


@dataclass(frozen=True)
class Placed:
    """Where rows belong: the range that owns each, and (row, range) of the copies for others.

    They follow from a row's word and from those that it can match, from `lo` to `hi`; a row that is not `keyed`
    matches nothing.
    """

    owner: Array
    copies: tuple[Array, Array]
    word: Array
    lo: Array
    hi: Array
    keyed: Array


def placed(
    blueprint: Blueprint,
    role: int,
    rows: pa.RecordBatch,
    points: SplitPoints,
    first: int,
    longest: Longest = (0, 0),
    unkeyed: Array | None = None,
) -> Placed:
    """Where rows belong; `unkeyed` are the words by which rows without a key have owners: without it any range has."""
    side: Literal["left", "right"] = "right" if role else "left"
    encoded = SideEncoder(blueprint.bound, side).encode(pa.Table.from_batches([rows]))
    index = index_words(blueprint, encoded, longest[1 - role])
    word = owned_by(blueprint, role, encoded, index)
    lo, hi, keyed = index.lo, index.hi, np.ones(encoded.n, np.bool_)
    if role and blueprint.by_key:
        # The left rows of a key are where its right rows are; where these are divided, each part sees all of them.
        lo = hi = word
    if encoded.valid is not None and not (blueprint.summarises and role == 0):
        keyed = encoded.valid
        lo, hi = np.where(keyed, lo, 1), np.where(keyed, hi, 0)
        if unkeyed is not None:
            word = np.where(keyed, word, unkeyed)
    owner = points.owners(word, first)
    if unkeyed is None and not keyed.all():
        owner = np.where(keyed, owner, np.arange(first, first + encoded.n, dtype=np.int64) % points.ranges)
    # The owner of a left row finds all its partners in an as-of join.
    nothing = np.empty(0, np.int64)
    whole = not points.shares.any() and (blueprint.by_key or index.matches_itself)
    alone = whole or (role == 0 and (blueprint.bound.match is not None or blueprint.summarises))
    copies = (nothing, nothing) if alone else points.copies(owner, lo, hi)
    return Placed(owner, copies, word, lo, hi, keyed)


def _grouped(rows: pa.RecordBatch, row: Array, partition: Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    if row.size == 0:
        return
    targets, order = sort_entries(partition, row)
    sorted_rows = rows.take(pa.array(order))
    edges = np.flatnonzero(np.diff(targets)) + 1
    for begin, end in zip([0, *edges], [*edges, targets.size], strict=True):
        yield int(targets[begin]), sorted_rows.slice(int(begin), int(end - begin))
