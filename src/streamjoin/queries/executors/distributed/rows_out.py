"""Rows out of cells: they go to the sinks as files that tasks wrote.

The invariant: the journal lists a batch's files before one of them gets its name, and the batch counts as done
after the last has.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.formats.tables import DataFile, RowsInFiles
from streamjoin.model.errors import CheckpointError, InputError, StateError
from streamjoin.queries.core.arrivals import Arrived
from streamjoin.queries.core.groups.feeds import stores_of
from streamjoin.queries.core.kinds import joined_states
from streamjoin.queries.core.shared import failure_of
from streamjoin.queries.engine.catalog import Catalog
from streamjoin.queries.engine.executor import TaskReport
from streamjoin.queries.engine.inbox import Inbox, SourceBatch
from streamjoin.queries.engine.journal import Position
from streamjoin.queries.engine.loop import Attempt, BatchRows, PassageOf, RowsOut
from streamjoin.queries.engine.stored import RecoveredState
from streamjoin.queries.executors.distributed.driver_core import DriverCore
from streamjoin.queries.executors.distributed.executor import CellRows, WrittenCells
from streamjoin.queries.executors.distributed.journal import FiledJournal
from streamjoin.queries.executors.distributed.outputs import (
    HIDDEN,
    FlushedFile,
    OutputTarget,
    RowPool,
    WrittenRows,
    publish,
    read_spool,
    spooled_blocks,
)
from streamjoin.queries.executors.distributed.parts import ReadParts
from streamjoin.queries.sinks.base import FiledRows
from streamjoin.storage.places import entries, place

SpooledCells = Sequence[tuple[WrittenRows, Mapping[str, pa.Table]]]
"""What each cell wrote, and what the driver has read of its spool file."""
_log = logging.getLogger("streamjoin.adhoc")


class CellRowsOut(RowsOut[WrittenCells]):
    """Brings the rows of batches whose tuples and rows are in files to the sinks; `cells` compute them."""

    stores_first = True

    def __init__(
        self, core: DriverCore, catalog: Catalog, journal: FiledJournal, inbox: Inbox, cells: CellRows, pool: RowPool
    ) -> None:
        self._core, self._catalog, self._journal, self._inbox = core, catalog, journal, inbox
        self._cells, self._pool = cells, pool
        self._has_kinds = self._has_groups = True
        """Whether the log may say that something waits of queries with other than inner joins, or of groups."""
        self._last_at: float | None = None
        """When the last batch ended."""
        self._unnamed: dict[str, tuple[FlushedFile, str, int]] = {}
        """Files of pooled rows that could not be renamed, by hidden name, with query and batch of the record."""
        self._timer: threading.Timer | None = None

    def restore(self, recovery: RecoveredState) -> None:
        """Take over what a restart finds, and remove what tries that came to nothing left."""
        self._core.cells_waiting = self._journal.read_waiting(recovery.snapshot.batch)
        pool, pending = self._pool, recovery.unfinished.batch if recovery.unfinished is not None else None
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
        pool.forget(set(pool.names) - self._catalog.entries.keys())
        self._count_pooled()
        self._journal.remove_unlisted(pending)

    def begin(self) -> None:
        """Remove what a crash left in the directories of sinks."""
        for name in self._catalog.entries:
            target = self._cells.target(name)
            if target.directory is not None:
                # Hidden files that get no name any more.
                hidden = f"{HIDDEN}{target.prefix}"
                for file in entries(place(target.directory)):
                    if file.name.startswith(hidden) and str(file) not in self._unnamed:
                        file.unlink(missing_ok=True)
        self._release()
        self._wait_for_files()

    def store(
        self,
        arrived: Arrived,
        given: Sequence[SourceBatch],
        positions: Mapping[str, Position],
        held: Mapping[str, Iterable[int]],
        serial: int,
    ) -> None:
        """List the parts that tasks wrote."""
        read = {one.stream: one.tuples for one in given if isinstance(one.tuples, ReadParts)}
        self._journal.write_input(arrived, read, positions, held, serial)

    def keep_waiting(self, computed: BatchRows[WrittenCells], batch: int) -> None:  # noqa: ARG002 - the core has it
        """List the files of what waits, which cells wrote, and write down which groups are open."""
        cells = self._core.cells_waiting.cells
        if cells or self._has_kinds:
            self._journal.write_waiting(batch, cells)
        self._has_kinds = bool(cells)
        groups = self._core.snapshot().kinds
        if groups or self._has_groups:
            states = [state.to_table(name) for name, state in groups.items()]
            stores = [store.to_table() for store in stores_of(groups)]
            self._journal.log.write_kinds(batch, joined_states([*states, *stores]))
        self._has_groups = bool(groups)

    def end(self, computed: BatchRows[WrittenCells], batch: int) -> None:
        """Remove what is not needed any more."""
        if computed.rows:
            self._journal.end_outputs(batch, computed.rows)
            self._release()
        self._last_at = time.time()
        self._wait_for_files()

    # Pooled rows --------------------------------------------------------------------------------------------------

    def leave(self, names: Set[str]) -> None:
        """Whoever drops a query finds all its rows in files."""
        self._flush(names)

    def close(self) -> None:
        """Have all rows in files."""
        self.flush()
        if self._timer is not None:
            self._timer.cancel()

    def flush(self) -> None:
        """Have tasks write the rows that wait for a file; between two batches."""
        self._flush(self._pool.names)

    def _flush(self, names: Collection[str]) -> None:
        pool = self._pool
        waiting = [name for name in names if name in pool.names]
        if not waiting:
            return
        try:
            cells = self._cells.flush(waiting)
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
                self._catalog.entries[name].sink_error = why
        self._unnamed = {}
        for hidden, (file, name, listed) in named.items():
            entry = self._catalog.entries.get(name)
            try:
                publish(hidden, file.final)
            except OSError as error:
                _log.error("query %r: %s can't be renamed to %s: %s", name, hidden, file.final, error)
                if place(hidden).exists():
                    self._unnamed[hidden] = file, name, listed
                    if entry is not None:
                        entry.sink_error = f"{hidden} can't be renamed to {file.final}: {error}"
                elif entry is not None:
                    entry.missed += file.rows
            else:
                if entry is not None:
                    entry.sink_error = None
        if named or any(cell.unflushed for cell in cells):
            self._catalog.stir()

    def _count_pooled(self) -> None:
        unnamed: Counter[str] = Counter()
        for file, name, _ in self._unnamed.values():
            unnamed[name] += file.rows
        for name, entry in self._catalog.entries.items():
            entry.pooled = self._pool.sizes(name)[0] + unnamed[name]

    def _release(self) -> None:
        """Remove records and files whose rows are all where they belong."""
        needed = [batch for _, _, batch in self._unnamed.values()]
        oldest = self._pool.oldest, self._catalog.deliveries.oldest_read
        needed += [batch for batch in oldest if batch is not None]
        self._journal.release_outputs(min(needed, default=None))

    def _wait_for_files(self) -> None:
        """Look again after a while, if rows wait for files: batches may have ceased."""
        if self._timer is None and self._pool.names:
            self._timer = threading.Timer(self._catalog.settings.file_seconds, self._ask_for_files)
            self._timer.daemon = True
            self._timer.start()

    def _ask_for_files(self) -> None:
        with contextlib.suppress(StateError):
            self._inbox.ask(self._flush_if_idle)

    def _flush_if_idle(self) -> None:
        self._timer = None
        if self._last_at is None or time.time() - self._last_at >= self._catalog.settings.file_seconds:
            self.flush()
        self._wait_for_files()

    # Rows ---------------------------------------------------------------------------------------------------------

    def results(self, arrived: Arrived) -> BatchRows[WrittenCells]:
        """The rows of a batch, in files."""
        return self._cells.results(arrived)

    def one_by_one(self, arrived: Arrived, attempt: Attempt) -> BatchRows[WrittenCells]:
        """The rows of a batch, with a job for each query."""
        return self._cells.one_by_one(arrived, attempt.note)

    def interrupt(self) -> None:
        """Have the job whose rows are computed now end; from any thread."""
        self._cells.interrupt()

    def report(self) -> TaskReport:
        """What the cells say."""
        return self._cells.report()

    def deliver(self, computed: BatchRows[WrittenCells], arrived: Arrived, passage: PassageOf) -> dict[str, InputError]:
        """Give files their names; rows that have none, and those that the driver writes, go to the sinks' queues.

        Returns the queries for which that fails: what of their rows has no file yet is missed.
        """
        outputs, written = computed.counts, computed.rows
        schemas = {name: self._catalog.entries[name].query.schema for name in outputs}
        targets: dict[str, OutputTarget] = {}
        failures: dict[str, InputError] = {}
        for name in outputs:
            with self._charged(name, failures):
                targets[name] = self._cells.target(name)
        filed = _filed_rows(written, schemas, {name for name, target in targets.items() if target.filed})
        read = {name: schemas[name] for name in targets if name not in filed}
        spooled: list[dict[str, pa.Table]] = []
        for cell in written:
            shown = {name for name in targets if not targets[name].queued and name not in cell.refused}
            spooled.append({} if cell.spool is None else read_spool(cell.spool, read, shown))
        self.driver_rows += sum(table.num_rows for tables in spooled for table in tables.values())

        queued: dict[str, pa.Table | FiledRows | RowsInFiles] = {}
        for name, target in targets.items():
            found = outputs[name]
            with self._charged(name, failures):
                if name in filed:
                    newest = filed[name].newest(self._catalog.settings.newest_rows)
                    self.driver_rows += newest.num_rows
                    self._catalog.entries[name].newest.write(arrived.batch, newest, found)
                    queued[name] = filed[name]
                else:
                    tables = [cell[name] for cell in spooled if name in cell]
                    rows = pa.concat_tables(tables) if tables else schemas[name].empty_table()
                    self._catalog.entries[name].newest.write(arrived.batch, rows, found)
                    left = self._handed_on(name, target, found, rows, list(zip(written, spooled, strict=True)), passage)
                    if left is not None:
                        queued[name] = left
        for name, found in outputs.items():
            self._catalog.entries[name].produced += found
            self._catalog.entries[name].rate.add(found)
            if name in failures:
                self._catalog.entries[name].missed += found
        failures |= self._catalog.deliveries.put(arrived.batch, queued, passage)
        self._name_flushed(arrived.batch, written)
        self._pool.add(arrived.batch, written)
        self._count_pooled()
        return failures | self._catalog.deliveries.settle()

    @contextlib.contextmanager
    def _charged(self, name: str, failures: dict[str, InputError]) -> Iterator[None]:
        """What fails inside is charged to a query; a checkpoint that can't be read or written ends the engine."""
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            failures[name] = failure_of(error)

    def _handed_on(
        self, name: str, target: OutputTarget, found: int, rows: pa.Table, cells: SpooledCells, passage: PassageOf
    ) -> pa.Table | RowsInFiles | None:
        """Give the files of a query their names; what is left for its sink's queue."""
        entry = self._catalog.entries[name]
        taken = found - sum(cell.pooled[name][2] for cell, _ in cells if name in cell.pooled)
        left: pa.Table | RowsInFiles | None = None
        if target.layout is not None or any(name in cell.data for cell, _ in cells):
            left, taken = self._table_rows(name, cells, entry.query.schema), 0
        elif target.queued:
            # A view has no use for rows before the newest.
            left, taken = rows, taken - rows.num_rows
        elif target.directory is not None:
            unnamed = _publish_files(name, cells, entry.query.schema)
            if unnamed.num_rows:
                left, taken = unnamed, taken - unnamed.num_rows
        if taken:
            entry.delivered(passage(entry))
        return left

    def _table_rows(self, name: str, cells: SpooledCells, schema: pa.Schema) -> pa.Table | RowsInFiles:
        """The rows of a query that go to a table: its data files, or all rows if a task could not write its own."""
        files: list[DataFile] = []
        others: list[pa.Table] = []
        for cell, tables in cells:
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
                self._catalog.entries[name].missed += cell.data[name].rows
        rows = RowsInFiles(schema, tuple(files))
        return pa.concat_tables([rows.table(), *others]) if others else rows


def _filed_rows(written: WrittenCells, schemas: Mapping[str, pa.Schema], names: Set[str]) -> dict[str, FiledRows]:
    """The rows of queries whose sinks have tasks read them."""
    blocks: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for cell in written if names else ():
        for name, block in ({} if cell.spool is None else spooled_blocks(cell.spool, names)).items():
            blocks.setdefault(name, []).append(block)
    return {name: FiledRows(schemas[name], tuple(found)) for name, found in blocks.items()}


def _publish_files(name: str, cells: SpooledCells, schema: pa.Schema) -> pa.Table:
    """Name the files of a query; gives the rows that have no file."""
    left: list[pa.Table] = [schema.empty_table()]
    for cell, tables in cells:
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
