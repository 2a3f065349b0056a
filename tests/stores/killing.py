"""Programs with their checkpoint in a store, killed at random moments and started again; their output is compared."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

from streamjoin.queries.engine.journal import FileJournal
from tests.spark.adhoc_comparing import compare
from tests.spark.joining import expected, pairs, read_parquet, stream, tables, write_files
from tests.stores.join_program import CASE
from tests.stores.servers import Store, spark_jars

PATIENCE = 240.0
BATCHES = 6


def run_join(store: Store, directory: Path, checkpoint: str, kills: int, rng: random.Random) -> int:
    """Run the join to its end, with kills in between, and compare; returns how often it was killed."""
    left, right = stream(CASE, seed=kills, n=20 * BATCHES)
    write_files(directory, tables(CASE, left, right, BATCHES))
    jars = ",".join(map(str, spark_jars(store.spark)))
    command = [str(Path(__file__).with_name("join_program.py")), str(directory), checkpoint, json.dumps(store.storage)]

    def committed() -> int:
        return len(list((directory / "out" / "_spark_metadata").glob("[0-9]*")))

    killed = run_killed([*command, jars], directory, committed, kills, rng)
    assert pairs(read_parquet(directory / "out")) == expected(CASE, left, right)
    return killed


def run_adhoc(store: Store, directory: Path, checkpoint: str, kills: int, rng: random.Random) -> int:
    """Run an embedded ad-hoc engine to its end, with kills in between, and compare with the oracle."""
    command = [str(Path(__file__).with_name("adhoc_program.py")), str(directory), checkpoint, json.dumps(store.storage)]

    def seen() -> int:
        return len(list((directory / "out").glob("*/*.parquet"))) + len(list(directory.glob("acknowledged*")))

    killed = run_killed(command, directory, seen, kills, rng)
    # For this comparison alone: tests that run later in this process count what other journals keep.
    with patch.object(FileJournal, "kept", 10**6):
        compare(directory, "embedded", checkpoint)
    return killed


def run_killed(
    command: Sequence[str], directory: Path, progress: Callable[[], int], kills: int, rng: random.Random
) -> int:
    """Start a program until it ends by itself, and kill it `kills` times: soon after it got on, or while it starts."""
    killed = 0
    while True:
        process = start(command, directory)
        try:
            if killed >= kills:
                assert process.wait(PATIENCE) == 0, said(directory)
                return killed
            before, ending = progress(), time.monotonic() + PATIENCE
            wanted = before + rng.choice((0, 1, 1, 2))
            while progress() < wanted and process.poll() is None:
                assert time.monotonic() < ending, said(directory)
                _wait(process, 0.01)
            _wait(process, rng.random() * (3.0 if wanted == before else 0.5))
            if process.poll() is not None:
                assert process.returncode == 0, said(directory)
                return killed
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        killed += 1


def start(command: Sequence[str], directory: Path) -> subprocess.Popen[bytes]:
    """A program of the tests in a process group of its own."""
    root = Path(__file__).parents[2]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *command],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
        )


def said(directory: Path) -> str:
    """The end of what the programs printed."""
    return (directory / "log").read_text()[-4000:]


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
