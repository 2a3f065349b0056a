"""The executor whose tasks read, store, join and write: the driver sees names of files, counts and times."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from streamjoin.adhoc.core.arrivals import Arrived
from streamjoin.adhoc.core.budgets import exceeded_together
from streamjoin.adhoc.core.changes import LiveQuery
from streamjoin.adhoc.core.contract import Core
from streamjoin.adhoc.core.explain import TaskFigures
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.engine.executor import FeedKeeper, StreamInput
from streamjoin.adhoc.engine.figures import RunningQuery
from streamjoin.adhoc.engine.inbox import Inbox
from streamjoin.adhoc.executors.distributed.cell import CellAssignment, CellResult, run_cell
from streamjoin.adhoc.executors.distributed.driver_core import DriverCore
from streamjoin.adhoc.executors.distributed.feed import PartFeed
from streamjoin.adhoc.executors.distributed.jobs import run_cells
from streamjoin.adhoc.executors.distributed.journal import FiledJournal
from streamjoin.adhoc.executors.distributed.outputs import CellsWaiting, OutputTarget, WrittenRows, remove
from streamjoin.adhoc.executors.distributed.placement import CellGroups
from streamjoin.adhoc.executors.distributed.pool import Flush, RowPool, write_flushes
from streamjoin.adhoc.executors.distributed.sampling import add_key_counts
from streamjoin.adhoc.executors.distributed.sending import SentState
from streamjoin.adhoc.executors.spark import SparkExecutor
from streamjoin.adhoc.language.plan import Stream, query_name
from streamjoin.adhoc.sinks.base import MemorySink, Target
from streamjoin.adhoc.sinks.files import ParquetSink, file_prefix
from streamjoin.adhoc.sinks.spark import KafkaSink, TableSink
from streamjoin.formats.delta import DeltaSink
from streamjoin.formats.iceberg import IcebergSink
from streamjoin.model.errors import InputError, InterruptedBatchError, SpecError, StreamJoinError
from streamjoin.storage.places import place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES: Final = 3
_TABLE_PAUSE: Final = 60.0
"""Seconds until a table that could not be reached is tried again for tasks."""
STEADY: Final = 3
"""Batches in a row before which Spark had another number of cores: then the number of cells follows."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowCount:
    """How many rows a query gained; they are in files."""

    num_rows: int


@dataclass(frozen=True)
class BatchParts:
    """What the cells of a batch gave, and the queries that failed."""

    parts: Sequence[CellResult] = ()
    failures: Mapping[str, InputError] = field(default_factory=dict)

    def __add__(self, other: BatchParts) -> BatchParts:
        return BatchParts([*self.parts, *other.parts], {**self.failures, **other.failures})


