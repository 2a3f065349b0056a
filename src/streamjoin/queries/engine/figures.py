"""The live figures of streams and queries, and the records made of them.

The thread that runs batches changes them; others read, and may see a batch half counted, never a wrong record.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamjoin.adhoc.core.arrivals import Aside
from streamjoin.adhoc.core.buckets import Bucket
from streamjoin.adhoc.core.contract import Action
from streamjoin.adhoc.engine.info import LATENCY_STAGES, Columns, QueryInfo, QueryState, StreamInfo
from streamjoin.adhoc.language.plan import Query, Stream
from streamjoin.adhoc.sinks.base import MemorySink, NewestRows, Sink
from streamjoin.windows.clock import NEVER

if TYPE_CHECKING:
    from streamjoin.adhoc.engine.inbox import Portion

RATE_SECONDS: Final = 10.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Passage:
    """How long the tuples of a batch took, in seconds, until their rows were ready for the sink, and when that was.

    The stages: `source` is the wait in the source until it is read, `read` the reading, `queue` the wait for a batch,
    `join` the batch until it has its rows, and `store` the wait for the journal after that.
    """

    source: float
    read: float
    queue: float
    join: float
    store: float
    ready_at: float

    @classmethod
    def of(cls, portions: Iterable[Portion], begun_at: float, joined_at: float) -> Passage | None:
        """That of the portion that has been on its way for the longest time; None without portions."""
        begins = [
            (portion.looked_at or portion.read_at or portion.handed_at, portion.read_at or portion.handed_at, portion)
            for portion in portions
        ]
        if not begins:
            return None
        looked_at, read_at, portion = min(begins, key=lambda begin: begin[0])
        now = time.monotonic()
        return cls(
            read_at - looked_at,
            portion.handed_at - read_at,
            max(0.0, begun_at - portion.handed_at),
            joined_at - begun_at,
            now - joined_at,
            now,
        )

    def milliseconds(self, delivered_at: float) -> dict[str, float]:
        """By stage, where the sink has taken the rows at a time of the monotonic clock."""
        spans = (self.source, self.read, self.queue, self.join, self.store, delivered_at - self.ready_at)
        return {stage: 1000 * span for stage, span in zip(LATENCY_STAGES, spans, strict=True)}


class Rate:
    """An amount per second over the last ten seconds."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, float]] = deque()
        self._began = time.monotonic()

    def add(self, count: float) -> None:
        """Count rows, or whatever it is, now."""
        now = time.monotonic()
        self._counts.append((now, count))
        while self._counts[0][0] < now - RATE_SECONDS:
            self._counts.popleft()

    @property
    def value(self) -> float:
        """The rate."""
        now = time.monotonic()
        span = min(RATE_SECONDS, now - self._began)
        rows = sum(count for at, count in tuple(self._counts) if at >= now - RATE_SECONDS)
        return rows / span if span > 0 else 0.0


@dataclass
class RunningStream:
    """A stream as it runs."""

    stream: Stream
    lateness: int
    rows: int = 0
    late: int = 0
    untimed: int = 0
    malformed: int = 0
    newest: int | None = None
    """The newest time, in ticks."""
    density: float = 0.0
    """Tuples per tick in the newest batch that had some."""
    bound: int = NEVER
    error: str | None = None
    failures: int = 0
    retry_at: float | None = None
    rate: Rate = field(default_factory=Rate)
    waits: Rate = field(default_factory=Rate)
    """Seconds that its tuples waited for a batch."""

    def fail(self, error: str, retry_at: float) -> None:
        """It can't be read, and is tried again at a Unix time."""
        self.error, self.retry_at = error, retry_at
        self.failures += 1

    def recover(self) -> None:
        """It is read."""
        self.error = self.retry_at = None

    def arrived(self, bucket: Bucket | None, aside: Aside, bound: int) -> None:
        """Count a batch."""
        rows = (bucket.n if bucket is not None else 0) + aside.late + aside.untimed
        self.rows += rows
        self.late += aside.late
        self.untimed += aside.untimed
        self.malformed += aside.malformed
        self.rate.add(rows)
        self.bound = bound
        if bucket is not None and bucket.n:
            self.newest = max(bucket.span[1], self.newest if self.newest is not None else NEVER)
            self.density = bucket.n / max(1, bucket.span[1] - bucket.span[0])

    def info(self, handed_at: float | None = None) -> StreamInfo:
        """The record; tuples that were handed in at a time of the monotonic clock still wait."""
        waiting = 0.0 if handed_at is None else min(RATE_SECONDS, time.monotonic() - handed_at)
        lag = None
        watermark: str | int | None = None
        if self.stream.tick_ns is not None and self.newest is not None:
            lag = time.time() - self.newest / 1e9
        if self.newest is not None and self.bound > NEVER:
            watermark = self.bound if self.stream.tick_ns is None else _iso(self.bound)
        return StreamInfo(
            self.stream.name,
            self.stream.time,
            columns_of(self.stream.schema),
            self.rows,
            self.rate.value,
            lag,
            watermark,
            self.late,
            self.error,
            self.untimed,
            self.malformed,
            self.failures,
            self.retry_at,
            min(1.0, self.waits.value + waiting / RATE_SECONDS),
        )


