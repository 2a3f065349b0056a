"""One physical source before the gate: its clock, its rows that may still be preceded, and those that are settled.

Without lateness every row is settled when it comes. With it, rows wait until the clock has passed them by the lateness
and are sorted then; equal times keep the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.gate.scalegate import ScaleGate
from streamjoin.kernels.scalegate.gate import add
from streamjoin.model.plain_types import retyped
from streamjoin.windows.clock import NEVER

Array = np.ndarray[Any, np.dtype[Any]]


class Source:
    """Rows of one source in the order they were taken; `first` is the position of the first settled one."""

    def __init__(self, schema: pa.Schema, slot: int, floor: int) -> None:
        self.slot = slot
        self.floor = floor
        """What comes before this time is late, whatever it sends: so it was when the source joined."""
        self.clock: int = NEVER
        self.finished = False
        self.first = 0
        self.inside = 0
        """How many of the settled rows the ScaleGate holds."""
        self._schema = schema
        self._unsettled: list[tuple[pa.Table, Array]] = []
        self._tables: list[pa.Table] = []
        self._ticks: Array = np.empty(0, np.int64)

    @property
    def waiting(self) -> int:
        """How many rows are held."""
        return self._ticks.size + sum(ticks.size for _, ticks in self._unsettled)

    @property
    def outside(self) -> int:
        """How many settled rows have not found room in the ScaleGate."""
        return self._ticks.size - self.inside

    @property
    def nbytes(self) -> int:
        """The memory of the rows."""
        return sum(int(table.nbytes) for table in (*self._tables, *(table for table, _ in self._unsettled)))

    def saved(self) -> Callable[[], None]:
        """What puts this source back, with none of its rows in a ScaleGate: tables and ticks never change."""
        state = self.clock, self.finished, self.first, self._ticks, self._schema
        unsettled, tables = list(self._unsettled), list(self._tables)

        def restore() -> None:
            self.clock, self.finished, self.first, self._ticks, self._schema = state
            self._unsettled, self._tables, self.inside = list(unsettled), list(tables), 0

        return restore

    def take(self, table: pa.Table, ticks: Array) -> None:
        """Hold rows that are not late."""
        if ticks.size:
            self._unsettled.append((table, ticks))

    def retype(self, schema: pa.Schema) -> None:
        """Hold rows of a schema that knows the types of columns which were all NULL so far."""
        self._tables = [retyped(table, schema) for table in self._tables]
        self._unsettled = [(retyped(table, schema), ticks) for table, ticks in self._unsettled]
        self._schema = schema

    def settle(self, horizon: int | None) -> None:
        """Sort in the rows up to `horizon`, or all of them: none will come before these any more."""
        if not self._unsettled:
            return
        ticks = np.concatenate([ticks for _, ticks in self._unsettled])
        table = pa.concat_tables([table for table, _ in self._unsettled])
        if bool(np.any(ticks[1:] < ticks[:-1])):
            order = np.argsort(ticks, kind="stable")
            ticks, table = ticks[order], table.take(pa.array(order))
        n = ticks.size if horizon is None else int(np.searchsorted(ticks, horizon, side="right"))
        self._unsettled = [(table.slice(n), ticks[n:])] if n < ticks.size else []
        if n:
            self._tables.append(table.slice(0, n))
            self._ticks = np.concatenate([self._ticks, ticks[:n]])

    def enter(self, gate: ScaleGate) -> int:
        """Add settled rows to the ScaleGate as long as there is room; returns how many."""
        if not self.outside:
            return 0
        ticks = self._ticks[self.inside : self.inside + gate.ring]
        positions = np.arange(self.first + self.inside, self.first + self.inside + ticks.size)
        entered = add(gate.mem, self.slot, ticks, positions, 0, ticks.size)
        self.inside += entered
        return entered

    def let_go(self, n: int) -> pa.Table:
        """The first `n` rows, which are held no longer."""
        table = pa.concat_tables(self._tables)
        self._tables = [table.slice(n)] if n < self._ticks.size else []
        self._ticks = self._ticks[n:]
        self.first += n
        self.inside -= n
        return table.slice(0, n)
