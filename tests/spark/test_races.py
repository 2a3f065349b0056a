"""Steps of the window log that meet those of another process: what vanishes, appears or is half there in between.

Each test lets the other one act at the very moment that matters, so that none depends on luck.
"""

from __future__ import annotations

import errno
import io
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem
from pyarrow import fs

from streamjoin.model.errors import CheckpointError
from streamjoin.spark.background import merge_due
from streamjoin.spark.cache import copy_of, directory, make_room, mapped
from streamjoin.spark.gate import Collect, Gate
from streamjoin.spark.log import WindowLog, new_epoch
from streamjoin.spark.manifest import Manifest, assemble
from streamjoin.spark.merging import MergePolicy
from streamjoin.spark.parts import MARKER, markers
from streamjoin.spark.pieces import Sheet, read_footer, write_piece
from streamjoin.spark.places import Origin, Place, RemotePath, entries, place
from streamjoin.spark.punctuation import Punctuation, punctuations, write_punctuation
from streamjoin.spark.route import Route
from streamjoin.spark.scaling import ask_for
from streamjoin.spark.task import JoinTask
from tests.spark.gated import gated_batch
from tests.spark.joining import CASES, blueprint, expected, in_process, pairs, stream, tables
from tests.spark.test_gate_stages import _plan, _table
from tests.spark.webhdfs_server import WebHdfs

