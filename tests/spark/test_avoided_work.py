"""What a join saves itself and Spark: rows that expire at once, files of old versions, a test or a count a row."""

from __future__ import annotations

import datetime as dt
import gc
import itertools
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import ANY

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.model.binding import bind
from streamjoin.spark import join
from streamjoin.spark.runtime import checkpoints
from streamjoin.spark.runtime.checkpoints import query_settings
from streamjoin.storage.background import merge_due
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.merging import MergePolicy, RunStatistics, alive, spent
from tests.spark.joining import (
    CASES,
    EPOCH,
    blueprint,
    in_process,
    run_to_parquet,
    stream,
    streams,
    tables,
    write_files,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAND = CASES[0]
BYTES, ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
ADAPTIVE, UNION = "spark.sql.adaptive.streaming.stateless.enabled", "spark.sql.unionOutputPartitioning"


def _run(rows: int, newest: int) -> tuple[RunStatistics, RunStatistics]:
    return RunStatistics(rows, newest - 99, newest), RunStatistics(0, 0, 0)


def test_a_run_that_is_about_to_expire_is_folded() -> None:
    runs, policy = [_run(1000, 99), _run(1000, 199)], MergePolicy(floor=20, inline=0)
    assert spent(runs, (0, 0), 1000, policy) == 0
    assert spent(runs, (98, 0), 1000, policy) == 1
    assert spent(runs, (50, 0), 1000, policy) == 0
    assert spent(runs, (200, 0), 1000, policy) == 2
    # Were it alive after all, a batch would rewrite ten times its own rows.
    assert spent(runs, (98, 0), 100, policy) == 0
    assert spent([_run(16, 99)], (95, 0), 1000, policy) == 1
    assert spent([_run(16, 99)], (80, 0), 1000, policy) == 0


def test_half_of_the_rows_are_older_than_the_middle() -> None:
    # Two rows moved on from an older run: the others are all alive, and most of them must count as such.
    moved = RunStatistics(1000, 0, 199, (150,))
    assert [alive(moved, at) for at in (0, 75, 150, 151, 175, 199, 200)] == [1000, 750, 500, 500, 255, 10, 0]
    even = RunStatistics(1000, 0, 199)
    assert [alive(even, at) for at in (0, 50, 100, 150, 199, 200)] == [1000, 747, 500, 250, 5, 0]
    assert alive(RunStatistics(1, 0, 9, (9,)), 9) == 1


def _each_millisecond(schema: pa.Schema, begin: int, end: int) -> pa.Table:
    times = [EPOCH + dt.timedelta(milliseconds=i) for i in range(begin, end)]
    columns = {"ts": times, "id": range(begin, end), "x": [1] * len(times), "a": [1] * len(times)}
    return pa.table({name: pa.array(columns[name], schema.field(name).type) for name in schema.names})


def test_rows_that_expire_within_their_batch_are_not_stored(tmp_path: Path) -> None:
    plan = blueprint(BAND, 2)
    in_process(plan, tmp_path, 0, [_each_millisecond(schema, 0, 500) for schema in (BAND.left, BAND.right)])
    (run,) = WindowLog(tmp_path, 1, plan).version(0).runs
    assert [side.rows for side in run.statistics] == [41, 41]


def test_a_window_of_two_batches_is_two_runs(tmp_path: Path) -> None:
    """Also after a first batch that holds a whole window, and the few rows at its edge are not worth a merge."""
    plan = blueprint(BAND, 2, MergePolicy(floor=20, inline=0))
    cuts = [0, 40, *range(60, 300, 20)]
    for i, (begin, end) in enumerate(itertools.pairwise(cuts)):
        in_process(plan, tmp_path, i, [_each_millisecond(schema, begin, end) for schema in (BAND.left, BAND.right)])
        log = WindowLog(tmp_path, 1, plan)
        assert not merge_due(plan, log, i)
        if i > 1:
            assert [[side.rows for side in run.statistics] for run in log.version(i).runs] == [[ANY, ANY]] * 2
            assert sum(side.rows for run in log.version(i).runs for side in run.statistics) <= 2 * 42


def test_a_version_is_written_down_only_by_who_keeps_it(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=1, n=40)
    plan = blueprint(BAND, 2)
    for i, sides in enumerate(tables(BAND, left, right, 2)):
        in_process(plan, tmp_path, i, sides)
    log = WindowLog(tmp_path, 1, plan)
    found = log.version(1, keep=False)
    assert not list((tmp_path / "versions/0000000001").glob("*.manifest"))
    assert log.version(1) == found
    assert list((tmp_path / "versions/0000000001").glob("*.manifest"))


def test_a_manifest_is_parsed_once_by_all_tasks_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = blueprint(BAND, 3)
    first, second = tables(BAND, *stream(BAND, seed=2, n=60), 2)
    in_process(plan, tmp_path, 0, first)
    WindowLog(tmp_path, 1, plan).version(0)
    parsed, from_json = [], Manifest.from_json
    monkeypatch.setattr(Manifest, "from_json", lambda text: parsed.append(text) or from_json(text))
    in_process(plan, tmp_path, 1, second)
    assert len(parsed) == 1


def test_a_version_is_read_where_what_it_is_made_of_went_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = stream(BAND, seed=1, n=40)
    plan = blueprint(BAND, 2)
    for i, sides in enumerate(tables(BAND, left, right, 2)):
        in_process(plan, tmp_path, i, sides)
    log, other = WindowLog(tmp_path, 1, plan), WindowLog(tmp_path, 1, plan)

    def slow(batch: int, *_: object) -> object:
        kept.append(other.version(batch))
        raise sj.CheckpointError("a piece is missing")

    kept: list[object] = []
    monkeypatch.setattr(log, "_assemble", slow)
    assert [log.version(1)] == kept
    monkeypatch.setattr(other, "version", lambda batch: batch)
    (path,) = (tmp_path / "versions/0000000001").glob("*.manifest")
    path.unlink()
    with pytest.raises(sj.CheckpointError, match="a piece is missing"):
        log.version(1)


def test_a_worker_freezes_its_heap_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(checkpoints, "_tasks", itertools.count(1))
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    assert [n for n in range(1, 40) if checkpoints.freeze_heap()] == [2, 4, 8, 16, 32]
    assert len(frozen) == 5


@pytest.mark.parametrize(
    ("kind", "rows", "limit", "lifted"),
    [
        (pa.int64(), "200000", "67108864b", True),
        (pa.decimal128(38, 2), "200000", "67108864b", True),
        (pa.string(), "200000", "67108864b", False),
        (pa.list_(pa.int64()), "200000", "67108864b", False),
        (pa.int64(), "200000", "1000000b", False),
        (pa.int64(), "0", "67108864b", False),
        (pa.int64(), "100000000", "67108864b", False),
    ],
)
def test_bytes_are_counted_only_where_rows_do_not_bound_them(
    kind: pa.DataType, rows: str, limit: str, lifted: bool
) -> None:
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), ("v", kind)])
    spec = sj.JoinSpec(sj.Equi("k"), sj.TimeWindow("1 second"), time="t", order="event_time")
    given = {BYTES: limit, ROWS: rows, ADAPTIVE: "true", UNION: "true"}
    settings = query_settings([Blueprint(bind(spec, schema, schema), "join", 2)], given.get, given.__contains__)
    assert (settings.get(BYTES) == "2147483647") == lifted
    assert len(settings) == (2 if lifted else 0)


@pytest.mark.spark
def test_a_query_leaves_its_last_version_alone_and_keys_without_null(spark: SparkSession, tmp_path: Path) -> None:
    left, right = stream(BAND, seed=6, n=120)
    write_files(tmp_path, tables(BAND, left, right, 4))
    joined = join(*streams(spark, tmp_path, BAND.left, BAND.right), BAND.bound_spec(), partitions=2)
    assert [field.name for field in joined.schema if field.nullable] == ["id_left", "id_right"]
    sides = streams(spark, tmp_path, BAND.left, BAND.right)
    punctuated = join(*sides, BAND.bound_spec(), ordered=True, punctuate=True)
    assert [field.name for field in punctuated.schema if not field.nullable] == ["ts", "punctuation"]
    run_to_parquet(joined, tmp_path)
    spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(120_000)
    root = tmp_path / "checkpoint/streamjoin/join"
    (epoch,) = (root / "epochs").iterdir()
    needed = WindowLog(root, int(epoch.name), blueprint(BAND, 2)).version(3).files
    there = {f"{path.parent.name}/{path.name}" for path in root.rglob("*.piece")}
    assert {name for name in there if not name.startswith("0000000003/")} == {
        name for name in needed if not name.startswith("0000000003/")
    }
