"""Compiled kernels on disk, shared by every environment that holds the same sources and versions.

Numba's own cache goes by the path of the source file, and its index is read, changed and written back, so two processes
that compile at the same time can give one file two meanings; and it does not see a change in another file. Here an
overload is one file, and its name is a digest of everything that it was compiled from: the kernel's code, all functions
and constants that the code reaches, in whatever package, the versions, the processor, the argument types.
Invariants: a file never changes its meaning, so nothing has to be locked; where the directory can't be read or written,
kernels are compiled and work; a kernel that reaches what has no digest is compiled in every process.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
import uuid
from collections.abc import Callable, Iterable
from enum import Enum, EnumMeta
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import serialize
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.typing.templates import builtin_registry

from streamjoin._cache import cache_dir
from streamjoin.jit.dispatcher import rebuild_inner

# Numba has no types.
_dumps: Any = serialize.dumps
_rebuild: Any = CompileResult._rebuild
_registered: Any = builtin_registry

_LOG = logging.getLogger("streamjoin")
_VERSIONS = (sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__)
# How kernels are compiled; read when this is imported, since the files may change later.
_COMPILER = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in ("disk_cache", "dispatcher", "flags")]

# What these define is known by its name: their versions are part of the digest.
_LIBRARIES = frozenset({"llvmlite", "numba", "numpy", *sys.stdlib_module_names})
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(...)})


class UnknownValueError(Exception):
    """A kernel refers to something of which no digest can tell whether it has changed."""


class SourceDigest:
    """A digest of values, and of all functions and constants that the code of the functions among them reaches.

    Names are looked up as Numba does when it compiles, whatever import they came by. A name that the code uses as an
    attribute counts as a global too, if there is one: when that changes, a compilation is wasted. Not followed are what
    Numba finds by the types of arguments, an `overload` of an operator, a builtin or a method, and what the Python code
    of an intrinsic imports while it runs.
    """

    def __init__(self, *values: object) -> None:
        self._hash = hashlib.sha256()
        self._numbers: dict[tuple[int, object], int] = {}
        self._met: list[tuple[Any, tuple[str, ...]]] = []
        self._add_each(values)
        # It grows meanwhile; functions may call each other, and in long chains.
        for value, names in self._met:
            self._add_code(value, names)

    def __str__(self) -> str:
        return self._hash.hexdigest()[:20]

    def _put(self, *parts: object) -> None:
        self._hash.update(repr(parts).encode())

    def _add_each(self, values: Iterable[object]) -> None:
        values = list(values)
        self._put(len(values))
        for value in values:
            self._add(value)

    def _add(self, value: Any, names: tuple[str, ...] = ()) -> None:
        """Add a value; of a module, what it has by these names."""
        if type(value) in _PLAIN:
            self._put(value)
        elif _has_name_in_library(value):
            self._put(value.__module__, value.__name__)
        elif not isinstance(value, Dispatcher | _Intrinsic | FunctionType | ModuleType):
            self._add_constant(value)
        else:
            key = id(value), names if isinstance(value, ModuleType) else ()
            if key not in self._numbers:
                self._numbers[key] = len(self._met)
                self._met.append((value, names))
            self._put(self._numbers[key])

    def _add_code(self, value: Any, names: tuple[str, ...]) -> None:
        match value:
            case Dispatcher():
                self._add_each((value.targetoptions, value.py_func))
            case _Intrinsic():
                self._add_each((value._ctor_kwargs, value._prefer_literal, value._defn))
            case FunctionType():
                self._add_function(value)
            case ModuleType():
                self._put(value.__name__)
                if not _is_of_library(value.__name__):
                    self._add_named({name: getattr(value, name) for name in names if hasattr(value, name)}, names)

    def _add_named(self, scope: dict[str, Any], names: tuple[str, ...]) -> None:
        for name in names:
            if name in scope:
                self._put(name)
                self._add(scope[name], names)

    def _add_constant(self, value: Any) -> None:
        self._put(type(value).__name__)
        match value:
            case np.ndarray() | np.generic() if not value.dtype.hasobject:
                self._put(value.dtype, value.shape, value.flags.num, value.tobytes())
            case np.dtype() | ir.Type():
                self._put(str(value))
            case types.Dispatcher():
                self._add(value.dispatcher)
            case types.Type() if " at 0x" not in (name := str(value)) and "#" not in name:
                self._put(name)
            case Enum():
                self._add_each((type(value), value.name))
            case EnumMeta():
                members: dict[str, Any] = dict(value.__members__)
                self._add_each((value.__qualname__, *members, *(each.value for each in members.values())))
            case tuple() | list():
                self._put(getattr(value, "_fields", None))
                self._add_each(value)
            case dict():
                self._add_each((*value.keys(), *value.values()))
            case set() | frozenset():
                self._add_each(sorted(str(SourceDigest(each)) for each in value))
            case type() if issubclass(value, BaseException | tuple):
                # The compiled code keeps its name.
                self._add_each((value.__module__, value.__qualname__, getattr(value, "_fields", ())))
            case _:
                raise UnknownValueError(f"{value!r}")

    def _add_function(self, function: FunctionType) -> None:
        code, names = _of_code(function.__code__)
        self._put(function.__module__, function.__qualname__, code)
        self._add_each((function.__defaults__, function.__kwdefaults__))
        cells = function.__closure__ or ()
        self._add_each(cell.cell_contents for cell in cells)
        if not _is_of_library(function.__module__):
            self._add_named(function.__globals__, names)
            self._add_each(_overloads(len(_registered.globals)).get(function, ()))


@cache
def _of_code(code: CodeType) -> tuple[str, tuple[str, ...]]:
    """A digest of code, with the functions that it makes, and all names in it."""
    inner = [_of_code(each) for each in code.co_consts if isinstance(each, CodeType)]
    constants = (each for each in code.co_consts if not isinstance(each, CodeType))
    made_of = (
        code.co_code, code.co_exceptiontable, code.co_linetable, code.co_firstlineno, code.co_flags,
        code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount,
        code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
        tuple(constants), tuple(digest for digest, _ in inner),
    )  # fmt: skip
    return str(SourceDigest(made_of)), tuple(dict.fromkeys((*code.co_names, *(n for _, names in inner for n in names))))


@lru_cache(maxsize=1)
def _overloads(_: int) -> dict[Any, list[Any]]:
    """What Numba compiles in place of plain functions; computed anew when the number of registered ones changes."""
    found: dict[Any, list[Any]] = {}
    for function, type_ in _registered.globals:
        if isinstance(function, FunctionType):
            templates = getattr(type_, "templates", ())
            found.setdefault(function, []).extend(t._overload_func for t in templates if hasattr(t, "_overload_func"))
    return found


def _is_of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


def _has_name_in_library(value: Any) -> bool:
    """Whether a value is what a library has under the value's own name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not _is_of_library(module):
        return False
    return getattr(sys.modules.get(module), name, None) is value


