"""What the distributed engine writes down beside its log: the files with tuples and rows that tasks wrote.

    tuples/<stream>-<n>-<id>/  the part files of the stream's micro-batch n, as one try wrote them
    buckets/<stream>-<batch>   the list of a batch's parts
    outputs/<batch>            the files with a batch's rows: written before any of them gets its name
    spool/<batch>-<cell>-<id>  rows that the driver reads, and rows that wait for a Parquet file
    waiting/<batch>            the files with what waits after the batch of outer, semi, anti and as-of joins
    waiting/<batch>-<cell>-<id> what waits in a cell

The invariant: a file is removed only when no record that a restart would begin from lists it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from streamjoin.queries.core.arrivals import Arrived
from streamjoin.queries.engine.journal import Body, FileJournal, Position, read_record, safe_name, write_record
from streamjoin.queries.executors.distributed.outputs import CellsWaiting, WaitingTuples, WrittenRows, move, remove
from streamjoin.queries.executors.distributed.parts import FiledBucket, PartFile, ReadParts, read_filed_bucket
from streamjoin.storage.places import Place, entries, place


class FiledJournal:
    """Lists the files of tasks; `log` has everything else."""

    kind = "distributed"

    def __init__(self, checkpoint: str, aside_bytes: int = 4 << 30) -> None:
        self.log = FileJournal(checkpoint, self.kind, aside_bytes)
        self._directories: dict[tuple[str, int], str] = {}
        self._listed: dict[int, tuple[WrittenRows, ...]] = {}
        """The outputs of batches that are done, as long as rows of them, or of batches before, are in the pool."""
        self._waiting_records: list[CellsWaiting] = []
        """The lists of what waits that are kept, by batch."""

    def tuples_directory(self, stream: str, spark_batch: int) -> str:
        """A new directory for the parts of a micro-batch."""
        return str(self.log.root / "tuples" / f"{safe_name(stream)}-{spark_batch:09}-{uuid.uuid4().hex[:8]}")

    @property
    def spool(self) -> str:
        """The directory for rows that the driver reads."""
        return str(self.log.root / "spool")

    @property
    def waiting(self) -> str:
        """The directory for what waits."""
        return str(self.log.root / "waiting")

    @property
    def bucket_pattern(self) -> str:
        """The name of a bucket's list of parts, with places for the stream's name (made safe) and the batch."""
        return str(self.log.root / "buckets" / "{}-{:012}")

    def read_bucket(self, stream: str, batch: int) -> FiledBucket:
        """A bucket's list of parts."""
        bucket = read_filed_bucket(self.log.bucket(stream, batch))
        self._directories[stream, batch] = _directory(bucket.parts)
        return bucket

    # Input --------------------------------------------------------------------------------------------------------

    def write_input(
        self,
        arrived: Arrived,
        read: Mapping[str, ReadParts],
        positions: Mapping[str, Position],
        held: Mapping[str, Iterable[int]],
        serial: int,
    ) -> None:
        """Make a batch's tuples safe; what was set aside of what was `read` gets its place first."""
        for stream, parts in read.items():
            self._move_aside(stream, arrived.batch, parts)
        kept = {stream: list(batches) for stream, batches in held.items()}
        self.log.write_input(arrived, positions, kept, serial)
        for stream, parts in read.items():
            if stream in arrived.buckets:
                self._directories[stream, arrived.batch] = _directory(parts.parts)
        listed = {(stream, batch) for stream, batches in kept.items() for batch in batches}
        for key in self._directories.keys() - listed:
            self.log.in_background(_remove_directory, place(self._directories.pop(key)))

    def _move_aside(self, stream: str, batch: int, read: ReadParts) -> None:
        for part in read.parts:
            for kind, (_, path) in part.aside.items():
                folder = "malformed" if kind == "malformed" else "late"
                name = f"{batch:012}-{kind}{part.partition:06}.parquet"
                move(place(path), self.log.root / folder / safe_name(stream) / name)

    def remove_unlisted(self, pending: int | None) -> None:
        """Remove files of tries that came to nothing; `pending` is the batch whose outputs may still be needed."""
        listed = {place(directory).name for directory in self._directories.values()}
        for entry in entries(self.log.root / "tuples"):
            if entry.name not in listed:
                _remove_directory(entry)
        for number in self.log.numbers("outputs"):
            if number != pending and number not in self._listed:
                self.log.path("outputs", number).unlink(missing_ok=True)
        outputs = self.outputs(pending) if pending is not None else None
        cells = [*(outputs or ()), *(cell for cells in self._listed.values() for cell in cells)]
        spools = {place(path).name for cell in cells for path in cell.spooled}
        for entry in entries(self.log.root / "spool"):
            if entry.name not in spools:
                entry.unlink(missing_ok=True)

        listed = {place(path).name for record in self._waiting_records for path in record.paths}
        listed |= {place(cell.waiting.path).name for cell in outputs or () if cell.waiting and cell.waiting.path}
        for entry in entries(self.log.root / "waiting"):
            if not entry.name.isdigit() and entry.name not in listed:
                entry.unlink(missing_ok=True)

    # What waits ---------------------------------------------------------------------------------------------------

    def write_waiting(self, batch: int, cells: Sequence[WaitingTuples]) -> None:
        """List the files with what waits after a batch; those of batches before the last go."""
        write_record(self.log.path("waiting", batch), {"cells": [asdict(cell) for cell in cells]})
        records = [record for record in self._waiting_records if record.batch != batch]
        self._waiting_records = [*records, CellsWaiting(batch, tuple(cells))][-self.log.kept :]
        kept = {path for record in self._waiting_records for path in record.paths}
        for record in records[: -self.log.kept + 1]:
            # The record first: what a crash leaves is not listed any more.
            paths = [path for path in record.paths if path not in kept]
            self.log.in_background(remove, [str(self.log.path("waiting", record.batch)), *paths])

    def read_waiting(self, newest: int) -> CellsWaiting:
        """What waited after a batch, the newest up to `newest` that there is."""
        bodies = {number: self.log.read("waiting", number) for number in self.log.numbers("waiting")}
        self._waiting_records = [
            CellsWaiting(number, tuple(WaitingTuples(**cell) for cell in body["cells"]))
            for number, body in bodies.items()
        ]
        return next((record for record in self._waiting_records[::-1] if record.batch <= newest), CellsWaiting())

    # Output -------------------------------------------------------------------------------------------------------

    def write_outputs(self, batch: int, cells: Sequence[WrittenRows], failures: Mapping[str, str]) -> None:
        """List the files with a batch's rows, and the queries that failed in it."""
        body: Body = {"cells": [cell.packed() for cell in cells], "failures": dict(failures)}
        write_record(self.log.path("outputs", batch), body)

    def outputs(self, batch: int) -> tuple[WrittenRows, ...] | None:
        """The files with a batch's rows; None if they were not listed."""
        body = self._outputs(batch)
        return None if body is None else tuple(WrittenRows.unpacked(cell) for cell in body["cells"])

    def failures(self, batch: int) -> dict[str, str]:
        """The queries that failed in a batch whose outputs are listed."""
        body = self._outputs(batch)
        return {} if body is None else dict(body["failures"])

    def _outputs(self, batch: int) -> Body | None:
        path = self.log.path("outputs", batch)
        return read_record(path) if path.exists() else None

    def pooled_outputs(self, pending: int | None) -> dict[int, tuple[WrittenRows, ...]]:
        """The outputs of batches that are done, by batch, which an earlier run left because of pooled rows."""
        numbers = [number for number in self.log.numbers("outputs") if number != pending]
        self._listed = {number: self.outputs(number) or () for number in numbers}
        return dict(self._listed)

    def end_outputs(self, batch: int, cells: Sequence[WrittenRows]) -> None:
        """A batch is done: its record goes with the next `release_outputs` that does not need it."""
        self._listed[batch] = tuple(cells)

    def write_flushed(self, batch: int, cells: Sequence[WrittenRows]) -> None:
        """List files with pooled rows up to a batch, which is done and has pooled rows."""
        self._listed[batch] = (*self._listed[batch], *cells)
        self.write_outputs(batch, self._listed[batch], {})

    def release_outputs(self, oldest: int | None) -> None:
        """Remove the records and spool files of all batches that are done, up to the oldest that is needed."""
        for number in sorted(self._listed):
            if oldest is not None and number >= oldest:
                break
            spools = [path for cell in self._listed.pop(number) for path in cell.spooled]
            # The record first: what a crash leaves is not listed any more.
            self.log.in_background(remove, [str(self.log.path("outputs", number)), *spools])


def _directory(parts: Sequence[PartFile]) -> str:
    return str(place(next(part.path for part in parts if part.rows)).parent)


def _remove_directory(directory: Place) -> None:
    with contextlib.suppress(OSError):
        for entry in entries(directory):
            entry.unlink(missing_ok=True)
        directory.rmdir()
