"""A cache of a remote log's files on the local disk: each host fetches a file once and maps the copy.

The log's files never change, so a copy is valid while the file has the same size and time. All workers of a host share
the cache. It holds at most `STREAMJOIN_CACHE_BYTES` (8 GiB if unset) and evicts the least recently used copies. A
process that has mapped a copy can still read it after its removal.
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
    """The directory of the copies: `STREAMJOIN_CACHE_DIR`, or one per user in the temporary directory."""
    setting = os.environ.get("STREAMJOIN_CACHE_DIR")
    return Path(setting) if setting else Path(tempfile.gettempdir()) / f"streamjoin-cache-{getpass.getuser()}"


def mapped(path: RemotePath, info: fs.FileInfo | None = None) -> pa.Buffer:
    """The bytes of `path`, mapped from the local disk; `info` is its file information, if the caller has it.

    Other processes evict copies at the same time, so any copy may disappear at any moment.
    """
    info = info or path.info()
    copy = copy_of(path, info)
    try:
        os.utime(copy)
        return pa.memory_map(str(copy)).read_buffer()
    except FileNotFoundError:
        return _fetched(path, copy, info.size or 0)


def copy_of(path: RemotePath, info: fs.FileInfo) -> Path:
    """The path of the copy of `path` with the size and time in `info`, whether it exists or not."""
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
            # Mapped before the rename, through the open file: another process may remove the copy at once.
            whole = mmap.mmap(target.fileno(), 0, access=mmap.ACCESS_READ) if target.tell() else b""
        with contextlib.suppress(FileNotFoundError):
            draft.rename(copy)
    finally:
        draft.unlink(missing_ok=True)
    return pa.py_buffer(whole)


def make_room(size: int) -> None:
    """Remove the least recently used copies until `size` more bytes fit."""
    limit = int(os.environ.get("STREAMJOIN_CACHE_BYTES") or DEFAULT_BYTES)
    copies = []
    for copy in directory().iterdir():
        with contextlib.suppress(FileNotFoundError):
            stat = copy.stat()
            copies.append((stat.st_mtime_ns, stat.st_size, copy))
    total = sum(entry[1] for entry in copies)
    for _, bytes_, copy in sorted(copies, key=lambda entry: entry[0]):
        if total + size <= limit:
            break
        copy.unlink(missing_ok=True)
        total -= bytes_
