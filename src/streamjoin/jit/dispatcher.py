"""What is compiled of a kernel: less for one that only other kernels call.

Numba compiles every function with a wrapper that converts Python objects, anew for every constant that another kernel
passes to it; it optimises it together with all that it calls, and makes machine code of it, at every level of a chain
of calls. A kernel that is called from another kernel gets an *inner* overload instead, for the plain types of its
arguments: without a wrapper, and as LLVM's intermediate code, as it was lowered. The kernel that Python calls links it
in and is optimised once, with everything below it; a constant reaches an inner body there, if LLVM inlines it.
Invariants: an inner overload is not reachable from Python, and a call from there compiles the overload again, with a
wrapper; a kernel with machine code has the environments of all functions that it links in before it runs.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

from llvmlite.binding import parse_bitcode
from numba.core import sigutils, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, compile_result
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.environment import lookup_environment
from numba.core.typing.templates import make_concrete_template

_ENVIRONMENT = "_ZN08NumbaEnv"
_WRAPPER = "no_cpython_wrapper"
# Numba has no types.
_lock: Any = global_compiler_lock
_make_template: Any = make_concrete_template
_unliteral: Any = types.unliteral
_normalize: Any = sigutils.normalize_signature
_Library: Any = JITCodeLibrary
_Compiler: Any = Compiler
_compile_result: Any = compile_result
_lookup_environment: Any = lookup_environment
_parse: Any = parse_bitcode


class _NoEngine:
    """Stands in for the engine of machine code where Numba gives a function its environment."""

    @staticmethod
    def set_env(env_name: str, env: object) -> None:
        """Nothing: there is no machine code."""


class InnerLibrary(_Library):  # type: ignore[misc]
    """The code of one inner overload and of all that it calls, not optimised as a whole."""

    @property
    def codegen(self) -> Any:
        """What Numba sets the environment with."""
        return _NoEngine

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002
        """No function has machine code."""
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self) -> None:
        """Leave it to the kernel that links this code in."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """The intermediate code: there is no other."""
        serialized: tuple[str, str, bytes] = self.serialize_using_bitcode()
        return serialized

    @classmethod
    def restore(cls, codegen: Any, serialized: tuple[str, str, bytes]) -> InnerLibrary:
        """A library from what `serialize_using_object_code` returned."""
        name, _, code = serialized
        library = cls(codegen, name)
        library._final_module = _parse(code)
        library._finalize_final_module()
        return library


class InnerCompiler(_Compiler):  # type: ignore[misc]
    """Numba's compiler for inner overloads."""

    def compile_extra(self, func: Any) -> Any:
        """Compile a function into an inner library."""
        self.state.library = InnerLibrary(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


def rebuild_inner(target_context: Any, reduced: tuple[Any, ...]) -> Any:
    """An inner overload from the parts that `CompileResult._reduce` returned."""
    code, fndesc, env, signature, objectmode, lifted, annotation, reload_init, environments = reduced
    for initialize in reload_init:
        initialize()
    library = InnerLibrary.restore(target_context.codegen(), code)
    return _compile_result(
        target_context=target_context,
        typing_context=target_context.typing_context,
        library=library,
        environment=env,
        entry_point=target_context.get_executable(library, fndesc, env),
        fndesc=fndesc,
        type_annotation=annotation,
        signature=signature,
        objectmode=objectmode,
        lifted=lifted,
        reload_init=reload_init,
        referenced_envs=environments,
    )


def _attach_environments(overload: Any) -> None:
    """Give all functions that an overload with machine code has linked in their environments."""
    codegen = overload.target_context.codegen()
    for variable in overload.library._final_module.global_variables:
        if variable.name.startswith(_ENVIRONMENT):
            environment = _lookup_environment(variable.name)
            if environment is not None:
                codegen.set_env(variable.name, environment)


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
            _attach_environments(cres)
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
