"""Locations of a log: a directory that all machines share, or any file system that Arrow supports.

`RemotePath` has the methods of `pathlib.Path` that the log uses, over `pyarrow.fs` (S3, GCS, Azure, HDFS, and the file
systems of fsspec, if it is installed). Files appear whole or not at all: object stores show an object when its upload
ends, and elsewhere a draft is renamed. Object stores have no directories, and none are created. Every failure is an
OSError, even where Arrow or a client raises another exception.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import importlib
import posixpath
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pyarrow import fs

from streamjoin.model.errors import SetupError
from streamjoin.storage.s3_objects import s3_objects

_OBJECT_STORES = ("s3", "gcs", "abfs")
_AT_ONCE = "allow_delayed_open=true"
# Hadoop's schemes and Arrow's names for them.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "wasbs": "abfss", "wasb": "abfs"}


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turn exceptions of a file system's client into an OSError with the original reason."""
    try:
        yield
    except (OSError, MemoryError):
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
    def _in_store(self) -> bool:
        """Whether the file system is an object store, which has whole objects and no directories."""
        return self.filesystem.type_name in _OBJECT_STORES

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

    def copy_to(self, target: BinaryIO) -> None:
        """Write the whole file to `target`."""
        with _as_os_errors(), self.filesystem.open_input_stream(self.path) as file:
            shutil.copyfileobj(file, target, 1 << 22)

    def publish(self, source: BinaryIO, *, once: bool = False) -> None:
        """Write the file with the content of `source`; it appears whole. With `once`, an existing file stays.

        On S3 with boto3 installed `once` is exact. On other object stores Arrow can only check first: if two processes
        write the same file at the same time, the last one to finish wins.
        """
        with _as_os_errors():
            if self._in_store:
                self._upload(source, once)
            else:
                self._replace(source, once)

    def _upload(self, source: BinaryIO, once: bool) -> None:
        if once:
            objects = s3_objects(self.filesystem)
            if objects is not None and objects.put_new(self.path, source):
                return
            if self.exists():
                return
        self._write(self, source)

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
            objects = s3_objects(self.filesystem) if missing_ok else None
            if objects is not None:
                objects.delete(self.path)
                return
            try:
                self.filesystem.delete_file(self.path)
            except OSError:
                # HDFS gives no reason: another process may have removed the file at the same time.
                if not missing_ok or self.exists():
                    raise

    def rmdir(self) -> None:
        """Remove the directory if it is empty; in an object store, the empty object that represents it."""
        with _as_os_errors():
            objects = s3_objects(self.filesystem)
            if objects is not None:
                objects.delete(f"{self.path}/")
                return
            if any(True for _ in self.iterdir()):
                raise OSError(f"{self} is not empty")
            self.filesystem.delete_dir(self.path)

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Create the directory and its parents."""
        if not (parents and exist_ok):
            raise ValueError("a directory is made with those above it, also if it is there")
        if not self._in_store:
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


def place(location: str) -> Place:
    """The path of a location as Spark writes it; `file:` and plain locations are local paths."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", location)
    if scheme is None or scheme[1] == "file":
        return Path(re.sub("^/+", "/", location.removeprefix("file:") if scheme else location))
    return _remote(scheme[1], location)


@functools.lru_cache(maxsize=256)
def _remote(scheme: str, location: str) -> RemotePath:
    uri = _SCHEMES.get(scheme, scheme) + location.removeprefix(scheme)
    try:
        filesystem, path = _through_arrow(uri)
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


def _through_arrow(uri: str) -> tuple[fs.FileSystem, str]:
    target: tuple[fs.FileSystem, str] | None = None
    if uri.startswith("s3:"):
        # Writes a small file with one request instead of three; older versions of Arrow reject the option.
        with contextlib.suppress(ValueError):
            target = fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}{_AT_ONCE}")
    return target or fs.FileSystem.from_uri(uri)


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
