"""Delta and Iceberg tables as streams: what is in a table at first, and what later versions append.

Versions are read in order, each once. The invariant: the same position gives the same rows. A version that deletes or
changes rows ends the stream with an error, because rows that were joined can't be taken back; one that only rewrites
files (compaction) is passed over.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from streamjoin.formats.delta import delta_errors, delta_location, delta_options, open_delta
from streamjoin.formats.iceberg import iceberg_errors, iceberg_options, open_catalog
from streamjoin.formats.table_types import stored_schema
from streamjoin.model.errors import NotSupportedError, StateError
from streamjoin.queries.engine.journal import Position
from streamjoin.queries.sources.base import SourceRows
from streamjoin.queries.sources.files import MOST_BYTES, content_of, parquet_rows
from streamjoin.storage.places import Place, place, read_if_there

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_NOT_READ: Final = frozenset({"columnMapping", "deletionVectors", "typeWidening", "variantType"})
_AGAIN: Final = "register it under another name to read all of it again"
_REWRITTEN: Final = f"{{}} deletes or changes rows, and a stream is rows that are appended: {_AGAIN}"


@dataclass(frozen=True)
class DeltaSource:
    """The rows of a Delta table, and those that are appended to it.

    Args:
        path: the table's directory or URL.
        options: of `deltalake` for the store, besides the storage settings of streamjoin.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def load(self, version: int | None = None) -> DeltaTable:
        """The table, or a version of it."""
        return open_delta(self.path, delta_options(self.options), version)

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table has now.

        Raises:
            StateError: it can't be read.
        """
        return pa.schema(self.load().schema().to_arrow())

    @property
    def origin(self) -> str:
        """The table."""
        return f"the Delta table {self.path}"

    def open(self, notes: Place | None) -> DeltaReader:  # noqa: ARG002
        """A reader.

        Raises:
            NotSupportedError: the table has features that are not read.
        """
        return DeltaReader(self)


@dataclass(frozen=True)
class _DeltaFile:
    path: str
    size: int
    partition: Mapping[str, str | None]


class DeltaReader:
    """Reads the files of one version after another; a position is a version and how many of its files were read."""

    def __init__(self, source: DeltaSource) -> None:
        self._source = source
        self._table = source.load()
        self._options = delta_options(source.options)
        self.schema = pa.schema(self._table.schema().to_arrow())
        features = set(self._table.protocol().reader_features or ()) & _NOT_READ
        mapped = self._table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
        if features or mapped:
            names = ", ".join(sorted(features | ({"columnMapping"} if mapped else set())))
            raise NotSupportedError(f"the Delta table {source.path} has {names}, which streamjoin does not read")
        self._root = delta_location(source.path)
        self._listed: tuple[tuple[int, bool], list[_DeltaFile]] | None = None

    def read(self, position: Position | None) -> SourceRows | None:
        """The next files."""
        if not isinstance(position, dict):
            with delta_errors(self._source.path, self._options):
                self._table.update_incremental()
                first = self._table.version()
            return SourceRows(self.schema.empty_table(), {"version": first, "whole": True, "files": 0})
        version, whole, done = int(position["version"]), bool(position["whole"]), int(position["files"])
        files = self._files(version, whole)
        while files is not None and done >= len(files):
            version, whole, done = version + 1, False, 0
            files = self._files(version, whole)
        if files is None:
            return None
        taken: list[pa.Table] = []
        size = 0
        for file in files[done:]:
            if taken and size + file.size > MOST_BYTES:
                break
            taken.append(self._rows(file))
            size += file.size
        return SourceRows(pa.concat_tables(taken), {"version": version, "whole": whole, "files": done + len(taken)})

    def left(self, position: Position | None) -> int:
        """The files of the version that is read, and the versions after it that are known."""
        if not isinstance(position, dict):
            return 0
        version = int(position["version"])
        listed = self._listed is not None and self._listed[0] == (version, bool(position["whole"]))
        files = len(self._listed[1]) - int(position["files"]) if listed and self._listed is not None else 0
        return files + max(0, self._table.version() - version)

    def _files(self, version: int, whole: bool) -> list[_DeltaFile] | None:
        """All files of a version, or those that it added; None if there is no such version yet."""
        if self._listed is not None and self._listed[0] == (version, whole):
            return self._listed[1]
        files = self._all(version) if whole else self._added(version)
        if files is not None:
            files.sort(key=lambda file: file.path)
            self._listed = (version, whole), files
        return files

    def _all(self, version: int) -> list[_DeltaFile]:
        table = self._source.load(version)
        with delta_errors(self._source.path, self._options):
            actions = pa.table(table.get_add_actions()).to_pylist()
        return [_DeltaFile(one["path"], one["size_bytes"], _texts(one.get("partition"))) for one in actions]

    def _added(self, version: int) -> list[_DeltaFile] | None:
        log = read_if_there(place(f"{self._root}/_delta_log/{version:020}.json"))
        if log is None:
            with delta_errors(self._source.path, self._options):
                self._table.update_incremental()
                newest = self._table.version()
            if newest >= version:
                raise StateError(
                    f"the Delta table {self._source.path} no longer has the log of version {version}: {_AGAIN}"
                )
            return None
        files = []
        for line in log.splitlines():
            action = json.loads(line)
            if "remove" in action and action["remove"].get("dataChange", True):
                raise StateError(_REWRITTEN.format(f"version {version} of the Delta table {self._source.path}"))
            if "add" in action and action["add"].get("dataChange", True):
                add = action["add"]
                files.append(_DeltaFile(add["path"], add["size"], add.get("partitionValues") or {}))
        return files

    def _rows(self, file: _DeltaFile) -> pa.Table:
        stored = pa.schema([column for column in self.schema if column.name not in file.partition])
        path = place(f"{self._root}/{urllib.parse.unquote(file.path)}")
        content = content_of(path)
        try:
            rows = parquet_rows(content, stored)
        except OSError as error:
            raise OSError(f"{path}: {error}") from error
        columns = [
            pa.nulls(rows.num_rows, column.type)
            if column.name in file.partition and file.partition[column.name] in (None, "")
            else pa.array([file.partition[column.name]] * rows.num_rows, pa.string()).cast(column.type)
            if column.name in file.partition
            else rows.column(column.name)
            for column in self.schema
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def close(self) -> None:
        """Nothing is open between two reads."""


def _texts(values: Mapping[str, Any] | None) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in (values or {}).items()}


@dataclass(frozen=True)
class IcebergSource:
    """The rows of an Iceberg table, and those that are appended to it.

    Args:
        table: the table with its namespace.
        catalog: the catalog's name, as in pyiceberg's own configuration file.
        options: the catalog's properties, besides that configuration and the storage settings of streamjoin.
    """

    table: str
    catalog: str = "default"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table has now.

        Raises:
            StateError: it can't be read.
        """
        return IcebergReader(self).schema

    @property
    def origin(self) -> str:
        """The table."""
        return f"the Iceberg table {self.table} in {self.catalog}"

    def open(self, notes: Place | None) -> IcebergReader:  # noqa: ARG002
        """A reader."""
        return IcebergReader(self)


