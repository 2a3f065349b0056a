"""The ad-hoc core: many queries over shared buckets, one micro-batch at a time, in one process and without Spark.

Changes (creates, drops, pauses) take effect in the order given, between two batches. `process` gives the rows that each
query gains by a batch: a result comes in the batch of its last tuple, once. The invariants: an error leaves
everything as it was; what a query gives depends on the tuples and its life alone, never on the plan or on others. A
query that is paused has no part in the plan: whatever it would fail with can't touch a batch. A query whose share of
the work fails, with whatever error and at whatever step, loses the rows of the batch and is paused, and no other is.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from time import perf_counter, time_ns

import numpy as np
import pyarrow as pa

from streamjoin.model.errors import (
    EngineBudgetExceededError,
    InputError,
    InterruptedBatchError,
    StateError,
    reason_of,
)
from streamjoin.queries.core import memory
from streamjoin.queries.core.arrivals import Arrived, Clocks, MachineClock, TimeRules, arrive, time_to_idle
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.budgets import EngineBudget, Usage, exceeded_together
from streamjoin.queries.core.changes import Change, LiveQuery, QueryRegistry
from streamjoin.queries.core.execution import Execution
from streamjoin.queries.core.explain import Explanation, QueryCost, StepPosition, explain
from streamjoin.queries.core.groups.feeds import (
    FeedRows,
    FeedStep,
    GroupFeed,
    GroupState,
    MemberResult,
    NewGroups,
    PartnerFeeds,
    WaitingState,
    stores_of,
)
from streamjoin.queries.core.kinds import BatchProgress, JoinKinds, KindState
from streamjoin.queries.core.probe_plan import PathKey
from streamjoin.queries.core.retention import Shape, count_expired
from streamjoin.queries.core.row_lists import ListedRows, read
from streamjoin.queries.core.running_plan import steps_of
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared_join import StepCounts
from streamjoin.queries.core.stored_stream import StoredStream
from streamjoin.queries.language.plan import Query, Stream, query_name
from streamjoin.queries.optimizer.optimizer import Optimizer
from streamjoin.queries.optimizer.plans import Plan, check_plan


def failure_of(error: Exception) -> InputError:
    """An error as a reason to pause a query: our own say it themselves, and others are told by their kind."""
    # It outlives the batch, and what was computed must not.
    memory.let_go(error)
    if isinstance(error, InputError):
        return error
    failure = InputError(f"it can't be computed: {reason_of(error)}")
    failure.__cause__ = error
    return failure


def culprits(names: Sequence[str], work: Callable[[Sequence[str]], object], error: Exception) -> dict[str, InputError]:
    """The queries for which work fails that failed with `error` for all of them together.

    Raises:
        Exception: it fails without any query too, and none of them is to blame.
        InterruptedBatchError: it was interrupted.
    """
    try:
        work(())
    except InterruptedBatchError:
        raise
    except Exception:
        raise error from None
    return _among(names, work, error)


def one_too_many(
    names: Sequence[str], work: Callable[[Sequence[str]], object], error: Exception
) -> dict[str, InputError]:
    """The query without which work goes well that fails for none alone, the newest if there are several.

    Empty if there is no such query. `names` are in the order in which the queries came.
    """
    suspects = list(names)
    while suspects:
        middle = len(suspects) // 2
        for half in (suspects[middle:], suspects[:middle]):
            try:
                if half:
                    work([name for name in names if name not in half])
                    suspects = half
                    break
            except InterruptedBatchError:
                raise
            except Exception:  # noqa: S112 - it is somebody else
                continue
        else:
            return {}
        if len(suspects) == 1:
            return {suspects[0]: failure_of(error)}
    return {}


def _among(names: Sequence[str], work: Callable[[Sequence[str]], object], error: Exception) -> dict[str, InputError]:
    if len(names) <= 1:
        return {name: failure_of(error) for name in names}
    found: dict[str, InputError] = {}
    middle = len(names) // 2
    for half in (names[:middle], names[middle:]):
        try:
            work(half)
        except InterruptedBatchError:
            raise
        except Exception as failure:
            found |= _among(half, work, failure)
    return found


def _is_known(kinds: JoinKinds | None, entry: LiveQuery) -> bool:
    return kinds is not None and kinds.query is entry.query and kinds.created == entry.created


_log = logging.getLogger("streamjoin.adhoc")


@dataclass(frozen=True)
class Snapshot:
    """All state, in parts that never change: buckets can be written to files one by one, once."""

    batch: int
    registry: QueryRegistry
    buckets: Mapping[str, tuple[Bucket, ...]]
    clocks: Clocks
    optimizer: Optimizer
    kinds: Mapping[str, WaitingState] = field(default_factory=dict)
    """What waits of the queries with outer, semi, anti or as-of joins, and the open groups of others."""

    def with_stream(self, stream: Stream, lateness: int, streams: Mapping[str, Stream]) -> Snapshot:
        """With a stream changed to another lateness, in ticks, or with further columns; `streams` are all."""
        held = {
            n: tuple(b.aligned(stream.schema) for b in h) if n == stream.name else h for n, h in self.buckets.items()
        }
        registry = self.registry.read_again(stream.name, streams)
        return replace(self, registry=registry, buckets=held, clocks=self.clocks.with_lateness(stream.name, lateness))


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

    `clock` is the machine's, by which a time is too far in the future and a stream idle. `execution` makes what runs
    the plan, where that is something else than joins in this process.
    """

    def __init__(
        self,
        catalog: Iterable[Stream],
        settings: Settings | None = None,
        clock: MachineClock = time_ns,
        interrupted: threading.Event | None = None,
        execution: Callable[[Iterable[Stream]], Execution] | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._made_by = execution
        self._clock = clock
        self._interrupted = interrupted or threading.Event()
        self._streams = {stream.name: stream for stream in catalog}
        self._execution = self._new_execution()
        lateness = {name: self.settings.lateness_of(stream) for name, stream in self._streams.items()}
        self._future = {name: self.settings.future_of(stream) for name, stream in self._streams.items()}
        self._state = Snapshot(-1, QueryRegistry(), {}, Clocks.start(lateness), Optimizer(self.settings))
        self._seconds: dict[str, float] = defaultdict(float)
        self._kinds: dict[str, JoinKinds] = {}
        self.partners = PartnerFeeds()
        """What feeds are made of that need no rows of joins."""
        self._waiting: tuple[int, dict[str, WaitingState]] = -1, {}
        """The batch whose rows were computed last, and what waits after it."""
        self._left_out: tuple[int, dict[str, InputError]] = -1, {}
        """The batch that runs, and the queries that failed in it and are not computed any more."""
        self._at_query: Query | None = None
        """The query whose outer, semi, anti or as-of joins are decided now."""
        self.report = BatchReport(-1)
        """What the last batch did besides rows."""
        self._counted: dict[PathKey, float] = {}
        """The seconds of each step that `costs` has told of."""

    def _new_execution(self) -> Execution:
        settings = self.settings
        if self._made_by is not None:
            return self._made_by(self._streams.values())
        return Execution(
            self._streams.values(),
            merging=settings.merging,
            threads=settings.thread_count,
            interrupted=self._interrupted,
            engine_budget=settings.engine_budget,
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
        registry = state.registry.changed(changes, self._streams, state.batch + 1, state.clocks.reached)
        gone = registry.gone_since(state.registry)
        parts = {part for name in gone for part in state.registry.queries[name].parts}
        kept = {name for name, entry in registry.queries.items() if name not in gone and not entry.lets_go}
        kinds = {name: held for name, held in state.kinds.items() if query_name(name) in kept}
        try:
            optimizer = state.optimizer.after_changes(registry.paths, state.batch + 1, parts)
            self._install(replace(state, registry=registry, optimizer=optimizer, kinds=kinds))
        except Exception:
            # A part of the plan may have been changed.
            self._rebuild(state)
            raise
        if any(change.releases for change in changes):
            self._let_go()
        self._seconds["changes"] += perf_counter() - begin

    def _let_go(self) -> None:
        """Hold only what a query can still need."""
        state = self._state
        gone = count_expired(state.registry.shapes, state.buckets, state.clocks.progress)
        self._pin(gone, state.buckets, self.pins(state.kinds, {}))
        kept = {name: held[gone[name] :] for name, held in state.buckets.items()}
        self._execution.settle({}, kept)
        self._state = replace(state, buckets=kept)

    def heaviest(self, excess: int) -> dict[str, InputError]:
        """The queries that hold most tuples, until what only they need is `excess` bytes; none if all is less.

        Queries with the same windows over the same streams hold the same tuples, and go together.
        """
        state = self._state
        groups = self._heaviest_groups(excess)
        if groups:
            return groups
        everything = sum(size for what, size in self.nbytes.items() if what != "groups")
        sizes = {name: [sum(b.nbytes.values()) for b in held] for name, held in state.buckets.items()}
        tuples = sum(map(sum, sizes.values()))
        if not tuples or everything < excess / 2:
            return {}

        def held_by(shapes: Mapping[Shape, int]) -> int:
            gone = count_expired(shapes, state.buckets, state.clocks.progress)
            return sum(sum(sizes[name][count:]) for name, count in gone.items())

        shapes = dict(state.registry.shapes)
        own = {shape: held_by({shape: created}) for shape, created in shapes.items()}
        largest = sorted(own, key=lambda shape: own[shape], reverse=True)
        leaving: set[Shape] = set()
        # Indexes and columns go with their tuples.
        while largest and (tuples - held_by(shapes)) * (everything / tuples) < excess:
            leaving.add(largest.pop(0))
            shapes = {shape: created for shape, created in shapes.items() if shape not in leaving}
        limit, used = self.settings.engine_memory or memory.available(), memory.used()
        return {
            query_name(name): EngineBudgetExceededError(
                "memory", limit, used, int(own[entry.shape] * everything / tuples), own[entry.shape] / tuples
            )
            for name, entry in state.registry.held.items()
            if entry.shape in leaving
        }

    def _heaviest_groups(self, excess: int) -> dict[str, InputError]:
        """The queries that hold most open groups, where these take more than the tuples do.

        Queries that share groups hold the same ones, and go together.
        """
        kinds = self._state.kinds
        stores = sorted(stores_of(kinds), key=lambda store: store.nbytes, reverse=True)
        total = sum(store.nbytes for store in stores)
        everything = sum(self.nbytes.values())
        if 2 * total < everything or everything < excess / 2:
            return {}
        limit, used = self.settings.engine_memory or memory.available(), memory.used()
        leaving: dict[str, InputError] = {}
        while stores and excess > 0:
            store = stores.pop(0)
            excess -= store.nbytes
            error = EngineBudgetExceededError("memory", limit, used, store.nbytes, store.nbytes / total)
            leaving |= {n: error for n, one in kinds.items() if isinstance(one, GroupState) and one.store is store}
        return leaving

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

    def change_stream(self, stream: Stream, lateness: int) -> dict[str, InputError]:
        """Change a stream, between two batches: another lateness, in ticks, or further columns.

        Returns the queries that can't be run then, which are paused.
        """
        self._streams[stream.name] = stream
        self._future[stream.name] = self.settings.future_of(stream)
        return self.restore(self._state.with_stream(stream, lateness, self._streams))

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The registered streams, by name."""
        return self._streams

    @property
    def stored_streams(self) -> Mapping[str, StoredStream]:
        """The streams as the joins read them, by name."""
        return self._execution.streams

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
        """Run by this plan from the next batch on; what it says of queries that are paused is ignored.

        Raises:
            SpecError: it has not just one choice for each query, or an order that does not fit its query.
        """
        state = self._state
        silent = {part for entry in state.registry.queries.values() if entry.paused for part in entry.parts}
        plan = replace(plan, choices={part: choice for part, choice in plan.choices.items() if part not in silent})
        check_plan(plan, state.registry.paths)
        self._install(replace(state, optimizer=replace(state.optimizer, plan=plan)))

    def follow(self, registry: QueryRegistry, plan: Plan) -> None:
        """Run these queries by this plan from the next batch on; what is held stays."""
        optimizer = replace(self._state.optimizer, plan=plan)
        self._install(replace(self._state, registry=registry, optimizer=optimizer))

    def plan_with(self, optimizer: Optimizer) -> None:
        """Look at the plan with this optimizer after the next batch."""
        self._state = replace(self._state, optimizer=optimizer)

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._state.optimizer.plan

    def _install(self, state: Snapshot) -> None:
        self._execution.update(self._computed(state), state.optimizer.plan.choices)
        branches = state.registry.branches
        known = {name: kinds for name, kinds in self._kinds.items() if name in branches}
        self._kinds = {
            name: known[name] if _is_known(known.get(name), entry) else JoinKinds(entry.query, entry.created)
            for name, entry in branches.items()
            if entry.query.kind_steps and (not entry.paused or name in state.kinds)
        }
        self.partners.keep({feed.join for feed in state.registry.feeds.values()})
        self._state = state

    def _computed(self, state: Snapshot, names: Sequence[str] | None = None) -> dict[str, LiveQuery]:
        """What the plan runs of these queries, or of all that have not failed in this batch."""
        left_out, registry = self._left_out[1], state.registry
        if names is None and not left_out:
            return registry.running
        chosen = {query_name(name) for name in registry.queries}
        return registry.only(chosen - left_out.keys() if names is None else chosen & set(names)).running

    def _rebuild(self, state: Snapshot) -> None:
        """Make what runs a state from scratch."""
        self._execution = self._new_execution()
        self._execution.load(state.buckets)
        self._install(state)

    # Batches ------------------------------------------------------------------------------------------------------

    def process(self, batch_id: int, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """The rows that each query gains by a batch; queries that gain none have an empty table.

        Raises:
            StateError: the batch is not after the last one.
            InputError: a table does not fit its stream.
        """
        arrived = self.arrive(batch_id, tables)
        outputs, failures = self.results(arrived)
        tables = {name: read(rows) for name, rows in outputs.items()}
        self.finish(arrived, failures)
        return tables

    def arrive(self, batch_id: int, tables: Mapping[str, pa.Table]) -> Arrived:
        """A batch as buckets, the first of three steps; nothing changes until `finish`.

        Raises:
            StateError: the batch is not after the last one.
            InputError: a table does not fit its stream.
        """
        if batch_id <= self._state.batch:
            raise StateError(f"batch {batch_id} comes after batch {self._state.batch}: batches ascend")
        begin = perf_counter()
        arrived = arrive(batch_id, tables, self._streams, self._state.clocks, self.rules)
        self._seconds["arrive"] += perf_counter() - begin
        return arrived

    @property
    def rules(self) -> TimeRules:
        """What the settings ask of the streams' times now."""
        return TimeRules(self._future, self.settings.idle_ns, self._state.registry.partners, self._clock())

    def time_to_idle(self) -> int | None:
        """In how many nanoseconds silence may decide what waits, 0 if it does already; None if only tuples can."""
        waits = any(kind.n for kind in self._state.kinds.values())
        return time_to_idle(self._state.clocks, self.rules) if waits else None

    def results(self, arrived: Arrived) -> tuple[dict[str, ListedRows], dict[str, InputError]]:
        """The rows that each query gains, and the queries whose rows can't be computed; one call at a time.

        A query that took more of the batch than its budget allows is among the latter (`BudgetExceededError`).

        Raises:
            InterruptedBatchError: it was interrupted; nothing changed, and it can be asked for again.
            MemoryError: there is too little memory; `largest` says who takes most of it.
        """
        if self._left_out[0] != arrived.batch:
            self._take_back()
        try:
            outputs, failures = self._execution.run(arrived.buckets)
        except InterruptedBatchError:
            raise
        except Exception as error:
            if isinstance(error, MemoryError) and self.largest():
                # Who holds most is known; to look for it by computing more would take memory that there is not.
                raise
            self._leave_out(arrived, error)
            outputs, failures = self._execution.run(arrived.buckets)
        self._seconds.update(self._execution.seconds)
        return self._complete(arrived, outputs, {**failures, **self._left_out[1]})

    def _silence(self, failures: Mapping[str, InputError]) -> dict[str, pa.Table]:
        """No rows, for the queries that are paused or have failed."""
        queries = self._state.registry.queries.items()
        return {
            name: entry.query.schema.empty_table()
            for name, entry in queries
            if entry.paused or (failures and query_name(name) in failures)
        }

    def _leave_out(self, arrived: Arrived, error: Exception) -> None:
        """Find the queries that a batch failed with, and run it without them."""
        _log.error("batch %d failed: %s; looking for the query", arrived.batch, reason_of(error), exc_info=error)
        state = self._state

        def run(names: Sequence[str]) -> None:
            # By the same choices, in a place of its own: what failed may be half changed.
            execution = self._new_execution()
            execution.load(state.buckets)
            execution.update(self._computed(state, names), state.optimizer.plan.choices)
            execution.run(arrived.buckets)

        names = [name for live in self._computed(state).values() for name in live.names]
        names = list(dict.fromkeys(names))
        found = culprits(names, run, error)
        if not found:
            try:
                run(names)
            except InterruptedBatchError:
                raise
            except Exception as again:
                found = one_too_many(names, run, again)
        self._left_out = arrived.batch, {**self._left_out[1], **found}
        self._rebuild(state)

    def _take_back(self) -> None:
        """Forget who failed in a batch that is no longer computed."""
        left_out, self._left_out = self._left_out[1], (-1, {})
        if left_out:
            self._install(self._state)

    def _complete(
        self, arrived: Arrived, outputs: Mapping[str, ListedRows], failures: Mapping[str, InputError]
    ) -> tuple[dict[str, ListedRows], dict[str, InputError]]:
        """The rows of a batch, where `outputs` has what the parts of queries found."""
        failed, state = self._of_members(failures), self._state
        rows = {**self._silence(failed), **outputs}
        self._waiting = arrived.batch, {}
        if self._kinds or state.registry.feeds:
            self._completed(arrived, rows, failed)
        for name, entry in state.registry.queries.items():
            if entry.query.union:
                found = [own for branch in entry.branches if (own := rows.pop(branch, None)) is not None]
                rows[name] = entry.query.schema.empty_table()
                try:
                    usage = (taken for one, taken in self.usage().items() if query_name(one) == name)
                    over = exceeded_together(entry.budget, list(usage))
                    failed |= {} if over is None or name in failed else {name: over}
                    if found and not entry.paused and name not in failed:
                        rows[name] = pa.concat_tables([read(own) for own in found])
                except MemoryError:
                    raise
                except Exception as error:
                    failed[name] = failure_of(error)
        return rows, failed

    def _completed(self, arrived: Arrived, rows: dict[str, ListedRows], failed: dict[str, InputError]) -> None:
        """The rows of groups and of other than inner joins, instead of what they are made of."""
        state, begin = self._state, perf_counter()
        waiting = dict(state.kinds)

        def new_groups(feed: GroupFeed) -> FeedRows:
            members = {name: entry.member for name, entry in feed.members.items()}
            query = feed.live.query
            if feed.partners is None:
                return FeedRows(query, members, read(rows.pop(feed.name)))
            self._at_query = query
            try:
                return self.partners.rows(feed.join, query, members, self._execution.streams, arrived.buckets)
            finally:
                self._at_query = None

        rows.update(self._grouped(arrived, waiting, failed, new_groups))
        progress = arrived.progress or arrived.clocks.progress
        now = BatchProgress(self._execution.streams, arrived.buckets, progress, arrived.before)
        for name, kinds in self._kinds.items():
            entry, query = state.registry.branches[name], query_name(name)
            # One that is paused, or left out, has found nothing.
            found = [read(part_rows) for part in entry.parts if (part_rows := rows.pop(part, None)) is not None]
            rows[name] = entry.query.schema.empty_table()
            if not arrived.logged:
                continue
            if entry.paused or query in failed:
                # What it would have found is unknown: what waits gives no row any more.
                waiting.pop(name, None)
                continue
            self._at_query = entry.query
            try:
                before = waiting.get(name)
                if isinstance(before, GroupState):
                    raise AssertionError("the joins of a grouped query are inner ones")
                waiting[name], rows[name] = self._kind_rows(name, kinds, before, found, now)
            except InterruptedBatchError:
                raise
            except Exception as error:
                failed[query] = failure_of(error)
                waiting.pop(name, None)
            finally:
                self._at_query = None
        # What one of them took may have been too much for all.
        known = {query_name(name) for name in rows}
        late = {n: why for n, why in self._execution.overdrafts().items() if n not in failed and n in known}
        failed |= late
        rows.update({name: table.slice(0, 0) for name, table in rows.items() if query_name(name) in late})
        self._waiting = arrived.batch, {n: held for n, held in waiting.items() if query_name(n) not in failed}
        self._seconds["kinds"] = perf_counter() - begin

    def _of_members(self, failures: Mapping[str, InputError]) -> dict[str, InputError]:
        """Failures of what feeds groups as those of all queries that it is for."""
        found: dict[str, InputError] = {}
        for name, error in failures.items():
            running = self._state.registry.running.get(name)
            found |= dict.fromkeys((name,) if running is None else running.names, error)
        return found

    def group(
        self, arrived: Arrived, new_groups: Callable[[GroupFeed], NewGroups], failed: dict[str, InputError]
    ) -> dict[str, pa.Table]:
        """The rows of groups whose feeds were computed elsewhere; what is open after the batch waits for `finish`."""
        waiting = dict(self._state.kinds)
        rows = self._grouped(arrived, waiting, failed, new_groups)
        self._waiting = arrived.batch, {n: held for n, held in waiting.items() if query_name(n) not in failed}
        return rows

    def _grouped(
        self,
        arrived: Arrived,
        waiting: dict[str, WaitingState],
        failed: dict[str, InputError],
        new_groups: Callable[[GroupFeed], NewGroups],
    ) -> dict[str, pa.Table]:
        """The rows of groups, and what is open after the batch."""
        registry, rows = self._state.registry, dict[str, pa.Table]()
        for name, entry in registry.queries.items():
            if entry.query.grouping is not None and (entry.paused or name in failed):
                waiting.pop(name, None)
        # What runs has its feeds ready; without those that have failed they are made anew.
        if failed:
            registry = registry.only([name for name in registry.queries if name not in failed])
        for feed in registry.feeds.values():
            empty = {name: entry.member.empty for name, entry in feed.members.items()}
            rows.update(empty)
            before = {name: state for name in feed.members if isinstance(state := waiting.get(name), GroupState)}
            try:
                new = new_groups(feed)
                if not arrived.logged:
                    continue
                step = FeedStep(feed, new, arrived.progress or arrived.clocks.progress, arrived.batch)
                results = step.run(before)
            except (InterruptedBatchError, MemoryError):
                raise
            except Exception as error:
                results = {name: MemberResult(None, empty[name], error) for name in feed.members}
            for name, result in results.items():
                rows[name] = result.rows
                if result.state is not None:
                    waiting[name] = result.state
                    continue
                waiting.pop(name, None)
                if result.failure is not None:
                    failed[name] = failure_of(result.failure)
        return rows

    def _kind_rows(
        self, name: str, kinds: JoinKinds, before: KindState | None, found: Sequence[pa.Table], now: BatchProgress
    ) -> tuple[KindState, pa.Table]:
        state, chosen = kinds.step(kinds.start() if before is None else before, found, now)
        chosen = kinds.filtered(chosen, now)
        account, ledger = np.array([self._execution.account_of(name)]), self._execution.ledger
        place = f"the {kinds.steps[-1].kind} join with {kinds.steps[-1].right!r}"
        if account[0]:
            ledger.charge("candidates", account, float(chosen.compared), place)
            ledger.charge("rows", account, float(len(chosen.numbers)), place)
            self._refuse_overdraft(name)
        rows = kinds.gather(self._state.registry.branches[name].gatherer, chosen, now)
        if account[0]:
            ledger.charge("bytes", account, float(rows.nbytes), place)
            ledger.hold(account, float(rows.nbytes))
            self._refuse_overdraft(name)
        return state, rows

    def _refuse_overdraft(self, name: str) -> None:
        error = self._execution.overdraft_of(name)
        if error is not None:
            raise error

    def take_waiting(self, batch: int, waiting: Mapping[str, WaitingState]) -> None:
        """Take over what waits after a batch that was computed elsewhere, for `finish`."""
        self._waiting = batch, dict(waiting)

    @property
    def waiting(self) -> Mapping[str, WaitingState]:
        """What waits after the batch whose rows were computed last."""
        return self._waiting[1]

    def waiting_by_ids(self, failures: dict[str, InputError]) -> dict[str, KindState]:
        """The same with the ids of tuples, for other processes; without those that fail, which `failures` gets."""
        streams = self._execution.streams
        states: dict[str, KindState] = {}
        for name, state in self.waiting.items():
            try:
                if isinstance(state, KindState):
                    states[name] = self._kinds[name].with_ids(state, streams)
            except Exception as error:
                failures[query_name(name)] = failure_of(error)
        return states

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
        """Where a batch is now; from any thread. Of several threads, that which is at its first join for longest."""
        query = self._at_query
        if query is not None:
            return StepPosition(tuple(dict.fromkeys(source.stream.name for source in query.sources)), (query.name,))
        threads = tuple(self._execution.at.values())
        if not threads:
            return None
        _, step = min(threads, key=lambda since_and_step: since_and_step[0])
        return StepPosition(step.key.streams, tuple(sorted({query_name(name) for name in step.queries})))

    def interrupt(self) -> None:
        """Have the batch whose results are computed stop at its next step, or the next batch; from any thread."""
        self._interrupted.set()

    def limit(self, budget: EngineBudget) -> None:
        """Have all queries together hold no more than this from now on, where the settings have a limit already."""
        self._execution.ledger.engine = budget

    def largest(self) -> dict[str, InputError]:
        """The queries that take most of the batch whose results are computed, and why they have to go."""
        return self._of_members(self._execution.largest())

    @property
    def held_share(self) -> float:
        """What the last batch took of the engine's budget, 0 to 1."""
        return self._execution.ledger.held_share

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
        self,
        arrived: Arrived,
        failures: Mapping[str, InputError],
        oldest: Mapping[str, int] | None = None,
        pins: Iterable[tuple[str, int]] = (),
    ) -> dict[str, InputError]:
        """Make a batch part of the state; queries that failed are paused. Returns those that failed, here too.

        What no query can need any more is let go of; with `oldest`, what came before that batch of its stream. `pins`
        are tuples that must be held besides, as `pins()` gives them.
        """
        begin = perf_counter()
        state, batch, failed = self._state, arrived.batch, dict(failures)
        buckets = {
            name: (*state.buckets.get(name, ()), *([arrived.buckets[name]] if name in arrived.buckets else []))
            for name in self._streams
        }
        clocks = arrived.clocks_since(state.clocks)
        waiting = self._waiting[1] if self._waiting[0] == batch else state.kinds
        if oldest is None:
            gone = count_expired(state.registry.shapes, buckets, clocks.progress)
            held_for = {name: held for name, held in waiting.items() if query_name(name) not in failed}
            self._pin(gone, buckets, chain(self.pins(held_for, failed), pins))
            kept = {name: held[gone[name] :] for name, held in buckets.items()}
        else:
            kept = {
                name: tuple(bucket for bucket in held if name in oldest and bucket.batch >= oldest[name])
                for name, held in buckets.items()
            }
        self._execution.settle(arrived.buckets, kept)
        self.partners.settle()
        self._execution.recent.note(self._execution.counts)
        settled = perf_counter()
        # What passes through a stream that holds nothing is measured too.
        seen = {name: kept[name] or held[-1:] for name, held in buckets.items()}
        registry, optimizer = self._planned(seen, batch, failed)
        kinds = {name: held for name, held in waiting.items() if query_name(name) not in failed}
        new = Snapshot(batch, registry, kept, clocks, optimizer, kinds)
        left_out, self._left_out = self._left_out[1], (-1, {})
        if failed or left_out or optimizer.plan is not state.optimizer.plan:
            failed |= self._adopted(new)
        else:
            self._state = new
        self._seconds.update({"settle": settled - begin, "optimize": perf_counter() - settled})
        self.report = BatchReport(batch, arrived.late, arrived.untimed, failed, dict(self._seconds))
        self._seconds.clear()
        return failed

    def _planned(
        self, seen: Mapping[str, tuple[Bucket, ...]], batch: int, failed: dict[str, InputError]
    ) -> tuple[QueryRegistry, Optimizer]:
        """The queries and the plan after a batch; who can't be planned for fails."""
        before = self._state.optimizer

        def plan(registry: QueryRegistry) -> tuple[QueryRegistry, Optimizer]:
            known = before.plan.choices.keys() - registry.running.keys()
            current = before.after_changes(registry.paths, batch) if known else before
            return registry, current.after_batch(registry, seen, batch)

        registry = self._state.registry.paused(failed) if failed else self._state.registry
        try:
            return plan(registry)
        except Exception as error:
            _log.error("after batch %d no plan can be made: %s", batch, reason_of(error), exc_info=error)
            names = [name for name, entry in registry.queries.items() if not entry.paused]
            failed |= culprits(names, lambda chosen: plan(registry.paused(set(names).difference(chosen))), error)
            if not registry.paused(failed).running.keys() < registry.running.keys():
                # No query is to blame, and the present plan runs on.
                return registry, before
            return plan(registry.paused(failed))

    def _adopted(self, state: Snapshot) -> dict[str, InputError]:
        """Run by a state; queries that can't be run are paused in it, and told."""
        try:
            self._install(state)
        except Exception as error:
            _log.error("the plan after batch %d can't be run: %s", state.batch, reason_of(error), exc_info=error)

            def run(chosen: Sequence[str]) -> Snapshot:
                others = [name for name in names if name not in chosen]
                partly = self._pausing(state, others)
                self._rebuild(partly)
                return partly

            names = [name for name, entry in state.registry.queries.items() if not entry.paused]
            found = culprits(names, run, error)
            run([name for name in names if name not in found])
            return found
        return {}

    def _pausing(self, state: Snapshot, names: Iterable[str]) -> Snapshot:
        """A state with some queries paused, and nothing left of them in its plan."""
        registry = state.registry.paused(names)
        optimizer = state.optimizer
        if optimizer.plan.choices.keys() - registry.running.keys():
            optimizer = optimizer.after_changes(registry.paths, state.batch + 1)
        kinds = {name: held for name, held in state.kinds.items() if not registry.branches[name].paused}
        return replace(state, registry=registry, optimizer=optimizer, kinds=kinds)

    def _pin(
        self,
        gone: dict[str, int],
        buckets: Mapping[str, Sequence[Bucket]],
        pins: Iterable[tuple[str, int]],
    ) -> None:
        """Hold the buckets of tuples that wait, and of their partners."""
        for stream, number in pins:
            before = (place for place, bucket in enumerate(buckets[stream]) if bucket.end > number)
            gone[stream] = min(gone[stream], next(before))

    def pins(self, kinds: Mapping[str, WaitingState], failures: dict[str, InputError]) -> Iterator[tuple[str, int]]:
        """Streams, and the oldest tuple of each that must be held for what waits; `failures` gets who fails."""
        for name, state in kinds.items():
            try:
                if not isinstance(state, GroupState):
                    yield from tuple(self._kinds[name].pins(state))
            except Exception as error:
                failures[query_name(name)] = failure_of(error)

    # State --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The state after the last batch; later batches don't change it."""
        return self._state

    def restore(self, snapshot: Snapshot) -> dict[str, InputError]:
        """Go back, or over, to a state; queries that can't be run are paused in it, and told."""
        self._waiting, self._left_out = (-1, {}), (-1, {})
        self._execution = self._new_execution()
        self._execution.load(snapshot.buckets)
        return self._adopted(self._pausing(snapshot, ()))

    def explain(self) -> Explanation:
        """The plan in force with its figures and the last decisions."""
        state = self._state
        measured = state.optimizer.measured(state.registry, state.buckets)
        held = {name: sum(bucket.n for bucket in buckets) for name, buckets in state.buckets.items()}
        work = {name: kinds.work for name, kinds in self._kinds.items()}
        return explain(self.settings, measured, state.registry, self._execution, held, work)

    def costs(self) -> dict[str, QueryCost]:
        """What each query cost in the last batch, and holds after it."""
        execution, queries = self._execution, self._state.registry.queries
        seconds = dict.fromkeys(queries, 0.0)
        counted: dict[PathKey, float] = {}
        for step in steps_of(execution.first_joins):
            counted[step.key] = total = execution.counts.get(step.key, StepCounts()).seconds
            names = [name for name in step.queries if name in seconds]
            for name in names:
                # A step that is in the plan anew begins at 0 again.
                seconds[name] += max(0.0, total - self._counted.get(step.key, 0.0)) / len(names)
        self._counted = counted
        readers = {name: set(entry.query.streams) for name, entry in queries.items()}
        together = Counter(stream for read in readers.values() for stream in read)
        held = {
            name: (sum(execution.streams[name].nbytes.values()) + sum(sum(b.nbytes.values()) for b in buckets))
            for name, buckets in self._state.buckets.items()
        }
        return {
            name: QueryCost(seconds[name], sum(held.get(stream, 0) // together[stream] for stream in read))
            for name, read in readers.items()
        }

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes held: tuples, what is kept of them by number, indexes, and query-sets."""
        sizes = {"tuples": 0, **self._execution.nbytes}
        for held in self._state.buckets.values():
            for bucket in held:
                for what, size in bucket.nbytes.items():
                    sizes[what] += size
        sizes["indexes"] += sum(kinds.nbytes for kinds in self._kinds.values()) + self.partners.nbytes
        stores = stores_of(self._state.kinds)
        sizes["indexes"] += sum(store.totals_nbytes for store in stores)
        groups = sum(store.nbytes for store in stores)
        return {**sizes, "groups": groups} if groups else sizes
