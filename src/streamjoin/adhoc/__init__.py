"""Ad-hoc joins: many SQL queries over shared streams, created and dropped while the streams run.

Public are the engine, its settings and sinks, and what its methods return.
"""

from typing import TYPE_CHECKING

from streamjoin._lazy import lazy

if TYPE_CHECKING:
    from streamjoin.adhoc.core.budgets import Budget
    from streamjoin.adhoc.core.explain import Explanation
    from streamjoin.adhoc.core.settings import Settings
    from streamjoin.adhoc.engine.engine import Engine
    from streamjoin.adhoc.engine.handle import QueryHandle, ResultIterator
    from streamjoin.adhoc.engine.info import (
        BatchEvent,
        ChangeRecord,
        EngineMetrics,
        PlanChange,
        Preview,
        QueryInfo,
        RunningBatch,
        StreamInfo,
    )
    from streamjoin.adhoc.language.plan import Stream
    from streamjoin.adhoc.sinks.base import CallbackSink, MemorySink, Newest, Sink
    from streamjoin.adhoc.sinks.files import ParquetSink
    from streamjoin.adhoc.sinks.spark import KafkaSink, TableSink
    from streamjoin.adhoc.sinks.specs import NamedSink
    from streamjoin.formats.delta import DeltaSink
    from streamjoin.formats.iceberg import IcebergSink

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
        "BatchEvent": "engine.info",
        "Budget": "core.budgets",
        "CallbackSink": "sinks.base",
        "ChangeRecord": "engine.info",
        "DeltaSink": "sinks.specs",
        "Engine": "engine.engine",
        "EngineMetrics": "engine.info",
        "Explanation": "core.explain",
        "IcebergSink": "sinks.specs",
        "KafkaSink": "sinks.spark",
        "MemorySink": "sinks.base",
        "NamedSink": "sinks.specs",
        "Newest": "sinks.base",
        "ParquetSink": "sinks.files",
        "PlanChange": "engine.info",
        "Preview": "engine.info",
        "QueryHandle": "engine.handle",
        "QueryInfo": "engine.info",
        "ResultIterator": "engine.handle",
        "RunningBatch": "engine.info",
        "Settings": "core.settings",
        "Sink": "sinks.base",
        "Stream": "language.plan",
        "StreamInfo": "engine.info",
        "TableSink": "sinks.spark",
    },
    deprecated={
        "BandTerm": "model.terms",
        "Create": "adhoc.core.changes",
        "Drop": "adhoc.core.changes",
        "Equality": "model.terms",
        "JoinKey": "adhoc.language.join_key",
        "JoinStep": "adhoc.language.plan",
        "KeyedJoin": "adhoc.language.join_key",
        "Output": "adhoc.language.plan",
        "Pause": "adhoc.core.changes",
        "Predicate": "adhoc.language.plan",
        "Query": "adhoc.language.plan",
        "Resume": "adhoc.core.changes",
        "Shared": "adhoc.core.shared",
        "Source": "adhoc.language.plan:QuerySource",
        "open_core": "adhoc.core.unshared",
        "parse": "adhoc.language.sql",
    },
)
