"""A crew: errors, dismissals and Ctrl-C never leave a thread behind."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamjoin.jit.crew import dismissed, idle, stopped
from streamjoin.model.errors import StateError
from streamjoin.windows.crew import LEFT, Crew, live
from tests.deadlock import no_deadlock


def test_every_number_runs_at_the_same_time() -> None:
    crew = Crew(4)
    meeting = threading.Barrier(4)
    seen: list[int] = []

    def step(k: int) -> None:
        meeting.wait(timeout=60)
        seen.append(k)

    for _ in range(20):
        crew.run(step)
    crew.close()
    assert sorted(seen) == sorted(list(range(4)) * 20)
    assert crew not in live()


def test_an_error_stops_those_who_wait_and_reaches_the_caller() -> None:
    crew = Crew(3, {7: "waiting for the others"})

    def step(k: int) -> None:
        if k == 1:
            raise ValueError("the second one failed")
        tries = 0
        while idle(crew.words, tries):
            tries += 1

    with pytest.raises(ValueError, match="second one"):
        crew.run(step)
    assert stopped(crew.words)
    with pytest.raises(StateError, match="second one failed"):
        crew.run(step)
    crew.close()


def test_ctrl_c_ends_a_run() -> None:
    crew = Crew(2)
    main = threading.main_thread().ident
    assert main is not None
    begun = threading.Event()

    def step(k: int) -> None:
        if k == 0 and not begun.is_set():
            begun.set()
            signal.pthread_kill(main, signal.SIGINT)
        tries = 0
        while idle(crew.words, tries):
            tries += 1

    with no_deadlock(), pytest.raises(KeyboardInterrupt):
        crew.run(step)
    with pytest.raises(StateError, match="KeyboardInterrupt"):
        crew.run(step)
    crew.close()


class Released:
    """A lock that calls something once, right after a condition that waits has let go of it."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._lock, self._then = threading.RLock(), [then]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)

    def _release_save(self) -> Any:
        state = self._lock._release_save()  # type: ignore[attr-defined]
        if self._then:
            self._then.pop()()
        return state


