"""A micro-batch made into buckets: late tuples set aside, the rest numbered in gate order.

The clock of a stream counts nanoseconds, or the units of its integer column. A tuple is late if it is behind what its
stream reached in earlier batches by more than the allowed lateness: tuples of one batch are in no order of arrival, as
Spark reads files and partitions in any, so they are never late for each other. One without a usable time, or with one
too far in the future, is set aside too. A stream whose newest time stands still for long is idle: its clock follows
those of the streams it is joined with, as far behind as it may stand still, so that they need not wait for it for ever.
The invariant: numbers ascend without a gap, in each stream and over all, by batch, time, stream name and position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.errors import InputError
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.retention import StreamProgress
from streamjoin.queries.language.plan import Stream
from streamjoin.windows.clock import NEVER, Horizon, to_ticks

MachineClock = Callable[[], int]
"""Nanoseconds since 1970."""
_LATEST = (1 << 63) - 1
_TRAIL = 16
"""How many times of a stream are remembered over the span that another may stand still."""


@dataclass(frozen=True)
class Activity:
    """The newest time that a stream itself sent, and when, by the machine's clock, it last moved on.

    `trail` has some of the earlier ones, oldest first: when, and the newest time then.
    """

    newest: int
    since: int
    trail: tuple[tuple[int, int], ...] = ()

    def moved(self, newest: int, rules: TimeRules) -> Activity:
        """After a batch whose newest time is `newest`."""
        if newest <= self.newest:
            return self
        if rules.idle is None:
            return Activity(newest, rules.now)
        trail = self.trail
        if not trail or rules.now - trail[-1][0] >= rules.idle // _TRAIL:
            before = rules.now - rules.idle
            # The last one before the span is still needed.
            gone = max((number for number, (at, _) in enumerate(trail) if at <= before), default=0)
            trail = (*trail[gone:], (rules.now, newest))
        return Activity(newest, rules.now, trail)

    def reached(self, at: int) -> int:
        """The newest time that the stream had sent at a time of the machine's clock; `NEVER` if that is unknown."""
        if at >= self.since:
            return self.newest
        return max((newest for when, newest in self.trail if when <= at), default=NEVER)


@dataclass(frozen=True)
class Clocks:
    """Where each stream is: its horizon, and how many tuples it has sent; `gate` numbers the tuples of all.

    `activity` says which streams stand still; it is not stored, so after a restart every stream has its time again.
    """

    horizons: Mapping[str, Horizon]
    counts: Mapping[str, int]
    gate: int = 0
    activity: Mapping[str, Activity] = field(default_factory=dict)

    @classmethod
    def start(cls, lateness: Mapping[str, int]) -> Clocks:
        """Nothing has arrived; `lateness` is in ticks."""
        return cls({name: Horizon(ticks, 0) for name, ticks in lateness.items()}, dict.fromkeys(lateness, 0))

    @property
    def progress(self) -> StreamProgress:
        """How far the streams are."""
        return StreamProgress({name: horizon.bound for name, horizon in self.horizons.items()}, self.counts)

    @property
    def reached(self) -> dict[str, int]:
        """The newest time of each stream."""
        return {name: horizon.clock for name, horizon in self.horizons.items()}

    def joined_by(self, stream: str, lateness: int) -> Clocks:
        """With one more stream."""
        return replace(
            self,
            horizons={**self.horizons, stream: Horizon(lateness, 0)},
            counts={**self.counts, stream: 0},
        )

    def with_lateness(self, stream: str, lateness: int) -> Clocks:
        """With another lateness of a stream."""
        return replace(self, horizons={**self.horizons, stream: self.horizons[stream].with_lateness(lateness)})


class Aside(NamedTuple):
    """How many of a stream's rows were set aside in a batch."""

    late: int = 0
    untimed: int = 0
    malformed: int = 0