class CellRows:
    """Computes the rows of a batch in one task for each cell."""

    stores_first = True

    def __init__(self, spark: Any, journal: FiledJournal, cells: int | None, settings: Settings) -> None:
        """With this number of cells, or with as many as Spark has cores."""
        self._context = spark.sparkContext
        self._journal = journal
        self._adapts = cells is None
        self.partitions = cells or cluster_cores(self._context)
        self._offered = self.partitions, 0
        """The cores that Spark had before the last batches, if not as many as there are cells; for how many batches."""
        self._settings = settings
        self.pool = RowPool()
        self._pooling = False
        self._targets: dict[str, tuple[Any, OutputTarget, float]] = {}
        """By query: its sink, what tasks do with its rows, and until when that holds."""
        self._sent = SentState(self._broadcast, self.partitions)
        self.entries: Mapping[str, RunningQuery] = {}
        """The running queries, whose sinks say what tasks do with rows."""
        self.tasks: tuple[TaskFigures, ...] = ()
        self.written: tuple[WrittenRows, ...] = ()
        """Where the rows of the last batch are."""
        self._interrupted = threading.Event()
        self._jobs = count()
        self._group = ""
        """The job group of the batch that runs."""

    def decided(self) -> tuple[str, ...]:
        """What was decided about heavy keys and the number of cells."""
        notes, self._sent.placements.notes = self._sent.placements.notes, []
        return tuple(notes)

    def groups(self, stream: str) -> CellGroups | None:
        """How tasks that read a stream group its tuples; not at all if they are placed in several ways."""
        placements = [found for found in self._sent.placements.current.values() if stream in found.routes]
        if len(placements) != 1 or not placements[0].dimensions:
            return None
        return placements[0].groups(stream, self.partitions)

    def _broadcast(self, whole: bytes) -> Any:
        if self._sent.whole is not None:
            self._sent.whole.unpersist()
        return self._context.broadcast(whole)

    def results(self, core: Core, arrived: Arrived) -> tuple[dict[str, Any], dict[str, InputError]]:
        """How many rows each query gained, and what failed; `written` says where the rows are.

        A batch whose rows were listed before a crash is not computed again. A query whose tasks die fails alone.

        Raises:
            InterruptedBatchError: `interrupt` was called.
        """
        return self._counted(_driver_core(core), arrived, lambda: self._computed(_driver_core(core), arrived))

    def one_by_one(
        self, core: Core, arrived: Arrived, note: Callable[[str | None], None]
    ) -> tuple[dict[str, Any], dict[str, InputError]]:
        """As `results`, with a job for each query, which `note` hears of before."""

        def compute() -> BatchParts:
            computed = BatchParts()
            # If it fails without any query too, none is to blame.
            self._run(_driver_core(core), arrived, ())
            for name in _running(core):
                note(name)
                computed += self._isolated(_driver_core(core), arrived, [name])
            note(None)
            return computed

        return self._counted(_driver_core(core), arrived, compute)

    def interrupt(self) -> None:
        """Have the job that computes rows end; from any thread."""
        self._interrupted.set()
        # Also if it is about to be submitted.
        self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)

    def _counted(
        self, core: DriverCore, arrived: Arrived, compute: Callable[[], BatchParts]
    ) -> tuple[dict[str, Any], dict[str, InputError]]:
        """The counts of a batch whose rows are listed, or are computed and then listed."""
        self.tasks, self.written = (), ()
        if not arrived.buckets and not (arrived.logged and core.cells_waiting.cells):
            return {}, {}
        listed = self._journal.outputs(arrived.batch)
        if listed is None:
            computed = compute()
            failures = {name: str(error) for name, error in computed.failures.items()}
            self.written = tuple(_without(part.rows, failures) for part in computed.parts)
            self._journal.write_outputs(arrived.batch, self.written, failures)
        else:
            failures, self.written = self._journal.failures(arrived.batch), listed
        waiting = tuple(cell.waiting for cell in self.written if cell.waiting is not None)
        core.take_cells_waiting(CellsWaiting(arrived.batch, waiting))
        counts: dict[str, int] = {}
        for part in self.written:
            for name, rows in part.counts.items():
                counts[name] = counts.get(name, 0) + rows
        return (
            {name: RowCount(rows) for name, rows in counts.items()},
            {name: InputError(why) for name, why in failures.items()},
        )

    def _computed(self, core: DriverCore, arrived: Arrived) -> BatchParts:
        if self._adapts:
            self.adapt()
        try:
            return self._run(core, arrived, core.queries, self._flushes(self.pool.due(self._settings.file_seconds)))
        except InterruptedBatchError:
            raise
        except Exception as error:
            if self._stopped:
                raise
            # If it fails without any query too, none is to blame.
            self._run(core, arrived, ())
            _log.error("tasks of batch %d fail; looking for the query: %s", arrived.batch, _first_line(error))
            return self._halved(core, arrived, _running(core), error)

    def _halved(self, core: DriverCore, arrived: Arrived, names: Sequence[str], error: Exception) -> BatchParts:
        """The parts of a batch for queries with which tasks fail, without those that are to blame."""
        if len(names) == 1:
            why = InputError(f"the tasks that compute it fail: {_first_line(error)}")
            return BatchParts(failures={names[0]: why})
        middle = len(names) // 2
        computed = self._isolated(core, arrived, names[:middle])
        return computed + self._isolated(core, arrived, names[middle:])

    def _isolated(self, core: DriverCore, arrived: Arrived, names: Sequence[str]) -> BatchParts:
        """The parts of a batch for some of its queries."""
        if not names:
            return BatchParts()
        try:
            return self._run(core, arrived, names)
        except InterruptedBatchError:
            raise
        except Exception as error:
            if self._stopped:
                raise
            return self._halved(core, arrived, names, error)

    def adapt(self) -> None:
        """Have as many cells as Spark has cores, once their number has stayed the same for some batches.

        Cells are caches of the part files, so the new ones begin from these; that is why a moment's change is ignored.
        """
        cores = cluster_cores(self._context)
        seen = self._offered[1] + 1 if cores == self._offered[0] else 1
        self._offered = cores, seen
        if cores != self.partitions and seen >= STEADY:
            self._sent.placements.notes.append(f"{cores} cells instead of {self.partitions}: Spark has {cores} cores")
            self.partitions = cores
            self._sent.placements.resize(cores)

    def _run(
        self, core: DriverCore, arrived: Arrived, active: Collection[str], flushes: Sequence[Flush] = ()
    ) -> BatchParts:
        """Run a job for the queries in `active`; the others are paused in it."""
        state = core.snapshot()
        queries = {
            name: entry if name in active or entry.paused else replace(entry, paused=True)
            for name, entry in state.registry.queries.items()
        }
        self._decide_pooling()
        targets = {name: self.target(name) for name in queries}
        total = sum(state.clocks.counts.values())
        rates = {name: seen / total for name, seen in state.clocks.counts.items()} if total else None
        self._sent.note(core.streams, queries, state.optimizer.plan.choices, targets, rates)
        assignment = CellAssignment(
            self._sent.run,
            arrived.batch,
            self.partitions,
            self._sent.base,
            self._sent.deltas,
            {name: tuple(bucket.batch for bucket in held) for name, held in state.buckets.items()},
            self._journal.bucket_pattern,
            arrived.buckets,  # type: ignore[arg-type]
            self._journal.spool,
            self._journal.waiting,
            tuple(flushes),
            core.measures,
            arrived.clocks.progress,
            core.cells_waiting.of({name: entry.created for name, entry in queries.items()}),
        )
        parts = self._try(assignment.batch, partial(_task, assignment, self._sent.whole))
        core.take_figures([figures for part in parts for figures in part.figures])
        if core.measures:
            samples = {name: sample for part in parts for name, sample in part.samples.items()}
            placements = self._sent.placements.current
            self._sent.placements.note_words({name: sample.words for name, sample in samples.items()})
            core.take_samples(samples, add_key_counts((part.distinct for part in parts), placements))
        core.held_bytes = {}
        for part in parts:
            for what, size in part.state.items():
                core.held_bytes[what] = core.held_bytes.get(what, 0) + size
        self.tasks = tuple(_figures(part) for part in parts)
        return BatchParts(parts, _failures(parts, queries))

    def flush(self, names: Collection[str]) -> list[WrittenRows]:
        """Have tasks write files of the rows that wait in the pool."""
        flushes = self._flushes(names)
        if not flushes:
            return []
        cells = [flushes[cell :: self.partitions] for cell in range(self.partitions)]
        return self._try(-1, partial(_flush, cells))

    def _flushes(self, names: Iterable[str]) -> list[Flush]:
        known = [name for name in names if name in self.entries]
        schemas = {name: self.entries[name].query.schema for name in known}
        return self.pool.flushes(known, {name: self.target(name) for name in known}, schemas)

    def _decide_pooling(self) -> None:
        """Let Parquet sinks share files where there are many; and not for just one more or less."""
        sinks = sum(isinstance(_inner(entry.sink), ParquetSink) for entry in self.entries.values())
        self._pooling = sinks > self.pool.most_files // (2 if self._pooling else 1)

    def _try(self, batch: int, task: Callable[[int], Any]) -> list[Any]:
        """Run the job, again if a process of Spark died in it: nothing of it counts before its files are listed."""
        for attempt in range(_TRIES):
            self._interrupted.clear()
            self._group = f"streamjoin {self._sent.run} {batch} {next(self._jobs)}"
            self._context.setJobGroup(self._group, f"ad-hoc batch {batch}", interruptOnCancel=True)
            try:
                return run_cells(self._context, self.partitions, task)
            except Exception as error:
                if self._interrupted.is_set():
                    raise InterruptedBatchError(f"the tasks of batch {batch} were interrupted") from error
                if attempt == _TRIES - 1 or self._stopped:
                    raise
                _log.warning("batch %d is run again: %s", batch, _first_line(error))
        raise AssertionError("a batch without a try")

    @property
    def _stopped(self) -> bool:
        return bool(self._context._jsc.sc().isStopped())

    def target(self, name: str) -> OutputTarget:
        """Parquet files are written by tasks; of other queries the driver needs all rows, or the newest."""
        sink = _inner(self.entries[name].sink)
        known = self._targets.get(name)
        if known is None or known[0] is not sink or time.monotonic() > known[2]:
            known = self._targets[name] = sink, *self._new_target(name, sink)
        target = known[1]
        return replace(target, pooled=True) if target.directory is not None and self._pools(name) else target

    def _new_target(self, name: str, sink: Any) -> tuple[OutputTarget, float]:
        if isinstance(sink, DeltaSink | IcebergSink):
            return self._table_target(name, sink)
        return self._other_target(name, sink), math.inf

    def _table_target(self, name: str, sink: DeltaSink | IcebergSink) -> tuple[OutputTarget, float]:
        """Tasks write data files; while the table can't be reached, its rows wait as those of any other sink."""
        schema = self.entries[name].query.schema
        try:
            writer = sink.open(Target(name, schema, self._journal.engine))
        except StreamJoinError as error:
            _log.warning("query %r: tasks can't write to its table: %s", name, error)
            return OutputTarget(None, queued=True), time.monotonic() + _TABLE_PAUSE
        return OutputTarget(self._settings.newest_rows, layout=writer.layout), math.inf

    def _other_target(self, name: str, sink: Any) -> OutputTarget:
        if isinstance(sink, MemorySink):
            return OutputTarget(max(sink.limit, self._settings.newest_rows))
        if isinstance(sink, TableSink):
            return OutputTarget(max(sink.limit, self._settings.newest_rows), queued=True)
        if isinstance(sink, KafkaSink):
            return OutputTarget(None, queued=True, filed=True)
        if not isinstance(sink, ParquetSink):
            return OutputTarget(None, queued=True)
        directory = place(sink.path)
        where = str(directory.absolute()) if isinstance(directory, Path) else sink.path
        return OutputTarget(
            self._settings.newest_rows, where, file_prefix(name, self._journal.engine), sink.compression
        )

    def _pools(self, name: str) -> bool:
        """Whether the rows of a query wait for a file; not if too many do because its sink can't be written to."""
        settings = self._settings
        rows, nbytes = self.pool.sizes(name)
        return self._pooling and rows < settings.spool_rows and nbytes < settings.spool_bytes


