"""`Engine`: many ad-hoc queries over shared streams, created and dropped while the streams run.

Any thread may call any method. One thread of the engine runs the batches (`loop`); what others ask for waits in
the `inbox` for the next boundary between two batches. An executor reads the streams and computes rows: in this process,
or on Spark (`executor`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from streamjoin.model import json_values
from streamjoin.model.errors import SpecError, StateError, StreamJoinError
from streamjoin.model.expression.nodes import Column
from streamjoin.model.window import CountWindow
from streamjoin.queries.core.budgets import Budget
from streamjoin.queries.core.changes import Action, Create, check_name, names_after, no_such_query
from streamjoin.queries.core.explain import Explanation
from streamjoin.queries.core.groups.feeds import join_key
from streamjoin.queries.core.groups.partners import partner_rule, way_of_groups
from streamjoin.queries.core.intervals import fit_interval
from streamjoin.queries.core.probe_plan import PathKey, Paths, shared_steps
from streamjoin.queries.core.settings import Lateness, Settings
from streamjoin.queries.core.shared import Snapshot
from streamjoin.queries.engine.assembly import (
    check_arguments,
    executor_kind,
    known_names,
    open_parts,
    with_engine_budget,
)
from streamjoin.queries.engine.catalog import Catalog
from streamjoin.queries.engine.cursors import RowsPage, read_page
from streamjoin.queries.engine.executor import STOP_PATIENCE, StreamInput
from streamjoin.queries.engine.figures import (
    RunningQuery,
    RunningStream,
    columns_of,
    open_groups_of,
    rows_so_far,
)
from streamjoin.queries.engine.handle import Notices, QueryHandle, ResultIterator, in_force, pending_info
from streamjoin.queries.engine.inbox import Inbox, Pace
from streamjoin.queries.engine.info import (
    BatchEvent,
    ChangeRecord,
    EngineMetrics,
    Preview,
    QueryInfo,
    RunningBatch,
    StreamInfo,
)
from streamjoin.queries.engine.journal import Position
from streamjoin.queries.engine.loop import BatchLoop
from streamjoin.queries.engine.sampling import PREVIEWED, sample
from streamjoin.queries.engine.stored import EngineChange
from streamjoin.queries.engine.stream_readers import StreamReaders
from streamjoin.queries.language.condition_words import readable_terms
from streamjoin.queries.language.plan import JoinStep, Query, Stream, query_name
from streamjoin.queries.language.sql import parse
from streamjoin.queries.language.summaries import bound, is_listed
from streamjoin.queries.optimizer.optimizer import Optimizer
from streamjoin.queries.optimizer.plans import Facts
from streamjoin.queries.optimizer.rules import cost_apart, plan_cost
from streamjoin.queries.sinks.base import MemorySink, Newest, Sink
from streamjoin.queries.sinks.specs import NamedSinks
from streamjoin.storage.settings import StorageSettings, use
from streamjoin.windows import interrupts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from streamjoin.queries.sources.base import TupleSource


_START_PATIENCE: Final = 3.0
"""Seconds that a start waits for what a crash left unfinished."""
INTERRUPT_AFTER: Final = 5.0
"""Seconds that a drop or a pause waits for a batch before it interrupts it."""
DEFAULT_BUDGET: Final = Budget(rows=20_000_000, bytes=4 << 30)
"""What a query may take of one batch by default."""


class Engine:
    """Runs ad-hoc queries over shared streams; queries come and go while the streams run.

    Args:
        spark: the Spark session that reads the streams; without one, tuples are pushed or read in this process.
        checkpoint: a directory for everything that a restart goes on from; without one nothing survives the process.
            An engine on Spark needs one.
        settings: how queries share, and when plans are looked at again.
        trigger: how often each stream is read, such as "1 second"; as fast as possible when not given.
        partitions: with "distributed", how many cells share the tuples; "auto" follows the load up to Spark's cores,
            and when not given there are as many as cores.
        sinks: gives the sink of a name for a query, where the checkpoint has only the name (`NamedSink`).
        budget: what a query may take of one batch, unless its `create` says otherwise; one that takes more is paused.
        quarantine: queries of the checkpoint that are paused before anything is computed, such as one that ends the
            process. Queries that ended two starts are found and paused without being named.
        most_queries: how many queries there may be; any number if not given.
        executor: "distributed" has Spark's tasks store, join and write, in cells that hold a share of the tuples each;
            with "driver" all tuples and rows pass through this process. If not given, it is the one that the checkpoint
            was begun with, and for a new one "driver" with a local master, "distributed" on a cluster.
        storage: endpoints and credentials of stores, for this process, as in `StorageSettings`. On Spark they are given
            to `streamjoin.spark.session`.
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        checkpoint: str | Path | None = None,
        settings: Settings | None = None,
        trigger: str | None = None,
        partitions: int | Literal["auto"] | None = None,
        sinks: NamedSinks | None = None,
        budget: Budget = DEFAULT_BUDGET,
        quarantine: Collection[str] = (),
        most_queries: int | None = None,
        executor: Literal["driver", "distributed"] | None = None,
        storage: StorageSettings | Mapping[str, Any] | None = None,
    ) -> None:
        if storage is not None:
            if spark is not None:
                raise SpecError("an engine on Spark has the stores of its session: session(storage=...)")
            use(storage)
        self._most_queries = most_queries
        self.budget = budget
        self.settings = with_engine_budget(settings or Settings())
        self.checkpoint = None if checkpoint is None else str(checkpoint)
        check_arguments(spark, self.checkpoint, self.settings, partitions, executor)
        self._inbox = Inbox(Pace(self.settings.batch_rows, self.settings.batch_bytes))
        self._notices = Notices()
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._error: StreamJoinError | None = None
        kind = executor_kind(spark, self.checkpoint, self.settings, executor)
        parts = open_parts(kind, spark, self.checkpoint, self.settings, trigger, partitions)
        self._journal = parts.journal
        try:
            self._catalog = Catalog(parts.core, self._journal, self.settings, spark, sinks, self._notices.stir)
            reading, rows_out = parts.connect(self._catalog, self._inbox)
            self._loop = BatchLoop(self._catalog, self._journal, self._inbox, self._notices.publish, rows_out)
            self._loop.restore(parts.recovery, known_names(quarantine, parts.recovery))
        except BaseException:
            self._journal.close()
            raise
        self._readers = StreamReaders(
            self.settings, self._journal, self._catalog, self._loop, self._inbox, reading, self._fail
        )
        self._names = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._starting: threading.Thread | None = None
        """What reads the streams later, if the start takes long."""
        self._started_at: float | None = None

    # Streams ------------------------------------------------------------------------------------------------------

    def register(
        self,
        name: str,
        frame: DataFrame | None = None,
        time: str = "ts",
        lateness: Lateness | None = None,
        malformed: str | None = None,
        *,
        schema: pa.Schema | None = None,
        source: TupleSource | None = None,
    ) -> Stream:
        """Make a stream known, before the start or while the engine runs.

        Args:
            name: the name by which queries read it.
            frame: a streaming DataFrame, for an engine on Spark.
            time: the column that says when: a timestamp, a date or an integer.
            lateness: how far behind its newest tuple one may be and still count; what the settings say if not given.
            malformed: a column that is not NULL for records that could not be decoded and says what they were. They are
                set aside and counted, and the column is none of the stream's.
            schema: the columns of a stream whose tuples are pushed, for an engine without Spark.
            source: what an engine without Spark reads.

        Raises:
            InputError: it is no streaming DataFrame.
            SpecError: the engine can't read such a stream.
            SchemaError: there is no such time column, or it is no time.
            StateError: there is a stream of this name.
        """
        return self._readers.register(name, StreamInput(frame, schema, source, malformed), time, lateness)

    def push(self, stream: str, data: object, *, position: Position | None = None) -> None:
        """Give a stream more tuples; returns when the rows they lead to are on their way to the sinks.

        Args:
            stream: a stream that was registered with a schema.
            data: a pyarrow Table or RecordBatch, a pandas, Polars or DuckDB frame, or rows as dicts.
            position: where the caller goes on after these tuples, any JSON value. The checkpoint stores it together
                with them, and `position` returns it. Default: the number of tuples pushed so far.

        Raises:
            InputError: the data does not fit the stream, or there is no such stream; nothing was taken.
            CheckpointError: the tuples can't be stored, for example because the disk is full. The engine has ended; one
                on the same checkpoint goes on from `position`.
            StateError: the engine does not run, or has failed.
        """
        self.push_all({stream: data}, None if position is None else {stream: position})

    def push_all(self, data: Mapping[str, object], positions: Mapping[str, Position] | None = None) -> None:
        """Give several streams more tuples in one batch; see `push`."""
        self._refuse_waiting("push")
        self._readers.push(data, positions or {})

    def advance(self, time: object, stream: str | None = None) -> None:
        """Declare that no tuple before `time` follows, so that an idle stream does not keep the others' tuples.

        Args:
            time: a value of the time column's type.
            stream: a stream that was registered with a schema; without it, all of them.

        Raises:
            InputError: it is no time of the stream.
            StateError: the engine does not run.
        """
        self._refuse_waiting("advance")
        self._readers.advance(time, stream)

    def position(self, stream: str) -> Position | None:
        """Where a stream goes on according to the checkpoint: after a restart, push what comes after it.

        Raises:
            SpecError: there is no such stream.
        """
        return self._loop.positions.get(self._readers.known(stream).name)

    def _refuse_waiting(self, call: str) -> None:
        if self._thread is None:
            raise StateError(f"{call}: the engine does not run yet; call start(), or use it as `with engine:`")
        if not self._elsewhere:
            raise StateError(f"{call} waits for a batch and can't be called from within one: use another thread")

    def streams(self) -> list[StreamInfo]:
        """The registered streams."""
        handed = self._inbox.handed
        return [figures.info(handed.get(name)) for name, figures in tuple(self._catalog.streams.items())]

    def unavailable(self, name: str, error: str, retry_at: float) -> None:
        """Say of a stream of the checkpoint why it is not registered yet, and when (Unix time) that is tried again."""
        self._readers.unavailable(name, error, retry_at)

    # Running ------------------------------------------------------------------------------------------------------

    def start(self) -> Engine:
        """Begin to read the streams.

        What a crash left unfinished is computed first. If that takes longer than some seconds, this returns, and the
        streams are read once it is done.

        Raises:
            StateError: it was started before.
            SetupError: Spark can't read a stream.
        """
        with self._lock:
            if self._thread is not None:
                raise StateError(
                    "the engine was started before; make a new one with the same checkpoint to start again"
                )
            self._started_at = time.time()
            self._thread = threading.Thread(target=self._run, daemon=True, name="adhoc batches")
            self._thread.start()
        # The streams are known to the core before their first tuples come.
        known = self._inbox.ask(lambda: None)
        if not wait_for([known], _START_PATIENCE).done:
            self._starting = threading.Thread(target=self._begin_later, args=(known,), daemon=True, name="adhoc start")
            self._starting.start()
            return self
        try:
            known.result()
            self._readers.begin()
        except StreamJoinError:
            self.stop()
            raise
        return self

    def _begin_later(self, known: Future[None]) -> None:
        """Read the streams once they are known; who started the engine has gone on."""
        try:
            known.result()
            self._readers.begin()
        except StreamJoinError as error:
            if not self._inbox.closed:
                self._fail(error)
                self._inbox.close(error)

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:
            failure = error if isinstance(error, StreamJoinError) else StateError(f"{type(error).__name__}: {error}")
            self._fail(failure)
            self._inbox.close(error)
        finally:
            self._ended.set()

    def _fail(self, error: StreamJoinError) -> None:
        with self._lock:
            self._error = self._error or error
        self._ended.set()

    def stop(self) -> None:
        """End: the running batch finishes. Nothing is lost: a new engine on the checkpoint goes on."""
        self._readers.stop()
        self._inbox.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._starting is not None:
            # A source may not answer; what begins after the stop below ends at once.
            self._starting.join(STOP_PATIENCE)
            # Some may have begun meanwhile.
            self._readers.stop()
        self._catalog.close()
        self._journal.close()
        self._notices.close()
        self._ended.set()

    def __enter__(self) -> Engine:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def error(self) -> StreamJoinError | None:
        """Why the engine failed. A stream that fails is tried again and told by `streams()`; the others go on."""
        return self._error

    @property
    def running(self) -> bool:
        """Whether batches are run."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> bool:
        """Return True when the engine has stopped, False after `timeout` seconds.

        Raises:
            StreamJoinError: the engine failed.
        """
        ended = interrupts.wait_for(self._ended, timeout)
        if self.error is not None:
            raise self.error
        return ended

    def process_all_available(self) -> None:
        """Return when everything that is in the sources now has come out of the sinks. For tests.

        Raises:
            StateError: a stream fails.
        """
        while self.running and not self._readers.begun.wait(0.1):
            # The start is still busy with what a crash left.
            pass
        self._readers.process_all_available()
        self._between_batches(self._loop.flush)
        self._catalog.deliveries.drain()

    # Queries ------------------------------------------------------------------------------------------------------

    def create(
        self,
        sql: str,
        name: str | None = None,
        sink: Sink | Callable[[str], Sink] | None = None,
        wait: bool = True,
        timeout: float = 30.0,
        *,
        parameters: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
        allow_scan: bool = False,
        owner: str | None = None,
        quota: int | None = None,
    ) -> QueryHandle:
        """Begin a query. It sees the tuples of all batches from the next boundary on.

        Args:
            sql: its text; see docs/adhoc-sql.md.
            name: its name; q1, q2, ... when not given.
            sink: where its rows go, or a function that gives this for the query's name; the newest 1000 are kept in
                memory when not given.
            wait: return when it is in force. Before the start nothing is waited for.
            timeout: how long to wait, in seconds.
            parameters: a value for each `:name` of the text, which is stored with them; a list for `IN :names`.
            budget: what it may take of one batch; the engine's if not given.
            allow_scan: create it also if a join without key or band has to compare more pairs per second than
                `Settings(scan_pairs=...)`.
            owner: who asks for it; it is stored with the query, and its record has it.
            quota: how many queries its owner may have; any number if not given.

        Raises:
            QueryError: the text does not parse or does not fit the streams; it says where.
            SpecError: the name is taken, there are too many queries, this one would compare too many pairs, or a
                parameter is not in the text.
            StateError: it is not in force in time (it will be, unless dropped), or the engine has stopped.
            BackPressureError: 1,000 changes wait for the engine already; nothing was created.
        """
        with self._lock:
            taken = self._names_to_come()
            chosen = name if name is not None else next(n for i in self._names if (n := f"q{i}") not in taken)
            check_name(Create(chosen, sql), taken)
            query = parse(sql, self._readers.streams, chosen, parameters)
        if not allow_scan:
            refuse_scan(query, self._catalog.streams, self.settings.scan_pairs)
        if sink is None:
            sink = MemorySink()
        elif callable(sink):
            sink = sink(chosen)
        # On this thread and without the lock: a sink that takes long to open holds up its creator alone.
        writer = self._catalog.open_sink(query, sink)
        budget = self.budget if budget is None else budget
        request = EngineChange("create", chosen, query, sink, writer, budget=budget, owner=owner)
        try:
            with self._lock:
                names = self._names_to_come()
                check_name(Create(chosen, sql), names)
                if self._most_queries is not None and len(names) >= self._most_queries:
                    raise SpecError(f"there are {len(names)} queries, which is the limit; drop one first")
                if quota is not None:
                    self._check_quota(owner, quota)
                self._inbox.submit(request, bounded=self.running)
        except StreamJoinError:
            if request.writer is not None:
                request.writer.close()
            raise
        handle = QueryHandle(self, chosen, request.done)
        if wait and self._elsewhere:
            handle.wait(timeout)
        return handle

    def _check_quota(self, owner: str | None, quota: int) -> None:
        owned = sum(info.owner == owner for info in self.queries())
        if owned >= quota:
            raise SpecError(f"{owner} has {owned} queries, which is its quota; drop one first")

    def _names_to_come(self) -> set[str]:
        """Of the queries there are once the waiting changes are in force."""
        return names_after(self._catalog.entries, self._inbox.waiting)

    def _pending(self) -> dict[str, EngineChange]:
        return {request.name: request for request in self._inbox.waiting if request.action == "create"}

    def drop(self, name: str, wait: bool = True, timeout: float = 30.0) -> None:
        """End a query: it sees no tuple from the next boundary on.

        A batch that takes longer than some seconds is interrupted, and computed again without the query. Before the
        start, a batch that a crash left unfinished is computed without it.

        Raises:
            SpecError: there is no such query.
        """
        self._ask_for("drop", name, wait, timeout)

    def pause(self, name: str, wait: bool = True, timeout: float = 30.0) -> None:
        """Give no rows from the next boundary on; tuples of the pause can still be joined by later ones."""
        self._ask_for("pause", name, wait, timeout)

    def resume(self, name: str, wait: bool = True, timeout: float = 30.0) -> None:
        """End a pause, or try again after a failure; results whose last tuple came meanwhile are not made up for."""
        self._ask_for("resume", name, wait, timeout)

    def _ask_for(self, action: Action, name: str, wait: bool, timeout: float) -> None:
        request = EngineChange(action, name)
        self._inbox.submit(request)
        if wait and self._elsewhere:
            if action != "resume" and not _is_done(request.done, min(timeout, INTERRUPT_AFTER)):
                # The batch may never end because of this query.
                self._loop.interrupt()
            in_force(request.done, timeout, f"the {action} of {name!r} is not in force")

    def queries(self) -> list[QueryInfo]:
        """All queries that are there or about to be."""
        infos = [self._info(entry) for entry in tuple(self._catalog.entries.values())]
        known = {info.name for info in infos}
        return infos + [pending_info(r) for name, r in self._pending().items() if name not in known]

    def query(self, name: str) -> QueryInfo:
        """A query, also one that was dropped in this run.

        Raises:
            SpecError: there is no such query.
        """
        entry = self._catalog.entries.get(name)
        if entry is not None:
            return self._info(entry)
        pending = self._pending().get(name)
        if pending is not None:
            return pending_info(pending)
        if name in self._catalog.dropped:
            return self._catalog.dropped[name].info(self._catalog.streams)
        raise no_such_query(name, self._catalog.entries)

    def _info(self, entry: RunningQuery) -> QueryInfo:
        info = entry.info(self._catalog.streams)
        if entry.query.grouping is None:
            return info
        snapshot = self._catalog.core.snapshot()
        live = snapshot.registry.queries.get(entry.name)
        return info if live is None else replace(info, groups=open_groups_of(live, snapshot))

    def open_groups(self, name: str, limit: int = 100) -> pa.Table:
        """The rows that the open groups of a query would give if no row of theirs followed, the oldest window first.

        Raises:
            SpecError: there is no such query.
        """
        snapshot = self._catalog.core.snapshot()
        live = snapshot.registry.queries.get(name)
        if live is None:
            return self.newest(name, 1).table.slice(0, 0)
        return rows_so_far(live, snapshot, limit)

    def degraded(self) -> dict[str, str]:
        """Why queries are degraded, by name."""
        entries = tuple(self._catalog.entries.values())
        return {entry.name: why for entry in entries if (why := entry.trouble(self._catalog.streams)) is not None}

    def rows(self, name: str, limit: int = 100) -> pa.Table:
        """The newest rows of a query, oldest first.

        Raises:
            SpecError: there is no such query.
        """
        return self.newest(name, limit).table

    def newest(self, name: str, limit: int = 100, after: int | None = None) -> Newest:
        """The newest rows of a query with their number, taken together; `after` leaves out those up to this number.

        Raises:
            SpecError: there is no such query.
        """
        entry = self._catalog.entries.get(name) or self._catalog.dropped.get(name)
        if entry is not None:
            return entry.newest.after(after or 0, limit)
        if name in self._pending():
            return Newest(0, self._pending()[name].query.schema.empty_table())  # type: ignore[union-attr]
        raise no_such_query(name, self._catalog.entries)

    def page(self, name: str, after: str | int | None = 0, limit: int = 1000) -> RowsPage:
        """The rows of a query that come after a cursor, which is `next` of the page before, or after a row number.

        With None they are the newest. A page has fewer rows than `limit` where they are large. `missed` counts rows
        that are no longer kept (`Settings(rows_bytes)`). A query that was dropped can still be read to its end.

        Raises:
            SpecError: there is no such query, or it is no cursor of it.
            CursorGoneError: it is one of a query of this name that was dropped.
        """
        found = self._catalog.entries.get(name), self._catalog.dropped.get(name)
        entries = [entry for entry in found if entry is not None]
        if entries:
            return read_page(name, entries, after, limit)
        if name in self._pending():
            schema = self._pending()[name].query.schema  # type: ignore[union-attr]
            return RowsPage(schema.empty_table(), "0", 0, 0, 0, 0, None, "pending")
        raise no_such_query(name, self._catalog.entries)

    def iterate(self, name: str, timeout: float | None = None) -> ResultIterator:
        """The rows of a query as they come, a table at a time, from the oldest that are kept.

        It ends when the query is dropped, the engine stops, or nothing came for `timeout` seconds. A reader that is
        too slow misses rows that are no longer kept (`MemorySink(limit)`); `skipped` counts them.

        Raises:
            SpecError: there is no such query.
        """
        entry = self._catalog.entries.get(name) or self._catalog.dropped.get(name)
        if entry is None:
            raise no_such_query(name, self._catalog.entries)
        return ResultIterator(entry.newest, timeout)

    def attach(self, name: str, sink: Sink) -> None:
        """Give a query whose sink a restart could not bring back, such as a function, another one.

        Raises:
            SpecError: there is no such query, or its sink came back.
        """
        self._between_batches(lambda: self._catalog.attach(name, sink))

    def late(self, stream: str, limit: int | None = None) -> pa.Table:
        """The tuples of a stream that were late or had no usable time: all since the beginning, or the newest."""
        known = self._readers.known(stream)
        rows = self._journal.aside("late", stream, limit)
        return known.schema.empty_table() if rows is None else rows

    def malformed(self, stream: str, limit: int | None = None) -> pa.Table:
        """The records of a stream that could not be decoded, likewise; without columns if there are none."""
        records = self._journal.aside("malformed", self._readers.known(stream).name, limit)
        return pa.table({}) if records is None else records

    # Looking ------------------------------------------------------------------------------------------------------

    def changelog(self, since: int = 0) -> list[ChangeRecord]:
        """The records with a serial above `since`, oldest first; of the newest 10,000 that are kept."""
        return [record for record in self._catalog.changelog if record.serial > since]

    def activity(self) -> RunningBatch | None:
        """The batch that runs now, since when and where it is; None between two batches. It never waits."""
        return self._loop.activity() if self.running else None

    def explain(self, timeout: float | None = None) -> Explanation:
        """The plan in force with its figures and the last decisions, as soon as no batch runs.

        Raises:
            StateError: a batch ran for longer than `timeout` seconds.
        """
        explanation: Explanation = self._between_batches(self._loop.explain, timeout)
        return explanation

    def preview(
        self, sql: str, timeout: float | None = None, *, parameters: Mapping[str, Any] | None = None
    ) -> Preview:
        """What creating a query would do; nothing is created.

        Raises:
            QueryError: the text does not parse or does not fit the streams.
            StateError: a batch ran for longer than `timeout` seconds.
        """
        with self._lock:
            query = parse(sql, self._readers.streams, parameters=parameters)
        estimate: Preview = self._between_batches(lambda: preview(query, self._loop.core.snapshot()), timeout)
        streams, limit = self._catalog.streams, self.settings.scan_pairs
        return replace(
            _with_rows(estimate, query, streams),
            warning=scan_warning(query, streams, limit),
            needs_allow_scan=pairs_scanned(query, streams) > limit,
        )

    @property
    def _elsewhere(self) -> bool:
        """Whether the engine's thread runs and another one calls: a sink's function must not wait for itself."""
        return self._thread is not None and self._thread is not threading.current_thread()

    def _between_batches(self, question: Callable[[], Any], timeout: float | None = None) -> Any:
        if not self.running or not self._elsewhere:
            return question()
        answer = self._inbox.ask(question)
        # What is about to be answered can't be cancelled any more, and comes at once.
        if not wait_for([answer], timeout).done and answer.cancel():
            batch = self.activity()
            raise StateError(
                f"it is answered between two batches, and none ended within {timeout:g} seconds"
                + (f": {batch}" if batch is not None else "")
            )
        return answer.result()

    def metrics(self) -> EngineMetrics:
        """Sums since the checkpoint was made, and figures of the last batch."""
        return self._loop.metrics(self.running, self._started_at)

    def on_batch(self, callback: Callable[[BatchEvent], object]) -> Callable[[], None]:
        """Call back after each batch, on a thread of its own; returns what ends that."""
        return self._notices.add(callback)

    def on_state(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back when a query may have become `degraded`, or is not any more, likewise; `queries()` has the states.

        What changes together with a batch is told by `on_batch`.
        """
        return self._notices.add_state(callback)


