"""Joins with summaries: one row for each left tuple, with aggregates of the right tuples of its window.

Left tuples wait, in the tables in which they came, until no right tuple of their window can follow, and come out in
their order. Right tuples stay as long as a left tuple may need them. The aggregates that a window's ends decide come
from prefix sums and ladders (`summary_state.py`); for the others, and where the condition is more than equalities, the
window's tuples are listed, tested and summarised in blocks (`summary_pairs.py`), and no pair is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.base import Overflow
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.engine.ordered import Ordered, Work
from streamjoin.joins.kinds.base import Tail
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.joins.kinds.left_operator import UndecidedRows
from streamjoin.joins.kinds.summary_rows import SummaryRows
from streamjoin.joins.kinds.summary_state import RightSide, bounds_of
from streamjoin.joins.registry import SUMMARY, AlgorithmChoice
from streamjoin.kernels.kinds.summary import NONE
from streamjoin.model.binding import BoundSpec, BoundSummary
from streamjoin.model.predicates import Equi
from streamjoin.model.summary import Summary
from streamjoin.windows.buffer import Buffer, Restore
from streamjoin.windows.clock import FOREVER, NEVER, plus
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers

_LARGEST_CHUNK = 1 << 17
# Below this many right rows dropping some does not pay.
_LEAST_STORED = 1 << 16


class Summarising:
    """The name of the algorithm; the operator does its work."""

    name: ClassVar[str] = SUMMARY

    def close(self) -> None:
        """Do nothing: there are no threads."""

    @property
    def nbytes(self) -> int:
        """No bytes: the operator holds them."""
        return 0


class SummaryOperator:
    """A running join with summaries."""

    has_times = True

    def __init__(self, bound: BoundSpec, choice: AlgorithmChoice, workers: Workers, counts: Counts) -> None:
        if bound.summary is None or not isinstance(bound.spec.match, Summary):
            raise AssertionError("a join with summaries without any")
        self.bound = bound
        self.choice = choice
        self.counts = counts
        self.algorithm = Summarising()
        self.no_rows = bound.schema.empty_table()
        self._later: Callable[[], Array] = partial(np.empty, 0, np.int64)
        self._plan: BoundSummary = bound.summary
        self._match = bound.spec.match
        self._self_join = bound.spec.self_join
        self._workers = workers
        self._rows = SummaryRows(bound, workers)
        self._left = UndecidedRows(bound.left_schema)
        # In a self-join, where each left tuple is among the right ones.
        self._own = Buffer(np.int64)
        self._right = self._rows.new_side()
        self._numbers = KeyNumbers([key for key in bound.keys if isinstance(key.term, Equi)])
        self._room = _LEAST_STORED
        # Sides that were left behind, one in this call, one before: the next one takes the memory of the other.
        self._retired: RightSide | None = None
        self._spare: RightSide | None = None

    # -- the operator's interface --------------------------------------------------------------------------

    @property
    def later(self) -> Array:
        """For each row of the newest step, the place of the tuple with which it came out."""
        return self._later()

    @property
    def stores(self) -> tuple[UndecidedRows, SideStore]:
        """The stored tuples of both sides."""
        return self._left, self._right.store

    def at_once(self, schemas: object) -> None:
        """None: every push is decided in steps."""

    def begin(self, ordered: Ordered, horizons: tuple[int, int] | None, tail: Tail | None = None) -> Work:
        """Prepare tuples to be joined."""
        return Work(ordered, horizons, tail=tail)

    def step(self, work: Work, limit: int | None, most: int | None = None) -> pa.Table:
        """Join the next chunk of at most `most` tuples; raises Overflow beyond `limit` rows."""
        ordered, n = work.ordered, int(work.ordered.is_right.size)
        if work.ready:
            work.tried = 0
            rows, work.ready = work.ready[0], work.ready[1:]
            self._later = partial(np.zeros, rows.num_rows, np.int64)
            if limit is not None and rows.num_rows > limit:
                raise Overflow
            return rows
        end = min(n, work.begin + min(_LARGEST_CHUNK, most or n))
        work.tried = end - work.begin
        rights = work.tried if self._self_join else int(np.count_nonzero(ordered.is_right[work.begin : end]))
        counts = work.tried if self._self_join else work.tried - rights, rights
        with self.counts.step("store"):
            newest = self._store(ordered, work.at, counts)
        work.begin, work.at = end, [work.at[0] + counts[0], work.at[1] + counts[1]]
        decided = Tail(newest)
        if end == n:
            # Without a gate's word the newest tuple may still be followed by others of its time.
            decided, work.tail = work.tail or decided, None
        return self._decide(decided, limit, max(0, work.tried - 1))

    def retype(self, bound: BoundSpec) -> None:
        """Switch to a spec bound to schemas that give types to columns that were all NULL so far."""
        self._left.retype(bound.left_schema)
        self.bound = bound
        self.no_rows = bound.schema.empty_table()

    def saved(self) -> Restore:
        """Return a function that restores the stored tuples and what is known of them."""
        if self._retired is not None:
            # No failed call goes back beyond this one.
            self._retired.let_go()
            self._spare, self._retired = self._retired, None
        state = self._right, self._numbers, self._own, self._room, self._rows.overflowed, self.bound, self.no_rows
        parts = [self._left.saved(), self._right.saved(), self._own.saved()]

        def restore() -> None:
            self._right, self._numbers, self._own, self._room, self._rows.overflowed, self.bound, self.no_rows = state
            # What was left behind is in use again.
            self._spare = self._retired = None
            for part in parts:
                part()

        return restore

    def earliest(self, tick: int) -> int:
        """The earliest time that a later row can have, in event-time order, if no tuple before `tick` follows."""
        return min(tick, self._left.time_at(self._left.base))

    def counters(self) -> dict[str, int]:
        """The number of keys, of stored right rows, and of sums that their type could not hold."""
        return {"keys": self._numbers.count, "stored": self._right.store.count, "overflowed": self._rows.overflowed}

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes held by the stored tuples, and by what is known of keys and windows."""
        sides = [side for side in (self._right, self._retired, self._spare) if side is not None]
        known = sum(side.nbytes for side in sides) + self._own.nbytes + self._numbers.nbytes
        return sum(store.nbytes for store in self.stores), known

    # -- internals -----------------------------------------------------------------------------------------

    def _store(self, ordered: Ordered, at: list[int], counts: tuple[int, int]) -> int:
        """Store the tuples of a chunk; returns the newest time."""
        tables = [ordered.tables[side].slice(at[side], counts[side]) for side in (0, 1)]
        ticks = [_cut(ordered.ticks[side], at[side], counts[side]) for side in (0, 1)]
        if counts[0]:
            if self._self_join:
                begin = self._right.store.count
                self._own.append(np.arange(begin, begin + counts[0]))
            self._left.append(tables[0], self._numbers.number(0, tables[0]), ticks[0])
        if counts[1]:
            self._rows.store(self._right, tables[1], ticks[1], self._numbers)
        self._right.know_keys(self._numbers.count)
        return max((int(own[-1]) for own in ticks if own.size), default=NEVER)

    def _decide(self, tail: Tail, limit: int | None, last_place: int) -> pa.Table:
        """The rows of the left tuples that are decided now."""
        left, plan = self._left, self._plan
        ends = plus(left.ticks, plan.high) if plan.high >= 0 else left.ticks
        bound = tail.tick if plan.high >= 0 else min(FOREVER, tail.tick - plan.high)
        n = left.ticks.size if tail.last else int(np.searchsorted(ends, bound))
        with self.counts.step("pair"):
            bounds = bounds_of(left.ticks[:n], plan.low, plan.high)
            own = self._own.values[:n]
            ranges = self._right.windows(bounds, left.keys[:n], own, self._match.prevailing, self._match.itself)
            sizes = self._right.sizes(ranges)
            self.counts.compared += int(sizes.sum())
            rows = left.first(n)
            aggregates, sizes = self._rows.aggregates(self._right, ranges, sizes, rows)
        keep = sizes > 0 if self.bound.spec.how == "inner" else None
        kept = n if keep is None else int(keep.sum())
        if limit is not None and kept > limit:
            raise Overflow
        self.counts.results += kept
        self._later = partial(np.full, kept, last_place, np.int64)
        with self.counts.step("gather"):
            table = self._rows.table(self.bound, rows, aggregates, n)
            if keep is not None and kept < n:
                table = table.filter(pa.array(keep))
        with self.counts.step("expire"):
            self._forget(n, tail)
        return table

    def _forget(self, n: int, tail: Tail) -> None:
        """Drop the left tuples that came out, and right ones once most are not needed."""
        left, right, low = self._left, self._right, self._plan.low
        self.counts.expired += left.forget(left.base + n)
        self._own.forget(n if self._self_join else 0)
        oldest = left.time_at(left.base) if left.ticks.size else FOREVER if tail.last else tail.tick
        right.pass_until(max(NEVER, min(FOREVER, oldest + low)))
        if right.store.count > self._room or self._numbers.count > self._room:
            self._drop_unneeded()

    def _drop_unneeded(self) -> None:
        """Keep the right tuples that are needed alone, with new places, and the keys that some tuple has."""
        old, left = self._right, self._left
        needed = old.needed(self._match.prevailing)
        keys = old.keys[needed]
        used = np.unique(np.concatenate([keys, left.keys, [NONE]]))[1:]
        renumbered = np.full(self._numbers.count + 1, NONE, np.int64)
        renumbered[used] = np.arange(used.size)
        self._room = max(_LEAST_STORED, 2 * max(needed.size, used.size))
        # With the chunk that is one too many.
        room = self._room + _LARGEST_CHUNK
        fresh = old.rebuilt(needed, renumbered[keys], used.size, self._workers, room, self._spare)
        self._spare, self._retired = None, old
        if self._self_join:
            moved = np.full(old.keys.size, NONE, np.int64)
            moved[needed] = np.arange(needed.size)
            own = Buffer(np.int64)
            known = self._own.values
            own.append(np.where(known == NONE, NONE, moved[known]))
            self._own = own
        # New arrays throughout: a failed call goes back to the old ones, which nothing changes any more.
        left.renumber(renumbered[left.keys])
        self._right, self._numbers = fresh, self._numbers.shrunk(used)


def _cut(ticks: Array | None, begin: int, n: int) -> Array:
    if ticks is None:
        raise AssertionError("event-time order without ticks")
    return ticks[begin : begin + n]