class IcebergReader:
    """Reads one snapshot after another; a position is the last that was read."""

    def __init__(self, source: IcebergSource) -> None:
        self._source = source
        self._options = iceberg_options(source.options)
        with iceberg_errors(source.table, self._options):
            self._catalog = open_catalog(source.catalog, self._options)
            self.schema = stored_schema(self._catalog.load_table(source.table).schema().as_arrow(), "Iceberg")

    def read(self, position: Position | None) -> SourceRows | None:
        """What the next snapshot appended; at first, all rows."""
        with iceberg_errors(self._source.table, self._options):
            table = self._catalog.load_table(self._source.table)
            current = table.current_snapshot()
            if current is None:
                return None
            if not isinstance(position, dict):
                rows = table.scan(snapshot_id=current.snapshot_id).to_arrow()
                return SourceRows(self._typed(rows), {"snapshot": current.snapshot_id})
            last = int(position["snapshot"])
            following = self._following(table, current, last)
            if following is None:
                return None
            operation = following.summary.operation.value if following.summary is not None else "overwrite"
            if operation not in ("append", "replace"):
                raise StateError(
                    _REWRITTEN.format(f"snapshot {following.snapshot_id} of the Iceberg table {self._source.table}")
                )
            scan = table.incremental_append_scan(
                from_snapshot_id_exclusive=last, to_snapshot_id_inclusive=following.snapshot_id
            )
            return SourceRows(self._typed(scan.to_arrow()), {"snapshot": following.snapshot_id})

    def _following(self, table: Table, current: Snapshot, last: int) -> Snapshot | None:
        """The snapshot after the last one that was read; None if that is the current one."""
        if current.snapshot_id == last:
            return None
        snapshot: Snapshot | None = current
        while snapshot is not None:
            if snapshot.parent_snapshot_id == last:
                return snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        raise StateError(f"the Iceberg table {self._source.table} no longer has the snapshots after {last}: {_AGAIN}")

    def _typed(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.schema.names).cast(self.schema)

    def close(self) -> None:
        """Nothing is open between two reads."""
