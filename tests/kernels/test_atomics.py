"""Atomics, the lock and the queue, with more threads than cores, and once more with yields forced at every access."""

from __future__ import annotations

import numpy as np
import pytest

from streamjoin.handshake.kernels import spsc
from tests.deadlock import no_deadlock
from tests.kernels.shared_words import check_counting, check_exchange, check_queue, check_sleep
from tests.threads import check_that_runs_hold

TIMES = 20_000


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_nothing_is_lost_between_threads(threads: int) -> None:
    check_counting(threads, TIMES)


def test_threads_that_sleep_wake_each_other() -> None:
    with no_deadlock():
        check_sleep(2_000)


def test_an_exchanged_value_comes_out_once() -> None:
    check_exchange(8, TIMES)


@pytest.mark.parametrize("capacity", [1, 2, 64])
def test_messages_come_out_whole_and_in_order(capacity: int) -> None:
    check_queue(capacity, width=5, count=TIMES)


def test_a_queue_is_full_at_its_capacity_and_empty_again() -> None:
    mem = np.zeros(spsc.queue_words(4, 1), np.int64)
    spsc.make_queue(mem, 0, 4, 1)
    assert spsc.first_slot(mem, 0) == -1
    for _ in range(4):
        assert spsc.free_slot(mem, 0) >= 0
        spsc.publish(mem, 0)
    assert spsc.free_slot(mem, 0) == -1
    assert spsc.waiting(mem, 0) == 4
    assert spsc.first_slot(mem, 0) >= 0
    spsc.release(mem, 0)
    assert spsc.free_slot(mem, 0) >= 0


def test_a_ring_has_a_power_of_two_slots() -> None:
    with pytest.raises(ValueError, match="not 3"):
        spsc.queue_words(3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{"STREAMJOIN_FORCED_YIELDS": "3"}, {"NUMBA_DISABLE_JIT": "1"}], ids=str)
def test_they_hold_in_a_test_build_and_without_the_jit(environment: dict[str, str]) -> None:
    check_that_runs_hold(environment, "tests.kernels.shared_words", "300")
