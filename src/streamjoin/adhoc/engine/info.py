"""What an engine tells about itself: frozen records of plain values, ready for JSON.

Nothing here knows Spark or holds a live object, so a record stays true of the moment it was made at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

from streamjoin.adhoc.core.contract import Action

LATENCY_STAGES: Final = ("source", "read", "queue", "join", "store", "sink")
"""What tuples pass on their way from a source to the sink of a query."""
QueryState = Literal["pending", "running", "paused", "failed", "dropped"]


class _TwoTexts:
    """How the REST interface describes a pair: some readers of its description take no `prefixItems`."""

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}


Columns = tuple[Annotated[tuple[str, str], _TwoTexts()], ...]
"""Names and types."""


class Record:
    """What all records can do."""

    __pydantic_config__: ClassVar = {"json_schema_serialization_defaults_required": True}
    """For the description of the REST interface: all fields are always there."""

    def as_json(self) -> dict[str, Any]:
        """The fields as dictionaries, lists, texts and numbers."""
        return _plain(asdict(self))  # type: ignore[call-overload, no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class QueryInfo(Record):
    """A query.

    `created_batch` is the first batch it sees (-1 while pending) and `created_at` the Unix time of the create. `rows`
    counts the rows its sink took since the create; `rows_undelivered` those that wait because the sink is behind or
    failed, which is tried again at the Unix time `retry_at`; `rows_missed` those that found the spool full.
    `latency_ms` is the time from the arrival of tuples to the delivery of the rows they led to, in the last batch with
    rows; None before. `latency` divides it into stages: the wait in the `source` since it was last looked into (0 for
    pushes and on Spark), the `read`, the `queue` for a batch, the `join`, the journal (`store`), the `sink`.
    """

    name: str
    sql: str
    state: QueryState
    created_batch: int
    created_at: float
    rows: int
    rows_per_second: float
    latency_ms: float | None
    sink: str
    columns: Columns
    error: str | None = None
    rows_undelivered: int = 0
    rows_missed: int = 0
    retry_at: float | None = None
    latency: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds by stage; empty before the first rows."""


@dataclass(frozen=True)
class StreamInfo(Record):
    """A stream; `lag_seconds` is how far its newest event is behind now, None for integer times.

    `watermark` is the time before which tuples are late: ISO text, or a number for integer times. `late` counts
    tuples that were, and `untimed` those without a usable time, both among `rows`. `malformed` counts records that
    could not be decoded, which are no rows. `error` says why it can't be read now, `retry_at` is the Unix time of
    the next try, None for a stream that is not registered. `failures` counts how often it failed in this run.
    """

    name: str
    time: str
    columns: Columns
    rows: int
    rows_per_second: float
    lag_seconds: float | None
    watermark: str | int | None
    late: int
    error: str | None = None
    untimed: int = 0
    malformed: int = 0
    failures: int = 0
    retry_at: float | None = None


@dataclass(frozen=True)
class ChangeRecord(Record):
    """One record of the changelog: in force from `batch` on, made at the Unix time `at`; `serial` counts from 1."""

    serial: int
    action: Action
    name: str
    sql: str | None
    batch: int
    at: float
    reason: str | None = None


@dataclass(frozen=True)
class BatchEvent(Record):
    """What a batch did.

    `decisions` are the optimizer's and `scaling` the executor's that came with it, as texts; `latency_ms` is
    that of the slowest query whose sink has taken rows of this batch, None if none has.
    """

    batch: int
    at: float
    seconds: float
    rows_in: Mapping[str, int]
    rows_out: Mapping[str, int]
    state_bytes: int
    partitions: int
    changes: tuple[ChangeRecord, ...] = ()
    decisions: tuple[str, ...] = ()
    scaling: tuple[str, ...] = ()
    latency_ms: float | None = None


@dataclass(frozen=True)
class Preview(Record):
    """What creating a query would do; costs are the optimizer's estimates for a batch, `text` its part of the plan."""

    columns: Columns
    streams: tuple[str, ...]
    shares_with: tuple[str, ...]
    new_joins: int
    shared_joins: int
    cost_shared: float
    cost_apart: float
    text: str
    warning: str | None = None
    """A join without key or band, and how many pairs it is expected to compare."""


@dataclass(frozen=True)
class EngineMetrics(Record):
    """Sums since the checkpoint was made, and figures of the last batch.

    `batches` (those with tuples), `rows_in`, `rows_out` and `late` continue after a restart; `seconds` and
    `driver_rows` are of this run.
    `seconds` is the time by component: "changes", "arrivals", "storing", "joining", "sinks", "finishing".
    `deploy_ms` is the time from the last create's call until it was in force. `partitions` is 0 where the driver joins.
    `driver_rows` counts the rows of input and output that the engine's own process has had in its hands.
    `latency` is that of the slowest query of the last batch with rows, by stage, as in `QueryInfo`.
    """

    running: bool
    started_at: float | None
    batches: int
    rows_in: int
    rows_out: int
    late: int
    queries: int
    streams: int
    state_bytes: Mapping[str, int]
    partitions: int
    batch_seconds: float
    rows_per_second: float
    deploy_ms: float | None
    pending_changes: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    driver_rows: int = 0
    latency: Mapping[str, float] = field(default_factory=dict)
