"""Outer and anti joins: the unmatched tuples come out where they leave their windows.

A mark per position says whether a tuple of a preserved side has matched. Once a chunk's pairs are marked, the tuples
that its own tuples leave behind are known: an unmatched one comes out just before the results of the first tuple
that finds it gone, several at one place in gate order, one with a NULL or NaN key at its own place.

In event-time order the end of a call also decides tuples: those that no later time can reach. A tuple is held back
while one of the other side that precedes it in gate order may leave at the same place, so that the order does not
depend on the calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk
from streamjoin.joins.kinds.base import MISSING, FewRows, KindRows, PositionBuffer, StoredChunk, Tail
from streamjoin.joins.kinds.keyless import Keyless
from streamjoin.kernels.kinds.marks import (
    GONE,
    UNMATCHED,
    leave_by_clock,
    leave_by_count,
    leave_by_time,
    mark,
    mark_left,
    merge_leaving,
    merge_rows,
)
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.clock import NEVER
from streamjoin.windows.store import SideStore

_SIDES = ("left", "right")
_FOREVER = (1 << 63) - 1
_FEW = 16
"""So many tuples without a match are rows of their own between slices of the pairs, which are then not copied."""


@dataclass(frozen=True)
class Leaving:
    """Tuples that leave within a chunk, by (place, rank); one of the positions is MISSING."""

    place: Array
    rank: Array
    left: Array
    right: Array

    @staticmethod
    def of(side: int, place: Array, rank: Array, positions: Array) -> Leaving:
        """Tuples of one side."""
        missing = np.full(positions.size, MISSING, np.int64)
        return Leaving(place, rank, missing, positions) if side else Leaving(place, rank, positions, missing)

    def merge(self, other: Leaving) -> Leaving:
        """Both lists, in order."""
        if not other.place.size or not self.place.size:
            return self if self.place.size else other
        columns = [np.empty(self.place.size + other.place.size, np.int64) for _ in range(4)]
        merge_leaving(
            self.place, self.rank, self.left, self.right, other.place, other.rank, other.left, other.right, *columns
        )
        return Leaving(*columns)


_NOBODY = Leaving(*(np.empty(0, np.int64) for _ in range(4)))


class _PreservedSide:
    """The marks of one preserved side. Positions before `front` are gone."""

    def __init__(self, bound: BoundSpec, side: int) -> None:
        self.side = side
        self.window = bound.windows[side]
        self.keyless = Keyless(bound, side)
        self.marks = PositionBuffer(np.uint8, UNMATCHED)
        self.ranks = PositionBuffer(np.int64, 0)
        self.front = 0

    def add(self, chunk: StoredChunk, rank: int) -> None:
        """Add a chunk's tuples."""
        places = chunk.places(self.side)
        self.marks.extend(places.size)
        self.ranks.extend(places.size)[...] = places + rank

    def mark(self, positions: Array) -> None:
        """Mark positions as matched."""
        fresh, count = self._noted(positions.size)
        mark(self.marks.values, self.marks.base, positions, fresh, count)

    def mark_left(self, chunk: Chunk, probes: Array, seqs: Array) -> None:
        """Mark the left tuples of pairs as matched."""
        fresh, count = self._noted(probes.size)
        mark_left(probes, seqs, chunk.is_right, chunk.own_seq, self.marks.values, self.marks.base, fresh, count)

    def _noted(self, n: int) -> tuple[Array, Array]:
        """Memory in which a kernel notes the positions that it marks, at most `n`, and their number."""
        fresh, count = np.empty(n, np.int64), np.zeros(1, np.int64)
        self.marks.note(fresh, UNMATCHED, count)
        return fresh, count

    def without_key(self, chunk: StoredChunk) -> Leaving:
        """The tuples of a chunk that can't match: they come out at their own place."""
        part = chunk.chunk.right if self.side else chunk.chunk.left
        mask = self.keyless(chunk.tables[self.side], part.encoded.valid)
        if mask is None:
            return _NOBODY
        at = np.flatnonzero(mask)
        positions = at + part.first_seq
        self.marks.values[positions - self.marks.base] = GONE
        return self.leaving(chunk.places(self.side)[at], positions)

    def leaving(self, places: Array, positions: Array) -> Leaving:
        """A list of tuples of this side."""
        return Leaving.of(self.side, places, self.ranks.values[positions - self.ranks.base], positions)

    def pass_to(self, front: int) -> None:
        """Drop what is before `front`."""
        self.front = front
        self.marks.forget(front)
        self.ranks.forget(front)

    def pending(self, end: int) -> Array:
        """The unmatched positions before `end`."""
        begin, base = self.front, self.marks.base
        return np.flatnonzero(self.marks.values[begin - base : max(begin, end) - base] == UNMATCHED) + begin

    def saved(self) -> Restore:
        """Return a function that restores the marks."""
        parts = [self.marks.saved(), self.ranks.saved()]
        front = self.front

        def restore() -> None:
            for part in parts:
                part()
            self.front = front

        return restore


