"""One physical source of the gate: its clock, and its rows that are not ready."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.decisions import Bound, Key, late_mask, passed, ties_are_ready
from streamjoin.model.plain_types import retyped
from streamjoin.windows.clock import NEVER


class GateSource:
    """Rows of one source, in arrival order; they are sorted by time once some of them are ready."""

    def __init__(self, key: Key, floor: int) -> None:
        self.key = key
        self.clock: int = NEVER
        self.finished = False
        self._floor = floor
        self._chunks: list[tuple[pa.Table, Array]] = []
        self._sorted = True
        self._least: int | None = None

    @property
    def waiting(self) -> int:
        """The number of waiting rows."""
        return sum(ticks.size for _, ticks in self._chunks)

    @property
    def nbytes(self) -> int:
        """Bytes held by the rows."""
        return sum(int(table.nbytes) for table, _ in self._chunks)

    def passed(self, lateness: int) -> Bound:
        """The place before which the source sends no more rows."""
        return passed(self.key, self.clock, lateness, self._floor)

    def saved(self) -> Callable[[], None]:
        """Return a function that restores this source; tables and ticks never change."""
        state = self.clock, self.finished, self._sorted, self._least
        chunks = list(self._chunks)

        def restore() -> None:
            self.clock, self.finished, self._sorted, self._least = state
            self._chunks = list(chunks)

        return restore

    def take(self, table: pa.Table, ticks: Array, lateness: int, bound: Bound) -> Array:
        """Store the rows that are not late; returns the mask of late rows."""
        late = late_mask(self.key, ticks, self.clock, lateness, bound)
        if ticks.size:
            self.clock = max(self.clock, int(ticks.max()))
        if late.any():
            table, ticks = table.filter(pa.array(~late)), ticks[~late]
        if ticks.size:
            least = int(ticks.min())
            follows = not self._chunks or least >= self._chunks[-1][1][-1]
            self._sorted = self._sorted and follows and not bool(np.any(ticks[1:] < ticks[:-1]))
            self._least = least if self._least is None else min(self._least, least)
            self._chunks.append((table, ticks))
        return late

    def retype(self, schema: pa.Schema) -> None:
        """Adopt a schema that gives types to columns that were all NULL so far."""
        self._chunks = [(retyped(table, schema), ticks) for table, ticks in self._chunks]

    def ready(self, bound: Bound) -> list[tuple[pa.Table, Array]]:
        """The rows up to the bound, sorted by time, equal times in arrival order; they are removed here."""
        tick, ties = bound[0], ties_are_ready(self.key, bound)
        if self._least is None or self._least > tick or (self._least == tick and not ties):
            return []
        if not self._sorted:
            self._sort()
        chunks: list[tuple[pa.Table, Array]] = []
        for number, (table, ticks) in enumerate(self._chunks):
            n = int(np.searchsorted(ticks, tick, side="right" if ties else "left"))
            chunks.append((table.slice(0, n), ticks[:n]) if n < ticks.size else (table, ticks))
            if n < ticks.size:
                self._chunks = [(table.slice(n), ticks[n:]), *self._chunks[number + 1 :]]
                self._least = int(ticks[n])
                return chunks
        self._chunks, self._least = [], None
        return chunks

    def _sort(self) -> None:
        ticks = np.concatenate([ticks for _, ticks in self._chunks])
        order = np.argsort(ticks, kind="stable")
        table = pa.concat_tables([table for table, _ in self._chunks]).take(pa.array(order))
        self._chunks, self._sorted = [(table, ticks[order])], True
