"""Piece files: the rows of one range in one version of the log, written once and mapped by readers.

A file has the magic word, the record batches of both sides (Arrow IPC, not compressed, aligned so that mapped bytes
need no copy), and a footer: JSON, its length and checksum, and the magic word again. Files appear whole and never
change. The first task that publishes a name wins; all tasks that try have the same rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from streamjoin._arrays import Array
from streamjoin.model.errors import CheckpointError
from streamjoin.storage.cache import is_fixed, keep_copy, mapped, mapped_fixed
from streamjoin.storage.places import Place, RemotePath

MAGIC = b"SJPIECE\n"
_ALIGNMENT = 64
_TAIL = struct.Struct("<qI8s")


@dataclass(frozen=True)
class Block:
    """The position of a record batch in its file, its smallest and largest word, and its checksum.

    In a join on intervals all rows of a block are of one class by length.
    """

    offset: int
    length: int
    rows: int
    first: int
    last: int
    checksum: int
    length_class: int | None = None

    def packed(self) -> list[int]:
        """The block as JSON data."""
        own_class = [] if self.length_class is None else [self.length_class]
        return [self.offset, self.length, self.rows, self.first, self.last, self.checksum, *own_class]

    @staticmethod
    def unpacked(blocks: Iterable[Any]) -> tuple[Block, ...]:
        """Blocks from what `packed` returned for each."""
        return tuple(Block(*block) for block in blocks)


@dataclass(frozen=True)
class BlockRows:
    """A record batch to write, with its smallest and largest word, and the class of its intervals if it has any."""

    batch: pa.RecordBatch
    first: int
    last: int
    length_class: int | None = None


BothSidesRows = Sequence[Iterable[BlockRows]]
"""The record batches of both sides, and after them those of other parts (`manifest.py`), where a join has them."""


def write_piece(
    path: Place, sides: BothSidesRows, footer: Mapping[str, Any], arrays: Mapping[str, Array] | None = None
) -> None:
    """Publish a piece; the footer gets the blocks of both sides under "blocks", those of `arrays` under "arrays"."""
    if not (isinstance(path, RemotePath) and path.in_store) and path.exists():
        # In an object store the write itself finds out.
        return
    with atomic(path, once=True) as file:
        file.write(MAGIC)
        blocks: dict[str, Any] = {"blocks": [[_append(file, rows).packed() for rows in side] for side in sides]}
        if arrays is not None:
            blocks["arrays"] = {name: _append(file, _block(array)).packed() for name, array in arrays.items()}
        text = json.dumps({**footer, **blocks}, separators=(",", ":"), sort_keys=True).encode()
        file.write(text)
        file.write(_TAIL.pack(len(text), zlib.crc32(text), MAGIC))


def _append(file: Any, rows: BlockRows) -> Block:
    file.write(bytes(-file.tell() % _ALIGNMENT))
    offset = file.tell()
    buffer = rows.batch.serialize()
    file.write(buffer)
    return Block(offset, buffer.size, rows.batch.num_rows, rows.first, rows.last, zlib.crc32(buffer), rows.length_class)


def _block(array: Array) -> BlockRows:
    return BlockRows(pa.record_batch([pa.array(array)], names=["values"]), 0, 0)


class atomic:  # noqa: N801 - used as a statement, like open
    """A file that appears under its name complete and on disk, or not at all.

    It replaces an existing file; with `once`, the existing file stays.
    """

    def __init__(self, path: Place, *, once: bool = False) -> None:
        self._path = path
        self._once = once
        self._draft: Path | None = None

    def __enter__(self) -> Any:
        try:
            if isinstance(self._path, RemotePath):
                self._file: Any = tempfile.TemporaryFile()
            else:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._draft = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}")
                self._file = self._draft.open("wb")
        except OSError as failure:
            raise self._failed(failure) from failure
        return self._file

    def _finish(self) -> None:
        self._file.flush()
        if isinstance(self._path, RemotePath):
            self._file.seek(0)
            if self._path.publish(self._file, once=self._once) and is_fixed(self._path):
                keep_copy(self._path, self._file)
        elif self._draft is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            if not self._once or not _named_once(self._draft, self._path):
                self._draft.rename(self._path)

    def _failed(self, failure: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self._path} can't be written: {failure.strerror or failure}. Nothing is lost: free disk space or "
            "fix the permissions and restart the query"
        )

    def __exit__(self, kind: object, error: object, _: object) -> None:
        try:
            if kind is None:
                self._finish()
            elif isinstance(error, OSError):
                raise error
        except OSError as failure:
            raise self._failed(failure) from failure
        finally:
            with contextlib.suppress(OSError):
                self._file.close()
            if self._draft is not None:
                self._draft.unlink(missing_ok=True)


def _named_once(draft: Path, path: Path) -> bool:
    """Link `draft` as `path` unless that exists; False if `path` does not exist because links are not supported."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        return True
    except OSError:
        # Without links, another process can create the file between this check and the rename.
        return path.exists()
    return True