@dataclass(frozen=True)
class Arrived:
    """A batch: its buckets by stream, what was set aside, and the clocks after it.

    `malformed` are records that could not be decoded, as their reader described them.
    """

    buckets: Mapping[str, Bucket]
    late: Mapping[str, pa.Table]
    untimed: Mapping[str, pa.Table]
    clocks: Clocks
    batch: int
    malformed: Mapping[str, pa.Table] = field(default_factory=dict)
    logged: bool = True
    """Whether a restart computes it again; a batch of changes alone is not, and may give no row."""
    progress: StreamProgress | None = None
    """How far the streams are after it, where `clocks` are those of a part of their tuples."""
    before: Mapping[str, int] = field(default_factory=dict)
    """The bounds of the streams before it; a batch that a restart computes again has those of its first time."""
    filed_aside: Mapping[str, Aside] = field(default_factory=dict)
    """What tasks set aside, which has files of its own."""

    def clocks_since(self, before: Clocks) -> Clocks:
        """The clocks once it is done. One that may give no row lets no time pass, or what that decides would wait."""
        return self.clocks if self.logged else replace(self.clocks, horizons=before.horizons)

    def aside(self) -> dict[str, Aside]:
        """What was set aside, by stream; streams of which everything was taken are left out."""
        kinds = (self.late, self.untimed, self.malformed)
        return {name: counted for name, counted in sorted(self.filed_aside.items()) if any(counted)} | {
            name: Aside(*(tables[name].num_rows if name in tables else 0 for tables in kinds))
            for name in sorted({name for tables in kinds for name in tables})
        }


@dataclass(frozen=True)
class TimeRules:
    """What is asked of a stream's times: how far ahead they may be, and how long they may stand still.

    `future` has the bound of each stream in ticks, `partners` the streams that some query joins it with.
    """

    future: Mapping[str, int | None] = field(default_factory=dict)
    idle: int | None = None
    partners: Mapping[str, Set[str]] = field(default_factory=dict)
    now: int = 0


def arrive(
    batch: int,
    tables: Mapping[str, pa.Table],
    streams: Mapping[str, Stream],
    clocks: Clocks,
    rules: TimeRules | None = None,
) -> Arrived:
    """The buckets of a batch; `clocks` stay as they are.

    Raises:
        InputError: a stream is unknown, or a table does not have its columns.
    """
    rules = rules or TimeRules()
    kept: dict[str, tuple[pa.Table, Array]] = {}
    late: dict[str, pa.Table] = {}
    untimed: dict[str, pa.Table] = {}
    horizons, activity = dict(clocks.horizons), dict(clocks.activity)
    for name in sorted(tables):
        table = _check_table(name, tables[name], streams)
        stream = streams[name]
        ticks, bad = to_ticks(table.column(stream.time), stream.tick_ns or 1)
        most = latest_time(stream, clocks, rules)
        if most < _LATEST:
            ahead = ticks > most
            bad = ahead if bad is None else bad | ahead
        if bad is not None and bad.any():
            untimed[name] = table.filter(pa.array(bad))
            table, ticks = table.filter(pa.array(~bad)), ticks[~bad]
        if not ticks.size:
            continue
        newest = int(ticks.max())
        activity[name] = activity.get(name, Activity(NEVER, rules.now)).moved(newest, rules)
        behind = ticks < horizons[name].bound
        horizons[name] = horizons[name].raised(newest)
        if behind.any():
            late[name] = table.filter(pa.array(behind))
            table, ticks = table.filter(pa.array(~behind)), ticks[~behind]
        if ticks.size:
            kept[name] = table, ticks
    for name in streams:
        activity.setdefault(name, Activity(NEVER, rules.now))
    horizons = past_idle(horizons, activity, rules)
    buckets, after = number_tuples(batch, kept, replace(clocks, horizons=horizons, activity=activity))
    return Arrived(buckets, late, untimed, after, batch, before=clocks.progress.bounds)


def latest_time(stream: Stream, clocks: Clocks, rules: TimeRules) -> int:
    """The latest time that a tuple of a stream may have."""
    bound = rules.future.get(stream.name)
    if bound is None:
        return _LATEST
    if stream.tick_ns is not None:
        return min(rules.now + bound, _LATEST)
    # The unit of an integer is unknown: what the streams have reached counts as now.
    reached = max(clocks.horizons[name].clock for name in (stream.name, *rules.partners.get(stream.name, ())))
    return _LATEST if reached == NEVER else min(reached + bound, _LATEST)


