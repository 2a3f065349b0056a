"""The live figures of streams and queries, and the records made of them.

The thread that runs batches changes them; others read, and may see a batch half counted, never a wrong record.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from streamjoin.queries.core.arrivals import Aside
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.changes import Action, LiveQuery
from streamjoin.queries.core.explain import QueryCost
from streamjoin.queries.core.groups.feeds import GroupMember, GroupState, bounds_by_stream, due_of
from streamjoin.queries.core.row_lists import ListedRows
from streamjoin.queries.core.shared import Snapshot
from streamjoin.queries.engine.info import LATENCY_STAGES, Columns, OpenGroups, QueryInfo, QueryState, StreamInfo
from streamjoin.queries.engine.sampling import PREVIEWED
from streamjoin.queries.language.plan import Query, Stream
from streamjoin.queries.sinks.base import NewestRows, Sink, SinkCapabilities, capabilities
from streamjoin.windows.clock import FOREVER, NEVER

if TYPE_CHECKING:
    from streamjoin.queries.engine.inbox import SourceBatch

RATE_SECONDS: Final = 10.0
HUNG: Final = 10.0
"""Seconds after which a sink that is still busy with the same rows counts as one that hangs."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


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
    def of(cls, given: Iterable[SourceBatch], begun_at: float, joined_at: float) -> Passage | None:
        """That of the tuples that have been on their way for the longest time; None without any."""
        begins = [(one.looked_at or one.read_at or one.handed_at, one.read_at or one.handed_at, one) for one in given]
        if not begins:
            return None
        looked_at, read_at, one = min(begins, key=lambda begin: begin[0])
        now = time.monotonic()
        return cls(
            read_at - looked_at,
            one.handed_at - read_at,
            max(0.0, begun_at - one.handed_at),
            joined_at - begun_at,
            now - joined_at,
            now,
        )

    def milliseconds(self, delivered_at: float) -> dict[str, float]:
        """By stage, where the sink has taken the rows at a time of the monotonic clock."""
        spans = (self.source, self.read, self.queue, self.join, self.store, delivered_at - self.ready_at)
        return {stage: 1000 * span for stage, span in zip(LATENCY_STAGES, spans, strict=True)}


class Rate:
    """An amount per second over the last ten seconds; `clock` gives seconds.

    What comes in batches is measured from the end of one to the end of another, however long ago the last one was; if
    that is much longer than usual, until now.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: deque[tuple[float, float]] = deque()
        self._began = clock()

    def add(self, count: float) -> None:
        """Count rows, or whatever it is, now."""
        now = self._clock()
        self._counts.append((now, count))
        # One before the ten seconds is where they begin.
        while len(self._counts) > 1 and self._counts[1][0] < now - RATE_SECONDS:
            self._counts.popleft()

    @property
    def value(self) -> float:
        """The rate."""
        now = self._clock()
        counts = tuple(self._counts)
        if not counts or counts[-1][0] < now - RATE_SECONDS:
            return 0.0
        begin = next(place for place, (at, _) in enumerate((*counts[1:], counts[-1])) if at >= now - RATE_SECONDS)
        counts = counts[begin:]
        (first, _), (last, _) = counts[0], counts[-1]
        if first == last:
            span = min(RATE_SECONDS, now - self._began)
            return sum(count for _, count in counts) / span if span > 0 else 0.0
        end = last if now - last <= 2 * (last - first) / (len(counts) - 1) else now
        return sum(count for _, count in counts[1:]) / (end - first)


class CatchUp:
    """How far a stream is with what it has missed, in whatever its source counts."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._done = 0.0
        self._left = 0.0
        self._is_behind = False

    def note(self, done: float, left: float) -> None:
        """Note how much a batch took, and how much is left now."""
        # As much again as a batch takes is what a stream that keeps up may have.
        if left <= done or not left:
            self._is_behind = False
            return
        if not self._is_behind:
            self._is_behind, self._began, self._done = True, time.monotonic(), 0.0
        else:
            self._done += done
        self._left = left

    def stop(self) -> None:
        """Nothing is missed any more, or it is unknown."""
        self._is_behind = False

    @property
    def share(self) -> float | None:
        """The share of what was missed that is done; None if nothing is missed."""
        return self._done / (self._done + self._left) if self._is_behind else None

    @property
    def seconds(self) -> float | None:
        """How long it takes at the rate so far; None if that is not known."""
        if not self._is_behind or not self._done:
            return None
        return (time.monotonic() - self._began) * self._left / self._done


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
    newest_tuples: NewestRows = field(init=False)
    """For previews."""
    catch_up: CatchUp = field(default_factory=CatchUp)

    def __post_init__(self) -> None:
        self.newest_tuples = NewestRows(self.stream.schema, PREVIEWED)

    def fail(self, error: str, retry_at: float) -> None:
        """It can't be read, and is tried again at a Unix time."""
        self.error, self.retry_at = error, retry_at
        self.failures += 1
        self.catch_up.stop()

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
        if isinstance(bucket, Bucket):
            self.newest_tuples.write(bucket.batch, bucket.table)
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
            self.catch_up.share,
            self.catch_up.seconds,
        )


