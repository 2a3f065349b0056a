"""Rows that go from task to task in files of the batch, without Spark; tests of joins and gates use them with Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from streamjoin.model.errors import CheckpointError
from streamjoin.spark.stages.parts import COPIES, Part, Spool, opened
from streamjoin.spark.stream_join import Options, _spool
from streamjoin.storage.log import WindowLog
from streamjoin.storage.places import create_file
from tests.spark.joining import CASES, blueprint, expected, in_process, pairs, stream, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAND = CASES[0]
ROWS = pa.record_batch({"x": pa.array(range(1000), pa.int64())})


def test_large_parts_travel_as_names_and_small_ones_as_values(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "new" / "directory", "1", 4000)
    sent = [
        row
        for number, rows in enumerate([ROWS, ROWS.slice(0, 10)])
        for row in Part(3, 1 + COPIES, 7, number, rows).packed(spool)
    ]
    (file,) = spool.directory.iterdir()
    assert [row.column(4)[0].as_buffer().size < 4000 for row in sent] == [True, True]
    assert sent[0].column(4)[0].as_py().decode() == str(file)
    partition, parts = opened(reversed(sent))
    assert partition == 3
    assert [part[:3] for part in parts] == [(1 + COPIES, 7, 0), (1 + COPIES, 7, 64)]
    assert [pa.ipc.read_record_batch(part[3], ROWS.schema) for part in parts] == [ROWS, ROWS.slice(0, 10)]


def test_rows_that_the_disk_does_not_take_travel_as_values(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (sent,) = Part(0, 0, 0, 0, ROWS).packed(Spool(tmp_path / "file" / "directory", "1", 1))
    assert pa.ipc.read_record_batch(opened([sent])[1][0][3], ROWS.schema) == ROWS


def test_a_lost_file_is_named(tmp_path: Path) -> None:
    (sent,) = Part(0, 0, 0, 0, ROWS).packed(Spool(tmp_path, "1", 1))
    (file,) = tmp_path.iterdir()
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file.name}.* is missing"):
        opened([sent])


def test_a_join_gives_the_same_rows_and_leaves_no_file_of_a_finished_batch(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=3, n=200)
    plan = replace(blueprint(BAND, 2), spool=1)
    found: Counter[tuple[int, int]] = Counter()
    for i, sides in enumerate(tables(BAND, left, right, 6)):
        found += pairs(in_process(plan, tmp_path, i, sides))
        batches = {file.parent.name for file in tmp_path.rglob("*.rows")}
        assert batches == {f"{i:010}"}
        # The driver prunes once the batch is committed; what the next batch sends meanwhile stays.
        log = WindowLog(tmp_path, 1, plan)
        running = tmp_path / f"versions/{i + 1:010}/1{log.SPOOLED}"
        running.parent.mkdir()
        assert create_file(running, b"")
        log.prune(log.version(i))
        assert list(tmp_path.rglob("*.rows")) == [running]
        running.unlink()
        running.parent.rmdir()
    assert found == expected(BAND, left, right)


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[2,1000]", True), ("local-cluster[2,1,512]", False), ("spark://host:7077", False)],
)
def test_only_tasks_of_one_host_share_files(master: str, local: bool) -> None:
    session: Any = SimpleNamespace(conf={"spark.master": master})
    assert (_spool(Options(), session) is not None) == local
    assert _spool(Options(spool=5), session) == (5 if local else None)


@pytest.mark.spark
def test_a_session_of_this_process_shares_files(spark: SparkSession) -> None:
    assert _spool(Options(), spark) == 1 << 17
