"""The layers between an algorithm's pairs and the rows of outer, anti, semi and as-of joins.

Outer and anti joins: a mark per position says whether a tuple of a preserved side has matched. Once a chunk's pairs are
marked, the tuples that its own tuples leave behind are known: an unmatched one comes out just before the results of
the first tuple that finds it gone, several at one place in gate order, one with a NULL or NaN key at its own place.

In event-time order the end of a call also decides tuples: those that no later time can reach. A tuple is held back
while one of the other side that precedes it in gate order may leave at the same place, of which the end of the input is
one, so that the order does not depend on the calls.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk
from streamjoin.joins.kinds.base import MISSING, FewRows, KindLayer, KindRows, PositionBuffer, StoredChunk, Tail
from streamjoin.joins.types.marks import Keyless, gone_below, outcome
from streamjoin.kernels.gather import sides_of_pairs
from streamjoin.kernels.kinds.asof import choose_nearest, keep_nearest
from streamjoin.kernels.kinds.marks import (
    GONE,
    UNMATCHED,
    keep_first,
    leave_by_clock,
    leave_by_time,
    mark,
    mark_left,
    merge_leaving,
    merge_rows,
    take_firsts,
)
from streamjoin.kernels.times import length_word
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.clock import FOREVER, NEVER, minus
from streamjoin.windows.store import SideStore

_EMPTY = np.empty(0, np.int64)
_SIDES = ("left", "right")
_FEW = 16
"""Up to this many tuples without a match become rows between slices of the pairs, which are then not copied."""


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


_NONE_LEAVES = Leaving(*(np.empty(0, np.int64) for _ in range(4)))


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
            return _NONE_LEAVES
        at = np.flatnonzero(mask)
        positions = at + part.first_seq
        self.marks.values[positions - self.marks.base] = GONE
        return self.leaving(chunk.places(self.side)[at], positions)

    def leaving(self, places: Array, positions: Array) -> Leaving:
        """A list of tuples of this side."""
        return Leaving.of(self.side, places, self.ranks.values[positions - self.ranks.base], positions)

    def left(self, front: int, places: Array, positions: Array) -> Leaving:
        """A list of tuples that leave; nothing before `front` is needed any more."""
        leaving = self.leaving(places, positions)
        self.front = max(self.front, front)
        self.marks.forget(self.front)
        self.ranks.forget(self.front)
        return leaving

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
        leaving = _NONE_LEAVES
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
        if window.kind == "count":
            positions = side.pending(gone_below(end, window.size))
            # Each leaves where the tuple comes that many positions later.
            places = chunk.places(side.side)[positions + window.size - chunk.first(side.side)]
            return side.left(gone_below(end, window.size), places, positions)
        places, positions = np.empty(end - side.front, np.int64), np.empty(end - side.front, np.int64)
        cursor = np.array([side.front, 0], np.int64)
        if store.ticks is None:
            raise AssertionError("a time window without ticks")
        ticks = store.ticks
        if self._event_time:
            n = leave_by_time(
                marks.values, marks.base, side.front, ticks, store.base, length_word(window.size),
                self._chunk_ticks(chunk), places, positions, cursor,
            )  # fmt: skip
            return side.left(int(cursor[0]), places[:n], positions[:n])
        other = 0 if self._self_join else 1 - side.side
        horizons = clocks[other]
        changed = np.empty((end - side.front, 2), np.int64)
        stop = int(horizons[-1]) + self._lateness if self._bounded[side.side] else FOREVER
        other_places = np.concatenate([np.zeros(1, np.int64), chunk.places(other)])
        marks.note(changed[:, 0], changed[:, 1], cursor[1:])
        n = leave_by_clock(
            marks.values, marks.base, side.front, ticks, store.base, length_word(window.size), horizons,
            other_places, chunk.places(side.side), chunk.first(side.side), min(stop, FOREVER), places, positions,
            changed, cursor,
        )  # fmt: skip
        order = np.argsort(places[:n], kind="stable")
        return side.left(int(cursor[0]), places[:n][order], positions[:n][order])

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
            horizons.append(minus(clocks, self._lateness))
        return horizons

    def end(self, tail: Tail) -> KindRows:
        """The unmatched tuples that no later time reaches; with `last`, all."""
        leaving = _NONE_LEAVES
        ends = [side.marks.end if tail.last else self._passed(side, tail.tick) for side in self._sides]
        for side, end in zip(self._sides, ends, strict=True):
            if not tail.last and self._holds:
                other = self._sides[1 - side.side]
                end = self._held(side, end, self._first_after(other, ends[other.side]))
            positions = side.pending(end)
            leaving = leaving.merge(side.left(end, np.zeros(positions.size, np.int64), positions))
        return KindRows(leaving.left, leaving.right)

    def _passed(self, side: _PreservedSide, tick: int) -> int:
        """The first position of a side that a time from `tick` on may still find."""
        ticks = self._stores[side.side].ticks
        if side.window.kind == "count" or ticks is None:
            return side.front
        base = self._stores[side.side].base
        return max(side.front, base + int(np.searchsorted(ticks, gone_below(tick, side.window.size), side="left")))

    def _first_after(self, side: _PreservedSide, end: int) -> int:
        """The rank of the first unmatched tuple of a side that may leave together with those of the other side.

        Every one may: if no tuple follows, all leave at the end of the input.
        """
        base = side.marks.base
        waiting = np.flatnonzero(side.marks.values[end - base :] == UNMATCHED)
        return int(side.ranks.values[waiting[0] + end - side.ranks.base]) if waiting.size else FOREVER

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


class SemiLayer:
    """The rows of a semi join: pairs of tuples that came out already are dropped as they are found."""

    gives_pairs = False

    def __init__(self, bound: BoundSpec, stores: tuple[SideStore, SideStore]) -> None:
        self._self_join = bound.spec.self_join
        self._store, self._window = stores[0], bound.windows[0]
        # The rank of each left tuple's first pair; -1 once the tuple came out.
        self._firsts = PositionBuffer(np.int64, FOREVER)
        self._rank = 0

    def begin(self, chunk: StoredChunk) -> None:
        """Add a chunk's left tuples."""
        self._firsts.extend(chunk.chunk.left.n)

    def reduce(self, chunk: StoredChunk, probes: Array, seqs: Array) -> tuple[Array, Array]:
        """Keep the pairs that may be the first of their left tuple."""
        fresh, count = np.empty(probes.size, np.int64), np.zeros(1, np.int64)
        self._firsts.note(fresh, FOREVER, count)
        n = keep_first(
            probes, seqs, chunk.chunk.is_right, chunk.chunk.own_seq, self._self_join, self._rank,
            self._firsts.values, self._firsts.base, fresh, count,
        )  # fmt: skip
        return probes[:n], seqs[:n]

    def rows(self, chunk: StoredChunk, probes: Array, left: Array, right: Array) -> KindRows:  # noqa: ARG002
        """The left tuples that match for the first time."""
        keep = np.empty(left.size, np.bool_)
        take_firsts(self._firsts.values, self._firsts.base, left, chunk.place_of(probes) + self._rank, keep)
        self._rank += chunk.n
        return KindRows(left[keep], np.full(int(keep.sum()), MISSING, np.int64), chunk.place_of(probes[keep]))

    def end(self, tail: Tail) -> KindRows:  # noqa: ARG002
        """Nothing: a tuple without a match does not come out."""
        return KindRows(np.empty(0, np.int64), np.empty(0, np.int64))

    def earliest(self, tick: int) -> int:
        """The time of the oldest left tuple that a later one can match."""
        oldest = self._store.time_at(self._store.base)
        if self._window.kind == "time":
            oldest = max(oldest, gone_below(tick, self._window.size))
        return min(tick, oldest)

    def needed_from(self, side: int, live: int) -> int:  # noqa: ARG002
        """The windows decide."""
        return live

    def forget(self, left_min: int, right_min: int) -> None:  # noqa: ARG002
        """Drop the state of left tuples that have left."""
        self._firsts.forget(left_min)

    def saved(self) -> Restore:
        """Return a function that restores the tuples' state."""
        firsts, rank = self._firsts.saved(), self._rank

        def restore() -> None:
            firsts()
            self._rank = rank

        return restore


