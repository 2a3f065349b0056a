"""The compiler flags, once: every kernel is decorated with `kernel` and with nothing else.

Kernels release the GIL, so Python threads run them side by side; they are cached on disk, so a
process compiles what no process before it has compiled. Set NUMBA_DISABLE_JIT=1 to run them as
plain Python (the suite does so on small inputs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

# error_model="numpy": a division by zero gives inf or nan instead of a branch and a raise in every loop.
_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


def kernel(function: F) -> F:
    """Compile `function` on first call, without the GIL, cached on disk."""
    compiled: F = njit(**_OPTIONS)(function)
    return compiled


def inlined(function: F) -> F:
    """Like `kernel`, inlined into every kernel that calls it: for the few lines of an inner loop."""
    compiled: F = njit(inline="always", **_OPTIONS)(function)
    return compiled
