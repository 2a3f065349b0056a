"""Join live streams from Python: by key, by band or by any condition."""

from typing import TYPE_CHECKING

from streamjoin._lazy import attribute as __getattr__  # noqa: F401
from streamjoin._version import __version__
from streamjoin.model.errors import (
    CheckpointError,
    ExpressionError,
    InputError,
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
    from streamjoin.joins.engine.driver import Join
    from streamjoin.joins.engine.opening import open  # noqa: A004
    from streamjoin.model.predicates import Band, Equi, Theta
    from streamjoin.model.spec import JoinSpec
    from streamjoin.model.window import CountWindow, TimeWindow

__all__ = [
    "Band",
    "CheckpointError",
    "CountWindow",
    "Equi",
    "ExpressionError",
    "InputError",
    "Join",
    "JoinSpec",
    "NotSupportedError",
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
    "__version__",
    "open",
]
