"""Locations of a log: a directory that all machines share, or any file system that Arrow supports.

`RemotePath` has the methods of `pathlib.Path` that the log uses, over `pyarrow.fs` (S3, GCS, Azure, HDFS, and the file
systems of fsspec, if it is installed). Files appear whole or not at all: object stores show an object when its upload
ends, and elsewhere a draft is renamed. Object stores have no directories, and none are created. Every failure is an
OSError, even where Arrow or a client raises another exception. `settings` says how stores are reached.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import importlib
import io
import os
import posixpath
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pyarrow import fs

from streamjoin.model.errors import SetupError, StreamJoinError
from streamjoin.storage.object_clients import (
    NoConditionalWritesError,
    ObjectClient,
    azure_blobs,
    azure_file_system,
    gcs_file_system,
    gcs_objects,
    s3_file_system,
    s3_objects,
)
from streamjoin.storage.settings import StorageSettings, current

_EXTRAS = {"s3": "s3", "gcs": "gcs", "abfs": "azure"}
"""The object stores as Arrow names them, and the extras of this package that bring their clients."""
# Hadoop's schemes and Arrow's names for them.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "wasbs": "abfss", "wasb": "abfs"}


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turn exceptions of a file system's client into an OSError with the original reason."""
    try:
        yield
    except (OSError, MemoryError, StreamJoinError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Origin:
    """The location that a file system was opened with, and its path on that file system."""

    location: str
    path: str

    def location_of(self, path: str) -> str:
        """The location of another path on the same file system, from which it can be opened again.

        >>> Origin("hdfs://host:8020/deep/log", "/deep/log").location_of("/deep/log/join")
        'hdfs://host:8020/deep/log/join'
        >>> Origin("abfss://box@store.net/a?x=1", "box/a").location_of("box")
        'abfss://box@store.net?x=1'
        """
        whole, mark, query = self.location.partition("?")
        known, wanted = ([part for part in text.split("/") if part] for text in (self.path, path))
        shared = len(posixpath.commonprefix([known, wanted]))
        stem = whole.rstrip("/").rsplit("/", len(known) - shared)[0] if len(known) > shared else whole.rstrip("/")
        return "/".join([stem, *wanted[shared:]]) + mark + query


class RemotePath:
    """A path on a file system that is reached through Arrow."""

    def __init__(self, filesystem: fs.FileSystem, path: str, origin: Origin) -> None:
        self.filesystem = filesystem
        self.path = path.rstrip("/")
        self._origin = origin

    @property
    def in_store(self) -> bool:
        """Whether the file system is an object store, which has whole objects and no directories."""
        return self.filesystem.type_name in _EXTRAS

    @property
    def _client(self) -> ObjectClient | None:
        """The client of an object store, if its library is installed."""
        settings = current()
        kind = self.filesystem.type_name
        if kind == "s3":
            return s3_objects(self.filesystem, settings.timeout)
        if kind == "gcs":
            return gcs_objects(settings.gcs, settings.timeout)
        if kind == "abfs":
            return azure_blobs(
                settings.azure.account or _account(self._origin.location), settings.azure, settings.timeout
            )
        return None

    def __str__(self) -> str:
        return self._origin.location_of(self.path)

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.filesystem, posixpath.join(self.path, name), self._origin)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def name(self) -> str:
        """The last part."""
        return posixpath.basename(self.path)

    @property
    def suffix(self) -> str:
        """The last part's ending, with its dot."""
        return posixpath.splitext(self.path)[1]

    @property
    def parent(self) -> RemotePath:
        """The path without its last part."""
        return RemotePath(self.filesystem, posixpath.dirname(self.path), self._origin)

    def info(self) -> fs.FileInfo:
        """The file system's information about the path."""
        with _as_os_errors():
            return self.filesystem.get_file_info(self.path)

    def exists(self) -> bool:
        """Whether the path exists."""
        return bool(self.info().type != fs.FileType.NotFound)

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return bool(self.info().type == fs.FileType.Directory)

    def iterdir(self) -> Iterator[RemotePath]:
        """The entries of the directory."""
        here = fs.FileSelector(self.path, allow_not_found=True)
        with _as_os_errors():
            try:
                infos = self.filesystem.get_file_info(here)
            except NotADirectoryError:
                # fsspec asks separately whether a path exists and whether it is a directory; it may appear in between.
                if not self.is_dir():
                    raise
                infos = self.filesystem.get_file_info(here)
        for info in infos:
            yield RemotePath(self.filesystem, info.path, self._origin)

    def files_below(self) -> Iterator[RemotePath]:
        """All files of the directory and of those in it, in an object store by one request per thousand."""
        with _as_os_errors():
            infos = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True, recursive=True))
        for info in infos:
            if info.type == fs.FileType.File:
                yield RemotePath(self.filesystem, info.path, self._origin)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """The paths below that match `pattern`; a star does not match a slash."""
        first, _, rest = pattern.partition("/")
        for entry in self.iterdir():
            if fnmatch.fnmatchcase(entry.name, first):
                if rest:
                    yield from entry.glob(rest)
                else:
                    yield entry

    def open(self, mode: str) -> Any:
        """The file, opened for reading bytes at any offset."""
        if mode != "rb":
            raise ValueError(mode)
        with _as_os_errors():
            return self.filesystem.open_input_file(self.path)

    def read_bytes(self) -> bytes:
        """The whole file."""
        with _as_os_errors(), self.filesystem.open_input_stream(self.path) as file:
            return bytes(file.read())

    def read_if_there(self) -> bytes | None:
        """The whole file, or None if there is none; in an object store by one request."""
        with _as_os_errors():
            client = self._client
            if client is not None:
                return client.read(self.path)
            # Checked first: libhdfs prints a stack trace for every missing file that is opened.
            return self.read_bytes() if self.exists() else None

    def copy_to(self, target: BinaryIO) -> None:
        """Write the whole file to `target`."""
        with _as_os_errors(), self.filesystem.open_input_stream(self.path) as file:
            shutil.copyfileobj(file, target, 1 << 22)

    def publish(self, source: BinaryIO, *, once: bool = False) -> bool:
        """Write the file with the content of `source`; it appears whole. With `once`, an existing file stays.

        Returns whether the file is known to have this content now.

        Where a store has no conditional writes, `once` can only check first: if two processes write the same file at
        the same time, the last one to finish wins.
        """
        with _as_os_errors():
            if self.in_store:
                return self._upload(source, once)
            self._replace(source, once)
            return not once

    def create(self, content: bytes) -> bool:
        """Write the file unless it exists, and return whether this call did: of several writers one does.

        Raises:
            SetupError: the store can't refuse to replace a file.
        """
        with _as_os_errors():
            if not self.in_store:
                self._replace(io.BytesIO(content), once=True)
                return self.read_bytes() == content
            client = self._client
            try:
                if client is None:
                    raise NoConditionalWritesError
                # A request may have been repeated after its answer was lost.
                return client.create(self.path, io.BytesIO(content)) or self.read_bytes() == content
            except NoConditionalWritesError:
                return self._create_without_condition(content, client is not None)

    def _create_without_condition(self, content: bytes, has_client: bool) -> bool:
        if current().conditional_writes:
            extra = _EXTRAS[self.filesystem.type_name]
            reason = (
                "this store has no conditional writes. Use another store, or set conditional_writes = false in "
                "[storage] and see to it that only one query uses the checkpoint"
                if has_client
                else f"this needs a library: pip install 'streamjoin[{extra}]' on all machines"
            )
            raise SetupError(f"{self} can't be protected against a second writer: {reason}")
        if self.exists():
            return False
        self._upload(io.BytesIO(content), once=False)
        return True

    def _upload(self, source: BinaryIO, once: bool) -> bool:
        client = self._client
        if once:
            begin = source.tell()
            with contextlib.suppress(NoConditionalWritesError):
                if client is not None:
                    return client.create(self.path, source)
            source.seek(begin)
            if self.exists():
                return False
        if client is not None:
            client.put(self.path, source)
        else:
            self._write(self, source)
        return True

    def _replace(self, source: BinaryIO, once: bool) -> None:
        self.filesystem.create_dir(self.parent.path, recursive=True)
        draft = self.parent / f".{self.name}.{uuid.uuid4().hex}"
        try:
            self._write(draft, source)
            self._take_the_place_of(draft, once)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def _write(self, path: RemotePath, source: BinaryIO) -> None:
        with self.filesystem.open_output_stream(path.path) as out:
            while chunk := source.read(1 << 22):
                out.write(chunk)

    def _take_the_place_of(self, draft: RemotePath, once: bool) -> None:
        """Rename `draft` to this path, also where the file system rejects or ignores a rename onto an existing file.

        With `once` the existing file stays: other processes rely on it, so it must never be absent.
        """
        try:
            if not once or not self.exists():
                self.filesystem.move(draft.path, self.path)
        except OSError:
            if not self.exists():
                raise
        if draft.exists() and once:
            draft.unlink(missing_ok=True)
        elif draft.exists():
            self.unlink(missing_ok=True)
            self.filesystem.move(draft.path, self.path)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        with _as_os_errors():
            client = self._client if missing_ok else None
            if client is not None:
                client.delete(self.path)
                return
            try:
                self.filesystem.delete_file(self.path)
            except OSError:
                # HDFS gives no reason: another process may have removed the file at the same time.
                if not missing_ok or self.exists():
                    raise

    def unlink_all(self, paths: Sequence[RemotePath]) -> None:
        """Remove files of this store, as far as they exist."""
        with _as_os_errors():
            client = self._client
            if client is not None:
                client.delete_all([path.path for path in paths])
                return
        for path in paths:
            path.unlink(missing_ok=True)

    def rmdir(self) -> None:
        """Remove the directory if it is empty; in an object store, the empty object that represents it."""
        with _as_os_errors():
            client = self._client
            if client is not None:
                client.delete(f"{self.path}/")
                return
            if any(True for _ in self.iterdir()):
                raise OSError(f"{self} is not empty")
            self.filesystem.delete_dir(self.path)

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Create the directory and its parents."""
        if not (parents and exist_ok):
            raise ValueError("a directory is made with those above it, also if it is there")
        if not self.in_store:
            with _as_os_errors():
                self.filesystem.create_dir(self.path, recursive=True)


Place = Path | RemotePath


def in_order(places: Iterable[Place]) -> list[Place]:
    """The places sorted by name."""
    return sorted(places, key=str)


def entries(directory: Place) -> list[Place]:
    """The entries of a directory, by name; none if it does not exist or disappears while it is listed."""
    try:
        return in_order(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_oldest(directory: Place, most_bytes: int, keep: Callable[[str], bool] = lambda _: False) -> int:
    """Remove files of a directory, the first by name first, until the rest is small enough; returns how many.

    The last file stays, and those whose names `keep` says so.
    """
    if isinstance(directory, RemotePath):
        with _as_os_errors():
            infos = directory.filesystem.get_file_info(fs.FileSelector(directory.path, allow_not_found=True))
        files: list[tuple[Place, int]] = [
            (directory / info.base_name, info.size or 0) for info in infos if info.type == fs.FileType.File
        ]
    else:
        files = []
        for path in entries(directory):
            with contextlib.suppress(FileNotFoundError):
                files.append((path, Path(str(path)).stat().st_size))
    # Drafts of other writers have names that begin with a dot.
    files = sorted((file for file in files if not file[0].name.startswith(".")), key=lambda file: file[0].name)
    total, removed = sum(size for _, size in files), 0
    for path, size in files[:-1]:
        if total <= most_bytes:
            break
        if not keep(path.name):
            path.unlink(missing_ok=True)
            total, removed = total - size, removed + 1
    return removed


def read_if_there(path: Place) -> bytes | None:
    """The whole file, or None if there is none."""
    if isinstance(path, RemotePath):
        return path.read_if_there()
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def tree(directory: Place) -> dict[str, list[Place]]:
    """The files in the directories of a directory, by the name of the directory, in order."""
    if isinstance(directory, RemotePath) and directory.in_store:
        files: dict[str, list[Place]] = {}
        for path in in_order(directory.files_below()):
            files.setdefault(path.parent.name, []).append(path)
        return files
    return {inner.name: entries(inner) for inner in entries(directory)}


def remove_files(paths: Sequence[Place]) -> None:
    """Remove files, as far as they exist; in an object store by few requests."""
    if paths and isinstance(paths[0], RemotePath) and paths[0].in_store:
        paths[0].unlink_all([path for path in paths if isinstance(path, RemotePath)])
        return
    for path in paths:
        path.unlink(missing_ok=True)


def create_file(path: Place, content: bytes) -> bool:
    """Write a small file unless it exists, and return whether this call did: of several writers one does.

    Raises:
        OSError: it can't be written.
        SetupError: the store can't refuse to replace a file.
    """
    if isinstance(path, RemotePath):
        return path.create(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return False
        except OSError:
            # A file system without links: exclusive, but a crash may leave the file empty.
            try:
                with path.open("xb") as file:
                    file.write(content)
            except FileExistsError:
                return False
        return True
    finally:
        draft.unlink(missing_ok=True)


def place(location: str) -> Place:
    """The path of a location as Spark writes it; `file:` and plain locations are local paths."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", location)
    if scheme is None or scheme[1] == "file":
        return Path(re.sub("^/+", "/", location.removeprefix("file:") if scheme else location))
    return _remote(scheme[1], location, current())