class OuterLayer:
    """The rows of left, right, full and anti joins."""

    def __init__(self, bound: BoundSpec, stores: tuple[SideStore, SideStore]) -> None:
        spec = bound.spec
        self.gives_pairs = spec.how != "anti"
        self._stores = stores
        self._self_join = spec.self_join
        self._event_time = spec.order == "event_time"
        self._lateness = bound.lateness or 0
        self._sides = [_PreservedSide(bound, _SIDES.index(name)) for name in spec.preserved]
        # Whether times of a side are at most the lateness out of order: only a side that probes a time window is.
        self._bounded = [self._self_join or bound.windows[1 - side].kind == "time" for side in (0, 1)]
        # With one length for both sides, tuples leave in gate order.
        self._holds = len(self._sides) > 1 and bound.windows[0] != bound.windows[1]
        self._clocks = [NEVER, NEVER]
        self._rank = 0

    def begin(self, chunk: StoredChunk) -> None:
        """Add a chunk's tuples."""
        for side in self._sides:
            side.add(chunk, self._rank)

    def reduce(self, chunk: StoredChunk, probes: Array, seqs: Array) -> tuple[Array, Array]:
        """Pairs are rows; an anti join needs only the marks of its left tuples."""
        if self.gives_pairs:
            return probes, seqs
        # Threads that mark the same tuple write the same value.
        self._sides[0].mark_left(chunk.chunk, probes, seqs)
        return probes[:0], seqs[:0]

    def rows(self, chunk: StoredChunk, probes: Array, left: Array, right: Array) -> KindRows:
        """The pairs of a chunk and the tuples that leave within it."""
        if self.gives_pairs:
            for side in self._sides:
                side.mark(right if side.side else left)
        clocks = self._horizons(chunk)
        leaving = _NOBODY
        for side in self._sides:
            leaving = leaving.merge(side.without_key(chunk).merge(self._leave(side, chunk, clocks)))
        self._rank += chunk.n
        if not left.size:
            return KindRows(leaving.left, leaving.right, leaving.place)
        places = chunk.place_of(probes)
        if not leaving.place.size:
            return KindRows(left, right, places, are_pairs=True)
        if leaving.place.size <= _FEW:
            alone = KindRows(leaving.left, leaving.right, leaving.place)
            # At each place the tuples that leave come before the pairs.
            return KindRows(left, right, places, True, FewRows(alone, np.searchsorted(places, leaving.place)))
        n = left.size + leaving.place.size
        both_places = np.sort(np.concatenate([places, leaving.place]), kind="stable")
        rows = KindRows(np.empty(n, np.int64), np.empty(n, np.int64), both_places)
        merge_rows(places, left, right, leaving.place, leaving.left, leaving.right, rows.left, rows.right)
        return rows

    def _leave(self, side: _PreservedSide, chunk: StoredChunk, clocks: list[Array]) -> Leaving:
        """The unmatched tuples of one side that a chunk's tuples find gone."""
        store, marks, window = self._stores[side.side], side.marks, side.window
        end = marks.end
        places, positions = np.empty(end - side.front, np.int64), np.empty(end - side.front, np.int64)
        cursor = np.array([side.front, 0], np.int64)
        if window.kind == "count":
            cursor[0] = max(side.front, end - window.size)
            n = leave_by_count(
                marks.values, marks.base, side.front, cursor[0], window.size,
                chunk.places(side.side), chunk.first(side.side), places, positions,
            )  # fmt: skip
            return self._left(side, cursor, places[:n], positions[:n])
        if store.ticks is None:
            raise AssertionError("a time window without ticks")
        ticks = store.ticks
        if self._event_time:
            n = leave_by_time(
                marks.values, marks.base, side.front, ticks, store.base, window.size,
                self._chunk_ticks(chunk), places, positions, cursor,
            )  # fmt: skip
            return self._left(side, cursor, places[:n], positions[:n])
        other = 0 if self._self_join else 1 - side.side
        horizons = clocks[other]
        changed = np.empty((end - side.front, 2), np.int64)
        stop = int(horizons[-1]) + self._lateness if self._bounded[side.side] else _FOREVER
        other_places = np.concatenate([np.zeros(1, np.int64), chunk.places(other)])
        marks.note(changed[:, 0], changed[:, 1], cursor[1:])
        n = leave_by_clock(
            marks.values, marks.base, side.front, ticks, store.base, window.size, horizons, other_places,
            chunk.places(side.side), chunk.first(side.side), min(stop, _FOREVER), places, positions, changed, cursor,
        )  # fmt: skip
        order = np.argsort(places[:n], kind="stable")
        return self._left(side, cursor, places[:n][order], positions[:n][order])

    def _left(self, side: _PreservedSide, cursor: Array, places: Array, positions: Array) -> Leaving:
        leaving = side.leaving(places, positions)
        side.pass_to(int(cursor[0]))
        return leaving

    def _chunk_ticks(self, chunk: StoredChunk) -> Array:
        """The times of a chunk in gate order."""
        ticks = np.empty(chunk.n, np.int64)
        for side in (0,) if self._self_join else (0, 1):
            own = chunk.ticks[side]
            if own is None:
                raise AssertionError("a time window without ticks")
            ticks[chunk.places(side)] = own
        return ticks

    def _horizons(self, chunk: StoredChunk) -> list[Array]:
        """Each side's newest time less the lateness, before the chunk and after each of its tuples."""
        horizons = []
        for side in (0, 1):
            ticks = chunk.ticks[side]
            if self._event_time or ticks is None:
                horizons.append(np.full(1, NEVER, np.int64))
                continue
            clocks = np.maximum.accumulate(np.concatenate([np.array([self._clocks[side]], np.int64), ticks]))
            self._clocks[side] = int(clocks[-1])
            horizons.append(np.where(clocks < NEVER + self._lateness, NEVER, clocks - self._lateness))
        return horizons

    def end(self, tail: Tail) -> KindRows:
        """The unmatched tuples that no later time reaches; with `last`, all."""
        leaving = _NOBODY
        ends = [side.marks.end if tail.last else self._passed(side, tail.tick) for side in self._sides]
        for side, end in zip(self._sides, ends, strict=True):
            if not tail.last and self._holds:
                other = self._sides[1 - side.side]
                end = self._held(side, end, self._first_after(other, ends[other.side]))
            positions = side.pending(end)
            one = side.leaving(np.zeros(positions.size, np.int64), positions)
            leaving = leaving.merge(one)
            side.pass_to(max(side.front, end))
        return KindRows(leaving.left, leaving.right)

    def _passed(self, side: _PreservedSide, tick: int) -> int:
        """The first position of a side that a time from `tick` on may still find."""
        ticks = self._stores[side.side].ticks
        if side.window.kind == "count" or ticks is None:
            return side.front
        least = NEVER if tick < NEVER + side.window.size else tick - side.window.size
        base = self._stores[side.side].base
        return max(side.front, base + int(np.searchsorted(ticks, least, side="left")))

    def _first_after(self, side: _PreservedSide, end: int) -> int:
        """The rank of the first unmatched tuple of a side that may leave together with those of the other side."""
        begin, stop, base = end, side.marks.end, side.marks.base
        if side.window.kind == "count":
            # The next tuple of the side takes the place of this one.
            begin = max(side.front, stop - side.window.size)
            stop = stop - side.window.size + 1
        waiting = np.flatnonzero(side.marks.values[begin - base : max(begin, stop) - base] == UNMATCHED)
        return int(side.ranks.values[waiting[0] + begin - side.ranks.base]) if waiting.size else _FOREVER

    def _held(self, side: _PreservedSide, end: int, rank: int) -> int:
        """`end`, or the first position of a rank beyond `rank`."""
        first = side.ranks.base + int(np.searchsorted(side.ranks.values, rank))
        return max(side.front, min(end, first))

    def earliest(self, tick: int) -> int:
        """The time of the first tuple that has not left."""
        return min([tick, *(self._stores[side.side].time_at(side.front) for side in self._sides)])

    def needed_from(self, side: int, live: int) -> int:
        """The first tuple that has not left, or is in its window."""
        return min([live, *(own.front for own in self._sides if own.side == side)])

    def forget(self, left_min: int, right_min: int) -> None:
        """Do nothing: marks are dropped where tuples leave."""

    def saved(self) -> Restore:
        """Return a function that restores marks, clocks and ranks."""
        parts = [side.saved() for side in self._sides]
        state = list(self._clocks), self._rank

        def restore() -> None:
            for part in parts:
                part()
            self._clocks, self._rank = list(state[0]), state[1]

        return restore
