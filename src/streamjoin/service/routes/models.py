"""The models of requests and responses, for the OpenAPI description and for validating requests.

The engine's records (`adhoc/engine/info.py`) are responses too; the models here contain them. The fuzz test checks
responses against these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from streamjoin.adhoc.engine.info import BatchEvent, ChangeRecord, QueryInfo, StreamInfo

NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
EXAMPLE_SQL = (
    "SELECT t.sym, t.px, q.bid FROM trades t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym AND abs(t.px - q.bid) <= 1"
)
Column = Annotated[list[str], Field(min_length=2, max_length=2)]
"""A name and a type."""


class NewQuery(BaseModel):
    """A query to create or, with `dry_run`, to check."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"sql": EXAMPLE_SQL, "name": "near"}]})

    sql: Annotated[str, Field(min_length=1, max_length=20_000, description="The join, in the ad-hoc dialect.")]
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


class Place(BaseModel):
    """A place in the query's text, counted from 1; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int
    message: str


class FieldError(BaseModel):
    """A part of the request that is wrong."""

    at: str
    message: str


class ProblemDetails(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    places: list[Place] = []
    errors: list[FieldError] = []


class Health(BaseModel):
    """The response of the liveness probe."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether queries are served."""

    status: Literal["ready", "starting", "failed", "stopping"]
    reason: str | None = None


class Streams(BaseModel):
    """All streams."""

    streams: list[StreamInfo]


class Queries(BaseModel):
    """All queries."""

    queries: list[QueryInfo]


class Rows(BaseModel):
    """The newest rows of a query; the last one is row number `total`."""

    columns: list[Column]
    rows: list[list[Any]]
    total: int


class RowsAside(Rows):
    """The newest rows that were set aside; `total` counts all since the start."""


class Changes(BaseModel):
    """Changes in order."""

    changes: list[ChangeRecord]


class History(BaseModel):
    """The newest batches, oldest first."""

    samples: list[BatchEvent]


class Node(BaseModel):
    """A node of the plan; rates and costs are per batch."""

    id: str
    kind: Literal["source", "selection", "join", "sink"]
    label: str
    queries: list[str]
    group: int | None
    rate: float
    cardinality: float
    selectivity: float
    cost_shared: float
    cost_apart: float
    reason: str


class Edge(BaseModel):
    """Tuples per batch that go from one node to another."""

    model_config = ConfigDict(populate_by_name=True)

    source: Annotated[str, Field(alias="from")]
    to: str
    rate: float


class PlanModel(BaseModel):
    """The shared plan as a graph."""

    nodes: list[Node]
    edges: list[Edge]
    decisions: list[str]
    sharing: str
    cost_shared: float
    cost_apart: float


class LimitsModel(BaseModel):
    """The limits of the service."""

    queries: int
    streams_in_query: int
    window_seconds: float
    window_rows: int
    request_bytes: int
    request_seconds: float
    connections: int
    readers: int
    rows_kept: int


class Info(BaseModel):
    """The service itself."""

    version: str
    started_at: float
    checkpoint_present: bool
    limits: LimitsModel
    sinks: list[str]
    trigger: str | None
