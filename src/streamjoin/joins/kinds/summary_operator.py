"""Joins with summaries: one row for each left tuple, with aggregates of the right tuples of its window.

A left tuple is decided when no right tuple of its window can follow. The aggregates that follow a
window as it slides come from `summary_state.py`; for the others, and where the condition is more than equalities, the
window's tuples are listed, tested and summarised in blocks (`summary_pairs.py`), and no pair is stored.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.base import Overflow
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.kinds.base import Tail
from streamjoin.joins.kinds.left_operator import LeftOperator, UndecidedRows
from streamjoin.joins.kinds.summary_rows import SummaryRows
from streamjoin.joins.registry import AlgorithmChoice
from streamjoin.kernels.kinds.summary import NONE
from streamjoin.model.binding import BoundSpec, BoundSummary
from streamjoin.model.summary import Summary
from streamjoin.windows.buffer import Buffer, Restore
from streamjoin.windows.clock import FOREVER, NEVER
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers

# Below this many right rows dropping some does not pay.
_LEAST_STORED = 1 << 17


class SummaryOperator(LeftOperator):
    """A running join with summaries."""

    def __init__(self, bound: BoundSpec, choice: AlgorithmChoice, workers: Workers, counts: Counts) -> None:
        if bound.summary is None or not isinstance(bound.spec.match, Summary):
            raise AssertionError("a join with summaries without any")
        super().__init__(bound, choice, workers, counts)
        self._plan: BoundSummary = bound.summary
        self._match = bound.spec.match
        self._rows = SummaryRows(bound, workers)
        # In a self-join, where each left tuple is among the right ones.
        self._own = Buffer(np.int64)
        hidden = self._self_join and not self._match.itself
        self._right = self._rows.new_side(self._plan.low, self._plan.high, hidden=hidden)
        self._room = _LEAST_STORED

    # -- the operator's interface --------------------------------------------------------------------------

    @property
    def stores(self) -> tuple[UndecidedRows, SideStore]:
        """The stored tuples of both sides."""
        return self._left, self._right.store

    def saved(self) -> Restore:
        """Return a function that restores the stored tuples and what is known of them."""
        state = self._right, self._numbers, self._own, self._room, self._rows.overflowed, self.bound, self.no_rows
        parts = [self._left.saved(), self._right.saved(), self._own.saved()]

        def restore() -> None:
            self._right, self._numbers, self._own, self._room, self._rows.overflowed, self.bound, self.no_rows = state
            for part in parts:
                part()

        return restore

    def counters(self) -> dict[str, int]:
        """The number of keys, of stored right rows, and of sums that their type could not hold."""
        return {**super().counters(), "overflowed": self._rows.overflowed}

    # -- internals -----------------------------------------------------------------------------------------

    def _known_bytes(self) -> int:
        return self._right.nbytes + self._own.nbytes

    def _store(self, tables: list[pa.Table], ticks: list[Array], is_right: Array) -> int:  # noqa: ARG002
        left, right = tables
        if left.num_rows:
            if self._self_join:
                begin = self._right.store.count
                self._own.append(np.arange(begin, begin + left.num_rows))
            self._left.append(left, self._numbers.number(0, left), ticks[0])
        if right.num_rows:
            self._rows.store(self._right, right, ticks[1], self._numbers)
        self._right.know_keys(self._numbers.count)
        return max((int(own[-1]) for own in ticks if own.size), default=NEVER)

    def _decide(self, tail: Tail, limit: int | None, is_right: Array) -> pa.Table:
        left = self._left
        bound = max(NEVER, min(FOREVER, tail.tick - self._plan.high))
        n = left.ticks.size if tail.last else int(np.searchsorted(left.ticks, bound))
        with self.counts.step("pair"):
            if limit is not None and n > limit and self.bound.spec.how == "left":
                # Before the windows have moved: they would start anew.
                raise Overflow
            windows = self._right.windows(left.ticks[:n], left.keys[:n], self._own.values[:n])
            self.counts.compared += int(windows.sizes.sum())
            rows = left.first(n)
            aggregates, sizes = self._rows.aggregates(self._right, windows, rows)
        keep = sizes > 0 if self.bound.spec.how == "inner" else None
        kept = n if keep is None else int(keep.sum())
        if limit is not None and kept > limit:
            raise Overflow
        self.counts.results += kept
        self._later = partial(np.full, kept, max(0, is_right.size - 1), np.int64)
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
        tick = max(NEVER, min(FOREVER, oldest + low))
        right.forget()
        if right.stored > self._room and not self._match.prevailing:
            right.forget(tick)
            self._room = max(_LEAST_STORED, 2 * right.stored)
        if max(right.stored, self._numbers.count) > self._room:
            self._drop_unneeded(tick)

    def _drop_unneeded(self, tick: int) -> None:
        """Keep the right tuples that windows from a time on need alone, and the keys that some tuple has."""
        old, left = self._right, self._left
        needed = old.needed(tick)
        keys = old.keys[needed]
        used = np.unique(np.concatenate([keys, left.keys, [NONE]]))[1:]
        renumbered = np.full(self._numbers.count + 1, NONE, np.int64)
        renumbered[used] = np.arange(used.size)
        self._room = max(_LEAST_STORED, 2 * max(needed.size, used.size))
        fresh = old.rebuilt(needed, renumbered[keys], used.size)
        if self._self_join:
            moved = np.full(old.stored + 1, NONE, np.int64)
            moved[needed] = np.arange(needed.size)
            own = Buffer(np.int64)
            known = self._own.values
            # Those that were dropped are in no window any more.
            own.append(moved[np.where(known == NONE, NONE, np.maximum(NONE, known - old.store.base))])
            self._own = own
        # New arrays throughout: a failed call goes back to the old ones, which nothing changes any more.
        left.renumber(renumbered[left.keys])
        self._right, self._numbers = fresh, self._numbers.shrunk(used)
