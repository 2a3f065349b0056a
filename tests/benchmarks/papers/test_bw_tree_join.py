"""The join by many threads over shared Bw-Trees: the matches of a plain loop, whatever the threads do."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.bw_tree.crew import BwTreeJoin
from benchmarks.papers.bw_tree.memory import MOST_PAGES
from benchmarks.papers.bw_tree.side import SharedBwTree
from streamjoin.model.errors import SpecError, StateError
from streamjoin.pim_tree.crew import Tuples
from tests.benchmarks.papers.bw_tree_join_runs import check, count_stream, joined
from tests.deadlock import no_deadlock
from tests.joins.pim_parallel_runs import I64, expected, piece
from tests.seeds import THOROUGH
from tests.threads import check_that_runs_hold


def test_hundreds_of_random_joins_match_a_plain_loop() -> None:
    check(0, 1, 20)  # compiled before the clock starts
    with no_deadlock():
        for seed in range(300 if THOROUGH else 100):
            check(seed, 1 + seed % 8, 200)


@pytest.mark.parametrize("keys", ["uniform", "few", "drifting"])
def test_many_windows_long(keys: str) -> None:
    """Pages and numbers are reused over and over."""
    with no_deadlock():
        for seed in range(3):
            stream = count_stream(np.random.default_rng(seed), 4_000, 40, keys)
            assert joined(stream, 40, seed, 5) == expected(stream)


def test_the_order_of_results_does_not_depend_on_threads() -> None:
    stream = count_stream(np.random.default_rng(3), 600, 50, "few")
    with no_deadlock():
        wanted = joined(stream, 50, 3, 1)
        assert all(joined(stream, 50, 3, threads) == wanted for threads in (2, 3, 8, 8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "runs"),
    [({"STREAMJOIN_FORCED_YIELDS": "3"}, "60"), ({"NUMBA_DISABLE_JIT": "1"}, "8")],
    ids=["yields forced at every shared access", "without the JIT"],
)
@pytest.mark.thorough
def test_it_holds_in_a_test_build_and_as_plain_python(environment: dict[str, str], runs: str) -> None:
    check_that_runs_hold(environment, "tests.benchmarks.papers.bw_tree_join_runs", runs)


def test_a_side_that_is_too_small_gets_more_pages_and_loses_nothing() -> None:
    """The entries spread over more leaves than the trees were laid for."""
    n, window = 4_000, 900
    stream = count_stream(np.random.default_rng(5), n, window, "uniform")
    sides = [SharedBwTree(window, 4, 64 * 7, 4, 2, retired=-400) for _ in range(2)]
    pages = [int(side.mem[MOST_PAGES]) for side in sides]
    join = BwTreeJoin(sides[0], sides[0 if stream.self_join else 1], 4, task=7, under_way=64)
    found: list[int] = []
    tuples = Tuples()
    piece(stream, tuples, 0, n)
    with no_deadlock():
        join.run(tuples, lambda probes, positions: found.append(probes.size))
    join.close()
    assert sum(found) == len(expected(stream))
    assert int(sides[0].mem[MOST_PAGES]) > pages[0]
    sides[0].check()


def test_another_crew_goes_on_with_the_trees() -> None:
    stream = count_stream(np.random.default_rng(8), 900, 60, "uniform")
    sides = [SharedBwTree(60, 1) for _ in range(1 if stream.self_join else 2)]
    found: list[tuple[int, int]] = []
    with no_deadlock():
        for begin, threads, task in ((0, 1, 64), (300, 6, 3), (600, 2, 9)):
            join = BwTreeJoin(sides[0], sides[-1], threads, task=task)
            tuples = Tuples()
            piece(stream, tuples, begin, begin + 300)

            def take(probes: I64, positions: I64, begin: int = begin) -> None:
                found.extend(zip((begin + probes).tolist(), positions.tolist(), strict=True))

            join.run(tuples, take)
            assert join.nbytes > sum(side.nbytes for side in sides)
            join.close()
    assert found == [(i, position) for i, position, _ in expected(stream)]


def test_an_error_of_one_thread_reaches_the_caller_and_ends_the_join() -> None:
    stream = count_stream(np.random.default_rng(1), 2_000, 30, "few")
    side = SharedBwTree(30, 4)
    join = BwTreeJoin(side, side if stream.self_join else SharedBwTree(30, 4), 4, task=1, out=64, results=64)
    tuples = Tuples()
    piece(stream, tuples, 0, stream.n)

    def refuse(probes: object, positions: object) -> None:
        raise MemoryError("no room for the results")

    with no_deadlock():
        with pytest.raises(MemoryError, match="no room"):
            join.run(tuples, refuse)
        with pytest.raises(StateError, match="open a new one"):
            join.run(tuples, refuse)
        join.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"window": 0}, "window=0"), ({"leaf_size": 3}, "leaf_size=3"), ({"leaf_size": 8, "chain": 5}, "chain=5")],
)
def test_impossible_settings_are_named(settings: dict[str, int], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        SharedBwTree(**{"window": 10, **settings})
