"""The compiler flags: every kernel is decorated with `kernel`, or with `inlined` if the call overhead matters.

Kernels release the GIL, so Python threads run them side by side; they are cached on disk (`disk_cache.py`), so a
process compiles only what no earlier process has compiled. The environment decides, when the package is imported, how:

- NUMBA_DISABLE_JIT=1: not at all, they run as plain Python (the suite does so on small inputs).
- STREAMJOIN_PLAIN_JIT=1: by Numba as it is, without what `dispatcher.py` and `disk_cache.py` change in it, so every
  process compiles all that it calls. A Numba or an llvmlite that these were not tested with is used like this too.
- STREAMJOIN_CHECKED=1: the checked build. Numba compiles signed arithmetic as if it never overflowed, and a negative
  place as one counted from the end; both turn a mistake at the ends of int64 into wrong rows, or into memory that is
  overwritten. Here they are compiled with LLVM's overflow flags, and with places that are tested before they are used:
  the first mistake is an OverflowError or an IndexError where it happens. Memory that is reached by an address
  (`memory`, `atomics`) is not tested. Invariant: a kernel that raises neither does the same in the other build.
- STREAMJOIN_FORCED_YIELDS=n: a test build, see `atomics`.
"""

from __future__ import annotations

import logging
import operator
import os
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import llvmlite
import numba
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import lower_builtin
from numba.np import arrayobj

__all__ = ["CHECKED", "YIELDING", "inlined", "is_compiled", "kernel", "specialized"]

F = TypeVar("F", bound=Callable[..., Any])

YIELDING = os.environ.get("STREAMJOIN_FORCED_YIELDS", "")
_INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
# Kernels assert what they rely on.
CHECKED = bool(os.environ.get("STREAMJOIN_CHECKED")) or _INTERPRETED
# The versions whose insides are known, from the first and before the second, as in pyproject.toml.
TESTED = {"numba": (numba.__version__, (0, 61), (0, 69)), "llvmlite": (llvmlite.__version__, (0, 44), (0, 51))}


def _is_tested() -> bool:
    """Whether the insides of Numba are those that are changed here."""
    for library, (installed, first, end) in TESTED.items():
        if not first <= tuple(map(int, re.findall(r"\d+", installed)[:2])) < end:
            message = "%s %s is installed; tested are %d.%d to before %d.%d, so kernels are compiled in every process"
            logging.getLogger("streamjoin").warning(message, library, installed, *first, *end)
            return False
    return True


PLAIN = bool(os.environ.get("STREAMJOIN_PLAIN_JIT")) or not _is_tested()

# error_model="numpy": a division by zero gives inf or nan instead of a branch and a raise in every loop.
# no_cfunc_wrapper: the address of a kernel is never taken, and each wrapper is one more function to compile.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

# Numba has no types.
_lower: Any = lower_builtin
_int64: Any = types.int64
_arrays: Any = arrayobj
_code: Any = cgutils
_counted_from_end: Any = arrayobj.fix_integer_index
_OPERATIONS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("sadd", (operator.add, operator.iadd)),
    ("ssub", (operator.sub, operator.isub)),
    ("smul", (operator.mul, operator.imul)),
)


def _compiled(function: F, **options: Any) -> F:
    options |= _OPTIONS
    dispatcher: Any = njit(**options)(function)
    if dispatcher is not function and not PLAIN:
        # Only here: with another Numba they might not even be importable.
        from streamjoin.jit.disk_cache import KernelCache
        from streamjoin.jit.dispatcher import KernelDispatcher

        dispatcher.__class__ = KernelDispatcher
        dispatcher._cache = KernelCache(function, options, YIELDING, CHECKED)
    compiled: F = dispatcher
    return compiled


def kernel(function: F) -> F:
    """Compile `function` on first call, without the GIL, cached on disk."""
    return _compiled(function)


def inlined(function: F) -> F:
    """Like `kernel`, but LLVM always inlines it into every kernel that calls it.

    An array is seven arguments, so calling the steps of a tuple costs as much as doing them. Not for long functions
    that are called from many places: every call is a copy to compile.
    """
    return _compiled(function, forceinline=True)


def specialized(function: Callable[..., Any], name: str, decorate: Callable[[F], F], **names: Any) -> Any:
    """A copy of a function in which some global names mean something else: one loop for several kinds of steps.

    So it reads as a function of its module, and the compiler sees one straight kernel.
    """
    copy: Any = FunctionType(function.__code__, function.__globals__ | names, name)
    copy.__qualname__, copy.__module__ = name, function.__module__
    return decorate(copy)


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether calling a kernel most likely compiles nothing: some overload is in memory or on disk."""
    dispatcher: Any = function
    if not hasattr(dispatcher, "overloads"):
        return True
    if PLAIN:
        return bool(dispatcher.overloads)
    return bool(dispatcher.is_callable or dispatcher._cache.held_any)


def _checked(name: str) -> Any:
    """The code of one operation of two int64, which raises where the result is not one."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        word = ir.IntType(64)
        pair = ir.FunctionType(ir.LiteralStructType([word, ir.IntType(1)]), [word, word])
        flagged = _code.get_or_insert_function(builder.module, pair, f"llvm.{name}.with.overflow.i64")
        result = builder.call(flagged, args)
        with _code.if_unlikely(builder, builder.extract_value(result, 1)):
            context.call_conv.return_user_exc(builder, OverflowError, (f"{name} of two int64 in a kernel overflows",))
        return builder.extract_value(result, 0)

    return generate


def _place(context: Any, builder: Any, type_: Any, place: Any, size: Any) -> Any:
    """A place as it is, which Numba then tests; a negative one is not counted from the end."""
    if not context.enable_boundscheck or not type_.signed:
        return _counted_from_end(context, builder, type_, place, size)
    return context.cast(builder, place, type_, types.intp)


def _install_checks() -> None:
    """Have all kernels of this process compiled with checks."""
    for name, operators in _OPERATIONS:
        for each in operators:
            _lower(each, _int64, _int64)(_checked(name))
    _arrays.fix_integer_index = _place


if CHECKED and not _INTERPRETED:
    _install_checks()
    _OPTIONS["boundscheck"] = True