def _is_done(change: Future[None], seconds: float) -> bool:
    return bool(wait_for([change], seconds).done)


def is_scan(query: Query, step: JoinStep) -> bool:
    """Whether no index serves a step: it has no key, no band and no interval."""
    if step.summary is not None:
        return not step.equalities and not step.by_key

    def type_of(column: Column) -> pa.DataType:
        return query.schemas[column.qualifier].field(column.name).type

    return not step.terms and fit_interval(step.others, step.right, type_of) is None


def expected_pairs(query: Query, step: JoinStep, streams: Mapping[str, RunningStream]) -> float:
    """The pairs per second that a step of a query compares; before the engine runs nothing is known of its streams."""
    if any(query.source(alias).stream.name not in streams for alias in (step.right, *step.related)):
        return 0.0
    right = streams[query.source(step.right).stream.name]
    return max(
        _within(right, left, step) + _within(left, right, step)
        for left in (streams[query.source(alias).stream.name] for alias in step.related)
    )


def _within(new: RunningStream, stored: RunningStream, step: JoinStep) -> float:
    window = step.window
    held = float(window.n) if isinstance(window, CountWindow) else stored.density * window.length
    # Tuples of one moment say nothing of how many come in a window: not more than there were so far.
    held = min(held, float(stored.rows))
    return new.rate.value * held


