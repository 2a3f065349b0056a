"""Workers: which thread does a step, by how much there is to do."""

from __future__ import annotations

import contextlib
import threading

import pytest

from streamjoin.windows.workers import Workers, least_shared


def threads_of(workers: Workers, expected: int) -> set[int]:
    """The threads that carry out a step of two parts; where two are expected, each waits for the other."""
    both = threading.Barrier(2)

    def part(_: int) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(120 if expected == 2 else 0.2)
        return threading.get_ident()

    return set(workers.map(part, range(2)))


def test_few_tuples_stay_with_the_caller() -> None:
    workers = Workers(2)
    try:
        least = int(least_shared(2))
        with workers.sharing(least - 1):
            assert threads_of(workers, 1) == {threading.get_ident()}
            with workers.sharing(least):
                assert len(threads_of(workers, 2)) == 2
            assert threads_of(workers, 1) == {threading.get_ident()}
            with workers.sharing(None):
                assert len(threads_of(workers, 2)) == 2
        assert len(threads_of(workers, 2)) == 2
        with pytest.raises(KeyError), workers.sharing(0):
            raise KeyError
        assert len(threads_of(workers, 2)) == 2
    finally:
        workers.close()


def test_one_worker_never_shares_and_many_share_sooner() -> None:
    workers = Workers(1)
    with workers.sharing(None):
        assert threads_of(workers, 1) == {threading.get_ident()}
    least = [least_shared(n) for n in (1, 2, 4, 16, 256)]
    assert least == sorted(least, reverse=True)
    assert least[-1] > 0
