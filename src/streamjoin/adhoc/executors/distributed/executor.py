"""The executor whose tasks read, store, join and write: the driver sees names of files, counts and times."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from streamjoin.adhoc.core.arrivals import Arrived
from streamjoin.adhoc.core.contract import Core
from streamjoin.adhoc.core.explain import TaskFigures
from streamjoin.adhoc.engine.executor import FeedKeeper, StreamInput
from streamjoin.adhoc.engine.figures import RunningQuery
from streamjoin.adhoc.engine.inbox import Inbox
from streamjoin.adhoc.executors.distributed.cell import CellAssignment, CellResult, run_cell
from streamjoin.adhoc.executors.distributed.driver_core import DriverCore
from streamjoin.adhoc.executors.distributed.feed import PartFeed
from streamjoin.adhoc.executors.distributed.jobs import run_cells
from streamjoin.adhoc.executors.distributed.journal import FiledJournal
from streamjoin.adhoc.executors.distributed.outputs import OutputTarget, WrittenRows, remove
from streamjoin.adhoc.executors.distributed.placement import CellGroups
from streamjoin.adhoc.executors.distributed.sending import SentState
from streamjoin.adhoc.executors.spark import SparkExecutor
from streamjoin.adhoc.language.plan import Stream
from streamjoin.adhoc.sinks.base import MemorySink
from streamjoin.adhoc.sinks.files import ParquetSink, file_prefix
from streamjoin.model.errors import InputError, SpecError
from streamjoin.storage.places import place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES: Final = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowCount:
    """How many rows a query gained; they are in files."""

    num_rows: int


class CellRows:
    """Computes the rows of a batch in one task for each cell."""

    stores_first = True

    def __init__(self, spark: Any, journal: FiledJournal, cells: int, newest_rows: int) -> None:
        self._context = spark.sparkContext
        self._journal = journal
        self.partitions = cells
        self._newest_rows = newest_rows
        self._sent = SentState(self._broadcast)
        self.entries: Mapping[str, RunningQuery] = {}
        """The running queries, whose sinks say what tasks do with rows."""
        self.tasks: tuple[TaskFigures, ...] = ()
        self.written: tuple[WrittenRows, ...] = ()
        """Where the rows of the last batch are."""

    def decided(self) -> tuple[str, ...]:
        """The number of cells does not change."""
        return ()

    def groups(self, stream: str) -> CellGroups | None:
        """How tasks that read a stream group its tuples: for the placement that has been there longest."""
        for placement in self._sent.placements.current.values():
            if stream in placement.routes and placement.dimensions:
                return placement.groups(stream, self.partitions)
        return None

    def _broadcast(self, whole: bytes) -> Any:
        if self._sent.whole is not None:
            self._sent.whole.unpersist()
        return self._context.broadcast(whole)

    def results(self, core: Core, arrived: Arrived) -> tuple[dict[str, Any], dict[str, InputError]]:
        """How many rows each query gained, and what failed; `written` says where the rows are.

        A batch whose rows were listed before a crash is not computed again.
        """
        self.tasks, self.written = (), ()
        if not arrived.buckets:
            return {}, {}
        listed = self._journal.outputs(arrived.batch)
        if listed is None:
            parts = self._run(core, arrived)
            failures = {name: why for part in parts for name, why in part.failures.items()}
            self.written = tuple(_without(part.rows, failures) for part in parts)
            self._journal.write_outputs(arrived.batch, self.written, failures)
        else:
            failures, self.written = self._journal.failures(arrived.batch), listed
        counts: dict[str, int] = {}
        for part in self.written:
            for name, count in part.counts.items():
                counts[name] = counts.get(name, 0) + count
        return (
            {name: RowCount(count) for name, count in counts.items()},
            {name: InputError(why) for name, why in failures.items()},
        )

    def _run(self, core: Core, arrived: Arrived) -> list[CellResult]:
        if not isinstance(core, DriverCore):
            raise AssertionError("the distributed executor has a core of its own")
        state = core.snapshot()
        queries = state.registry.queries
        targets = {name: self.target(name) for name in queries}
        self._sent.note(core.streams, queries, state.optimizer.plan.choices, targets)
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
        )
        parts = self._try(assignment)
        core.take_figures([figures for part in parts for figures in part.figures])
        core.held_bytes = {}
        for part in parts:
            for what, size in part.state.items():
                core.held_bytes[what] = core.held_bytes.get(what, 0) + size
        self.tasks = tuple(_figures(part) for part in parts)
        return parts

    def _try(self, assignment: CellAssignment) -> list[CellResult]:
        """Run the job, again if a process of Spark died in it: nothing of it counts before its files are listed."""
        for attempt in range(_TRIES):
            try:
                return run_cells(self._context, self.partitions, partial(_task, assignment, self._sent.whole))
            except Exception as error:
                if attempt == _TRIES - 1 or self._context._jsc.sc().isStopped():
                    raise
                _log.warning("batch %d is run again: %s", assignment.batch, str(error).strip().partition("\n")[0])
        raise AssertionError("a batch without a try")

    def target(self, name: str) -> OutputTarget:
        """Parquet files are written by tasks; of other queries the driver needs all rows, or the newest."""
        sink: Any = self.entries[name].sink
        sink = getattr(sink, "sink", sink)
        if isinstance(sink, MemorySink):
            return OutputTarget(max(sink.limit, self._newest_rows))
        if not isinstance(sink, ParquetSink):
            return OutputTarget(None)
        directory = place(sink.path)
        where = str(directory.absolute()) if isinstance(directory, Path) else sink.path
        return OutputTarget(self._newest_rows, where, file_prefix(name, self._journal.engine), sink.compression)


def _task(assignment: CellAssignment, whole: Any, cell: int) -> CellResult:
    return run_cell(assignment, lambda: whole.value, cell)


def _without(rows: WrittenRows, failures: Mapping[str, str]) -> WrittenRows:
    """Without the rows of queries that failed in some cell."""
    if not failures:
        return rows
    remove(hidden for name, (hidden, _) in rows.files.items() if name in failures)
    return replace(
        rows,
        counts={name: count for name, count in rows.counts.items() if name not in failures},
        files={name: file for name, file in rows.files.items() if name not in failures},
        refused={name: why for name, why in rows.refused.items() if name not in failures},
    )


def _figures(part: CellResult) -> TaskFigures:
    seconds: dict[str, float] = {}
    for figures in part.figures:
        for what, took in figures.seconds.items():
            seconds[what] = seconds.get(what, 0.0) + took
    rows = sum(part.rows.counts.values())
    return TaskFigures(rows, part.seconds, seconds, part.rebuilt, sum(part.state.values()), part.tuples, part.read)


class DistributedExecutor(SparkExecutor):
    """Reads streams into part files, and computes rows in `partitions` cells: without a number, one per core."""

    kind = FiledJournal.kind

    def __init__(
        self,
        spark: SparkSession,
        journal: FiledJournal,
        trigger: str | None,
        partitions: int | Literal["auto"] | None,
        core: DriverCore,
    ) -> None:
        if partitions is None or partitions == "auto":
            partitions = max(1, spark.sparkContext.defaultParallelism)
        if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
            raise SpecError(f"partitions={partitions!r}: it is a whole number from 1 on, or 'auto'")
        self.session: Any = spark
        self.rows: Any = CellRows(spark, journal, partitions, core.settings.newest_rows)
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