def _iso(nanoseconds: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=nanoseconds // 1000)).isoformat()
    except OverflowError:
        return f"{nanoseconds} ns since 1970"


@dataclass
class RunningQuery:
    """A query as it runs: its sink and what came of it; `newest` holds rows from `open` on."""

    query: Query
    created_batch: int
    created_at: float
    sink: Sink
    state: QueryState = "running"
    error: str | None = None
    newest: NewestRows = field(init=False)
    produced: int = 0
    """Rows since the create; each was taken by the sink, waits for it, or was missed."""
    undelivered: int = 0
    pooled: int = 0
    """Rows that wait in the checkpoint until they get a file together."""
    missed: int = 0
    sink_error: str | None = None
    retry_at: float | None = None
    passage: Passage | None = None
    """Of the rows that the sink took last, if it is known."""
    delivered_at: float = NEVER
    """When that was, by the monotonic clock."""
    rate: Rate = field(default_factory=Rate)

    def __post_init__(self) -> None:
        self.newest = NewestRows(self.query.schema, 0)

    @property
    def name(self) -> str:
        """The query's name."""
        return self.query.name

    @property
    def rows(self) -> int:
        """The rows that the sink took."""
        return self.produced - self.undelivered - self.pooled - self.missed

    @cached_property
    def streams(self) -> frozenset[str]:
        """The streams it reads."""
        return frozenset(source.stream.name for source in self.query.sources)

    def changed(self, action: Action, reason: str | None = None) -> None:
        """Follow a pause or a resume; a pause with a reason is a failure."""
        paused: QueryState = "paused" if reason is None else "failed"
        self.state = "running" if action == "resume" else paused
        self.error = reason

    @property
    def latency(self) -> dict[str, float]:
        """Of the rows that the sink took last, in milliseconds by stage; empty if it is not known."""
        passage = self.passage
        return {} if passage is None else passage.milliseconds(self.delivered_at)

    def take(self, batch: int, rows: pa.Table, passage: Passage | None) -> None:
        """Count the rows of a batch and keep the newest; where the memory is the sink, it has taken them."""
        self.produced += rows.num_rows
        self.newest.write(batch, rows)
        if isinstance(self.sink, MemorySink):
            self.delivered(rows.num_rows, passage)

    def delivered(self, rows: int, passage: Passage | None) -> None:
        """Note rows that the sink took; rows of before a restart have no passage."""
        self.rate.add(rows)
        if passage is not None:
            self.passage, self.delivered_at = passage, time.monotonic()

    def info(self) -> QueryInfo:
        """The record."""
        latency = self.latency
        return QueryInfo(
            self.name,
            self.query.text,
            self.state,
            self.created_batch,
            self.created_at,
            self.rows,
            self.rate.value,
            sum(latency.values()) if latency else None,
            str(self.sink),
            columns_of(self.query.schema),
            self.error or self.sink_error,
            self.undelivered + self.pooled,
            self.missed,
            self.retry_at,
            latency,
        )


def columns_of(schema: pa.Schema) -> Columns:
    """Names and types as texts."""
    return tuple((column.name, str(column.type)) for column in schema)
