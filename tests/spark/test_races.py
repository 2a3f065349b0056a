"""Steps of the window log that meet those of another process: what vanishes, appears or is half there in between.

Each test lets the other one act at the very moment that matters, so that none depends on luck.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from streamjoin.model.errors import CheckpointError
from streamjoin.spark.log import new_epoch
from streamjoin.spark.places import Origin, RemotePath
from streamjoin.spark.punctuation import Punctuation, punctuations, write_punctuation
from tests.spark.joining import CASES, blueprint
from tests.spark.webhdfs_server import WebHdfs

BAND = CASES[0]


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
