"""The event-time gate: merges any number of ordered sources into one ordered stream of ready tuples.

What is released, and what is late, depends only on what each source sent, not on how the sources were interleaved:
see `gate/decisions.py`. One caller uses the gate at a time; threads share a `GateArena` instead. Invariant: all
waiting rows are behind the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.decisions import END, START, Bound, Key, floor_of, late_mask, passed, ties_are_ready
from streamjoin.kernels.positions import merge_sides
from streamjoin.model.errors import InputError
from streamjoin.model.plain_types import retyped
from streamjoin.windows.clock import NEVER
from streamjoin.windows.encoding import read_only
from streamjoin.windows.merging import merged_order

LEFT, RIGHT = 0, 1
# With more sources than this, one sort is cheaper than merging them one after another.
_FEW = 8
GateChunk = tuple[pa.Table, Array, Array | None]
"""Rows, their ticks and, where they have any, their stamps: integers that the gate passes on with them."""


class GateSource:
    """One physical source: its clock, and its waiting rows in arrival order, sorted by time once some are ready."""

    def __init__(self, key: Key, floor: int) -> None:
        self.key = key
        self.clock: int = NEVER
        self.finished = False
        self.left = False
        """Whether the source finished and gave its place back: it is dropped once its rows are released."""
        self.resting = False
        """Whether the gate does not wait for the source until its next rows."""
        self._floor = floor
        self._chunks: list[GateChunk] = []
        self._sorted = True
        self._least: int | None = None

    @property
    def waiting(self) -> int:
        """The number of waiting rows."""
        return sum(ticks.size for _, ticks, _ in self._chunks)

    @property
    def awaited(self) -> bool:
        """Whether the gate waits for the source."""
        return not (self.finished or self.resting)

    @property
    def newest(self) -> Bound | None:
        """The place of the newest waiting row."""
        if not self._chunks:
            return None
        return max(int(ticks.max()) for _, ticks, _ in self._chunks), *self.key

    def reopen(self, floor: int) -> None:
        """Become a new source; the rows that still wait come before its own of the same time."""
        self.clock, self._floor, self.finished, self.left = NEVER, floor, False, False

    @property
    def nbytes(self) -> int:
        """Bytes held by the rows."""
        return sum(int(table.nbytes) for table, _, _ in self._chunks)

    def passed(self, lateness: int) -> Bound:
        """The place before which the source sends no more rows."""
        return passed(self.key, self.clock, lateness, self._floor)

    def saved(self) -> Callable[[], None]:
        """Return a function that restores this source; tables and ticks never change."""
        state = self.clock, self.finished, self.left, self.resting, self._floor, self._sorted, self._least
        chunks = list(self._chunks)

        def restore() -> None:
            self.clock, self.finished, self.left, self.resting, self._floor, self._sorted, self._least = state
            self._chunks = list(chunks)

        return restore

    def take(self, table: pa.Table, ticks: Array, lateness: int, bound: Bound, stamps: Array | None = None) -> Array:
        """Store the rows that are not late; returns the mask of late rows."""
        self.resting = False
        late = late_mask(self.key, ticks, self.clock, lateness, bound)
        if ticks.size:
            self.clock = max(self.clock, int(ticks.max()))
        if late.any():
            table, ticks = table.filter(pa.array(~late)), ticks[~late]
            stamps = None if stamps is None else stamps[~late]
        if ticks.size:
            least = int(ticks.min())
            follows = not self._chunks or least >= self._chunks[-1][1][-1]
            self._sorted = self._sorted and follows and not bool(np.any(ticks[1:] < ticks[:-1]))
            self._least = least if self._least is None else min(self._least, least)
            self._chunks.append((table, ticks, stamps))
        return late

    def retype(self, schema: pa.Schema) -> None:
        """Adopt a schema that gives types to columns that were all NULL so far."""
        self._chunks = [(retyped(table, schema), ticks, stamps) for table, ticks, stamps in self._chunks]

    def ready(self, bound: Bound) -> list[GateChunk]:
        """The rows up to the bound, sorted by time, equal times in arrival order; they are removed here."""
        tick, ties = bound[0], ties_are_ready(self.key, bound)
        if self._least is None or self._least > tick or (self._least == tick and not ties):
            return []
        if not self._sorted:
            self._sort()
        chunks: list[GateChunk] = []
        for number, chunk in enumerate(self._chunks):
            ticks = chunk[1]
            n = int(np.searchsorted(ticks, tick, side="right" if ties else "left"))
            if n < ticks.size:
                chunks.append(_part(chunk, 0, n))
                self._chunks = [_part(chunk, n, ticks.size), *self._chunks[number + 1 :]]
                self._least = int(ticks[n])
                return chunks
            chunks.append(chunk)
        self._chunks, self._least = [], None
        return chunks

    def _sort(self) -> None:
        ticks = np.concatenate([ticks for _, ticks, _ in self._chunks])
        order = np.argsort(ticks, kind="stable")
        table = pa.concat_tables([table for table, _, _ in self._chunks]).take(pa.array(order))
        stamps = _stamps_of(self._chunks)
        self._chunks = [(table, ticks[order], None if stamps is None else stamps[order])]
        self._sorted = True


@dataclass(frozen=True)
class Released:
    """Ready tuples in gate order: each side's own, and which side each place belongs to."""

    tables: tuple[pa.Table, pa.Table]
    ticks: tuple[Array, Array]
    is_right: Array
    stamps: Array | None = None
    """The stamp of each tuple in gate order, where the sources gave them."""


