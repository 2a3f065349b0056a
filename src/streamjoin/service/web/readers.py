"""The places of event streams: how many are open, and which of them makes room when all are taken.

A reader that takes nothing can't be told from one that listens as long as there is little to send, so no place is kept
for ever: when all are taken, the next reader gets the one that was taken first, if that was held for a while. Whoever
still listened there connects again and goes on from the last event. Used on the event loop's thread alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

TURN: Final = 60.0
"""Seconds for which a place is safe."""


@dataclass(frozen=True, eq=False)
class ReaderSlot:
    """An open event stream's; `taken` is set when it is given to another."""

    since: float
    taken: asyncio.Event = field(default_factory=asyncio.Event)


class Readers:
    """See the module."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.skipped = 0
        """Rows that they were too slow for."""
        self.replaced = 0
        self._clock = clock
        self._places: list[ReaderSlot] = []
        """In the order in which they were taken."""

    @property
    def open(self) -> int:
        """How many there are."""
        return len(self._places)

    @contextlib.contextmanager
    def place(self) -> Iterator[ReaderSlot | None]:
        """A place, held for the block or until it is taken; None where none is to be had."""
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
