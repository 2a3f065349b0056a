"""The models of requests and responses, for the OpenAPI description and for validating requests.

The engine's records (`queries/engine/info.py`) are responses too; the models here contain them. The fuzz test checks
responses against these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from streamjoin.queries.engine.info import (
    BatchEvent,
    CatchingUp,
    ChangeRecord,
    QueryInfo,
    QueryState,
    RunningBatch,
    StreamInfo,
)
from streamjoin.service.config import Limits
from streamjoin.service.plan_graph import Node

NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
EXAMPLE_SQL = (
    "SELECT t.sym, t.px, q.bid FROM trades t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym AND abs(t.px - q.bid) <= 1"
)
Column = Annotated[list[str], Field(min_length=2, max_length=2)]
"""A name and a type."""


Parameter = Annotated[str, Field(max_length=20_000)] | bool | int | float | None


class NewQuery(BaseModel):
    """A query to create or, with `dry_run`, to check."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"sql": EXAMPLE_SQL, "name": "near"}]})

    sql: Annotated[str, Field(max_length=20_000, description="The join, in the ad-hoc dialect.")]
    name: Annotated[str | None, Field(pattern=NAME, description="A name; generated if not given.")] = None
    sink: Annotated[
        str | None,
        Field(
            pattern=NAME, description="One of the sinks in the service's file; the newest rows are kept in any case."
        ),
    ] = None
    allow_scan: Annotated[
        bool, Field(description="Create it also if a join without key or band is expected to compare very many pairs.")
    ] = False
    parameters: Annotated[
        dict[str, Parameter | list[Parameter]] | None,
        Field(max_length=100, description="A value for each `:name` of the text; a list of them for `IN :names`."),
    ] = None


class Described(BaseModel):
    """A model whose fields are described by the texts below them."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Place(Described):
    """A place in the query's text, counted from 1; the end is exclusive."""

    line: int
    """The line in which it begins."""
    column: int
    """The column in which it begins."""
    end_line: int
    """The line in which it ends."""
    end_column: int
    """The column after its last character."""
    message: str
    """What is wrong there."""


class FieldError(Described):
    """A part of the request that is wrong."""

    at: str
    """The part, such as `body.sql`."""
    message: str
    """What is wrong with it."""


class ProblemDetails(Described):
    """What went wrong (RFC 9457)."""

    type: str
    """The kind of the problem for programs: `urn:streamjoin:problem:KIND`."""
    title: str
    """The phrase of the status."""
    status: int
    """The status of the response."""
    detail: str
    """What went wrong, and what to do."""
    instance: str | None = None
    """The path of the request."""
    places: list[Place] = []
    """For an invalid query: where in its text."""
    errors: list[FieldError] = []
    """For an invalid request: its parts that are wrong."""


class Health(Described):
    """The response of the liveness probe."""

    status: Literal["ok"]
    """The process answers."""


class Readiness(Described):
    """Whether queries are served."""

    status: Literal["ready", "starting", "stuck", "failed", "stopping"]
    """`stuck` is a batch that has been running for longer than `batch_time`."""
    reason: str | None = None
    """Why it is not ready."""
    catching_up: str | None = None
    """How far the streams are with what they have missed, in words; null if they have missed nothing."""


class EngineActivity(Described):
    """What the engine does now."""

    running: RunningBatch | None
    """The batch that runs; null between two batches."""
    words: str | None
    """The same in words."""
    stuck: bool
    """Whether it has been running for longer than `batch_time`."""
    catching_up: CatchingUp | None
    """The streams that catch up with their sources after a pause or a burst; null if none does."""


class Page(Described):
    """A part of a list."""

    next: str | None
    """The cursor of the items after these; null if there are none."""


class Streams(Page):
    """Streams in the order in which they were registered."""

    streams: list[StreamInfo]
    """The streams."""


class Queries(Page):
    """Queries in the order in which they were created."""

    queries: list[QueryInfo]
    """The queries."""


class Rows(Described):
    """The newest rows of a query; the last one is row number `total`."""

    columns: list[Column]
    """Names and types of the columns."""
    rows: list[list[Any]]
    """The rows, oldest first."""
    total: int
    """The number of rows so far."""


class RowsAside(Rows):
    """The newest rows that were set aside; `total` counts all since the start."""


class PageOfRows(Rows):
    """Rows of a query after a cursor, or the newest ones, after which `next` continues."""

    next: str
    """The cursor of the rows that follow: the next request's `after`."""
    remaining: int
    """How many rows there are after these by now."""
    missed: int
    """How many rows after the cursor, before these, are no longer kept."""
    repeated: int
    """How many of these rows, from the first, may have been sent before a crash of the service."""
    state: QueryState
    """The state of the query; a `dropped` one gets no rows after `total`."""


class Changes(Page):
    """Changes in order."""

    changes: list[ChangeRecord]
    """The changes."""


class History(Page):
    """The newest batches, oldest first."""

    samples: list[BatchEvent]
    """The batches."""


class Edge(Described):
    """Tuples per batch that go from one node to another."""

    model_config = ConfigDict(populate_by_name=True)

    source: Annotated[str, Field(alias="from", description="The node they come from.")]
    to: str
    """The node they go to."""
    rate: float
    """Tuples per batch."""
    rows_per_second: float
    """Tuples per second, in the last ten seconds."""


class PlanModel(Described):
    """The shared plan as a graph."""

    nodes: list[Node]
    """Sources, selections, joins, what only some queries add to them (window joins, groups), sinks."""
    edges: list[Edge]
    """The flow between them."""
    decisions: list[str]
    """The optimizer's last decisions."""
    sharing: str
    """How queries share: `cost`, `everything` or `nothing`."""
    cost_shared: float
    """Expected partial results per batch."""
    cost_apart: float
    """The same if each query computed its own."""
    at: float
    """The Unix time at which the plan was read; while a long batch runs, the last known plan is sent."""


class Info(Described):
    """The service itself."""

    version: str
    """The version of streamjoin."""
    started_at: float
    """The Unix time of the start."""
    checkpoint_present: bool
    """Whether the checkpoint exists."""
    limits: Limits
    """The limits."""
    sinks: list[str]
    """Sinks that a query can name."""
    trigger: str | None
    """The interval between batches."""
