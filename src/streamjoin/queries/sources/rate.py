"""A source that makes up rows at a steady rate, the same for every run: `timestamp` and `value` = 0, 1, 2, ...

Row n has the time of the first start plus n / rate seconds, so what was missed while the process was down is made up
for after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from streamjoin.adhoc.engine.journal import Position
from streamjoin.adhoc.sources.base import SourceRows
from streamjoin.model.errors import SpecError
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

    def read(self, position: Position | None) -> SourceRows | None:
        """The rows that are due since `position`."""
        if not isinstance(position, dict):
            # The first start is stored before the first row.
            return SourceRows(SCHEMA.empty_table(), {"start": self.clock(), "next": 0})
        start, first = int(position["start"]), int(position["next"])
        due = (self.clock() - start) * self.rows_per_second // 1_000_000_000
        end = min(due, first + MOST_ROWS)
        if end <= first:
            return None
        values = np.arange(first, end, dtype=np.int64)
        # Seconds and rest apart: value * 10**6 would not fit for large values.
        seconds, rest = np.divmod(values, self.rows_per_second)
        times = start // 1000 + seconds * 1_000_000 + rest * 1_000_000 // self.rows_per_second
        rows = pa.table([pa.array(times).cast(SCHEMA.types[0]), pa.array(values)], schema=SCHEMA)
        return SourceRows(rows, {"start": start, "next": int(end)})

    def close(self) -> None:
        """Nothing is open."""
