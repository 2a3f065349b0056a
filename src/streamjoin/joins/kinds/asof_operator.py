"""As-of joins by key: one pass in the order of time instead of windows and pairs.

Tuples are stored until they are decided. Left ones come out in their order once no closer partner can follow; of the
right ones the newest of each key stays, within the tolerance, and those that a waiting left tuple refers to. Rows that
nothing needs any more are dropped by copying the others once they are the smaller part, so a rare key holds one row
and not all that came after it.

In arrival order a right tuple's time is its number, and a left tuple's that of the newest right one before it: the
newest partner is then the nearest one behind, and a count window of n is a tolerance of n - 1.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.auto import AS_OF
from streamjoin.joins.base import Overflow
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.engine.ordered import Ordered, Work
from streamjoin.joins.kinds.base import MISSING, KindRows, Tail
from streamjoin.joins.kinds.gathering import gather_kind
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.joins.registry import AlgorithmChoice
from streamjoin.kernels.kinds.asof import NONE, pair_nearest, undo
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Buffer, Restore
from streamjoin.windows.clock import NEVER
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers

_LARGEST_CHUNK = 1 << 17
# Below this many right rows dropping some does not pay.
_LEAST_STORED = 1 << 18
_EVERYTHING = Tail((1 << 63) - 1, last=True)


class AsOfByKey:
    """The name of the algorithm; the operator does its work."""

    name: ClassVar[str] = AS_OF

    def close(self) -> None:
        """Do nothing: there are no threads."""

    @property
    def nbytes(self) -> int:
        """No bytes: the operator holds them."""
        return 0


class _RightSide:
    """The stored right tuples and the newest one of each key; `at` are processed."""

    def __init__(self, schema: pa.Schema) -> None:
        self.store = SideStore(schema, 1, timed=True)
        self.last = Buffer(np.int64)
        self.at = 0


class AsOfOperator:
    """A running as-of join by key."""

    def __init__(self, bound: BoundSpec, choice: AlgorithmChoice, workers: Workers, counts: Counts) -> None:
        if bound.match is None:
            raise AssertionError("an as-of join without a match")
        self.bound = bound
        self.choice = choice
        self.counts = counts
        self.algorithm = AsOfByKey()
        self.no_rows = bound.schema.empty_table()
        self.later = np.empty(0, np.int64)
        """For each row of the newest step, the place of the tuple with which it came out."""
        self._match = bound.match
        self._workers = workers
        self._arrival = bound.spec.order == "arrival"
        self.has_times = not self._arrival
        window = bound.windows[1]
        counted = self._arrival and bound.spec.window is not None and window.kind == "count"
        self._tolerance = window.size - 1 if counted else self._match.tolerance
        self._left = SideStore(bound.left_schema, 0, timed=True)
        self._keys = Buffer(np.int64)
        self._right = _RightSide(bound.right_schema)
        # For each left tuple: its partner, the time from which it is decided, and the next in the chain of its key.
        self._waiting: tuple[Buffer, ...] = tuple(Buffer(np.int64) for _ in range(3))
        self._heads = Buffer(np.int64)
        self._numbers = KeyNumbers(bound)
        self._processed = 0
        self._right_count = 0
        self._room = _LEAST_STORED
        self._front = 0
        # What undoes the changes since `saved`, step by step, and memory for the next step.
        self._journal: list[tuple[Array, int]] = []
        self._spare = np.empty((0, 3), np.int64)

    # -- the operator's interface --------------------------------------------------------------------------

    @property
    def stores(self) -> tuple[SideStore, SideStore]:
        """The stored tuples of both sides."""
        return self._left, self._right.store

    def begin(self, ordered: Ordered, horizons: tuple[int, int] | None, tail: Tail | None = None) -> Work:
        """Prepare tuples to be joined."""
        return Work(ordered, horizons, tail=_EVERYTHING if self._arrival else tail)

    def step(self, work: Work, limit: int | None, most: int | None = None) -> pa.Table:
        """Join the next chunk of at most `most` tuples; raises Overflow beyond `limit` rows."""
        ordered, n = work.ordered, int(work.ordered.is_right.size)
        if work.ready:
            work.tried = 0
            rows, work.ready = work.ready[0], work.ready[1:]
            self.later = np.zeros(rows.num_rows, np.int64)
            if limit is not None and rows.num_rows > limit:
                raise Overflow
            return rows
        end = min(n, work.begin + min(_LARGEST_CHUNK, most or n))
        work.tried = end - work.begin
        is_right = ordered.is_right[work.begin : end]
        counts = (int((~is_right).sum()), int(is_right.sum()))
        with self.counts.step("store"):
            newest = self._store(ordered, work.at, counts, is_right)
        work.begin, work.at = end, [work.at[0] + counts[0], work.at[1] + counts[1]]
        # In arrival order nothing that follows can change a row.
        decided = _EVERYTHING if self._arrival else Tail(newest)
        if end == n:
            # Without a gate's word the newest tuple may still be followed by others of its time.
            decided, work.tail = work.tail or decided, None
        return self._decide(decided, limit, is_right)

    def retype(self, bound: BoundSpec) -> None:
        """Switch to a spec bound to schemas that give types to columns that were all NULL so far."""
        for store, schema in zip(self.stores, (bound.left_schema, bound.right_schema), strict=True):
            store.retype(schema)
        self.bound = bound
        self.no_rows = bound.schema.empty_table()

    def saved(self) -> Restore:
        """Return a function that restores the stored tuples and what is known of them."""
        right, numbers = self._right, self._numbers
        state = self._processed, self._right_count, self._room, right.at, self._left.base, self.bound, self.no_rows
        buffers = (right.last, self._heads, self._keys, *self._waiting)
        parts = [self._left.saved(), right.store.saved(), *(buffer.saved() for buffer in buffers)]
        heads, waiting, keys = self._heads, self._waiting, self._keys
        if self._journal:
            self._spare = self._journal[0][0]
        journal: list[tuple[Array, int]] = []
        self._journal = journal

        def restore() -> None:
            self._right, self._numbers, self._heads = right, numbers, heads
            self._waiting, self._keys = waiting, keys
            for part in parts:
                part()
            self._processed, self._right_count, self._room, right.at, base, self.bound, self.no_rows = state
            arrays = (right.last.values, heads.values, *(buffer.values for buffer in self._waiting))
            for entries, n in reversed(journal):
                undo(entries, n, base, *arrays)
            journal.clear()

        return restore

    def earliest(self, tick: int) -> int:
        """The earliest time that a later row can have, in event-time order, if no tuple before `tick` follows."""
        return min(tick, self._left.time_at(self._left.base))

    def counters(self) -> dict[str, int]:
        """The number of keys, and of stored right rows."""
        return {"keys": self._numbers.count, "stored": self._right.store.count}

    @property
    def nbytes(self) -> int:
        """Bytes held by the stored tuples and the keys."""
        buffers = (self._right.last, self._heads, self._keys, *self._waiting)
        held = sum(store.nbytes for store in self.stores) + sum(buffer.nbytes for buffer in buffers)
        return held + self._numbers.nbytes

    # -- internals -----------------------------------------------------------------------------------------

    def _store(self, ordered: Ordered, at: list[int], counts: tuple[int, int], is_right: Array) -> int:
        """Store the tuples of a chunk; returns the newest time."""
        tables = [ordered.tables[side].slice(at[side], counts[side]) for side in (0, 1)]
        if self._arrival:
            before = self._right_count + np.cumsum(is_right) - 1
            ticks = [before[~is_right], before[is_right]]
            self._right_count += counts[1]
        else:
            ticks = [_cut(ordered.ticks[side], at[side], counts[side]) for side in (0, 1)]
        for side, store in enumerate(self.stores):
            if counts[side]:
                numbers = self._numbers.number(side, tables[side])
                store.append(tables[side], [numbers] if side else [], ticks[side], counts[side])
                if not side:
                    self._keys.append(numbers)
        for buffer in self._waiting:
            buffer.room_for(counts[0])
        for known in (self._right.last, self._heads):
            if len(known) < self._numbers.count:
                known.append(np.full(self._numbers.count - len(known), NONE, np.int64))
        return max((int(own[-1]) for own in ticks if own.size), default=NEVER)

    def _decide(self, tail: Tail, limit: int | None, is_right: Array) -> pa.Table:
        """The rows of the left tuples that are decided now."""
        with self.counts.step("pair"):
            rows = self._pair(tail)
        if limit is not None and rows.n > limit:
            raise Overflow
        self.counts.results += rows.n
        # In arrival order a left tuple comes out at once; else the end of the step decides.
        first = self._left.count - int((~is_right).sum())
        self.later = (
            np.flatnonzero(~is_right)[rows.left - first]
            if self._arrival
            else np.full(rows.n, max(0, is_right.size - 1), np.int64)
        )
        with self.counts.step("gather"):
            table = gather_kind(self.bound, self.stores, rows, self._workers)
        with self.counts.step("expire"):
            self._forget(tail)
        return table

    def _pair(self, tail: Tail) -> KindRows:
        left, right, match = self._left, self._right, self._match
        ticks = [_ticks(store) for store in self.stores]
        cursor = np.array([self._processed - left.base, right.at, 0], np.int64)
        backward, forward = match.direction != "forward", match.direction != "backward"
        behind = right.store.count - right.at
        room = 3 * behind + 3 * (left.count - left.base) if forward else behind
        journal, self._spare = self._spare, self._spare[:0]
        if len(journal) < room:
            journal = np.empty((room, 3), np.int64)
        best, deadline, following = (buffer.values for buffer in self._waiting)
        n = pair_nearest(
            ticks[0], self._keys.values, left.base, ticks[1], right.store.words[0],
            cursor, tail.tick, tail.last, backward, forward, match.exact,
            -1 if self._tolerance is None else self._tolerance,
            right.last.values, self._heads.values, best, deadline, following, journal,
        )  # fmt: skip
        self._journal.append((journal, n))
        self._processed, right.at = left.base + int(cursor[0]), int(cursor[1])
        self.counts.compared += behind
        partners = best[: cursor[2]].copy()
        positions = np.arange(left.base, left.base + partners.size)
        self._front = left.base + partners.size
        if self.bound.spec.how == "left":
            return KindRows(positions, partners)
        keep = partners != MISSING if self.bound.spec.how == "inner" else partners == MISSING
        return KindRows(positions[keep], partners[keep])

    def _forget(self, tail: Tail) -> None:
        """Drop the left tuples that came out, and right ones once most are not needed."""
        n = self._left.forget(self._front)
        for buffer in (self._keys, *self._waiting):
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
            if self._tolerance is not None and not self._arrival and not tail.last:
                oldest = NEVER if tail.tick < NEVER + self._tolerance else tail.tick - self._tolerance
                newest = newest[_ticks(store)[newest] >= oldest]
            needed[newest] = True
        partners = self._waiting[0].values[: self._processed - self._left.base]
        needed[partners[partners != NONE]] = True
        return np.flatnonzero(needed)

    def _drop_unneeded(self, needed: Array) -> None:
        """Keep the right tuples `needed` alone, with new positions, and the keys that some tuple has."""
        old, left = self._right, self._left
        moved = np.full(old.store.count + 1, NONE, np.int64)
        moved[needed] = np.arange(needed.size)
        keys = old.store.words[0][needed]
        used = np.unique(np.concatenate([keys, self._keys.values, [NONE]]))[1:]
        right = _RightSide(old.store.schema)
        names = old.store.schema.names
        rows = pa.table(old.store.gather(names, needed, self._workers), schema=old.store.schema)
        renumbered = np.full(self._numbers.count + 1, NONE, np.int64)
        renumbered[used] = np.arange(used.size)
        right.store.append(rows, [renumbered[keys]], _ticks(old.store)[needed], needed.size)
        right.at = int(np.searchsorted(needed, old.at))
        right.last.append(moved[old.last.values[used]])
        heads = _buffer(self._heads.values[used])
        partners, done = self._waiting[0].values, self._processed - left.base
        best = np.concatenate([moved[partners[:done]], partners[done:]])
        # New arrays throughout: a failed call goes back to the old ones, which nothing changes any more.
        self._keys = _buffer(renumbered[self._keys.values])
        self._waiting = tuple(_buffer(values) for values in (best, *(own.values for own in self._waiting[1:])))
        self._right, self._heads, self._numbers = right, heads, self._numbers.shrunk(used)
        self._room = max(_LEAST_STORED, 2 * needed.size)
        # What follows changes the new arrays, which a failed call drops.
        self._journal = []


def _cut(ticks: Array | None, begin: int, n: int) -> Array:
    if ticks is None:
        raise AssertionError("event-time order without ticks")
    return ticks[begin : begin + n]


def _ticks(store: SideStore) -> Array:
    if store.ticks is None:
        raise AssertionError("an as-of join without ticks")
    return store.ticks


def _buffer(values: Array) -> Buffer:
    buffer = Buffer(np.int64)
    buffer.append(values)
    return buffer
