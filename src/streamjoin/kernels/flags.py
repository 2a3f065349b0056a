"""The compiler flags: every kernel is decorated with `kernel`, or with `melted` if the call overhead matters.

Kernels release the GIL, so Python threads run them side by side; they are cached on disk (`disk_cache.py`), so a
process compiles only what no earlier process has compiled. Set NUMBA_DISABLE_JIT=1 to run them as
plain Python (the suite does so on small inputs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

from streamjoin.kernels.disk_cache import CHECKED, YIELDING, KernelCache, name_of
from streamjoin.kernels.dispatcher import KernelDispatcher, KernelFlags

__all__ = ["CHECKED", "YIELDING", "is_compiled", "kernel", "melted"]

F = TypeVar("F", bound=Callable[..., Any])

# error_model="numpy": a division by zero gives inf or nan instead of a branch and a raise in every loop.
# no_cfunc_wrapper: the address of a kernel is never taken, and each wrapper is one more function to compile.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def _compiled(function: F, bound: tuple[Callable[..., Any], ...], **options: Any) -> F:
    dispatcher: Any = njit(**_OPTIONS, **options)(function)
    if dispatcher is not function:
        dispatcher.__class__ = KernelDispatcher
        dispatcher._compiler._customize_flags = KernelFlags
        modules = frozenset({name_of(function), *map(name_of, bound)})
        dispatcher._cache = KernelCache(function, modules)
    compiled: F = dispatcher
    return compiled


def kernel(function: F, *bound: Callable[..., Any]) -> F:
    """Compile `function` on first call, without the GIL, cached on disk.

    `bound` are kernels it calls that its own module does not import: if they change, it must be recompiled.
    """
    return _compiled(function, bound)


def melted(function: F, *bound: Callable[..., Any]) -> F:
    """Like `kernel`, but LLVM always inlines it into every kernel that calls it.

    An array is seven arguments, so calling the steps of a tuple costs as much as doing them. Not for long functions
    that are called from many places: every call is a copy to compile.
    """
    return _compiled(function, bound, forceinline=True)


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether calling a kernel most likely compiles nothing: some overload is in memory or on disk."""
    dispatcher: Any = function
    kept = getattr(dispatcher, "_cache", None)
    return not isinstance(kept, KernelCache) or dispatcher.is_callable or kept.held_any
