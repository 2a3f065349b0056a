"""A source that makes up rows at a steady rate, the same for every run: `timestamp` and `value` = 0, 1, 2, ...

Row n has the time of the first start plus n / rate seconds, so what was missed while the process was down is made up
for after a restart. Another rate goes on from the time of the last row, so that times never fall and no row is late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamjoin.model.errors import SpecError
from streamjoin.queries.engine.journal import Position
from streamjoin.queries.sources.base import SourceRows
from streamjoin.storage.places import Place

SCHEMA: Final = pa.schema({"timestamp": pa.timestamp("us", "UTC"), "value": pa.int64()})
MOST_ROWS: Final = 100_000
"""Rows of one read."""


@dataclass(frozen=True)
class RateSource:
    """`rows_per_second` rows; `clock` gives the Unix time in nanoseconds."""

    rows_per_second: int = 1
    clock: Callable[[], int] = field(default=time.time_ns, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.rows_per_second, bool) or not isinstance(self.rows_per_second, int):
            raise SpecError(f"a rate is a whole number of rows per second, not {self.rows_per_second!r}")
        if not 1 <= self.rows_per_second <= 10_000_000:
            raise SpecError(f"a rate is a number from 1 to 10,000,000 rows per second, not {self.rows_per_second}")

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return SCHEMA

    @property
    def origin(self) -> str:
        """It makes its rows up."""
        return "a rate"

    def open(self, notes: Place | None) -> RateSource:  # noqa: ARG002
        """Itself: it keeps nothing."""
        return self

    def left(self, position: Position | None) -> int:
        """The rows that are due after a position."""
        if not isinstance(position, dict):
            return 0
        start, first, base = self._begun(position)
        return base + (self.clock() - start) * self.rows_per_second // 1_000_000_000 - first

    def _begun(self, position: dict[str, Any]) -> tuple[int, int, int]:
        """When the row `base` was due by the present rate, the number of the next row, and `base`."""
        start, first, base = (int(position.get(what, 0)) for what in ("start", "next", "base"))
        # Positions of earlier versions do not say by which rate they came about.
        rate = int(position.get("rate", self.rows_per_second))
        if rate != self.rows_per_second:
            start, base = start + (first - base) * 1_000_000_000 // rate, first
        return start, first, base

    def read(self, position: Position | None) -> SourceRows | None:
        """The rows that are due since `position`."""
        if not isinstance(position, dict):
            # The first start is stored before the first row.
            return SourceRows(SCHEMA.empty_table(), self._position(self.clock(), 0, 0))
        start, first, base = self._begun(position)
        due = base + (self.clock() - start) * self.rows_per_second // 1_000_000_000
        end = min(due, first + MOST_ROWS)
        if end <= first:
            return None
        values = np.arange(first, end, dtype=np.int64)
        # Seconds and rest apart: value * 10**6 would not fit for large values.
        seconds, rest = np.divmod(values - base, self.rows_per_second)
        times = start // 1000 + seconds * 1_000_000 + rest * 1_000_000 // self.rows_per_second
        rows = pa.table([pa.array(times).cast(SCHEMA.types[0]), pa.array(values)], schema=SCHEMA)
        return SourceRows(rows, self._position(start, int(end), base))

    def _position(self, start: int, following: int, base: int) -> dict[str, int]:
        """`start` is the time of row `base`, from which on there is this rate."""
        return {"start": start, "next": following, "base": base, "rate": self.rows_per_second}

    def close(self) -> None:
        """Nothing is open."""
