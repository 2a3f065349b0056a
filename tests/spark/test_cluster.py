"""The join on a standalone cluster: with an executor killed in mid-batch the output is exact.

On a local cluster executors are killed by `test_exactly_once.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from streamjoin.spark import join
from tests.spark.joining import (
    CASES,
    expected,
    pairs,
    read_parquet,
    run_to_parquet,
    stream,
    streams,
    tables,
    write_files,
)
from tests.spark.spark_cluster import Standalone, end, executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE = 240.0
BATCHES = 4
CASE = next(case for case in CASES if case.name == "key, two bands and a condition")


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.stop()


def start(directory: Path, master: str) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")]),
        # What a user names for a cluster: the Python of its machines.
        "PYSPARK_PYTHON": sys.executable,
    }
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.cluster_driver", str(directory), CASE.name, master],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environ,
            cwd=root,
        )


def newest(directory: Path, part: str) -> int:
    """The number of the newest batch that Spark has written down as begun (offsets) or done (commits)."""
    found = (directory / "checkpoint" / part).glob("[0-9]*")
    return max((int(path.name) for path in found), default=-1)


def is_writing(directory: Path, batch: int) -> bool:
    """Whether the join has written to its log since the batch began: it is in its last stage, after the shuffle."""
    began = (directory / "checkpoint/offsets" / str(batch)).stat().st_mtime_ns
    for path in (directory / "checkpoint/streamjoin").rglob("*"):
        # Files under temporary names go while one looks.
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.stat().st_mtime_ns > began:
                return True
    return False


def kill_an_executor(directory: Path, process: subprocess.Popen[bytes], sessions: list[int]) -> None:
    """Wait until the last stage of the second or a later batch runs, and kill an executor."""
    deadline = time.monotonic() + PATIENCE
    while True:
        running = newest(directory, "offsets")
        if 1 <= running < BATCHES - 1 and running > newest(directory, "commits"):
            found = executors(sessions)
            if found and is_writing(directory, running):
                os.kill(found[0], signal.SIGKILL)
                return
        try:
            process.wait(timeout=0.01)
        except subprocess.TimeoutExpired:
            assert time.monotonic() < deadline, (directory / "log").read_text()[-4000:]
            continue
        raise AssertionError((directory / "log").read_text()[-4000:])


def launched(directory: Path) -> set[Path]:
    """The directories of all executors that a cluster ever started; each has one."""
    return {path.parent for path in directory.rglob("app-*/*/stderr")}


def in_order(table: pa.Table) -> list[dict[str, object]]:
    return sorted(table.to_pylist(), key=lambda row: (row["id_left"], row["id_right"]))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> list[dict[str, object]]:
    """The result of the same files in local mode."""
    directory = tmp_path_factory.mktemp("undisturbed")
    write_input(directory)
    left, right = streams(spark, directory, CASE.left, CASE.right, per_batch=3)
    return in_order(run_to_parquet(join(left, right, CASE.bound_spec(), partitions=2), directory))


def write_input(directory: Path) -> None:
    write_files(directory, tables(CASE, *INPUT, BATCHES))


INPUT = stream(CASE, seed=17, n=600)


def test_an_executor_killed_in_mid_batch(
    tmp_path: Path, undisturbed: list[dict[str, object]], standalone: Standalone
) -> None:
    write_input(tmp_path)
    process = start(tmp_path, standalone.url)
    try:
        kill_an_executor(tmp_path, process, standalone.sessions)
        assert process.wait(timeout=PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    finally:
        end(process)
    assert len(launched(standalone.directory)) > 2, "nobody took its place"
    table = read_parquet(tmp_path / "out")
    assert pairs(table) == expected(CASE, *INPUT)
    assert in_order(table) == undisturbed
