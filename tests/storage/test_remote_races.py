"""Races on file systems that are reached through Arrow, and in the cache of their files; see `test_races.py`."""

from __future__ import annotations

import errno
import io
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem
from pyarrow import fs

from streamjoin.storage.background import merge_due
from streamjoin.storage.cache import copy_of, directory, make_room, mapped
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import Manifest, assemble
from streamjoin.storage.pieces import read_footer, write_piece
from streamjoin.storage.places import Origin, Place, RemotePath, entries, place
from tests.spark.joining import (
    BACKGROUND,
    BAND,
    blueprint,
    expected,
    in_process,
    interrupted_blocks,
    pairs,
    stream,
    tables,
)
from tests.storage.webhdfs_server import WebHdfs


class _LikeHdfs(fs.FileSystemHandler):  # type: ignore[misc]
    """A file system on which removing what is not there is an error without a reason, as libhdfs has it."""

    def __init__(self, below: fs.FileSystem) -> None:
        self._below = below

    def get_type_name(self) -> str:
        return "likehdfs"

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        found: list[fs.FileInfo] = self._below.get_file_info(paths)
        return found

    def delete_file(self, path: str) -> None:
        if self._below.get_file_info(path).type != fs.FileType.File:
            raise OSError(errno.EIO, "HDFS delete failed")
        self._below.delete_file(path)

    def _refused(self, *_: object, **__: object) -> None:
        raise NotImplementedError

    normalize_path = get_file_info_selector = create_dir = delete_dir = delete_dir_contents = _refused
    delete_root_dir_contents = move = copy_file = _refused
    open_input_stream = open_input_file = open_output_stream = open_append_stream = _refused


def test_a_file_that_another_one_has_removed_is_removed(root: RemotePath, tmp_path: Path) -> None:
    (root / "a").publish(io.BytesIO(b"a"))
    below = fs.PyFileSystem(_LikeHdfs(root.filesystem))
    file = RemotePath(below, "log/a", Origin("far://log", "log"))
    file.unlink()
    assert not (root / "a").exists()
    file.unlink(missing_ok=True)
    with pytest.raises(OSError, match="HDFS delete failed"):
        file.unlink()
    (tmp_path / "far/log/a").mkdir()
    with pytest.raises(OSError, match="HDFS delete failed"):
        file.unlink(missing_ok=True)


