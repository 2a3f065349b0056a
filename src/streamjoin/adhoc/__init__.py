"""Ad-hoc joins: many SQL queries over shared streams, created and dropped while the streams run.

>>> import datetime as dt
>>> import pyarrow as pa
>>> from streamjoin.adhoc import Engine
>>> engine = Engine()
>>> _ = engine.register("trades", schema=pa.schema({"ts": pa.timestamp("us"), "sym": pa.string(), "px": pa.float64()}))
>>> _ = engine.register("quotes", schema=pa.schema({"ts": pa.timestamp("us"), "sym": pa.string(), "bid": pa.float64()}))
>>> with engine:
...     near = engine.create("SELECT t.px, q.bid FROM trades t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym")
...     engine.push("quotes", [{"ts": dt.datetime(2026, 1, 1, 12, 0, 0), "sym": "A", "bid": 9.0}])
...     engine.push("trades", [{"ts": dt.datetime(2026, 1, 1, 12, 0, 2), "sym": "A", "px": 9.5}])
...     near.rows().to_pylist()
[{'px': 9.5, 'bid': 9.0}]

Engine            runs queries: create, drop, pause, explain; Settings and Budget bound what it uses
Stream            the columns and the time of a stream; `streamjoin.adhoc.sources` reads them without Spark
QueryHandle       a query that runs: a ResultIterator over its rows, its RowsPage by cursor, its Explanation
Sink              where rows go: MemorySink, which keeps the Newest, CallbackSink, ParquetSink, DeltaSink, IcebergSink,
                  KafkaSink and TableSink; NamedSink is one by name and options, as in a file
What it tells     BatchEvent, RunningBatch, QueryInfo, StreamInfo, Preview, PlanChange, ChangeRecord, EngineMetrics

`help(Engine)` and so on have the details.
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
