"""How the ad-hoc core shares and when it re-plans: frozen, checked on construction."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Literal

from streamjoin.model import durations
from streamjoin.model.errors import SchemaError, SpecError
from streamjoin.model.window import LONGEST
from streamjoin.queries.core.budgets import EngineBudget
from streamjoin.queries.language.plan import Stream

Lateness = str | timedelta | int
Sharing = Literal["cost", "everything", "nothing"]
_MOST_THREADS = 4
"""Further ones wait for the interpreter."""
_ROWS_SHOWN = 100_000


@dataclass(frozen=True)
class Settings:
    """`sharing`: by cost, one group without re-planning ("everything"), or every query on its own ("nothing").

    `lateness` is a duration for streams of dates and timestamps, a number for integer times; one for all or by stream.
    A tuple whose time is further ahead than `future` is set aside: ahead of the machine's clock for dates and
    timestamps; for integer times, where a number has to be given, ahead of the newest tuple of the streams it is joined
    with. A stream whose newest time stands still for `idle`, a duration by the machine's clock, holds back no more than
    that of what the others keep: its watermark follows theirs so far behind. `None` turns either off.
    The optimizer looks again every `replan_every` batches. It plans from scratch once `rebuild_share` of the queries
    changed, and every `rebuild_every` looks, because tuples change too; and it leaves a plan alone unless
    another is cheaper by the share `hysteresis`. One more group costs `group_cost` a batch, counted in tuples probed.
    Cells that follow the load (`partitions="auto"`) become more once the longest takes over `latency_threshold` seconds
    for a batch. `threads` run the joins of a batch side by side: as many as there are cores, up to 4, if not given.
    `merging` makes one run of small neighbouring batches. An engine keeps the `newest_rows` of every query in memory,
    whatever its sink, and those before them while the rows of all queries take at most `rows_bytes`. A batch waits
    `sink_patience` seconds for sinks that keep up; what a sink has not taken is spooled, up to `spool_rows` and
    `spool_bytes` for a query. A query whose join without key or band is expected to compare more than `scan_pairs` per
    second is created only where that is allowed explicitly.
    Rows that are late or malformed are kept up to `aside_bytes` for each stream and kind; the oldest files go first.
    A Parquet sink gets a file every `file_seconds` at most, so that batches share files: rows that come sooner wait in
    the checkpoint. On Spark's executors that is so with many such sinks.

    All queries together: `engine_rows` result rows of one batch, `engine_bytes` for what they take in memory, and
    `engine_memory`, what the process may have in memory. Over one of them the queries that hold most are paused.
    An engine that is not told takes for its memory 70 % of what the process may have, and half of that for the bytes.
    A source that has more gives at most `batch_rows` and `batch_bytes` to one batch; fewer where batches take long.
    """

    sharing: Sharing = "cost"
    lateness: Lateness | Mapping[str, Lateness] = 0
    future: Lateness | Mapping[str, Lateness | None] | None = "1 day"
    idle: str | timedelta | None = "1 hour"
    replan_every: int = 8
    rebuild_share: float = 0.5
    rebuild_every: int = 8
    hysteresis: float = 0.1
    grouping: bool = True
    reordering: bool = True
    group_cost: float = 15_000
    merging: bool = True
    decisions_kept: int = field(default=50)
    newest_rows: int = 1000
    rows_bytes: int = 0
    latency_threshold: float = 1.0
    threads: int | None = None
    scan_pairs: int = 50_000_000
    sink_patience: float = 1.0
    spool_rows: int = 1_000_000
    spool_bytes: int = 1 << 30
    aside_bytes: int = 4 << 30
    file_seconds: float = 60.0
    engine_rows: int | None = None
    engine_bytes: int | None = None
    engine_memory: int | None = None
    batch_rows: int = 100_000
    batch_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.sharing not in ("cost", "everything", "nothing"):
            raise SpecError(f"sharing is 'cost', 'everything' or 'nothing', not {self.sharing!r}")
        optional = ("threads", "engine_rows", "engine_bytes", "engine_memory")
        for name in (
            "replan_every",
            "rebuild_every",
            "spool_rows",
            "spool_bytes",
            "aside_bytes",
            "scan_pairs",
            "batch_rows",
            "batch_bytes",
            *(name for name in optional if getattr(self, name) is not None),
        ):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} is a number from 1, not {getattr(self, name)!r}")
        for name in ("newest_rows", "rows_bytes", "group_cost"):
            if getattr(self, name) < 0:
                raise SpecError(f"{name} is a number from 0, not {getattr(self, name)!r}")
        for name in ("latency_threshold", "sink_patience", "file_seconds"):
            if not getattr(self, name) > 0:
                raise SpecError(f"{name} is a number of seconds above 0, not {getattr(self, name)!r}")
        if self.idle is not None and (not durations.is_duration(self.idle) or durations.nanoseconds(self.idle) <= 0):
            raise SpecError(f"idle is a duration such as '1 hour' or None, not {self.idle!r}")
        for name in ("rebuild_share", "hysteresis"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise SpecError(f"{name} is a share from 0 to 1, not {value!r}")

    @property
    def rows_shown(self) -> int:
        """How many of a query's rows of a batch each cell sends to the driver, where they have no other place."""
        return max(self.newest_rows, _ROWS_SHOWN if self.rows_bytes else 0)

    @property
    def thread_count(self) -> int:
        """How many threads join."""
        return self.threads or min(_MOST_THREADS, os.cpu_count() or 1)

    @property
    def engine_budget(self) -> EngineBudget:
        """What all queries together may hold."""
        return EngineBudget(self.engine_rows, self.engine_bytes, self.engine_memory)

    @property
    def replans(self) -> bool:
        """Whether plans follow measured costs."""
        return self.sharing == "cost"

    def lateness_of(self, stream: Stream) -> int:
        """The allowed lateness of a stream in ticks of its clock: nanoseconds, or units of an integer column.

        Raises:
            SchemaError: a duration for a stream of integer times, or a number for a stream of dates or timestamps.
        """
        given = self.lateness.get(stream.name, 0) if isinstance(self.lateness, Mapping) else self.lateness
        return _ticks("lateness", given, stream)

    def future_of(self, stream: Stream) -> int | None:
        """How far ahead a tuple of a stream may be, in ticks of its clock; None for any distance.

        Raises:
            SchemaError: as `lateness_of`; a bound for all streams applies to those whose times it fits.
        """
        if isinstance(self.future, Mapping):
            given = self.future.get(stream.name, Settings.future)
            by_name = stream.name in self.future
        else:
            given, by_name = self.future, False
        if given is None or (not by_name and isinstance(given, int) != (stream.tick_ns is None)):
            return None
        return _ticks("future bound", given, stream)

    @cached_property
    def idle_ns(self) -> int | None:
        """`idle` in nanoseconds."""
        return None if self.idle is None else durations.nanoseconds(self.idle)


def _ticks(what: str, given: object, stream: Stream) -> int:
    if isinstance(given, bool) or not isinstance(given, int | str | timedelta):
        raise SpecError(f"the {what} of {stream.name!r} is a duration or a whole number, not {given!r}")
    ticks = given if isinstance(given, int) else durations.nanoseconds(given)
    if ticks < 0:
        raise SpecError(f"the {what} of {stream.name!r} can't be negative: {given!r}")
    if ticks and isinstance(given, int) != (stream.tick_ns is None):
        wanted = "a whole number" if stream.tick_ns is None else "a duration such as '5 seconds'"
        raise SchemaError(f"the {what} of {stream.name!r} must be {wanted}: its times are {stream.time_type}")
    return min(ticks, LONGEST)
