"""`three_step` and `cell_join` beyond the oracle suite: thread counts, task sizes, little room, errors."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest

import benchmarks.papers.three_step  # noqa: F401 - registers it
import streamjoin as sj
from benchmarks.papers import cell_join
from benchmarks.papers.cell_join import ProbeRanges, RepartitionedScan
from benchmarks.papers.three_step import PairBuffer
from tests.deadlock import no_deadlock

ROWS = 1200
CONDITIONS = [
    sj.Band("x", "x", 2),
    sj.Band("x", "x", 5) & sj.Band("y", "y", 4.0),
    sj.Theta("l.x + 3 = r.x"),
]


def tables() -> tuple[pa.Table, pa.Table]:
    rng = np.random.default_rng(4)

    def one() -> pa.Table:
        keys = [None if rng.random() < 0.02 else int(key) for key in rng.integers(0, 60, ROWS)]
        return pa.table({"x": pa.array(keys, pa.int32()), "y": rng.uniform(0, 60, ROWS), "id": np.arange(ROWS)})

    return one(), one()


def digest(on: object, algorithm: str, workers: int = 1, options: dict[str, object] | None = None) -> str:
    """A hash of all rows in their order, pushed in uneven pieces."""
    left, right = tables()
    spec = sj.JoinSpec(on=on, window=sj.CountWindow(150))
    found = hashlib.sha256()
    rows = 0
    with sj.open(spec, algorithm, workers, options=options or {}) as join:
        begin = 0
        for size in (1, 700, 3, 496):
            out = join.push(left.slice(begin, size), right.slice(begin, size)).combine_chunks()
            rows += out.num_rows
            found.update(repr([out[f"id_{side}"].to_pylist() for side in ("left", "right")]).encode())
            begin += size
    assert rows > 100
    return found.hexdigest()


@pytest.mark.parametrize("on", CONDITIONS, ids=str)
def test_the_output_is_the_same_for_all_thread_counts_and_tasks(on: object) -> None:
    with no_deadlock():
        wanted = digest(on, "nested_loop")
        assert digest(on, "three_step") == wanted
        for workers in (1, 2, 3, 8):
            for task in (1, 64, 10_000):
                if task > 1 or workers == 3:
                    assert digest(on, "cell_join", workers, {"task": task}) == wanted, (workers, task)


@pytest.mark.parametrize("on", CONDITIONS, ids=str)
def test_little_room_for_pairs_loses_none(on: object, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [digest(on, "three_step"), digest(on, "cell_join", 2)]
    monkeypatch.setattr(PairBuffer, "CAPACITY", 3)
    monkeypatch.setattr(cell_join, "_ROOM", 1)
    assert [digest(on, "three_step"), digest(on, "cell_join", 2)] == wanted


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_parts_of_a_task_cover_every_place_once(workers: int) -> None:
    rng = np.random.default_rng(workers)
    for _ in range(50):
        first = rng.integers(0, 40, 9)
        last = first + rng.integers(0, 30, 9)
        zeros = np.zeros(1, np.uint32)
        probes = ProbeRanges((zeros, zeros), np.zeros((4, 9), np.uint32), first, last)
        places = [p for k in range(workers) for p in range(*probes.part((2, 8), k, workers))]
        assert places == list(range(first[2:8].min(), max(first[2:8].min(), last[2:8].max())))


def test_an_error_in_one_thread_stops_the_scan_and_reaches_the_caller() -> None:
    words = np.zeros(4000, np.uint32)
    bounds = np.zeros((4, 6), np.uint32)
    probes = ProbeRanges((words, words), bounds, np.zeros(6, np.int64), np.full(6, 4000))
    scan = RepartitionedScan(3)

    def fail(side: int, found: np.ndarray, places: np.ndarray) -> None:
        raise ZeroDivisionError("in thread 1")

    def accept(side: int, found: np.ndarray, places: np.ndarray) -> None:
        """Take them."""

    with no_deadlock():
        with pytest.raises(ZeroDivisionError, match="thread 1"):
            scan.run([probes], [(0, 6)], [accept, fail, accept])
        with pytest.raises(sj.StateError, match="stopped by ZeroDivisionError"):
            scan.run([probes], [(0, 6)], [accept, accept, accept])
        scan.close()


@pytest.mark.parametrize("task", [0, -3, 1.5, True, "8"])
def test_a_task_is_a_number_of_tuples(task: object) -> None:
    spec = sj.JoinSpec(on=sj.Band("x", "x", 1), window=sj.CountWindow(10))
    with pytest.raises(sj.SpecError, match="task"), sj.open(spec, "cell_join", options={"task": task}) as join:
        join.push(*tables())


def test_the_windows_are_cut_once_a_task() -> None:
    spec = sj.JoinSpec(on=sj.Band("x", "x", 1), window=sj.CountWindow(10))
    left, right = tables()
    with sj.open(spec, "cell_join", 2, options={"task": 100}) as join:
        join.push(left.slice(0, 120), right.slice(0, 130))
        assert join.metrics()["repartitions"] == 3
