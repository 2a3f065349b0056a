"""The stages of the Spark join without Spark: every case, cut and number of partitions gives the same rows."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.storage.log import WindowLog
from streamjoin.storage.merging import MergePolicy
from tests.seeds import FRESH
from tests.spark.joining import CASES, EAGER, EPOCH, TS, Case, blueprint, expected, in_process, pairs, stream, tables

pytestmark = pytest.mark.slow

IDS = [case.name for case in CASES]
BY_NAME = {case.name: case for case in CASES}
BAND = BY_NAME["band of integers"]


# Every two of case, partitions and batches meet in the suite; every three in `make fuzz`.
@pytest.mark.parametrize(
    ("case", "partitions", "batches"),
    [
        pytest.param(
            case, partitions, batches, marks=[] if (i + j + k) % 3 == 0 else [pytest.mark.thorough],
            id=f"{name}-{partitions}-{batches}",
        )
        for i, (case, name) in enumerate(zip(CASES, IDS, strict=True))
        for j, partitions in enumerate((1, 2, 5))
        for k, batches in enumerate((1, 4, 30))
    ],
)  # fmt: skip
def test_same_rows_for_every_cut(case: Case, partitions: int, batches: int, tmp_path: Path) -> None:
    left, right = stream(case, seed=FRESH + batches * 10 + partitions, n=150)
    plan = blueprint(case, partitions)
    found: Counter[tuple[int, int]] = Counter()
    for i, sides in enumerate(tables(case, left, right, batches)):
        found += pairs(in_process(plan, tmp_path, i, sides))
    wanted = expected(case, left, right)
    assert found == wanted
    assert sum(wanted.values()) > 100


def test_another_number_of_partitions_at_every_batch(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=5, n=400)
    found: Counter[tuple[int, int]] = Counter()
    numbers = itertools.cycle([3, 1, 8, 2])
    for i, sides in enumerate(tables(BAND, left, right, 12)):
        found += pairs(in_process(blueprint(BAND, next(numbers)), tmp_path, i, sides, epoch=i + 1))
    assert found == expected(BAND, left, right)


@pytest.mark.parametrize("seed", range(4))
def test_killed_batches_are_run_again(seed: int, tmp_path: Path) -> None:
    """Tasks of a start that died leave any of their pieces; the next start goes on from the version before."""
    rng = random.Random(seed)
    left, right = stream(BAND, seed=seed, n=300)
    found: Counter[tuple[int, int]] = Counter()
    epoch = 1
    for i, sides in enumerate(tables(BAND, left, right, 10)):
        while rng.random() < 0.6:
            partitions = rng.choice([1, 3, 4])
            survivors = rng.sample(range(partitions), rng.randint(1, partitions))
            in_process(blueprint(BAND, partitions), tmp_path, i, sides, epoch, only=survivors)
            epoch += 1
        found += pairs(in_process(blueprint(BAND, 3), tmp_path, i, sides, epoch))
    assert found == expected(BAND, left, right)


def test_a_task_that_runs_twice_gives_the_same(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=3, n=200)
    plan = blueprint(BAND, 2)
    for i, sides in enumerate(tables(BAND, left, right, 5)):
        once = pairs(in_process(plan, tmp_path, i, sides))
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.piece")}
        again = pairs(in_process(plan, tmp_path, i, sides))
        assert once == again
        assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.piece")}


def test_a_new_log_in_the_place_of_a_deleted_one(tmp_path: Path) -> None:
    """The same file names with other rows, in a process that still has the old ones mapped."""
    for seed in (1, 2):
        left, right = stream(BAND, seed=seed, n=100)
        found: Counter[tuple[int, int]] = Counter()
        for i, sides in enumerate(tables(BAND, left, right, 3)):
            found += pairs(in_process(blueprint(BAND, 2), tmp_path / "log", i, sides))
        assert found == expected(BAND, left, right)
        shutil.rmtree(tmp_path / "log")


def test_another_start_writes_the_same_bytes(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=3, n=200)
    plan = blueprint(BAND, 2)
    for root in (tmp_path / "a", tmp_path / "b"):
        for i, sides in enumerate(tables(BAND, left, right, 5)):
            in_process(plan, root, i, sides, epoch=1)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))
    assert len(files) > 5
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_rows_out_of_order_within_the_lateness_are_joined(tmp_path: Path) -> None:
    case = Case(**{**BAND.__dict__, "spec": {"lateness": "50 milliseconds"}})
    left, right = stream(case, seed=8, n=300, disorder=50)
    found: Counter[tuple[int, int]] = Counter()
    for i, sides in enumerate(tables(case, left, right, 15)):
        found += pairs(in_process(blueprint(case, 3), tmp_path, i, sides))
    assert found == expected(case, left, right)


def test_late_rows_are_counted_and_kept(tmp_path: Path) -> None:
    def row(ms: int | None, x: int | None, i: int) -> dict[str, object]:
        return {"ts": None if ms is None else EPOCH + dt.timedelta(milliseconds=ms), "x": x, "id": i}

    empty = BAND.right.empty_table()
    plan = blueprint(BAND, 2)
    first = pa.Table.from_pylist([row(100, 1, 0), row(90, 1, 1), row(None, 5, 2)], BAND.left)
    second = pa.Table.from_pylist([row(99, 1, 3), row(100, 1, 4), row(10, None, 5), row(None, None, 6)], BAND.left)
    in_process(plan, tmp_path, 0, (first, empty))
    in_process(plan, tmp_path, 1, (second, empty))
    manifest = WindowLog(tmp_path, 1, plan).version(1)
    assert dict(manifest.late) == {"left: late": 2, "left: no time": 2}
    assert manifest.clocks == (_ticks(100), None)
    right = pa.Table.from_pylist([{"ts": EPOCH + dt.timedelta(milliseconds=100), "a": 1, "id": 7}], BAND.right)
    assert pairs(in_process(plan, tmp_path, 2, (BAND.left.empty_table(), right))) == Counter([(0, 7), (1, 7), (4, 7)])


def _ticks(ms: int) -> int:
    return int(EPOCH.timestamp() * 1_000_000) + ms * 1000


def test_expired_rows_leave_the_log(tmp_path: Path) -> None:
    left, right = stream(BAND, seed=1, n=2000, step=10)
    plan = blueprint(BAND, 3)
    sizes = []
    for i, sides in enumerate(tables(BAND, left, right, 100)):
        in_process(plan, tmp_path, i, sides)
        log = WindowLog(tmp_path, 1, plan).version(i)
        sizes.append(sum(side.rows for run in log.runs for side in run.statistics))
        assert len(log.runs) <= 16
    assert max(sizes) < 500
    assert len(list(tmp_path.rglob("*.piece"))) < 40


@pytest.mark.parametrize(
    "policy", [EAGER, MergePolicy(), MergePolicy(slack=0, floor=0)], ids=["eager", "usual", "never"]
)
def test_merging_changes_no_result(policy: MergePolicy, tmp_path: Path) -> None:
    left, right = stream(BAND, seed=11, n=300)
    plan = blueprint(BAND, 2, policy)
    found: Counter[tuple[int, int]] = Counter()
    for i, sides in enumerate(tables(BAND, left, right, 20)):
        found += pairs(in_process(plan, tmp_path, i, sides))
    assert found == expected(BAND, left, right)


def test_a_self_join_pairs_no_tuple_with_itself(tmp_path: Path) -> None:
    schema = pa.schema([("ts", TS), ("x", pa.int64()), ("id", pa.int64())])
    case = Case(
        "self", sj.Band("x", "x", 2), schema, schema,
        lambda l, r: abs(l["x"] - r["x"]) <= 2 and l["id"] != r["id"],
        lambda rng, side: {"x": rng.randint(0, 15)},
        windows=(30, 50), spec={"self_join": True},
    )  # fmt: skip
    rows, _ = stream(case, seed=2, n=200)
    found: Counter[tuple[int, int]] = Counter()
    for i, (sides, _) in enumerate(tables(case, rows, [], 6)):
        found += pairs(in_process(blueprint(case, 3), tmp_path, i, [sides]))
    assert found == expected(case, rows, rows)
    early = tables(case, rows[:5], [], 1)[0][0]
    in_process(blueprint(case, 3), tmp_path, 6, [early])
    assert dict(WindowLog(tmp_path, 1, blueprint(case, 3)).version(6).late) == {"left: late": 5}


def test_one_value_for_all_and_the_ends_of_the_type(tmp_path: Path) -> None:
    """Ranges that are empty, cuts that fall on one word, intervals that reach past the smallest and largest value."""
    ends = [-(1 << 63), (1 << 63) - 1, 0]
    case = Case(
        "ends", sj.Band("x", "x", 5), pa.schema([("ts", TS), ("x", pa.int64()), ("id", pa.int64())]),
        pa.schema([("ts", TS), ("x", pa.int64()), ("id", pa.int64())]),
        lambda l, r: abs(l["x"] - r["x"]) <= 5,
        lambda rng, side: {"x": rng.choice([7] * 12 + ends)},
    )  # fmt: skip
    left, right = stream(case, seed=4, n=120)
    found: Counter[tuple[int, int]] = Counter()
    for i, sides in enumerate(tables(case, left, right, 6)):
        found += pairs(in_process(blueprint(case, 5), tmp_path, i, sides))
    assert found == expected(case, left, right)
