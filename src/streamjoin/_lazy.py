"""What loads on first use: submodules such as `streamjoin.spark`, which needs pyspark, and the names of the engine.

The kernels and the indexes need NumPy and Numba alone; with the engine loaded on use they can be imported, and
measured, where Arrow and the rest are missing.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

LAZY = ("adhoc", "service", "spark", "testing")
_HOMES = {
    "Band": "model.predicates",
    "CountWindow": "model.window",
    "Equi": "model.predicates",
    "Join": "joins.engine.driver",
    "JoinSpec": "model.spec",
    "Theta": "model.predicates",
    "TimeWindow": "model.window",
    "open": "joins.engine.opening",
}


def attribute(name: str) -> Any:
    """`streamjoin.<name>` for the submodules in LAZY and the public names of the engine."""
    if name in LAZY:
        return importlib.import_module(f"streamjoin.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"streamjoin.{_HOMES[name]}"), name)
        setattr(sys.modules["streamjoin"], name, value)
        return value
    raise AttributeError(f"module 'streamjoin' has no attribute {name!r}")
