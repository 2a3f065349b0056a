"""The fused kernel of every index against a loop in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.papers.compiled_caller import count_in_tasks
from streamjoin.indexes.base import Matches, push_task
from streamjoin.indexes.registry import INDEXES, make_index
from streamjoin.kernels.trees.task import DONE, FULL, INSERTS, ON_RIGHT, PROBES
from tests.indexes.reference import CASES, Task, brute_force, case_id, random_task

each_kind = pytest.mark.parametrize(("name", "shape"), CASES, ids=case_id)


def run(name: str, shape: dict[str, Any], task: Task, size: int, self_join: bool = False) -> list[tuple[int, int]]:
    """Push a stream in tasks of `size` tuples through a result buffer that is soon full."""
    left = INDEXES[name](**shape)
    right = left if self_join else INDEXES[name](**shape)
    out = Matches(16)
    found: list[tuple[int, int]] = []
    for start in range(0, task.ops.size, size):
        stop = min(start + size, task.ops.size)
        pairs = push_task(left, right, task, out, start, stop)
        found += zip(*(column.tolist() for column in pairs), strict=True)
        left.check()
        right.check()
    return found


@each_kind
@pytest.mark.parametrize("seed", range(4))
def test_random_interleavings_and_windows(name: str, shape: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    windows = (int(rng.integers(1, 200)), int(rng.integers(1, 200)))
    domain = int(rng.choice([1, 4, 100, 10**6]))
    width = int(domain // rng.integers(2, 60)) if INDEXES[name].capabilities.ranges else 0
    task = random_task(rng, 900, windows, domain, width)
    size = (1, 8, 64, 300)[seed]
    task = task if size > 1 else Task(*(column[:200] for column in task))
    assert run(name, shape, task, size) == brute_force(task)


@each_kind
@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_compiled_caller_finds_what_the_interpreter_finds(name: str, shape: dict[str, Any], size: int) -> None:
    rng = np.random.default_rng(size)
    width = 2 if INDEXES[name].capabilities.ranges else 0
    task = random_task(rng, 700, (90, 120), 20, width)
    left, right = INDEXES[name](**shape), INDEXES[name](**shape)
    out = Matches(16)
    expected = brute_force(task)
    assert count_in_tasks(left, right, task, out, size) == len(expected)
    left.check()
    right.check()
    # What the last tuple found is still there.
    last = [pair for pair in expected if pair[0] == 699]
    kept = zip(out.probe.tolist(), out.seq.tolist(), strict=True)
    assert [pair for pair in kept if pair[0] == 699][: len(last)] == last
    assert last


@each_kind
def test_self_join_probes_before_it_inserts(name: str, shape: dict[str, Any]) -> None:
    width = 3 if INDEXES[name].capabilities.ranges else 0
    task = random_task(np.random.default_rng(9), 600, (50, 50), 60, width, self_join=True)
    assert run(name, shape, task, 64, self_join=True) == brute_force(task, self_join=True)


@each_kind
def test_time_windows_expire_in_leaps_and_while_nothing_arrives(name: str, shape: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    task = random_task(rng, 800, (400, 400), 40, 0)
    arrived = [np.cumsum((task.ops & ON_RIGHT) == side) for side in (0, 1)]
    clock = np.cumsum(rng.random(800) < 0.02)  # the bound stands still, then jumps to the present
    for side in (0, 1):
        leap = np.array([arrived[side][np.searchsorted(clock, tick)] for tick in clock]) - 1
        on_side = (task.ops & ON_RIGHT) == side
        task.own_min[on_side] = leap[on_side].clip(0)
        task.min_seq[~on_side] = leap[~on_side].clip(0)
    assert run(name, shape, task, 50) == brute_force(task)


@each_kind
def test_one_sided_streams(name: str, shape: dict[str, Any]) -> None:
    task = random_task(np.random.default_rng(3), 500, (30, 30), 10, 0)
    only_left = task._replace(ops=task.ops & ~ON_RIGHT, seq=np.arange(500), own_min=np.arange(500) - 29)
    assert run(name, shape, only_left, 64) == []


def test_a_full_buffer_gives_back_whole_tuples_and_the_place_to_resume() -> None:
    index = make_index("btree")
    index.insert(np.zeros(20), np.arange(20))
    columns = [np.zeros(3, dtype=np.int64) for _ in range(7)]
    columns[0][:] = PROBES
    out_probe, out_seq = np.empty(50, dtype=np.int64), np.empty(50, dtype=np.int64)
    code, at, count = index.task(index.mem, index.mem, *columns, out_probe, out_seq, 0, 3)
    assert (code, at, count) == (FULL, 2, 40)
    assert out_probe[:40].tolist() == [0] * 20 + [1] * 20
    code, at, count = index.task(index.mem, index.mem, *columns, out_probe, out_seq, at, 3)
    assert (code, at, count) == (DONE, 3, 20)


@each_kind
def test_an_index_never_refuses_twice(name: str, shape: dict[str, Any]) -> None:
    """One call of `maintain` is enough for the tuple that was refused."""
    index = INDEXES[name](**shape)
    size = 3000
    columns = [np.zeros(size, dtype=np.int64) for _ in range(7)]
    columns[0][:] = INSERTS
    columns[1][:] = np.arange(size) % 50
    columns[4][:] = np.arange(size)
    out = np.empty(16, dtype=np.int64)
    start = -1
    code, at = DONE + 1, 0
    while code != DONE:
        assert at > start
        start = at
        code, at, _ = index.task(index.mem, index.mem, *columns, out, out, at, size)
        if code != DONE:
            index.maintain()
    assert len(index) == size
    index.check()