def scan_warning(query: Query, streams: Mapping[str, RunningStream], limit: int) -> str | None:
    """What to say about the joins of a query that no index serves; None if there are none."""
    scans = {
        step.right: expected_pairs(one, step, streams)
        for one in query.branches
        for step in one.steps
        if is_scan(one, step)
    }
    if not scans:
        return None
    alias, pairs = max(scans.items(), key=lambda item: item[1])
    allowed = f"; above {limit:,} it needs allow_scan" if pairs > limit else ""
    return (
        f"the join with {alias!r} has no key and no band, so every pair within the window is compared: about "
        f"{pairs:,.0f} pairs per second at the current rates{allowed}"
    )


def pairs_scanned(query: Query, streams: Mapping[str, RunningStream]) -> float:
    """The most pairs per second that a join of a query without an index is expected to compare."""
    steps = ((one, step) for one in query.branches for step in one.steps if is_scan(one, step))
    return max((expected_pairs(one, step, streams) for one, step in steps), default=0.0)


def refuse_scan(query: Query, streams: Mapping[str, RunningStream], limit: int) -> None:
    """Refuse a query that is expected to compare too many pairs.

    Raises:
        SpecError: it is.
    """
    if pairs_scanned(query, streams) > limit:
        raise SpecError(
            f"{scan_warning(query, streams, limit)}. Add an equality or a band, shorten the window, or create it with "
            "allow_scan=True"
        )


