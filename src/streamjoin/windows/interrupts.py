"""Ctrl-C, or another signal, while a thread waits: noted at once, handled where nothing is half done.

Python runs a signal's handler between any two steps of the main thread. An exception that the handler raises in the
middle of `threading.Condition.wait` leaves the condition without its lock, and one that it raises inside a finalizer is
printed and lost. A handler may also wait for a lock that the interrupted thread holds. Inside `Deferred` the handlers
of Ctrl-C and of signals that programs send only note that they were called; `look` calls the real ones. Invariant:
outside the block the handlers are those from before it, and none of their calls is lost.
"""

from __future__ import annotations

import signal
import threading
import time
from importlib import import_module
from types import FrameType
from typing import Any

LOOK = 0.1
"""Seconds after which a thread that waits looks for signals: nothing wakes it when one was noted."""
# Below `signal`, which looks for the names of enumerations: that takes longer than a small push.
getsignal, set_handler = import_module("_signal").getsignal, import_module("_signal").signal
# SIGINT first: see `_put_back`.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_SIGNALS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))


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
                handler = getsignal(number)
                # What the operating system does by itself needs no deferring.
                if callable(handler):
                    self._before[number] = handler
                    set_handler(number, self._note)
        except BaseException:
            self._put_back()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._put_back()
        finally:
            self.look()

    def look(self) -> None:
        """Call the handlers of the signals that came; they may raise."""
        while self._noted:
            number, frame = self._noted.pop(0)
            self._before[number](number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append((number, frame))

    def _put_back(self) -> None:
        # SIGINT last: as soon as its handler is back, the next Ctrl-C raises. Another signal may do so before.
        waiting, error = list(self._before.items()), None
        while waiting:
            try:
                while waiting:
                    set_handler(*waiting[-1])
                    waiting.pop()
            except BaseException as raised:
                error = error or raised
        if error is not None:
            raise error


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
