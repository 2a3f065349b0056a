"""The one thread that runs batches: changes first, then tuples, then rows to the sinks, then the next.

The invariants: changes take effect in the order they were asked for, at a boundary between two batches; a change is
told as done once it is in the log; a sink that fails holds up nothing; whatever fails that is done for one query pauses
that query, with the reason; any other error ends the engine, and what the log has is what a restart goes on from.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa

from streamjoin.model.errors import InputError, InterruptedBatchError
from streamjoin.queries.core import memory
from streamjoin.queries.core.arrivals import Arrived, Aside, Clocks
from streamjoin.queries.core.budgets import keep_within
from streamjoin.queries.core.changes import Change, QueryRegistry
from streamjoin.queries.core.explain import Explanation
from streamjoin.queries.core.groups.feeds import GroupState, WaitingState, overflowed_in, stores_of
from streamjoin.queries.core.kinds import joined_states
from streamjoin.queries.core.row_lists import ListedRows, read
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared, Snapshot, failure_of
from streamjoin.queries.engine.catalog import Catalog
from streamjoin.queries.engine.executor import Outputs, TaskReport, TupleCore
from streamjoin.queries.engine.figures import Passage, RunningQuery
from streamjoin.queries.engine.inbox import BatchWork, Inbox, SourceBatch
from streamjoin.queries.engine.info import BatchEvent, ChangeRecord, EngineMetrics, PlanChange, RunningBatch
from streamjoin.queries.engine.journal import Body, Journal, Position, held_by
from streamjoin.queries.engine.stored import RecoveredState
from streamjoin.queries.language.plan import Stream, query_name
from streamjoin.queries.optimizer.optimizer import Optimizer

_log = logging.getLogger("streamjoin.adhoc")


R = TypeVar("R")
"""Where the rows of a batch are: in tables, or in files that tasks wrote."""
PassageOf = Callable[[RunningQuery], Passage | None]
"""How the tuples of the batch that runs came to a query's rows."""


@dataclass(frozen=True)
class BatchRows(Generic[R]):
    """What a batch gave: how many rows by query, where they are, and the queries whose rows can't be computed.

    `overflowed` has the sums of queries that their type could not hold.
    """

    counts: Mapping[str, int]
    failures: Mapping[str, InputError]
    rows: R
    overflowed: Mapping[str, int] = field(default_factory=dict)

    def without(self, failures: Mapping[str, InputError]) -> BatchRows[R]:
        """Where these queries failed too."""
        counts = {name: count for name, count in self.counts.items() if name not in failures}
        return replace(self, counts=counts, failures={**self.failures, **failures})


class RowsOut(ABC, Generic[R]):
    """What becomes of a batch: its tuples are stored, its rows computed and brought to the sinks.

    The loop calls it on its own thread, but for `store`, which has one of its own, and `interrupt`.
    """

    driver_rows = 0
    """Rows of input and output that this process has had in its hands."""

    @property
    @abstractmethod
    def stores_first(self) -> bool:
        """Whether tuples must be in the journal before rows are computed."""

    @abstractmethod
    def store(
        self,
        arrived: Arrived,
        given: Sequence[SourceBatch],
        positions: Mapping[str, Position],
        held: Mapping[str, Iterable[int]],
        serial: int,
    ) -> None:
        """Make a batch's tuples safe; see `Journal.write_input`."""

    @abstractmethod
    def results(self, arrived: Arrived) -> BatchRows[R]:
        """The rows of a batch.

        Raises:
            InterruptedBatchError: `interrupt` was called.
            MemoryError: there is too little memory.
        """

    @abstractmethod
    def one_by_one(self, arrived: Arrived, attempt: Attempt) -> BatchRows[R]:
        """The rows of a batch that ended the process before, query by query."""

    @abstractmethod
    def interrupt(self) -> None:
        """Have `results` stop; from any thread."""

    @abstractmethod
    def deliver(self, computed: BatchRows[R], arrived: Arrived, passage: PassageOf) -> dict[str, InputError]:
        """Rows to the newest of their queries, and on their way to the sinks; none is in memory alone after it.

        Returns the queries for which that fails.
        """

    @abstractmethod
    def keep_waiting(self, computed: BatchRows[R], batch: int) -> None:
        """Write down what waits after a batch that is finished."""

    @abstractmethod
    def report(self) -> TaskReport:
        """How the last batch was computed; what was decided is told once."""

    # Where rows are nowhere but in the queues of their sinks, there is nothing to do at these times.

    def restore(self, recovery: RecoveredState) -> None:
        """Take over what a restart finds."""

    def begin(self) -> None:
        """What a crash left unfinished is done; batches follow."""

    def leave(self, names: Set[str]) -> None:
        """Queries are dropped at the boundary that follows: have all their rows where readers find them."""

    def end(self, computed: BatchRows[R], batch: int) -> None:
        """The log says that the batch is done."""

    def flush(self) -> None:
        """Have all rows where readers find them; between two batches."""

    def close(self) -> None:
        """No batch follows."""


