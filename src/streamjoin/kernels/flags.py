"""The compiler flags, once: every kernel is decorated with `kernel`, or with `melted` where the call itself counts.

Kernels release the GIL, so Python threads run them side by side; they are cached on disk, so a
process compiles what no process before it has compiled. Set NUMBA_DISABLE_JIT=1 to run them as
plain Python (the suite does so on small inputs).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import njit

from streamjoin._cache import cache_dir

F = TypeVar("F", bound=Callable[..., Any])

# error_model="numpy": a division by zero gives inf or nan instead of a branch and a raise in every loop.
_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


# A test build, by the environment: every access to a shared word may give up the processor (see `atomics`).
YIELDING = os.environ.get("STREAMJOIN_FORCED_YIELDS", "")

# A debug build, by the environment or with the JIT off: kernels assert what they rely on.
CHECKED = bool(os.environ.get("STREAMJOIN_CHECKED") or os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"))

_HERE = Path(__file__).parent
_IMPORT = re.compile(r"^from streamjoin\.kernels(?:\.(\w+))? import (\(?[\w, ]*)", re.MULTILINE)


@cache
def _needs(module: str) -> frozenset[str]:
    """The kernel modules that one imports, itself and what those import included; all, if it is not one of them."""
    if not (_HERE / f"{module}.py").exists():
        return frozenset(file.stem for file in _HERE.glob("*.py"))
    found = {module}
    for name, imported in _IMPORT.findall((_HERE / f"{module}.py").read_text()):
        for needed in [name] if name else re.findall(r"\w+", imported):
            found |= _needs(needed)
    return frozenset(found)


def _digest(modules: frozenset[str]) -> str:
    """A digest of all sources behind a kernel. Numba looks at its own file only and would miss a change elsewhere."""
    files = sorted(frozenset().union(*(_needs(module) for module in modules)))
    text = b"".join((_HERE / f"{name}.py").read_bytes() for name in files)
    return hashlib.sha256(text + YIELDING.encode() + (b"checked" if CHECKED else b"")).hexdigest()[:16]


# Numba fills its settings in from the environment, where no type checker sees them.
_SETTINGS: Any = numba.config


@contextmanager
def _our_cache(*functions: Callable[..., Any]) -> Iterator[None]:
    """Numba asks for the directory when a function is decorated; the user's own kernels keep theirs."""
    theirs = _SETTINGS.CACHE_DIR
    digest = _digest(frozenset(function.__module__.rpartition(".")[2] for function in functions))
    _SETTINGS.CACHE_DIR = os.environ.get("NUMBA_CACHE_DIR") or str(cache_dir() / f"kernels-{digest}")
    try:
        yield
    finally:
        _SETTINGS.CACHE_DIR = theirs


def kernel(function: F, *bound: Callable[..., Any]) -> F:
    """Compile `function` on first call, without the GIL, cached on disk.

    `bound` are kernels it calls that its own module does not import: a change in theirs must compile it anew.
    """
    with _our_cache(function, *bound):
        compiled: F = njit(**_OPTIONS)(function)
    return compiled


def inlined(function: F) -> F:
    """Like `kernel`, inlined into every kernel that calls it: for the few lines of an inner loop."""
    with _our_cache(function):
        compiled: F = njit(inline="always", **_OPTIONS)(function)
    return compiled


def melted(function: F, *bound: Callable[..., Any]) -> F:
    """Like `kernel`, but LLVM puts it into every kernel that calls it, whatever its size.

    An array is seven arguments, so calling the steps of a tuple costs as much as doing them. Unlike with `inlined`
    each is typed once. Not for what is called from many places: every call is a copy to compile.
    """
    with _our_cache(function, *bound):
        compiled: F = njit(forceinline=True, **_OPTIONS)(function)
    return compiled
