"""A crew: errors, dismissals and Ctrl-C never leave a thread behind."""

from __future__ import annotations

import gc
import signal
import threading
import weakref

import numpy as np
import pytest

from streamjoin.kernels.crew import dismissed, idle, stopped
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

    with pytest.raises(KeyboardInterrupt):
        crew.run(step)
    with pytest.raises(StateError, match="KeyboardInterrupt"):
        crew.run(step)
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
    with no_deadlock(60), pytest.raises(KeyboardInterrupt):
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