@dataclass(frozen=True)
class TableRows:
    """The rows of a batch by query, and what waits after it of other than inner joins, as the log has it."""

    lists: Mapping[str, ListedRows]
    waiting: Mapping[str, pa.Table]


def packed_waiting(states: Mapping[str, WaitingState], failures: dict[str, InputError]) -> dict[str, pa.Table]:
    """What waits as tables for a file; `failures` gets the queries for which that fails."""
    packed: dict[str, pa.Table] = {}
    for name, state in states.items():
        try:
            packed[name] = state.to_table(name)
        except Exception as error:
            failures[query_name(name)] = failure_of(error)
    for store in stores_of(states):
        try:
            packed[store.key] = store.to_table()
        except Exception as error:
            members = [name for name, one in states.items() if isinstance(one, GroupState) and one.store is store]
            failures |= dict.fromkeys(members, failure_of(error))
    return packed


class TableRowsOut(RowsOut[TableRows]):
    """Rows that this process computes from the tuples that it holds."""

    stores_first = False

    def __init__(self, core: TupleCore, catalog: Catalog, journal: Journal) -> None:
        self._core, self._catalog, self._journal = core, catalog, journal
        self._has_kinds = True
        """Whether the log may say that something waits of queries with other than inner joins."""

    def store(
        self,
        arrived: Arrived,
        given: Sequence[SourceBatch],  # noqa: ARG002 - its tuples are in buckets now
        positions: Mapping[str, Position],
        held: Mapping[str, Iterable[int]],
        serial: int,
    ) -> None:
        """Write buckets."""
        self._journal.write_input(arrived, positions, held, serial)

    def results(self, arrived: Arrived) -> BatchRows[TableRows]:
        """The rows of a batch."""
        return self._packed(*self._core.results(arrived))

    def one_by_one(self, arrived: Arrived, attempt: Attempt) -> BatchRows[TableRows]:
        """The rows of a batch, each query in a core of its own."""
        return self._packed(*attempt.results(self._core, arrived, self._catalog.settings))

    def _packed(self, lists: Mapping[str, ListedRows], failed: Mapping[str, InputError]) -> BatchRows[TableRows]:
        """Before any row goes out: a query of which what waits can't be written down has no rows of the batch."""
        failures = dict(failed)
        waiting = packed_waiting(self._core.waiting, failures)
        counts = {name: rows.num_rows for name, rows in lists.items() if name not in failures}
        return BatchRows(counts, failures, TableRows(lists, waiting), overflowed_in(self._core.waiting))

    def interrupt(self) -> None:
        """Have the core stop at its next step."""
        self._core.interrupt()

    def deliver(self, computed: BatchRows[TableRows], arrived: Arrived, passage: PassageOf) -> dict[str, InputError]:
        """Rows to the newest of their queries, and into the queues of their sinks."""
        self.driver_rows += sum(bucket.n for bucket in arrived.buckets.values()) + sum(computed.counts.values())
        entries, deliveries = self._catalog.entries, self._catalog.deliveries
        filled, failures = {}, dict[str, InputError]()
        for name, count in computed.counts.items():
            try:
                if count:
                    rows = computed.rows.lists[name]
                    entries[name].take(arrived.batch, rows, passage(entries[name]))
                    filled[name] = rows
            except Exception as error:
                failures[name] = failure_of(error)
        failures |= deliveries.put(arrived.batch, filled, passage)
        return failures | deliveries.settle()

    def keep_waiting(self, computed: BatchRows[TableRows], batch: int) -> None:
        """Write down what waits of the queries that run."""
        running = self._core.snapshot().kinds
        kept = running.keys() | {store.key for store in stores_of(running)}
        kinds = {name: packed for name, packed in computed.rows.waiting.items() if name in kept}
        if kinds or self._has_kinds:
            self._journal.write_kinds(batch, joined_states(kinds.values()))
        self._has_kinds = bool(kinds)

    def report(self) -> TaskReport:
        """No task did anything."""
        return TaskReport()