@cache
def _compiler() -> str:
    """A digest of how kernels are compiled."""
    return str(SourceDigest(_VERSIONS, _COMPILER))


@cache
def _warn_once(text: str) -> None:
    _LOG.warning("%s", text)


class KernelCache(_Cache):
    """The compiled overloads of one kernel, which these settings decide too."""

    def __init__(self, function: Callable[..., Any], *settings: object) -> None:
        self._function: Any = function
        self._settings = settings
        self._enabled = True
        self.is_inner = False
        """Whether overloads without a wrapper for calls from Python are loaded and stored: see `dispatcher`."""

    @cached_property
    def _directory(self) -> Path:
        return Path(os.environ.get("NUMBA_CACHE_DIR") or cache_dir()) / f"kernels-{_compiler()}"

    @property
    def cache_path(self) -> str:
        """The directory."""
        return str(self._directory)

    @property
    def _stem(self) -> str:
        """How the names of this kernel's files begin, as long as nothing that it is compiled from changes."""
        function = self._function
        name = f"{function.__module__}.{function.__qualname__}".removeprefix("streamjoin.").replace("<locals>.", "")
        return f"{name}{'.inner' if self.is_inner else ''}-{SourceDigest(function, self._settings)}"

    def _path(self, sig: Any, codegen: Any) -> Path | None:
        """The file of an overload; None for one that can't be kept."""
        try:
            types_of_call = sig if isinstance(sig, tuple) else (str(sig),)
            called = SourceDigest(types_of_call, codegen.magic_tuple())
            return self._directory / f"{self._stem}-{called}.nbc"
        except UnknownValueError as error:
            _LOG.debug("%s is compiled in every process: it refers to %s", self._function.__qualname__, error)
            return None

    @cached_property
    def held_any(self) -> bool:
        """Whether any overload existed at the first call, for any types and processor."""
        try:
            return self._directory.is_dir() and any(self._directory.glob(f"{self._stem}-*.nbc"))
        except UnknownValueError:
            return False

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The overload for these argument types, or None."""
        if not self._enabled:
            return None
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        try:
            data = path.read_bytes() if path else None
        except OSError:
            data = None
        if data is None:
            return None
        try:
            parts = pickle.loads(data)  # noqa: S301 - the user's own directory
            return rebuild_inner(target_context, parts) if self.is_inner else _rebuild(target_context, *parts)
        except Exception as error:  # a damaged file is ignored: the kernel can be compiled
            _LOG.warning("%s can't be loaded and is compiled anew: %s", path, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled overload."""
        if not self._enabled or data.library.has_dynamic_globals or any(not part.can_cache for part in data.lifted):
            return
        path = self._path(sig, data.codegen)
        if path is None:
            return
        spare = path.with_suffix(f".{uuid.uuid4().hex[:16]}")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            try:
                spare.write_bytes(_dumps(data._reduce()))
                spare.replace(path)
            except BaseException:
                spare.unlink(missing_ok=True)
                raise
        except OSError as error:
            _warn_once(f"compiled kernels can't be kept in {self._directory.parent}: {error.strerror}")

    def enable(self) -> None:
        """Use the directory."""
        self._enabled = True

    def disable(self) -> None:
        """Compile without using the directory."""
        self._enabled = False

    def flush(self) -> None:
        """Remove the stored overloads of this kernel."""
        for path in self._directory.glob(f"{self._stem}-*.nbc"):
            path.unlink(missing_ok=True)
