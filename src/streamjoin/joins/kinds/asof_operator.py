"""As-of joins by key: one pass in the order of time instead of windows and pairs.

Tuples are stored until they are decided. Left ones come out in their order once no closer partner can follow, as slices
of the tables in which they came; of the right ones the newest of each key stays, within the tolerance, and those that a
waiting left tuple refers to. Rows that nothing needs any more are dropped by copying the others once they are the
smaller part, so a rare key holds one row and not all that came after it.

In arrival order a right tuple's time is its number, and a left tuple's that of the newest right one before it: the
newest partner is then the nearest one behind, and a count window of n is a tolerance of n - 1.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.base import Overflow
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.engine.result_rows import later_time
from streamjoin.joins.kinds.base import MISSING, Tail, gather_or_null
from streamjoin.joins.kinds.left_operator import LeftOperator, UndecidedRows
from streamjoin.joins.registry import AlgorithmChoice
from streamjoin.joins.types.asof import oldest
from streamjoin.joins.types.marks import outcome
from streamjoin.kernels.kinds.asof import NONE, pair_behind, pair_nearest, undo
from streamjoin.kernels.times import length_word
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Buffer, Restore
from streamjoin.windows.clock import NEVER
from streamjoin.windows.encoding import flat
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers

# Below this many right rows dropping some does not pay.
_LEAST_STORED = 1 << 18


class _RightSide:
    """The stored right tuples and the newest one of each key; `at` are processed."""

    def __init__(self, schema: pa.Schema) -> None:
        self.store = SideStore(schema, 1, timed=True)
        self.last = Buffer(np.int64)
        self.at = 0


class AsOfOperator(LeftOperator):
    """A running as-of join by key."""

    def __init__(self, bound: BoundSpec, choice: AlgorithmChoice, workers: Workers, counts: Counts) -> None:
        if bound.match is None:
            raise AssertionError("an as-of join without a match")
        super().__init__(bound, choice, workers, counts)
        self._match = bound.match
        window = bound.windows[1]
        counted = self._arrival and bound.spec.window is not None and window.kind == "count"
        self._tolerance = window.size - 1 if counted else self._match.tolerance
        self._looks_ahead = self._match.direction != "backward"
        self._right = _RightSide(_taken(bound))
        # Where partners may be ahead, for each left tuple: its partner, the time from which it is decided, and the next
        # in the chain of its key.
        self._waiting: tuple[Buffer, ...] = tuple(Buffer(np.int64) for _ in range(3)) if self._looks_ahead else ()
        self._heads = Buffer(np.int64)
        self._processed = 0
        self._right_count = 0
        self._room = _LEAST_STORED
        self._front = 0
        # What undoes the changes since `saved`, step by step, and memory for the next step.
        self._journal: list[Restore] = []
        self._spare = np.empty((0, 3), np.int64)

    # -- the operator's interface --------------------------------------------------------------------------

    @property
    def stores(self) -> tuple[UndecidedRows, SideStore]:
        """The stored tuples of both sides."""
        return self._left, self._right.store

    def retype(self, bound: BoundSpec) -> None:
        """Switch to a spec bound to schemas that give types to columns that were all NULL so far."""
        super().retype(bound)
        self._right.store.retype(_taken(bound))

    def saved(self) -> Restore:
        """Return a function that restores the stored tuples and what is known of them."""
        right, numbers = self._right, self._numbers
        state = self._processed, self._right_count, self._room, right.at, self.bound, self.no_rows
        heads, waiting = self._heads, self._waiting
        parts = [self._left.saved(), right.store.saved()]
        parts += [buffer.saved() for buffer in (right.last, heads, *waiting)]
        journal: list[Restore] = []
        self._journal = journal

        def restore() -> None:
            self._right, self._numbers, self._heads, self._waiting = right, numbers, heads, waiting
            for part in parts:
                part()
            self._processed, self._right_count, self._room, right.at, self.bound, self.no_rows = state
            while journal:
                journal.pop()()

        return restore

    # -- internals -----------------------------------------------------------------------------------------

    def _known_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in (self._right.last, self._heads, *self._waiting))

    def _store(self, tables: list[pa.Table], ticks: list[Array], is_right: Array) -> int:
        left, right = tables
        if self._arrival:
            before = self._right_count + np.cumsum(is_right) - 1
            ticks = [before[~is_right], before[is_right]]
            self._right_count += right.num_rows
        if left.num_rows:
            self._left.append(left, self._numbers.number(0, left), ticks[0])
        if right.num_rows:
            store = self._right.store
            words = [self._numbers.number(1, right)]
            store.append(right.select(store.schema.names), words, ticks[1], right.num_rows)
        for buffer in self._waiting:
            buffer.room_for(left.num_rows)
        for known in (self._right.last, self._heads):
            if len(known) < self._numbers.count:
                known.append(np.full(self._numbers.count - len(known), NONE, np.int64))
        return max((int(own[-1]) for own in ticks if own.size), default=NEVER)

    def _decide(self, tail: Tail, limit: int | None, is_right: Array) -> pa.Table:
        with self.counts.step("pair"):
            partners = self._partners_ahead(tail) if self._looks_ahead else self._partners_behind(tail)
            keep = None
            if self.bound.spec.how != "left":
                keep, _ = outcome(self.bound.spec.how, partners != MISSING, np.ones(partners.size, np.bool_))
        n = partners.size if keep is None else int(keep.sum())
        if limit is not None and n > limit:
            raise Overflow
        self.counts.results += n
        # In arrival order a left tuple comes out at once; else the end of the step decides.
        if self._arrival:
            places = np.flatnonzero(~is_right)[-partners.size :] if partners.size else np.empty(0, np.int64)
            own_places: Array = places if keep is None else places[keep]
            self._later = lambda: own_places
        else:
            self._later = partial(np.full, n, max(0, is_right.size - 1), np.int64)
        with self.counts.step("gather"):
            table = self._rows(partners, None if n == partners.size else keep)
        with self.counts.step("expire"):
            self._forget(tail)
        return table

    def _partners_behind(self, tail: Tail) -> Array:
        """The partners of the left tuples before the tail's time, or of all: each is decided when it is processed."""
        left, right = self._left, self._right
        at, ticks = right.at, [self._left.ticks, _ticks(right.store)]
        ends = [own.size if tail.last else int(np.searchsorted(own, tail.tick)) for own in ticks]
        end = max(at, ends[1])
        partners, cursor = np.empty(ends[0], np.int64), np.zeros(4, np.int64)
        last = right.last
        if len(last) <= end - at:
            journal, before = self._spare[:0], last.values.copy()
            self._journal.append(lambda: _put_back(last, before))
        else:
            journal = self._journal_of(end - at, cursor)
        pair_behind(
            ticks[0][: ends[0]], left.keys[: ends[0]], ticks[1][:end], right.store.words[0][:end], at,
            self._match.exact, length_word(self._tolerance), last.values, partners, journal, cursor,
        )  # fmt: skip
        self._processed, right.at = left.base + ends[0], end
        self.counts.compared += end - at
        return partners

    def _partners_ahead(self, tail: Tail) -> Array:
        """The partners of the left tuples that are decided, where a closer one may come later."""
        left, right, match = self._left, self._right, self._match
        cursor = np.array([self._processed - left.base, right.at, 0, 0], np.int64)
        ahead = right.store.count - right.at
        journal = self._journal_of(3 * ahead + 3 * (left.count - left.base), cursor)
        best, deadline, following = (buffer.values for buffer in self._waiting)
        pair_nearest(
            left.ticks, left.keys, left.base, _ticks(right.store), right.store.words[0],
            cursor, tail.tick, tail.last, match.direction != "forward", match.exact, length_word(self._tolerance),
            right.last.values, self._heads.values, best, deadline, following, journal,
        )  # fmt: skip
        self._processed, right.at = left.base + int(cursor[0]), int(cursor[1])
        self.counts.compared += ahead
        return best[: cursor[2]].copy()

    def _journal_of(self, room: int, cursor: Array) -> Array:
        """Memory for the journal of a step; what the step notes in it is undone by `saved`."""
        journal = self._spare = self._spare if not self._journal and len(self._spare) >= room else _entries(room)
        left, last, heads, waiting = self._left, self._right.last, self._heads, self._waiting

        def undo_step() -> None:
            arrays = [buffer.values for buffer in waiting] or [last.values[:0]] * 3
            undo(journal, int(cursor[3]), left.base, last.values, heads.values, *arrays)

        self._journal.append(undo_step)
        return journal

    def _rows(self, partners: Array, keep: Array | None) -> pa.Table:
        """The rows of the oldest left tuples with these partners, all or those of `keep`."""
        bound, left = self.bound, self._left.first(partners.size)
        if keep is not None:
            left, partners = left.filter(pa.array(keep)), partners[keep]
        right = gather_or_null(self._right.store, self._right.store.schema.names, partners, self._workers)
        arrays = [left.column(c.source) if c.side == "left" else right[c.source] for c in bound.columns]
        time = None if bound.spec.left_only else bound.time
        if time is not None:
            own, type_ = left.column(time.left), time.type
            is_later = not self._looks_ahead and not self._arrival and own.type == type_
            arrays.append(own if is_later else later_time([flat(own), right[time.right]], type_))
        self._front = self._left.base + partners.size if keep is None else self._left.base + keep.size
        return pa.Table.from_arrays(arrays, schema=bound.schema)

    def _forget(self, tail: Tail) -> None:
        """Drop the left tuples that came out, and right ones once most are not needed."""
        n = self._left.forget(self._front)
        for buffer in self._waiting:
            buffer.forget(n)
        self.counts.expired += n
        store = self._right.store
        if store.count > self._room:
            self._drop_unneeded(self._needed(tail))

    def _needed(self, tail: Tail) -> Array:
        """The right tuples that a later row may need, ascending."""
        store, last = self._right.store, self._right.last.values
        needed = np.zeros(store.count, np.bool_)
        needed[self._right.at :] = True
        if self._match.direction != "forward":
            newest = last[last != NONE]
            if not self._arrival and not tail.last:
                newest = newest[_ticks(store)[newest] >= oldest(self._match, tail.tick)]
            needed[newest] = True
        if self._looks_ahead:
            partners = self._waiting[0].values[: self._processed - self._left.base]
            needed[partners[partners != NONE]] = True
        return np.flatnonzero(needed)

    def _drop_unneeded(self, needed: Array) -> None:
        """Keep the right tuples `needed` alone, with new positions, and the keys that some tuple has."""
        old, left = self._right, self._left
        moved = np.full(old.store.count + 1, NONE, np.int64)
        moved[needed] = np.arange(needed.size)
        keys = old.store.words[0][needed]
        used = np.unique(np.concatenate([keys, left.keys, [NONE]]))[1:]
        right = _RightSide(old.store.schema)
        names = old.store.schema.names
        rows = pa.table(old.store.gather(names, needed, self._workers), schema=old.store.schema)
        renumbered = np.full(self._numbers.count + 1, NONE, np.int64)
        renumbered[used] = np.arange(used.size)
        right.store.append(rows, [renumbered[keys]], _ticks(old.store)[needed], needed.size)
        right.at = int(np.searchsorted(needed, old.at))
        right.last.append(moved[old.last.values[used]])
        heads = _buffer(self._heads.values[used])
        # New arrays throughout: a failed call goes back to the old ones, which nothing changes any more.
        left.renumber(renumbered[left.keys])
        if self._looks_ahead:
            partners, done = self._waiting[0].values, self._processed - left.base
            best = np.concatenate([moved[partners[:done]], partners[done:]])
            self._waiting = tuple(_buffer(values) for values in (best, *(own.values for own in self._waiting[1:])))
        self._right, self._heads, self._numbers = right, heads, self._numbers.shrunk(used)
        self._room = max(_LEAST_STORED, 2 * needed.size)
        # What follows changes the new arrays, which a failed call drops.
        self._journal = []


def _taken(bound: BoundSpec) -> pa.Schema:
    """The columns of the right side that rows take."""
    names = {column.source for column in bound.columns if column.side == "right"}
    if bound.time is not None and not bound.spec.left_only:
        names.add(bound.time.right)
    return pa.schema([field for field in bound.right_schema if field.name in names])


def _entries(n: int) -> Array:
    return np.empty((n, 3), np.int64)


def _put_back(buffer: Buffer, values: Array) -> None:
    buffer.values[...] = values[: len(buffer)]


def _ticks(store: SideStore) -> Array:
    if store.ticks is None:
        raise AssertionError("an as-of join without ticks")
    return store.ticks


def _buffer(values: Array) -> Buffer:
    buffer = Buffer(np.int64)
    buffer.append(values)
    return buffer
