"""Queries that share nothing: a core each, with its own buckets, indexes and joins. What sharing is compared with.

The invariant: every query gives the rows that the shared core gives. Late tuples are set aside once, before all, and
tuples have the numbers that they have among all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from time import time_ns

import pyarrow as pa

from streamjoin.model.errors import EngineBudgetExceededError, InputError, InterruptedBatchError, StateError
from streamjoin.queries.core import memory
from streamjoin.queries.core.arrivals import Arrived, Clocks, MachineClock, TimeRules, arrive, time_to_idle
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.budgets import keep_within
from streamjoin.queries.core.changes import Change, LiveQuery, QueryRegistry
from streamjoin.queries.core.explain import Explanation, QueryCost, StepPosition
from streamjoin.queries.core.groups.feeds import WaitingState
from streamjoin.queries.core.row_lists import ListedRows, read
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import BatchReport, Shared, Snapshot, failure_of
from streamjoin.queries.language.plan import Stream, query_name
from streamjoin.queries.optimizer.optimizer import Optimizer


class Unshared:
    """Runs every query in a core of its own; the methods are those of `Shared`."""

    def __init__(self, catalog: Iterable[Stream], settings: Settings, clock: MachineClock = time_ns) -> None:
        self.settings = settings
        self._clock = clock
        self._interrupted = threading.Event()
        self._streams = {stream.name: stream for stream in catalog}
        self._clocks = Clocks.start({n: settings.lateness_of(stream) for n, stream in self._streams.items()})
        self._future = {name: settings.future_of(stream) for name, stream in self._streams.items()}
        self._cores: dict[str, Shared] = {}
        self._registry = QueryRegistry()
        self._batch = -1
        self._own: dict[str, Arrived] = {}
        self._computing: Shared | None = None
        self._held: dict[str, int] = {}
        """The bytes of the rows of queries that are computed in the batch that runs."""
        self.report = BatchReport(-1)

    def apply(self, changes: Sequence[Change]) -> None:
        """Creates, drops and pauses, in this order, in force from the next batch on."""
        registry = self._registry.changed(changes, self._streams, self._batch + 1, self._clocks.reached)
        before, serial = self.snapshot(), self._registry.next_serial
        try:
            for change in changes:
                if change.action == "create":
                    self._cores[change.name] = self._core(serial)
                if change.action == "drop":
                    del self._cores[change.name]
                    continue
                core = self._cores[change.name]
                core.apply([change])
                serial = max(serial, core.snapshot().registry.next_serial)
        except Exception:
            self.restore(before)
            raise
        self._registry = registry

    def _core(self, serial: int = 0) -> Shared:
        """A core without queries; its first one has this number among all."""
        settings = replace(self.settings, sharing="everything", lateness=0, threads=1)
        core = Shared(self._streams.values(), settings, self._clock, self._interrupted)
        registry = QueryRegistry(next_serial=serial)
        core.restore(replace(core.snapshot(), batch=self._batch, clocks=self._clocks, registry=registry))
        return core

    def add_stream(self, stream: Stream, lateness: int | None = None) -> None:
        """Register one more stream."""
        if stream.name in self._streams:
            raise StateError(f"stream {stream.name!r} is registered already")
        ticks = self.settings.lateness_of(stream) if lateness is None else lateness
        self._future[stream.name] = self.settings.future_of(stream)
        self._clocks = self._clocks.joined_by(stream.name, ticks)
        self._streams[stream.name] = stream
        for core in self._cores.values():
            core.add_stream(stream, ticks)

    def change_stream(self, stream: Stream, lateness: int) -> dict[str, InputError]:
        """Change a stream: another lateness, or further columns."""
        self._streams[stream.name] = stream
        self._future[stream.name] = self.settings.future_of(stream)
        return self.restore(self.snapshot().with_stream(stream, lateness, self._streams))

    @property
    def queries(self) -> Mapping[str, LiveQuery]:
        """The queries that are there, by name."""
        return self._registry.queries

    def process(self, batch_id: int, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """The rows that each query gains by a batch."""
        arrived = self.arrive(batch_id, tables)
        outputs, failures = self.results(arrived)
        tables = {name: read(rows) for name, rows in outputs.items()}
        self.finish(arrived, failures)
        return tables

    def arrive(self, batch_id: int, tables: Mapping[str, pa.Table]) -> Arrived:
        """A batch as buckets."""
        if batch_id <= self._batch:
            raise StateError(f"batch {batch_id} comes after batch {self._batch}: batches ascend")
        return arrive(batch_id, tables, self._streams, self._clocks, self._rules)

    @property
    def _rules(self) -> TimeRules:
        return TimeRules(self._future, self.settings.idle_ns, self._registry.partners, self._clock())

    def time_to_idle(self) -> int | None:
        """In how many nanoseconds silence may decide what waits."""
        waits = any(kind.n for core in self._cores.values() for kind in core.snapshot().kinds.values())
        return time_to_idle(self._clocks, self._rules) if waits else None

    def results(self, arrived: Arrived) -> tuple[dict[str, ListedRows], dict[str, InputError]]:
        """The rows that each query gains, and the queries whose rows can't be computed."""
        outputs: dict[str, ListedRows] = {}
        failures: dict[str, InputError] = {}
        self._held = {}
        self._own = {name: self._own_tuples(name, arrived) for name in self._cores}
        limit = self.settings.engine_memory
        for name, core in self._cores.items():
            self._computing = core
            if limit is not None and memory.excess(limit) > 0:
                # What the cores before it have let go of.
                memory.release()
            try:
                rows, failed = core.results(self._own[name])
            except (InterruptedBatchError, MemoryError):
                raise
            except Exception as error:
                # All that a core does is done for its query.
                rows = {name: self._registry.queries[name].query.schema.empty_table()}
                failed = {name: failure_of(error)}
            outputs.update(rows)
            failures.update(failed)
            keep_within(outputs, failures, self.settings.engine_budget)
            self._held[name] = sum(outputs[one].nbytes for one in rows)
        return outputs, failures

    def largest(self) -> dict[str, InputError]:
        """The query that takes most of the batch, where memory has run out: that which is computed or one before."""
        if self._computing is None:
            return {}
        found = self._computing.largest()
        name = max(self._held, key=lambda one: self._held[one], default=None)
        here = max((error.held for error in found.values() if isinstance(error, EngineBudgetExceededError)), default=0)
        if name is None or self._held[name] <= here:
            # Where nothing is counted that holds anything, there is too little for the query that is computed.
            computing = (one for one, core in self._cores.items() if core is self._computing)
            return found or {one: failure_of(MemoryError("there is too little memory")) for one in computing}
        limit, held = self.settings.engine_memory or memory.available(), self._held[name]
        share = held / (here + sum(self._held.values()))
        return {name: EngineBudgetExceededError("memory", limit, memory.used(), held, share)}

    def heaviest(self, excess: int) -> dict[str, InputError]:
        """The queries whose cores hold most, so that without them `excess` bytes less are held."""
        sizes = {name: sum(core.nbytes.values()) for name, core in self._cores.items()}
        if sum(sizes.values()) < excess / 2:
            return {}
        leaving: dict[str, InputError] = {}
        for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
            if excess > 0 and not self._registry.queries[name].released:
                leaving |= self._cores[name].heaviest(min(excess, sizes[name]))
                excess -= sizes[name]
        return leaving

    @property
    def held_share(self) -> float:
        """What the last batch took of the engine's budget, 0 to 1."""
        return sum(core.held_share for core in self._cores.values())

    def position(self) -> StepPosition | None:
        """Where a batch is now; from any thread."""
        return None if self._computing is None else self._computing.position()

    def interrupt(self) -> None:
        """Have the batch stop at its next step."""
        self._interrupted.set()

    def _own_tuples(self, name: str, arrived: Arrived) -> Arrived:
        read = self._registry.queries[name].query.streams
        return replace(arrived, buckets={s: _copy_bucket(bucket) for s, bucket in arrived.buckets.items() if s in read})

    def finish(self, arrived: Arrived, failures: Mapping[str, InputError]) -> dict[str, InputError]:
        """Make a batch part of the state; queries that failed are paused, and told."""
        failed = dict(failures)
        for name, core in self._cores.items():
            if name not in self._own:
                # The batch was computed elsewhere.
                self._own[name] = self._own_tuples(name, arrived)
            failed |= core.finish(self._own[name], {name: failures[name]} if name in failures else {})
        self._own = {}
        self._batch, self._clocks = arrived.batch, arrived.clocks_since(self._clocks)
        self._registry = self._registry.paused(failed)
        self.report = BatchReport(arrived.batch, arrived.late, arrived.untimed, failed)
        return failed

    def snapshot(self) -> Snapshot:
        """The state after the last batch; a bucket that several queries hold is there once."""
        held: dict[str, dict[int, Bucket]] = {name: {} for name in self._streams}
        for core in self._cores.values():
            for stream, buckets in core.snapshot().buckets.items():
                held[stream].update({bucket.batch: bucket for bucket in buckets})
        ordered = {stream: tuple(buckets[b] for b in sorted(buckets)) for stream, buckets in held.items()}
        kinds = {name: state for core in self._cores.values() for name, state in core.snapshot().kinds.items()}
        return Snapshot(self._batch, self._registry, ordered, self._clocks, Optimizer(self.settings), kinds)

    def restore(self, snapshot: Snapshot) -> dict[str, InputError]:
        """Go back, or over, to a state; every query gets its own copy of what it reads. Returns who can't be run."""
        failed: dict[str, InputError] = {}
        self._batch, self._registry, self._clocks = snapshot.batch, snapshot.registry, snapshot.clocks
        self._cores = {}
        for name, entry in snapshot.registry.queries.items():
            read = entry.query.streams
            core = self._cores[name] = self._core()
            buckets = {
                stream: tuple(_copy_bucket(b) for b in held if b.batch >= entry.created) if stream in read else ()
                for stream, held in snapshot.buckets.items()
            }
            alone = QueryRegistry({name: entry}, snapshot.registry.next_serial)
            optimizer = core.snapshot().optimizer.after_changes(alone.paths, snapshot.batch + 1)
            kinds = {one: held for one, held in snapshot.kinds.items() if query_name(one) == name}
            failed |= core.restore(Snapshot(snapshot.batch, alone, buckets, snapshot.clocks, optimizer, kinds))
        self._registry = self._registry.paused(failed)
        return failed

    @property
    def waiting(self) -> Mapping[str, WaitingState]:
        """What waits after the batch whose rows were computed last."""
        return {name: state for core in self._cores.values() for name, state in core.waiting.items()}

    def take_waiting(self, batch: int, waiting: Mapping[str, WaitingState]) -> None:
        """Take over what waits after a batch that was computed elsewhere."""
        for name, core in self._cores.items():
            core.take_waiting(batch, {one: held for one, held in waiting.items() if query_name(one) == name})

    def explain(self) -> Explanation:
        """The plans of all queries, one after the other: a group each."""
        explanations = [core.explain() for core in self._cores.values()]
        streams = {figures.name: figures for one in explanations for figures in one.streams}
        roots = [replace(root, group=number) for number, one in enumerate(explanations) for root in one.roots]
        cost = sum(one.cost_apart for one in explanations)
        last = tuple(step for one in explanations for step in one.last_steps)
        count = len(explanations)
        return Explanation("nothing", count, cost, cost, tuple(streams.values()), tuple(roots), (), last_steps=last)

    def costs(self) -> dict[str, QueryCost]:
        """What each query cost in the last batch, and holds after it."""
        return {name: cost for core in self._cores.values() for name, cost in core.costs().items()}

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes held by all cores together."""
        sizes = {"tuples": 0, "columns": 0, "indexes": 0, "sets": 0}
        for core in self._cores.values():
            for what, size in core.nbytes.items():
                sizes[what] = sizes.get(what, 0) + size
        return sizes


def _copy_bucket(bucket: Bucket) -> Bucket:
    """The same tuples, with nothing derived from them."""
    return Bucket(bucket.stream, bucket.batch, bucket.table, bucket.ticks, bucket.gates, bucket.first, bucket.seen)


def open_core(
    catalog: Iterable[Stream], settings: Settings | None = None, clock: MachineClock = time_ns
) -> Shared | Unshared:
    """The core that the settings ask for."""
    settings = settings or Settings()
    return Unshared(catalog, settings, clock) if settings.sharing == "nothing" else Shared(catalog, settings, clock)
