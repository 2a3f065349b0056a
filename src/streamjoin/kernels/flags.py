"""The compiler flags, once: every kernel is decorated with `kernel` and with nothing else.

Kernels release the GIL, so Python threads run them side by side; they are cached on disk, so a
process compiles what no process before it has compiled. Set NUMBA_DISABLE_JIT=1 to run them as
plain Python (the suite does so on small inputs).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import njit

from streamjoin._cache import cache_dir

F = TypeVar("F", bound=Callable[..., Any])

# error_model="numpy": a division by zero gives inf or nan instead of a branch and a raise in every loop.
_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


def _sources() -> str:
    """A digest of all kernels. Numba looks at a kernel's own file only and would miss a change in one it calls."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


# Numba fills its settings in from the environment, where no type checker sees them.
_SETTINGS: Any = numba.config
_DIRECTORY = str(cache_dir() / f"kernels-{_sources()}")


@contextmanager
def _our_cache() -> Iterator[None]:
    """Numba asks for the directory when a function is decorated; the user's own kernels keep theirs."""
    theirs = _SETTINGS.CACHE_DIR
    _SETTINGS.CACHE_DIR = os.environ.get("NUMBA_CACHE_DIR") or _DIRECTORY
    try:
        yield
    finally:
        _SETTINGS.CACHE_DIR = theirs


def kernel(function: F) -> F:
    """Compile `function` on first call, without the GIL, cached on disk."""
    with _our_cache():
        compiled: F = njit(**_OPTIONS)(function)
    return compiled


def inlined(function: F) -> F:
    """Like `kernel`, inlined into every kernel that calls it: for the few lines of an inner loop."""
    with _our_cache():
        compiled: F = njit(inline="always", **_OPTIONS)(function)
    return compiled
