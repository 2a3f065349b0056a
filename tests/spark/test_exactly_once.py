"""Exactly once under kill -9: a query killed at random moments and restarted has every pair in its output once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamjoin.spark import rescale
from tests.spark.exactly_once_driver import TIME_CASE
from tests.spark.joining import expected, pairs, read_parquet, stream, tables, write_files
from tests.spark.three_sources import expected_of_three, rows_in_order, three_sources, write_source

KILLS = int(os.environ.get("STREAMJOIN_KILLS", "2"))
"""Of each kind of join; `make torture` asks for a hundred."""
BATCHES = 8
PATIENCE = 120.0
"""Seconds without any progress after which the program is taken for stuck."""

# What a kill waits for: the next file of this kind. They stand for the steps of a batch.
MOMENTS = (
    "checkpoint/offsets/*",
    "checkpoint/streamjoin/join/versions/*/*.piece",
    "checkpoint/streamjoin/join/versions/*/*.manifest",
    "checkpoint/streamjoin/join/versions/*/.*.piece.*",
    "checkpoint/streamjoin/join/versions/*/*.merge",
    "checkpoint/streamjoin/join/versions/*/*.gate",
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


def _kill_a_worker(process: subprocess.Popen[bytes]) -> None:
    """Kill one of the Python processes that run the tasks; its tasks run again in others."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,sess=,args="], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        pid, session, args = line.split(None, 2)
        if int(session) == process.pid and "streamjoin.spark.daemon" in args:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            return


def _torture(directory: Path, kind: str, moments: Sequence[str], seed: int) -> int:
    """Run the program to its end, with kills on the way; returns how many came to pass."""
    rng = random.Random(seed)
    killed = 0
    while True:
        process = _start(directory, kind, rng.choice([2, 3]))
        try:
            if killed == KILLS:
                assert process.wait(timeout=PATIENCE) == 0, _said(directory)
                return killed
            reached = _run_until(process, directory, rng.choice(moments), rng.randint(1, 2))
            if reached:
                if (directory / "checkpoint/streamjoin/join/join.json").exists():
                    rescale(directory / "checkpoint", rng.choice([1, 2, 4]))
                _kill_a_worker(process)
                # With no worker left to wait for, the next file comes from a task that runs again.
                reached = rng.random() < 0.5 or _run_until(process, directory, "checkpoint/commits/*", 1)
        finally:
            if process.poll() is None:
                _kill(process)
        if not reached:
            assert process.returncode == 0, _said(directory)
            return killed
        killed += 1


def _said(directory: Path) -> str:
    return (directory / "log").read_text()[-4000:]


@pytest.mark.spark
@pytest.mark.slow
def test_every_pair_once_whatever_is_killed(tmp_path: Path) -> None:
    left, right = stream(TIME_CASE, seed=99, n=640)
    write_files(tmp_path, tables(TIME_CASE, left, right, BATCHES))
    killed = _torture(tmp_path, "time", [moment for moment in MOMENTS if not moment.endswith(".gate")], seed=7)
    assert killed >= min(KILLS, 2), "the program ended before it was killed"
    found = pairs(read_parquet(tmp_path / "out"))
    assert found == expected(TIME_CASE, left, right)
    assert max(found.values()) == 1


@pytest.mark.spark
@pytest.mark.slow
def test_every_pair_once_and_in_order_behind_a_gate(tmp_path: Path) -> None:
    for name, rows in zip("abc", three_sources(), strict=True):
        write_source(tmp_path / name, rows, BATCHES)
    killed = _torture(tmp_path, "count", MOMENTS, seed=8)
    assert killed >= min(KILLS, 2), "the program ended before it was killed"
    table = rows_in_order(tmp_path)
    assert list(zip(table["id_left"].to_pylist(), table["id_right"].to_pylist(), strict=True)) == expected_of_three()
