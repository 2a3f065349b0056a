"""What is compiled of a kernel: less for one that only other kernels call.

Numba compiles every function with a wrapper that converts Python objects, and anew for every constant that another
kernel passes to it. A kernel that is called from another kernel gets an *inner* overload instead, without a wrapper. If
LLVM inlines it in any case (`melted`), it is compiled for the plain types of its arguments: a constant reaches its body
there. Invariant: an inner overload is not reachable from Python; a call from there compiles the overload again, with
a wrapper.
"""

from __future__ import annotations

from typing import Any

from numba.core import sigutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.typing.templates import make_concrete_template

_WRAPPER = "no_cpython_wrapper"
# Numba has no types.
_lock: Any = global_compiler_lock
_make_template: Any = make_concrete_template
_unliteral: Any = types.unliteral
_normalize: Any = sigutils.normalize_signature


class KernelDispatcher(Dispatcher):
    """The dispatcher of a kernel."""

    _compiler: Any
    _cache: Any

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The type of a call from another kernel, which compiles the inner overload."""
        signature, folded = self._compiler.fold_argument_types(args, kws)
        inlined = self.targetoptions.get("forceinline")
        args = tuple(_unliteral(each) if inlined else each for each in folded)
        with _lock:
            if args not in self.overloads:
                self._compile_inner(args)
        name = self.py_func.__name__
        template = _make_template(f"CallTemplate({name})", key=name, signatures=self.nopython_signatures)
        return template, signature, args, {}

    def _compile_inner(self, args: Any) -> None:
        options = self._compiler.targetoptions
        self._compiler.targetoptions = {**options, _WRAPPER: True}
        self._cache.is_inner = True
        try:
            super().compile(args)
        finally:
            self._cache.is_inner = False
            self._compiler.targetoptions = options

    def add_overload(self, cres: Any) -> None:
        """Take a compiled overload; an inner one stays out of the table that calls from Python look into."""
        if self._cache.is_inner:
            self.overloads[tuple(cres.signature.args)] = cres
        else:
            super().add_overload(cres)

    def compile(self, sig: Any) -> Any:
        """Compile or load an overload that Python can call."""
        with _lock:
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
    return bool(overload.library.get_pointer_to_function(overload.fndesc.llvm_cpython_wrapper_name))
