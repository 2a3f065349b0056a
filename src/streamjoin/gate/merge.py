"""The event-time gate: any number of ordered sources in, one ready, ordered stream out.

A tuple is ready when no source can still send one that sorts before it (ScaleJoin, definition 2); the order is
(time, side with left first, source name, position in the source), so what comes out does not depend on how the
sources were interleaved. A ScaleGate decides that and merges; here stand the rows, the lateness and the names. A tuple
behind its own source's clock by more than the lateness, or behind what the gate has already let out, is late and is
handed back. Invariant: a source's settled tuples lie in order, and those in the ScaleGate are the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.gate.scalegate import ScaleGate
from streamjoin.gate.source import Source
from streamjoin.kernels.scalegate.gate import read
from streamjoin.kernels.scalegate.sides import count_sources, split_sides
from streamjoin.model.errors import InputError
from streamjoin.windows.clock import minus

Array = np.ndarray[Any, np.dtype[Any]]

LEFT, RIGHT = 0, 1
_FIRST_SLOTS = 4
_RING = 1 << 12


@dataclass(frozen=True)
class Released:
    """Ready tuples in gate order: each side's own, and which side each place belongs to."""

    tables: tuple[pa.Table, pa.Table]
    ticks: tuple[Array, Array]
    is_right: Array