class Attempt:
    """One more attempt at a batch that a crash left unfinished, noted in the journal; `before` is the last note.

    A query that ends the process does so twice at most. The first restart computes the batch as it was. If that ends
    the process too, the second one computes query by query and notes each before it begins; where it ends, the third
    one knows the query and leaves it out. A query that fails with an error is paused at once, by whichever restart.
    """

    def __init__(self, journal: Journal, batch: int, before: Body) -> None:
        self._journal, self._batch = journal, batch
        self._count = int(before.get("count", 0)) + 1
        self.culprit: str | None = before.get("query")
        """The query at which the attempt before ended."""
        self.note(None)

    def note(self, query: str | None) -> None:
        """Say which query is computed next; None between two."""
        self._journal.write_attempt(self._batch, {"count": self._count, "query": query})

    @property
    def careful(self) -> bool:
        """Whether to compute query by query."""
        return self._count > 1

    def results(self, core: TupleCore, arrived: Arrived, settings: Settings) -> Outputs:
        """The rows of a batch, by one query after the other."""
        state = core.snapshot()
        queries = [entry.query for entry in state.registry.queries.values()]
        known = {name: stream for query in queries for name, stream in query.streams.items()}
        outputs: dict[str, ListedRows] = {}
        failures: dict[str, InputError] = {}
        waiting: dict[str, WaitingState] = {}
        for name, entry in state.registry.queries.items():
            if entry.paused:
                continue
            self.note(name)
            try:
                single = self._alone(name, state, known, settings)
                own = entry.query.streams
                fresh = {stream: bucket for stream, bucket in arrived.buckets.items() if stream in own}
                listed, failed = single.results(replace(arrived, buckets=fresh))
                # Here, where it is noted whose they are.
                rows = {name: read(found) for name, found in listed.items()}
            except InterruptedBatchError:
                raise
            except Exception as error:
                failures[name] = failure_of(error)
                continue
            outputs |= rows
            failures |= failed
            keep_within(outputs, failures, settings.engine_budget)
            waiting |= single.waiting
        waiting = {name: state for name, state in waiting.items() if query_name(name) not in failures}
        core.take_waiting(arrived.batch, waiting)
        self.note(None)
        return outputs, failures

    def _alone(self, name: str, state: Snapshot, known: Mapping[str, Stream], settings: Settings) -> Shared:
        """A core with one query of a state."""
        entry = state.registry.queries[name]
        alone = replace(settings, sharing="everything", lateness=0)
        registry = QueryRegistry({name: entry}, state.registry.next_serial)
        optimizer = Optimizer(alone).after_changes(registry.paths, self._batch)
        single = Shared(known.values(), alone)
        held = {stream: buckets for stream, buckets in state.buckets.items() if stream in entry.query.streams}
        kinds = {one: kind for one, kind in state.kinds.items() if query_name(one) == name}
        refused = single.restore(replace(state, registry=registry, optimizer=optimizer, buckets=held, kinds=kinds))
        if refused:
            raise refused[name]
        return single

    def end(self) -> None:
        """The batch is done."""
        self._journal.write_attempt(self._batch, None)