def past_idle(
    horizons: Mapping[str, Horizon],
    activity: Mapping[str, Activity],
    rules: TimeRules,
    unmoved: Collection[str] = (),
) -> dict[str, Horizon]:
    """The horizons; an idle stream's is where the slowest stream was, `idle` ago, that it is joined with.

    So the tuples of a silence count up to that length when they come after all, and the others keep no more than that.
    Streams that are idle themselves count only if all are. Those in `unmoved` stay where they are.
    """
    raised = dict(horizons)
    if rules.idle is None:
        return raised
    idle = {name for name, active in activity.items() if rules.now - active.since >= rules.idle}
    for name in idle.difference(unmoved):
        partners = [other for other in rules.partners.get(name, ()) if other in activity]
        others = [other for other in partners if other not in idle] or partners
        if others:
            reached = min(activity[other].reached(rules.now - rules.idle) for other in others)
            # One that does not move stays the same object, by which `time_to_idle` knows it.
            if reached > horizons[name].clock:
                raised[name] = horizons[name].raised(reached)
    return raised


def time_to_idle(clocks: Clocks, rules: TimeRules, unmoved: Collection[str] = ()) -> int | None:
    """In how many nanoseconds silence may move a clock, 0 if it does already; None if nothing but tuples can."""
    if rules.idle is None:
        return None
    if past_idle(clocks.horizons, clocks.activity, rules, unmoved) != clocks.horizons:
        return 0
    moments = [when for active in clocks.activity.values() for when in (active.since, *(at for at, _ in active.trail))]
    return min((when + rules.idle - rules.now for when in moments if when + rules.idle > rules.now), default=None)


def _check_table(name: str, table: pa.Table, streams: Mapping[str, Stream]) -> pa.Table:
    if name not in streams:
        raise InputError(f"there is no stream {name!r}; registered: {', '.join(sorted(streams)) or 'none'}")
    if not isinstance(table, pa.Table):
        raise InputError(f"the tuples of stream {name!r} come as a pyarrow.Table, not {type(table).__name__}")
    schema = streams[name].schema
    missing = [field.name for field in schema if field.name not in table.column_names]
    if missing:
        raise InputError(f"the tuples of stream {name!r} have no column {missing[0]!r}")
    for column in schema:
        given = table.schema.field(column.name).type
        if given != column.type:
            raise InputError(f"column {column.name!r} of stream {name!r} is {column.type}, not {given}")
    return table.select(schema.names)


def number_tuples(
    batch: int, kept: Mapping[str, tuple[pa.Table, Array]], clocks: Clocks
) -> tuple[dict[str, Bucket], Clocks]:
    """Tuples with their times, in order of arrival, as buckets; and the clocks after them."""
    names = sorted(kept)
    orders = {name: np.argsort(kept[name][1], kind="stable") for name in names}
    sorted_ticks = [kept[name][1][orders[name]] for name in names]
    ranks = np.concatenate([np.full(t.size, rank) for rank, t in enumerate(sorted_ticks)] or [np.empty(0, np.int64)])
    ticks = np.concatenate(sorted_ticks or [np.empty(0, np.int64)])
    places = np.empty(ticks.size, np.int64)
    # The parts are in order already and ranks ascend: a stable sort by time alone keeps them for equal times.
    places[np.argsort(ticks, kind="stable")] = np.arange(ticks.size)
    buckets, counts = {}, dict(clocks.counts)
    for rank, name in enumerate(names):
        order = orders[name]
        in_order = bool((order[1:] > order[:-1]).all())
        table = kept[name][0] if in_order else kept[name][0].take(pa.array(order))
        gates = clocks.gate + places[ranks == rank]
        buckets[name] = Bucket(
            name, batch, table.combine_chunks(), sorted_ticks[rank], gates, counts[name], dict(clocks.counts)
        )
    for name in names:
        counts[name] += buckets[name].n
    return buckets, replace(clocks, counts=counts, gate=clocks.gate + int(ticks.size))
