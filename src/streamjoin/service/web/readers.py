"""The slots of event streams: how many are open, and which is replaced when all are in use.

While there is little to send, a dead reader looks like one that listens, so no slot is held forever: when all are in
use, a new reader replaces the oldest one, if that has been open for a while. A client that still listened reconnects
and continues after the last event. Used on the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

TURN: Final = 60.0
"""Seconds for which a slot can't be replaced."""


@dataclass(frozen=True, eq=False)
class ReaderSlot:
    """The slot of an open event stream; `taken` is set when another stream replaces it."""

    since: float
    taken: asyncio.Event = field(default_factory=asyncio.Event)


class Readers:
    """The slots of open event streams."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.skipped = 0
        """Rows that were skipped because readers were too slow."""
        self.replaced = 0
        self._clock = clock
        self._places: list[ReaderSlot] = []
        """The open slots, oldest first."""

    @property
    def open(self) -> int:
        """The number of open slots."""
        return len(self._places)

    @contextlib.contextmanager
    def place(self) -> Iterator[ReaderSlot | None]:
        """A slot, held for the block or until another reader replaces it; None if there is none."""
        now = self._clock()
        if len(self._places) >= self.most:
            if now - self._places[0].since < TURN:
                yield None
                return
            self._places.pop(0).taken.set()
            self.replaced += 1
        place = ReaderSlot(now)
        self._places.append(place)
        try:
            yield place
        finally:
            if place in self._places:
                self._places.remove(place)
