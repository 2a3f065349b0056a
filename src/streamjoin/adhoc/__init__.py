"""Ad-hoc joins: many SQL queries over shared streams, created and dropped while the streams run.

Public are the engine, its settings and sinks, and what its methods return.
"""

from typing import TYPE_CHECKING

from streamjoin._lazy import lazy

if TYPE_CHECKING:
    from streamjoin.formats.delta import DeltaSink
    from streamjoin.formats.iceberg import IcebergSink
    from streamjoin.queries.core.budgets import Budget
    from streamjoin.queries.core.explain import Explanation
    from streamjoin.queries.core.settings import Settings
    from streamjoin.queries.engine.cursors import RowsPage
    from streamjoin.queries.engine.engine import Engine
    from streamjoin.queries.engine.handle import QueryHandle, ResultIterator
    from streamjoin.queries.engine.info import (
        BatchEvent,
        ChangeRecord,
        EngineMetrics,
        PlanChange,
        Preview,
        QueryInfo,
        RunningBatch,
        StreamInfo,
    )
    from streamjoin.queries.language.plan import Stream
    from streamjoin.queries.sinks.base import CallbackSink, MemorySink, Newest, Sink
    from streamjoin.queries.sinks.files import ParquetSink
    from streamjoin.queries.sinks.spark import KafkaSink, TableSink
    from streamjoin.queries.sinks.specs import NamedSink

__all__ = [
    "BatchEvent",
    "Budget",
    "CallbackSink",
    "ChangeRecord",
    "DeltaSink",
    "Engine",
    "EngineMetrics",
    "Explanation",
    "IcebergSink",
    "KafkaSink",
    "MemorySink",
    "NamedSink",
    "Newest",
    "ParquetSink",
    "PlanChange",
    "Preview",
    "QueryHandle",
    "QueryInfo",
    "ResultIterator",
    "RowsPage",
    "RunningBatch",
    "Settings",
    "Sink",
    "Stream",
    "StreamInfo",
    "TableSink",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "BatchEvent": "queries.engine.info",
        "Budget": "queries.core.budgets",
        "CallbackSink": "queries.sinks.base",
        "ChangeRecord": "queries.engine.info",
        "DeltaSink": "queries.sinks.specs",
        "Engine": "queries.engine.engine",
        "EngineMetrics": "queries.engine.info",
        "Explanation": "queries.core.explain",
        "IcebergSink": "queries.sinks.specs",
        "KafkaSink": "queries.sinks.spark",
        "MemorySink": "queries.sinks.base",
        "NamedSink": "queries.sinks.specs",
        "Newest": "queries.sinks.base",
        "ParquetSink": "queries.sinks.files",
        "PlanChange": "queries.engine.info",
        "Preview": "queries.engine.info",
        "QueryHandle": "queries.engine.handle",
        "QueryInfo": "queries.engine.info",
        "ResultIterator": "queries.engine.handle",
        "RowsPage": "queries.engine.cursors",
        "RunningBatch": "queries.engine.info",
        "Settings": "queries.core.settings",
        "Sink": "queries.sinks.base",
        "Stream": "queries.language.plan",
        "StreamInfo": "queries.engine.info",
        "TableSink": "queries.sinks.spark",
    },
)
