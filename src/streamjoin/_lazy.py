"""Submodules that load on first use: `streamjoin.spark` needs pyspark, which takes a second to import."""

from __future__ import annotations

import importlib
from types import ModuleType

LAZY = ("adhoc", "spark", "testing")


def submodule(name: str) -> ModuleType:
    """`streamjoin.<name>` for the submodules in LAZY."""
    if name in LAZY:
        return importlib.import_module(f"streamjoin.{name}")
    raise AttributeError(f"module 'streamjoin' has no attribute {name!r}")