class AsOfLayer:
    """The rows of an as-of join by any condition, from the pairs that an algorithm finds within the tolerance.

    Only the nearest partner behind and ahead of each left tuple is kept. Times ascend with positions, so the nearest
    behind is the pair with the largest right position, the nearest ahead the one with the smallest. In arrival order
    only tuples that were there count: the newest is the one with the largest position.
    """

    gives_pairs = False

    def __init__(self, bound: BoundSpec, stores: tuple[SideStore, SideStore]) -> None:
        if bound.match is None:
            raise AssertionError("an as-of join without a match")
        self._match = bound.match
        self._how = bound.spec.how
        self._arrival = bound.spec.order == "arrival"
        self._stores = stores
        self._behind = PositionBuffer(np.int64, MISSING)
        self._ahead = PositionBuffer(np.int64, MISSING)
        self._front = 0
        self._updating = threading.Lock()

    def begin(self, chunk: StoredChunk) -> None:
        """Add a chunk's left tuples."""
        for buffer in (self._behind, self._ahead):
            buffer.extend(chunk.chunk.left.n)

    def reduce(self, chunk: StoredChunk, probes: Array, seqs: Array) -> tuple[Array, Array]:
        """Take the pairs that are nearer than those before them; none is needed after that."""
        if self._arrival:
            there = ~chunk.chunk.is_right[probes]
            probes, seqs = probes[there], seqs[there]
        left, right = np.empty(probes.size, np.int64), np.empty(probes.size, np.int64)
        sides_of_pairs(probes, seqs, chunk.chunk.is_right, chunk.chunk.own_seq, left, right)
        times = self._times()
        behind, ahead = np.empty((left.size, 2), np.int64), np.empty((left.size, 2), np.int64)
        counts = np.zeros(2, np.int64)
        with self._updating:
            self._behind.note(behind[:, 0], behind[:, 1], counts[:1])
            self._ahead.note(ahead[:, 0], ahead[:, 1], counts[1:])
            keep_nearest(
                left, right, *times, self._stores[0].base, self._stores[1].base, self._arrival, self._match.exact,
                self._behind.base, self._behind.values, self._ahead.values, behind, ahead, counts,
            )  # fmt: skip
        return _EMPTY, _EMPTY

    def rows(self, chunk: StoredChunk, probes: Array, left: Array, right: Array) -> KindRows:  # noqa: ARG002
        """The left tuples that are decided after a chunk."""
        newest = max((int(ticks[-1]) for ticks in chunk.ticks if ticks is not None and ticks.size), default=NEVER)
        rows = self._decide(newest, self._arrival)
        if not self._arrival:
            return rows
        return KindRows(rows.left, rows.right, chunk.places(0)[rows.left - chunk.first(0)])

    def end(self, tail: Tail) -> KindRows:
        """The left tuples that the end of a call decides."""
        return self._decide(tail.tick, tail.last)

    def _decide(self, tick: int, everything: bool) -> KindRows:
        left_ticks, right_ticks = self._times()
        first = self._front - self._behind.base
        behind, ahead = self._behind.values[first:], self._ahead.values[first:]
        partners = np.empty(behind.size, np.int64)
        n = choose_nearest(
            left_ticks[self._front - self._stores[0].base :], right_ticks, self._stores[1].base, behind, ahead,
            tick, everything, self._arrival or self._match.direction == "backward",
            not self._arrival and self._match.direction == "forward", length_word(self._match.tolerance), partners,
        )  # fmt: skip
        positions, partners = np.arange(self._front, self._front + n), partners[:n]
        self._front += n
        for buffer in (self._behind, self._ahead):
            buffer.forget(self._front)
        if self._how == "left":
            return KindRows(positions, partners)
        keep, _ = outcome(self._how, partners != MISSING, np.ones(n, np.bool_))
        return KindRows(positions[keep], partners[keep])

    def _times(self) -> tuple[Array, Array]:
        left, right = (_EMPTY if store.ticks is None else store.ticks for store in self._stores)
        return left, right

    def earliest(self, tick: int) -> int:
        """The time of the first left tuple that has not come out."""
        return min(tick, self._stores[0].time_at(self._front))

    def needed_from(self, side: int, live: int) -> int:
        """The first left tuple that has not come out, and the first partner of one."""
        if side == 0:
            return min(live, self._front)
        partners = np.concatenate([self._behind.values, self._ahead.values])
        partners = partners[partners != MISSING]
        return min(live, int(partners.min())) if partners.size else live

    def forget(self, left_min: int, right_min: int) -> None:
        """Do nothing: what is known of a left tuple is dropped when it comes out."""

    def saved(self) -> Restore:
        """Return a function that restores what is known of waiting left tuples."""
        parts = [self._behind.saved(), self._ahead.saved()]
        front = self._front

        def restore() -> None:
            for part in parts:
                part()
            self._front = front

        return restore


def kind_layer(bound: BoundSpec, stores: tuple[SideStore, SideStore]) -> KindLayer | None:
    """The layer between pairs and rows; None for an inner join, whose rows are its pairs."""
    if bound.match is not None:
        return AsOfLayer(bound, stores)
    if bound.spec.how == "inner":
        return None
    return SemiLayer(bound, stores) if bound.spec.how == "semi" else OuterLayer(bound, stores)
