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
# What loads compiled code makes up for errors of its own.
KERNELS = (str(Path(PACKAGE, "kernels")), str(Path(PACKAGE, "_cache.py")))


class Fails:
    """Raises at the n-th line of the package that runs in this thread inside the block."""

    # From here on the rows are on their way to the caller: an interrupt is one in the caller's own code.
    HANDING_ON = frozenset(
        {"push", "_push_directly", "advance", "finish", "close", "_whole", "_take_tail", "__next__", "_next"}
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
        inside = code.co_filename.startswith(PACKAGE) and not code.co_filename.startswith(KERNELS)
        if not inside or code.co_name in self.HANDING_ON:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise self.error
        return self.trace


def failed_everywhere(call: Callable[[], T], stride: int) -> tuple[T, int]:
    """Let the call fail at its first line, then further on each time, until it succeeds; how often it failed."""
    failures, at = 0, 1
    while True:
        error = (MemoryError, KeyboardInterrupt, ValueError)[failures % 3]("injected")
        try:
            with Fails(at, error):
                return call(), failures
        except (MemoryError, KeyboardInterrupt, ValueError) as raised:
            assert raised is error
        failures += 1
        at += stride
