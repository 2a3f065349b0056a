"""Join live streams from Python: by key, by band or by any condition.

`open` is not in `__all__`: `from streamjoin import *` leaves Python's own `open` alone. Write `streamjoin.open`.
"""

from typing import TYPE_CHECKING

from streamjoin._lazy import lazy
from streamjoin._version import __version__
from streamjoin.model.errors import (
    BackPressureError,
    BudgetExceededError,
    CheckpointError,
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
)

if TYPE_CHECKING:
    from streamjoin import adhoc as adhoc
    from streamjoin import data as data
    from streamjoin import service as service
    from streamjoin import spark as spark
    from streamjoin import testing as testing
    from streamjoin.joins.engine.driver import Join
    from streamjoin.joins.engine.opening import open as open  # noqa: A004
    from streamjoin.joins.live.broadcast import LiveBatch
    from streamjoin.joins.live.live import Live
    from streamjoin.joins.live.opening import live
    from streamjoin.joins.live.source import LiveSource
    from streamjoin.model.asof import AsOf
    from streamjoin.model.predicates import Band, Equi, Overlaps, Theta, Within
    from streamjoin.model.spec import JoinSpec
    from streamjoin.model.window import CountWindow, TimeWindow

__all__ = [
    "AsOf",
    "BackPressureError",
    "Band",
    "BudgetExceededError",
    "CheckpointError",
    "CountWindow",
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
    "SchemaError",
    "ServiceError",
    "SetupError",
    "SpecError",
    "StateError",
    "StreamJoinError",
    "Theta",
    "TimeWindow",
    "TooManyRowsError",
    "Within",
    "__version__",
    "live",
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
        "Theta": "model.predicates",
        "TimeWindow": "model.window",
        "Within": "model.predicates",
        "live": "joins.live.opening",
        "open": "joins.engine.opening",
    },
    submodules=("adhoc", "data", "service", "spark", "testing"),
)
