"""Ctrl-C while a thread waits: noted at once, raised where nothing is half done.

Python runs a signal's handler between any two steps of the main thread. An exception that the handler raises in the
middle of `threading.Condition.wait` leaves the condition without its lock, and one that it raises inside a finalizer is
printed and lost. Inside `Deferred` the handlers of SIGINT and SIGTERM only note that they were called; `look` calls the
real ones. Invariant: outside the block the handlers are those from before it, and none of their calls is lost.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

LOOK = 0.1
"""Seconds after which a thread that waits looks for signals: nothing wakes it when one was noted."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Deferred:
    """A block in which signals are noted; without effect outside the main thread."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._noted: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> Deferred:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                # What the operating system does by itself needs no deferring.
                if callable(handler):
                    self._before[number] = handler
                    signal.signal(number, self._note)
        except BaseException:
            self._put_back()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back()
        self.look()

    def look(self) -> None:
        """Call the handlers of the signals that came; they may raise."""
        while self._noted:
            number, frame = self._noted.pop(0)
            self._before[number](number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append((number, frame))

    def _put_back(self) -> None:
        # SIGINT last: as soon as its handler is back, the next Ctrl-C raises.
        for number, handler in reversed(self._before.items()):
            signal.signal(number, handler)


def wait(condition: threading.Condition | threading.Event, seconds: float | None = None) -> bool:
    """`condition.wait`, after which signals are handled; it may return early, so the caller looks and waits again."""
    if threading.current_thread() is not threading.main_thread():
        return condition.wait(seconds)
    with Deferred():
        return condition.wait(LOOK if seconds is None else min(LOOK, seconds))


def wait_for(event: threading.Event, seconds: float | None = None) -> bool:
    """`event.wait`, in which signals are handled."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while not wait(event, None if deadline is None else max(0.0, deadline - time.monotonic())):
        if deadline is not None and time.monotonic() >= deadline:
            return False
    return True
