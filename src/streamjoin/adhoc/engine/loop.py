"""The one thread that runs batches: changes first, then tuples, then rows to the sinks, then the next.

The invariants: changes take effect in the order they were asked for, at a boundary between two batches; a change is
told as done once it is in the log; a sink that fails holds up nothing; any other error
ends the engine with its reason, and what the log has is what a restart goes on from.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from streamjoin.adhoc.core.arrivals import Arrived, Aside, Clocks
from streamjoin.adhoc.core.changes import Change
from streamjoin.adhoc.core.explain import Explanation
from streamjoin.adhoc.core.kind_states import packed_states
from streamjoin.adhoc.engine.attempts import Attempt
from streamjoin.adhoc.engine.catalog import Catalog
from streamjoin.adhoc.engine.executor import InProcess, Outputs, RowsExecutor
from streamjoin.adhoc.engine.figures import Passage, RunningQuery
from streamjoin.adhoc.engine.inbox import BatchWork, Inbox, Portion
from streamjoin.adhoc.engine.info import BatchEvent, ChangeRecord, EngineMetrics, PlanChange, RunningBatch
from streamjoin.adhoc.engine.journal import Journal, Position, held_by
from streamjoin.adhoc.engine.recovery import RecoveredState
from streamjoin.model.errors import InterruptedBatchError

_log = logging.getLogger(__name__)


class BatchLoop:
    """Runs one batch after another on the calling thread; `publish` receives the event of each."""

    def __init__(
        self,
        catalog: Catalog,
        journal: Journal,
        inbox: Inbox,
        publish: Callable[[BatchEvent], None],
        executor: RowsExecutor | None = None,
    ) -> None:
        self.catalog, self.core = catalog, catalog.core
        self.executor = executor or InProcess()
        self.positions: dict[str, Position] = {}
        """Where each stream that the journal has tuples of goes on."""
        self.seconds: dict[str, float] = {}
        self.batches = self.rows_out = 0
        """Batches with tuples, and rows of all queries, since the checkpoint was made."""
        self.driver_rows = 0
        """Rows of input and output that this process has had in its hands."""
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
        self._portions: tuple[Portion, ...] = ()
        """What the batch that runs has been given; nothing where a restart computes it again."""
        self._begun_at = self._joined_at = 0.0
        self._passages: dict[frozenset[str], Passage | None] = {}
        self._has_kinds = True
        """Whether the log may say that something waits of queries with other than inner joins."""

    def restore(self, recovery: RecoveredState, quarantine: Set[str] = frozenset()) -> None:
        """Take over what a restart finds; a batch that was not done is computed again when it runs.

        The queries in `quarantine` are paused before that.
        """
        self._quarantine = dict.fromkeys(quarantine, "quarantined when the engine was started; resume or drop it")
        for stored in recovery.state.streams.values():
            self.core.add_stream(stored.stream, stored.lateness)
        self.core.restore(recovery.snapshot)
        self.catalog.restore(recovery)
        self.positions = dict(recovery.positions)
        self.batches, self.rows_out = (int(recovery.counts.get(what, 0)) for what in ("batches", "rows_out"))
        self._batch = recovery.snapshot.batch
        self._recovery = recovery

    def run(self) -> None:
        """Until the inbox is closed and empty."""
        try:
            self._finish_what_was_begun()
            while (work := self._inbox.take(self._patience())) is not None:
                try:
                    if not (work.requests or work.portions or work.questions):
                        work = self._silence()
                    if work.requests or work.portions:
                        self._boundary(work)
                except BaseException as error:
                    work.fail(error)
                    raise
                for question in work.questions:
                    question.reply()
            self._end()
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
        empty = self.catalog.streams[name].stream.schema.empty_table()
        return BatchWork([], {name: Portion(name, self.positions[name], empty)}, [])

    def _end(self) -> None:
        self.catalog.keep_state(self._batch, now=True)

    def flush(self) -> None:
        """Have all rows where readers find them; between two batches."""

    def _finish_what_was_begun(self) -> None:
        recovery, self._recovery = self._recovery, None
        if recovery is not None and recovery.unfinished is not None:
            self._batch = recovery.unfinished.batch
            attempt = Attempt(self._journal, self._batch)
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
            self.core.apply([Change("resume", name) for name in running - set(self._quarantine)])
            self.catalog.make_again(recovery.later)
            self._batch = max([self._batch, *(change.record.batch - 1 for change in recovery.later)])
        self._batch += self._journal.batches_skipped
        held = {name: why for name, why in self._quarantine.items() if self.catalog.is_running(name)}
        if held:
            self.core.apply([Change("pause", name) for name in held if not self.core.queries[name].paused])
            for name, why in held.items():
                _log.error("query %r is paused: %s", name, why)
            self.catalog.failed(held, self._batch + 1)
            self.catalog.keep_state(self._batch)

    def explain(self) -> Explanation:
        """The plan in force, with what the tasks of the last batch did."""
        return replace(self.core.explain(), tasks=self.executor.tasks)

    # A batch ------------------------------------------------------------------------------------------------------

    def _boundary(self, work: BatchWork) -> None:
        began, self._begun_at = time.perf_counter(), time.monotonic()
        self._batch += 1
        self._stages = {}
        for portion in work.portions.values():
            self.catalog.streams[portion.stream].waits.add(max(0.0, self._begun_at - portion.handed_at))
        with self._timed("changes"):
            changes = self.catalog.change(work.requests, self._batch)
        with self._timed("arrivals"):
            arrived = self.core.arrive(self._batch, {name: part.table for name, part in work.portions.items()})
            malformed = {name: part.malformed for name, part in work.portions.items() if part.malformed is not None}
            clocks = _advanced(arrived.clocks, work.portions)
            arrived = replace(arrived, malformed=malformed, clocks=clocks, logged=bool(work.portions))
        aside = dict.fromkeys(work.portions, Aside()) | arrived.aside()
        counts, failed = self._rows(arrived, tuple(work.portions.values()), aside)
        self._count_driver_rows(arrived, counts)
        self._stage = None
        self._tell(began, work, [*changes, *failed], counts)
        for portion in work.portions.values():
            portion.done.set_result(None)

    def _rows(
        self,
        arrived: Arrived,
        portions: tuple[Portion, ...],
        aside: Mapping[str, Aside],
        attempt: Attempt | None = None,
    ) -> tuple[dict[str, int], list[ChangeRecord]]:
        """The batch's tuples into the log, its rows to the sinks; `aside` counts what was set aside by stream."""
        self._portions, self._passages = portions, {}
        stored = self._writing.submit(self._store, arrived, portions) if portions else None
        if self.executor.stores_first and stored is not None:
            with self._timed("storing"):
                stored.result()
        with self._timed("joining"):
            if attempt is not None and attempt.careful:
                outputs, failures = self._one_by_one(attempt, arrived)
            else:
                outputs, failures = self._results(arrived)
        self._joined_at = time.monotonic()
        with self._timed("storing"):
            if stored is not None:
                stored.result()
        with self._timed("sinks"):
            self._deliver(outputs, arrived)
        with self._timed("finishing"):
            self.core.finish(arrived, failures)
            self._count(arrived, aside)
            reasons = {name: str(error) for name, error in failures.items()}
            for name, why in reasons.items():
                _log.error("query %r failed in batch %d and is paused: %s", name, arrived.batch, why)
            records = self.catalog.failed(reasons, arrived.batch + 1) if reasons else []
            counts = {name: rows.num_rows for name, rows in outputs.items() if rows.num_rows}
            self.rows_out += sum(counts.values())
            if portions or arrived.buckets:
                self._keep_waiting(arrived.batch)
                self.batches += 1
                sums = {"batches": self.batches, "rows_out": self.rows_out}
                self._journal.write_done(arrived.batch, {**self.catalog.counts(), **sums})
            self.catalog.keep_state(arrived.batch)
        return counts, records

    def _keep_waiting(self, batch: int) -> None:
        """Write down what waits after a batch of queries with other than inner joins."""
        kinds = self.core.snapshot().kinds
        if kinds or self._has_kinds:
            self._journal.write_kinds(batch, packed_states(kinds))
        self._has_kinds = bool(kinds)

    def _one_by_one(self, attempt: Attempt, arrived: Arrived) -> Outputs:
        """The rows of a batch that ended the process before, query by query."""
        return attempt.results(self.core, arrived, self.catalog.settings)

    def _results(self, arrived: Arrived) -> Outputs:
        """The rows of a batch; one that is interrupted is computed again without what is to be dropped or paused."""
        while True:
            try:
                self._computing = True
                return self.executor.results(self.core, arrived)
            except InterruptedBatchError:
                leaving = {request.name for request in self._inbox.waiting if request.action in ("drop", "pause")}
                held = [name for name, entry in self.core.queries.items() if name in leaving and not entry.paused]
                _log.warning("batch %d was interrupted; it is computed again without %s", arrived.batch, held)
                self.core.apply([Change("pause", name) for name in held])
            finally:
                self._computing = False

    def interrupt(self) -> None:
        """Have the batch whose rows are computed now stop; from any thread."""
        if self._computing:
            self.core.interrupt()

    @contextmanager
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
        rows_in = {portion.stream: portion.table.num_rows for portion in self._portions}
        return RunningBatch(
            self._batch,
            time.monotonic() - begun_at,
            component,
            () if place is None else place.streams,
            () if place is None else place.queries,
            rows_in,
        )

    def _store(self, arrived: Arrived, portions: tuple[Portion, ...]) -> None:
        positions = {**self.positions, **{portion.stream: portion.position for portion in portions}}
        held = held_by(self.core.snapshot().buckets, arrived)
        self._journal.write_input(arrived, positions, held, self.catalog.serial)
        self.positions = positions
        for portion in portions:
            portion.safe.set_result(None)

    def _deliver(self, outputs: Mapping[str, pa.Table], arrived: Arrived) -> None:
        """Rows to the newest of their queries, and on their way to the sinks; none is in memory alone after it."""
        filled = {name: rows for name, rows in outputs.items() if rows.num_rows}
        for name, rows in filled.items():
            self.catalog.entries[name].take(arrived.batch, rows, self._passage(self.catalog.entries[name]))
        self.catalog.deliveries.put(arrived.batch, filled, self._passage)
        self.catalog.deliveries.settle()

    def _passage(self, entry: RunningQuery) -> Passage | None:
        """How the tuples of this batch came to a query's rows."""
        if entry.streams not in self._passages:
            portions = [portion for portion in self._portions if portion.stream in entry.streams]
            self._passages[entry.streams] = Passage.of(portions, self._begun_at, self._joined_at)
        return self._passages[entry.streams]

    def _count_driver_rows(self, arrived: Arrived, counts: Mapping[str, int]) -> None:
        self.driver_rows += sum(bucket.n for bucket in arrived.buckets.values()) + sum(counts.values())

    def _count(self, arrived: Arrived, aside: Mapping[str, Aside]) -> None:
        for name, counted in aside.items():
            bound = arrived.clocks.horizons[name].bound
            self.catalog.streams[name].arrived(arrived.buckets.get(name), counted, bound)

    def metrics(self, running: bool, started_at: float | None) -> EngineMetrics:
        """Sums since the checkpoint was made, and figures of the last batch; from any thread."""
        streams = tuple(self.catalog.streams.values())
        event = self.last_event
        return EngineMetrics(
            running,
            started_at,
            self.batches,
            sum(figures.rows for figures in streams),
            self.rows_out,
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
            self.driver_rows,
            dict(self.latency),
        )

    def _tell(self, began: float, work: BatchWork, changes: list[ChangeRecord], counts: dict[str, int]) -> None:
        rows_in = {name: part.table.num_rows for name, part in work.portions.items()}
        self.state_bytes = self.core.nbytes
        decisions = self.core.snapshot().optimizer.decisions
        entries = [self.catalog.entries[name] for name in counts if name in self.catalog.entries]
        delays = [entry.latency for entry in entries if entry.delivered_at >= self._joined_at]
        slowest = max(delays, key=lambda stages: sum(stages.values()), default={})
        self.latency = slowest or self.latency
        self.last_event = BatchEvent(
            self._batch,
            time.time(),
            time.perf_counter() - began,
            rows_in,
            counts,
            sum(self.state_bytes.values()),
            self.executor.partitions,
            tuple(changes),
            tuple(str(decision) for decision in decisions if decision.batch == self._batch),
            self.executor.decided(),
            sum(slowest.values()) if slowest else None,
            dict(self._stages),
            tuple(
                PlanChange(decision.rule, decision.what, decision.why, decision.queries, dict(decision.figures))
                for decision in decisions
                if decision.batch == self._batch and decision.changed
            ),
        )
        self._publish(self.last_event)


def _advanced(clocks: Clocks, portions: Mapping[str, Portion]) -> Clocks:
    """The clocks after streams have said what time they reached."""
    horizons = dict(clocks.horizons)
    for name, portion in portions.items():
        if portion.until is not None:
            horizons[name] = horizons[name].reaching(portion.until)
    return replace(clocks, horizons=horizons)
