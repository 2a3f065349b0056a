"""The routes of everything but queries and streams: plan, changelog, history, health, metrics."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import PlainTextResponse, Response

from streamjoin._version import __version__
from streamjoin.queries.engine.engine import Engine
from streamjoin.service import metrics
from streamjoin.service.event_stream import EventStream, engine_events
from streamjoin.service.plan_graph import PlanGraph
from streamjoin.service.routes import models
from streamjoin.service.routes.answers import ERRORS, problems, respond
from streamjoin.service.routes.paging import Cursor, Limit, page
from streamjoin.service.state import Service, service_of
from streamjoin.service.web.problems import Problem

router = APIRouter()
_DOT = "text/vnd.graphviz"


@router.get(
    "/api/v1/health",
    response_model=models.Health,
    tags=["service"],
    summary="Liveness probe",
    responses=problems(421),
)
async def health() -> Response:
    """For a liveness probe; needs no token."""
    return respond({"status": "ok"})


@router.get(
    "/api/v1/ready",
    response_model=models.Readiness,
    tags=["service"],
    summary="Readiness probe",
    responses={
        503: {"model": models.Readiness, "description": "Not ready: starting, stopping, failed, or stuck in a batch."},
        **problems(421),
    },
)
async def ready(request: Request) -> Response:
    """For a readiness probe; needs no token. A service that catches up with its sources is ready, and says so."""
    service = service_of(request)
    phase, reason = service.ready
    behind = service.catching_up
    words = None if behind is None else str(behind)
    if phase == "running":
        return respond({"status": "ready", "reason": None, "catching_up": words})
    return respond({"status": phase, "reason": reason, "catching_up": words}, 503)


@router.get(
    "/api/v1/activity",
    response_model=models.EngineActivity,
    tags=["plan"],
    summary="The running batch",
    responses=ERRORS,
)
async def show_activity(request: Request) -> Response:
    """The batch that runs now, where in the plan it is, and for which queries. It never waits for the batch."""
    service = service_of(request)
    running = service.engine.activity()
    return respond(
        {
            "running": running,
            "words": None if running is None else str(running),
            "stuck": service.ready[0] == "stuck",
            "catching_up": service.catching_up,
        }
    )


@router.get(
    "/api/v1/info", response_model=models.Info, tags=["service"], summary="Version, limits, sinks", responses=ERRORS
)
def show_info(request: Request) -> Response:
    """The service itself; the token is not part of it."""
    service = service_of(request)
    config = service.config
    place = config.checkpoint.removeprefix("file://").removeprefix("file:")
    return respond(
        {
            "version": __version__,
            "started_at": service.started_at,
            "checkpoint_present": "://" in place or FilePath(place).exists(),
            "limits": config.limits,
            "sinks": list(config.sinks),
            "trigger": config.trigger,
        }
    )


@router.get(
    "/api/v1/plan",
    response_model=models.PlanModel,
    tags=["plan"],
    summary="The shared plan with measurements",
    responses={
        200: {"content": {_DOT: {"schema": {"type": "string"}}, "text/plain": {"schema": {"type": "string"}}}},
        **ERRORS,
    },
)
async def show_plan(
    request: Request,
    format: Annotated[Literal["json", "dot", "text"] | None, Query(description="Instead of Accept.")] = None,  # noqa: A002
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """The shared plan as a graph in JSON or DOT, or as text.

    It is read between two batches. While a long batch runs, the response is the last known plan, read at `at`.
    """
    service = service_of(request)
    wanted = format or ("dot" if _DOT in accept else "text" if accept.startswith("text/plain") else "json")
    make = partial(_plan, service, service.engine, wanted)
    return await service.plans.answer(wanted, make)


def _plan(service: Service, engine: Engine, wanted: str) -> Response:
    explanation = engine.explain()
    at = time.time()
    if wanted == "dot":
        return Response(explanation.dot, media_type=_DOT)
    if wanted == "text":
        return PlainTextResponse(str(explanation))
    last = service.hub.last
    graph = PlanGraph(explanation, engine.streams(), engine.queries(), last.rows_out if last is not None else {})
    return respond({**graph.as_data(), "at": at})


@router.get(
    "/api/v1/changelog",
    response_model=models.Changes,
    tags=["plan"],
    summary="Creates, drops and pauses, in order",
    responses=ERRORS,
)
def changelog(
    request: Request,
    since: Annotated[int, Query(ge=0, lt=1 << 62, description="Only those after this serial number.")] = 0,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """The changelog with the batch from which each change is in force."""
    records = service_of(request).engine.changelog(since)
    changes, following = page(records, lambda record: (record.serial,), limit, cursor)
    return respond({"changes": changes, "next": following})


@router.get(
    "/api/v1/history", response_model=models.History, tags=["plan"], summary="The newest batches", responses=ERRORS
)
async def history(request: Request, limit: Limit = None, cursor: Cursor = None) -> Response:
    """Up to 600 batches, oldest first."""
    service = service_of(request)
    service.engine  # noqa: B018 - refuses while there is none

    def make() -> Response:
        samples, following = page(service.hub.history(), lambda event: (event.batch,), limit, cursor)
        return respond({"samples": samples, "next": following})

    return await service.together.answer(f"history {limit} {cursor}", make, expensive=True)


@router.get(
    "/api/v1/events",
    status_code=200,
    response_class=EventStream,
    tags=["plan"],
    summary="Batches and changes as events",
    response_description="An unbounded stream of events.",
    responses=ERRORS,
)
async def follow_events(request: Request) -> Response:
    """Server-sent events: `batch`, `change`, `state` of queries that are degraded or no longer are, `skipped`, `end`.

    `skipped` says how many events a reader that was too slow has missed.
    """
    service = service_of(request)
    return EventStream(service, partial(engine_events, service, service.engine))


@router.get(
    "/metrics",
    tags=["service"],
    summary="Figures for Prometheus",
    response_class=PlainTextResponse,
    responses=problems(401, 421),
)
def prometheus(request: Request) -> Response:
    """The metrics in Prometheus's text format; without an engine, only those of requests."""
    service = service_of(request)
    text = metrics.Text()
    metrics.of_requests(text, service.requests, service.readers, service.connections)
    waiting = {"questions": service.questions, "previews": service.previews, "changes": service.changes}
    metrics.of_waiting(text, waiting)
    text.one("ready", "Whether queries are served.", float(service.ready[0] == "running"))
    try:
        engine = service.engine
    except Problem:
        return PlainTextResponse(str(text), media_type=metrics.MEDIA_TYPE)
    metrics.of_engine(text, engine.streams(), engine.queries(), service.hub.last, service.hub.published)
    batch = engine.activity()
    seconds = 0.0 if batch is None else batch.seconds
    text.one("batch_running_seconds", "How long the current batch has been running; 0 if none is.", seconds)
    return PlainTextResponse(str(text), media_type=metrics.MEDIA_TYPE)
