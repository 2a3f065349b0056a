"""The batch loop of the distributed engine: rows go to the sinks as files that tasks wrote.

The invariant: the journal lists a batch's files before one of them gets its name, and the batch counts as done
after the last has.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.adhoc.core.arrivals import Arrived, Aside
from streamjoin.adhoc.engine.attempts import Attempt
from streamjoin.adhoc.engine.executor import Outputs
from streamjoin.adhoc.engine.inbox import BatchWork, Portion
from streamjoin.adhoc.engine.info import ChangeRecord, EngineMetrics
from streamjoin.adhoc.engine.loop import BatchLoop
from streamjoin.adhoc.engine.recovery import RecoveredState
from streamjoin.adhoc.executors.distributed.driver_core import DriverCore
from streamjoin.adhoc.executors.distributed.executor import CellRows
from streamjoin.adhoc.executors.distributed.journal import FiledJournal
from streamjoin.adhoc.executors.distributed.outputs import (
    HIDDEN,
    FlushedFile,
    WrittenRows,
    publish,
    read_spool,
    spooled_blocks,
)
from streamjoin.adhoc.executors.distributed.parts import PortionFiles
from streamjoin.adhoc.sinks.base import FiledRows
from streamjoin.formats.table_files import DataFile, RowsInFiles
from streamjoin.model.errors import StateError
from streamjoin.storage.places import entries, place

_log = logging.getLogger(__name__)


class DistributedLoop(BatchLoop):
    """Runs batches whose tuples and rows are in files."""

    core: DriverCore
    _journal: FiledJournal
    executor: CellRows

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._unnamed: dict[str, tuple[FlushedFile, str, int]] = {}
        """Files of pooled rows that could not be renamed, by hidden name, with query and batch of the record."""
        self._timer: threading.Timer | None = None

    def restore(self, recovery: RecoveredState, quarantine: Set[str] = frozenset()) -> None:
        """Take over what a restart finds, and remove what tries that came to nothing left."""
        super().restore(recovery, quarantine)
        self.core.cells_waiting = self._journal.read_waiting(recovery.snapshot.batch)
        self.executor.entries = self.catalog.entries
        pool, pending = self.executor.pool, recovery.unfinished.batch if recovery.unfinished is not None else None
        for batch, cells in sorted(self._journal.pooled_outputs(pending).items()):
            # What has its name may have been taken away by whoever reads it.
            hidden = [
                replace(
                    cell, flushed={name: file for name, file in cell.flushed.items() if place(file.hidden).exists()}
                )
                for cell in cells
            ]
            self._name_flushed(batch, hidden)
            pool.add(batch, cells)
        pool.forget(set(pool.names) - self.catalog.entries.keys())
        self._count_pooled()
        self._journal.remove_unlisted(pending)

    def _finish_what_was_begun(self) -> None:
        super()._finish_what_was_begun()
        for name in self.catalog.entries:
            target = self.executor.target(name)
            if target.directory is not None:
                # Hidden files that nobody will name any more.
                hidden = f"{HIDDEN}{target.prefix}"
                for file in entries(place(target.directory)):
                    if file.name.startswith(hidden) and str(file) not in self._unnamed:
                        file.unlink(missing_ok=True)
        self._release()
        self._wait_for_files()

    def _rows(
        self,
        arrived: Arrived,
        portions: tuple[Portion, ...],
        aside: Mapping[str, Aside],
        attempt: Attempt | None = None,
    ) -> tuple[dict[str, int], list[ChangeRecord]]:
        counts, records = super()._rows(arrived, portions, aside, attempt)
        if self.executor.written:
            self._journal.end_outputs(arrived.batch, self.executor.written)
            self._release()
        return counts, records

    def _keep_waiting(self, batch: int) -> None:
        waiting = self.core.cells_waiting.cells
        if waiting or self._has_kinds:
            self._journal.write_waiting(batch, waiting)
        self._has_kinds = bool(waiting)

    def _silence(self) -> BatchWork:
        work = super()._silence()
        return replace(
            work, portions={name: replace(found, table=PortionFiles(())) for name, found in work.portions.items()}
        )

    # Pooled rows --------------------------------------------------------------------------------------------------

    def _boundary(self, work: BatchWork) -> None:
        # Whoever drops a query finds all its rows in files.
        self._flush({request.name for request in work.requests if request.action == "drop"})
        super()._boundary(work)
        self._wait_for_files()

    def _end(self) -> None:
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
        super()._end()

    def flush(self) -> None:
        """Have tasks write the rows that wait for a file; between two batches."""
        self._flush(self.executor.pool.names)

    def _flush(self, names: Collection[str]) -> None:
        pool = self.executor.pool
        waiting = [name for name in names if name in pool.names]
        if not waiting:
            return
        try:
            cells = self.executor.flush(waiting)
        except Exception as error:
            _log.warning("the rows of %d queries wait for their files in the checkpoint: %s", len(waiting), error)
            return
        # What is flushed has rows of this batch, so that the record of its outputs is there.
        last = max((file.last for cell in cells for file in cell.flushed.values()), default=-1)
        if last >= 0:
            self._journal.write_flushed(last, cells)
        self._name_flushed(last, cells)
        pool.add(last, cells)
        self._count_pooled()
        self._release()

    def _name_flushed(self, batch: int, cells: Sequence[WrittenRows]) -> None:
        """Give files of pooled rows, listed in the record of a batch, their names."""
        named = dict(self._unnamed)
        for cell in cells:
            named |= {file.hidden: (file, name, batch) for name, file in cell.flushed.items()}
            for name, why in cell.unflushed.items():
                _log.warning("query %r: %s", name, why)
                self.catalog.entries[name].sink_error = why
        self._unnamed = {}
        for hidden, (file, name, listed) in named.items():
            entry = self.catalog.entries.get(name)
            try:
                publish(hidden, file.final)
            except OSError as error:
                _log.error("query %r: %s can't be renamed to %s: %s", name, hidden, file.final, error)
                if place(hidden).exists():
                    self._unnamed[hidden] = file, name, listed
                elif entry is not None:
                    entry.missed += file.rows
            else:
                if entry is not None:
                    entry.sink_error = None
                    entry.rate.add(file.rows)

    def _count_pooled(self) -> None:
        unnamed: Counter[str] = Counter()
        for file, name, _ in self._unnamed.values():
            unnamed[name] += file.rows
        for name, entry in self.catalog.entries.items():
            entry.pooled = self.executor.pool.sizes(name)[0] + unnamed[name]

    def _release(self) -> None:
        """Remove records and files whose rows are all where they belong."""
        needed = [batch for _, _, batch in self._unnamed.values()]
        oldest = self.executor.pool.oldest, self.catalog.deliveries.oldest_read
        needed += [batch for batch in oldest if batch is not None]
        self._journal.release_outputs(min(needed, default=None))

    def _wait_for_files(self) -> None:
        """Look again after a while, if rows wait for files: batches may have ceased."""
        if self._timer is None and self.executor.pool.names:
            self._timer = threading.Timer(self.catalog.settings.file_seconds, self._ask_for_files)
            self._timer.daemon = True
            self._timer.start()

    def _ask_for_files(self) -> None:
        with contextlib.suppress(StateError):
            self._inbox.ask(self._flush_if_idle)

    def _flush_if_idle(self) -> None:
        self._timer = None
        event = self.last_event
        if event is None or time.time() - event.at >= self.catalog.settings.file_seconds:
            self.flush()
        self._wait_for_files()

    # Rows ---------------------------------------------------------------------------------------------------------

    def _one_by_one(self, attempt: Attempt, arrived: Arrived) -> Outputs:
        return self.executor.one_by_one(self.core, arrived, attempt.note)

    def interrupt(self) -> None:
        """Have the job whose rows are computed now end; from any thread."""
        if self._computing:
            self.executor.interrupt()

    def _count_driver_rows(self, arrived: Arrived, counts: Mapping[str, int]) -> None:
        """Only rows that were read from a spool are counted, when they are."""

    def _deliver(self, outputs: Mapping[str, Any], arrived: Arrived) -> None:
        """Give files their names; rows that have none, and those that the driver writes, go to the sinks' queues."""
        written = self.executor.written
        schemas = {name: self.catalog.entries[name].query.schema for name in outputs}
        targets = {name: self.executor.target(name) for name in outputs}
        filed = self._filed_rows(schemas, {name for name in outputs if targets[name].filed})
        read = {name: schema for name, schema in schemas.items() if name not in filed}
        spooled: list[dict[str, pa.Table]] = []
        for cell in written:
            shown = {name for name in outputs if not targets[name].queued and name not in cell.refused}
            spooled.append({} if cell.spool is None else read_spool(cell.spool, read, shown))
        self.driver_rows += sum(table.num_rows for tables in spooled for table in tables.values())

        queued: dict[str, pa.Table | FiledRows | RowsInFiles] = {}
        for name, found in outputs.items():
            entry = self.catalog.entries[name]
            if name in filed:
                newest = filed[name].newest(self.catalog.settings.newest_rows)
                self.driver_rows += newest.num_rows
                entry.produced += found.num_rows
                entry.newest.write(arrived.batch, newest, found.num_rows)
                queued[name] = filed[name]
                continue
            tables = [cell[name] for cell in spooled if name in cell]
            rows = pa.concat_tables(tables) if tables else schemas[name].empty_table()
            entry.produced += found.num_rows
            entry.newest.write(arrived.batch, rows, found.num_rows)
            target = targets[name]
            taken = found.num_rows - sum(cell.pooled[name][2] for cell in written if name in cell.pooled)
            if target.layout is not None or any(name in cell.data for cell in written):
                queued[name] = self._table_rows(name, spooled, schemas[name])
                taken = 0
            elif target.queued:
                # A view has no use for rows before the newest.
                queued[name] = rows
                taken -= rows.num_rows
            elif target.directory is not None:
                left = self._publish_files(name, spooled, schemas[name])
                if left.num_rows:
                    queued[name] = left
                    taken -= left.num_rows
            if taken:
                entry.delivered(taken, self._passage(entry))
        self.catalog.deliveries.put(arrived.batch, queued, self._passage)
        self._name_flushed(arrived.batch, written)
        self.executor.pool.add(arrived.batch, written)
        self._count_pooled()
        self.catalog.deliveries.settle()

    def _table_rows(self, name: str, spooled: list[dict[str, pa.Table]], schema: pa.Schema) -> pa.Table | RowsInFiles:
        """The rows of a query that go to a table: its data files, or all rows if a task could not write its own."""
        files: list[DataFile] = []
        others: list[pa.Table] = []
        for cell, tables in zip(self.executor.written, spooled, strict=True):
            if name in cell.refused:
                _log.warning("query %r: %s", name, cell.refused[name])
            if name not in cell.data:
                # Then the spool has all rows of the cell, and else only the newest.
                others += [tables[name]] if name in tables else []
            elif place(cell.data[name].location).exists():
                files.append(cell.data[name])
            else:
                # The table was cleaned up while the engine was down.
                _log.error("query %r: %s is gone before it was added to the table", name, cell.data[name].location)
                self.catalog.entries[name].missed += cell.data[name].rows
        rows = RowsInFiles(schema, tuple(files))
        return pa.concat_tables([rows.table(), *others]) if others else rows

    def _filed_rows(self, schemas: Mapping[str, pa.Schema], names: Set[str]) -> dict[str, FiledRows]:
        """The rows of queries whose sinks have tasks read them."""
        blocks: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
        for cell in self.executor.written if names else ():
            for name, block in ({} if cell.spool is None else spooled_blocks(cell.spool, names)).items():
                blocks.setdefault(name, []).append(block)
        return {name: FiledRows(schemas[name], tuple(found)) for name, found in blocks.items()}

    def metrics(self, running: bool, started_at: float | None) -> EngineMetrics:
        """As without tasks; rows that the driver had to read for a sink are among those that it has seen."""
        metrics = super().metrics(running, started_at)
        return replace(metrics, driver_rows=metrics.driver_rows + self.catalog.deliveries.rows_loaded)

    def _publish_files(self, name: str, spooled: list[dict[str, pa.Table]], schema: pa.Schema) -> pa.Table:
        """Name the files of a query; gives the rows that have no file."""
        left: list[pa.Table] = [schema.empty_table()]
        for cell, tables in zip(self.executor.written, spooled, strict=True):
            if name in cell.refused:
                _log.warning("query %r: %s", name, cell.refused[name])
                left.append(tables[name])
            elif name in cell.files:
                hidden, final = cell.files[name]
                try:
                    publish(hidden, final)
                except OSError as error:
                    _log.warning("query %r: %s can't be renamed: %s", name, hidden, error)
                    # It is gone if it had its name before a crash, and whoever reads it took it away.
                    with contextlib.suppress(FileNotFoundError), place(hidden).open("rb") as file:
                        left.append(pq.read_table(file).cast(schema))
        return pa.concat_tables(left)