def cluster_cores(context: Any) -> int:
    """The cores of the executors that there are now."""
    return max(1, int(context.defaultParallelism))


def _inner(sink: Any) -> Any:
    return getattr(sink, "sink", sink)


def _flush(cells: Sequence[Sequence[Flush]], cell: int) -> WrittenRows:
    return write_flushes(cells[cell])


def _task(assignment: CellAssignment, whole: Any, cell: int) -> CellResult:
    return run_cell(assignment, lambda: whole.value, cell)


def _driver_core(core: Core) -> DriverCore:
    if not isinstance(core, DriverCore):
        raise AssertionError("the distributed executor has a core of its own")
    return core


def _running(core: Core) -> list[str]:
    return [name for name, entry in core.queries.items() if not entry.paused]


def _failures(parts: Sequence[CellResult], queries: Mapping[str, LiveQuery]) -> dict[str, InputError]:
    """The queries that failed in some cell, or that took more than their budget in all cells together."""
    failures = {name: error for part in parts for name, error in part.failures.items()}
    for name in {name for part in parts for name in part.usage}:
        query = query_name(name)
        over = exceeded_together(queries[query].budget, [part.usage[name] for part in parts if name in part.usage])
        if over is not None:
            failures[query] = over
    return failures


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _without(rows: WrittenRows, failures: Mapping[str, str]) -> WrittenRows:
    """Without the rows of queries that failed in some cell."""
    if not failures:
        return rows
    remove(hidden for name, (hidden, _) in rows.files.items() if name in failures)
    return replace(
        rows,
        counts={name: count for name, count in rows.counts.items() if name not in failures},
        files={name: file for name, file in rows.files.items() if name not in failures},
        pooled={name: block for name, block in rows.pooled.items() if name not in failures},
        refused={name: why for name, why in rows.refused.items() if name not in failures},
        waiting=None if rows.waiting is None else rows.waiting.without(failures),
    )


