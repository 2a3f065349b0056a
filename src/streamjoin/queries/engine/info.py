"""What an engine tells about itself: frozen records of plain values, ready for JSON.

Nothing here knows Spark or holds a live object, so a record stays true of the moment it was made at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

from streamjoin._html import Figures
from streamjoin.queries.core.changes import Action

LATENCY_STAGES: Final = ("source", "read", "queue", "join", "store", "sink")
"""What tuples pass on their way from a source to the sink of a query."""
QueryState = Literal["pending", "running", "degraded", "paused", "failed", "dropped"]
"""A query that runs is `degraded` while its sink takes no rows or one of its streams can't be read."""


class _TwoTexts:
    """How the REST interface describes a pair: some readers of its description take no `prefixItems`."""

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}


Columns = tuple[Annotated[tuple[str, str], _TwoTexts()], ...]
"""Names and types."""


class Record:
    """What all records can do."""

    __pydantic_config__: ClassVar = {
        "json_schema_serialization_defaults_required": True,
        "use_attribute_docstrings": True,
    }
    """For the description of the REST interface: all fields are always there, described by the texts below them."""

    def as_json(self) -> dict[str, Any]:
        """The fields as dictionaries, lists, texts and numbers."""
        return _plain(asdict(self))  # type: ignore[call-overload, no-any-return]

    def _repr_html_(self) -> str:
        return Figures(self.as_json())._repr_html_()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class OpenGroups(Record):
    """The groups of a query that are not complete; times are ISO texts, or numbers for integer times."""

    first_window: str | int | None
    """Where the first window begins that it gives; None if that is the one of the first row."""
    first_due: str | int | None
    """The time that all of its streams must have reached for that window to come out."""
    windows: int
    """Windows that are open and have rows."""
    groups: int
    """Groups in them."""
    oldest: str | int | None
    """Where the oldest of them begins."""
    held_back_by: str | None
    """The stream that all wait for: the one that is furthest behind."""
    complete_until: str | int | None
    """Windows that end by then have come out."""


@dataclass(frozen=True)
class QueryInfo(Record):
    """A query: its text, its state, and what came of it."""

    name: str
    """The query's name."""
    sql: str
    """Its text."""
    state: QueryState
    """`degraded`: it runs, but its sink or one of its streams fails, which is tried again; `failed` is a pause with a
    reason. `error` gives the reason of both."""
    created_batch: int
    """The first batch it sees; -1 while it is pending."""
    created_at: float
    """The Unix time of the create."""
    rows: int
    """Rows that its sink took since the create."""
    rows_per_second: float
    """The rate of the last ten seconds."""
    latency_ms: float | None
    """From the arrival of tuples to the delivery of the rows they led to, in the last batch with rows."""
    sink: str
    """Where its rows go."""
    columns: Columns
    """Names and types of its columns."""
    error: str | None = None
    """Why the query failed or is degraded."""
    rows_undelivered: int = 0
    """Rows that wait because the sink is behind or failed, or to share a file with those of later batches."""
    rows_missed: int = 0
    """Rows that found the spool of the sink full."""
    retry_at: float | None = None
    """The Unix time at which a sink that failed is tried again."""
    latency: Mapping[str, float] = field(default_factory=dict)
    """`latency_ms` by stage, empty before the first rows: the wait in the `source` since it was last looked into (0 for
    pushes and on Spark), the `read`, the `queue` for a batch, the `join`, the journal (`store`), the `sink`."""
    owner: str | None = None
    """Who created it: the client of the service."""
    cpu_seconds: float = 0.0
    """The time that threads spent joining for it in this run; its share of steps that several queries use."""
    state_bytes: int = 0
    """Its share of the bytes that the streams hold which it reads: each is divided by the queries that read it."""
    groups: OpenGroups | None = None
    """What is open of a query with GROUP BY; None for others, and while it is paused."""
    overflowed: int = 0
    """Sums of integers and decimals beyond the range of their type since the create; they are NULL."""


@dataclass(frozen=True)
class StreamInfo(Record):
    """A stream: its columns, what came of it, and how far behind it is."""

    name: str
    """The stream's name."""
    time: str
    """The column that says when."""
    columns: Columns
    """Names and types of its columns."""
    rows: int
    """Rows read, late and untimed ones included."""
    rows_per_second: float
    """The rate of the last ten seconds."""
    lag_seconds: float | None
    """How far its newest event is behind now; None for integer times."""
    watermark: str | int | None
    """The time before which tuples are late: ISO text, or a number for integer times."""
    late: int
    """Rows that came too late to be joined."""
    error: str | None = None
    """Why it can't be read now."""
    untimed: int = 0
    """Rows without a usable time."""
    malformed: int = 0
    """Records, and whole files, that could not be decoded, which are no rows."""
    failures: int = 0
    """How often it failed in this run."""
    retry_at: float | None = None
    """The Unix time of the next try; None for a stream that is not registered."""
    backpressure: float = 0.0
    """The share of the last ten seconds in which its tuples waited because the engine was busy with a batch: 0 to 1."""
    caught_up: float | None = None
    """While it catches up with its source, after a pause or a burst: the share that is done, 0 to 1. Else null."""
    catch_up_seconds: float | None = None
    """How long that takes at the rate so far; null if it is not known."""


