"""A clock for `sj.live(idle=..., clock=...)` that a test turns by hand, so that no test has to sleep."""

from __future__ import annotations

import threading
import weakref


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
