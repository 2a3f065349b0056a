"""The sinks of a file as tables of Delta and Iceberg."""

from __future__ import annotations

from streamjoin.config.pipeline import PipelineSink
from streamjoin.formats.delta import DeltaSink
from streamjoin.formats.iceberg import IcebergSink


def table_sink(sink: PipelineSink, query: str = "{query}") -> DeltaSink | IcebergSink | None:
    """The table that a sink of a file names, for a query where the name has a place for it; None if it names no table.

    Raises:
        SpecError: the name of a table makes no sense.
    """
    if sink.format == "delta":
        return DeltaSink((sink.path or "").replace("{query}", query), sink.options)
    if sink.format == "iceberg":
        return IcebergSink((sink.name or "").replace("{query}", query), sink.catalog, sink.options)
    return None
