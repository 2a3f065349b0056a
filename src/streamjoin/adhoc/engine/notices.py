"""Telling others of batches, off the path of the next batch.

A callback that is slow misses the oldest events, one that fails is logged; neither reaches the stream.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from streamjoin.adhoc.engine.info import BatchEvent

MOST: Final = 1000
"""Events that wait for slow callbacks."""

_log = logging.getLogger(__name__)


class Notices:
    """Passes batch events to callbacks on a thread of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[BatchEvent] = deque(maxlen=MOST)
        self._callbacks: list[Callable[[BatchEvent], object]] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, callback: Callable[[BatchEvent], object]) -> Callable[[], None]:
        """Call back after each batch; returns what ends that."""
        with self._changed:
            self._callbacks.append(callback)

        def cancel() -> None:
            with self._changed:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)

        return cancel

    def publish(self, event: BatchEvent) -> None:
        """Tell of a batch."""
        with self._changed:
            if not self._callbacks or self._closed:
                return
            self._events.append(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="adhoc notices")
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Tell of what is there and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._events and not self._closed:
                    self._changed.wait()
                if not self._events:
                    return
                event, callbacks = self._events.popleft(), list(self._callbacks)
            for callback in callbacks:
                try:
                    callback(event)
                except Exception:
                    _log.exception("a callback of on_batch failed at batch %d", event.batch)
