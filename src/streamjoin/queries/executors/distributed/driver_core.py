"""The driver's side of the distributed engine: queries, plan, clocks and retention, with lists of files for tuples."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from streamjoin.adhoc.core.arrivals import Activity, Arrived, TimeRules, latest_time, past_idle, time_to_idle
from streamjoin.adhoc.core.buckets import Bucket, IndexKey
from streamjoin.adhoc.core.execution import Execution
from streamjoin.adhoc.core.kind_states import KindState
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.core.shared import Shared, Snapshot
from streamjoin.adhoc.executors.distributed.outputs import CellsWaiting
from streamjoin.adhoc.executors.distributed.parts import FiledArrival, FiledBucket, PortionFiles
from streamjoin.adhoc.executors.distributed.sampling import SampledOptimizer, StreamSample
from streamjoin.model.errors import InputError, StateError
from streamjoin.windows.clock import NEVER, Horizon


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
        self.cells_waiting = CellsWaiting()
        """What waits after the last batch that is finished and in the log."""
        self._after = CellsWaiting()
        """What waits after the batch that was computed last."""
        self._bounds = threading.Lock()
        self._reached: Mapping[str, Horizon] = {}
        """The horizons after the newest batch, which may not be finished yet."""
        self._reading: dict[str, int] = {}
        """Streams of which tuples are read that are not in a batch yet, and the earliest time that they may have."""

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
        with self._bounds:
            arrived = self._arrive(batch_id, tables)
            self._reached = arrived.clocks.horizons
        return arrived

    def _arrive(self, batch_id: int, tables: Mapping[str, PortionFiles]) -> FiledArrival:
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
        for name in tables:
            self._reading.pop(name, None)
        # Tuples that are being read are not set aside by a clock that moves meanwhile: silence does not move it.
        horizons = past_idle(horizons, activity, rules, self._reading)
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
        with self._bounds:
            clocks = self._state.clocks
            own = self._reached.get(stream, clocks.horizons[stream]).raised(newest)
            self._reading[stream] = own.bound
        horizons = {**clocks.horizons, stream: own}
        return own.bound, latest_time(self._streams[stream], replace(clocks, horizons=horizons), self._rules)

    # What waits ---------------------------------------------------------------------------------------------------

    def take_cells_waiting(self, waiting: CellsWaiting) -> None:
        """Take over what waits after a batch, for `finish`."""
        self._after = waiting

    def time_to_idle(self) -> int | None:
        """In how many nanoseconds silence may decide what waits, 0 if it does already; None if only tuples can."""
        if not self.cells_waiting.count:
            return None
        with self._bounds:
            return time_to_idle(self._state.clocks, self._rules, self._reading)

    def finish(
        self, arrived: Arrived, failures: Mapping[str, InputError], oldest: Mapping[str, int] | None = None
    ) -> None:
        """Make a batch part of the state; what waits in cells holds its tuples."""
        if self._after.batch == arrived.batch:
            self.cells_waiting = self._after
        super().finish(arrived, failures, oldest)

    def pins(self, kinds: Mapping[str, KindState]) -> Iterator[tuple[str, int]]:  # noqa: ARG002 - it is in cells
        """Streams, and the oldest tuple of each that must be held for what waits."""
        for cell in self.cells_waiting.cells:
            yield from cell.pins.items()

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes that all cells hold."""
        return {"tuples": 0, "columns": 0, "indexes": 0, "sets": 0, **self.held_bytes}
