"""Data files of a table: Parquet files that count once a commit lists them.

A file gets a name that no other file ever has, so that a task or a batch that runs again never replaces one that is
committed. Files that no commit lists are left to the clean-up of the table format (VACUUM, removal of orphan files):
whether a commit that failed was made after all can't be known for certain, so nothing here deletes files.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.formats.column_bounds import ColumnBounds
from streamjoin.formats.table_types import as_stored
from streamjoin.model.errors import StreamJoinError
from streamjoin.storage.pieces import atomic
from streamjoin.storage.places import place


@dataclass(frozen=True)
class DataFile:
    """A data file of a table, with what a commit says of it."""

    location: str
    rows: int
    size: int
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """The least and the greatest value of columns, as JSON has them, where the layout asks for them."""
    nulls: Mapping[str, int] = field(default_factory=dict)

    def packed(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class FileLayout:
    """Where the data files of a table are, their columns and how their names begin; tasks get it by value."""

    directory: str
    schema: pa.Schema
    prefix: str
    compression: str
    bounds: bool = False
    """Whether a commit needs the bounds of columns."""

    def write(self, batch: int, rows: Iterable[pa.RecordBatch]) -> DataFile | None:
        """Write rows of a batch as a data file; None without a row.

        Raises:
            InputError: a value does not fit its column.
            OSError: the file can't be written.
        """
        location = f"{self.directory}/{self.prefix}{batch:012}-{uuid.uuid4().hex}.parquet"
        filled = (part for part in rows if part.num_rows)
        first = next(filled, None)
        if first is None:
            return None
        rows_written = 0
        bounds = ColumnBounds(self.schema if self.bounds else pa.schema([]))
        try:
            with atomic(place(location)) as file:
                # Readers of tables have the types from the table, not from Arrow's note in a file.
                options: dict[str, Any] = {"compression": self.compression, "store_schema": False}
                with pq.ParquetWriter(file, self.schema, **options) as writer:
                    for part in itertools.chain([first], filled):
                        table = as_stored(pa.Table.from_batches([part]), self.schema)
                        bounds.add(table)
                        writer.write_table(table)
                        rows_written += table.num_rows
                size = file.tell()
        except StreamJoinError as error:
            if isinstance(error.__cause__, OSError):
                raise OSError(f"no file can be written to {self.directory}: {error.__cause__}") from error
            raise
        return DataFile(location, rows_written, size, bounds.ends(), bounds.nulls)


@dataclass(frozen=True)
class RowsInFiles:
    """Rows of a batch that tasks have written as data files, and that no commit lists yet."""

    schema: pa.Schema
    files: tuple[DataFile, ...]

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return sum(file.rows for file in self.files)

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return sum(file.size for file in self.files)

    def table(self) -> pa.Table:
        """The rows."""
        tables = [self.schema.empty_table()]
        for written in self.files:
            with place(written.location).open("rb") as file:
                tables.append(pq.read_table(file).select(self.schema.names).cast(self.schema))
        return pa.concat_tables(tables)
