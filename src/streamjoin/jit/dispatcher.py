"""The code of an inner overload: LLVM's intermediate code, which the kernels that call it link in and optimise.

Numba optimises every function together with all that it calls, and makes machine code of it, at every level of a chain
of calls. An inner overload is never run by itself, so its code stays as it was lowered; the kernel that Python calls is
optimised once, with everything below it. Invariant: a kernel with machine code has the environments of all functions
that it links in before it runs (`attach_environments`).
"""

from __future__ import annotations

from typing import Any

from llvmlite.binding import parse_bitcode
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, compile_result
from numba.core.environment import lookup_environment

_ENVIRONMENT = "_ZN08NumbaEnv"
# Numba has no types.
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


def attach_environments(overload: Any) -> None:
    """Give all functions that an overload with machine code has linked in their environments."""
    codegen = overload.target_context.codegen()
    for variable in overload.library._final_module.global_variables:
        if variable.name.startswith(_ENVIRONMENT):
            environment = _lookup_environment(variable.name)
            if environment is not None:
                codegen.set_env(variable.name, environment)
