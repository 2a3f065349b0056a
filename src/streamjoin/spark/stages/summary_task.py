"""Summaries in one range: the aggregates of the windows that are complete, for the keys that the range owns.

A range has all tuples of its keys, so the window of a left row is there whole. A released left row is stored, with a
key or without, until no right row of its window can follow, and comes out in that batch. Sums are exact and right rows
are brought into gate order, so the rows are those of the embedded engine to the bit, whatever the ranges are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.joins.kinds.summary_rows import SummaryRows
from streamjoin.joins.kinds.summary_state import RightSide
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.kinds.summary import NONE
from streamjoin.model.binding import BoundSpec
from streamjoin.model.summary import Summary
from streamjoin.spark.stages.kind_task import RangeRows, parts_of, seqs_of
from streamjoin.spark.stages.output import TaskRows
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.segments import Segment, concatenated
from streamjoin.windows.clock import FOREVER, NEVER
from streamjoin.windows.workers import Workers

Horizons = tuple[int, int]
"""The oldest left time that waits, and the oldest right one that is in a window."""


@dataclass(frozen=True)
class SummaryResults:
    """Result rows, and the positions of their left rows."""

    table: pa.Table
    seqs: Array

    def columns(self, blueprint: Blueprint) -> list[Any]:  # noqa: ARG002
        """The columns of the left side and the summaries."""
        return list(self.table.columns)

    def order(self, blueprint: Blueprint) -> tuple[Array, ...]:  # noqa: ARG002
        """The place of each row."""
        nothing = np.zeros(self.seqs.size, np.int64)
        return self.seqs, nothing, nothing


class SummaryRange:
    """One range of a join with summaries in one batch, between the horizons before it and `after` it; None at the end.

    Left rows from the first horizon before the batch to the first one after it come out.
    """

    def __init__(self, rows: RangeRows, before: Horizons, after: Horizons | None) -> None:
        bound = rows.blueprint.bound
        if bound.summary is None or not isinstance(bound.spec.match, Summary):
            raise AssertionError("a range of summaries without any")
        self._bound: BoundSpec = bound
        self._plan = bound.summary
        left, right = ([*old, new.owned.rows] for old, new in zip(rows.old, rows.new, strict=True))
        waiting = _in_order(left, before[0])
        n = waiting.n if after is None else int(np.searchsorted(waiting.ticks, after[0]))
        self._complete = complete = waiting.part(0, n)
        self._waiting = waiting.part(n, waiting.n)
        self._right = _in_order(right, before[1])
        self.overflowed = 0
        """How many sums their type could not hold."""
        self._side, self._results = self._summarised(bound.spec.match)
        # The begin of the windows to come.
        oldest = after[0] if after is not None else int(complete.ticks[-1]) if complete.n else NEVER
        self._begin = max(NEVER, min(FOREVER, oldest + bound.summary.low))

    def rows(self) -> Iterator[TaskRows]:
        """The rows of the batch."""
        table, seqs = self._results
        for some in parts_of(np.arange(seqs.size)):
            begin, end = int(some[0]), int(some[-1]) + 1
            yield SummaryResults(table.slice(begin, end - begin), seqs[begin:end])

    def kept(self) -> tuple[Segment, Segment]:
        """The rows of both sides that later rows may need, sorted by word."""
        needed = self._side.needed(self._begin)
        return _by_word(self._waiting), _by_word(self._right.take(needed))

    def _summarised(self, match: Summary) -> tuple[RightSide, tuple[pa.Table, Array]]:
        """The right rows as the engine stores them, and the rows that come out with their positions."""
        bound, complete = self._bound, self._complete
        summaries, numbers = SummaryRows(bound, Workers(1)), KeyNumbers(bound.keys)
        hidden = bound.spec.self_join and not match.itself
        side = summaries.new_side(self._plan.low, self._plan.high, hidden=hidden)
        read = {key.right.name for key in bound.keys} | match.columns("r")
        table = self._right.rows.select([name for name in self._right.rows.schema.names if name in read])
        summaries.store(side, table, self._right.ticks, numbers)
        keys = numbers.number(0, complete.rows)
        side.know_keys(numbers.count)
        own = self._places_of(seqs_of(complete)) if bound.spec.self_join else np.empty(0, np.int64)
        found, sizes = summaries.aggregates(side, side.windows(complete.ticks, keys, own), complete.rows)
        self.overflowed = summaries.overflowed
        result, seqs = summaries.table(bound, complete.rows, found, complete.n), seqs_of(complete)
        if bound.spec.how == "inner":
            some = sizes > 0
            result, seqs = result.filter(pa.array(some)), seqs[some]
        return side, (result, seqs)

    def _places_of(self, seqs: Array) -> Array:
        """In a self-join the places of left rows among the right ones; NONE where no window has them any more."""
        known = seqs_of(self._right)
        places = np.searchsorted(known, seqs)
        inside = places < known.size
        inside[inside] = known[places[inside]] == seqs[inside]
        return np.where(inside, places, NONE)


def _in_order(segments: Sequence[Segment], oldest: int) -> Segment:
    """The rows of a side from a time on, in gate order."""
    rows = concatenated([segment.since(oldest, counted=False) for segment in segments])
    seqs = seqs_of(rows)
    if (seqs[1:] > seqs[:-1]).all():
        return rows
    return rows.take(sort_entries(seqs, np.arange(rows.n, dtype=np.int64))[1])


def _by_word(segment: Segment) -> Segment:
    return segment.take(sort_entries(segment.words, np.arange(segment.n, dtype=np.int64))[1])
