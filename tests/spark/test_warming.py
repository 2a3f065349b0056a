"""Workers start warm: what a join runs was loaded before they were forked, and compiled by one process of the host."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from streamjoin.joins.warming import alone
from streamjoin.spark.runtime.daemon import ends_quietly

LOADED = """
import gc, pathlib, sys
from numba.core.dispatcher import Dispatcher
from streamjoin.spark.runtime.warming import warm
from tests.spark.joining import CASES, blueprint, in_process, stream, tables

def loaded():
    return sum(len(found.overloads) for found in gc.get_objects() if isinstance(found, Dispatcher))

assert loaded() == 0
warm()
before = loaded()
case = CASES[0]
for batch, sides in enumerate(tables(case, *stream(case, seed=1, n=100), 3)):
    in_process(blueprint(case, 2), pathlib.Path(sys.argv[1]), batch, sides)
print(before, loaded())
"""


@pytest.mark.slow
def test_a_join_finds_its_kernels_loaded(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    before, after = map(int, ran.stdout.split())
    # Whether a part of the window is mapped from a file or new makes no other kernel of it.
    assert before > 8
    assert after == before


def test_one_process_of_a_host_compiles_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with alone():
        lock = tmp_path / "streamjoin/compiling.lock"
        with lock.open("w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_cache_that_can_not_be_written_to_is_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with alone():
        pass


ADHOC = """
import gc, os, sys
from numba.core.dispatcher import Dispatcher
from streamjoin.spark.runtime import daemon
from streamjoin.spark.runtime.session import MORE_WARMING

os.environ[MORE_WARMING] = "streamjoin.nobody," + sys.argv[1]
daemon.start()
import streamjoin.queries.executors.warming as adhoc

assert "streamjoin.queries.executors.distributed.cell" in sys.modules

def loaded():
    return sum(len(found.overloads) for found in gc.get_objects() if isinstance(found, Dispatcher))

gc.unfreeze()
before = loaded()
adhoc.warm()
from streamjoin.queries.kernels.probe import probe_shared
assert len(probe_shared.overloads) > 0
print(loaded() - before)
"""


@pytest.mark.slow
def test_tasks_of_the_ad_hoc_engine_find_theirs_loaded() -> None:
    from streamjoin.queries.executors.distributed.jobs import WARMING

    ran = subprocess.run(
        [sys.executable, "-c", ADHOC, WARMING], capture_output=True, text=True, check=True, timeout=300
    )
    assert int(ran.stdout) == 0, "a module that is not there must not keep the next from being warm"


def test_a_worker_leaves_no_trace_where_spark_has_closed_the_connection() -> None:
    def failing(error: Exception) -> int:
        raise error

    assert ends_quietly(lambda sock, authenticated: sock + authenticated)(3, 4) == 7
    assert ends_quietly(failing)(BrokenPipeError(32, "Broken pipe")) == 1
    with pytest.raises(ValueError, match="of its own"):
        ends_quietly(failing)(ValueError("of its own"))
