"""Files of a remote log kept on the local disk, so that they are fetched once a host and mapped from there.

The log's files never change, so a copy is good as long as the file's size and time are those it was taken at. The cache
is shared by all workers of a host and holds at most `STREAMJOIN_CACHE_BYTES` (8 GiB if unset): what was used longest
ago goes first. Who has a file mapped keeps it although it is removed.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import mmap
import os
import tempfile
import uuid
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from streamjoin.storage.places import RemotePath

DEFAULT_BYTES = 8 << 30


def directory() -> Path:
    """Where the copies lie: `STREAMJOIN_CACHE_DIR`, or a directory of the user among the temporary files."""
    named = os.environ.get("STREAMJOIN_CACHE_DIR")
    return Path(named) if named else Path(tempfile.gettempdir()) / f"streamjoin-cache-{getpass.getuser()}"


def mapped(path: RemotePath, info: fs.FileInfo | None = None) -> pa.Buffer:
    """The bytes of `path`, mapped from the local disk; `info` is what is known of it already.

    Others make room meanwhile: any copy may go at any moment.
    """
    info = info or path.info()
    copy = copy_of(path, info)
    try:
        os.utime(copy)
        return pa.memory_map(str(copy)).read_buffer()
    except FileNotFoundError:
        return _fetched(path, copy, info.size or 0)


def copy_of(path: RemotePath, info: fs.FileInfo) -> Path:
    """Where the copy of `path`, as `info` describes it, lies or will."""
    if info.mtime_ns is None and info.size is None:
        raise FileNotFoundError(str(path))
    digest = hashlib.sha256(f"{path} {info.size} {info.mtime_ns}".encode()).hexdigest()[:32]
    return directory() / digest


def _fetched(path: RemotePath, copy: Path, size: int) -> pa.Buffer:
    copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_room(size)
    draft = copy.with_name(f".{copy.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("wb+") as target:
            path.copy_to(target)
            target.flush()
            # Mapped before it has its name, and not by its name: it need not be there any more.
            whole = mmap.mmap(target.fileno(), 0, access=mmap.ACCESS_READ) if target.tell() else b""
        with contextlib.suppress(FileNotFoundError):
            draft.rename(copy)
    finally:
        draft.unlink(missing_ok=True)
    return pa.py_buffer(whole)


def make_room(size: int) -> None:
    """Remove the copies used longest ago until `size` more bytes fit."""
    limit = int(os.environ.get("STREAMJOIN_CACHE_BYTES") or DEFAULT_BYTES)
    found = []
    for copy in directory().iterdir():
        with contextlib.suppress(FileNotFoundError):
            stat = copy.stat()
            found.append((stat.st_mtime_ns, stat.st_size, copy))
    held = sum(entry[1] for entry in found)
    for _, bytes_, copy in sorted(found, key=lambda entry: entry[0]):
        if held + size <= limit:
            break
        copy.unlink(missing_ok=True)
        held -= bytes_
