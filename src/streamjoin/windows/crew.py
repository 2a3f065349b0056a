"""Threads that work on shared arrays in parallel and may wait for each other.

`Workers` runs independent parts; here a thread may wait in a kernel for another thread. An error in one thread, or
Ctrl-C, therefore stops all of them and reaches the caller, and a stuck crew can report what every thread waits for.
Threads may be added and removed during a run. Invariant: once `run` has returned or raised, none of its threads
touches the shared arrays.
"""

from __future__ import annotations

import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping
from queue import SimpleQueue

import numpy as np

from streamjoin.jit.crew import LINE, RUNNING, STANDS, STOP, WANTED
from streamjoin.jit.machine import I64
from streamjoin.model.errors import StateError
from streamjoin.windows.interrupts import LOOK, Deferred

Step = Callable[[int], object]
"""What thread k does. It returns LEFT when it was dismissed with work still to do, anything else when all is done."""

Orders = SimpleQueue[Step | None]

LEFT = "left"
MOST = 1024
_OTHERS = 2  # threads of a live join beside those that were asked for
_LIVE: weakref.WeakSet[Crew] = weakref.WeakSet()


def live() -> list[Crew]:
    """All open crews of this process."""
    return sorted(_LIVE, key=id)


class Crew:
    """Numbered threads; `words` are what their kernels share (see `jit.crew`)."""

    def __init__(self, n: int, places: Mapping[int, str] | None = None) -> None:
        self.words: I64 = np.zeros(STANDS + LINE * (MOST + _OTHERS), np.int64)
        self.words[WANTED] = n
        self._places = {RUNNING: "running", **(places or {})}
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._orders: list[Orders] = []
        self._step: Step | None = None
        self._at_work: set[int] = set()
        # Who has found the current run's work done: it gets no further order in it.
        self._done: set[int] = set()
        self._error: BaseException | None = None
        _LIVE.add(self)

    @property
    def n(self) -> int:
        """The number of threads, counting changes that take effect at the next task."""
        return int(self.words[WANTED])

    def run(self, step: Step) -> None:
        """Run step(k) in thread k for each k < n, all at the same time, until the last has returned."""
        with Deferred() as signals, self._changed:
            if self._error is not None:
                raise StateError(f"this join was stopped by {_named(self._error)}; open a new one") from self._error
            try:
                self._step = step
                self._done.clear()
                self._send(range(self.n))
                while self._at_work:
                    signals.look()
                    self._changed.wait(LOOK)
            except BaseException as error:  # Ctrl-C: stop all threads before returning
                self._stop(error)
                # Release the threads that are counted but have no order yet; the others ignore the extra one.
                for k in self._at_work:
                    self._orders[k].put(_nothing)
                while self._at_work:
                    self._changed.wait()
                raise
            finally:
                self._step = None
            if self._error is not None:
                raise self._error

    def resize(self, n: int) -> None:
        """Set the number of threads: a current run adds threads at once and removes them at their next task."""
        with self._changed:
            self.words[WANTED] = n
            if self._step is not None:
                self._send(k for k in range(n) if k not in self._at_work | self._done)

    def stop(self, error: BaseException) -> None:
        """End the current run with `error`; the crew cannot be reused."""
        with self._changed:
            self._stop(error)

    def close(self) -> None:
        """End the threads; a current run is stopped first."""
        with self._changed:
            if self._at_work:
                self._stop(StateError("the join was closed during a call"))
            threads, self._threads = self._threads, []
            orders, self._orders = self._orders, []
        for order in orders:
            order.put(None)
        for thread in threads:
            thread.join()
        _LIVE.discard(self)

    def standing(self) -> str:
        """The state of every thread: what its kernel waits for, and its Python frames."""
        frames = sys._current_frames()
        lines = []
        for k, thread in enumerate(list(self._threads)):
            code = int(self.words[STANDS + LINE * k])
            at_work = "at work" if k in self._at_work else "free"
            lines.append(f"{thread.name}: {at_work}, {self._places.get(code, f'place {code}')}")
            if thread.ident in frames:
                lines += [line.rstrip() for line in traceback.format_stack(frames[thread.ident])]
        return "\n".join(lines)

    def _stop(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self.words[STOP] = 1

    def _send(self, numbers: Iterable[int]) -> None:
        for k in numbers:
            while len(self._threads) <= k:
                self._hire()
            self._at_work.add(k)
            self._orders[k].put(self._step)

    def _hire(self) -> None:
        k = len(self._threads)
        orders: Orders = SimpleQueue()
        # A thread that waits for orders holds no reference, so a crew that was not closed can be collected.
        thread = threading.Thread(
            target=_serve, args=(weakref.ref(self), k, orders), name=f"streamjoin-{k}", daemon=True
        )
        # Not at exit: a thread woken during interpreter shutdown may never finish.
        weakref.finalize(self, orders.put, None).atexit = False
        thread.start()
        self._orders.append(orders)
        self._threads.append(thread)

    def _back(self, k: int, outcome: object) -> None:
        with self._changed:
            self.words[STANDS + LINE * k] = RUNNING
            self._at_work.discard(k)
            if outcome != LEFT:
                self._done.add(k)
            elif k < self.n and self._step is not None and self._error is None:
                # Dismissed, and requested again before it had left.
                self._send([k])
            self._changed.notify_all()


def _nothing(_: int) -> None:
    """A step that does nothing, so that the thread returns."""


def _serve(crew: weakref.ref[Crew], k: int, orders: Orders) -> None:
    while (step := orders.get()) is not None:
        outcome: object = None
        owner = crew()
        if owner is None:
            return
        try:
            outcome = step(k)
        except BaseException as error:  # passed on to the caller
            owner.stop(error)
        owner._back(k, outcome)
        del owner, step


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
