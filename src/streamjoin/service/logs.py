"""The log of `streamjoin serve`: lines for people, or one JSON object a line for collectors.

An object has `time` (RFC 3339, UTC), `level`, `logger` and `message`; `query`, `stream` and `batch` where the message
names one; `exception` where there is one. The fields come from the message's template ("query %r is paused: %s"), so
they are as complete as the messages are.

Log lines that clients can cause are limited: repeated ones are counted and written a few times per minute. Without that
a client without a token could fill the disk with requests that are not HTTP.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PLACEHOLDER: Final = re.compile(r"(?:\b(query|stream|batch) )?%[-#0 +]*[\d.,]*[a-zA-Z]")
_NOTICE: Final = logging.CRITICAL + 1
"""The level of what a service tells whatever the level of its log."""
_LOG = logging.getLogger("streamjoin.service")


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        body: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if isinstance(record.args, tuple):
            words = _PLACEHOLDER.findall(str(record.msg).replace("%%", ""))
            body |= {word: value for word, value in zip(words, record.args, strict=False) if word}
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return json.dumps(body, default=str, ensure_ascii=False)


def install(level: int, form: Literal["text", "json"]) -> None:
    """Write log records of this level and above to the standard error."""
    # Spark logs errors for a batch that the stop interrupts; real failures are raised in Python.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(TEXT))
    logging.addLevelName(_NOTICE, "NOTICE")
    logging.basicConfig(level=level, handlers=[handler])


def reporter(form: Literal["text", "json"], show: Callable[[str], None]) -> Callable[[str], None]:
    """Where the service tells what it does: `show`, or lines of the log that every level has."""
    return show if form == "text" else lambda line: _LOG.log(_NOTICE, "%s", line)


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


def limit_log_lines() -> None:
    """Limit the loggers in `LIMITED`; a second call has no effect."""
    for name in LIMITED:
        logger = logging.getLogger(name)
        if not any(isinstance(filter_, Limited) for filter_ in logger.filters):
            logger.addFilter(Limited())
