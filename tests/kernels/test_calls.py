"""KernelCalls of kernels that helper threads carry out: each once, with its own arguments, whoever takes it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from streamjoin._arrays import Array
from streamjoin.jit import calls
from streamjoin.jit.calls import Cut, Each, KernelCalls, Own, Row
from streamjoin.jit.flags import kernel
from streamjoin.windows.workers import Workers, cuts
from tests.deadlock import no_deadlock
from tests.failing import failed_everywhere

ROOT = Path(__file__).parents[2]


@kernel
def weigh(values: Array, factor: int, table: Array, total: Array) -> int:
    """What each argument is for shows in the result; a call that is carried out twice, too."""
    weight = 0
    for i in range(values.size):
        weight += values[i] * factor
    for i in range(table.shape[0]):
        weight += table[i, table.shape[1] - 1]
    total[0] += weight
    return weight


@kernel
def refuse(limit: int, number: int) -> int:
    if number >= limit:
        raise ValueError("too large")
    return number


def weighed(workers: Workers, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, table = rng.integers(0, 100, 1000), rng.integers(0, 100, (5, 3))
    values.flags.writeable = bool(seed % 2)
    begins, ends = np.array(cuts(values.size, n)).T
    totals = np.zeros((n, 2), np.int64)
    factors = rng.integers(0, 9, n)
    got = workers.call(weigh, KernelCalls(n, Cut(values, begins, ends), Each(factors), table, Row(totals)))
    wanted = [int(values[a:b].sum() * f + table[:, -1].sum()) for a, b, f in zip(begins, ends, factors, strict=True)]
    assert got == wanted
    assert totals[:, 0].tolist() == wanted


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_call_is_carried_out_once_with_its_arguments(threads: int) -> None:
    workers = Workers(threads)
    for seed in range(300):
        weighed(workers, 1 + seed % 40, seed)
    workers.close()
    weighed(workers, 9, 0)
    workers.close()


def test_groups_of_calls_have_their_own_arrays() -> None:
    workers = Workers(3)
    tables = [np.full((k + 1, 2), k) for k in range(4)]
    totals = np.zeros((4, 1), np.int64)
    one = KernelCalls(2, Own([np.arange(3), np.arange(4)]), 1, tables[0], Row(totals[:2]))
    other = KernelCalls(2, Own([np.arange(5), np.arange(6)]), 2, tables[3], Row(totals[2:]))
    assert workers.call(weigh, one, KernelCalls(0), other) == [3, 6, 20 + 12, 30 + 12]
    assert workers.call(weigh) == []
    workers.close()


def test_arrays_of_one_argument_may_have_different_layouts() -> None:
    workers = Workers(3)
    values, totals = np.arange(60), np.zeros((4, 1), np.int64)
    arrays = [values[:5], values[::7], values[1::20], values[3:3]]
    assert workers.call(weigh, KernelCalls(4, Own(arrays), 1, np.zeros((1, 1), np.int64), Row(totals))) == [
        int(array.sum()) for array in arrays
    ]
    workers.close()


def test_a_call_that_fails_is_told_and_the_others_are_carried_out() -> None:
    workers = Workers(3)
    with pytest.raises(RuntimeError, match="refuse failed in call 6 of 9"):
        workers.call(refuse, KernelCalls(9, 5, Each(range(9))))
    assert workers.call(refuse, KernelCalls(9, 9, Each(range(9)))) == list(range(9))
    workers.close()


def test_threads_may_call_at_the_same_time() -> None:
    workers = Workers(3)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for k in range(50):
                weighed(workers, 5, 100 * seed + k)
        except BaseException as error:  # shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    workers.close()
    assert not errors


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_call_that_is_interrupted_at_any_line_locks_nobody_out(step: int) -> None:
    workers = Workers(3)
    weighed(workers, 9, 0)
    with no_deadlock(300):
        _, failures = failed_everywhere(lambda: weighed(workers, 9, 1), step)
        assert failures > 5
        other = threading.Thread(target=weighed, args=(workers, 9, 2))
        other.start()
        other.join()
        weighed(workers, 9, 3)
        workers.close()


def test_a_board_without_helpers_is_worked_off_by_its_caller() -> None:
    """As in a process that was forked: the threads are not there."""
    board = calls.new_board()
    assert calls.run_calls(board, refuse, [KernelCalls(9, 9, Each(range(9)))]) == list(range(9))


def test_helpers_end_with_their_workers() -> None:
    workers = Workers(4)
    weighed(workers, 9, 0)
    helpers = list(workers._helpers)
    assert len(helpers) == 3
    del workers
    for helper in helpers:
        helper.join(60)
        assert not helper.is_alive()


PROGRAM = """
from streamjoin.windows.workers import Workers
from tests.kernels.test_calls import weighed
workers = Workers(6)
for seed in range(400):
    weighed(workers, 1 + seed % 12, seed)
workers.close()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("environment", [{"STREAMJOIN_FORCED_YIELDS": "2"}, {"NUMBA_DISABLE_JIT": "1"}])
def test_calls_under_forced_yields_and_without_the_compiler(environment: dict[str, str]) -> None:
    subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env={**os.environ, **environment}, check=True, timeout=300
    )
