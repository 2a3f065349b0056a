"""Compiled kernels on disk, shared by every environment that holds the same sources and versions.

Numba's own cache goes by the path of the source file, and its index is read, changed and written back, so two processes
that compile at the same time can give one file two meanings. Here an overload is one file, and its name is a digest of
everything that it was compiled from: the sources behind the kernel, the versions, the processor, the argument types.
Invariants: a file never changes its meaning, so nothing has to be locked; where the directory can't be read or written,
kernels are compiled and work.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import re
import sys
import uuid
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import serialize
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult

from streamjoin._cache import cache_dir
from streamjoin.kernels.inner_code import rebuild_inner

# Numba has no types.
_dumps: Any = serialize.dumps
_rebuild: Any = CompileResult._rebuild

# A test build, by the environment: every access to a shared word may give up the processor (see `atomics`).
YIELDING = os.environ.get("STREAMJOIN_FORCED_YIELDS", "")
# A debug build, by the environment or with the JIT off: kernels assert what they rely on.
CHECKED = bool(os.environ.get("STREAMJOIN_CHECKED") or os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"))

_LOG = logging.getLogger("streamjoin")
_HERE = Path(__file__).parent
_PACKAGE = __name__.rpartition(".")[0]
_IMPORT = re.compile(rf"^from {re.escape(_PACKAGE)}(?:\.([\w.]+))? import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_VERSIONS = (sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__)


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function's module, short for one of this package: `sorting`, or `folder.module`."""
    return function.__module__.removeprefix(f"{_PACKAGE}.")


def _file(module: str) -> Path:
    return _HERE.joinpath(*module.split(".")).with_suffix(".py")


@cache
def source(module: str) -> bytes:
    """The text of a kernel module, read once, when the module is imported, since the file may change later."""
    return _file(module).read_bytes()


@cache
def needs(module: str) -> frozenset[str]:
    """A kernel module and all kernel modules that it imports, directly or not; all, if it is not one."""
    if not _file(module).exists():
        return frozenset(".".join(file.relative_to(_HERE).with_suffix("").parts) for file in _HERE.rglob("*.py"))
    modules = {module}
    for origin, imported in _IMPORT.findall(source(module).decode()):
        if origin and _file(origin).exists():
            modules |= needs(origin)
        else:
            # Modules of a folder; any other name depends on all modules.
            for name in re.findall(r"\w+", re.sub(r" as \w+|#.*", "", imported)):
                modules |= needs(f"{origin}.{name}" if origin else name)
    return frozenset(modules)


@cache
def _digest(modules: frozenset[str]) -> str:
    """A digest of all sources behind a kernel and of all versions that compiled code depends on."""
    files = sorted(frozenset().union(*(needs(module) for module in modules)))
    digest = hashlib.sha256(repr((_VERSIONS, YIELDING, CHECKED)).encode())
    for name in files:
        digest.update(source(name))
    return digest.hexdigest()[:16]


@cache
def _warn_once(text: str) -> None:
    _LOG.warning("%s", text)


class KernelCache(_Cache):
    """The compiled overloads of one kernel; `modules` are those whose sources it depends on, with what they import."""

    def __init__(self, function: Callable[..., Any], modules: frozenset[str]) -> None:
        self._function: Any = function
        self._modules = modules
        self._enabled = True
        self.is_inner = False
        """Whether overloads without a wrapper for calls from Python are loaded and stored: see `dispatcher`."""
        for module in modules:
            if _file(module).exists():
                source(module)

    @cached_property
    def _directory(self) -> Path:
        return Path(os.environ.get("NUMBA_CACHE_DIR") or cache_dir()) / f"kernels-{_digest(self._modules)}"

    @property
    def cache_path(self) -> str:
        """The directory."""
        return str(self._directory)

    @cached_property
    def _stem(self) -> str:
        return f"{name_of(self._function)}.{self._function.__qualname__}".replace("<locals>.", "")

    def _path(self, sig: Any, codegen: Any) -> Path:
        code, cells = self._function.__code__, self._function.__closure__ or ()
        made_of = (
            [str(type_) for type_ in sig] if isinstance(sig, tuple) else str(sig),
            codegen.magic_tuple(),
            code.co_firstlineno,
            code.co_code,
            _dumps(tuple(cell.cell_contents for cell in cells)) if cells else b"",
        )
        stem = f"{self._stem}.inner" if self.is_inner else self._stem
        return self._directory / f"{stem}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:20]}.nbc"

    @cached_property
    def held_any(self) -> bool:
        """Whether any overload existed at the first call, for any types and processor."""
        return self._directory.is_dir() and any(self._directory.glob(f"{self._stem}-*.nbc"))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The overload for these argument types, or None."""
        if not self._enabled:
            return None
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        try:
            data = path.read_bytes()
        except OSError:
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
