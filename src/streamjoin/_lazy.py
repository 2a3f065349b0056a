"""What is loaded on first use: the public names of a package, and what is registered under a name.

`import streamjoin` loads neither Arrow nor pyspark: the kernels and the indexes need NumPy and Numba alone, and can be
imported, and measured, where the rest is missing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Generic, TypeVar

from streamjoin.model.errors import SpecError

T = TypeVar("T")


def lazy(
    package: str,
    homes: Mapping[str, str],
    submodules: Collection[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package; `__all__` becomes an attribute like those that are loaded.

    Args:
        package: the package's name.
        homes: the public names, each with its module below `streamjoin`.
        submodules: the modules and packages that are attributes without an import.
    """
    exported: list[str] = vars(sys.modules[package]).pop("__all__")

    def attribute(name: str) -> Any:
        # With a list of names `help` prints every class of it, thousands of lines; without one it prints the docstring,
        # which names them.
        if name == "__all__" and sys._getframe(1).f_globals.get("__name__") != "pydoc":
            return exported
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"streamjoin.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        # Not what the package imports for itself.
        own = vars(sys.modules[package])
        return sorted({"__all__", *(name for name in own if name.startswith("__")), *exported, *homes, *submodules})

    return attribute, names


class Registered(Mapping[str, T], Generic[T]):
    """What is registered under a name, by the package and by others.

    Invariant: an entry of the package is there as if its module had been imported, which its first use does.
    """

    def __init__(self, argument: str, homes: Mapping[str, str], elsewhere: Mapping[str, str]) -> None:
        """`homes` are the modules that register the package's own names, `elsewhere` those of the experiments."""
        self.entries: dict[str, T] = {}
        self._argument, self._homes, self._elsewhere = argument, homes, elsewhere
        self._origins: dict[str, str] = {}

    def register(self, name: object, entry: T, origin: str) -> None:
        """Add an entry that module `origin` registers; the same module may register a name again.

        Raises:
            SpecError: the name is none, or another module has it.
        """
        if not isinstance(name, str) or not name.isidentifier():
            raise SpecError(f"{self._argument}={name!r} can't be registered: a name is like 'my_{self._argument}'")
        taken_by = self._origins.get(name) or self._homes.get(name, origin)
        if taken_by != origin:
            raise SpecError(f"{self._argument}={name!r} is taken by {taken_by}: register another name")
        self.entries[name], self._origins[name] = entry, origin

    def unknown(self, name: object, known: Collection[str]) -> SpecError:
        """The error for a name that is not registered."""
        if isinstance(name, str) and name in self._elsewhere:
            home = self._elsewhere[name]
            return SpecError(
                f"{self._argument}={name!r} is only run by experiments: import {home}, which is in the repository "
                "and not in the package, and it is registered"
            )
        return SpecError(f"{self._argument}={name!r} is not known; it is one of {', '.join(known)}")

    def __getitem__(self, name: str) -> T:
        if name not in self.entries and name in self._homes:
            importlib.import_module(self._homes[name])
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._homes, **self.entries})

    def __len__(self) -> int:
        return len(self._homes.keys() | self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries or name in self._homes
