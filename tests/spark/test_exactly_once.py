"""Exactly once under kill -9: a query killed at random moments and restarted has every pair in its output once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.spark.joining import CASES, expected, pairs, read_parquet, stream, tables, write_files

KILLS = 5
BATCHES = 14
PATIENCE = 120.0
"""Seconds without any progress after which the program is taken for stuck."""

# What a kill waits for: the next file of this kind. They stand for the steps of a batch.
MOMENTS = (
    "checkpoint/offsets/*",
    "checkpoint/streamjoin/join/versions/*/*.piece",
    "checkpoint/streamjoin/join/versions/*/*.manifest",
    "checkpoint/streamjoin/join/versions/*/.*.piece.*",
    "out/*.parquet",
    "out/_spark_metadata/*",
    "checkpoint/commits/*",
)


def _start(directory: Path, name: str, partitions: int) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("exactly_once_driver.py")
    root = Path(__file__).parents[2]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, program, str(directory), name, str(partitions)],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=0.02)
    except subprocess.TimeoutExpired:
        return False
    return True


def _run_until(process: subprocess.Popen[bytes], directory: Path, moment: str, times: int) -> bool:
    """Let it run until files of a kind came `times` times; False if it ended before."""
    seen = set(directory.glob(moment))
    since = time.monotonic()
    while times:
        if _ended(process):
            return False
        now = set(directory.glob(moment))
        if now - seen:
            times -= 1
            since = time.monotonic()
        seen |= now
        assert time.monotonic() - since < PATIENCE, (directory / "log").read_text()[-4000:]
    return True


@pytest.mark.spark
@pytest.mark.slow
def test_every_pair_once_whatever_is_killed(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "key, two bands and a condition")
    left, right = stream(case, seed=99, n=640)
    write_files(tmp_path, tables(case, left, right, BATCHES))
    rng = random.Random(7)
    killed = 0
    while True:
        process = _start(tmp_path, case.name, rng.choice([2, 3]))
        try:
            if killed == KILLS:
                assert process.wait(timeout=PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
                break
            done = not _run_until(process, tmp_path, rng.choice(MOMENTS), rng.randint(1, 3))
        finally:
            if process.poll() is None:
                _kill(process)
        assert not done, (tmp_path / "log").read_text()[-4000:]
        killed += 1
    starts = list((tmp_path / "checkpoint/streamjoin/join/epochs").iterdir())
    assert len(starts) > 3, "the kills came before the query started"
    found = pairs(read_parquet(tmp_path / "out"))
    assert found == expected(case, left, right)
    assert max(found.values()) == 1
