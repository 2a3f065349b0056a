"""Tables of Delta and Iceberg on a directory, for tests: their sinks, and their rows as their own readers give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from streamjoin.adhoc import DeltaSink, IcebergSink

KINDS = ("delta", "iceberg")


class Lake:
    """A place for tables of one format."""

    def __init__(self, kind: str, directory: Path, warehouse: str | None = None) -> None:
        self.kind, self.directory = kind, directory
        directory.mkdir(parents=True, exist_ok=True)
        self.warehouse = warehouse or directory.as_uri()
        self.catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": self.warehouse}

    def sink(self, name: str) -> DeltaSink | IcebergSink:
        """A table as a sink."""
        if self.kind == "delta":
            return DeltaSink(self.path(name))
        return IcebergSink(f"tests.{name}", options=self.catalog)

    def path(self, name: str) -> str:
        """Where a Delta table is."""
        return f"{self.warehouse.removeprefix('file://')}/{name}"

    def open(self, name: str, options: dict[str, str] | None = None) -> Any:
        """A table as its library opens it."""
        if self.kind == "delta":
            from deltalake import DeltaTable

            return DeltaTable(self.path(name), storage_options=options)
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.catalog | (options or {})).load_table(f"tests.{name}")

    def table(self, name: str, options: dict[str, str] | None = None) -> pa.Table:
        """The rows of a table."""
        opened = self.open(name, options)
        return opened.to_pyarrow_table() if self.kind == "delta" else opened.scan().to_arrow()

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a table, sorted."""
        return sorted(zip(*(column.to_pylist() for column in self.table(name).columns), strict=True))

    def create(self, name: str, schema: pa.Schema, **options: Any) -> None:
        """Make a table without streamjoin."""
        if self.kind == "delta":
            from deltalake import DeltaTable

            DeltaTable.create(self.path(name), schema, **options)
            return
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("default", **self.catalog)
        catalog.create_namespace_if_not_exists("tests")
        catalog.create_table(f"tests.{name}", schema, **options)