_NAME = "\x01this query"
_SHOWN = 5
"""Rows of a preview."""
"""No query has this name."""


def preview(query: Query, snapshot: Snapshot) -> Preview:
    """The preview of a query against the queries there are; nothing changes.

    A join counts once for each stream whose new tuples drive it.
    """
    query = replace(query, name=_NAME)
    known, rule = snapshot.registry.paths, partner_rule(query)
    parts = [part for branch in query.branches for part in branch.parts if rule is None]
    paths = {**known, **{part.name: Paths(part) for part in parts}}
    measured = snapshot.optimizer.measured(snapshot.registry, snapshot.buckets)
    optimizer = measured.after_changes(paths, snapshot.batch + 1)
    active = [entry.paths for entry in snapshot.registry.running.values() if not entry.paused]
    steps = shared_steps([*active, *(paths[part.name] for part in parts)], optimizer.plan.choices)
    takers = {key: {query_name(part) for part in parts} for key, parts in steps.items()}
    own = [key for key, queries in takers.items() if _NAME in queries]
    others = [takers[key] - {_NAME} for key in own]
    joined = [sharers for key, sharers in zip(own, others, strict=True) if key.steps]
    shared, apart = _costs(optimizer, paths)
    shared_before, apart_before = _costs(measured, known)
    feeds = snapshot.registry.feeds.values() if rule is not None else ()
    grouped = (feed.members for feed in feeds if feed.partners is not None and feed.join == join_key(query))
    return Preview(
        columns_of(query.schema),
        tuple(query.streams),
        tuple(sorted(set().union(*others, *grouped))),
        sum(not sharers for sharers in joined),
        sum(bool(sharers) for sharers in joined),
        shared - shared_before,
        apart - apart_before,
        "\n".join(
            [
                *(_line(key, found) for key, found in zip(own, others, strict=True)),
                *_window_lines(query),
                *(f"└─ groups {told}" for told in [way_of_groups(query)] if told),
            ]
        ),
    )


