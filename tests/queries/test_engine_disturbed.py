"""The engine without Spark when its surroundings fail: a full disk, a tuple from the year 3000, a silent stream.

Queries that explode or end the process are in `test_isolation`, sinks that fail or hang in `test_deliveries`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Engine, ParquetSink, Settings
from streamjoin.model.errors import CheckpointError, StateError, StreamJoinError
from streamjoin.queries.engine import executor
from streamjoin.storage import pieces
from tests.queries.journal_cases import PAIRS, SCHEMA, table
from tests.queries.looped import read_back

TIMED = pa.schema({"k": pa.int64(), "ts": pa.timestamp("us")})
NEAR = "SELECT x.k, x.ts AS a, y.ts AS b FROM l x JOIN r y WITHIN 5 SECONDS ON x.k = y.k"


class Disk:
    """A disk that has room for so many more files; below `path` alone, if it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path | None = None) -> None:
        self.room: float = float("inf")
        self._lock = threading.Lock()
        finish = pieces.atomic._finish

        def write(draft: Any) -> None:
            if path is None or path in Path(str(draft._path)).parents:
                with self._lock:
                    self.room -= 1
                    is_full = self.room < 0
                if is_full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finish(draft)

        monkeypatch.setattr(pieces.atomic, "_finish", write)


def opened(checkpoint: Path | None, schema: pa.Schema = SCHEMA, time: str = "t", **options: Any) -> Engine:
    engine = Engine(checkpoint=checkpoint, **options)
    try:
        for name in "lr":
            engine.register(name, schema=schema, time=time)
    except BaseException:
        engine.stop()
        raise
    return engine


@contextlib.contextmanager
def running(checkpoint: Path, **options: Any) -> Iterator[Engine]:
    engine = opened(checkpoint, **options)
    try:
        yield engine.start()
    finally:
        # A full disk also keeps it from writing its last state, and that is said by the error before.
        with contextlib.suppress(StreamJoinError):
            engine.stop()


def feed(directory: Path) -> None:
    """Whatever of three batches is not there yet."""
    with running(directory / "checkpoint") as engine:
        if not engine.queries():
            engine.create(PAIRS, name="q", sink=ParquetSink(str(directory / "out")))
        for number in range(3):
            for name in "lr":
                if (engine.position(name) or 0) == number:
                    engine.push(name, table((1, number, number)))
        engine.process_all_available()


def test_a_full_disk_ends_the_engine_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever write finds no room (every third is tried): the caller is told, and later every row is there once."""
    disk = Disk(monkeypatch)
    wanted = Counter((a, b) for a in range(3) for b in range(3))
    ended = 0
    for room in range(0, 100, 3):
        disk.room = room
        directory = tmp_path / str(room)
        try:
            feed(directory)
        except StreamJoinError as error:
            ended += 1
            assert "No space left on device" in str(error)
            assert "free disk space" in str(error)
        full = disk.room < 0
        disk.room = float("inf")
        feed(directory)
        assert Counter(read_back(directory / "out", ["a", "b"])) == wanted, room
        if not full:
            break
    assert ended > 4 and room < 99


def test_a_full_disk_of_a_sink_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "FIRST_PAUSE", 0.01)
    disk = Disk(monkeypatch, tmp_path / "small")
    disk.room = 0
    with opened(tmp_path / "checkpoint") as engine:
        for name, place in (("full", "small"), ("fine", "large")):
            engine.create(PAIRS, name=name, sink=ParquetSink(str(tmp_path / place)))
        for number in range(3):
            engine.push_all({"l": table((1, number, number)), "r": table((1, number, number))})
        engine.process_all_available()
        infos = {info.name: info for info in engine.queries()}
        assert (infos["fine"].rows, infos["full"].rows, infos["full"].rows_undelivered) == (9, 0, 9)
        assert "No space left on device" in str(infos["full"].error)
    disk.room = float("inf")
    with opened(tmp_path / "checkpoint") as engine:
        engine.process_all_available()
        assert (engine.query("full").rows, engine.query("full").rows_undelivered) == (9, 0)
    assert Counter(read_back(tmp_path / "small", ["a", "b"])) == Counter(read_back(tmp_path / "large", ["a", "b"]))


FILLED = """
import resource, sys
import pyarrow as pa
import streamjoin as sj
schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
engine = sj.adhoc.Engine(checkpoint=sys.argv[1])
for name in ("l", "r"):
    engine.register(name, schema=schema, time="t")
