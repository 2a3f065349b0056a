"""The names of the engine, loaded on first use: reading queries needs neither kernels nor Spark."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

_HOMES: Final = {
    "CallbackSink": "sinks",
    "Create": "changes",
    "Drop": "changes",
    "Engine": "engine",
    "KafkaSink": "sinks_spark",
    "MemorySink": "sinks",
    "NamedSink": "sink_specs",
    "ParquetSink": "sinks_files",
    "Pause": "changes",
    "QueryHandle": "handle",
    "Resume": "changes",
    "Settings": "settings",
    "Shared": "core",
    "TableSink": "sinks_spark",
    "open_core": "apart",
}


def attribute(name: str) -> Any:
    """`streamjoin.adhoc.<name>` for the names of the engine."""
    if name not in _HOMES:
        raise AttributeError(f"module 'streamjoin.adhoc' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"streamjoin.adhoc.{_HOMES[name]}"), name)
    setattr(sys.modules["streamjoin.adhoc"], name, value)
    return value
