"""Join live streams from Python: by key, by band, by time or by any condition.

>>> import streamjoin as sj
>>> trades = [{"sym": "A", "t": 5, "qty": 100}, {"sym": "A", "t": 30, "qty": 7}]
>>> quotes = [{"sym": "A", "t": 4, "bid": 10.1}, {"sym": "A", "t": 29, "bid": 10.3}]

Streams, of which more comes (pandas, Polars, Arrow, DuckDB, NumPy and dicts alike):

>>> with sj.open(sj.JoinSpec(on="sym", window="1000 rows")) as join:
...     join.push(trades, quotes[:1]).num_rows + join.push(right=quotes[1:]).num_rows
4

Two complete tables:

>>> sj.join(trades, quotes, on="sym", time="t", match="backward", columns=["qty", "bid"])
[{'qty': 100, 'bid': 10.1, 't': 5}, {'qty': 7, 'bid': 10.3, 't': 30}]

What to join    JoinSpec; Equi, Band, Within, Overlaps, Theta, or SQL; TimeWindow, CountWindow; AsOf,
                Summary
Join it         join    two complete tables
                open    streams, push by push: a Join
                live    streams, in threads of their own: a Live with LiveSources, read in LiveBatches
                spark   Spark Structured Streaming
                adhoc   many SQL queries over shared streams; service has REST around it
Merge it        ScaleGate   ordered streams of many sources into one, for any number of readers
Extend it       register_algorithm, register_index; testing checks them
Try it          data    real flights and weather
When it fails   StreamJoinError is the root of all errors; SpecError, SchemaError and InputError are mistakes in a call

`help(sj.join)`, `help(sj.JoinSpec)` and so on have the details. `open` is not in `__all__`: `from streamjoin import *`
leaves Python's own `open` alone.
"""

from typing import TYPE_CHECKING

from streamjoin._lazy import lazy
from streamjoin._version import __version__
from streamjoin.model.errors import (
    BackPressureError,
    BudgetExceededError,
    CheckpointError,
    CursorGoneError,
    EngineBudgetExceededError,
    ExpressionError,
    InputError,
    InterruptedBatchError,
    NotSupportedError,
    PipelineFileError,
    QueryError,
    SchemaError,
    ServiceError,
    SetupError,
    SpecError,
    StateError,
    StreamJoinError,
    TooManyRowsError,
    UnknownQueryError,
)

if TYPE_CHECKING:
    from streamjoin import adhoc as adhoc
    from streamjoin import data as data
    from streamjoin import service as service
    from streamjoin import spark as spark
    from streamjoin import testing as testing
    from streamjoin.indexes.registry import register_index
    from streamjoin.joins.engine.driver import Join
    from streamjoin.joins.engine.driver import open as open  # noqa: A004
    from streamjoin.joins.engine.tables import join
    from streamjoin.joins.live.broadcast import LiveBatch
    from streamjoin.joins.live.live import Live, live
    from streamjoin.joins.live.source import LiveSource
    from streamjoin.joins.registry import register_algorithm
    from streamjoin.model.asof import AsOf
    from streamjoin.model.predicates import Band, Equi, Overlaps, Theta, Within
    from streamjoin.model.spec import JoinSpec
    from streamjoin.model.summary import Summary
    from streamjoin.model.window import CountWindow, TimeWindow
    from streamjoin.scalejoin.scale_gate import ScaleGate

__all__ = [
    "AsOf",
    "BackPressureError",
    "Band",
    "BudgetExceededError",
    "CheckpointError",
    "CountWindow",
    "CursorGoneError",
    "EngineBudgetExceededError",
    "Equi",
    "ExpressionError",
    "InputError",
    "InterruptedBatchError",
    "Join",
    "JoinSpec",
    "Live",
    "LiveBatch",
    "LiveSource",
    "NotSupportedError",
    "Overlaps",
    "PipelineFileError",
    "QueryError",
    "ScaleGate",
    "SchemaError",
    "ServiceError",
    "SetupError",
    "SpecError",
    "StateError",
    "StreamJoinError",
    "Summary",
    "Theta",
    "TimeWindow",
    "TooManyRowsError",
    "UnknownQueryError",
    "Within",
    "__version__",
    "join",
    "live",
    "register_algorithm",
    "register_index",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "AsOf": "model.asof",
        "Band": "model.predicates",
        "CountWindow": "model.window",
        "Equi": "model.predicates",
        "Join": "joins.engine.driver",
        "JoinSpec": "model.spec",
        "Live": "joins.live.live",
        "LiveBatch": "joins.live.broadcast",
        "LiveSource": "joins.live.source",
        "Overlaps": "model.predicates",
        "ScaleGate": "scalejoin.scale_gate",
        "Summary": "model.summary",
        "Theta": "model.predicates",
        "TimeWindow": "model.window",
        "Within": "model.predicates",
        "join": "joins.engine.tables",
        "live": "joins.live.live",
        "open": "joins.engine.driver",
        "register_algorithm": "joins.registry",
        "register_index": "indexes.registry",
    },
    submodules=("adhoc", "data", "service", "spark", "testing"),
)
