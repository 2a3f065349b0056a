"""The routes of queries: create, check, list, show, drop, pause, and their rows as a page and as events.

Routes that answer from memory are plain functions and run on threads of the pool; those that wait for the engine have
threads of their own (`waiting`). The event loop never waits.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from streamjoin.adhoc.engine.info import Preview, QueryInfo
from streamjoin.model import json_values
from streamjoin.service.event_stream import EventStream, row_events
from streamjoin.service.routes import exports, models
from streamjoin.service.routes.answers import respond
from streamjoin.service.routes.documented import ERRORS, problems
from streamjoin.service.routes.paging import Cursor, Limit, page
from streamjoin.service.state import find_query, service_of
from streamjoin.service.web.problems import Problem

router = APIRouter(prefix="/api/v1/queries", tags=["queries"], responses=ERRORS)
Name = Annotated[str, Path(pattern=models.NAME, description="The query's name.", examples=["near"])]
_NO_CONTENT = 204


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
        return respond(await service.previews.run(service.preview, body.sql))
    created = await service.changes.run(service.create, body.sql, body.name, body.sink, body.allow_scan)
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
    response_model=models.Rows,
    summary="The newest rows of a query",
    responses={200: {"content": exports.DESCRIBED}, **problems(404)},
)
def newest_rows(
    request: Request,
    name: Name,
    limit: Annotated[
        int, Query(ge=1, le=100_000, description="Maximum number of rows; at most `rows_kept` are stored.")
    ] = 100,
    format: exports.Format = None,  # noqa: A002
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """The newest rows, oldest of them first: in JSON, or as a file in CSV or Parquet."""
    service = service_of(request)
    service.query(name)
    newest = service.engine.newest(name, limit)
    wanted = format or exports.format_of(accept)
    if wanted != "json":
        return exports.export(newest.table, name, wanted)
    body = {"columns": json_values.columns(newest.table), "rows": json_values.rows(newest.table), "total": newest.total}
    return Response(json_values.text(body), 200, media_type="application/json")


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
    return EventStream(service, partial(row_events, service, engine, name, seen, limit))