@dataclass(frozen=True)
class CatchingUp(Record):
    """Streams that catch up with their sources; `str()` says it in words.

    >>> str(CatchingUp(0.414, 170.0, ("trades",))), str(CatchingUp(0.0, None, ("trades",)))
    ('catching up: 41 %, 3 min', 'catching up: 0 %')
    """

    share: float
    """What is done by the stream that is furthest behind, 0 to 1."""
    seconds: float | None
    """How long it takes at the rate so far; null if it is not known."""
    streams: tuple[str, ...]
    """The streams."""

    @classmethod
    def of(cls, streams: Iterable[StreamInfo]) -> CatchingUp | None:
        """What these streams have to catch up with; None if nothing."""
        behind = [(one.caught_up, one.catch_up_seconds, one.name) for one in streams if one.caught_up is not None]
        if not behind:
            return None
        seconds = [known for _, known, _ in behind if known is not None]
        return cls(min(share for share, _, _ in behind), max(seconds, default=None), tuple(name for *_, name in behind))

    def __str__(self) -> str:
        words = f"catching up: {100 * self.share:.0f} %"
        if self.seconds is None:
            return words
        minutes = self.seconds / 60
        return f"{words}, {f'{self.seconds:.0f} s' if minutes < 1 else f'{minutes:.0f} min'}"


@dataclass(frozen=True)
class ChangeRecord(Record):
    """One record of the changelog."""

    serial: int
    """Its number, counted from 1."""
    action: Action
    """What was done."""
    name: str
    """The query, or the stream that was registered."""
    sql: str | None
    """The text of a query that was created."""
    batch: int
    """The first batch in which it is in force."""
    at: float
    """The Unix time at which it was made."""
    reason: str | None = None
    """Why a query failed."""


@dataclass(frozen=True)
class PlanChange(Record):
    """A change of the shared plan that the optimizer made."""

    rule: str
    """The rule: `share_eagerly`, `group_by_cost` or `reorder_joins`."""
    what: str
    """What it did."""
    why: str
    """Its reason."""
    queries: tuple[str, ...]
    """The queries concerned."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What it went by."""


@dataclass(frozen=True)
class BatchEvent(Record):
    """What a batch did."""

    batch: int
    """Its number."""
    at: float
    """The Unix time of its end."""
    seconds: float
    """How long it took."""
    rows_in: Mapping[str, int]
    """Rows by stream."""
    rows_out: Mapping[str, int]
    """Result rows by query, for those that gained some."""
    state_bytes: int
    """The bytes held in memory after it."""
    partitions: int
    """The Spark tasks that joined; 0 where the engine's own process did."""
    changes: tuple[ChangeRecord, ...] = ()
    """The changes that came with it."""
    decisions: tuple[str, ...] = ()
    """The optimizer's decisions, as texts, also those that changed nothing."""
    scaling: tuple[str, ...] = ()
    """The executor's decisions about partitions."""
    latency_ms: float | None = None
    """That of the slowest query whose sink has taken rows of this batch."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds by component: "changes", "arrivals", "storing", "joining", "sinks", "finishing"."""
    plan_changes: tuple[PlanChange, ...] = ()
    """The optimizer's decisions that changed the plan."""
    memory_bytes: int = 0
    """The memory of the engine's process after it."""
    memory_budget: int = 0
    """The memory above which the largest queries are paused."""
    budget_share: float = 0.0
    """What the results of all queries took of the engine's budget, 0 to 1."""


@dataclass(frozen=True)
class RunningBatch(Record):
    """The batch that runs now; `str()` says it in words.

    >>> str(RunningBatch(412, 47.2, "joining", ("quotes", "trades"), ("q17",)))
    'batch 412 has been running for 47 s, joining quotes ⋈ trades for q17'
    """

    batch: int
    """Its number."""
    seconds: float
    """How long it has been running."""
    stage: str
    """The component that runs: as in `BatchEvent.stages`."""
    step: tuple[str, ...] = ()
    """The streams of the join step that runs; empty elsewhere, and where Spark's tasks join."""
    queries: tuple[str, ...] = ()
    """The queries that the step is for."""
    rows_in: Mapping[str, int] = field(default_factory=dict)
    """Its rows by stream."""

    def __str__(self) -> str:
        words = f"batch {self.batch:,} has been running for {self.seconds:,.0f} s, {self.stage}"
        if self.step:
            words += f" {' ⋈ '.join(self.step)}"
        if self.queries:
            others = len(self.queries) - 1
            words += f" for {self.queries[0]}" + (f" and {others} more" if others else "")
        return words


@dataclass(frozen=True)
class Preview(Record):
    """What creating a query would do; costs are the optimizer's estimates of partial results per batch."""

    columns: Columns
    """Names and types of its columns."""
    streams: tuple[str, ...]
    """The streams it reads."""
    shares_with: tuple[str, ...]
    """The queries that it would share steps with."""
    new_joins: int
    """Join steps that only this query needs; a join counts once for each stream whose new tuples drive it."""
    shared_joins: int
    """Join steps that run already."""
    cost_shared: float
    """What it adds to the cost of the shared plan."""
    cost_apart: float
    """What it would cost by itself."""
    text: str
    """Its part of the plan."""
    warning: str | None = None
    """A join without key or band, and how many pairs it is expected to compare."""
    needs_allow_scan: bool = False
    """Whether `create` refuses it without `allow_scan`."""
    rows: tuple[tuple[Any, ...], ...] = ()
    """The newest rows that the newest tuples of its streams give, a few, the newest last; values as in JSON."""
    rows_found: int | None = None
    """How many rows those tuples give in all; null where tasks hold the tuples."""
    tuples: Mapping[str, int] = field(default_factory=dict)
    """How many of the newest tuples of each stream were joined for that."""


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
