"""Sources that have fallen silent: after a while the gate stops waiting for them.

A source is idle once it has neither pushed nor advanced for a given time, by the clock of the join. A push that waits
for room counts as activity. The clock is passed in, so a test turns it by hand.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol


class WaitClock(Protocol):
    """A clock for waiting."""

    def now(self) -> float:
        """Seconds since some moment; never falls."""
        ...

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait until `condition`, which is held, is notified, or for so many seconds of this clock."""
        ...


class MonotonicClock:
    """The system's monotonic clock."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait on `condition`."""
        condition.wait(seconds)


class ManualClock:
    """A clock that only moves when it is turned, for tests."""

    def __init__(self) -> None:
        self._now = 0.0
        self._lock = threading.Lock()
        self._waiting: weakref.WeakSet[threading.Condition] = weakref.WeakSet()

    def now(self) -> float:
        """The seconds that the clock was turned."""
        return self._now

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait until `condition` is notified or the clock is turned."""
        if seconds is not None and seconds <= 0:
            return
        with self._lock:
            known = condition in self._waiting
            self._waiting.add(condition)
        # The first time the clock may have been turned just before it knew whom to notify: look again.
        if known:
            condition.wait()

    def turn(self, seconds: float) -> None:
        """Move the clock forward."""
        with self._lock:
            self._now += seconds
            waiting = list(self._waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()


class Silent(Protocol):
    """A source as the watch sees it."""

    def rest_if_idle(self, now: float, idle: float) -> float | None:
        """Rest if the source has been silent for `idle` seconds; returns when to look again, None for not at all."""
        ...


class IdleWatch:
    """Looks after the sources of one join, in a thread of its own."""

    def __init__(
        self,
        idle: float,
        clock: WaitClock,
        sources: Callable[[], Iterable[Silent]],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._idle = idle
        self._clock = clock
        self._sources = sources
        self._fail = fail
        self._changed = threading.Condition()
        self._news = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="streamjoin-idle", daemon=True)
        self._thread.start()

    def look_again(self) -> None:
        """Look at the sources once more: one has come, or has woken."""
        with self._changed:
            self._news = True
            self._changed.notify()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:
            self._fail(error)

    def _watch(self) -> None:
        while not self._stopped:
            with self._changed:
                self._news = False
            now = self._clock.now()
            looks = [source.rest_if_idle(now, self._idle) for source in self._sources()]
            next_look = min((at for at in looks if at is not None), default=None)
            with self._changed:
                # A clock that was turned meanwhile has notified nobody: compare before waiting.
                while not (self._stopped or self._news or (next_look is not None and self._clock.now() >= next_look)):
                    self._clock.wait(self._changed, None if next_look is None else next_look - self._clock.now())