class Finalized:
    """Sends Ctrl-C while it is collected, where Python prints and drops what the handler raises."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("place", ["condition", "finalizer"])
def test_ctrl_c_counts_wherever_the_main_thread_is(place: str) -> None:
    """In the middle of a wait it once left the lock and the threads behind; in a finalizer it was lost for ever."""
    crew, handler = Crew(2), signal.getsignal(signal.SIGINT)
    crew._changed = threading.Condition(
        Released(lambda: signal.raise_signal(signal.SIGINT) if place == "condition" else Finalized() and None)  # type: ignore[arg-type, func-returns-value]
    )
    working = np.zeros(2, np.int64)

    def step(k: int) -> None:
        working[k] = 1
        tries = 0
        while idle(crew.words, tries):
            tries += 1
        working[k] = 0

    with no_deadlock(), pytest.raises(KeyboardInterrupt):
        crew.run(step)
    assert not working.any()
    assert signal.getsignal(signal.SIGINT) is handler
    crew.close()


def test_ctrl_c_at_any_moment_ends_a_run() -> None:
    main = threading.main_thread().ident
    assert main is not None
    for number in range(40):
        crew = Crew(2)
        meeting = threading.Barrier(2)

        def step(k: int, crew: Crew = crew, meeting: threading.Barrier = meeting, number: int = number) -> None:
            meeting.wait(60)
            if k == 0:
                for _ in range(number % 50):
                    idle(crew.words, 0)
                signal.pthread_kill(main, signal.SIGINT)
                if number % 2:
                    signal.pthread_kill(main, signal.SIGINT)
            tries = 0
            while idle(crew.words, tries):
                tries += 1

        with no_deadlock(), pytest.raises(KeyboardInterrupt):
            crew.run(step)
        crew.close()


def test_a_handler_that_does_not_raise_ends_nothing() -> None:
    crew, told = Crew(2), []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append(True))

    def step(k: int) -> None:
        if k == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    try:
        with no_deadlock():
            crew.run(step)
        assert told == [True]
    finally:
        signal.signal(signal.SIGTERM, before)
        crew.close()


def test_ctrl_c_before_a_thread_has_its_order_ends_the_run() -> None:
    crew = Crew(2)
    crew.run(lambda k: None)
    orders = crew._orders[1]

    class Interrupted:
        def put(self, step: object) -> None:
            crew._orders[1] = orders
            raise KeyboardInterrupt

    crew._orders[1] = Interrupted()  # type: ignore[assignment, call-overload]
    with no_deadlock(), pytest.raises(KeyboardInterrupt):
        crew.run(lambda k: None)
    crew.close()


def test_threads_join_and_leave_while_a_run_goes_on() -> None:
    crew = Crew(1)
    present = np.zeros(8, np.int64)
    finished = threading.Event()

    def step(k: int) -> object:
        tries = 0
        while not finished.is_set():
            if dismissed(crew.words, k):
                present[k] = 0
                return LEFT
            present[k] = 1
            assert idle(crew.words, tries)
            tries += 1
        return None

    def wait_for(n: int) -> None:
        crew.resize(n)
        while present.tolist() != [1] * n + [0] * (8 - n):
            idle(crew.words, 0)

    def change() -> None:
        for n in (4, 2, 8, 1, 3, 3, 7, 1) * 5:
            wait_for(n)
        finished.set()

    changing = threading.Thread(target=change)
    changing.start()
    crew.run(step)
    changing.join()
    crew.close()
    assert crew.n == 1


def test_who_is_done_gets_no_further_order() -> None:
    crew = Crew(2)
    began: list[int] = []
    ends = threading.Event()

    def step(k: int) -> None:
        began.append(k)
        if k == 1:
            assert ends.wait(60)

    def change() -> None:
        while 0 not in began or 0 in crew._at_work:
            idle(crew.words, 0)
        crew.resize(3)
        ends.set()

    changing = threading.Thread(target=change)
    changing.start()
    crew.run(step)
    changing.join()
    assert sorted(began) == [0, 1, 2]
    crew.run(step)
    assert sorted(began) == [0, 0, 1, 1, 2, 2]
    crew.close()


def test_a_stuck_crew_says_where_everybody_stands() -> None:
    crew = Crew(2, {5: "waiting for a tuple"})
    ready = threading.Barrier(3)

    def step(k: int) -> None:
        crew.words[16 + 8 * k] = 5
        ready.wait(timeout=60)
        tries = 0
        while idle(crew.words, tries):
            tries += 1

    def watch() -> None:
        ready.wait(timeout=60)
        told.append(crew.standing())
        crew.stop(StateError("stuck"))

    told: list[str] = []
    watching = threading.Thread(target=watch)
    watching.start()
    with pytest.raises(StateError, match="stuck"):
        crew.run(step)
    watching.join()
    crew.close()
    assert told[0].count("at work, waiting for a tuple") == 2
    assert "in step" in told[0]


def test_a_crew_that_nobody_closed_can_be_collected() -> None:
    crew = Crew(2)
    crew.run(lambda k: None)
    threads = list(crew._threads)
    gone = weakref.ref(crew)
    del crew
    gc.collect()
    for thread in threads:
        thread.join(timeout=60)
    assert gone() is None
    assert not any(thread.is_alive() for thread in threads)


def test_closing_ends_a_run() -> None:
    crew = Crew(2)
    begun = threading.Event()

    def step(k: int) -> None:
        begun.set()
        tries = 0
        while idle(crew.words, tries):
            tries += 1

    closing = threading.Thread(target=lambda: (begun.wait(60), crew.close()))
    closing.start()
    with pytest.raises(StateError, match="closed"):
        crew.run(step)
    closing.join()
