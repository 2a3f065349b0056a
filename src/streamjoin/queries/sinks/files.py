"""Rows as Parquet files, exactly once: a file appears whole, never changes, and names the batches whose rows it has.

A batch that comes again after a crash is recognised by the newest file, which lists its batches in its metadata. So
every reader of the directory sees each row once, at any moment, without any list of valid files: one that is in the
middle of a read, and one that reads each new file once. A file therefore can't be merged into another later; the rows
of many small batches get one file from the beginning (`Deliveries` gathers them).

The invariant: all files of a directory are of one query, or with `append` at least of one schema. Each file has the
query it is of in its metadata; a marker of its own would be one more file that readers of a directory trip over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.config.pipeline import sink_spec
from streamjoin.formats.tables import checked_compression
from streamjoin.model.errors import SpecError, StreamJoinError
from streamjoin.queries.engine.journal import safe_name
from streamjoin.queries.sinks.base import FileDirectory, Target
from streamjoin.storage.pieces import atomic
from streamjoin.storage.places import Place, entries, place

_MARK: Final = 12
"""How much of an engine's id is in the names of its files."""
_QUERY: Final = b"streamjoin.query"
_BATCHES: Final = b"streamjoin.batches"


@dataclass(frozen=True)
class ParquetSink:
    """A directory of Parquet files, exactly once, of one query.

    Args:
        path: the directory; made when it is not there. With a scheme (s3://, hdfs://, ...) it may be on any file system
            that Arrow reaches.
        compression: how the files are compressed.
        append: write beside files of other queries and engines, which have to have the same columns.
    """

    path: str
    compression: str = "zstd"
    append: bool = False
    kind: ClassVar[str] = "parquet"
    gathers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        if not self.path:
            raise SpecError("a ParquetSink needs the path of a directory")
        checked_compression(self.compression)

    @property
    def files(self) -> FileDirectory:
        """The directory."""
        return FileDirectory(self.path, self.compression, self.append)

    def open(self, target: Target) -> ParquetWriter:
        """A writer for a query's files.

        Raises:
            SpecError: the directory has Parquet files of another query, engine or schema.
        """
        return ParquetWriter(self, target)

    def spec(self) -> dict[str, Any] | None:
        """All fields."""
        return sink_spec(self)

    def __str__(self) -> str:
        return f"parquet {self.path}"


def file_prefix(query: str, engine: str) -> str:
    """How the names of a query's files begin, for an engine by its id."""
    return f"{safe_name(query)}-{engine[:_MARK]}-"


def query_metadata(query: str, sql: str) -> dict[bytes, bytes]:
    """What a file's metadata says of the query that its rows are of."""
    return {_QUERY: json.dumps({"name": query, "sql": sql}).encode()}


def write_parquet(file: Any, tables: Iterable[pa.Table], compression: str, metadata: Mapping[bytes, bytes]) -> None:
    """Write tables of one schema as one file with this metadata."""
    rows = pa.concat_tables(tables)
    with pq.ParquetWriter(file, rows.schema, compression=compression) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(dict(metadata))


