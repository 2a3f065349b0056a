"""Exactly once under kill -9: an engine killed at random moments and started again, against the oracle."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.adhoc_comparing import compare
from tests.spark.spark_cluster import executors as executors_of
from tests.spark.spark_cluster import linked_home

KILLS = int(os.environ.get("STREAMJOIN_KILLS", "1"))
PATIENCE = 180.0
# What a kill waits for: the next file of this kind. They stand for the steps of a batch.
MOMENTS = ("changes/*", "buckets/*", "batches/*", "done/*", "state/*", "streams/*/offsets/*", "streams/*/commits/*")
EMBEDDED_MOMENTS = (*MOMENTS[:5], "sources/*/*")
DISTRIBUTED_MOMENTS = (*MOMENTS, "tuples/*/*", "spool/*", "outputs/*", "waiting/*")
# In the suite engines on Spark crash in this process, at named moments: `test_adhoc_distributed.py` and its kin.
_ON_SPARK = (pytest.mark.spark, pytest.mark.thorough)


def start(directory: Path, executor: str, home: Path | None = None) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    cluster = {} if home is None else {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("adhoc_driver.py")), str(directory), executor],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **cluster, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
        )


def said(directory: Path) -> str:
    return (directory / "log").read_text()[-4000:]


def run_until(process: subprocess.Popen[bytes], directory: Path, moment: str, times: int) -> bool:
    """Let it run until files of a kind came `times` times; False if it ended before."""
    seen = set(directory.glob(moment))
    since = time.monotonic()
    while times:
        try:
            process.wait(timeout=0.01)
            return False
        except subprocess.TimeoutExpired:
            now = set(directory.glob(moment))
        if now - seen:
            times -= 1
            since = time.monotonic()
        seen |= now
        assert time.monotonic() - since < PATIENCE, said(directory)
    return True


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    "executors",
    [
        pytest.param(("driver",), id="spark", marks=_ON_SPARK),
        pytest.param(("distributed 1", "distributed 2", "distributed 3"), id="distributed", marks=_ON_SPARK),
        pytest.param(("embedded",), id="embedded"),
    ],
)
def test_every_query_has_every_row_once_whenever_it_is_killed(tmp_path: Path, executors: tuple[str, ...]) -> None:
    kind = {"embedded": "embedded", "driver": "spark"}.get(executors[0], "distributed")
    moments = {"embedded": EMBEDDED_MOMENTS, "spark": MOMENTS, "distributed": DISTRIBUTED_MOMENTS}[kind]
    rng = random.Random(11)
    killed = 0
    while True:
        process = start(tmp_path, rng.choice(executors))
        try:
            if killed >= KILLS:
                assert process.wait(timeout=PATIENCE) == 0, said(tmp_path)
                break
            moment = rng.choice([f"checkpoint/{found}" for found in moments] + ["out/*/*.parquet"])
            if not run_until(process, tmp_path, moment, rng.randint(1, 3)):
                assert process.returncode == 0, said(tmp_path)
                break
        finally:
            if process.poll() is None:
                kill(process)
        killed += 1
    assert killed >= min(KILLS, 2), "the program ended before it was killed"
    compare(tmp_path, kind)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.thorough
def test_every_query_has_every_row_once_though_executors_are_killed(tmp_path: Path) -> None:
    rng = random.Random(12)
    process = start(tmp_path, "cluster 3", linked_home(tmp_path))
    killed: Counter[str] = Counter()
    try:
        while sum(killed.values()) < KILLS and run_until(process, tmp_path, "checkpoint/tuples/*/*", rng.randint(1, 3)):
            # An executor with its Python, or the Python of one executor; Spark starts both again.
            found = executors_of([process.pid])
            workers = with_argument(process.pid, "streamjoin.spark.runtime.daemon")
            victims = found if found and not killed["executor"] else workers
            if victims:
                os.kill(rng.choice(victims), signal.SIGKILL)
                killed["executor" if victims is found else "Python"] += 1
        assert process.wait(timeout=2 * PATIENCE) == 0, said(tmp_path)
    finally:
        if process.poll() is None:
            kill(process)
    assert killed["executor"] == 1
    assert sum(killed.values()) >= min(KILLS, 2)
    compare(tmp_path, "distributed")


def with_argument(session: int, word: str) -> list[int]:
    """The processes of a session that have an argument."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,sess=,args="], capture_output=True, text=True, check=True)
    lines = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [int(pid) for pid, owner, args in lines if int(owner) == session and word in args.split()]
