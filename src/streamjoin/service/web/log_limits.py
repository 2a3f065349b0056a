"""A rate limit for log lines that clients can cause: repeated lines are counted and written a few times per minute.

Without it, a client without a token could fill the disk: every request that is not HTTP is logged, and every connection
that can't be accepted logs a traceback.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

LIMITED: Final = ("uvicorn.error", "asyncio", "streamjoin.service")
"""Loggers to which clients can cause output."""
MOST: Final = 5
"""Lines of one kind per minute."""
_SPAN: Final = 60.0
_KINDS: Final = 256


class Limited(logging.Filter):
    """A logging filter with a rate limit per kind of line; a kind is the start of the unformatted message."""

    def __init__(self, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most, self._clock = most, clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        kind = record.name, str(record.msg).partition("\n")[0]
        now = self._clock()
        with self._lock:
            begin, count = self._kinds.get(kind, (now, 0))
            withheld = 0
            if now - begin >= _SPAN:
                withheld = max(0, count - self._most)
                begin, count = now, 0
            if len(self._kinds) >= _KINDS and kind not in self._kinds:
                self._kinds.clear()
            self._kinds[kind] = begin, count + 1
        if withheld:
            record.msg = f"{record.msg} ({withheld:,} more like this were not written)"
        return count < self._most


def install() -> None:
    """Limit the loggers in `LIMITED`; a second call has no effect."""
    for name in LIMITED:
        logger = logging.getLogger(name)
        if not any(isinstance(filter_, Limited) for filter_ in logger.filters):
            logger.addFilter(Limited())
