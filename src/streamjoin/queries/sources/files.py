"""A directory of files that are read once each, in the order in which they came: JSON lines, CSV, Parquet.

The order of files is written down before they are read, and a position is a number of files of this list: a restart
continues with the same file. A file must be complete when it appears, so write it elsewhere and rename it.

A file whose content can't be decoded (cut off, damaged, of other types) is set aside as one malformed record that names
it, and the stream goes on: none of its rows counts. A file that can't be read is a failure of the source.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from streamjoin.formats.records import Decode
from streamjoin.joins.engine.lossless import lossless
from streamjoin.model.errors import CheckpointError, SetupError, SpecError
from streamjoin.model.plain_types import plain_table
from streamjoin.queries.engine.journal import Position, read_record, write_record
from streamjoin.queries.sources.base import SourceRows
from streamjoin.queries.sources.decoding import csv_decoder, json_decoder
from streamjoin.storage.places import Place, RemotePath, entries, place

FORMATS: Final = ("json", "csv", "parquet")
MOST_BYTES: Final = 64 << 20
"""Bytes of the files of one read; a file that is larger is read alone."""
_log = logging.getLogger("streamjoin.adhoc")
Inode = tuple[int, int]
_COMPRESSED: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


@dataclass(frozen=True)
class FileSource:
    """The files below `path`, with these columns.

    Args:
        path: a directory, or a URL that Arrow supports. Names that begin with . or _ are left out, and so are
            pipes, sockets and devices.
        format: "json" (one object per line), "csv" or "parquet".
        schema: the columns.
        options: `maxFilesPerTrigger`; of CSV also `header`, `sep`, `quote` and `nullValue`.
    """

    path: str
    format: str
    schema: pa.Schema
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise SpecError(f"a file source reads {', '.join(FORMATS)}, not {self.format!r}")
        self.decoder()
        _most_files(self.options)

    def decoder(self) -> Decode | None:
        """What decodes lines; None for Parquet.

        Raises:
            SpecError: an option is not known.
        """
        own = {key: text for key, text in self.options.items() if key not in ("maxFilesPerTrigger", "header")}
        if self.format == "csv":
            return csv_decoder(self.schema, own)
        if "header" in self.options:
            own["header"] = self.options["header"]
        decoder = json_decoder(self.schema, own)
        return decoder if self.format == "json" else None

    @property
    def header(self) -> bool:
        """Whether the first line of a CSV file has the names of the columns."""
        return self.options.get("header", "false").lower() == "true"

    @property
    def origin(self) -> str:
        """The directory."""
        root = place(self.path)
        return f"files in {root.absolute() if isinstance(root, Path) else root}"

    def open(self, notes: Place | None) -> FileReader:
        """A reader.

        Raises:
            SetupError: there is no such directory.
        """
        return FileReader(self, notes)


def _most_files(options: Mapping[str, str]) -> int:
    text = options.get("maxFilesPerTrigger", "1000")
    if not text.isdigit() or int(text) < 1:
        raise SpecError(f"maxFilesPerTrigger is a number from 1, not {text!r}")
    return int(text)


class FileReader:
    """Reads files in the order in which they came; `notes` has this order."""

    def __init__(self, source: FileSource, notes: Place | None) -> None:
        self._source, self._notes = source, notes
        self._root = place(source.path)
        self._decode = source.decoder()
        self._most = _most_files(source.options)
        if not self._root.exists():
            raise SetupError(f"there is no directory {source.path}")
        if not self._root.is_dir() and _modified(self._root) is None:
            raise SetupError(f"{source.path} is neither a directory nor a file: a file source can't read it")
        self._order: list[str] = [name for record in self._noted() for name in record["files"]]
        self._known = set(self._order)

    def _noted(self) -> list[dict[str, Any]]:
        if self._notes is None or not self._notes.exists():
            return []
        names = sorted(entry.name for entry in self._notes.iterdir() if entry.name.isdigit())
        return [read_record(self._notes / name) for name in names]

    def read(self, position: Position | None) -> SourceRows | None:
        """The rows of the next files."""
        begun = position["files"] if isinstance(position, dict) else 0
        if begun > len(self._order):
            raise CheckpointError(
                f"{self._notes} names {len(self._order)} files, but {begun} were read: restore the checkpoint from "
                "a copy"
            )
        if begun == len(self._order):
            self._find_more()
        rows, malformed, size, end = [], [], 0, begun
        for name in self._order[begun : begun + self._most]:
            file = self._root if name == "" else self._root / name
            try:
                length = _size(file)
                if end > begun and size + length > MOST_BYTES:
                    break
                content = content_of(file)
            except FileNotFoundError:
                self._check_directory()
                table, bad, length = self._aside(file, "it was removed before it was read")
            else:
                table, bad = self._rows(file, content)
            rows.append(table)
            malformed += [] if bad is None else [bad]
            size += length
            end += 1
        if end == begun:
            return None
        return SourceRows(pa.concat_tables(rows), {"files": end}, pa.concat_tables(malformed) if malformed else None)

    def left(self, position: Position | None) -> int:
        """The files after a position that are known."""
        return len(self._order) - (position["files"] if isinstance(position, dict) else 0)

    def _find_more(self) -> None:
        """Put files that are new at the end of the list, oldest first.

        Raises:
            SetupError: the directory is gone.
        """
        self._check_directory()
        files = sorted(
            (modified, name)
            for name, file in _files(self._root)
            if name not in self._known and (modified := _modified(file)) is not None
        )
        if not files:
            return
        names = [name for _, name in files]
        if self._notes is not None:
            # A reader of an earlier start, whose listing hung until now, may be at the same place: what is there stays.
            note = self._notes / f"{len(self._order):012}"
            write_record(note, {"files": names}, once=True)
            names = read_record(note)["files"]
        self._order += names
        self._known.update(names)

    def _check_directory(self) -> None:
        if not self._root.exists():
            raise SetupError(f"there is no directory {self._source.path} any more")

    def _rows(self, file: Place, content: pa.Buffer) -> tuple[pa.Table, pa.Table | None]:
        """The rows of a file, and what is malformed: lines of it, or the file as a whole."""
        try:
            return self._decoded(file, content)
        except MemoryError as error:
            # It may fit when other work is done.
            raise _too_large(file) from error
        except Exception as error:
            lines = str(error).strip().splitlines()
            return self._aside(file, lines[0] if lines else type(error).__name__)[:2]

    def _aside(self, file: Place, why: str) -> tuple[pa.Table, pa.Table, int]:
        """No rows, and a malformed record that stands for the whole file."""
        _log.warning("the file %s is set aside: %s", file, why)
        bad = pa.table({"file": [str(file)], "value": [f"the whole file is set aside: {why}"]})
        return self._source.schema.empty_table(), bad, 0

    def _decoded(self, file: Place, content: pa.Buffer) -> tuple[pa.Table, pa.Table | None]:
        if self._decode is None:
            return parquet_rows(content, self._source.schema), None
        lines = _lines(content, _COMPRESSED.get(file.suffix))
        if self._source.header:
            lines = lines[1:]
        lines = [line for line in lines if line.strip()]
        rows, good = self._decode(lines)
        if rows.num_rows == len(lines):
            return rows, None
        bad = [line.decode(errors="replace") for line, fits in zip(lines, good, strict=True) if not fits]
        return rows, pa.table({"file": pa.array([str(file)] * len(bad)), "value": pa.array(bad)})

    def close(self) -> None:
        """Nothing is open between two reads."""


def _files(root: Place, prefix: str = "", around: frozenset[Inode] = frozenset()) -> Iterator[tuple[str, Place]]:
    """The files below a directory by their names in it; the root itself, as "", if it is a file.

    `around` are the directories that it lies in: a link to one of them leads to no other files.
    """
    if not root.is_dir():
        if root.exists():
            yield "", root
        return
    if isinstance(root, Path):
        status = root.stat()
        if (status.st_dev, status.st_ino) in around:
            return
        around |= {(status.st_dev, status.st_ino)}
    for entry in entries(root):
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/", around)
        else:
            yield f"{prefix}{entry.name}", entry


def _modified(file: Place) -> int | None:
    """When a file was written; None of what is no file: a pipe, a socket, a name that is gone meanwhile.

    Raises:
        FileNotFoundError: it is a link to nothing, such as to a file system that is not mounted.
    """
    if isinstance(file, RemotePath):
        info = file.info()
        return int(info.mtime_ns or 0) if info.type != fs.FileType.NotFound else None
    try:
        status = file.stat()
    except FileNotFoundError:
        if file.is_symlink():
            raise
        return None
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else None


def _size(file: Place) -> int:
    if isinstance(file, RemotePath):
        return int(file.info().size or 0)
    return file.stat().st_size


def content_of(file: Place) -> pa.Buffer:
    """The bytes of a file.

    Raises:
        OSError: it can't be read; the message names it.
    """
    try:
        return pa.py_buffer(file.read_bytes())
    except FileNotFoundError:
        raise
    except MemoryError as error:
        raise _too_large(file) from error
    except OSError as error:
        # Those of Arrow's file systems do not say which file it was.
        raise OSError(f"{file} can't be read: {error.strerror or error}") from error


def _too_large(file: Place) -> MemoryError:
    return MemoryError(f"{file} takes more memory than there is: divide it into smaller files")


def _lines(content: pa.Buffer, codec: str | None) -> list[bytes]:
    if codec is not None:
        if not content.size:
            raise ValueError(f"it is empty, which no {codec} file is")
        content = pa.CompressedInputStream(pa.BufferReader(content), codec).read_buffer()
    return [line.removesuffix(b"\r") for line in content.to_pybytes().split(b"\n")]


def parquet_rows(content: pa.Buffer, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`; one that the file lacks is NULL.

    Raises:
        OSError: a column has values that the schema's type can't hold, or it is no Parquet file.
    """
    try:
        table = plain_table(pq.read_table(pa.BufferReader(content)))
    except (OSError, pa.ArrowException) as error:
        raise OSError(f"it can't be read as Parquet: {error}") from error
    columns = []
    for column in schema:
        if column.name not in table.column_names:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, column.type)]))
            continue
        cast = lossless(_with_zone(table.column(column.name), column.type), column.type)
        if cast is None:
            raise OSError(
                f"column {column.name!r} is {table.schema.field(column.name).type}, which is no {column.type}"
            )
        columns.append(cast)
    return pa.Table.from_arrays(columns, schema=schema)


def _with_zone(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """A timestamp with or without a time zone as the schema has it; a file without one means UTC."""
    if not (pa.types.is_timestamp(column.type) and pa.types.is_timestamp(type_)):
        return column
    if (column.type.tz is None) == (type_.tz is None):
        return column
    return column.cast(pa.timestamp(column.type.unit, type_.tz))