engine.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
engine.push("l", [{"k": 1, "t": 1}])
try:
    engine.push("l", pa.table({"k": range(100_000), "t": range(100_000)}))
except sj.CheckpointError as error:
    print(error)
try:
    engine.wait(60)
except sj.CheckpointError as error:
    print(error)
    sys.exit(3)
"""


def test_a_file_that_the_system_refuses_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILLED, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 3, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "can't be written: File too large" in line and "free disk space" in line
    assert resource.getrlimit(resource.RLIMIT_FSIZE) != (100_000, resource.RLIM_INFINITY)
    with Engine(checkpoint=tmp_path) as engine:
        engine.register("l", schema=pa.schema({"k": pa.int64(), "t": pa.int64()}), time="t")
        # What was not acknowledged was not taken: the caller pushes it again.
        assert engine.position("l") == 1


def moment(seconds: float) -> datetime:
    return datetime(2026, 1, 1) + timedelta(seconds=seconds)


def test_a_tuple_from_the_year_3000_is_set_aside_and_the_stream_goes_on(tmp_path: Path) -> None:
    far = {"k": 1, "ts": datetime(3000, 1, 1)}
    soon = {"k": 1, "ts": datetime.now(UTC).replace(tzinfo=None) + timedelta(days=2)}
    for run in range(2):
        with opened(tmp_path, TIMED, "ts") as engine:
            if not run:
                engine.create(NEAR, name="q")
            engine.push("l", [far, {"k": 1, "ts": moment(10 * run)}, soon])
            engine.push("r", [{"k": 1, "ts": moment(10 * run + 1)}])
            left = engine.streams()[0]
            assert (left.rows, left.late, left.untimed) == (3 * (run + 1), 0, 2 * (run + 1))
            assert engine.query("q").rows == run + 1
            assert engine.late("l")["ts"].to_pylist() == [far["ts"], soon["ts"]] * run + [far["ts"], soon["ts"]]


def test_a_silent_stream_does_not_make_state_grow_and_its_last_hour_counts() -> None:
    with opened(None, TIMED, "ts", settings=Settings(idle="1 hour")) as engine:
        minute = 0
        core: Any = engine._loop.core
        core._clock = lambda: int(moment(60 * minute).replace(tzinfo=UTC).timestamp()) * 10**9
        engine.create(NEAR, name="q")
        engine.push("r", [{"k": 1, "ts": moment(0)}])
        for minute in range(5, 241, 5):
            engine.push("l", [{"k": 1, "ts": moment(60 * minute)}])
            assert sum(bucket.n for bucket in core.snapshot().buckets["l"]) <= 13 + 1
        # Then everything comes at once: what is within the hour has its partners, the rest is late and can be read.
        engine.push("r", [{"k": 1, "ts": moment(60 * past)} for past in range(5, 241, 5)])
        assert engine.query("q").rows == 13
        assert engine.late("r")["ts"].to_pylist() == [moment(60 * past) for past in range(5, 180, 5)]
        assert engine.streams()[1].late == 35


def test_nothing_is_taken_after_the_disk_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    with running(tmp_path) as engine:
        disk.room = 0
        with pytest.raises(StreamJoinError, match="No space left"):
            engine.push("l", table((1, 1, 1)))
        disk.room = float("inf")
        with pytest.raises(StateError, match=r"the engine failed: .*No space left"):
            engine.push("l", table((1, 1, 1)))
        with pytest.raises(StateError, match="the engine failed"):
            engine.create(PAIRS)
        with pytest.raises(CheckpointError, match="free disk space"):
            engine.wait(60)
