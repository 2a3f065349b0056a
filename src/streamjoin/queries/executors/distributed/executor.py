"""The executor whose tasks read, store, join and write: the driver sees names of files, counts and times."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

from streamjoin.model.errors import InputError, InterruptedBatchError, StreamJoinError
from streamjoin.queries.core.arrivals import Arrived
from streamjoin.queries.core.budgets import exceeded_together
from streamjoin.queries.core.changes import LiveQuery
from streamjoin.queries.core.explain import TaskFigures
from streamjoin.queries.core.groups.feeds import overflowed_in
from streamjoin.queries.core.shared import failure_of
from streamjoin.queries.engine.executor import TaskReport
from streamjoin.queries.engine.figures import RunningQuery
from streamjoin.queries.engine.inbox import Inbox, SourceBatch
from streamjoin.queries.engine.journal import Position
from streamjoin.queries.engine.loop import BatchRows, packed_waiting
from streamjoin.queries.executors.distributed.cell import CellAssignment, CellResult, run_cell
from streamjoin.queries.executors.distributed.driver_core import DriverCore
from streamjoin.queries.executors.distributed.jobs import map_partitions, run_cells, task_reason
from streamjoin.queries.executors.distributed.journal import FiledJournal
from streamjoin.queries.executors.distributed.outputs import (
    CellsWaiting,
    Flush,
    OutputTarget,
    RowPool,
    WrittenRows,
    read_groups,
    remove,
    write_flushes,
    write_rows,
)
from streamjoin.queries.executors.distributed.parts import PartWriter, ReadParts, filed_buckets
from streamjoin.queries.executors.distributed.placement import CellGroups
from streamjoin.queries.executors.distributed.sampling import add_key_counts
from streamjoin.queries.executors.distributed.scaling import CellBatch, scaling_for
from streamjoin.queries.executors.distributed.sending import SentState
from streamjoin.queries.executors.spark import HandedIn
from streamjoin.queries.language.plan import Stream, query_name
from streamjoin.queries.sinks.base import Target
from streamjoin.queries.sinks.files import file_prefix, query_metadata
from streamjoin.storage.places import place
from streamjoin.windows.clock import NEVER

WrittenCells = tuple[WrittenRows, ...]
"""Where the rows of a batch are."""
_TRIES: Final = 3
_TABLE_PAUSE: Final = 60.0
"""Seconds until a table that could not be reached is tried again for tasks."""
_DRIVER: Final = 9999
"""Instead of a cell's number, of what the driver writes."""
_NOWHERE: Final = OutputTarget(0)
"""What tasks do with the rows of a query that has none."""
_log = logging.getLogger("streamjoin.adhoc")


@dataclass(frozen=True)
class BatchParts:
    """What the cells of a batch gave, and the queries that failed."""

    parts: Sequence[CellResult] = ()
    failures: Mapping[str, InputError] = field(default_factory=dict)

    def __add__(self, other: BatchParts) -> BatchParts:
        return BatchParts([*self.parts, *other.parts], {**self.failures, **other.failures})