class EventTimeGate:
    """Merges sources of both sides; it waits for every source it knows, and for at least one of each side."""

    def __init__(
        self, schemas: tuple[pa.Schema, pa.Schema], lateness: int, *, sides: tuple[int, ...] = (LEFT, RIGHT)
    ) -> None:
        self._schemas = schemas
        self._lateness = lateness
        self._sides = sides
        self._sources: dict[tuple[int, str], Source] = {}
        self._gate = ScaleGate(_FIRST_SLOTS, ring=_RING)

    def add(self, side: int, name: str) -> None:
        """Make a source known before it sends: the gate waits for it from now on."""
        if (side, name) in self._sources:
            return
        if len(self._sources) == self._gate.sources:
            self._widen()
        ranks = {key: rank for rank, key in enumerate(sorted([*self._sources, (side, name)]))}
        self._gate.rerank({source.slot: ranks[key] for key, source in self._sources.items()})
        slot = self._gate.add_source(ranks[side, name])
        self._sources[side, name] = Source(self._schemas[side], slot, self._gate.clock(slot))

    def check(self, sources: list[tuple[int, str]]) -> None:
        """Refuse sources that said they had finished, before anything is taken from the others."""
        for key in sources:
            if key in self._sources and self._sources[key].finished:
                raise InputError(f"source {key[1]!r} was finished and can't send any more")

    def push(self, side: int, name: str, table: pa.Table, ticks: Array) -> Array:
        """Take tuples of one source; returns which of them are late and were not taken."""
        self.add(side, name)
        source = self._sources[side, name]
        newest = np.maximum.accumulate(np.concatenate([[source.clock], ticks]))
        late = ticks < minus(newest[:-1], self._lateness)
        let_out, rank = self._gate.let_out
        late |= ticks < let_out
        if self._gate.rank(source.slot) < rank:
            late |= ticks == let_out
        kept = ~late
        if late.any():
            table, ticks = table.filter(pa.array(kept)), ticks[kept]
        source.take(table, ticks)
        source.clock = int(newest[-1])
        return late

    def advance(self, side: int, name: str, tick: int) -> None:
        """Say that a source has nothing before `tick`: an idle one then does not hold the others."""
        self.add(side, name)
        source = self._sources[side, name]
        source.clock = max(source.clock, min(tick + self._lateness, (1 << 63) - 1))

    def retype(self, schemas: tuple[pa.Schema, pa.Schema]) -> None:
        """Hold rows of other schemas from now on: see `Source.retype`."""
        for (side, _), source in self._sources.items():
            source.retype(schemas[side])
        self._schemas = schemas

    def finish(self, side: int, name: str) -> None:
        """Say that a source sends no more."""
        self.add(side, name)
        self._sources[side, name].finished = True

    @property
    def waiting(self) -> int:
        """How many tuples are held back."""
        return sum(source.waiting for source in self._sources.values())

    @property
    def nbytes(self) -> int:
        """The memory of what is held back."""
        return sum(source.nbytes for source in self._sources.values())

    def release(self, everything: bool = False) -> Released:
        """What is ready now, in order; with `everything`, all that is held, as at the end of input."""
        columns = tuple(np.empty(self.waiting, np.int64) for _ in range(3))
        n = 0
        complete = all(any(side == s for s, _ in self._sources) for side in self._sides)
        while complete or everything:
            entered = sum(self._enter(source, everything) for source in self._sources.values())
            taken = read(self._gate.mem, 0, *(column[n:] for column in columns))
            n += taken
            if not entered and not taken:
                break
        slots, places, ticks = (column[:n] for column in columns)
        return self._gather(slots, places, ticks)

    def _enter(self, source: Source, everything: bool) -> int:
        """Put into the ScaleGate what is settled and finds room; the clock follows once all of it is in."""
        over = everything or source.finished
        # A source that joined starts behind what was let out: its clock there may be ahead of what it has sent.
        horizon = max(source.clock - self._lateness, self._gate.clock(source.slot))
        source.settle(None if over else horizon)
        entered = source.enter(self._gate)
        if not source.outside and over:
            self._gate.finish(source.slot)
        elif not source.outside:
            self._gate.advance(source.slot, horizon)
        return entered

    def _gather(self, slots: Array, places: Array, ticks: Array) -> Released:
        """The rows of the tuples read, each side's in order; the sources let go of them."""
        counts, begins, side_of = (np.zeros(self._gate.sources, np.int64) for _ in range(3))
        count_sources(slots, counts)
        parts: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        taken = [0, 0]
        for (side, _), source in self._sources.items():
            side_of[source.slot] = side
            count = int(counts[source.slot])
            if count:
                begins[source.slot] = taken[side] - source.first
                parts[side].append(source.let_go(count))
                taken[side] += count
        is_right = np.empty(slots.size, np.bool_)
        side_ticks, rows = ((np.empty(taken[0], np.int64), np.empty(taken[1], np.int64)) for _ in range(2))
        split_sides(slots, places, ticks, side_of, begins, is_right, side_ticks, rows)
        left, right = (self._rows(side, parts[side], rows[side]) for side in (LEFT, RIGHT))
        return Released((left, right), side_ticks, is_right)

    def _rows(self, side: int, parts: list[pa.Table], rows: Array) -> pa.Table:
        """One source's rows are in order as they lie; several sources' are taken one by one."""
        if len(parts) < 2:
            return parts[0] if parts else self._schemas[side].empty_table()
        return pa.concat_tables(parts).take(pa.array(rows))

    def saved(self) -> Callable[[], None]:
        """What puts the gate back as it is now: sources, clocks, what waits and what was let out."""
        schemas, places, let_out = self._schemas, self._gate.sources, self._gate.let_out
        members = {key: (source, self._gate.rank(source.slot)) for key, source in self._sources.items()}
        parts = [source.saved() for source in self._sources.values()]

        def restore() -> None:
            for part in parts:
                part()
            self._schemas = schemas
            self._sources = {key: source for key, (source, _) in members.items()}
            self._begin_anew(places, [rank for _, rank in members.values()], let_out)

        return restore

    def _widen(self) -> None:
        """Twice as many sources."""
        ranks = [self._gate.rank(source.slot) for source in self._sources.values()]
        self._begin_anew(2 * self._gate.sources, ranks, self._gate.let_out)

    def _begin_anew(self, places: int, ranks: list[int], let_out: tuple[int, int]) -> None:
        """A new ScaleGate, which gets from all sources what was not let out."""
        gate = ScaleGate(places, ring=_RING)
        for source, rank in zip(self._sources.values(), ranks, strict=True):
            source.slot = gate.add_source(rank)
            source.inside = 0
            gate.advance(source.slot, source.floor)
        gate.start_at(*let_out)
        self._gate = gate
