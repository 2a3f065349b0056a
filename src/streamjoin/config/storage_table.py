"""The table [storage] of a pipeline or service file: endpoints and credentials of stores."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from streamjoin.config.table import ConfigTable
from streamjoin.model import durations
from streamjoin.storage.settings import STORES, StorageSettings

_EXAMPLES = {"endpoint": "http://127.0.0.1:9000", "region": "eu-central-1", "account": "mystore"}


def read_storage(top: ConfigTable) -> StorageSettings | None:
    """The settings of a file; None if it has none."""
    table = top.table("storage")
    if table is None:
        return None
    table.only("timeout", "conditional_writes", *STORES)
    stores: dict[str, Any] = {name: _store(table, name, kind) for name, kind in STORES.items() if name in table.values}
    text = table.text("timeout", 'timeout = "10 seconds"')
    if text is not None:
        stores["timeout"] = table.build(partial(durations.nanoseconds, text), "timeout") / 1e9
    conditional = table.get("conditional_writes", (bool,), example="conditional_writes = false")
    if conditional is not None:
        stores["conditional_writes"] = conditional
    table.finish()
    return table.build(lambda: StorageSettings(**stores))


def _store(table: ConfigTable, name: str, kind: type[Any]) -> Any:
    inner = table.table(name)
    if inner is None:
        raise AssertionError(name)
    values: dict[str, Any] = {}
    for entry in fields(kind):
        if str(entry.type).startswith("bool"):
            value = inner.get(entry.name, (bool,), example=f"{entry.name} = true")
        else:
            example = _EXAMPLES.get(entry.name, f"${{MY_{entry.name.upper()}}}")
            value = inner.text(entry.name, f'{entry.name} = "{example}"')
        if value is not None:
            values[entry.name] = value
    inner.finish()
    return inner.build(lambda: kind(**values))
