"""The ad-hoc core: many queries over shared buckets, one micro-batch at a time, in one process and without Spark.

Changes (creates, drops, pauses) take effect in the order given, between two batches. `process` gives the rows that each
query gains by a batch: a result comes in the batch of its last tuple, once. The invariants: an error leaves
everything as it was; what a query gives depends on the tuples and its life alone, never on the plan or on others.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, time_ns

import numpy as np
import pyarrow as pa

from streamjoin.adhoc.core.arrivals import Arrived, Clocks, MachineClock, TimeRules, arrive, time_to_idle
from streamjoin.adhoc.core.batch_run import Share, StepCounts
from streamjoin.adhoc.core.buckets import Bucket
from streamjoin.adhoc.core.budgets import Usage
from streamjoin.adhoc.core.changes import Change, LiveQuery, QueryRegistry
from streamjoin.adhoc.core.contract import StepPosition
from streamjoin.adhoc.core.execution import Execution
from streamjoin.adhoc.core.explain import Explanation, explain
from streamjoin.adhoc.core.kind_states import KindState
from streamjoin.adhoc.core.kinds import BatchProgress, JoinKinds
from streamjoin.adhoc.core.retention import count_expired
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.language.plan import Stream, query_name
from streamjoin.adhoc.optimizer.optimizer import Optimizer
from streamjoin.adhoc.optimizer.plans import Plan, check_plan
from streamjoin.model.errors import InputError, StateError


@dataclass(frozen=True)
class Snapshot:
    """All state, in parts that never change: buckets can be written to files one by one, once."""

    batch: int
    registry: QueryRegistry
    buckets: Mapping[str, tuple[Bucket, ...]]
    clocks: Clocks
    optimizer: Optimizer
    kinds: Mapping[str, KindState] = field(default_factory=dict)
    """What waits of the queries with outer, semi, anti or as-of joins."""


@dataclass(frozen=True)
class BatchReport:
    """What a batch did besides rows: tuples set aside, queries that failed and are paused, seconds by component."""

    batch: int
    late: Mapping[str, pa.Table] = field(default_factory=dict)
    untimed: Mapping[str, pa.Table] = field(default_factory=dict)
    failures: Mapping[str, InputError] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    """`changes` made before it, `arrive`, `sets`, `joins`, `rows`, `settle`, `optimize`."""


@dataclass(frozen=True)
class ShareFigures:
    """What a share of a batch took by component, and what each step did, by the digest of its key."""

    seconds: Mapping[str, float]
    counts: Mapping[bytes, StepCounts]


class Shared:
    """Runs all queries over shared buckets by one plan; `catalog` holds the registered streams.

    `clock` is the machine's, by which a time is too far in the future and a stream idle.
    """

    def __init__(
        self,
        catalog: Iterable[Stream],
        settings: Settings | None = None,
        clock: MachineClock = time_ns,
        interrupted: threading.Event | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._clock = clock
        self._interrupted = interrupted or threading.Event()
        self._streams = {stream.name: stream for stream in catalog}
        self._execution = self._new_execution()
        lateness = {name: self.settings.lateness_of(stream) for name, stream in self._streams.items()}
        self._future = {name: self.settings.future_of(stream) for name, stream in self._streams.items()}
        self._state = Snapshot(-1, QueryRegistry(), {}, Clocks.start(lateness), Optimizer(self.settings))
        self._seconds: dict[str, float] = defaultdict(float)
        self._kinds: dict[str, JoinKinds] = {}
        self._waiting: tuple[int, dict[str, KindState]] = -1, {}
        """The batch whose rows were computed last, and what waits after it."""
        self.report = BatchReport(-1)
        """What the last batch did besides rows."""

    def _new_execution(self) -> Execution:
        settings = self.settings
        return Execution(
            self._streams.values(),
            merging=settings.merging,
            threads=settings.thread_count,
            interrupted=self._interrupted,
        )

    # Changes ------------------------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change]) -> None:
        """Creates, drops and pauses, in this order, in force from the next batch on.

        Raises:
            SpecError: a change names a query that is there already, or is not; none of the changes is made.
            QueryError: a created query's text does not parse or does not fit the streams; likewise.
        """
        begin = perf_counter()
        state = self._state
        registry = state.registry.changed(changes, self._streams, state.batch + 1)
        gone = registry.gone_since(state.registry)
        parts = {part for name in gone for part in state.registry.queries[name].parts}
        optimizer = state.optimizer.after_changes(registry.paths, state.batch + 1, parts)
        kinds = {name: held for name, held in state.kinds.items() if name not in gone}
        self._install(replace(state, registry=registry, optimizer=optimizer, kinds=kinds))
        self._seconds["changes"] += perf_counter() - begin

    def add_stream(self, stream: Stream, lateness: int | None = None) -> None:
        """Register one more stream; `lateness` is in ticks, and what the settings say if not given.

        Raises:
            StateError: there is one of this name.
        """
        if stream.name in self._streams:
            raise StateError(f"stream {stream.name!r} is registered already")
        ticks = self.settings.lateness_of(stream) if lateness is None else lateness
        self._future[stream.name] = self.settings.future_of(stream)
        clocks = self._state.clocks.joined_by(stream.name, ticks)
        self._streams[stream.name] = stream
        self._execution.add_stream(stream)
        self._state = replace(self._state, clocks=clocks)

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The registered streams, by name."""
        return self._streams

    @property
    def queries(self) -> Mapping[str, LiveQuery]:
        """The queries that are there, by name."""
        return self._state.registry.queries

    def replan(self) -> None:
        """Measure and plan from scratch now, whatever the hysteresis says; a plan that shares everything stays."""
        state = self._state
        if self.settings.replans:
            optimizer = state.optimizer.measured(state.registry, state.buckets)
            optimizer = optimizer.replanned(state.registry.paths, state.batch + 1, forced=True)
            self._install(replace(state, optimizer=optimizer))

    def adopt(self, plan: Plan) -> None:
        """Run by this plan from the next batch on.

        Raises:
            SpecError: it has not just one choice for each query, or an order that does not fit its query.
        """
        state = self._state
        check_plan(plan, state.registry.paths)
        self._install(replace(state, optimizer=replace(state.optimizer, plan=plan)))

    def follow(self, registry: QueryRegistry, plan: Plan) -> None:
        """Run these queries by this plan from the next batch on; what is held stays."""
        optimizer = replace(self._state.optimizer, plan=plan)
        self._install(replace(self._state, registry=registry, optimizer=optimizer))

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._state.optimizer.plan

    def _install(self, state: Snapshot) -> None:
        self._execution.update(state.registry.running, state.optimizer.plan.choices)
        self._state = state
        queries = state.registry.queries
        known = {name: kinds for name, kinds in self._kinds.items() if name in queries}
        self._kinds = {
            name: known[name] if name in known and known[name].query is entry.query else JoinKinds(entry.query)
            for name, entry in queries.items()
            if entry.query.kind_steps
        }

    # Batches ------------------------------------------------------------------------------------------------------

    def process(self, batch_id: int, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """The rows that each query gains by a batch; queries that gain none have an empty table.

        Raises:
            StateError: the batch is not after the last one.
            InputError: a table does not fit its stream.
        """
        arrived = self.arrive(batch_id, tables)
        outputs, failures = self.results(arrived)
        self.finish(arrived, failures)
        return outputs

    def arrive(self, batch_id: int, tables: Mapping[str, pa.Table]) -> Arrived:
        """A batch as buckets, the first of three steps; nothing changes until `finish`.

        Raises:
            StateError: the batch is not after the last one.
            InputError: a table does not fit its stream.
        """
        if batch_id <= self._state.batch:
            raise StateError(f"batch {batch_id} comes after batch {self._state.batch}: batches ascend")
        begin = perf_counter()
        arrived = arrive(batch_id, tables, self._streams, self._state.clocks, self._rules)
        self._seconds["arrive"] += perf_counter() - begin
        return arrived

    @property
    def _rules(self) -> TimeRules:
        return TimeRules(self._future, self.settings.idle_ns, self._state.registry.partners, self._clock())

    def time_to_idle(self) -> int | None:
        """In how many nanoseconds silence may decide what waits, 0 if it does already; None if only tuples can."""
        waits = any(kind.n for kind in self._state.kinds.values())
        return time_to_idle(self._state.clocks, self._rules) if waits else None

    def results(
        self, arrived: Arrived, share: Share | None = None
    ) -> tuple[dict[str, pa.Table], dict[str, InputError]]:
        """The rows that each query gains, and the queries whose rows can't be computed; one call at a time.

        A query that took more of the batch than its budget allows is among the latter (`BudgetExceededError`).
        With a share, only the results whose last tuple is in it: disjoint shares that cover a batch give each row once.
        Of queries with other than inner joins a share gives the results of their parts, for `complete`.

        Raises:
            InterruptedBatchError: it was interrupted; nothing changed, and it can be asked for again.
        """
        results = self._execution.run(arrived.buckets, share)
        self._seconds.update(self._execution.seconds)
        return results if share is not None else self.complete(arrived, *results)

    def complete(
        self, arrived: Arrived, outputs: Mapping[str, pa.Table], failures: Mapping[str, InputError]
    ) -> tuple[dict[str, pa.Table], dict[str, InputError]]:
        """The rows of a batch, where `outputs` has what the parts of queries found, here or in shares elsewhere."""
        rows, failed = dict(outputs), dict(failures)
        if not self._kinds:
            return rows, failed
        begin = perf_counter()
        state = self._state
        waiting = dict(state.kinds)
        self._execution.begin(arrived.buckets)
        now = BatchProgress(self._execution.streams, arrived.buckets, arrived.progress or arrived.clocks.progress)
        for name, kinds in self._kinds.items():
            entry = state.registry.queries[name]
            found = [rows.pop(part) for part in entry.parts]
            rows[name] = entry.query.schema.empty_table()
            if not arrived.logged:
                continue
            if entry.paused or name in failed:
                # Nobody knows what it would have found: what waits gives no row any more.
                waiting.pop(name, None)
                continue
            try:
                waiting[name], rows[name] = self._kind_rows(name, kinds, waiting.get(name), found, now)
            except InputError as error:
                failed[name] = error
                waiting.pop(name, None)
        self._waiting = arrived.batch, waiting
        self._seconds["kinds"] = perf_counter() - begin
        return rows, failed

    def _kind_rows(
        self, name: str, kinds: JoinKinds, before: KindState | None, found: Sequence[pa.Table], now: BatchProgress
    ) -> tuple[KindState, pa.Table]:
        state, chosen = kinds.step(kinds.start() if before is None else before, found, now)
        chosen = kinds.filtered(chosen, now)
        account, ledger = np.array([self._execution.account_of(name)]), self._execution.ledger
        place = f"the {kinds.steps[-1].kind} join with {kinds.steps[-1].right!r}"
        if account[0]:
            ledger.charge("rows", account, float(len(chosen.numbers)), place)
            self._refuse_overdraft(name)
        rows = kinds.gather(self._state.registry.queries[name].gatherer, chosen, now)
        if account[0]:
            ledger.charge("bytes", account, float(rows.nbytes), place)
            self._refuse_overdraft(name)
        return state, rows

    def _refuse_overdraft(self, name: str) -> None:
        error = self._execution.overdraft_of(name)
        if error is not None:
            raise error

    def begin_budgets(self) -> None:
        """Nobody took anything of the batch yet, here: its shares were computed elsewhere."""
        self._execution.ledger.begin()

    def take_waiting(self, batch: int, waiting: Mapping[str, KindState]) -> None:
        """Take over what waits after a batch that was computed elsewhere, for `finish`."""
        self._waiting = batch, dict(waiting)

    @property
    def waiting(self) -> Mapping[str, KindState]:
        """What waits after the batch whose rows were computed last."""
        return self._waiting[1]

    def waiting_by_ids(self) -> dict[str, KindState]:
        """The same with the ids of tuples, for other processes."""
        streams = self._execution.streams
        return {name: self._kinds[name].with_ids(state, streams) for name, state in self.waiting.items()}

    def resume_waiting(self, stored: Mapping[str, Sequence[KindState] | None]) -> None:
        """Have nothing wait but what waits of these queries: what is stored of them by ids, or what there was (None).

        Raises:
            CheckpointError: the partner of a tuple that waits is not here.
        """
        streams, before = self._execution.streams, self._state.kinds
        kinds = {
            name: self._kinds[name].with_numbers(states, streams) if states is not None else before[name]
            for name, states in stored.items()
        }
        self._state = replace(self._state, kinds=kinds)

    def position(self) -> StepPosition | None:
        """The step that a batch is in, or was in last; from any thread."""
        step = next(iter(tuple(self._execution.at.values())), None)
        if step is None:
            return None
        return StepPosition(step.key.streams, tuple(sorted({query_name(name) for name in step.queries})))

    def interrupt(self) -> None:
        """Have the batch whose results are computed stop at its next step, or the next batch; from any thread."""
        self._interrupted.set()

    def share_figures(self) -> ShareFigures:
        """What the last results took, and what steps did since this was last asked for."""
        return ShareFigures(dict(self._execution.seconds), self._execution.hand_in_counts())

    def usage(self) -> dict[str, Usage]:
        """What each query that has a budget took of the batch whose results were computed last."""
        return self._execution.usage()

    def take_figures(self, shares: Sequence[ShareFigures]) -> None:
        """Count what the shares of a batch did elsewhere as done here."""
        self._execution.take_counts([share.counts for share in shares])

    def finish(
        self, arrived: Arrived, failures: Mapping[str, InputError], oldest: Mapping[str, int] | None = None
    ) -> None:
        """Make a batch part of the state; queries that failed are paused.

        What no query can need any more is let go of; with `oldest`, what came before that batch of its stream.
        """
        begin = perf_counter()
        state, batch = self._state, arrived.batch
        registry = state.registry.paused(failures) if failures else state.registry
        buckets = {
            name: (*state.buckets.get(name, ()), *([arrived.buckets[name]] if name in arrived.buckets else []))
            for name in self._streams
        }
        clocks = arrived.clocks
        waiting = self._waiting[1] if self._waiting[0] == batch else state.kinds
        kinds = {name: held for name, held in waiting.items() if name not in failures}
        if oldest is None:
            gone = count_expired(registry.shapes, buckets, clocks.progress)
            self._pin(gone, buckets, kinds)
            kept = {name: held[gone[name] :] for name, held in buckets.items()}
        else:
            kept = {
                name: tuple(bucket for bucket in held if name in oldest and bucket.batch >= oldest[name])
                for name, held in buckets.items()
            }
        self._execution.settle(arrived.buckets, kept)
        settled = perf_counter()
        optimizer = state.optimizer.after_batch(registry, kept, batch)
        new = Snapshot(batch, registry, kept, clocks, optimizer, kinds)
        if failures or optimizer.plan is not state.optimizer.plan:
            self._install(new)
        else:
            self._state = new
        self._seconds.update({"settle": settled - begin, "optimize": perf_counter() - settled})
        self.report = BatchReport(batch, arrived.late, arrived.untimed, failures, dict(self._seconds))
        self._seconds.clear()

    def _pin(
        self, gone: dict[str, int], buckets: Mapping[str, Sequence[Bucket]], kinds: Mapping[str, KindState]
    ) -> None:
        """Hold the buckets of tuples that wait, and of their partners."""
        for stream, number in self.pins(kinds):
            before = (place for place, bucket in enumerate(buckets[stream]) if bucket.end > number)
            gone[stream] = min(gone[stream], next(before))

    def pins(self, kinds: Mapping[str, KindState]) -> Iterator[tuple[str, int]]:
        """Streams, and the oldest tuple of each that must be held for what waits."""
        for name, state in kinds.items():
            yield from self._kinds[name].pins(state)

    # State --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The state after the last batch; later batches don't change it."""
        return self._state

    def restore(self, snapshot: Snapshot) -> None:
        """Go back, or over, to a state."""
        self._execution = self._new_execution()
        self._waiting = -1, {}
        self._execution.load(snapshot.buckets)
        self._install(snapshot)

    def explain(self) -> Explanation:
        """The plan in force with its figures and the last decisions."""
        state = self._state
        measured = state.optimizer.measured(state.registry, state.buckets)
        return explain(self.settings, measured, state.registry.paths, self._execution)

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes held: tuples, what is kept of them by number, indexes, and query-sets."""
        sizes = {"tuples": 0, **self._execution.nbytes}
        for held in self._state.buckets.values():
            for bucket in held:
                for what, size in bucket.nbytes.items():
                    sizes[what] += size
        return sizes
