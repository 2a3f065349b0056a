"""Other numbers of partitions while a join runs, one key with half of the rows, and conditions without any key."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.spark import join, rescale
from streamjoin.spark.stages.scaling import COMPARISONS_PER_TASK, ROWS_PER_TASK, asked_for, planned, ranges_after
from streamjoin.storage.log import new_epoch
from streamjoin.storage.manifest import EMPTY, StoredRun
from streamjoin.storage.merging import RunStatistics
from streamjoin.storage.pieces import read_footer
from tests.spark.joining import (
    CASES,
    TS,
    Case,
    blueprint,
    expected,
    in_process,
    pairs,
    stream,
    streams,
    tables,
    write_files,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BAND = CASES[0]
KEYED = pa.schema([("ts", TS), ("k", pa.int64()), ("id", pa.int64())])


def _hot(rng: random.Random, _: str) -> dict[str, int]:
    return {"k": 7 if rng.random() < 0.5 else rng.randint(0, 200)}


HOT_KEY = Case("half on one key", sj.Equi("k"), KEYED, KEYED, lambda l, r: l["k"] == r["k"], _hot)
HOT_BAND = Case(
    "a band over a hot value", sj.Band("k", "k", 2), KEYED, KEYED, lambda l, r: abs(l["k"] - r["k"]) <= 2, _hot
)
THETA = Case(
    "no key",
    sj.Theta("(r.k - l.k) * (r.k - l.k - 9) < 0"),
    KEYED,
    KEYED,
    lambda l, r: l["k"] < r["k"] < l["k"] + 9,
    _hot,
)


def _pieces(root: Path, batch: int) -> list[int]:
    """The new rows that each range of a batch stored."""
    return [read_footer(path)["fresh"] for path in sorted(root.glob(f"versions/{batch:010}/*.piece"))]


@pytest.mark.parametrize("case", [HOT_KEY, HOT_BAND, THETA], ids=lambda case: case.name)
@pytest.mark.parametrize("partitions", [2, 5])
def test_work_on_one_key_or_none_is_divided_by_position(case: Case, partitions: int, tmp_path: Path) -> None:
    left, right = stream(case, seed=partitions, n=600)
    found: Counter[tuple[int, int]] = Counter()
    plan = blueprint(case, partitions)
    for i, sides in enumerate(tables(case, left, right, 6)):
        found += pairs(in_process(plan, tmp_path, i, sides))
    assert found == expected(case, left, right)
    shares = _pieces(tmp_path, 5)
    assert len(shares) == partitions
    assert max(shares) < 1.5 * sum(shares) / partitions


def test_partitions_change_between_batches_and_nothing_is_lost(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=5, n=500)
    plan = replace(blueprint(BAND, 8), first=2)
    root = tmp_path / "streamjoin/join"
    epoch = new_epoch(root, plan.description)
    found: Counter[tuple[int, int]] = Counter()
    ran = []
    for i, sides in enumerate(tables(BAND, left, right, 10)):
        if i in (3, 6, 8):
            rescale(tmp_path, {3: 8, 6: 3, 8: None}[i])
        found += pairs(in_process(plan, root, i, sides, epoch))
        ran.append(len(_pieces(root, i)))
    assert found == expected(BAND, left, right)
    assert ran == [2, 2, 2, 2, 8, 8, 8, 3, 3, 2]


def test_the_number_of_ranges_follows_the_manifest_alone() -> None:
    plan = replace(blueprint(BAND, 8), first=3)
    assert ranges_after(plan, EMPTY) == 3
    assert ranges_after(blueprint(BAND, 8), EMPTY) == 8
    assert ranges_after(plan, replace(EMPTY, wanted=5)) == 5
    assert ranges_after(plan, replace(EMPTY, wanted=50)) == 8
    load = replace(plan, auto=True)
    assert ranges_after(load, EMPTY) == 3
    sizes = [(0, 1), (1, 1), (ROWS_PER_TASK, 1), (ROWS_PER_TASK + 1, 2), (ROWS_PER_TASK * 100, 8)]
    for fresh, ranges in sizes:
        assert ranges_after(load, replace(EMPTY, batch=0, fresh=fresh)) == ranges
    assert planned(load, replace(EMPTY, batch=0, fresh=3 * ROWS_PER_TASK)).ranges == 3


def test_without_an_index_the_window_is_load_too() -> None:
    stored = 1_000_000
    run = StoredRun(0, (RunStatistics(stored, 0, 0), RunStatistics(0, 0, 0)), (), ())
    before = replace(EMPTY, batch=0, fresh=3 * COMPARISONS_PER_TASK // stored, runs=(run,))
    assert ranges_after(replace(blueprint(BAND, 8), auto=True), before) == 1
    assert ranges_after(replace(blueprint(THETA, 8), auto=True), before) == 3


def test_a_wish_that_can_not_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sj.CheckpointError, match="no join in"):
        rescale(tmp_path, 3)
    root = tmp_path / "streamjoin/join"
    new_epoch(root, blueprint(BAND, 2).description)
    for number in (0, -1, True, 2.0):
        with pytest.raises(sj.SpecError, match="whole number from 1"):
            rescale(tmp_path, number)  # type: ignore[arg-type]
    assert asked_for(root) is None
    rescale(f"file:{tmp_path}", 3)
    assert asked_for(root) == 3
    (root / "partitions.json").write_text('{"partitions": "many"}')
    assert asked_for(root) is None


@pytest.mark.spark
@pytest.mark.parametrize("case", [HOT_KEY, THETA], ids=lambda case: case.name)
def test_a_running_query_is_rescaled(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    left, right = stream(case, seed=1, n=200)
    write_files(tmp_path, tables(case, left, right, 5))
    checkpoint = tmp_path / "checkpoint"
    joined = join(*streams(spark, tmp_path, case.left, case.right), case.bound_spec(), partitions=2, most_partitions=5)
    found: Counter[tuple[int, int]] = Counter()

    def take(frame: DataFrame, batch: int) -> None:
        rows = frame.select("id_left", "id_right").collect()
        found.update((row.id_left, row.id_right) for row in rows)
        if batch in (0, 2):
            rescale(checkpoint, {0: 5, 2: 3}[batch])

    options = {"checkpointLocation": str(checkpoint)}
    query = joined.writeStream.foreachBatch(take).options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    assert found == expected(case, left, right)
    ran = [len(_pieces(checkpoint / "streamjoin/join", batch)) for batch in range(5)]
    assert ran[3:] == [5, 3]
