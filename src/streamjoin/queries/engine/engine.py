"""`Engine`: many ad-hoc queries over shared streams, created and dropped while the streams run.

Any thread may call any method. One thread of the engine runs the batches (`loop`); what others ask for waits in
the `inbox` for the next boundary between two batches. An executor reads the streams and computes rows: in this process,
or on Spark (`executor`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from streamjoin.adhoc.core.budgets import Budget
from streamjoin.adhoc.core.changes import Create, check_name, names_after, no_such_query
from streamjoin.adhoc.core.contract import Action
from streamjoin.adhoc.core.explain import Explanation
from streamjoin.adhoc.core.settings import Lateness, Settings
from streamjoin.adhoc.engine.assembly import (
    check_arguments,
    engine_parts,
    executor_kind,
    known_names,
    open_executor,
)
from streamjoin.adhoc.engine.catalog import Catalog
from streamjoin.adhoc.engine.executor import StreamInput
from streamjoin.adhoc.engine.handle import QueryHandle, ResultIterator, in_force, pending_info
from streamjoin.adhoc.engine.inbox import Inbox
from streamjoin.adhoc.engine.info import (
    BatchEvent,
    ChangeRecord,
    EngineMetrics,
    Preview,
    QueryInfo,
    RunningBatch,
    StreamInfo,
)
from streamjoin.adhoc.engine.journal import Position
from streamjoin.adhoc.engine.notices import Notices
from streamjoin.adhoc.engine.preview import preview
from streamjoin.adhoc.engine.recovery import recover
from streamjoin.adhoc.engine.scans import pairs_scanned, refuse_scan, scan_warning
from streamjoin.adhoc.engine.stored import EngineChange
from streamjoin.adhoc.engine.stream_readers import StreamReaders
from streamjoin.adhoc.language.plan import Stream
from streamjoin.adhoc.language.sql import parse
from streamjoin.adhoc.sinks.base import MemorySink, Newest, Sink
from streamjoin.adhoc.sinks.specs import NamedSinks
from streamjoin.model.errors import SpecError, StateError, StreamJoinError
from streamjoin.storage.settings import StorageSettings, use

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from streamjoin.adhoc.sources.base import TupleSource


INTERRUPT_AFTER: Final = 5.0
"""Seconds that a drop or a pause waits for a batch before it interrupts it."""
DEFAULT_BUDGET: Final = Budget(rows=20_000_000, bytes=4 << 30)
"""What a query may take of one batch if nobody says otherwise."""


class Engine:
    """Runs ad-hoc queries over shared streams; queries come and go while the streams run.

    Args:
        spark: the Spark session that reads the streams; without one, tuples are pushed or read in this process.
        checkpoint: a directory for everything that a restart goes on from; without one nothing survives the process.
            An engine on Spark needs one.
        settings: how queries share, and when plans are looked at again.
        trigger: how often each stream is read, such as "1 second"; as fast as possible when not given.
        partitions: how many Spark tasks share the joining of a batch, or "auto"; when not given this process does it.
        sinks: gives the sink of a name for a query, where the checkpoint has only the name (`NamedSink`).
        budget: what a query may take of one batch, unless its `create` says otherwise; one that takes more is paused.
        quarantine: queries of the checkpoint that are paused before anything is computed, such as one that ends the
            process. Queries that ended two starts are found and paused without being named.
        most_queries: how many queries there may be; any number if not given.
        executor: "distributed" has Spark's tasks store, join and write, in `partitions` cells that hold a share of the
            tuples each; with "driver" all tuples and rows pass through this process. If not given, it is the one that
            the checkpoint was begun with, and for a new one "driver" with a local master, "distributed" on a cluster.
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
        self.settings = settings or Settings()
        self.checkpoint = None if checkpoint is None else str(checkpoint)
        check_arguments(spark, self.checkpoint, self.settings, partitions, executor)
        self._inbox = Inbox()
        self._notices = Notices()
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._error: StreamJoinError | None = None
        kind = executor_kind(spark, self.checkpoint, self.settings, executor)
        self._journal, core, loop = engine_parts(kind, self.checkpoint, self.settings)
        self._journal.aside_bytes = self.settings.aside_bytes
        try:
            recovery = recover(self._journal, self.settings)
            self._executor = open_executor(spark, self._journal, trigger, partitions, core)
            self._catalog = Catalog(core, self._journal, self.settings, spark, sinks)
            self._loop = loop(self._catalog, self._journal, self._inbox, self._notices.publish, self._executor.rows)
            self._loop.restore(recovery, known_names(quarantine, recovery))
        except BaseException:
            self._journal.close()
            raise
        self._readers = StreamReaders(
            self.settings, self._journal, self._catalog, self._loop, self._inbox, self._executor, self._fail
        )
        self._names = itertools.count(1)
        self._thread: threading.Thread | None = None
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
        self._inbox.ask(lambda: None).result()
        try:
            self._readers.begin()
        except StreamJoinError:
            self.stop()
            raise
        return self

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
        """End: the batch that runs is let to its end. Nothing is lost: a new engine on the checkpoint goes on."""
        self._readers.stop()
        self._inbox.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
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
        ended = self._ended.wait(timeout)
        if self.error is not None:
            raise self.error
        return ended

    def process_all_available(self) -> None:
        """Return when everything that is in the sources now has come out of the sinks. For tests.

        Raises:
            StateError: a stream fails.
        """
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
        budget: Budget | None = None,
        allow_scan: bool = False,
    ) -> QueryHandle:
        """Begin a query. It sees the tuples of all batches from the next boundary on.

        Args:
            sql: its text; see docs/adhoc-sql.md.
            name: its name; q1, q2, ... when not given.
            sink: where its rows go, or a function that gives this for the query's name; the newest 1000 are kept in
                memory when not given.
            wait: return when it is in force. Before the start nothing is waited for.
            timeout: how long to wait, in seconds.
            budget: what it may take of one batch; the engine's if not given.
            allow_scan: create it also if a join without key or band has to compare more pairs per second than
                `Settings(scan_pairs=...)`.

        Raises:
            QueryError: the text does not parse or does not fit the streams; it says where.
            SpecError: the name is taken, there are too many queries, or this one would compare too many pairs.
            StateError: it is not in force in time (it will be, unless dropped), or the engine has stopped.
        """
        with self._lock:
            taken = self._names_to_come()
            chosen = name if name is not None else next(n for i in self._names if (n := f"q{i}") not in taken)
            check_name(Create(chosen, sql), taken)
            query = parse(sql, self._readers.streams, chosen)
        if not allow_scan:
            refuse_scan(query, self._catalog.streams, self.settings.scan_pairs)
        if sink is None:
            sink = MemorySink()
        elif callable(sink):
            sink = sink(chosen)
        # On this thread and without the lock: a sink that takes long to open holds up its creator alone.
        writer = self._catalog.open_sink(query, sink)
        request = EngineChange("create", chosen, query, sink, writer, budget=self.budget if budget is None else budget)
        try:
            with self._lock:
                names = self._names_to_come()
                check_name(Create(chosen, sql), names)
                if self._most_queries is not None and len(names) >= self._most_queries:
                    raise SpecError(f"there are {len(names)} queries, which is the limit; drop one first")
                self._inbox.submit(request)
        except StreamJoinError:
            if request.writer is not None:
                request.writer.close()
            raise
        handle = QueryHandle(self, chosen, request.done)
        if wait and self._elsewhere:
            handle.wait(timeout)
        return handle

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
        infos = [entry.info() for entry in tuple(self._catalog.entries.values())]
        known = {info.name for info in infos}
        return infos + [pending_info(r) for name, r in self._pending().items() if name not in known]

    def query(self, name: str) -> QueryInfo:
        """A query, also one that was dropped in this run.

        Raises:
            SpecError: there is no such query.
        """
        entry = self._catalog.entries.get(name)
        if entry is not None:
            return entry.info()
        pending = self._pending().get(name)
        if pending is not None:
            return pending_info(pending)
        if name in self._catalog.dropped:
            return self._catalog.dropped[name].info()
        raise no_such_query(name, self._catalog.entries)

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

    def preview(self, sql: str, timeout: float | None = None) -> Preview:
        """What creating a query would do; nothing is created.

        Raises:
            QueryError: the text does not parse or does not fit the streams.
            StateError: a batch ran for longer than `timeout` seconds.
        """
        with self._lock:
            query = parse(sql, self._readers.streams)
        estimate: Preview = self._between_batches(lambda: preview(query, self._loop.core.snapshot()), timeout)
        streams, limit = self._catalog.streams, self.settings.scan_pairs
        return replace(
            estimate,
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


def _is_done(change: Future[None], seconds: float) -> bool:
    return bool(wait_for([change], seconds).done)