def _window_lines(query: Query) -> Iterator[str]:
    """What each window join of a query costs."""
    for one, step in ((branch, step) for branch in query.branches for step in branch.kind_steps):
        if step.summary is not None:
            times = one.sources[0].stream.time, one.source(step.right).stream.time
            plan = bound(step.summary, step.right, step.conditions, one.schemas, times)
            how = "looks at every match" if is_listed(plan) else "the ends of windows decide, however many match"
            yield f"└─ window join with {one.source(step.right).stream.name}: {how}"


def _with_rows(estimate: Preview, query: Query, streams: Mapping[str, RunningStream]) -> Preview:
    """With what the newest tuples give, on the caller's thread: the engine's has other work."""
    newest = {name: streams[name].newest_tuples.newest(PREVIEWED) for name in estimate.streams if name in streams}
    tuples = {name: table.num_rows for name, table in newest.items()}
    if set(newest) != set(estimate.streams) or not all(tuples.values()):
        return estimate
    rows, error = sample(query, newest)
    if error is not None:
        return replace(estimate, tuples=tuples)
    shown = rows.slice(max(0, rows.num_rows - _SHOWN))
    values = tuple(tuple(row) for row in json_values.rows(shown))
    return replace(estimate, rows=values, rows_found=rows.num_rows, tuples=tuples)


def _costs(optimizer: Optimizer, paths: Mapping[str, Paths]) -> tuple[float, float]:
    facts = Facts(paths, optimizer.statistics, optimizer.settings)
    return plan_cost(optimizer.plan, facts), cost_apart(optimizer.plan, facts)


def _line(key: PathKey, others: set[str]) -> str:
    sharing = f"shared with {len(others)} queries" if others else "new"
    if not key.steps:
        return f"new tuples of {key.driver}, selected: {sharing}"
    terms = " and ".join(readable_terms(key.steps[-1].condition, key.streams))
    step = "   " * (len(key.steps) - 1) + f"└─ {key.steps[-1].stream} by {terms}"
    return (f"new tuples of {key.driver}\n" if len(key.steps) == 1 else "") + f"{step}: {sharing}"
