"""The batch loop of the distributed engine: rows go to the sinks as files that tasks wrote.

The invariant: the journal lists a batch's files before one of them gets its name, and the batch counts as done
after the last has.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.adhoc.core.arrivals import Arrived, Aside
from streamjoin.adhoc.engine.attempts import Attempt
from streamjoin.adhoc.engine.executor import Outputs
from streamjoin.adhoc.engine.figures import RunningQuery
from streamjoin.adhoc.engine.inbox import Portion
from streamjoin.adhoc.engine.info import ChangeRecord
from streamjoin.adhoc.engine.loop import BatchLoop
from streamjoin.adhoc.engine.recovery import RecoveredState
from streamjoin.adhoc.executors.distributed.executor import CellRows
from streamjoin.adhoc.executors.distributed.journal import FiledJournal
from streamjoin.adhoc.executors.distributed.outputs import HIDDEN, publish, read_spool
from streamjoin.storage.places import entries, place

_log = logging.getLogger(__name__)


class DistributedLoop(BatchLoop):
    """Runs batches whose tuples and rows are in files."""

    _journal: FiledJournal
    executor: CellRows

    def restore(self, recovery: RecoveredState, quarantine: Set[str] = frozenset()) -> None:
        """Take over what a restart finds, and remove what tries that came to nothing left."""
        super().restore(recovery, quarantine)
        self.executor.entries = self.catalog.entries
        self._journal.remove_unlisted(recovery.unfinished.batch if recovery.unfinished is not None else None)

    def _finish_what_was_begun(self) -> None:
        super()._finish_what_was_begun()
        for name in self.catalog.entries:
            target = self.executor.target(name)
            if target.directory is not None:
                # Hidden files that nobody will name any more.
                hidden = f"{HIDDEN}{target.prefix}"
                for file in entries(place(target.directory)):
                    if file.name.startswith(hidden):
                        file.unlink(missing_ok=True)

    def _rows(
        self,
        arrived: Arrived,
        portions: tuple[Portion, ...],
        aside: Mapping[str, Aside],
        attempt: Attempt | None = None,
    ) -> tuple[dict[str, int], list[ChangeRecord]]:
        counts, records = super()._rows(arrived, portions, aside, attempt)
        if self.executor.written:
            self._journal.forget_outputs(arrived.batch, self.executor.written)
        return counts, records

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
        spooled: list[dict[str, pa.Table]] = [
            {} if cell.spool is None else read_spool(cell.spool, schemas) for cell in written
        ]
        self.driver_rows += sum(table.num_rows for tables in spooled for table in tables.values())

        queued: dict[str, pa.Table] = {}
        for name, found in outputs.items():
            entry = self.catalog.entries[name]
            tables = [cell[name] for cell in spooled if name in cell]
            rows = pa.concat_tables(tables) if tables else schemas[name].empty_table()
            entry.produced += found.num_rows
            entry.newest.write(arrived.batch, rows, found.num_rows)
            target = self.executor.target(name)
            taken = found.num_rows
            if target.spooled is None:
                queued[name], taken = rows, 0
            elif target.directory is not None:
                left = self._publish_files(name, spooled, schemas[name])
                if left.num_rows:
                    queued[name] = left
                    taken -= left.num_rows
            if taken:
                entry.delivered(taken, self._passage(entry))
        self.catalog.deliveries.put(arrived.batch, queued, self._passage)
        self.catalog.deliveries.settle()

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
                    with place(hidden).open("rb") as file:
                        left.append(pq.read_table(file).cast(schema))
        return pa.concat_tables(left)
