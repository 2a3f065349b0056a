"""Facts from routing tasks, from which every range draws the same conclusions: no task needs to see all rows.

A routing task ends with a marker to every range, which carries what the task has seen: how many rows, and the newest
time. The shuffle is the barrier: no task of a range begins before it has the facts of all. From them and from the
version before follow the clocks after the batch, and so which stored tuples leave their windows in it, and a number
for each row. A routing task that runs again sends the same. A digest of the facts is in every piece, and a version
whose pieces differ is refused.

Without a gate a row is late when it is behind the clock of its side before the batch by more than the lateness. A gate
with one source a side finds the same rows late: its bound is at most that far behind either clock.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.spark.stages.kind_gate import Marks
from streamjoin.spark.stages.parts import MARKER
from streamjoin.spark.stages.punctuation import Punctuation
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.manifest import Clocks
from streamjoin.windows.clock import FOREVER, NEVER, to_ticks

TASK_ROWS = 40
"""A row's number in its routing task has this many bits; the task's own number is above them."""
WAITED = (1 << 22) - 1
"""In place of a task: the rows that waited in the gate of an earlier version."""

_PACKED = struct.Struct("<qqq?q")


@dataclass(frozen=True)
class TaskFacts:
    """What one routing task has seen of a side: how many rows, and their newest time. In a self-join both are one."""

    side: int
    task: int
    rows: int = 0
    newest: int | None = None

    def after(self, blueprint: Blueprint, batch: pa.RecordBatch) -> TaskFacts:
        """The facts after one more input batch."""
        time = blueprint.bound.time
        if time is None:
            raise AssertionError("a spec without a time column is refused when the join is built")
        column = batch.column(time.right if self.side else time.left)
        ticks, missing = to_ticks(column, time.multipliers[self.side])
        ticks = ticks if missing is None else ticks[~missing]
        seen = [*([] if self.newest is None else [self.newest]), *([int(ticks.max())] if ticks.size else [])]
        return TaskFacts(self.side, self.task, self.rows + batch.num_rows, max(seen, default=None))

    def packed(self) -> bytes:
        """The facts as the value of a marker."""
        return _PACKED.pack(self.side, self.task, self.rows, self.newest is not None, self.newest or 0)

    @classmethod
    def unpacked(cls, value: bytes) -> TaskFacts:
        """The facts from what `packed` returned."""
        side, task, rows, known, newest = _PACKED.unpack(value)
        return cls(side, task, rows, newest if known else None)


def facts_in(batches: Iterable[pa.RecordBatch]) -> list[TaskFacts]:
    """The facts in the markers of all routing tasks."""
    return [
        TaskFacts.unpacked(value)
        for batch in batches
        for side, value in zip(batch.column(1).to_pylist(), batch.column(4).to_pylist(), strict=True)
        if side == MARKER and value is not None
    ]


@dataclass(frozen=True)
class VersionBefore:
    """What the version before a batch says: clocks and counts of both sides, and the times before which all left."""

    clocks: Clocks
    counts: tuple[int, int]
    gone: tuple[int, int]
    marks: tuple[Marks, Marks] | None = None
    """The marks of the stored rows by position, after a version with a gate."""


@dataclass(frozen=True)
class BatchFacts:
    """What all ranges of a batch know."""

    before: VersionBefore
    clocks: Clocks
    counts: tuple[int, int]
    first: Mapping[tuple[int, int], int]
    """The number of the first row of each side and routing task."""
    digest: int

    @classmethod
    def of(cls, blueprint: Blueprint, before: VersionBefore, facts: Sequence[TaskFacts]) -> BatchFacts:
        """The conclusions from the facts of all routing tasks, in any order."""
        # What waited came before the rows of this batch.
        known = sorted(facts, key=lambda own: (own.side, own.task != WAITED, own.task))
        both = (0, 0) if blueprint.bound.spec.self_join else (0, 1)
        counts, clocks, first = list(before.counts), list(before.clocks), {}
        for role, side in enumerate(both):
            for own in known:
                if own.side == side:
                    first[role, own.task] = counts[role]
                    counts[role] += own.rows
                    clocks[role] = max((c for c in (clocks[role], own.newest) if c is not None), default=None)
        text = json.dumps([before.clocks, before.counts, [(own.side, own.task, own.rows, own.newest) for own in known]])
        return cls(before, (clocks[0], clocks[1]), (counts[0], counts[1]), first, zlib.crc32(text.encode()))

    def numbers(self, side: int, rows: Array) -> Array:
        """The numbers of rows, from their tasks and their numbers there."""
        return numbered({task: first for (of, task), first in self.first.items() if of == side}, rows)


def numbered(first: Mapping[int, int], rows: Array) -> Array:
    """The numbers of rows, from their tasks and their numbers there; `first` is the number of each task's first row."""
    if not rows.size:
        return rows
    tasks = rows >> TASK_ROWS
    # Tasks are few and have small numbers; only `WAITED` is far above, and has the last place.
    most = max((task for task in first if task != WAITED), default=-1) + 1
    shift = np.zeros(most + 1, np.int64)
    for task, number in first.items():
        shift[min(task, most)] = number - (task << TASK_ROWS)
    numbers: Array = rows + shift[np.minimum(tasks, most)]
    return numbers


def bound_of(blueprint: Blueprint, clocks: Clocks) -> int | None:
    """The time before which no side sends any more; None if that is not known."""
    left, right = clocks
    return None if left is None or right is None else max(NEVER, min(left, right) - blueprint.lateness)


def punctuation_of(blueprint: Blueprint, batch: int, clocks: Clocks) -> Punctuation:
    """What a batch guarantees: results that follow are not before its bound, nor before what has not left."""
    bound = bound_of(blueprint, clocks)
    horizons = blueprint.horizons(clocks)
    waiting = blueprint.marked or (0,)
    earliest = None if bound is None else min(bound, *(horizons[side] for side in waiting))
    newest = max((clock for clock in clocks if clock is not None), default=None)
    lag = None if bound is None or newest is None else min(FOREVER, newest - bound)
    return Punctuation(batch, None if earliest == NEVER else earliest, None, None, lag)