@pytest.mark.parametrize("where", ["here", "here, without links", "renaming replaces", "renaming is refused"])
def test_of_two_attempts_that_write_a_piece_at_once_the_first_wins(
    where: str, root: RemotePath, far: WebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They agree on the rows, not on the merges that they found: tasks may have read the first one already."""
    path: Place = tmp_path / "here/a.piece"
    if where == "here, without links":
        monkeypatch.setattr(Path, "hardlink_to", _no_links)
    elif not where.startswith("here"):
        path = (root if where == "renaming replaces" else place(far.url)) / "deep" / "a.piece"
    seen = []

    def other() -> None:
        write_piece(path, (interrupted_blocks(), []), {"who": "first"})
        seen.append(read_footer(path)["who"])

    write_piece(path, (interrupted_blocks(other), []), {"who": "second"})
    assert seen == ["first"]
    assert read_footer(path)["who"] == "first"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.piece"]


def _no_links(*_: object) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def test_a_manifest_that_two_keep_at_once_is_there_at_every_moment(
    far: WebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver keeps it as well as a task: who has seen it must find it, and a driver may die at any step."""
    monkeypatch.setenv("STREAMJOIN_CACHE_DIR", str(tmp_path / "cache"))
    plan = blueprint(BAND, 1)
    log = WindowLog(place(f"{far.url}/log"), 1, plan)
    in_process(plan, log.root, 0, tables(BAND, *stream(BAND, seed=1, n=20), 1)[0])  # type: ignore[arg-type]
    made: list[Manifest] = []
    removed: list[str] = []
    asked: list[int] = []
    unlink = RemotePath.unlink

    def meanwhile(*given: Any) -> Manifest:
        if not asked:
            asked.append(1)
            made.append(log.version(0))
        return assemble(*given)

    def unlinked(path: RemotePath, missing_ok: bool = False) -> None:
        removed.append(path.name)
        unlink(path, missing_ok)

    monkeypatch.setattr("streamjoin.storage.log.assemble", meanwhile)
    monkeypatch.setattr(RemotePath, "unlink", unlinked)
    assert log.version(0) == made[0]
    assert "00000001.manifest" not in removed
    kept = {path.name for path in (far.directory / "log/versions/0000000000").iterdir()}
    assert kept == {"00000001.manifest", "00000001.00000-of-00001.piece"}


def test_a_copy_may_go_at_any_moment(root: RemotePath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker makes room: while a copy is fetched, before it has its name, and before it is opened."""
    file = root / "a"
    file.publish(io.BytesIO(b"rows"))
    monkeypatch.setenv("STREAMJOIN_CACHE_BYTES", "1")
    drafts = []
    rename, utime = Path.rename, os.utime

    def renamed(draft: Path, name: Path) -> Path:
        make_room(1)
        drafts.append(draft.exists())
        return rename(draft, name)

    def used(copy: Path) -> None:
        utime(copy)
        make_room(1)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", renamed)
        assert mapped(file) == b"rows"
    assert drafts == [False]
    assert mapped(file) == b"rows"
    assert copy_of(file, file.info()).exists()
    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", used)
        assert mapped(file) == b"rows"
    assert [copy.name for copy in directory().iterdir()] == [copy_of(file, file.info()).name]


def test_a_merge_is_not_removed_with_the_directory_of_its_version(
    root: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far away a directory is removed with all that has come into it since somebody saw that it is empty."""
    left, right = stream(BAND, seed=1, n=100, step=1)
    plan = blueprint(BAND, 1, BACKGROUND)
    log = WindowLog(root, 1, plan)
    (root / "join.json").publish(io.BytesIO(b"{}"))
    batches = tables(BAND, left, right, 10)
    batches.insert(5, (BAND.left.empty_table(), BAND.right.empty_table()))
    found: Counter[tuple[int, int]] = Counter()
    merge: list[Any] = []

    def run(i: int) -> None:
        found.update(pairs(in_process(plan, root, i, batches[i])))  # type: ignore[arg-type]

    for i in range(8):
        run(i)
        if i == 5:
            with monkeypatch.context() as patched:
                patched.setattr(log, "publish_merge", lambda *given: merge.extend(given))
                assert merge_due(plan, log, 5)
    listed = RemotePath.iterdir

    def meanwhile(directory: RemotePath) -> Iterator[RemotePath]:
        entries = list(listed(directory))
        if directory.name == "0000000005" and not entries and merge:
            log.publish_merge(merge.pop(0), merge.pop(0), merge.pop(0))
            run(8)
        return iter(entries)

    monkeypatch.setattr(RemotePath, "iterdir", meanwhile)
    log.prune(log.version(7))
    assert not merge
    assert log.version(8).merged_runs == 1
    for i in (9, 10):
        run(i)
    assert found == expected(BAND, left, right)


class _Remembering(MemoryFileSystem):  # type: ignore[misc]
    """Keeps listings, as fsspec's clients of object stores do, and answers from them."""

    protocol = "remembering"
    find = AbstractFileSystem.find

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("remembering://", "memory://")))

    def ls(self, path: str, detail: bool = True, **given: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail=True, **given)
        return list(self.dircache[path]) if detail else [entry["name"] for entry in self.dircache[path]]

    def info(self, path: str, **given: Any) -> Any:
        path = self._strip_protocol(path)
        for entry in self.dircache.get(self._parent(path), []):
            if entry["name"] == path:
                return entry
        return super().info(path, **given)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()


def test_what_others_wrote_and_removed_since_a_directory_was_listed_is_seen() -> None:
    fsspec.register_implementation("remembering", _Remembering, clobber=True)
    directory, others = place("remembering://seen"), fsspec.filesystem("memory")
    others.pipe("/seen/a", b"a")
    assert [entry.name for entry in entries(directory)] == ["a"]
    others.pipe("/seen/b", b"b")
    assert [entry.name for entry in entries(directory)] == ["a", "b"]
    others.rm("/seen/a")
    assert not (directory / "a").exists()
