"""One physical source of the gate: its clock, and its rows that are not ready.

A row may carry a stamp, an integer that the gate passes on with it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.decisions import Bound, Key, late_mask, passed, ties_are_ready
from streamjoin.model.plain_types import retyped
from streamjoin.windows.clock import NEVER

GateChunk = tuple[pa.Table, Array, Array | None]
"""Rows, their ticks and, where they have any, their stamps."""


class GateSource:
    """Rows of one source, in arrival order; they are sorted by time once some of them are ready."""

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
        stamps = stamps_of(self._chunks)
        self._chunks = [(table, ticks[order], None if stamps is None else stamps[order])]
        self._sorted = True


def stamps_of(chunks: list[GateChunk]) -> Array | None:
    """The stamps of all rows; None if some have none."""
    stamps = [part for _, _, part in chunks if part is not None]
    return np.concatenate(stamps) if stamps and len(stamps) == len(chunks) else None


def _part(chunk: GateChunk, begin: int, end: int) -> GateChunk:
    table, ticks, stamps = chunk
    return table.slice(begin, end - begin), ticks[begin:end], None if stamps is None else stamps[begin:end]
