"""Merges in the background: when they are due, how they are swapped in, and that they change no result."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamjoin.model.errors import CheckpointError
from streamjoin.spark.stream_join import Options, build
from streamjoin.storage import places
from streamjoin.storage.background import Merger, merge_due
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.merging import MergePolicy, RunStatistics, due
from streamjoin.storage.ranges import LEAST
from tests.spark.joining import (
    CASES,
    Case,
    blueprint,
    expected,
    in_process,
    pairs,
    run_to_parquet,
    stream,
    streams,
    tables,
    write_files,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAND, INTERVALS = CASES[0], CASES[-1]
# Nothing is folded by the batches themselves.
BACKGROUND = MergePolicy(slack=200, floor=0, runs=2, inline=0, expired=1000)


def _plan(partitions: int = 2) -> Blueprint:
    return blueprint(BAND, partitions, BACKGROUND)


@pytest.fixture(autouse=True)
def _begun(tmp_path: Path) -> None:
    (tmp_path / "join.json").touch()


def _runs(*rows: int) -> list[tuple[RunStatistics, RunStatistics]]:
    return [(RunStatistics(n, 0, 99), RunStatistics(0, 0, 0)) for n in rows]


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ((), None),
        ((10,), None),
        ((100, 10), None),
        ((100, 10, 9), (1, 3)),
        ((100, 10, 9, 8, 7), (1, 5)),
        ((100, 10, 9, 1), (1, 3)),
        ((10, 10), None),
    ],
)
def test_neighbours_of_about_one_size_are_due(rows: tuple[int, ...], chosen: tuple[int, int] | None) -> None:
    assert due(_runs(*rows), (LEAST, LEAST), MergePolicy(floor=0, runs=2)) == chosen


def test_a_run_that_is_mostly_expired_is_written_anew() -> None:
    runs = [(RunStatistics(1000, 0, 99), RunStatistics(0, 0, 0)), (RunStatistics(30, 90, 99), RunStatistics(0, 0, 0))]
    policy = MergePolicy(floor=0, runs=2)
    assert due(runs, (LEAST, LEAST), policy) is None
    assert due(runs, (70, LEAST), policy) == (0, 1)


@pytest.mark.parametrize(("seed", "case"), [(0, BAND), (1, BAND), (2, INTERVALS)])
def test_merges_at_any_moment_change_no_result(seed: int, case: Case, tmp_path: Path) -> None:
    rng = random.Random(seed)
    # Slow enough that several runs are alive at a time: one about to expire is folded, not merged.
    left, right = stream(case, seed=seed, n=500, step=3)
    found: Counter[tuple[int, int]] = Counter()
    merged = set()
    for i, sides in enumerate(tables(case, left, right, 25)):
        plan, epoch = blueprint(case, rng.choice([1, 2, 3]), BACKGROUND), rng.randint(1, 3) + i
        if rng.random() < 0.3:
            in_process(plan, tmp_path, i, sides, epoch, only=[0])
        found += pairs(in_process(plan, tmp_path, i, sides, epoch + 1))
        if rng.random() < 0.6:
            merge_due(plan, WindowLog(tmp_path, epoch + 1, plan), i)
        version = WindowLog(tmp_path, epoch + 1, plan).version(i)
        merged |= {file for file in version.files if file.endswith(".merge")}
        assert version.batch == i
    assert found == expected(case, left, right)
    assert len(merged) > 3


def test_a_merge_is_swapped_in_at_the_next_batch_and_its_runs_go(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=1, n=120, step=1)
    plan = _plan()
    batches = tables(BAND, left, right, 12)
    for i in range(8):
        in_process(plan, tmp_path, i, batches[i])
    log = WindowLog(tmp_path, 1, plan)
    assert len(log.version(7).runs) == 8
    assert merge_due(plan, log, 7)
    assert len(log.version(7).runs) == 8
    in_process(plan, tmp_path, 8, batches[8])
    swapped = log.version(8)
    assert len(swapped.runs) < 8
    assert sum(file.endswith(".merge") for file in swapped.files) == 1
    rows = [sum(side.rows for run in log.version(v).runs for side in run.statistics) for v in (7, 8)]
    assert rows[0] + 15 < rows[1] <= rows[0] + 20
    in_process(plan, tmp_path, 9, batches[9])
    in_process(plan, tmp_path, 10, batches[10])
    assert {int(p.parent.name) for p in tmp_path.rglob("*.piece")} >= {8, 9, 10}
    assert len(list(tmp_path.rglob("*.piece"))) == 2 * (len(log.version(10).runs) - 1)


def test_a_merge_that_begins_late_takes_the_newest_version_that_is_complete(tmp_path: Path) -> None:
    """Drivers hear of a batch when others have followed, which removed its version."""
    left, right = stream(BAND, seed=1, n=120, step=1)
    plan = _plan()
    for i, sides in enumerate(tables(BAND, left, right, 12)[:9]):
        in_process(plan, tmp_path, i, sides)
    log = WindowLog(tmp_path, 1, plan)
    with pytest.raises(CheckpointError, match="is missing"):
        log.version(2)
    assert merge_due(plan, log, 2)
    assert [merge.name.partition(".")[0] for merge in tmp_path.rglob("*.merge")] == [f"{7:010}"]
    with pytest.raises(CheckpointError, match="does not hold batch 9"):
        merge_due(plan, log, 9)


def test_a_merge_that_comes_too_late_is_removed(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=1, n=400, step=2)
    plan = _plan()
    batches = tables(BAND, left, right, 20)
    for i in range(6):
        in_process(plan, tmp_path, i, batches[i])
    late = WindowLog(tmp_path, 1, plan)
    assert merge_due(plan, late, 5)
    (merge,) = tmp_path.rglob("*.merge")
    kept = merge.read_bytes()
    merge.unlink()
    for i in range(6, 16):
        in_process(plan, tmp_path, i, batches[i])
    merge.parent.mkdir(exist_ok=True)
    merge.write_bytes(kept)
    in_process(plan, tmp_path, 16, batches[16])
    assert not merge.exists()
    assert not any(file.endswith(".merge") for file in late.version(16).files)


def test_a_merger_does_one_thing_at_a_time_and_stops(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=1, n=200, step=1)
    plan = _plan()
    for i, sides in enumerate(tables(BAND, left, right, 8)):
        in_process(plan, tmp_path, i, sides)
    merger = Merger(plan, WindowLog(tmp_path, 1, plan))
    for _ in range(5):
        merger.after(7)
    merger.stop()
    assert len(list(tmp_path.rglob("*.merge"))) == 1
    merger.after(7)
    with pytest.raises(CheckpointError):
        merge_due(plan, WindowLog(tmp_path, 1, replace(plan)), 99)
    broken = Merger(plan, WindowLog(tmp_path / "nowhere", 1, plan))
    broken.after(7)
    broken.stop()


@pytest.mark.spark
def test_a_query_merges_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    # Slow enough that merged rows are still alive at the end.
    left, right = stream(BAND, seed=6, n=120, step=1)
    write_files(tmp_path, tables(BAND, left, right, 8))
    sides = streams(spark, tmp_path, BAND.left, BAND.right)
    found = run_to_parquet(build(*sides, BAND.bound_spec(), Options(2), BACKGROUND), tmp_path)
    assert pairs(found) == expected(BAND, left, right)
    assert list(tmp_path.rglob("*.merge"))


def test_who_prunes_at_the_same_time_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver prunes as soon as it hears of a commit: directories and merges may go while a task looks at them."""
    left, right = stream(BAND, seed=1, n=400, step=3)
    plan = _plan(2)
    log = WindowLog(tmp_path, 1, plan)
    for i, sides in enumerate(tables(BAND, left, right, 10)[:6]):
        in_process(plan, tmp_path, i, sides)
        merge_due(plan, log, i)
    before = log.version(5)
    expected_merges = log.merges(before, set())
    stale = tmp_path / "versions/00/00000001.merge"
    seen = []
    listed = places.entries

    def entries(directory: places.Place) -> list[places.Place]:
        if directory.name == "versions":
            return [*listed(directory), stale.parent]
        if directory == stale.parent and stale.exists():
            seen.append(directory)
            shutil.rmtree(directory)
            return [stale]
        return listed(directory)

    monkeypatch.setattr("streamjoin.storage.places.entries", entries)
    for once in (lambda: log.merges(before, set()) == expected_merges, lambda: log.prune(before) is None):
        assert once(), "a directory that went before it was listed"
        stale.parent.mkdir()
        stale.touch()
        assert once(), "a merge that went before it was read"
    assert len(seen) == 2
    stale.parent.mkdir()
    stale.write_bytes(b"damaged")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="is damaged"):
        log.merges(before, set())
