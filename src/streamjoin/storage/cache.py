"""A cache of a remote log's files on the local disk: each host fetches a file once and maps the copy.

The log's files never change, so a copy is valid while the file has the same size and time. Names of the window log have
the number of the start that wrote them, which never comes again: copies of these need no look at the store, and who
writes such a file leaves a copy. All workers of a host share the cache. It holds at most `STREAMJOIN_CACHE_BYTES`
(8 GiB if unset) and evicts the least recently used copies. A process that has mapped a copy can still read it after its
removal.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import mmap
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import fs

from streamjoin.storage.places import Place, RemotePath

DEFAULT_BYTES = 8 << 30
_FIXED = re.compile(r"\d{13,}\.(?:\d+-of-\d+\.piece|\d+\.marks|gate|manifest)|\d+\.\d{13,}\.merge")


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


def is_fixed(path: Place) -> bool:
    """Whether a file's name is never used for another content: it is remote and has the number of a start."""
    return isinstance(path, RemotePath) and _FIXED.fullmatch(path.name) is not None


def mapped_fixed(path: RemotePath) -> pa.Buffer:
    """The bytes of a file with a name of its own, mapped from the local disk; fetched if there is no copy."""
    copy = _fixed_copy(path)
    try:
        os.utime(copy)
        return pa.memory_map(str(copy)).read_buffer()
    except FileNotFoundError:
        return _fetched(path, copy, 0)


def has_copy(path: RemotePath) -> bool:
    """Whether there is a copy of a file with a name of its own."""
    return _fixed_copy(path).exists()


def keep_copy(path: RemotePath, source: BinaryIO) -> None:
    """Leave a copy of a file that this process has written."""
    with contextlib.suppress(OSError):
        directory().mkdir(parents=True, exist_ok=True, mode=0o700)
        make_room(source.seek(0, os.SEEK_END))
    with contextlib.suppress(OSError), _draft(_fixed_copy(path)) as target:
        source.seek(0)
        shutil.copyfileobj(source, target, 1 << 22)


def kept_note(path: RemotePath) -> bytes | None:
    """What `keep_note` left for a path that may not exist in the store; None if there is nothing."""
    try:
        return _fixed_copy(path / "note").read_bytes()
    except OSError:
        return None


def keep_note(path: RemotePath, content: bytes) -> None:
    """Leave the content that the file `path` has or will have for other workers of this host."""
    with contextlib.suppress(OSError), _draft(_fixed_copy(path / "note")) as target:
        target.write(content)


def _fixed_copy(path: RemotePath) -> Path:
    return directory() / hashlib.sha256(str(path).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _draft(copy: Path) -> Iterator[BinaryIO]:
    """A file that gets the name `copy` when it is complete."""
    copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = copy.with_name(f".{copy.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("wb+") as target:
            yield target
        with contextlib.suppress(FileNotFoundError):
            draft.rename(copy)
    finally:
        draft.unlink(missing_ok=True)


def copy_of(path: RemotePath, info: fs.FileInfo) -> Path:
    """The path of the copy of `path` with the size and time in `info`, whether it exists or not."""
    if info.mtime_ns is None and info.size is None:
        raise FileNotFoundError(str(path))
    digest = hashlib.sha256(f"{path} {info.size} {info.mtime_ns}".encode()).hexdigest()[:32]
    return directory() / digest


def _fetched(path: RemotePath, copy: Path, size: int) -> pa.Buffer:
    copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_room(size)
    with _draft(copy) as target:
        path.copy_to(target)
        target.flush()
        # Mapped before the rename, through the open file: another process may remove the copy at once.
        whole = mmap.mmap(target.fileno(), 0, access=mmap.ACCESS_READ) if target.tell() else b""
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