BAND = CASES[0]
# Nothing is folded by the batches themselves.
BACKGROUND = MergePolicy(slack=200, floor=0, runs=2, inline=0)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemotePath:
    """A directory seen as another file system would be, and an empty cache."""
    monkeypatch.setenv("STREAMJOIN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "far").mkdir()
    filesystem = fs.SubTreeFileSystem(str(tmp_path / "far"), fs.LocalFileSystem())
    return RemotePath(filesystem, "log", Origin("far://log", "log"))


@pytest.fixture
def far(tmp_path: Path) -> Iterator[WebHdfs]:
    (tmp_path / "server").mkdir()
    server = WebHdfs(tmp_path / "server")
    try:
        yield server
    finally:
        server.stop()


def test_a_start_that_was_killed_while_it_took_its_number_stops_no_later_one(tmp_path: Path) -> None:
    description = blueprint(BAND, 2).description
    first = new_epoch(tmp_path, description)
    (tmp_path / "epochs" / f".{first + 1:08}.0123456789abcdef").touch()
    assert new_epoch(tmp_path, description) > first


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


def test_old_punctuations_may_go_while_all_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "streamjoin/join"
    log.mkdir(parents=True)
    (log / "join.json").touch()
    (tmp_path / "commits").mkdir()
    for batch in range(90, 111):
        write_punctuation(log, 1, Punctuation(batch, batch, batch, 0, 0))
        (tmp_path / f"commits/{batch}").touch()
    read = Path.read_bytes

    def meanwhile(path: Path) -> bytes:
        monkeypatch.undo()
        write_punctuation(log, 1, Punctuation(200, 200, 200, 0, 0))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", meanwhile)
    assert punctuations(tmp_path)["batch"].to_pylist() == list(range(100, 111))
    (log / "punctuations/0000000105.00000001.json").write_bytes(b"{")
    with pytest.raises(CheckpointError, match="is damaged"):
        punctuations(tmp_path)


def _sheets(*before: object) -> Iterator[Sheet]:
    """A block that is asked for when its file is half written."""
    for step in before:
        step()  # type: ignore[operator]
    yield Sheet(pa.record_batch({"#word": pa.array([1], pa.int64())}), 1, 1)


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
        write_piece(path, (_sheets(), []), {"who": "first"})
        seen.append(read_footer(path)["who"])

    write_piece(path, (_sheets(other), []), {"who": "second"})
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
    made, removed = [], []
    unlink = RemotePath.unlink

    def meanwhile(*given: Any) -> Manifest:
        if not made:
            made.append(1)
            made.append(log.version(0))
        return assemble(*given)

    def unlinked(path: RemotePath, missing_ok: bool = False) -> None:
        removed.append(path.name)
        unlink(path, missing_ok)

    monkeypatch.setattr("streamjoin.spark.log.assemble", meanwhile)
    monkeypatch.setattr(RemotePath, "unlink", unlinked)
    assert log.version(0) == made[1]
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
    assert copy_of(file).exists()
    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", used)
        assert mapped(file) == b"rows"
    assert [copy.name for copy in directory().iterdir()] == [copy_of(file).name]


def test_a_merge_that_takes_longer_than_a_batch_is_not_swept_away(tmp_path: Path) -> None:
    """After each commit the driver removes what nobody needs: not the draft of the merge that it is writing."""
    left, right = stream(BAND, seed=1, n=120, step=1)
    plan = blueprint(BAND, 2, BACKGROUND)
    log = WindowLog(tmp_path, 1, plan)
    batches = tables(BAND, left, right, 12)
    for i in range(4):
        in_process(plan, tmp_path, i, batches[i])
    then = log.version(3)
    facts = {"inputs": [run.key for run in then.runs]}

    def batches_go_on() -> None:
        for i in (4, 5, 6):
            in_process(plan, tmp_path, i, batches[i])
            log.prune(log.version(i))

    log.publish_merge(3, (_sheets(batches_go_on), []), facts)
    (merge,) = tmp_path.rglob("*.merge")
    behind = merge.with_name(f".{merge.name.replace('.00000001.', '.00000000.')}.killed")
    behind.touch()
    log.prune(log.version(6))
    assert merge.exists()
    assert not behind.exists()
    assert log.merges(log.version(6), set()) == [f"{merge.parent.name}/{merge.name}"]
    log.prune(then)
    assert merge.exists(), "one that hears late of a commit knows nothing of later merges"


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


@pytest.mark.parametrize("meanwhile", ["nothing", "another number of ranges", "a merge"])
def test_tasks_that_see_different_versions_give_no_rows(
    meanwhile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two queries on one checkpoint, or a store on which the last one to write a piece wins."""
    left, right = stream(BAND, seed=1, n=60, step=1)
    plan = blueprint(BAND, 2, BACKGROUND)
    (tmp_path / "join.json").touch()
    log = WindowLog(tmp_path, 1, plan)
    batches = tables(BAND, left, right, 6)
    found: Counter[tuple[int, int]] = Counter()
    for i in range(5):
        found.update(pairs(in_process(plan, tmp_path, i, batches[i])))
        if i == 3 and meanwhile == "a merge":
            assert merge_due(plan, log, 3)
            hidden = next(tmp_path.rglob("*.merge")).rename(tmp_path / "merge")
    for stage in ("route", "task"):
        monkeypatch.setattr(f"streamjoin.spark.{stage}.open_log", lambda _: (log, 5))
    sent: dict[int, list[pa.RecordBatch]] = {0: [], 1: []}
    for side in (0, 1):
        for row in Route(plan, side)(iter(batches[5][side].combine_chunks().to_batches())):
            for i, target in enumerate(row.column(0).to_pylist()):
                sent[target].append(row.select(range(5)).slice(i, 1))
    if meanwhile != "nothing":
        if meanwhile == "a merge":
            hidden.rename(tmp_path / "versions/merged/0000000003.00000001.merge")
        else:
            ask_for(tmp_path, 1)
        in_process(plan, tmp_path, 4, batches[4], epoch=2)
        for parts in sent.values():
            with pytest.raises(CheckpointError, match="different versions.*start the query again"):
                list(JoinTask(plan)(iter(parts)))
        assert not list((tmp_path / "versions").glob("0000000005/*"))
        return
    for parts in sent.values():
        found.update(pairs(list(JoinTask(plan)(iter(parts)))))
    assert found == expected(BAND, left, right)


def test_the_tasks_behind_a_gate_go_by_what_the_gate_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan()
    gated_batch(plan, tmp_path, 0, {(0, 0): _table((5, 7, 0)), (1, 0): _table((6, 7, 1))})
    log = WindowLog(tmp_path, 1, plan)
    for stage in ("gate", "task"):
        monkeypatch.setattr(f"streamjoin.spark.{stage}.open_log", lambda _: (log, 1))
    collected = [row for side in (0, 1) for row in Collect(plan, side, 0)(iter(_table((9, 7, 2)).to_batches()))]
    sent: dict[int, list[pa.RecordBatch]] = {partition: [] for partition in range(plan.partitions)}
    for row in Gate(plan)(iter(collected)):
        for i, target in enumerate(row.column(0).to_pylist()):
            sent[target].append(row.select(range(5)).slice(i, 1))
    found = [row for parts in sent.values() for row in JoinTask(plan)(iter(parts))]
    assert any(side != MARKER for row in found for side in row.column(1).to_pylist())
    for parts in sent.values():
        with pytest.raises(CheckpointError, match="different versions"):
            list(JoinTask(plan)(iter([*parts, markers(plan.partitions, 4)])))