def _iso(nanoseconds: int) -> str:
    try:
        return (_EPOCH + dt.timedelta(microseconds=nanoseconds // 1000)).isoformat()
    except OverflowError:
        return f"{nanoseconds} ns since 1970"


_NONE: Final[Mapping[str, RunningStream]] = MappingProxyType({})


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
    overflowed: int = 0
    """Sums that their type could not hold."""
    sink_error: str | None = None
    writing_since: float | None = None
    """Since when its sink has been busy with the same rows, by the monotonic clock."""
    retry_at: float | None = None
    passage: Passage | None = None
    """Of the rows that the sink took last, if it is known."""
    delivered_at: float = NEVER
    """When that was, by the monotonic clock."""
    rate: Rate = field(default_factory=Rate)
    owner: str | None = None
    """Who asked for it."""
    seconds: float = 0.0
    """Of threads that joined for it, in this run."""
    state_bytes: int = 0

    def __post_init__(self) -> None:
        self.newest = NewestRows(self.query.schema, 0)
        self._able = self.sink, capabilities(self.sink)

    @property
    def able(self) -> SinkCapabilities:
        """What the engine may do with its sink."""
        if self._able[0] is not self.sink:
            self._able = self.sink, capabilities(self.sink)
        return self._able[1]

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
        return frozenset(self.query.streams)

    def changed(self, action: Action, reason: str | None = None) -> None:
        """Follow a pause or a resume; a pause with a reason is a failure."""
        paused: QueryState = "paused" if reason is None else "failed"
        self.state = "running" if action == "resume" else paused
        self.error = reason

    def charge(self, cost: QueryCost) -> None:
        """Count what it cost in a batch."""
        self.seconds += cost.seconds
        self.state_bytes = cost.bytes

    @property
    def latency(self) -> dict[str, float]:
        """Of the rows that the sink took last, in milliseconds by stage; empty if it is not known."""
        passage = self.passage
        return {} if passage is None else passage.milliseconds(self.delivered_at)

    def take(self, batch: int, rows: ListedRows, passage: Passage | None) -> None:
        """Count the rows of a batch and keep the newest; where the memory is the sink, it has taken them."""
        self.newest.write(batch, rows)
        self.produced += rows.num_rows
        self.rate.add(rows.num_rows)
        if self.able.kept_by_engine:
            self.delivered(passage)

    def delivered(self, passage: Passage | None) -> None:
        """Note that the sink took rows; those of before a restart have no passage."""
        if passage is not None:
            self.passage, self.delivered_at = passage, time.monotonic()

    @property
    def hangs(self) -> bool:
        """Whether its sink has been busy with the same rows for too long."""
        since = self.writing_since
        return since is not None and time.monotonic() - since > HUNG

    def trouble(self, streams: Mapping[str, RunningStream]) -> str | None:
        """Why a query that runs is degraded; None if it is not."""
        if self.state != "running":
            return None
        reasons = [why for why in (self.sink_error or self.able.lost,) if why]
        if not reasons and self.hangs:
            reasons.append(f"the sink has been busy with the same rows for more than {HUNG:g} s")
        for name in sorted(self.streams):
            error = streams[name].error if name in streams else None
            if error is not None:
                reasons.append(error if repr(name) in error else f"stream {name!r}: {error}")
        return "; ".join(reasons) or None

    def info(self, streams: Mapping[str, RunningStream] = _NONE) -> QueryInfo:
        """The record; `streams` are all of the engine."""
        latency = self.latency
        trouble = self.trouble(streams)
        return QueryInfo(
            self.name,
            self.query.text,
            self.state if trouble is None else "degraded",
            self.created_batch,
            self.created_at,
            self.rows,
            self.rate.value,
            sum(latency.values()) if latency else None,
            str(self.sink),
            columns_of(self.query.schema),
            trouble or self.error or self.sink_error,
            self.undelivered + self.pooled,
            self.missed,
            self.retry_at,
            latency,
            self.owner,
            self.seconds,
            self.state_bytes,
            overflowed=self.overflowed,
        )


def columns_of(schema: pa.Schema) -> Columns:
    """Names and types as texts."""
    return tuple((column.name, str(column.type)) for column in schema)


def open_groups_of(entry: LiveQuery, snapshot: Snapshot) -> OpenGroups | None:
    """What is open of a query after the last batch; None if it has no groups, or is paused."""
    if entry.query.grouping is None or entry.paused:
        return None
    member, state = entry.member, snapshot.kinds.get(entry.query.name)
    horizons = snapshot.clocks.horizons
    begins = None if member.since == NEVER else member.since
    lateness = {name: horizon.lateness for name, horizon in horizons.items()}
    due = None if begins is None else due_of(entry.query, begins + member.window.size, lateness)
    bounds = bounds_by_stream(entry.query, snapshot.clocks.progress)
    slowest = min(bounds, key=lambda name: bounds[name])
    run = member.complete(state.store, state.closed, FOREVER) if isinstance(state, GroupState) else None
    starts = np.empty(0, np.int64) if run is None else np.unique(run.panes)
    return OpenGroups(
        _told(member, begins),
        _told(member, due),
        int(starts.size),
        0 if run is None else run.n,
        _told(member, int(starts[0]) if starts.size else None),
        slowest if starts.size else None,
        _told(member, None if bounds[slowest] == NEVER else bounds[slowest]),
    )


def rows_so_far(entry: LiveQuery, snapshot: Snapshot, limit: int) -> pa.Table:
    """The rows that open groups would give if they were complete, the oldest first."""
    state = snapshot.kinds.get(entry.query.name)
    run = None
    if entry.query.grouping is not None and isinstance(state, GroupState):
        run = entry.member.complete(state.store, state.closed, FOREVER)
    return entry.query.schema.empty_table() if run is None else entry.member.rows(run)[0].slice(0, limit)


def _told(member: GroupMember, tick: int | None) -> str | int | None:
    """A time as text, or as a number where times are."""
    if tick is None:
        return None
    try:
        value = member.time(np.array([tick]))[0].as_py()
    except (ValueError, OverflowError):
        return f"{tick} ns since 1970"
    return value.isoformat() if isinstance(value, dt.date) else int(value)