def reached(location: str) -> Place:
    """The path of a location whose store answers; every query and engine begins with this.

    Raises:
        SetupError: the store does not answer within `StorageSettings.timeout`, or refuses.
    """
    settings = current()
    answer: list[Place | Exception] = []

    def ask() -> None:
        try:
            path = place(location)
            if isinstance(path, RemotePath):
                path.exists()
            answer.append(path)
        except Exception as error:
            answer.append(error)

    if re.match(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:", location) is None:
        return place(location)
    # Some clients repeat requests for minutes and can't be told otherwise.
    asking = threading.Thread(target=ask, name="streamjoin-store", daemon=True)
    asking.start()
    asking.join(settings.timeout)
    if not answer:
        raise SetupError(_unreachable(location, settings, f"it did not answer within {settings.timeout:g} seconds"))
    if isinstance(answer[0], OSError):
        raise SetupError(_unreachable(location, settings, str(answer[0]))) from answer[0]
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


def _unreachable(location: str, settings: StorageSettings, reason: str) -> str:
    for secret in settings.secrets:
        reason = reason.replace(secret, "***")
    return (
        f"the store of {location} can't be reached: {reason}. Check its endpoint and credentials ([storage] in a file, "
        "storage= in code) and the network"
    )


@functools.lru_cache(maxsize=256)
def _remote(scheme: str, location: str, settings: StorageSettings) -> RemotePath:
    uri = _SCHEMES.get(scheme, scheme) + location.removeprefix(scheme)
    try:
        filesystem, path = _through_arrow(uri, settings)
    except Exception as error:
        # A cloud's library raises exceptions of its own, for example for missing credentials.
        target = _through_fsspec(uri)
        if target is None:
            raise SetupError(
                f"the checkpoint is on {scheme}:, which Arrow can't reach ({error}): set up its access on all "
                "machines, install the fsspec package for it, or use a directory that all machines see"
            ) from error
        filesystem, path = target
    return RemotePath(filesystem, path, Origin(location, path.rstrip("/")))


def _through_arrow(uri: str, settings: StorageSettings) -> tuple[fs.FileSystem, str]:
    target: tuple[fs.FileSystem, str]
    if uri.startswith("s3:"):
        target = s3_file_system(uri, settings.s3, settings.timeout)
    elif uri.startswith(("gs:", "gcs:")):
        target = gcs_file_system(uri, settings.gcs, settings.timeout)
    elif uri.startswith(("abfs:", "abfss:")):
        target = azure_file_system(uri, settings.azure)
    else:
        target = fs.FileSystem.from_uri(uri)
    return target


def _account(location: str) -> str:
    """The account in a location on Azure.

    >>> _account("abfss://box@store.dfs.core.windows.net/a")
    'store'
    """
    return location.partition("@")[2].partition("/")[0].partition(".")[0]


class _Forgetful(fs.FSSpecHandler):  # type: ignore[misc]
    """An fsspec handler without a listing cache, because other processes write all the time."""

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        """The current information, not a cached one."""
        self.fs.invalidate_cache()
        infos: list[fs.FileInfo] = super().get_file_info(paths)
        return infos

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """The current information, not a cached one."""
        self.fs.invalidate_cache()
        infos: list[fs.FileInfo] = super().get_file_info_selector(selector)
        return infos


def _through_fsspec(uri: str) -> tuple[fs.FileSystem, str] | None:
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError:
        return None
    try:
        filesystem, path = fsspec.core.url_to_fs(uri)
    except (ValueError, ImportError, OSError):
        return None
    return fs.PyFileSystem(_Forgetful(filesystem)), path
