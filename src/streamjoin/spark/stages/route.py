"""Which rows go to which range, and the first stage of a join that needs no gate.

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
from streamjoin.spark.stages.figures import packed, standing
from streamjoin.spark.stages.parts import COPIES, Part, Spool
from streamjoin.spark.stages.scaling import agreed, planned
from streamjoin.storage.blueprint import Blueprint
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
    """The stage for one side; in a self-join one stage sends each row in both roles."""

    blueprint: Blueprint
    side: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Split every batch into parts."""
        from pyspark import TaskContext

        log, batch_id = open_log(self.blueprint)
        with log.advising(batch_id):
            before = log.version(batch_id - 1, keep=False)
        points = planned(self.blueprint, before)
        context = TaskContext.get()
        source = context.partitionId() if context else 0
        longest = longest_stored(self.blueprint, before)
        facts, spool = TaskFacts(self.side, source), Spool.of(log, batch_id)
        for number, batch in enumerate(batches):
            if batch.num_rows == 0:
                continue
            rows = conformed(batch, self.blueprint.schema(self.side))
            for part in self.cut(rows, points, longest, source, number, facts.rows):
                yield from packed(part, spool)
            facts = facts.after(self.blueprint, rows)
        yield self._told(before, points, facts)

    def _told(self, before: Manifest, points: SplitPoints, facts: TaskFacts) -> pa.RecordBatch:
        """What every range is told at the end, with the figures of the version before."""
        plan, mark = self.blueprint, agreed(before, points)
        if not plan.on_arrival:
            return standing(plan.partitions, before, points.ranges, mark)
        progress = None if before.counts is None else punctuation_of(plan, before.batch, before.clocks)
        return standing(plan.partitions, before, points.ranges, mark, progress, None, facts.packed())

    def cut(
        self, batch: pa.RecordBatch, points: SplitPoints, longest: Longest, source: int, number: int, seen: int
    ) -> Iterator[Part]:
        """The parts of one input batch."""
        plan = self.blueprint
        rows = conformed(batch, plan.schema(self.side))
        if plan.bound.spec.self_join or plan.on_arrival:
            rows = with_ids(rows, source, seen)
        for role in [0, 1] if plan.bound.spec.self_join else [self.side]:
            for partition, kind, part in by_range(plan, role, rows, points, seen, longest):
                yield Part(partition, role + kind, source, number, part)


def part_schema(blueprint: Blueprint, side: int) -> pa.Schema:
    """The columns of a packed part."""
    schema = blueprint.schema(side)
    if blueprint.gate is not None:
        return schema.append(pa.field(SEQ, pa.int64())).append(pa.field(UPTO, pa.int64()))
    identified = blueprint.bound.spec.self_join or blueprint.on_arrival
    return schema.append(pa.field(ROW_ID, pa.int64())) if identified else schema


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
    side: Literal["left", "right"] = "right" if role else "left"
    encoded = SideEncoder(blueprint.bound, side).encode(pa.Table.from_batches([rows]))
    index = index_words(blueprint, encoded, longest[1 - role])
    word = owned_by(blueprint, role, encoded, index)
    owner, lo, hi = points.owners(word, first), index.lo, index.hi
    if role and blueprint.by_key:
        # The left rows of a key are where its right rows are; where these are divided, each part sees all of them.
        lo = hi = word
    if encoded.valid is not None and not (blueprint.summarises and role == 0):
        anywhere = np.arange(first, first + encoded.n, dtype=np.int64) % points.ranges
        owner = np.where(encoded.valid, owner, anywhere)
        lo, hi = np.where(encoded.valid, lo, 1), np.where(encoded.valid, hi, 0)
    numbers = np.arange(encoded.n, dtype=np.int64)
    # The owner of a left row finds all its partners in an as-of join.
    nothing = numbers[:0]
    whole = blueprint.by_key and not points.shares.any()
    alone = whole or (role == 0 and (blueprint.bound.match is not None or blueprint.summarises))
    copies = (nothing, nothing) if alone else points.copies(owner, lo, hi)
    for kind, (row, partition) in ((0, (numbers, owner)), (COPIES, copies)):
        for target, part in _grouped(rows, row, partition):
            yield target, kind, part


def _grouped(rows: pa.RecordBatch, row: Array, partition: Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    if row.size == 0:
        return
    targets, order = sort_entries(partition, row)
    sorted_rows = rows.take(pa.array(order))
    edges = np.flatnonzero(np.diff(targets)) + 1
    for begin, end in zip([0, *edges], [*edges, targets.size], strict=True):
        yield int(targets[begin]), sorted_rows.slice(int(begin), int(end - begin))
