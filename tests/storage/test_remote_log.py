"""A log on a file system that is reached through Arrow: the same rows, fetched once a host, in a bounded cache."""

from __future__ import annotations

import io
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import pyarrow as pa
import pytest
from pyarrow import fs

from streamjoin.model.errors import CheckpointError, SetupError
from streamjoin.spark import join, late, rescale
from streamjoin.spark.stages.late_output import catch_up
from streamjoin.spark.stages.scaling import ask_for, asked_for
from streamjoin.storage.background import merge_due
from streamjoin.storage.cache import copy_of, directory, make_room, mapped
from streamjoin.storage.log import WindowLog, new_epoch
from streamjoin.storage.merging import MergePolicy
from streamjoin.storage.pieces import atomic, read_footer
from streamjoin.storage.places import Origin, RemotePath, in_order, place
from tests.spark.gated import gated_batch, gated_plan, gated_table
from tests.spark.joining import (
    CASES,
    Batches,
    blueprint,
    expected,
    in_process,
    pairs,
    read_parquet,
    stream,
    streams,
    tables,
    write_files,
)
from tests.storage.webhdfs_server import WebHdfs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAND = CASES[0]


def test_a_join_over_a_remote_log_gives_the_same_rows(root: RemotePath, tmp_path: Path) -> None:
    left, right = stream(BAND, seed=5, n=300)
    plan = blueprint(BAND, 2, MergePolicy(slack=200, floor=0, runs=2, inline=0))
    epoch = new_epoch(root, plan.description)
    found: Counter[tuple[int, int]] = Counter()
    for i, sides in enumerate(tables(BAND, left, right, 10)):
        found += pairs(in_process(plan, root, i, sides, epoch))  # type: ignore[arg-type]
        if i == 5:
            merge_due(plan, WindowLog(root, epoch, plan), i)
    assert found == expected(BAND, left, right)
    assert len(list(directory().iterdir())) > 4
    assert (tmp_path / "far/log/join.json").exists()
    assert not [name for _, _, names in os.walk(tmp_path / "far") for name in names if name.startswith(".")]
    ask_for(root, 5)
    assert asked_for(root) == 5


def test_a_gate_and_late_rows_on_a_remote_log(root: RemotePath) -> None:
    plan = gated_plan()
    gated_batch(plan, root, 0, {(0, 0): gated_table((5, 7, 0)), (1, 0): gated_table((6, 7, 1))})  # type: ignore[arg-type]
    second = {(0, 0): gated_table((4, 7, 2), (9, 7, 3))}
    assert gated_batch(plan, root, 1, second).num_rows == 1  # type: ignore[arg-type]
    (written,) = catch_up(root, root.parent / "late", 1)
    assert written.exists()


def test_a_directory_that_appears_while_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    root = RemotePath(fs.PyFileSystem(fs.FSSpecHandler(memory)), "/appears", Origin("memory://appears", "/appears"))
    assert list(root.iterdir()) == []
    asked = []

    def isdir(path: str) -> bool:
        asked.append(path)
        if len(asked) == 1:
            memory.pipe(f"{path}/a", b"a")
            return False
        return bool(memory.info(path)["type"] == "directory")

    monkeypatch.setattr(memory, "isdir", isdir)
    assert [entry.name for entry in root.iterdir()] == ["a"]
    with pytest.raises(NotADirectoryError):
        list((root / "a").iterdir())


