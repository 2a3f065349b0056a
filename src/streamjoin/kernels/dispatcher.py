"""What is compiled of a kernel: less for one that only other kernels call.

Numba compiles every function with a wrapper that converts Python objects, as machine code, and anew for every constant
that another kernel passes to it. A kernel that is called from another kernel gets an *inner* overload instead, for the
plain types of its arguments: without a wrapper, and as the intermediate code that its callers are compiled with (see
`inner_code`). A constant reaches its body there, if LLVM inlines it. Invariant: an inner overload is not reachable from
Python; a call from there compiles the overload again, with a wrapper.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

from numba.core import sigutils, types
from numba.core.compiler import Flags
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.typing.templates import make_concrete_template

from streamjoin.kernels.inner_code import InnerCompiler, InnerLibrary, attach_environments

_WRAPPER = "no_cpython_wrapper"
# Flags of a kernel itself, which the functions of Numba's that it calls do not get.
_OWN_FLAGS = frozenset({_WRAPPER, "forceinline"})
# Numba has no types.
_lock: Any = global_compiler_lock
_make_template: Any = make_concrete_template
_unliteral: Any = types.unliteral
_normalize: Any = sigutils.normalize_signature
_NumbaFlags: Any = Flags
_HASH = hash(_NumbaFlags())


class KernelFlags(_NumbaFlags):  # type: ignore[misc]
    """The flags of a kernel: cheap to compare, since Numba looks up its own functions by them hundreds of times."""

    def __hash__(self) -> int:
        return _HASH

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KernelFlags):
            return bool(super().__eq__(other))
        return self._inherited() == other._inherited()

    def _inherited(self) -> dict[str, Any]:
        return {name: value for name, value in self._values.items() if name not in _OWN_FLAGS}


class KernelDispatcher(Dispatcher):
    """The dispatcher of a kernel."""

    _compiler: Any
    _cache: Any

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The type of a call from another kernel, which compiles the inner overload."""
        signature, folded = self._compiler.fold_argument_types(args, kws)
        args = tuple(map(_unliteral, folded))
        with _lock:
            if args not in self.overloads:
                self._compile_inner(args)
        name = self.py_func.__name__
        template = _make_template(f"CallTemplate({name})", key=name, signatures=self.nopython_signatures)
        return template, signature, args, {}

    def _compile_inner(self, args: Any) -> None:
        compiler = self._compiler
        options, pipeline = compiler.targetoptions, compiler.pipeline_class
        compiler.targetoptions, compiler.pipeline_class = {**options, _WRAPPER: True}, InnerCompiler
        self._cache.is_inner = True
        try:
            super().compile(args)
        finally:
            self._cache.is_inner = False
            compiler.targetoptions, compiler.pipeline_class = options, pipeline

    def add_overload(self, cres: Any) -> None:
        """Take a compiled overload; an inner one stays out of the table that calls from Python look into."""
        if self._cache.is_inner:
            self.overloads[tuple(cres.signature.args)] = cres
        else:
            attach_environments(cres)
            super().add_overload(cres)

    def compile(self, sig: Any) -> Any:
        """Compile or load an overload that Python can call."""
        with _lock, _no_collection():
            args, _ = _normalize(sig)
            inner = self.overloads.get(tuple(args))
            if inner is not None and not _is_callable(inner):
                del self.overloads[tuple(args)]
            return super().compile(sig)

    @property
    def is_callable(self) -> bool:
        """Whether some overload is in memory that Python can call."""
        return any(_is_callable(each) for each in self.overloads.values())


def _is_callable(overload: Any) -> bool:
    return not isinstance(overload.library, InnerLibrary)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without the cyclic garbage collector: it would walk all the objects of Numba again and again, and free few."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
