"""Connects the engine's thread with the event streams: the newest batches, and a signal for new ones.

A reader has only a position. It reads the events after it, and events that have left the shared history
in the meantime are reported as skipped: memory does not depend on readers, and no reader can block the
engine, which only appends and signals.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from streamjoin.queries.engine.info import BatchEvent

KEPT: Final = 600
"""The number of batches whose events are kept."""


class Hub:
    """The newest batches and a signal for readers; `publish` and `poke` may be called from any thread."""

    def __init__(self, kept: int = KEPT) -> None:
        self._lock = threading.Lock()
        self._events: deque[BatchEvent] = deque(maxlen=kept)
        self._published = 0
        self.version = 0
        """Increases with every batch, every change, and when a state may have changed by itself."""
        self.changes = 0
        """Increases with every change by a client."""
        self._loops: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}
        self.stopping = False

    @property
    def published(self) -> int:
        """The number of batches so far."""
        return self._published

    @property
    def last(self) -> BatchEvent | None:
        """The newest batch's event, or None."""
        with self._lock:
            return self._events[-1] if self._events else None

    def history(self) -> list[BatchEvent]:
        """The events kept, oldest first."""
        with self._lock:
            return list(self._events)

    def since(self, position: int) -> tuple[list[BatchEvent], int, int]:
        """The events after a position, how many more are no longer kept, and the new position."""
        with self._lock:
            fresh = self._published - position
            events = list(self._events)[-fresh:] if fresh > 0 else []
            return events, max(0, fresh) - len(events), self._published

    def publish(self, event: BatchEvent) -> None:
        """Append the event of a finished batch and wake the readers."""
        with self._lock:
            self._events.append(event)
            self._published += 1
        self._wake()

    def poke(self) -> None:
        """Wake the readers: a client changed something."""
        self.changes += 1
        self._wake()

    def stir(self) -> None:
        """Wake the readers: the state of a query may have changed by itself."""
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            self.version += 1
            waiting = list(self._loops.items())
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """Let every reader end."""
        self.stopping = True
        self.poke()

    def signal(self) -> asyncio.Event:
        """The event to wait for; get it before reading, so that no batch in between is missed."""
        loop = asyncio.get_running_loop()
        with self._lock:
            event = self._loops.get(loop)
            if event is None or event.is_set():
                event = asyncio.Event()
                self._loops = {known_loop: e for known_loop, e in self._loops.items() if not known_loop.is_closed()}
                self._loops[loop] = event
            return event