class EventTimeGate:
    """Merges sources of both sides; it waits for every source it knows, and for at least one of each side."""

    def __init__(
        self, schemas: tuple[pa.Schema, pa.Schema], lateness: int, *, sides: tuple[int, ...] = (LEFT, RIGHT)
    ) -> None:
        self._none = tuple(schema.empty_table() for schema in schemas)
        self._lateness = lateness
        self._sides = sides
        self._sources: dict[Key, GateSource] = {}
        self._in_order = True
        self._known_sides: set[int] = set()
        # Whether other sources may come after all of today's have ended.
        self._open_ended = False
        self._bound: Bound = START

    def add(self, side: int, name: str) -> None:
        """Register a source before it sends: the gate waits for it from now on."""
        key = side, name
        source = self._sources.get(key)
        if source is None:
            self._sources[key] = GateSource(key, floor_of(key, self._bound))
            self._known_sides.add(side)
            self._in_order = False
        elif source.left:
            source.reopen(floor_of(key, self._bound))

    def check(self, sources: list[tuple[int, str]]) -> None:
        """Reject finished sources, before any rows are taken from the others."""
        for key in sources:
            if key in self._sources and self._sources[key].finished:
                raise InputError(f"source {key[1]!r} is finished and can't send more tuples")

    def push(self, side: int, name: str, table: pa.Table, ticks: Array, stamps: Array | None = None) -> Array:
        """Take tuples of one source; returns the mask of late ones, which are not taken."""
        self.add(side, name)
        return self._sources[side, name].take(table, ticks, self._lateness, self._bound, stamps)

    def advance(self, side: int, name: str, tick: int) -> None:
        """Declare that a source has no tuples before `tick`, so that an idle source does not block the others."""
        self.add(side, name)
        source = self._sources[side, name]
        source.clock = max(source.clock, min(tick + self._lateness, (1 << 63) - 1))
        source.resting = False

    def retype(self, schemas: tuple[pa.Schema, pa.Schema]) -> None:
        """Change the schemas of the waiting rows; see `GateSource.retype`."""
        for (side, _), source in self._sources.items():
            source.retype(schemas[side])
        self._none = tuple(schema.empty_table() for schema in schemas)

    def finish(self, side: int, name: str) -> None:
        """Declare that a source has ended."""
        self.add(side, name)
        self._sources[side, name].finished = True

    def leave(self, side: int, name: str) -> None:
        """Declare that a source has ended and give its place back: its name may come again, and others after it."""
        self.finish(side, name)
        self._sources[side, name].left = True
        self._open_ended = True

    def rest(self, side: int, name: str) -> None:
        """Stop waiting for a source until its next tuples or `advance`."""
        self.add(side, name)
        self._sources[side, name].resting = True
        self._open_ended = True

    @property
    def holders(self) -> tuple[Key, ...]:
        """The sources that hold back the time of the bound, the first one first: the gate waits for these to go on.

        If all that are open rest, it goes on with any of them; while a side has had no source, with none.
        """
        if not self._known_sides.issuperset(self._sides):
            return ()
        awaited = sorted(source.passed(self._lateness) for source in self._sources.values() if source.awaited)
        if not awaited:
            return tuple(sorted(source.key for source in self._sources.values() if not source.finished))
        return tuple(place[1:] for place in awaited if place[0] == awaited[0][0])

    @property
    def sources(self) -> int:
        """The number of sources."""
        return len(self._sources)

    @property
    def waiting(self) -> int:
        """The number of waiting tuples."""
        return sum(source.waiting for source in self._sources.values())

    @property
    def tick(self) -> int:
        """The time before which no more tuples are released."""
        return self._bound[0]

    @property
    def nbytes(self) -> int:
        """Bytes held by waiting tuples."""
        return sum(source.nbytes for source in self._sources.values())

    def release(self, everything: bool = False) -> Released:
        """Release the ready tuples in order; with `everything`, all waiting tuples, as at the end of input."""
        if everything:
            self._bound = END
        elif self._known_sides.issuperset(self._sides):
            awaited = [source.passed(self._lateness) for source in self._sources.values() if source.awaited]
            self._bound = max(self._bound, min(awaited) if awaited else self._bound_without_sources())
        if not self._in_order:
            self._sources, self._in_order = dict(sorted(self._sources.items())), True
        left, right = (self._ready(side) for side in (LEFT, RIGHT))
        if self._open_ended:
            for key in [key for key, source in self._sources.items() if source.left and not source.waiting]:
                del self._sources[key]
        is_right = np.empty(left[1].size + right[1].size, np.bool_)
        merge_sides(read_only(left[1]), read_only(right[1]), is_right)
        stamps = None
        if left[2] is not None and right[2] is not None:
            stamps = np.empty(is_right.size, np.int64)
            stamps[~is_right], stamps[is_right] = left[2], right[2]
        return Released((left[0], right[0]), (left[1], right[1]), is_right, stamps)

    def _bound_without_sources(self) -> Bound:
        """The bound when the gate waits for no source: the end, or the furthest place if others may come."""
        if not self._open_ended:
            return END
        resting = [source.passed(self._lateness) for source in self._sources.values() if source.resting]
        ended = [source.newest for source in self._sources.values() if source.finished]
        return max([START, *resting, *(place for place in ended if place is not None)])

    def _ready(self, side: int) -> GateChunk:
        """The rows of one side up to the bound, in order."""
        sources = [source.ready(self._bound) for source in self._sources.values() if source.key[0] == side]
        none = np.empty(0, np.int64)
        return _in_order([chunks for chunks in sources if chunks]) or (self._none[side], none, none)

    def saved(self) -> Callable[[], None]:
        """Return a function that restores the gate: sources, clocks, waiting rows and the bound."""
        state = self._none, self._bound, self._in_order, self._open_ended
        known_sides = set(self._known_sides)
        sources = dict(self._sources)
        parts = [source.saved() for source in sources.values()]

        def restore() -> None:
            for part in parts:
                part()
            self._none, self._bound, self._in_order, self._open_ended = state
            self._known_sides = set(known_sides)
            self._sources = dict(sources)

        return restore


def _in_order(sources: list[list[GateChunk]]) -> GateChunk | None:
    """The ready rows of one side's sources, by name, as one table by time."""
    if not sources:
        return None
    chunks = [chunk for source in sources for chunk in source]
    table = chunks[0][0] if len(chunks) == 1 else pa.concat_tables([table for table, _, _ in chunks])
    runs = [_joined([ticks for _, ticks, _ in source]) for source in sources]
    stamps = _stamps_of(chunks)
    if len(runs) == 1:
        return table, runs[0], stamps
    order = merged_order(runs) if len(runs) <= _FEW else np.argsort(np.concatenate(runs), kind="stable")
    return table.take(pa.array(order)), np.concatenate(runs)[order], None if stamps is None else stamps[order]


def _joined(arrays: list[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _stamps_of(chunks: list[GateChunk]) -> Array | None:
    """The stamps of all rows; None if some have none."""
    stamps = [part for _, _, part in chunks if part is not None]
    return np.concatenate(stamps) if stamps and len(stamps) == len(chunks) else None


def _part(chunk: GateChunk, begin: int, end: int) -> GateChunk:
    table, ticks, stamps = chunk
    return table.slice(begin, end - begin), ticks[begin:end], None if stamps is None else stamps[begin:end]