class BatchLoop:
    """Runs one batch after another on the calling thread; `publish` receives the event of each."""

    def __init__(
        self,
        catalog: Catalog,
        journal: Journal,
        inbox: Inbox,
        publish: Callable[[BatchEvent], None],
        rows_out: RowsOut[Any],
    ) -> None:
        self.catalog, self.core, self.rows_out = catalog, catalog.core, rows_out
        self.positions: dict[str, Position] = {}
        """Where each stream that the journal has tuples of goes on."""
        self.seconds: dict[str, float] = {}
        self.batches = self.rows = 0
        """Batches with tuples, and rows of all queries, since the checkpoint was made."""
        self.state_bytes: dict[str, int] = {}
        self.latency: dict[str, float] = {}
        """Of the slowest query in the last batch with rows, in milliseconds by stage."""
        self.last_event: BatchEvent | None = None
        self._journal, self._inbox, self._publish = journal, inbox, publish
        self._writing = ThreadPoolExecutor(1, "adhoc store")
        self._batch = -1
        self._recovery: RecoveredState | None = None
        self._quarantine: dict[str, str] = {}
        self._computing = False
        self._stages: dict[str, float] = {}
        """Seconds of the batch that runs, by component."""
        self._stage: tuple[str, float] | None = None
        """The component that runs now, and since when the batch does by the monotonic clock."""
        self._given: tuple[SourceBatch, ...] = ()
        """What the batch that runs has been given; nothing where a restart computes it again."""
        self._begun_at = self._joined_at = 0.0
        self._passages: dict[frozenset[str], Passage | None] = {}
        self._report = TaskReport()

    def restore(self, recovery: RecoveredState, quarantine: Set[str] = frozenset()) -> None:
        """Take over what a restart finds; a batch that was not done is computed again when it runs.

        The queries in `quarantine` are paused before that.
        """
        self._quarantine = dict.fromkeys(quarantine, "quarantined when the engine was started; resume or drop it")
        for stored in recovery.state.streams.values():
            self.core.add_stream(stored.stream, stored.lateness)
        self._quarantine |= recovery.refused
        snapshot = recovery.snapshot
        known = self._quarantine.keys() & snapshot.registry.queries.keys()
        # What is not to be computed is not made ready either.
        refused = self.core.restore(replace(snapshot, registry=snapshot.registry.paused(known)))
        self._quarantine |= {name: str(error) for name, error in refused.items()}
        self._quarantine |= self.catalog.restore(recovery)
        self.positions = dict(recovery.positions)
        self.batches, self.rows = (int(recovery.counts.get(what, 0)) for what in ("batches", "rows_out"))
        self._batch = recovery.snapshot.batch
        self._recovery = recovery
        self.rows_out.restore(recovery)

    def run(self) -> None:
        """Until the inbox is closed and empty."""
        try:
            self._finish_what_was_begun()
            while (work := self._inbox.take(self._patience())) is not None:
                try:
                    if not (work.requests or work.given or work.questions):
                        work = self._silence()
                    if work.requests or work.given:
                        self._boundary(work)
                except BaseException as error:
                    work.fail(error)
                    raise
                for question in work.questions:
                    question.reply()
            self.rows_out.close()
            self.catalog.keep_state(self._batch, now=True)
        finally:
            self._writing.shutdown()

    def _patience(self) -> float | None:
        """After how many seconds of silence a batch may decide what waits; None if only tuples can."""
        wait = self.core.time_to_idle() if self.positions else None
        return None if wait is None else min(wait / 1e9, threading.TIMEOUT_MAX)

    def _silence(self) -> BatchWork:
        """A batch without tuples, which goes into the log as any other and decides what silence decides."""
        if self._patience() != 0:
            return BatchWork([], {}, [])
        name = min(self.positions)
        return BatchWork([], {name: SourceBatch(name, self.positions[name])}, [])

    def flush(self) -> None:
        """Have all rows where readers find them; between two batches."""
        self.rows_out.flush()

    def _finish_what_was_begun(self) -> None:
        recovery, self._recovery = self._recovery, None
        if recovery is not None and recovery.unfinished is not None:
            self._batch = recovery.unfinished.batch
            attempt = Attempt(self._journal, self._batch, recovery.attempt)
            if attempt.culprit in self.catalog.entries:
                self._quarantine[str(attempt.culprit)] = (
                    f"quarantined: the process ended twice while batch {self._batch} was computed, last in this query"
                )
            # What is to be dropped before the start has no part in the batch either.
            dropped = {request.name for request in self._inbox.waiting if request.action == "drop"}
            held_back = self._quarantine | dict.fromkeys(dropped & set(self.catalog.entries), "dropped")
            running = {name for name in held_back if not self.core.queries[name].paused}
            self.core.apply([Change("pause", name) for name in running])
            aside = dict.fromkeys(recovery.unfinished.buckets, Aside()) | dict(recovery.aside)
            self._begun_at = time.monotonic()
            self._rows(recovery.unfinished, (), aside, attempt)
            self._stage = None
            attempt.end()
            for name in running - set(self._quarantine):
                with contextlib.suppress(Exception):
                    # Otherwise it stays as it is until it is dropped.
                    self.core.apply([Change("resume", name)])
            self._quarantine |= self.catalog.make_again(recovery.later)
            self._batch = max([self._batch, *(change.record.batch - 1 for change in recovery.later)])
        self._batch += self._journal.batches_skipped
        held = {name: why for name, why in self._quarantine.items() if self.catalog.is_running(name)}
        if held:
            self.catalog.refused(held, self._batch + 1)
            self.catalog.keep_state(self._batch)
        self.rows_out.begin()

    def explain(self) -> Explanation:
        """The plan in force, with what the tasks of the last batch did."""
        return replace(self.core.explain(), tasks=self._report.tasks)

    # A batch ------------------------------------------------------------------------------------------------------

    def _boundary(self, work: BatchWork) -> None:
        self.rows_out.leave({request.name for request in work.requests if request.action == "drop"})
        began, self._begun_at = time.perf_counter(), time.monotonic()
        self._batch += 1
        self._stages = {}
        for one in work.given.values():
            self.catalog.streams[one.stream].waits.add(max(0.0, self._begun_at - one.handed_at))
        with self._timed("changes"):
            changes = self.catalog.change(work.requests, self._batch)
        with self._timed("arrivals"):
            tuples = {name: one.tuples for name, one in work.given.items() if one.tuples is not None}
            arrived = self.core.arrive(self._batch, tuples)
            malformed = {name: one.malformed for name, one in work.given.items() if one.malformed is not None}
            clocks = _advanced(arrived.clocks, work.given)
            arrived = replace(arrived, malformed=malformed, clocks=clocks, logged=bool(work.given))
        aside = dict.fromkeys(work.given, Aside()) | arrived.aside()
        counts, failed = self._rows(arrived, tuple(work.given.values()), aside)
        failed += self._weigh()
        self._stage = None
        if work.given:
            most = max(one.rows for one in work.given.values())
            self._inbox.pace.after(most, time.perf_counter() - began, self.core.held_share)
        self._tell(began, work, [*changes, *failed], counts)
        for one in work.given.values():
            one.done.set_result(None)

    def _rows(
        self,
        arrived: Arrived,
        given: tuple[SourceBatch, ...],
        aside: Mapping[str, Aside],
        attempt: Attempt | None = None,
    ) -> tuple[dict[str, int], list[ChangeRecord]]:
        """The batch's tuples into the log, its rows to the sinks; `aside` counts what was set aside by stream."""
        self._given, self._passages = given, {}
        stored = self._writing.submit(self._store, arrived, given) if given else None
        if self.rows_out.stores_first and stored is not None:
            with self._timed("storing"):
                stored.result()
        with self._timed("joining"):
            if attempt is not None and attempt.careful:
                computed = self.rows_out.one_by_one(arrived, attempt)
            else:
                computed = self._results(arrived)
            failures = dict(computed.failures)
        self._joined_at = time.monotonic()
        with self._timed("storing"):
            if stored is not None:
                stored.result()
        with self._timed("sinks"):
            failures |= self.rows_out.deliver(computed, arrived, self._passage)
        with self._timed("finishing"):
            failures = self.core.finish(arrived, failures)
            self._count(arrived, aside, computed)
            reasons = {name: str(error) for name, error in failures.items()}
            for name, why in reasons.items():
                _log.error("query %r failed in batch %d and is %s", name, arrived.batch, _as_paused(why))
            records = self.catalog.failed(reasons, arrived.batch + 1) if reasons else []
            counts = {name: count for name, count in computed.counts.items() if count}
            self.rows += sum(counts.values())
            if given or arrived.buckets:
                self.rows_out.keep_waiting(computed, arrived.batch)
                self.batches += 1
                sums = {"batches": self.batches, "rows_out": self.rows}
                self._journal.write_done(arrived.batch, {**self.catalog.counts(), **sums})
            self.catalog.keep_state(arrived.batch)
        self.rows_out.end(computed, arrived.batch)
        return counts, records

    def _weigh(self) -> list[ChangeRecord]:
        """Pause the queries that hold most tuples, where the process has more memory than it may."""
        limit = self.catalog.settings.engine_memory
        if limit is None or memory.excess(limit) <= 0:
            return []
        memory.release()
        excess = memory.excess(limit)
        heaviest = self.core.heaviest(excess) if excess > 0 else {}
        if not heaviest:
            return []
        for name, error in heaviest.items():
            _log.error("query %r is %s", name, _as_paused(str(error)))
        self.core.apply([Change("pause", name, releases=True) for name in heaviest])
        reasons = {name: str(error) for name, error in heaviest.items()}
        records = self.catalog.failed(reasons, self._batch + 1, releases=True)
        self.catalog.keep_state(self._batch)
        memory.release()
        return records

    def _results(self, arrived: Arrived) -> BatchRows[Any]:
        """The rows of a batch; one that is interrupted is computed again without what is to be dropped or paused.

        One for which the memory does not suffice is computed again without the query that takes most of it.
        """
        lost: dict[str, InputError] = {}
        while True:
            try:
                self._computing = True
                computed = self.rows_out.results(arrived)
                return computed.without(lost) if lost else computed
            except MemoryError as error:
                leaving = self.core.largest()
                if not leaving:
                    raise
                memory.let_go(error)
            except InterruptedBatchError:
                leaving = {}
            finally:
                self._computing = False
            # Not in the handlers above: what the batch had in memory is held as long as its error is handled.
            if leaving:
                memory.release()
                _log.error("batch %d is computed again without %s: no memory", arrived.batch, list(leaving))
                lost |= leaving
                self.core.apply([Change("pause", name) for name in leaving])
                continue
            asked = {request.name for request in self._inbox.waiting if request.action in ("drop", "pause")}
            held = [name for name, entry in self.core.queries.items() if name in asked and not entry.paused]
            _log.warning("batch %d was interrupted; it is computed again without %s", arrived.batch, held)
            self.core.apply([Change("pause", name) for name in held])

    def interrupt(self) -> None:
        """Have the batch whose rows are computed now stop; from any thread."""
        if self._computing:
            self.rows_out.interrupt()

    @contextlib.contextmanager
    def _timed(self, component: str) -> Iterator[None]:
        began = time.perf_counter()
        self._stage = component, self._begun_at
        yield
        spent = time.perf_counter() - began
        for sums in (self.seconds, self._stages):
            sums[component] = sums.get(component, 0.0) + spent

    def activity(self) -> RunningBatch | None:
        """The batch that runs now; from any thread."""
        stage = self._stage
        if stage is None:
            return None
        component, begun_at = stage
        place = self.core.position() if component == "joining" else None
        rows_in = {one.stream: one.rows for one in self._given}
        return RunningBatch(
            self._batch,
            time.monotonic() - begun_at,
            component,
            () if place is None else place.streams,
            () if place is None else place.queries,
            rows_in,
        )

    def _store(self, arrived: Arrived, given: tuple[SourceBatch, ...]) -> None:
        positions = {**self.positions, **{one.stream: one.position for one in given}}
        held = held_by(self.core.snapshot().buckets, arrived)
        self.rows_out.store(arrived, given, positions, held, self.catalog.serial)
        self.positions = positions
        for one in given:
            one.safe.set_result(None)

    def _passage(self, entry: RunningQuery) -> Passage | None:
        """How the tuples of this batch came to a query's rows."""
        if entry.streams not in self._passages:
            given = [one for one in self._given if one.stream in entry.streams]
            self._passages[entry.streams] = Passage.of(given, self._begun_at, self._joined_at)
        return self._passages[entry.streams]

    def _count(self, arrived: Arrived, aside: Mapping[str, Aside], computed: BatchRows[Any]) -> None:
        for name, counted in aside.items():
            bound = arrived.clocks.horizons[name].bound
            self.catalog.streams[name].arrived(arrived.buckets.get(name), counted, bound)
        # Of a batch that decided nothing, what waits is that of the one before.
        for name, overflowed in computed.overflowed.items() if arrived.logged else ():
            if name not in computed.failures:
                self.catalog.entries[name].overflowed += overflowed

    def metrics(self, running: bool, started_at: float | None) -> EngineMetrics:
        """Sums since the checkpoint was made, and figures of the last batch; from any thread."""
        streams = tuple(self.catalog.streams.values())
        event = self.last_event
        return EngineMetrics(
            running,
            started_at,
            self.batches,
            sum(figures.rows for figures in streams),
            self.rows,
            sum(figures.late for figures in streams),
            len(self.catalog.entries),
            len(streams),
            dict(self.state_bytes),
            event.partitions if event is not None else 0,
            event.seconds if event is not None else 0.0,
            sum(figures.rate.value for figures in streams),
            self.catalog.deploy_ms,
            len(self._inbox.waiting),
            dict(self.seconds),
            self.rows_out.driver_rows + self.catalog.deliveries.rows_loaded,
            dict(self.latency),
        )

    def _tell(self, began: float, work: BatchWork, changes: list[ChangeRecord], counts: dict[str, int]) -> None:
        rows_in = {name: one.rows for name, one in work.given.items()}
        self._report = self.rows_out.report()
        self.state_bytes = self.core.nbytes
        decisions = self.core.snapshot().optimizer.decisions
        delays: list[dict[str, float]] = []
        failures: dict[str, str] = {}
        costs = self.core.costs()
        for name, entry in self.catalog.entries.items():
            try:
                if name in costs:
                    entry.charge(costs[name])
                if name in counts and entry.delivered_at >= self._joined_at:
                    delays.append(entry.latency)
            except Exception as error:
                failures[name] = str(failure_of(error))
        changes += self.catalog.refused(failures, self._batch + 1)
        slowest = max(delays, key=lambda stages: sum(stages.values()), default={})
        self.latency = slowest or self.latency
        self.last_event = BatchEvent(
            self._batch,
            time.time(),
            time.perf_counter() - began,
            rows_in,
            counts,
            sum(self.state_bytes.values()),
            self._report.partitions,
            tuple(changes),
            tuple(str(decision) for decision in decisions if decision.batch == self._batch),
            self._report.decided,
            sum(slowest.values()) if slowest else None,
            dict(self._stages),
            tuple(
                PlanChange(decision.rule, decision.what, decision.why, decision.queries, dict(decision.figures))
                for decision in decisions
                if decision.batch == self._batch and decision.changed
            ),
            memory.used(),
            self.catalog.settings.engine_memory or 0,
            self.core.held_share,
        )
        self._publish(self.last_event)


def _as_paused(why: str) -> str:
    """A reason that says that the query is paused, once.

    >>> _as_paused("no room"), _as_paused("paused: no room")
    ('paused: no room', 'paused: no room')
    """
    return f"paused: {why.removeprefix('paused: ')}"


def _advanced(clocks: Clocks, given: Mapping[str, SourceBatch]) -> Clocks:
    """The clocks after streams have said what time they reached."""
    horizons = dict(clocks.horizons)
    for name, one in given.items():
        if one.until is not None:
            horizons[name] = horizons[name].reaching(one.until)
    return replace(clocks, horizons=horizons)