class CellRows:
    """Computes the rows of a batch in one task for each cell; the sinks of `entries` say what tasks do with rows.

    Rows that wait for a file of their own are in the `pool`.
    """

    def __init__(
        self,
        spark: Any,
        journal: FiledJournal,
        cells: int | Literal["auto"] | None,
        core: DriverCore,
        entries: Mapping[str, RunningQuery],
        pool: RowPool,
    ) -> None:
        """With as many cells as `scaling_for` says.

        Raises:
            SpecError: `cells` is nothing that it takes.
        """
        self._context = spark.sparkContext
        self._journal, self._core, self._entries, self._pool = journal, core, entries, pool
        self._settings = core.settings
        self._scaling = scaling_for(cells, cluster_cores(self._context), self._settings.latency_threshold)
        self._last: CellBatch | None = None
        """What the last batch took, where it says how large the load is."""
        self._pooling = False
        self._targets: dict[str, tuple[Any, OutputTarget, float]] = {}
        """By query: its sink, what tasks do with its rows, and until when that holds."""
        self._sent = SentState(self._broadcast, self.partitions)
        self._tasks: tuple[TaskFigures, ...] = ()
        self._interrupted = threading.Event()
        self._jobs = count()
        self._group = ""
        """The job group of the batch that runs."""

    @property
    def partitions(self) -> int:
        """The number of cells."""
        return self._scaling.cells

    def report(self) -> TaskReport:
        """What the cells did, and what was decided about heavy keys and the number of cells."""
        notes, self._sent.placements.notes = self._sent.placements.notes, []
        return TaskReport(self.partitions, self._tasks, tuple(notes))

    def groups(self, stream: str) -> CellGroups | None:
        """How tasks that read a stream group its tuples; not at all if they are placed in several ways."""
        placements = [found for found in self._sent.placements.current.values() if stream in found.routes]
        if len(placements) != 1 or not placements[0].dimensions:
            return None
        return placements[0].groups(stream, self.partitions)

    def time_bounds(self, stream: str, newest: int) -> tuple[int, int]:
        """The times that tuples of a stream may have now, by the newest before."""
        return self._core.time_bounds(stream, newest)

    def _broadcast(self, whole: bytes) -> Any:
        if self._sent.whole is not None:
            self._sent.whole.unpersist()
        return self._context.broadcast(whole)

    def results(self, arrived: Arrived) -> BatchRows[WrittenCells]:
        """How many rows each query gained, where they are, and what failed.

        A batch whose rows were listed before a crash is not computed again. A query whose tasks die fails alone.

        Raises:
            InterruptedBatchError: `interrupt` was called.
        """
        return self._counted(arrived, lambda: self._computed(arrived))

    def one_by_one(self, arrived: Arrived, note: Callable[[str | None], None]) -> BatchRows[WrittenCells]:
        """As `results`, with a job for each query, which `note` hears of before."""

        def compute() -> BatchParts:
            computed = BatchParts()
            # If it fails without any query too, none is to blame.
            self._run(arrived, ())
            for name in self._running():
                note(name)
                computed += self._isolated(arrived, [name])
            note(None)
            return computed

        return self._counted(arrived, compute)

    def interrupt(self) -> None:
        """Have the job that computes rows end; from any thread."""
        self._interrupted.set()
        # Also if it is about to be submitted.
        self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)

    def _counted(self, arrived: Arrived, compute: Callable[[], BatchParts]) -> BatchRows[WrittenCells]:
        """The counts of a batch whose rows are listed, or are computed and then listed."""
        self._tasks = ()
        if not arrived.buckets and not (arrived.logged and self._core.waits):
            return BatchRows({}, {}, ())
        written = self._journal.outputs(arrived.batch)
        if written is None:
            computed = compute()
            failed = dict(computed.failures)
            written = self._grouped(arrived, [part.rows for part in computed.parts], failed)
            failures = {name: str(error) for name, error in failed.items()}
            written = tuple(_without(cell, failures) for cell in written)
            self._journal.write_outputs(arrived.batch, written, failures)
        else:
            failures = self._journal.failures(arrived.batch)
            # What is open after the batch; the rows of groups that are complete are listed.
            self._core.group(arrived, read_groups(written), {name: InputError(why) for name, why in failures.items()})
        waiting = tuple(cell.waiting for cell in written if cell.waiting is not None)
        self._core.take_cells_waiting(CellsWaiting(arrived.batch, waiting))
        counts: dict[str, int] = {}
        overflowed = Counter(overflowed_in(self._core.waiting))
        for one in waiting:
            overflowed.update(one.overflowed)
        for cell in written:
            for name, rows in cell.counts.items():
                counts[name] = counts.get(name, 0) + rows
        failed = {name: InputError(why) for name, why in failures.items()}
        counts = {name: rows for name, rows in counts.items() if name not in failed}
        return BatchRows(counts, failed, written, overflowed)

    def _grouped(
        self, arrived: Arrived, cells: Sequence[WrittenRows], failed: dict[str, InputError]
    ) -> tuple[WrittenRows, ...]:
        """What cells wrote, and the rows of complete groups, written as if by one more cell."""
        rows = self._core.group(arrived, read_groups(cells), failed)
        # A query of which the open groups can't be written down, once rows are out, has none.
        packed_waiting(self._core.waiting, failed)
        targets: dict[str, OutputTarget] = {}
        for name, table in rows.items():
            if table.num_rows and name not in failed:
                try:
                    targets[name] = self.target(name)
                except Exception as error:
                    failed[name] = failure_of(error)
        if not targets:
            return tuple(cells)
        chosen = {name: rows[name] for name in targets}
        return (*cells, write_rows(chosen, targets, arrived.batch, _DRIVER, self._journal.spool, failed))

    def _running(self) -> list[str]:
        return [name for name, entry in self._core.queries.items() if not entry.paused]

    def _computed(self, arrived: Arrived) -> BatchParts:
        self.adapt()
        try:
            flushes = self._flushes(self._pool.due(self._settings.file_seconds))
            computed = self._run(arrived, self._core.queries, flushes)
            self._last = _cell_batch(arrived, computed.parts)
            return computed
        except InterruptedBatchError:
            raise
        except Exception as error:
            if self._stopped:
                raise
            # If it fails without any query too, none is to blame.
            self._run(arrived, ())
            _log.error("tasks of batch %d fail; looking for the query: %s", arrived.batch, task_reason(error))
            return self._halved(arrived, self._running(), error)

    def _halved(self, arrived: Arrived, names: Sequence[str], error: Exception) -> BatchParts:
        """The parts of a batch for queries with which tasks fail, without those that are to blame."""
        if len(names) == 1:
            why = InputError(f"the tasks that compute it fail: {task_reason(error)}")
            return BatchParts(failures={names[0]: why})
        middle = len(names) // 2
        computed = self._isolated(arrived, names[:middle])
        return computed + self._isolated(arrived, names[middle:])

    def _isolated(self, arrived: Arrived, names: Sequence[str]) -> BatchParts:
        """The parts of a batch for some of its queries."""
        if not names:
            return BatchParts()
        try:
            return self._run(arrived, names)
        except InterruptedBatchError:
            raise
        except Exception as error:
            if self._stopped:
                raise
            return self._halved(arrived, names, error)

    def adapt(self) -> None:
        """Have the number of cells that the next batch needs.

        Cells are caches of the part files, so the new ones begin from these.
        """
        before = self.partitions
        self._scaling, decided = self._scaling.next(cluster_cores(self._context), self._last)
        self._last = None
        if decided is not None:
            self._sent.placements.notes.append(decided)
        if self.partitions != before:
            self._sent.placements.resize(self.partitions)

    def _run(self, arrived: Arrived, active: Collection[str], flushes: Sequence[Flush] = ()) -> BatchParts:
        """Run a job for the queries in `active`; the others are paused in it."""
        core = self._core
        state = core.snapshot()
        queries, members = core.asked_of(active)
        self._decide_pooling()
        # What is not asked for rows is not asked where they go either.
        targets = {
            name: _NOWHERE if entry.paused or name in members else self.target(query_name(name))
            for name, entry in queries.items()
        }
        total = sum(state.clocks.counts.values())
        rates = {name: seen / total for name, seen in state.clocks.counts.items()} if total else None
        self._sent.note(core.streams, queries, state.optimizer.plan.choices, targets, rates, members)
        assignment = CellAssignment(
            self._sent.run,
            arrived.batch,
            self.partitions,
            self._sent.base,
            self._sent.deltas,
            {name: tuple(bucket.batch for bucket in held) for name, held in state.buckets.items()},
            self._journal.bucket_pattern,
            filed_buckets(arrived),
            self._journal.spool,
            self._journal.waiting,
            tuple(flushes),
            core.measures,
            arrived.clocks.progress,
            arrived.before,
            core.cells_waiting.of({name: entry.created for name, entry in queries.items()}),
            core.settings.engine_budget.shared_by(self.partitions),
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
        self._tasks = tuple(_figures(part) for part in parts)
        return BatchParts(parts, _failures(parts, core.queries, members))

    def flush(self, names: Collection[str]) -> list[WrittenRows]:
        """Have tasks write files of the rows that wait in the pool."""
        flushes = self._flushes(names)
        if not flushes:
            return []
        cells = [flushes[cell :: self.partitions] for cell in range(self.partitions)]
        return self._try(-1, partial(_flush, cells))

    def _flushes(self, names: Iterable[str]) -> list[Flush]:
        known = [name for name in names if name in self._entries]
        schemas = {name: self._entries[name].query.schema for name in known}
        return self._pool.flushes(known, {name: self.target(name) for name in known}, schemas)

    def _decide_pooling(self) -> None:
        """Let Parquet sinks share files where there are many; and not for just one more or less."""
        sinks = sum(entry.able.files is not None for entry in self._entries.values())
        self._pooling = sinks > self._pool.most_files // (2 if self._pooling else 1)

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
                _log.warning("batch %d is run again: %s", batch, task_reason(error))
        raise AssertionError("a batch without a try")

    @property
    def _stopped(self) -> bool:
        return bool(self._context._jsc.sc().isStopped())

    def target(self, name: str) -> OutputTarget:
        """Files are written by tasks; of other queries the driver needs all rows, or the newest."""
        sink = self._entries[name].sink
        known = self._targets.get(name)
        if known is None or known[0] is not sink or time.monotonic() > known[2]:
            known = self._targets[name] = sink, *self._new_target(name)
        target = known[1]
        return replace(target, pooled=True) if target.directory is not None and self._pools(name) else target

    def _new_target(self, name: str) -> tuple[OutputTarget, float]:
        """What tasks do with rows, by what the sink can do, and until when that holds."""
        entry = self._entries[name]
        able = entry.able
        if able.writes_data_files:
            return self._table_target(name, entry)
        if able.newest_only is not None:
            newest = self._settings.rows_shown if able.kept_by_engine else self._settings.newest_rows
            limit = max(able.newest_only, newest)
            return OutputTarget(limit, queued=not able.kept_by_engine), math.inf
        if able.files is None:
            return OutputTarget(None, queued=True, filed=able.reads_spool), math.inf
        directory = place(able.files.path)
        where = str(directory.absolute()) if isinstance(directory, Path) else able.files.path
        prefix, metadata = file_prefix(name, self._journal.log.engine), query_metadata(name, entry.query.text)
        return OutputTarget(self._settings.newest_rows, where, prefix, able.files.compression, metadata), math.inf

    def _table_target(self, name: str, entry: RunningQuery) -> tuple[OutputTarget, float]:
        """Tasks write data files; while the table can't be reached, its rows wait as those of any other sink."""
        try:
            writer: Any = entry.sink.open(Target(name, entry.query.schema, self._journal.log.engine))
        except StreamJoinError as error:
            _log.warning("query %r: tasks can't write to its table: %s", name, error)
            return OutputTarget(None, queued=True), time.monotonic() + _TABLE_PAUSE
        return OutputTarget(self._settings.newest_rows, layout=writer.layout), math.inf

    def _pools(self, name: str) -> bool:
        """Whether the rows of a query wait for a file; not if too many do because its sink can't be written to."""
        settings = self._settings
        rows, nbytes = self._pool.sizes(name)
        return self._pooling and rows < settings.spool_rows and nbytes < settings.spool_bytes


def cluster_cores(context: Any) -> int:
    """The cores of the executors that there are now."""
    return max(1, int(context.defaultParallelism))


def _cell_batch(arrived: Arrived, parts: Sequence[CellResult]) -> CellBatch:
    tuples = sum(bucket.n for bucket in arrived.buckets.values())
    held = sum(sum(part.state.values()) for part in parts)
    return CellBatch(max(part.seconds for part in parts), tuples, held, any(part.rebuilt for part in parts))


def _flush(cells: Sequence[Sequence[Flush]], cell: int) -> WrittenRows:
    return write_flushes(cells[cell])


def _task(assignment: CellAssignment, whole: Any, cell: int) -> CellResult:
    return run_cell(assignment, lambda: whole.value, cell)


def _failures(
    parts: Sequence[CellResult], queries: Mapping[str, LiveQuery], members: Mapping[str, Collection[str]]
) -> dict[str, InputError]:
    """The queries that failed in some cell, or that took more than their budget in all cells together."""
    failures = {name: error for part in parts for name, error in part.failures.items()}
    names = {name for part in parts for name in part.usage}
    for name in names:
        query = query_name(name)
        together = [n for n in names if query_name(n) == query] if queries[query].query.union else [name]
        usage = [part.usage[n] for part in parts for n in together if n in part.usage]
        over = exceeded_together(queries[query].budget, usage)
        if over is not None:
            failures |= dict.fromkeys(members.get(name, (query,)), over)
    return failures


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


class PartReader:
    """Has the tasks that read a stream write part files; the driver gets their names, counts and times."""

    def __init__(self, stream: Stream, mark: str | None, inbox: Inbox, journal: FiledJournal, cells: CellRows) -> None:
        self._stream, self._mark, self._inbox = stream, mark, inbox
        self._journal, self._cells = journal, cells
        self._newest = NEVER
        """The newest time that was handed in: the batch that has it may not be finished yet."""

    def resume(self, position: Position | None) -> None:
        """Nothing is kept of a micro-batch that is not handed in."""

    def hand(self, frame: Any, spark_batch: int) -> Iterator[HandedIn]:
        """Hand in a micro-batch as a whole."""
        name, read_at = self._stream.name, time.monotonic()
        with self._inbox.reading(name):
            directory = self._journal.tuples_directory(name, spark_batch)
            bounds = self._cells.time_bounds(name, self._newest)
            writer = PartWriter(self._stream, *bounds, directory, self._mark, self._cells.groups(name))
            written = map_partitions(frame, writer.write)
        parts = sorted((part for part in written if part.path or part.aside), key=lambda part: part.partition)
        read = ReadParts(tuple(parts))
        self._inbox.hand(SourceBatch(name, spark_batch, read, read_at=read_at))
        self._newest = max([self._newest, *(part.most for part in parts if part.rows)])
        yield HandedIn(spark_batch, len(read), 0)
