"""Failures at any line of the package: a call is tried until it succeeds, failing further on each time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import streamjoin as sj

T = TypeVar("T")
PACKAGE = str(Path(sj.__file__).parent)
# What loads compiled code makes up for errors of its own, and where signals are put off none is raised.
SPARED = tuple(str(Path(PACKAGE, part)) for part in ("jit", "kernels", "_cache.py", "windows/interrupts.py"))


class Fails:
    """Raises at the n-th line of the package that runs in this thread inside the block."""

    # From here on the rows are on their way to the caller: an interrupt is one in the caller's own code.
    HANDING_ON = frozenset(
        {"push", "_push_at_once", "advance", "finish", "close", "_whole", "_take_tail", "__next__", "_next"}
    )

    def __init__(self, n: int, error: BaseException) -> None:
        self.left, self.error = n, error
        # A measurement of coverage has its own tracer and goes on after the block.
        self.before = sys.gettrace()

    def __enter__(self) -> Fails:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        inside = code.co_filename.startswith(PACKAGE) and not code.co_filename.startswith(SPARED)
        if not inside or code.co_name in self.HANDING_ON:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise self.error
        return self.trace


def failed_at(call: Callable[[], T], at: int, number: int = 0) -> list[T]:
    """Let the call fail at its line `at` of the package, by an error that `number` chooses; its result if it ends."""
    error = (MemoryError, KeyboardInterrupt, ValueError)[number % 3]("injected")
    try:
        with Fails(at, error):
            return [call()]
    except (MemoryError, KeyboardInterrupt, ValueError) as raised:
        assert raised is error
    return []


def failed_everywhere(call: Callable[[], T], stride: int) -> tuple[T, int]:
    """Let the call fail at its first line, then further on each time, until it succeeds; how often it failed."""
    failures, at = 0, 1
    while not (results := failed_at(call, at, failures)):
        failures += 1
        at += stride
    return results[0], failures
