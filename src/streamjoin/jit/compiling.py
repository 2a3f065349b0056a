"""Measures and reports the compilation of kernels.

On a terminal a message says once that kernels are being compiled, and a status line names the current one; the line is
removed before the caller's code continues. The logger `streamjoin` has the same messages at levels INFO and DEBUG.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from typing import Any

from numba.core import event

_LOG = logging.getLogger("streamjoin")
_NOTE = "streamjoin: compiling kernels (once; they are cached on disk, and `streamjoin warmup` does it ahead) ..."
_ERASED = "\r\x1b[2K"


class CompileWatch(event.Listener):
    """Adds up the time spent compiling in this process; kernels loaded from the cache cost none."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.kernels = 0
        self.shows = True
        """Whether to write to a terminal; a program that shows its own progress turns it off."""
        self._lock = threading.RLock()
        self._depth = 0
        self._ours = False
        self._since = 0.0
        self._told = False
        self._drawn = False

    def on_start(self, event: Any) -> None:
        """A compilation begins; they nest if one kernel calls another. Kernels of other packages are ignored."""
        name = _our_name(event)
        with self._lock:
            if self._depth == 0:
                self._ours = name is not None
                self._since = time.perf_counter()
            self._depth += 1
            if self._ours and name is not None:
                self._show(name)

    def on_end(self, event: Any) -> None:
        """A compilation ended."""
        name = _our_name(event)
        with self._lock:
            self._depth -= 1
            if not self._ours:
                return
            self.kernels += name is not None
            if self._depth == 0:
                took = time.perf_counter() - self._since
                self.seconds += took
                _LOG.debug("compiled %s in %.1f s", name, took)
                self._erase()

    def _show(self, name: str) -> None:
        if not self._told:
            self._told = True
            _LOG.info("compiling kernels; they are cached on disk, and `streamjoin warmup` compiles them ahead")
            if self._at_terminal():
                self._write(_NOTE + "\n")
        if self._at_terminal() and os.environ.get("TERM", "dumb") != "dumb":
            seconds = self.seconds + time.perf_counter() - self._since
            self._write(f"{_ERASED}  kernel {self.kernels + 1}: {name}, {seconds:.1f} s so far")
            self._drawn = True

    def _erase(self) -> None:
        if self._drawn:
            self._write(_ERASED)
            self._drawn = False

    def _at_terminal(self) -> bool:
        # A closed stream raises ValueError; reporting must never disturb the program.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return self.shows and sys.stderr.isatty()
        return False

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _our_name(event: Any) -> str | None:
    """The name of the kernel that is compiled; None for a program's own and for functions of Numba's."""
    function = getattr(event.data["dispatcher"], "py_func", None)
    ours = (getattr(function, "__module__", None) or "").startswith("streamjoin.")
    return str(getattr(function, "__name__", function)) if ours else None


WATCH = CompileWatch()
event.register("numba:compile", WATCH)  # type: ignore[no-untyped-call]
