"""File systems that are not this machine's, for the tests of a log that lies there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from streamjoin.storage.places import Origin, RemotePath
from tests.storage.webhdfs_server import WebHdfs


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemotePath:
    """A directory seen as another file system would be, and an empty cache."""
    monkeypatch.setenv("STREAMJOIN_CACHE_DIR", str(tmp_path / "cache"))
    # Every test's directory has this name here: what one has mapped is not the file of the next.
    monkeypatch.setattr("streamjoin.storage.log._mapped", {})
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