class ParquetWriter:
    """Writes a query's files; `write_batches` makes one of the rows of several batches."""

    def __init__(self, sink: ParquetSink, target: Target) -> None:
        self._sink, self._target = sink, target
        self._directory = place(sink.path)
        self._prefix = file_prefix(target.query, target.engine)
        self._own = re.compile(re.escape(self._prefix) + r"(\d{12})(?:-(\d{12}))?\.parquet")
        self._metadata = query_metadata(target.query, target.sql)
        self._present: dict[int, int] | None = None
        """The rows of the batches in the newest file; None where that has to be looked up."""
        self._checked = False
        files = []
        for entry in entries(self._directory):
            if entry.name.startswith(f".{self._prefix}"):
                # A crash left it half written.
                entry.unlink(missing_ok=True)
            elif entry.suffix == ".parquet" and not entry.name.startswith("."):
                files.append(entry)
        self._check(files)
        if not self._directory.is_dir():
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SpecError(f"the directory {sink.path} can't be made: {error}") from error

    def _check(self, files: Sequence[Place]) -> None:
        """Refuse a directory with the rows of others; with `append`, with other columns."""
        if not files:
            return
        others = [file for file in files if not file.name.startswith(self._prefix)]
        if others and not self._sink.append:
            by_this_engine = f"-{self._target.engine[:_MARK]}-" in others[0].name
            of_whom = "rows of another query" if by_this_engine else "Parquet files that this engine did not write"
            raise self._refused(f"{of_whom} ({others[0].name})")
        newest = max([file for file in files if file not in others] or files, key=lambda file: file.name)
        schema, metadata = self._footer(newest)
        wanted = self._target.schema
        if schema.remove_metadata() != wanted.remove_metadata():
            raise self._refused(
                f"rows with other columns: {newest.name} has {_columns(schema)}, the query {_columns(wanted)}",
                append=False,
            )
        if not self._sink.append and metadata.get(_QUERY, self._metadata[_QUERY]) != self._metadata[_QUERY]:
            raise self._refused(f"rows of an earlier query {self._target.query!r} with another text ({newest.name})")
        self._checked = True

    def _refused(self, what: str, append: bool = True) -> SpecError:
        beside = ", or write beside them with append=True" if append else ""
        return SpecError(
            f"{self._sink.path} has {what}: a directory belongs to one query. Take another directory or, where the "
            f"directory is named after the query, another name; or move the files away{beside}"
        )

    def _footer(self, file: Place) -> tuple[pa.Schema, Mapping[bytes, bytes]]:
        try:
            with file.open("rb") as opened:
                footer = pq.ParquetFile(opened)
                return footer.schema_arrow, footer.metadata.metadata or {}
        except (OSError, pa.ArrowException) as error:
            raise SpecError(f"{file} can't be read, so its columns are not known: {error}") from error

    def write(self, batch: int, rows: pa.Table) -> None:
        """Make a file of a batch."""
        self.write_batches([(batch, rows)])

    def write_batches(self, group: Sequence[tuple[int, pa.Table]]) -> None:
        """Make a file of the rows of several batches, in order, without those that the newest file has already."""
        present = self._written() if self._present is None else self._present
        self._present = None
        group = [(batch, rows) for batch, rows in group if present.get(batch) != rows.num_rows]
        if group:
            first, last = group[0][0], group[-1][0]
            name = f"{self._prefix}{first:012}{f'-{last:012}' if last > first else ''}.parquet"
            present = {batch: rows.num_rows for batch, rows in group}
            metadata = {**self._metadata, _BATCHES: json.dumps(list(present.items())).encode()}
            try:
                with atomic(self._directory / name) as file:
                    write_parquet(file, [rows for _, rows in group], self._sink.compression, metadata)
            except StreamJoinError as error:
                raise OSError(f"no file can be written to {self._sink.path}: {error.__cause__ or error}") from error
        self._present = present

    def _written(self) -> dict[int, int]:
        """The rows of the batches in the newest file: what came before a crash, or a failure, may come again."""
        files = [entry for entry in entries(self._directory) if entry.suffix == ".parquet"]
        if not self._checked:
            # Somebody else may have begun to write since the directory was found empty.
            self._check([file for file in files if not file.name.startswith(".")])
        own = {found: file for file in files if (found := self._own.fullmatch(file.name))}
        if not own:
            return {}
        newest = max(own, key=lambda found: int(found[2] or found[1]))
        with own[newest].open("rb") as opened:
            footer = pq.read_metadata(opened)
        batches = (footer.metadata or {}).get(_BATCHES)
        if batches is not None:
            return dict(json.loads(batches))
        # Of an earlier version: a file for each batch. Tasks of Spark write files for several without a list.
        return {int(newest[1]): footer.num_rows} if newest[2] is None else {}

    def close(self) -> None:
        """Nothing is open between two files."""


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)
