"""The routes of queries: create, check, list, show, drop, pause, and their rows as a page and as events.

Routes that answer from memory are plain functions and run on threads of the pool; those that wait for the engine have
threads of their own (`waiting`). The event loop never waits.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Final, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from fastapi import APIRouter, Header, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from streamjoin.model import json_values
from streamjoin.queries.engine.cursors import LONGEST, RowsPage
from streamjoin.queries.engine.info import Preview, QueryInfo
from streamjoin.service.event_stream import EventStream, every_row_events, next_page, row_events
from streamjoin.service.routes import models
from streamjoin.service.routes.answers import ERRORS, problems, respond
from streamjoin.service.routes.paging import Cursor, Limit, page
from streamjoin.service.state import find_query, service_of
from streamjoin.service.web.guard import CLIENT
from streamjoin.service.web.problems import Problem

router = APIRouter(prefix="/api/v1/queries", tags=["queries"], responses=ERRORS)
Name = Annotated[str, Path(pattern=models.NAME, description="The query's name.", examples=["near"])]
_NO_CONTENT = 204
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_LONGEST_WAIT: Final = 60.0


MEDIA_TYPES: Final = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
    "jsonl": "application/jsonl",
}
_SUFFIXES: Final = {"arrow": "arrows"}
_ALIASES: Final = {"application/x-ndjson": "jsonl"}
Format = Annotated[
    Literal["json", "csv", "parquet", "arrow", "jsonl"] | None,
    Query(description="Instead of Accept: `json`, `csv`, `parquet`, `arrow` (a stream of Arrow IPC) or `jsonl`."),
]
_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
DESCRIBED: Final = {
    "text/csv": {"schema": {"type": "string"}},
    MEDIA_TYPES["parquet"]: _BINARY,
    MEDIA_TYPES["arrow"]: _BINARY,
    MEDIA_TYPES["jsonl"]: {"schema": {"type": "string"}},
}
_PAGE_HEADERS: Final = ("next", "total", "remaining", "missed", "repeated", "state")
"""What the headers `Streamjoin-Next` and so on say of a page that is a file."""


def format_of(accept: str) -> str:
    """The format that an Accept header asks for first.

    >>> format_of("text/csv"), format_of("application/vnd.apache.parquet"), format_of("*/*")
    ('csv', 'parquet', 'json')
    """
    first = accept.partition(",")[0].partition(";")[0].strip().lower()
    named = {media.partition(";")[0]: name for name, media in MEDIA_TYPES.items()} | _ALIASES
    return named.get(first, "json")


def export(table: pa.Table, name: str, wanted: str, headers: Mapping[str, str] = _NO_HEADERS) -> Response:
    """A table as a file of the name."""
    stream = io.BytesIO()
    if wanted == "parquet":
        pyarrow.parquet.write_table(table, stream)
    elif wanted == "arrow":
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
    elif wanted == "jsonl":
        stream.writelines(f"{row}\n".encode() for row in json_values.row_texts(table))
    else:
        pyarrow.csv.write_csv(json_values.flat(table), stream)
    file = {"Content-Disposition": f'attachment; filename="{name}.{_SUFFIXES.get(wanted, wanted)}"'}
    return Response(stream.getvalue(), 200, {**file, **headers}, MEDIA_TYPES[wanted])


def _changed(record: QueryInfo | None) -> Response:
    if record is None:
        raise Problem(404, "no-such-query", "the query was dropped in the meantime")
    return respond(record)


@router.get("", response_model=models.Queries, summary="List the queries")
async def list_queries(request: Request, limit: Limit = None, cursor: Cursor = None) -> Response:
    """The queries with their state and figures, in the order in which they were created."""
    service = service_of(request)
    engine = service.engine

    def make() -> Response:
        queries, following = page(engine.queries(), lambda query: (query.created_at, query.name), limit, cursor)
        return respond({"queries": queries, "next": following})

    return await service.together.answer(f"queries {limit} {cursor}", make)


@router.post(
    "",
    status_code=201,
    response_model=QueryInfo,
    summary="Create a query, or check one",
    responses={
        200: {"model": Preview, "description": "With `dry_run`: what would be created; nothing is."},
        **problems(409, 413),
    },
)
async def create_query(
    request: Request,
    body: models.NewQuery,
    dry_run: Annotated[
        bool, Query(description="Only check the query and return what it would share and cost.")
    ] = False,
) -> Response:
    """Create a query; the response comes when it is in force. It joins the tuples of all later batches."""
    service = service_of(request)
    if dry_run:
        return respond(await service.previews.run(service.preview, body.sql, body.parameters))
    client = request.scope.get(CLIENT)
    created = await service.changes.run(
        service.create, body.sql, body.name, body.sink, body.allow_scan, client, body.parameters
    )
    return respond(created, 201, {"Location": f"/api/v1/queries/{created.name}"})


@router.get("/{name}", response_model=QueryInfo, summary="Show a query", responses=problems(404))
def show_query(request: Request, name: Name) -> Response:
    """One query."""
    return respond(service_of(request).query(name))


@router.delete(
    "/{name}", status_code=_NO_CONTENT, response_class=Response, summary="Drop a query", responses=problems(404, 409)
)
async def drop_query(request: Request, name: Name) -> Response:
    """Drop a query; the response comes when it is dropped."""
    service = service_of(request)
    await service.changes.run(service.change, name, lambda engine, chosen: engine.drop(chosen))
    return Response(status_code=_NO_CONTENT)


@router.post("/{name}/pause", response_model=QueryInfo, summary="Pause a query", responses=problems(404, 409))
async def pause_query(request: Request, name: Name) -> Response:
    """Pause a query. It produces no rows; tuples that arrive meanwhile can still be joined."""
    service = service_of(request)
    return _changed(await service.changes.run(service.change, name, lambda engine, chosen: engine.pause(chosen)))


@router.post("/{name}/resume", response_model=QueryInfo, summary="Resume a query", responses=problems(404, 409))
async def resume_query(request: Request, name: Name) -> Response:
    """Resume a paused query."""
    service = service_of(request)
    return _changed(await service.changes.run(service.change, name, lambda engine, chosen: engine.resume(chosen)))


@router.get(
    "/{name}/rows",
    response_model=models.PageOfRows,
    summary="The rows of a query, page by page, or the newest ones",
    responses={200: {"content": DESCRIBED}, **problems(404, 410)},
)
async def newest_rows(
    request: Request,
    name: Name,
    limit: Annotated[
        int,
        Query(ge=1, le=100_000, description="Maximum number of rows; a page has fewer where they are large."),
    ] = 100,
    after: Annotated[
        str | None,
        Query(
            max_length=LONGEST,
            description="The rows after this cursor, `next` of the response before, or after this row number: 0 for "
            "all that are kept. The newest rows if not given.",
        ),
    ] = None,
    wait: Annotated[
        float, Query(ge=0, le=_LONGEST_WAIT, description="With `after`: seconds to wait if there are no rows yet.")
    ] = 0,
    format: Format = None,  # noqa: A002
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Rows in order: in JSON, or as a file in CSV, Parquet, Arrow or JSON lines with the rest in headers."""
    service = service_of(request)
    engine = service.engine
    if after is None:
        await run_in_threadpool(service.query, name)
        wait = 0
    page = await next_page(service, partial(engine.page, name, after, limit), wait, request.receive)
    return await run_in_threadpool(_page_response, page, name, format or format_of(accept))


