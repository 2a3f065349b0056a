"""The event-time gate: any number of ordered sources in, one ready, ordered stream out.

A tuple is ready when no source can still send one that sorts before it (ScaleJoin, definition 2); the order is
(time, side with left first, source name, position in the source), so what comes out does not depend on how the
sources were interleaved. A tuple behind its own source's clock by more than the lateness, or behind what the
gate has already let out, is late and is handed back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.model.errors import InputError
from streamjoin.windows.clock import NEVER, minus

Array = np.ndarray[Any, np.dtype[Any]]

LEFT, RIGHT = 0, 1
# After everything any source can send.
_END = ((1 << 63) - 1, RIGHT, chr(0x10FFFF))


@dataclass
class _Source:
    """One physical source: its newest time, and what it sent that is not ready."""

    clock: int = NEVER
    finished: bool = False
    tables: list[pa.Table] = field(default_factory=list)
    ticks: list[Array] = field(default_factory=list)


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
        self._sources: dict[tuple[int, str], _Source] = {}
        # Everything up to here has been let out.
        self._bound: tuple[int, int, str] = (NEVER, LEFT, "")

    def add(self, side: int, name: str) -> None:
        """Make a source known before it sends: the gate waits for it from now on."""
        self._sources.setdefault((side, name), _Source())

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
        bound_tick, *bound_rank = self._bound
        late |= ticks < bound_tick
        if [side, name] < bound_rank:
            late |= ticks == bound_tick
        kept = ~late
        if late.any():
            table, ticks = table.filter(pa.array(kept)), ticks[kept]
        if len(ticks):
            source.tables.append(table)
            source.ticks.append(ticks)
        source.clock = int(newest[-1])
        return late

    def advance(self, side: int, name: str, tick: int) -> None:
        """Say that a source has nothing before `tick`: an idle one then does not hold the others."""
        self.add(side, name)
        source = self._sources[side, name]
        source.clock = max(source.clock, min(tick + self._lateness, (1 << 63) - 1))

    def finish(self, side: int, name: str) -> None:
        """Say that a source sends no more."""
        self.add(side, name)
        self._sources[side, name].finished = True

    @property
    def waiting(self) -> int:
        """How many tuples are held back."""
        return sum(len(ticks) for source in self._sources.values() for ticks in source.ticks)

    @property
    def nbytes(self) -> int:
        """The memory of what is held back."""
        return sum(int(table.nbytes) for source in self._sources.values() for table in source.tables)

    def release(self, everything: bool = False) -> Released:
        """What is ready now, in order; with `everything`, all that is held, as at the end of input."""
        if everything:
            bound = _END
        elif not all(any(side == s for s, _ in self._sources) for side in self._sides):
            bound = self._bound
        else:
            open_sources = [
                (max(NEVER, source.clock - self._lateness), side, name)
                for (side, name), source in self._sources.items()
                if not source.finished
            ]
            bound = min(open_sources, default=_END)
        self._bound = max(self._bound, bound)
        taken = [(side, *self._take(side, name)) for side, name in sorted(self._sources)]
        return self._merge(taken)

    def _take(self, side: int, name: str) -> tuple[pa.Table, Array]:
        """Remove the ready tuples of one source, in order."""
        source = self._sources[side, name]
        bound_tick, *bound_rank = self._bound
        if not source.tables or min(int(ticks.min()) for ticks in source.ticks) > bound_tick:
            return self._schemas[side].empty_table(), np.empty(0, np.int64)
        ticks = np.concatenate(source.ticks)
        table = pa.concat_tables(source.tables)
        if self._lateness and not bool(np.all(ticks[1:] >= ticks[:-1])):
            order = np.argsort(ticks, kind="stable")
            ticks, table = ticks[order], table.take(pa.array(order))
        n = int(np.searchsorted(ticks, bound_tick, side="right" if [side, name] <= bound_rank else "left"))
        source.tables = [table.slice(n)] if n < len(ticks) else []
        source.ticks = [ticks[n:]] if n < len(ticks) else []
        return table.slice(0, n), ticks[:n]

    def _merge(self, taken: list[tuple[int, pa.Table, Array]]) -> Released:
        """Merge the sources, which come sorted by (side, name): a stable sort by time keeps that among equals."""
        tables, ticks, sides = [], [], []
        for side in (LEFT, RIGHT):
            parts = [(table, t) for s, table, t in taken if s == side]
            side_ticks = np.concatenate([np.empty(0, np.int64), *(t for _, t in parts)])
            table = pa.concat_tables([self._schemas[side].empty_table(), *(table for table, _ in parts)])
            if sum(1 for _, t in parts if len(t)) > 1:
                order = np.argsort(side_ticks, kind="stable")
                side_ticks, table = side_ticks[order], table.take(pa.array(order))
            tables.append(table)
            ticks.append(side_ticks)
            sides.append(np.full(side_ticks.size, side == RIGHT))
        order = np.argsort(np.concatenate(ticks), kind="stable")
        return Released((tables[0], tables[1]), (ticks[0], ticks[1]), np.concatenate(sides)[order])
