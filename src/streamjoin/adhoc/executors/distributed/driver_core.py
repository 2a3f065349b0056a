"""The driver's side of the distributed engine: queries, plan, clocks and retention, with lists of files for tuples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from streamjoin.adhoc.core.arrivals import Activity, TimeRules, latest_time, past_idle
from streamjoin.adhoc.core.buckets import Bucket, IndexKey
from streamjoin.adhoc.core.execution import Execution
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.core.shared import Shared, Snapshot
from streamjoin.adhoc.executors.distributed.parts import FiledArrival, FiledBucket, PortionFiles
from streamjoin.adhoc.executors.distributed.sampling import SampledOptimizer, StreamSample
from streamjoin.model.errors import InputError, StateError
from streamjoin.windows.clock import NEVER


class PlannedExecution(Execution):
    """The plan made ready, for `explain`; tuples are elsewhere."""

    def load(self, buckets: Mapping[str, Iterable[Bucket]]) -> None:
        """Nothing is held here."""

    def settle(self, buckets: Mapping[str, Bucket], kept: Mapping[str, Sequence[Bucket]]) -> None:
        """Nothing is held here."""


class DriverCore(Shared):
    """A core that knows which tuples there are, and has none of them."""

    def __init__(self, settings: Settings) -> None:
        super().__init__([], settings)
        self._state = replace(self._state, optimizer=SampledOptimizer(settings))
        self.held_bytes: dict[str, int] = {}
        """What the cells of the last batch hold."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go over to a state."""
        before = snapshot.optimizer
        optimizer = SampledOptimizer(self.settings, before.plan, before.statistics, before.decisions)
        super().restore(replace(snapshot, optimizer=optimizer))

    @property
    def measures(self) -> bool:
        """Whether the next batch is to be measured, because the plan is looked at after it."""
        return self._optimizer.is_due

    def take_samples(self, samples: Mapping[str, StreamSample], distinct: Mapping[str, Mapping[IndexKey, int]]) -> None:
        """Plan by what the tasks of a batch report."""
        self._state = replace(self._state, optimizer=self._optimizer.with_samples(samples, distinct))

    @property
    def _optimizer(self) -> SampledOptimizer:
        optimizer = self._state.optimizer
        if not isinstance(optimizer, SampledOptimizer):
            raise AssertionError("the driver has no tuples to measure")
        return optimizer

    def _new_execution(self) -> Execution:
        return PlannedExecution(self._streams.values())

    def arrive(self, batch_id: int, tables: Mapping[str, PortionFiles]) -> FiledArrival:
        """A batch as lists of parts; nothing changes until `finish`.

        Raises:
            StateError: the batch is not after the last one.
            InputError: a stream is unknown.
        """
        state = self._state
        if batch_id <= state.batch:
            raise StateError(f"batch {batch_id} comes after batch {state.batch}: batches ascend")
        clocks = state.clocks
        rules = self._rules
        horizons, counts, activity = dict(clocks.horizons), dict(clocks.counts), dict(clocks.activity)
        buckets: dict[str, FiledBucket] = {}
        for name in sorted(tables):
            if name not in self._streams:
                raise InputError(f"there is no stream {name!r}")
            parts = tuple(part for part in tables[name].parts if part.rows)
            if not parts:
                continue
            bucket = buckets[name] = FiledBucket(name, batch_id, clocks.counts[name], dict(clocks.counts), parts)
            counts[name] += bucket.n
            newest = bucket.span[1]
            horizons[name] = horizons[name].raised(newest)
            activity[name] = activity.get(name, Activity(NEVER, rules.now)).moved(newest, rules)
        for name in self._streams:
            activity.setdefault(name, Activity(NEVER, rules.now))
        horizons = past_idle(horizons, activity, rules)
        gate = clocks.gate + sum(bucket.n for bucket in buckets.values())
        after = replace(clocks, horizons=horizons, counts=counts, gate=gate, activity=activity)
        # What reads a bucket at the driver reads only what a list of parts has too.
        return FiledArrival(buckets, {}, {}, after, batch_id, portions=dict(tables))  # type: ignore[arg-type]

    @property
    def _rules(self) -> TimeRules:
        """What the settings ask of the streams' times now."""
        return TimeRules(self._future, self.settings.idle_ns, self._state.registry.partners, self._clock())

    def time_bounds(self, stream: str, newest: int) -> tuple[int, int]:
        """The earliest and the latest time that a tuple of a stream may have now, where it has sent `newest` before.

        The batch that has `newest` may not be finished yet. From any thread.
        """
        state = self._state
        horizons = {**state.clocks.horizons, stream: state.clocks.horizons[stream].raised(newest)}
        latest = latest_time(self._streams[stream], replace(state.clocks, horizons=horizons), self._rules)
        return horizons[stream].bound, latest

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes that all cells hold."""
        return {"tuples": 0, "columns": 0, "indexes": 0, "sets": 0, **self.held_bytes}
