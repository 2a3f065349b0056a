"""The demo's feeds: a month of flights and of weather, written as files while the demo runs.

The month is cut into slices of equal time. Slice n of both feeds becomes file n when it is over; Spark sees a file
whole or not at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamjoin.data.tables import flights, weather

FLIGHTS_DDL = (
    "scheduled timestamp, departure timestamp, airport string, destination string, carrier string, flight int, "
    "tail string, delay int, distance int"
)
WEATHER_DDL = (
    "observed timestamp, airport string, temperature double, wind double, gust double, rain double, pressure double, "
    "visibility double"
)
TIMES = {"flights": "scheduled", "weather": "observed"}
_MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """The time that paces the feeds."""

    def now(self) -> float:
        """Seconds from any fixed moment."""

    def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for real."""
        time.sleep(seconds)


@dataclass(frozen=True)
class Month:
    """The data, cut into `slices`: its first moment, and the time that a slice covers."""

    slices: int
    start: datetime
    every: timedelta
    tables: dict[str, pa.Table]

    @classmethod
    def cut(cls, slices: int) -> Month:
        """Cut the month into this many slices."""
        if slices < 1:
            raise ValueError(f"a month has at least one slice, not {slices}")
        tables = {"flights": flights(), "weather": weather()}
        ends = [pc.min_max(table[TIMES[feed]]).as_py() for feed, table in tables.items()]
        start, last = min(end["min"] for end in ends), max(end["max"] for end in ends)
        # Rounded up, so that the newest row is in the last slice.
        every = ((last - start) // _MICROSECOND // slices + 1) * _MICROSECOND
        return cls(slices, start, every, tables)

    def slice(self, feed: str, number: int) -> pa.Table:
        """The rows of one slice, in time order."""
        table = self.tables[feed]
        edges = [self.start + self.every * edge for edge in (number, number + 1)]
        moments = table[TIMES[feed]].cast(pa.int64()).to_numpy()
        first, last = np.searchsorted(moments, pa.array(edges, table.schema.field(TIMES[feed]).type).cast(pa.int64()))
        return table.slice(int(first), int(last - first))


def play(
    month: Month, directory: Path, *, seconds: float, slices: int | None = None, clock: Clock | None = None
) -> Iterator[int]:
    """Write the month to `directory`/flights and `directory`/weather within `seconds`, and yield each slice's number.

    With `slices` only the first ones are written. Stop taking from the iterator to stop the feeds; played again into
    the same directory it writes the same files.
    """
    clock = SystemClock() if clock is None else clock
    for feed in TIMES:
        (directory / feed).mkdir(parents=True, exist_ok=True)
    began = clock.now()
    for number in range(month.slices if slices is None else min(slices, month.slices)):
        wait = began + (number + 1) * seconds / month.slices - clock.now()
        if wait > 0:
            clock.sleep(wait)
        for feed in TIMES:
            drop(month.slice(feed, number), directory / feed / f"{number:08d}.parquet")
        yield number


def drop(table: pa.Table, path: Path) -> None:
    """Write `table` so that `path` is absent or complete; Spark ignores names that begin with a dot."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(table, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
