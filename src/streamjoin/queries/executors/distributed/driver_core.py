"""The driver's side of the distributed engine: queries, plan, clocks and retention, with lists of files for tuples."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from time import time_ns
from typing import Any

import pyarrow as pa

from streamjoin.model.errors import InputError, StateError
from streamjoin.queries.core.arrivals import Activity, Arrived, MachineClock, latest_time, past_idle, time_to_idle
from streamjoin.queries.core.buckets import Bucket, IndexKey
from streamjoin.queries.core.changes import Change, LiveQuery
from streamjoin.queries.core.execution import Execution
from streamjoin.queries.core.explain import Explanation, QueryCost
from streamjoin.queries.core.groups.feeds import GroupFeed, JoinedGroups, PartialGroups, WaitingState
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared, ShareFigures, Snapshot
from streamjoin.queries.executors.distributed.outputs import CellsWaiting
from streamjoin.queries.executors.distributed.parts import FiledBucket, ReadParts
from streamjoin.queries.executors.distributed.sampling import SampledOptimizer, StreamSample
from streamjoin.queries.language.plan import Stream, query_name
from streamjoin.windows.clock import NEVER, Horizon


class PlannedExecution(Execution):
    """The plan made ready, for `explain`; tuples are elsewhere."""

    def load(self, buckets: Mapping[str, Iterable[Bucket]]) -> None:
        """Nothing is held here."""

    def settle(self, buckets: Mapping[str, Bucket], kept: Mapping[str, Sequence[Bucket]]) -> None:
        """Nothing is held here."""


class DriverCore:
    """A `QueryCore` that knows which tuples there are, and has none of them.

    Queries, plan and retention are those of a shared core whose plan is never run; of buckets it reads only what a list
    of parts has too. Groups are open here: cells make them of their rows, and here they are put together.
    """

    held_share = 0.0

    def __init__(self, settings: Settings, clock: MachineClock = time_ns) -> None:
        self.settings = settings
        self._planned = Shared([], settings, clock, execution=PlannedExecution)
        self._planned.plan_with(SampledOptimizer(settings))
        self.held_bytes: dict[str, int] = {}
        """What the cells of the last batch hold."""
        self.cells_waiting = CellsWaiting()
        """What waits after the last batch that is finished and in the log."""
        self._after = CellsWaiting()
        """What waits after the batch that was computed last."""
        self._bounds = threading.Lock()
        self._reached: Mapping[str, Horizon] = {}
        """The horizons after the newest batch, which may not be finished yet."""
        self._reading: dict[str, int] = {}
        """Streams of which tuples are read that are not in a batch yet, and the earliest time that they may have."""

    # Queries and plan ---------------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change]) -> None:
        """Make changes, in force from the next batch on."""
        self._planned.apply(changes)

    def add_stream(self, stream: Stream, lateness: int | None = None) -> None:
        """Register one more stream."""
        self._planned.add_stream(stream, lateness)

    def change_stream(self, stream: Stream, lateness: int) -> dict[str, InputError]:
        """Give a stream another lateness."""
        return self._planned.change_stream(stream, lateness)

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The registered streams, by name."""
        return self._planned.streams

    @property
    def queries(self) -> Mapping[str, LiveQuery]:
        """The queries, by name."""
        return self._planned.queries

    def snapshot(self) -> Snapshot:
        """The state after the last batch."""
        return self._planned.snapshot()

    def restore(self, snapshot: Snapshot) -> dict[str, InputError]:
        """Go over to a state."""
        before = snapshot.optimizer
        optimizer = SampledOptimizer(self.settings, before.plan, before.statistics, before.decisions)
        return self._planned.restore(replace(snapshot, optimizer=optimizer))

    def explain(self) -> Explanation:
        """The plan in force."""
        return self._planned.explain()

    def costs(self) -> Mapping[str, QueryCost]:
        """What each query cost in the last batch, and holds after it."""
        return self._planned.costs()

    @property
    def measures(self) -> bool:
        """Whether the next batch is to be measured, because the plan is looked at after it."""
        return self._optimizer.is_due

    def take_samples(self, samples: Mapping[str, StreamSample], distinct: Mapping[str, Mapping[IndexKey, int]]) -> None:
        """Plan by what the tasks of a batch report."""
        self._planned.plan_with(self._optimizer.with_samples(samples, distinct))

    def take_figures(self, shares: Sequence[ShareFigures]) -> None:
        """Count what the cells of a batch did as done here."""
        self._planned.take_figures(shares)

    @property
    def _optimizer(self) -> SampledOptimizer:
        optimizer = self.snapshot().optimizer
        if not isinstance(optimizer, SampledOptimizer):
            raise AssertionError("the driver has no tuples to measure")
        return optimizer

    # Batches ------------------------------------------------------------------------------------------------------

    def arrive(self, batch_id: int, tables: Mapping[str, ReadParts]) -> Arrived:
        """A batch as lists of parts; nothing changes until `finish`.

        Raises:
            StateError: the batch is not after the last one.
            InputError: a stream is unknown.
        """
        with self._bounds:
            arrived = self._arrive(batch_id, tables)
            self._reached = arrived.clocks.horizons
        return arrived

    def _arrive(self, batch_id: int, tables: Mapping[str, ReadParts]) -> Arrived:
        state = self.snapshot()
        if batch_id <= state.batch:
            raise StateError(f"batch {batch_id} comes after batch {state.batch}: batches ascend")
        clocks = state.clocks
        rules = self._planned.rules
        horizons, counts, activity = dict(clocks.horizons), dict(clocks.counts), dict(clocks.activity)
        buckets: dict[str, Any] = {}
        for name in sorted(tables):
            if name not in self.streams:
                raise InputError(f"there is no stream {name!r}")
            parts = tuple(part for part in tables[name].parts if part.rows)
            if not parts:
                continue
            bucket = buckets[name] = FiledBucket(name, batch_id, clocks.counts[name], dict(clocks.counts), parts)
            counts[name] += bucket.n
            newest = bucket.span[1]
            horizons[name] = horizons[name].raised(newest)
            activity[name] = activity.get(name, Activity(NEVER, rules.now)).moved(newest, rules)
        for name in self.streams:
            activity.setdefault(name, Activity(NEVER, rules.now))
        for name in tables:
            self._reading.pop(name, None)
        # Tuples that are being read are not set aside by a clock that moves meanwhile: silence does not move it.
        horizons = past_idle(horizons, activity, rules, self._reading)
        gate = clocks.gate + sum(bucket.n for bucket in buckets.values())
        after = replace(clocks, horizons=horizons, counts=counts, gate=gate, activity=activity)
        aside = {name: read.aside for name, read in tables.items()}
        return Arrived(buckets, {}, {}, after, batch_id, before=clocks.progress.bounds, filed_aside=aside)

    def time_bounds(self, stream: str, newest: int) -> tuple[int, int]:
        """The earliest and the latest time that a tuple of a stream may have now, where it has sent `newest` before.

        The batch that has `newest` may not be finished yet. From any thread.
        """
        with self._bounds:
            clocks = self.snapshot().clocks
            own = self._reached.get(stream, clocks.horizons[stream]).raised(newest)
            self._reading[stream] = own.bound
        horizons = {**clocks.horizons, stream: own}
        return own.bound, latest_time(self.streams[stream], replace(clocks, horizons=horizons), self._planned.rules)

    def take_cells_waiting(self, waiting: CellsWaiting) -> None:
        """Take over what waits after a batch, for `finish`."""
        self._after = waiting

    def asked_of(self, active: Collection[str]) -> tuple[dict[str, LiveQuery], dict[str, dict[str, LiveQuery]]]:
        """What cells run, where only the queries in `active` have rows, and by feed the queries that group it."""
        registry = self.snapshot().registry
        queries = {
            name: entry if query_name(name) in active or entry.paused else replace(entry, paused=True)
            for name, entry in registry.branches.items()
            if not entry.released and entry.query.grouping is None
        }
        members: dict[str, dict[str, LiveQuery]] = {}
        for feed in registry.feeds.values():
            own = {name: entry for name, entry in feed.members.items() if name in active}
            members[feed.name] = own
            queries[feed.name] = feed.live if own else replace(feed.live, paused=True)
        return queries, members

    def group(
        self, arrived: Arrived, groups: Sequence[PartialGroups], failed: dict[str, InputError]
    ) -> dict[str, pa.Table]:
        """The rows of groups that are complete with those that cells made; `failed` gets the queries that fail."""

        def of(feed: GroupFeed) -> JoinedGroups:
            return JoinedGroups([one for one in groups if not feed.members.keys().isdisjoint(one.members)])

        return self._planned.group(arrived, of, failed)

    @property
    def waits(self) -> bool:
        """Whether a batch without tuples can have rows."""
        return bool(self.cells_waiting.cells or self.snapshot().kinds)

    def time_to_idle(self) -> int | None:
        """In how many nanoseconds silence may decide what waits, 0 if it does already; None if only tuples can."""
        if not self.cells_waiting.count and self._planned.time_to_idle() is None:
            return None
        with self._bounds:
            return time_to_idle(self.snapshot().clocks, self._planned.rules, self._reading)

    @property
    def waiting(self) -> Mapping[str, WaitingState]:
        """The groups that are open after the batch that was computed last."""
        return self._planned.waiting

    def finish(self, arrived: Arrived, failures: Mapping[str, InputError]) -> dict[str, InputError]:
        """Make a batch part of the state; what waits in cells holds its tuples."""
        if self._after.batch == arrived.batch:
            self.cells_waiting = self._after
        pins = (pin for cell in self.cells_waiting.cells for pin in cell.pins.items())
        return self._planned.finish(arrived, failures, pins=pins)

    # What only other processes know -------------------------------------------------------------------------------

    def position(self) -> None:
        """None: no join runs here."""

    def largest(self) -> dict[str, InputError]:
        """None: nothing is computed here."""
        return {}

    def heaviest(self, excess: int) -> dict[str, InputError]:  # noqa: ARG002 - it is in cells
        """None: the tuples are in other processes."""
        return {}

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes that all cells hold."""
        return {"tuples": 0, "columns": 0, "indexes": 0, "sets": 0, **self.held_bytes}
