"""`pim_parallel`: the oracle's rows in its order whatever the threads do, and nothing that hangs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.pim_tree.crew import SharedJoin, Tuples
from streamjoin.pim_tree.join import PimParallel
from streamjoin.pim_tree.kernels import work_queue as q
from streamjoin.pim_tree.kernels.shared_tree import ROOM
from streamjoin.pim_tree.shared import SharedPimTree
from tests.deadlock import no_deadlock
from tests.joins.pim_parallel_runs import Stream, check, digest, expected, joined, piece
from tests.threads import check_that_runs_hold

ROWS = 6_000
SPEC = sj.JoinSpec(on=sj.Band("k", "k", 40), window=sj.CountWindow(1_500))


def tables(seed: int = 0) -> tuple[pa.Table, pa.Table, pa.Array]:
    rng = np.random.default_rng(seed)
    left, right = (
        pa.table({"k": rng.integers(0, 50_000, ROWS), "id": np.arange(ROWS), "v": rng.integers(0, 9, ROWS)})
        for _ in range(2)
    )
    return left, right, pa.array(rng.permutation(np.repeat([False, True], ROWS)))


def run(algorithm: str, spec: sj.JoinSpec = SPEC, workers: int = 1, **options: object) -> pa.Table:
    left, right, interleave = tables()
    with sj.open(spec, algorithm, workers, options=options) as join:
        return join.push(left=left, right=right, interleave=interleave)


# -- against a plain loop ------------------------------------------------------------------------------


def test_hundreds_of_random_joins_match_a_plain_loop() -> None:
    check(0, 1, 20)  # compiled before the clock starts
    with no_deadlock():
        for seed in range(400):
            check(seed, 1 + seed % 8, 150)


def test_threads_join_and_leave_throughout() -> None:
    with no_deadlock():
        for seed in range(40):
            check(seed, 8, 400, changing=True)


def test_the_output_does_not_depend_on_threads_or_repeats() -> None:
    with no_deadlock():
        for seed in range(6):
            assert len({digest(seed, threads, 400) for threads in (1, 2, 3, 5, 8, 8, 8)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "runs"),
    [
        pytest.param(
            {"STREAMJOIN_FORCED_YIELDS": "3"},
            "120",
            id="yields forced at every shared access",
            marks=pytest.mark.thorough,
        ),
        pytest.param({"NUMBA_DISABLE_JIT": "1"}, "12", id="without the JIT"),
    ],
)
def test_it_holds_in_a_test_build_and_as_plain_python(environment: dict[str, str], runs: str) -> None:
    check_that_runs_hold(environment, "tests.joins.pim_parallel_runs", runs)


def test_one_key_for_all_spills_into_trees_and_fills_the_output() -> None:
    n = 3_000
    is_right = np.arange(n) % 2 == 1
    own = np.arange(n) // 2
    upto = np.where(is_right, own + 1, own)
    stream = Stream(is_right, np.zeros(n, np.int64), np.ones(n, bool), own, upto - 30, upto, 0, False, True)
    with no_deadlock():
        for seed in range(4):
            assert joined(stream, seed, 4) == expected(stream)


FEW_TREES = {"merge_ratio": 1.0, "insertion_depth": 1, "task": 3}
"""Few sub-indexes that hold as much as the window: all of them are trees."""

# -- through the engine --------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"task": 1},
        {"task": 1000},
        {"merge": "blocking"},
        {"merge": "one_thread", "smallest_run": 64},
        {"merge_ratio": 0.02, "smallest_run": 8, "task": 5},
        FEW_TREES,
    ],
    ids=str,
)
def test_rows_and_order_are_those_of_the_sweep(workers: int, options: dict[str, object]) -> None:
    with no_deadlock():
        assert run("pim_parallel", workers=workers, **options) == run("sweep")


@pytest.mark.parametrize(
    "spec",
    [
        sj.JoinSpec(on=sj.Band("k", "k", 40) & sj.Theta("l.v < r.v"), window=sj.CountWindow(1_500)),
        sj.JoinSpec(on=sj.Band("k", "k", 40), window=sj.TimeWindow(700), time="id", order="arrival"),
        sj.JoinSpec(on=sj.Band("k", "k", 9_000), window=(sj.CountWindow(50), sj.CountWindow(900))),
    ],
    ids=["residual", "time", "asymmetric"],
)
def test_what_the_index_does_not_decide_is_tested_as_well(spec: sj.JoinSpec) -> None:
    with no_deadlock():
        assert run("pim_parallel", spec, 3, task=7, smallest_run=16) == run("sweep", spec)


@pytest.mark.parametrize(
    "window",
    [
        sj.CountWindow(1_500),
        (sj.CountWindow(50), sj.CountWindow(900)),
        sj.TimeWindow(700),
        (sj.CountWindow(100), sj.TimeWindow(700)),
    ],
    ids=["count", "asymmetric", "time", "mixed"],
)
@pytest.mark.parametrize("other", ["k", "v"], ids=["equal roles", "other words"])
def test_a_self_join_by_threads(window: Any, other: str) -> None:
    on = sj.Band("k", other, 40) & sj.Theta("l.id + r.id > 90")
    spec = sj.JoinSpec(on=on, window=window, self_join=True, time="id", order="arrival")
    left, _, _ = tables()
    with no_deadlock(), sj.open(spec, "pim_parallel", 3, options={"task": 5}) as threads, sj.open(spec, "sweep") as one:
        for begin in range(0, ROWS, ROWS // 3):
            part = left.slice(begin, ROWS // 3)
            assert threads.push(left=part) == one.push(left=part)


def test_a_self_join_keeps_one_tree() -> None:
    def held(self_join: bool) -> int:
        spec = sj.JoinSpec(on=sj.Band("k", "k", 40), window=sj.CountWindow(50_000), self_join=self_join)
        left, right, _ = tables()
        with sj.open(spec, "pim_parallel", 2) as join:
            join.push(left=left) if self_join else join.push(left=left, right=right)
            return int(join.metrics()["bytes"])

    assert held(True) < 0.7 * held(False)


def test_workers_change_while_pushes_go_on() -> None:
    left, right, interleave = tables()
    wanted = run("sweep")
    over = threading.Event()
    with no_deadlock(), sj.open(SPEC, "pim_parallel", 2, options={"task": 2}) as join:
        join.push(left=left.slice(0, 0), right=right.slice(0, 0))

        def change() -> None:
            for n in (4, 1, 8, 2, 3) * 200:
                if over.wait(1e-4):
                    return
                join.set_workers(n)

        changing = threading.Thread(target=change)
        changing.start()
        found = join.push(left=left, right=right, interleave=interleave)
        over.set()
        changing.join()
        counted = join.metrics()
    assert found == wanted
    assert counted["tasks"] == ROWS
    assert counted["merges"] > 1


def test_merges_of_one_size_need_room_once() -> None:
    """Otherwise each merge would stop all threads to make room, and the trees would grow for ever."""
    tree = SharedPimTree(20_000)
    sizes = set()
    for _ in range(6):
        tree.make_room(1_000)
        tree.current = 1 - tree.current
        sizes.add(tuple(each.size for each in tree.trees))
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": 0}, "task=0 is not a number of tuples"),
        ({"task": 2.5}, "task=2.5"),
        ({"merge": "later"}, "merge='later' is not one of 'nonblocking', 'blocking'"),
        ({"merge_ratio": 2.0}, "merge_ratio=2.0 is not in"),
        ({"merge_ratio": "half"}, "merge_ratio='half' is not a number"),
        ({"width": 9}, "width=9 of a sub-index"),
        ({"insertion_depth": 0}, "insertion_depth=0"),
        ({"smallest_run": 0}, "smallest_run=0"),
        ({"tasks": 3}, "does not know 'tasks'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], said: str) -> None:
    left, right, _ = tables()
    with pytest.raises(sj.SpecError, match=said), sj.open(SPEC, "pim_parallel", options=options) as join:
        join.push(left=left, right=right)


def crowded_stream(n: int, window: int) -> Stream:
    """Two streams that alternate and have one key: every tuple matches the whole of the other window."""
    is_right = np.arange(n) % 2 == 1
    own = np.arange(n) // 2
    upto = np.where(is_right, own + 1, own)
    return Stream(is_right, np.zeros(n, np.int64), np.ones(n, bool), own, upto - window, upto, 0, False, True)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_many_matches_per_tuple_make_the_blocks_larger_and_memory_stays_bounded(threads: int) -> None:
    stream = crowded_stream(4_000, 300)
    join = SharedJoin(SharedPimTree(), SharedPimTree(), threads, task=8)
    before, tuples = join.nbytes, Tuples()
    piece(stream, tuples, 0, stream.n)
    matches: list[tuple[int, int]] = []
    with no_deadlock():
        join.run(tuples, lambda probes, seqs: matches.extend(zip(probes.tolist(), seqs.tolist(), strict=True)))
        join.close()
    assert matches == [(i, seq) for i in range(stream.n) for seq in range(max(0, stream.least[i]), stream.upto[i])]
    assert join.queue[q.CAPACITY] > 1024  # 8 tuples have 2,400 matches
    assert not join.queue[q.CRAMPED]
    blocks = (join.queue[q.RING_MASK] + 1) * 2 * (join.queue[q.CAPACITY] + q.GAP_WORDS)
    assert blocks <= join.pool.size
    assert join.queue[q.OUT_ROOM] <= join.out[0].size
    assert join.nbytes > before


def test_an_error_of_one_thread_reaches_the_caller_and_ends_the_join() -> None:
    sides = SharedPimTree(), SharedPimTree()
    join = SharedJoin(*sides, 4, task=1, out=64, results=64)
    stream, tuples = crowded_stream(2_000, 30), Tuples()
    piece(stream, tuples, 0, stream.n)

    def refuse(probes: object, positions: object) -> None:
        raise MemoryError("no room for the results")

    with no_deadlock():
        with pytest.raises(MemoryError, match="no room"):
            join.run(tuples, refuse)
        with pytest.raises(sj.StateError, match="open a new one"):
            join.run(tuples, refuse)
        join.close()


def test_trees_have_room_for_what_is_live() -> None:
    """What a merge leaves out needs no room in the tree that it writes."""
    window, rng = 1 << 15, np.random.default_rng(5)
    spec = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(window), self_join=True)
    with sj.open(spec, "pim_parallel", 2, options={"merge_ratio": 1.0, "width": 8}) as join:
        for _ in range(20):
            join.push(left=pa.table({"k": rng.integers(0, 1 << 40, window // 4)}))
        assert join.metrics()["merges"] >= 3
        algorithm = join._operator.algorithm
        assert isinstance(algorithm, PimParallel)
        (tree,) = set(algorithm.shared.sides)
        assert max(int(each[ROOM]) for each in tree.trees) < 1.4 * window
        tree.check()
