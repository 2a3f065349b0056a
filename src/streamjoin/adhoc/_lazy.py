"""The names of the engine, loaded on first use: reading queries needs neither kernels nor Spark."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

_HOMES: Final = {
    "CallbackSink": "sinks.base",
    "Create": "core.changes",
    "Drop": "core.changes",
    "Engine": "engine.engine",
    "KafkaSink": "sinks.spark",
    "MemorySink": "sinks.base",
    "NamedSink": "sinks.specs",
    "ParquetSink": "sinks.files",
    "Pause": "core.changes",
    "QueryHandle": "engine.handle",
    "Resume": "core.changes",
    "Settings": "core.settings",
    "Shared": "core.shared",
    "TableSink": "sinks.spark",
    "open_core": "core.apart",
}


def attribute(name: str) -> Any:
    """`streamjoin.adhoc.<name>` for the names of the engine."""
    if name not in _HOMES:
        raise AttributeError(f"module 'streamjoin.adhoc' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"streamjoin.adhoc.{_HOMES[name]}"), name)
    setattr(sys.modules["streamjoin.adhoc"], name, value)
    return value
