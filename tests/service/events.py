"""Reading server-sent events in tests, and waiting for what another thread does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Names and data; comments are left out."""
    name = ""
    for line in response.iter_lines():
        key, _, value = line.partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


def wait_for(condition: object, seconds: float = 120.0) -> None:
    """Return when the condition holds."""
    done = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():  # type: ignore[operator]
            return
        done.wait(0.01)
    raise AssertionError("it did not happen")
