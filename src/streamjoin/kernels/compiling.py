"""Seeing Numba compile: how long it took, and a word to the person waiting at a terminal."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from numba.core import event

_NOTE = "streamjoin: compiling kernels (once; they are cached on disk, and `streamjoin warmup` does it ahead) ..."


class CompileWatch(event.Listener):
    """Adds up the time spent compiling in this process; kernels loaded from the cache cost none."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.kernels = 0
        self._lock = threading.RLock()
        self._depth = 0
        self._since = 0.0
        self._told = False

    def on_start(self, event: Any) -> None:  # noqa: ARG002
        """A compile begins; they nest where one kernel calls another."""
        with self._lock:
            if self._depth == 0:
                self._since = time.perf_counter()
                self._tell()
            self._depth += 1

    def on_end(self, event: Any) -> None:  # noqa: ARG002
        """A compile ended."""
        with self._lock:
            self._depth -= 1
            self.kernels += 1
            if self._depth == 0:
                self.seconds += time.perf_counter() - self._since

    def _tell(self) -> None:
        if not self._told and sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(_NOTE + "\n")
        self._told = True


WATCH = CompileWatch()
event.register("numba:compile", WATCH)  # type: ignore[no-untyped-call]