def test_what_a_client_raises_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's clients of clouds raise what is no OSError, and fsspec's whatever they like."""

    class Broken(fs.FSSpecHandler):  # type: ignore[misc]
        def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
            raise pa.ArrowException("Failed to get token from DefaultAzureCredential")

        def open_input_file(self, path: str) -> None:
            raise LookupError("no profile")

        def create_dir(self, path: str, recursive: bool) -> None:
            self.get_file_info([path])

    broken = fs.PyFileSystem(Broken(fsspec.filesystem("memory")))
    root = RemotePath(broken, "box/log", Origin("abfss://box@store/log", "box/log"))
    with pytest.raises(OSError, match="ArrowException: Failed to get token"):
        root.exists()
    unwritten = pytest.raises(CheckpointError, match=r"log/x can't be written: ArrowException: Failed to get token")
    with unwritten, atomic(root / "x"):
        pass
    with pytest.raises(CheckpointError, match="can't be read: LookupError: no profile"):
        read_footer(root / "x")

    def no_token(uri: str, settings: object) -> None:
        raise pa.ArrowException(f"no token for {uri}")

    monkeypatch.setattr("streamjoin.storage.places._through_arrow", no_token)
    with pytest.raises(SetupError, match="Arrow can't reach \\(no token for abfss:"):
        place("abfss://box@store/elsewhere")


def test_a_copy_is_taken_once_and_again_when_the_file_changed(root: RemotePath, tmp_path: Path) -> None:
    file = root / "a"
    file.publish(io.BytesIO(b"one"))
    assert mapped(file) == b"one"
    copy_of(file, file.info()).write_bytes(b"kept")
    assert mapped(file) == b"kept"
    file.publish(io.BytesIO(b"other"))
    assert mapped(file) == b"other"
    (root / "empty").publish(io.BytesIO(b""))
    assert mapped(root / "empty") == b""
    with pytest.raises(FileNotFoundError):
        mapped(root / "b")


def test_the_cache_is_bounded_and_drops_what_was_used_longest_ago(
    root: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMJOIN_CACHE_BYTES", "250")
    copies = []
    for i, name in enumerate("abcd"):
        (root / name).publish(io.BytesIO(name.encode() * 100))
        mapped(root / name)
        copies.append(copy_of(root / name, (root / name).info()))
        os.utime(copies[-1], (1_000 + i, 1_000 + i))
    assert [copy.exists() for copy in copies] == [False, False, True, True]
    mapped(root / "c")
    make_room(150)
    assert [copy.exists() for copy in copies] == [False, False, True, False]


def test_a_lost_remote_file_is_told(root: RemotePath, tmp_path: Path) -> None:
    plan = blueprint(BAND, 1)
    left, right = stream(BAND, seed=5, n=60)
    batches = tables(BAND, left, right, 3)
    for i in range(2):
        in_process(plan, root, i, batches[i])  # type: ignore[arg-type]
    shutil.rmtree(tmp_path / "far/log/versions/0000000001")
    with pytest.raises(CheckpointError, match="far://log does not hold batch 1"):
        in_process(plan, root, 2, batches[2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("location", "path", "below"),
    [
        ("hdfs://host:8020/deep/log", "/deep/log", "hdfs://host:8020/deep/log/c/d"),
        ("s3a://bucket/log", "bucket/log", "s3a://bucket/log/c/d"),
        ("s3://bucket/a?region=here", "bucket/a", "s3://bucket/a/c/d?region=here"),
        ("abfss://box@store.dfs.net/a/", "box/a", "abfss://box@store.dfs.net/a/c/d"),
    ],
)
def test_a_location_leads_back_to_its_file_system(location: str, path: str, below: str) -> None:
    """Tasks get locations as text: the host in them must not be lost."""
    root = RemotePath(fs.LocalFileSystem(), path, Origin(location, path))
    assert str(root / "c" / "d") == below
    assert str((root / "c" / "d").parent.parent) == location.replace("a/?", "a?").removesuffix("/")
    parent = location.partition("?")[0].rstrip("/").rpartition("/")[0]
    assert str(root.parent).partition("?")[0] == parent


def test_a_file_takes_the_place_of_another_where_renaming_would_not(far: WebHdfs) -> None:
    file = place(f"{far.url}/deep/file")
    assert isinstance(file, RemotePath)
    for text in (b"one", b"two"):
        file.publish(io.BytesIO(text))
        assert file.read_bytes() == text
    assert [path.name for path in (far.directory / "deep").iterdir()] == ["file"]
    assert place(str(file / "a")) == file / "a"


def _move_in(directory: Path, batches: Batches, first: int) -> None:
    """Let files of further batches appear among the input."""
    write_files(directory / str(first), batches)
    for side in ("left", "right"):
        (directory / "in" / side).mkdir(parents=True, exist_ok=True)
        for path in (directory / str(first) / side).iterdir():
            path.rename(directory / "in" / side / f"{first}-{path.name}")


@pytest.mark.spark
def test_a_checkpoint_on_a_remote_file_system(spark: SparkSession, far: WebHdfs, tmp_path: Path) -> None:
    """Spark's part by Hadoop's client and ours by fsspec's.

    The query is stopped and rescaled, finds no room at its next start, and goes on when there is some.
    """
    from pyspark.errors import StreamingQueryException

    left, right = stream(BAND, seed=5, n=120)
    batches = tables(BAND, left, right, 4)
    checkpoint = f"{far.url}/checkpoint"
    before = {path.name for path in directory().glob("*")}

    def run() -> None:
        joined = join(*streams(spark, tmp_path / "in", BAND.left, BAND.right), BAND.bound_spec(), partitions=2)
        writer = joined.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    _move_in(tmp_path, batches[:2], 0)
    run()
    for number in (3, 1):
        rescale(checkpoint, number)
    _move_in(tmp_path, batches[2:], 2)
    far.full = ".piece."
    with pytest.raises(StreamingQueryException, match=r"batch 2 failed: .* can't be written.*continues with batch 2"):
        run()
    far.full = None
    run()
    assert pairs(read_parquet(tmp_path / "out")) == expected(BAND, left, right)
    assert late(checkpoint).num_rows == 0
    log = far.directory / "checkpoint/streamjoin/join"
    assert len(list(log.glob("versions/0000000003/*.piece"))) == 1
    assert not list(log.rglob(".*"))
    # The pieces that a batch joined with were fetched and mapped.
    assert {path.name for path in directory().glob("*")} - before


def test_paths_know_their_parts(root: RemotePath) -> None:
    path = root / "versions" / "1.piece"
    assert (path.name, path.suffix, str(path), str(path.parent)) == (
        "1.piece", ".piece", "far://log/versions/1.piece", "far://log/versions",
    )  # fmt: skip
    path.publish(io.BytesIO(b"x"))
    (root / "versions/2.piece").publish(io.BytesIO(b"y"))
    assert [entry.name for entry in in_order((root / "versions").glob("*.piece"))] == ["1.piece", "2.piece"]
    assert [entry.name for entry in in_order(root.glob("*/1.*"))] == ["1.piece"]
    assert path == root / "versions/1.piece"
    assert len({path, root / "versions/1.piece"}) == 1
    with pytest.raises(OSError, match="not empty"):
        path.parent.rmdir()
    path.unlink()
    path.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        path.unlink()
    assert not path.exists()
    assert list((root / "nothing").iterdir()) == []
