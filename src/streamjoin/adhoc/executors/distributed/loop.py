"""The batch loop of the distributed engine: rows go to the sinks as files that tasks wrote.

The invariant: the journal lists a batch's files before one of them gets its name, and the batch counts as done
after the last has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.adhoc.core.arrivals import Arrived, Aside
from streamjoin.adhoc.engine.deliveries import deliver
from streamjoin.adhoc.engine.figures import RunningQuery, mean_event_time
from streamjoin.adhoc.engine.inbox import Portion
from streamjoin.adhoc.engine.info import ChangeRecord
from streamjoin.adhoc.engine.loop import BatchLoop
from streamjoin.adhoc.engine.recovery import RecoveredState
from streamjoin.adhoc.executors.distributed.executor import CellRows
from streamjoin.adhoc.executors.distributed.journal import FiledJournal
from streamjoin.adhoc.executors.distributed.outputs import publish, read_spool
from streamjoin.storage.places import place


class DistributedLoop(BatchLoop):
    """Runs batches whose tuples and rows are in files."""

    _journal: FiledJournal
    executor: CellRows

    def restore(self, recovery: RecoveredState) -> None:
        """Take over what a restart finds, and remove what tries that came to nothing left."""
        super().restore(recovery)
        self.executor.entries = self.catalog.entries
        self._journal.remove_unlisted(recovery.unfinished.batch if recovery.unfinished is not None else None)

    def _finish_what_was_begun(self) -> None:
        super()._finish_what_was_begun()
        for entry in self.catalog.entries.values():
            # An opened sink removes hidden files that nobody will name any more; one that can't be opened says so
            # when there are rows for it.
            with contextlib.suppress(Exception):
                _ = getattr(entry.writer, "opened", None)

    def _rows(
        self, arrived: Arrived, portions: tuple[Portion, ...], aside: Mapping[str, Aside]
    ) -> tuple[dict[str, int], list[ChangeRecord]]:
        counts, records = super()._rows(arrived, portions, aside)
        if self.executor.written:
            self._journal.forget_outputs(arrived.batch, self.executor.written)
        return counts, records

    def _count_driver_rows(self, arrived: Arrived, counts: Mapping[str, int]) -> None:
        """Only rows that were read from a spool are counted, when they are."""

    def _deliver(self, outputs: Mapping[str, Any], arrived: Arrived) -> dict[str, str]:
        """Give files their names, and rows that the driver has to see to their sinks; why sinks refused, by query."""
        entries, written = self.catalog.entries, self.executor.written
        streams = {name: figures.stream for name, figures in self.catalog.streams.items()}
        schemas = {name: entries[name].query.schema for name in outputs}
        spooled: list[dict[str, pa.Table]] = [
            {} if cell.spool is None else read_spool(cell.spool, schemas) for cell in written
        ]
        self.driver_rows += sum(table.num_rows for tables in spooled for table in tables.values())
        refused: dict[str, str] = {}
        whole: dict[str, pa.Table] = {}
        for name, found in outputs.items():
            entry = entries[name]
            tables = [cell[name] for cell in spooled if name in cell]
            rows = pa.concat_tables(tables) if tables else schemas[name].empty_table()
            if entry.writer is not None and not any(name in cell.files or name in cell.refused for cell in written):
                whole[name] = rows
                continue
            taken = found.num_rows
            if entry.writer is not None:
                why, left = self._publish_files(name, spooled, schemas[name])
                if why is not None:
                    refused[name] = why
                    self._keep(entry, arrived.batch, left)
                    taken -= left.num_rows
            entry.newest.write(arrived.batch, rows, found.num_rows)
            buckets = [bucket for stream, bucket in arrived.buckets.items() if stream in entry.streams]
            entry.delivered(taken, mean_event_time(buckets, streams))
        return {**refused, **deliver(whole, arrived, entries, streams, self._journal)}

    def _publish_files(
        self, name: str, spooled: list[dict[str, pa.Table]], schema: pa.Schema
    ) -> tuple[str | None, pa.Table]:
        """Name the files of a query; why that failed, and the rows that have no file."""
        why: str | None = None
        left: list[pa.Table] = [schema.empty_table()]
        for cell, tables in zip(self.executor.written, spooled, strict=True):
            if name in cell.refused:
                why = cell.refused[name]
                left.append(tables[name])
            elif name in cell.files:
                hidden, final = cell.files[name]
                try:
                    publish(hidden, final)
                except OSError as error:
                    why = f"{hidden} can't be renamed: {error}"
                    with contextlib.suppress(OSError), place(hidden).open("rb") as file:
                        left.append(pq.read_table(file).cast(schema))
        return why, pa.concat_tables(left)

    def _keep(self, entry: RunningQuery, batch: int, rows: pa.Table) -> None:
        """Keep rows that a sink refused."""
        if rows.num_rows:
            self.driver_rows += rows.num_rows
            self._journal.write_undelivered(entry.name, batch, rows)
            entry.undelivered += rows.num_rows
