"""The log of `streamjoin serve`: lines for people, or one JSON object a line for collectors.

An object has `time` (RFC 3339, UTC), `level`, `logger` and `message`; `query`, `stream` and `batch` where the message
names one; `exception` where there is one. The fields come from the message's template ("query %r is paused: %s"), so
they are as complete as the messages are.
"""

from __future__ import annotations

import json
import logging
import re
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
