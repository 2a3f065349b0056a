"""Rows as Parquet files, exactly once: a file for each batch that has rows, under a name that says which.

A file appears whole under its name or not at all, and a batch that comes again after a crash replaces its file by the
same rows. So every reader of the directory sees each row once, at any moment, without any list of valid files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.adhoc.engine.journal_files import safe_name
from streamjoin.adhoc.sinks.base import Target
from streamjoin.formats.tables import checked_compression
from streamjoin.model.errors import SpecError, StreamJoinError
from streamjoin.storage.pieces import atomic
from streamjoin.storage.places import Place, entries, place

_MARK: Final = 12
"""How much of an engine's id is in the names of its files."""


@dataclass(frozen=True)
class ParquetSink:
    """A directory of Parquet files, exactly once.

    Args:
        path: the directory; made when it is not there. With a scheme (s3://, hdfs://, ...) it may be on any file system
            that Arrow reaches.
        compression: how the files are compressed.
        append: write beside files that another engine left there.
    """

    path: str
    compression: str = "zstd"
    append: bool = False
    kind: ClassVar[str] = "parquet"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        if not self.path:
            raise SpecError("a ParquetSink needs the path of a directory")
        checked_compression(self.compression)

    def open(self, target: Target) -> ParquetWriter:
        """A writer for a query's files.

        Raises:
            SpecError: the directory has Parquet files that this engine did not write.
        """
        return ParquetWriter(self, target)

    def spec(self) -> dict[str, Any]:
        """All fields."""
        return {"kind": self.kind, "path": self.path, "compression": self.compression, "append": self.append}

    def __str__(self) -> str:
        return f"parquet {self.path}"


def file_prefix(query: str, engine: str) -> str:
    """How the names of a query's files begin, for an engine by its id."""
    return f"{safe_name(query)}-{engine[:_MARK]}-"


class ParquetWriter:
    """Writes one Parquet file per batch, under a name that a repeated batch replaces."""

    def __init__(self, sink: ParquetSink, target: Target) -> None:
        self._sink = sink
        self._directory = place(sink.path)
        self._mark = target.engine[:_MARK]
        self._prefix = file_prefix(target.query, target.engine)
        for entry in entries(self._directory):
            if entry.name.startswith(f".{self._prefix}"):
                # A crash left it half written.
                entry.unlink(missing_ok=True)
            elif not sink.append:
                self._refuse_foreign(entry)
        if not self._directory.is_dir():
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SpecError(f"the directory {sink.path} can't be made: {error}") from error

    def _refuse_foreign(self, entry: Place) -> None:
        if entry.suffix == ".parquet" and not entry.name.startswith(".") and f"-{self._mark}-" not in entry.name:
            raise SpecError(
                f"{self._sink.path} has Parquet files that this engine did not write ({entry.name}): name an empty "
                "directory, or write beside them with append=True"
            )

    def write(self, batch: int, rows: pa.Table) -> None:
        """Make the batch's file."""
        try:
            with atomic(self._directory / f"{self._prefix}{batch:012}.parquet") as file:
                pq.write_table(rows, file, compression=self._sink.compression)
        except StreamJoinError as error:
            raise OSError(f"no file can be written to {self._sink.path}: {error.__cause__ or error}") from error

    def close(self) -> None:
        """Nothing is open between two batches."""