def _page_response(page: RowsPage, name: str, wanted: str) -> Response:
    told = {key: getattr(page, key) for key in _PAGE_HEADERS}
    if wanted != "json":
        headers = {f"Streamjoin-{key.capitalize()}": str(value) for key, value in told.items()}
        return export(page.table, name, wanted, headers)
    body = {"columns": json_values.columns(page.table), "rows": json_values.rows(page.table), **told}
    return Response(json_values.text(body), 200, media_type="application/json")


@router.get(
    "/{name}/groups",
    response_model=models.Rows,
    summary="The open groups of a query, with their values so far",
    responses=problems(404),
)
def open_groups(
    request: Request,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=100_000, description="Maximum number of rows.")] = 100,
) -> Response:
    """The rows that would come out if no row of their windows followed, the oldest window first."""
    service = service_of(request)
    total = service.query(name).groups
    table = service.engine.open_groups(name, limit)
    body = {"columns": json_values.columns(table), "rows": json_values.rows(table)}
    return respond({**body, "total": 0 if total is None else total.groups})


@router.get(
    "/{name}/events",
    status_code=200,
    response_class=EventStream,
    summary="The rows of a query as events",
    response_description="An unbounded stream of events.",
    responses=problems(404),
)
async def follow_rows(
    request: Request,
    name: Name,
    after: Annotated[
        int | None, Query(ge=0, lt=1 << 62, description="Continue after this row number (`total`).")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100_000, description="Maximum number of rows per event.")] = 1000,
    every: Annotated[
        bool,
        Query(description="All rows that are kept, in order, also to a slow reader, which else gets the newest ones."),
    ] = False,
    last_event_id: Annotated[
        str | None, Header(description="The id of the last event seen, after a lost connection.")
    ] = None,
) -> Response:
    """Server-sent events: `rows`, `state` when the query's state changes, `end`."""
    service = service_of(request)
    engine = service.engine
    await run_in_threadpool(find_query, engine, name)
    if after is None and last_event_id:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19):
            raise Problem(422, "invalid-request", "Last-Event-ID must be the id of an event, a whole number")
        after = int(last_event_id)
    # Read before the response begins, so that it includes all rows after its first byte.
    newest = await run_in_threadpool(engine.newest, name, 1)
    seen = newest.total if after is None else min(after, newest.total)
    events = every_row_events if every else row_events
    return EventStream(service, partial(events, service, engine, name, seen, limit))
