"""Where a log can lie: a directory that all machines see, or any file system that Arrow reaches.

`RemotePath` has the few methods of `pathlib.Path` that the log uses, over `pyarrow.fs` (S3, GCS, Azure, HDFS, and
whatever fsspec knows, if that is installed). A file appears there under its name whole or not at all: object stores
show an object when its upload ends, on others a draft is renamed. Object stores have no directories, and none are made.
Whatever goes wrong is an OSError, also where Arrow or a client raises something else.
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
# How Hadoop calls what Arrow calls otherwise.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "wasbs": "abfss", "wasb": "abfs"}


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise what a file system's client raises as an OSError, which callers expect of files, with the true reason."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Origin:
    """The location that a file system was found by, and its path there."""

    location: str
    path: str

    def location_of(self, path: str) -> str:
        """The location of another path on the same file system, by which it can be found again.

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
        """Whether it is an object: there whole when its upload ends, under a name with slashes and no directories."""
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
        """What the file system knows of it."""
        with _as_os_errors():
            return self.filesystem.get_file_info(self.path)

    def exists(self) -> bool:
        """Whether there is something."""
        return bool(self.info().type != fs.FileType.NotFound)

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return bool(self.info().type == fs.FileType.Directory)

    def iterdir(self) -> Iterator[RemotePath]:
        """What lies in the directory."""
        here = fs.FileSelector(self.path, allow_not_found=True)
        with _as_os_errors():
            try:
                infos = self.filesystem.get_file_info(here)
            except NotADirectoryError:
                # Through fsspec "is it a directory" and "is it there" are two questions: it may appear between them.
                if not self.is_dir():
                    raise
                infos = self.filesystem.get_file_info(here)
        for info in infos:
            yield RemotePath(self.filesystem, info.path, self._origin)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """What lies below and fits `pattern`, in which a star stands for no slash."""
        first, _, rest = pattern.partition("/")
        for entry in self.iterdir():
            if fnmatch.fnmatchcase(entry.name, first):
                if rest:
                    yield from entry.glob(rest)
                else:
                    yield entry

    def open(self, mode: str) -> Any:
        """The file for reading bytes, at any place."""
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
        """Make the file out of what `source` holds; it appears whole. With `once`, one that is there stays.

        That is certain on S3 where boto3 is installed. On other object stores Arrow can only look first: of two that
        write the same file at the same moment, the one that ends last has it.
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
        """Rename `draft` to this path, also where that is refused, loudly or not, because there is a file already.

        With `once` that file stays: others rely on it, and there must be no moment without it.
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
                # HDFS does not say why it could not: another one may have removed it at the same time.
                if not missing_ok or self.exists():
                    raise

    def rmdir(self) -> None:
        """Remove the directory if nothing lies in it; in an object store, the empty object that stands for it."""
        with _as_os_errors():
            objects = s3_objects(self.filesystem)
            if objects is not None:
                objects.delete(f"{self.path}/")
                return
            if any(True for _ in self.iterdir()):
                raise OSError(f"{self} is not empty")
            self.filesystem.delete_dir(self.path)

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Make the directory and those above it."""
        if not (parents and exist_ok):
            raise ValueError("a directory is made with those above it, also if it is there")
        if not self._in_store:
            with _as_os_errors():
                self.filesystem.create_dir(self.path, recursive=True)


Place = Path | RemotePath


def in_order(places: Iterable[Place]) -> list[Place]:
    """The places by their names."""
    return sorted(places, key=str)


def entries(directory: Place) -> list[Place]:
    """What lies in a directory, by name; nothing where there is none, also if it goes while it is listed."""
    try:
        return in_order(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def place(location: str) -> Place:
    """A location as Spark writes it, as a path; `file:` and plain ones are paths of this machine."""
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
        # Besides OSError and ValueError whatever a cloud's library raises, such as for credentials that are missing.
        found = _through_fsspec(uri)
        if found is None:
            raise SetupError(
                f"the checkpoint is on {scheme}:, which Arrow can't reach ({error}): set up its access on all "
                "machines, install the fsspec package for it, or use a directory that all machines see"
            ) from error
        filesystem, path = found
    return RemotePath(filesystem, path, Origin(location, path.rstrip("/")))


def _through_arrow(uri: str) -> tuple[fs.FileSystem, str]:
    found: tuple[fs.FileSystem, str] | None = None
    if uri.startswith("s3:"):
        # A small file is then written by one request instead of three. Versions of Arrow that do not know it refuse it.
        with contextlib.suppress(ValueError):
            found = fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}{_AT_ONCE}")
    return found or fs.FileSystem.from_uri(uri)


class _Forgetful(fs.FSSpecHandler):  # type: ignore[misc]
    """Many of fsspec's clients answer from listings that they made before; here others write all the time."""

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        """What is there now."""
        self.fs.invalidate_cache()
        found: list[fs.FileInfo] = super().get_file_info(paths)
        return found

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """What is there now."""
        self.fs.invalidate_cache()
        found: list[fs.FileInfo] = super().get_file_info_selector(selector)
        return found


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