def _figures(part: CellResult) -> TaskFigures:
    seconds: dict[str, float] = {}
    for figures in part.figures:
        for what, took in figures.seconds.items():
            seconds[what] = seconds.get(what, 0.0) + took
    rows = sum(part.rows.counts.values())
    return TaskFigures(rows, part.seconds, seconds, part.rebuilt, sum(part.state.values()), part.tuples, part.read)


class DistributedExecutor(SparkExecutor):
    """Reads streams into part files, and computes rows in `partitions` cells; without a number, one per core."""

    kind = FiledJournal.kind

    def __init__(
        self,
        spark: SparkSession,
        journal: FiledJournal,
        trigger: str | None,
        partitions: int | Literal["auto"] | None,
        core: DriverCore,
    ) -> None:
        if partitions == "auto":
            partitions = None
        if partitions is not None and (
            isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1
        ):
            raise SpecError(f"partitions={partitions!r}: it is a whole number from 1 on, or 'auto'")
        self.session: Any = spark
        self.rows: Any = CellRows(spark, journal, partitions, core.settings)
        self._journal = self._filed_journal = journal
        self._trigger, self._core = trigger, core

    def feed(self, stream: Stream, given: StreamInput, inbox: Inbox, keeper: FeedKeeper) -> PartFeed:
        """The Spark query of a stream."""
        checkpoint = self._journal.spark_checkpoint(stream.name)
        return PartFeed(
            stream,
            given.frame,
            inbox,
            checkpoint,
            self._trigger,
            keeper,
            given.malformed,
            journal=self._filed_journal,
            bounds=self._core.time_bounds,
            groups=self.rows.groups,
        )
