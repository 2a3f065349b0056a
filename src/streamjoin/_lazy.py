"""Names that a package loads on first use.

`import streamjoin` loads neither Arrow nor pyspark: the kernels and the indexes need NumPy and Numba alone, and can be
imported, and measured, where the rest is missing.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazy(
    package: str,
    homes: Mapping[str, str],
    submodules: Collection[str] = (),
    deprecated: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: the package's name.
        homes: the public names, each with its module below the package.
        submodules: the modules and packages that are attributes without an import.
        deprecated: names that were public, each with its module below `streamjoin`, and its new name after a colon
            where it has one; they warn, and `dir` leaves them out.
    """
    former = deprecated or {}

    def attribute(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if name in former:
            module, _, renamed = former[name].partition(":")
            home = f"streamjoin.{module}"
            where = f"{home}, where it is {renamed}" if renamed else home
            warnings.warn(f"{package}.{name} is deprecated: import it from {where}", DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(home), renamed or name)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *submodules})

    return attribute, names