def read_footer(path: Place) -> dict[str, Any]:
    """The footer of a piece."""
    try:
        with _opened(path) as file:
            # Google's store refuses to read from the end of a file, which Arrow does at once when it goes there.
            size = file.size() if isinstance(file, pa.NativeFile) else file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL.size))
            length, checksum, magic = _TAIL.unpack(file.read(_TAIL.size))
            if magic != MAGIC or not 0 <= length <= size - _TAIL.size - len(MAGIC):
                raise ValueError
            file.seek(size - _TAIL.size - length)
            text = file.read(length)
            if zlib.crc32(text) != checksum:
                raise ValueError
            footer: dict[str, Any] = json.loads(text)
            return footer
    except (OSError, ValueError, struct.error) as error:
        raise damaged(path, error) from error


def _opened(path: Place) -> Any:
    if isinstance(path, RemotePath) and is_fixed(path):
        return pa.BufferReader(mapped_fixed(path))
    return path.open("rb")


def damaged(path: Place, error: Exception | None = None) -> CheckpointError:
    """The error for a file of the log that can't be read."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        reason = error.strerror or error
        return CheckpointError(
            f"the file {path} of the window log can't be read: {reason}. Nothing is lost: restart the query"
        )
    what = "is missing" if isinstance(error, FileNotFoundError) else "is damaged or not a piece of a window log"
    return CheckpointError(f"the file {path} of the window log {what}; restore it from a copy of the checkpoint")


class MappedPiece:
    """A piece mapped into memory; its batches are checked when they are first used."""

    def __init__(self, path: Place) -> None:
        self._path = path
        self._batches: dict[Block, pa.RecordBatch] = {}
        try:
            if isinstance(path, RemotePath) and is_fixed(path):
                self._buffer = mapped_fixed(path)
            elif isinstance(path, RemotePath):
                info = path.info()
                self._identity = _remote_identity(path, info)
                self._buffer = mapped(path, info)
            else:
                self._identity = identity(path)
                self._buffer = pa.memory_map(str(path)).read_buffer()
        except (OSError, pa.ArrowInvalid) as error:
            raise damaged(path, error) from error

    def current(self) -> bool:
        """Whether the file is still the mapped one: a checkpoint can be deleted and started again in its place."""
        try:
            return is_fixed(self._path) or identity(self._path) == self._identity
        except OSError as error:
            raise damaged(self._path, error) from error

    def batch(self, block: Block, schema: pa.Schema) -> pa.RecordBatch:
        """The rows of a block, without a copy."""
        rows = self._batches.get(block)
        if rows is None:
            rows = self._batches[block] = self._read(block, schema)
        return rows

    def array(self, footer: Mapping[str, Any], name: str, type_: pa.DataType) -> Array:
        """One of the arrays of the piece, without a copy."""
        rows = self.batch(Block(*footer["arrays"][name]), pa.schema([("values", type_)]))
        values: Array = rows.column(0).to_numpy(zero_copy_only=True)
        return values

    def glimpse(self, block: Block, schema: pa.Schema) -> pa.RecordBatch:
        """The rows of a block without a look at its checksum: nothing of them is loaded by this."""
        try:
            return pa.ipc.read_record_batch(self._buffer.slice(block.offset, block.length), schema)
        except (pa.ArrowException, IndexError) as error:
            raise damaged(self._path, error) from error

    def check(self, block: Block) -> pa.Buffer:
        """The bytes of a block; raises if their checksum is wrong."""
        if block.offset + block.length > self._buffer.size:
            raise damaged(self._path)
        body = self._buffer.slice(block.offset, block.length)
        if zlib.crc32(body) != block.checksum:
            raise damaged(self._path)
        return body

    def _read(self, block: Block, schema: pa.Schema) -> pa.RecordBatch:
        body = self.check(block)
        try:
            batch = pa.ipc.read_record_batch(body, schema)
        except pa.ArrowException as error:
            raise damaged(self._path, error) from error
        if batch.num_rows != block.rows:
            raise damaged(self._path)
        return batch


def identity(path: Place) -> tuple[int | None, int | None, int]:
    """What tells a file from another one that had its name before it."""
    if isinstance(path, RemotePath):
        return _remote_identity(path, path.info())
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _remote_identity(path: RemotePath, info: fs.FileInfo) -> tuple[int | None, int | None, int]:
    if info.size is None:
        raise FileNotFoundError(str(path))
    return None, info.mtime_ns, info.size
