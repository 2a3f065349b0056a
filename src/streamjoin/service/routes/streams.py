"""The routes of streams: the list, one stream, and its late and malformed rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import pyarrow as pa
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from streamjoin.model import json_values
from streamjoin.queries.engine.engine import Engine
from streamjoin.queries.engine.info import StreamInfo
from streamjoin.service.routes import models
from streamjoin.service.routes.answers import ERRORS, problems, respond
from streamjoin.service.routes.paging import Cursor, page
from streamjoin.service.routes.paging import Limit as PageLimit
from streamjoin.service.state import service_of
from streamjoin.service.web.problems import Problem

router = APIRouter(prefix="/api/v1/streams", tags=["streams"], responses=ERRORS)
Name = Annotated[str, Path(max_length=200, description="The stream's name.", examples=["trades"])]
Limit = Annotated[int, Query(ge=1, le=10_000, description="Maximum number of rows.")]


def _stream_info(engine: Engine, name: str) -> StreamInfo:
    info = next((stream for stream in engine.streams() if stream.name == name), None)
    if info is None:
        raise Problem(404, "no-such-stream", f"there is no stream {name!r}")
    return info


@router.get("", response_model=models.Streams, summary="List the streams")
async def list_streams(request: Request, limit: PageLimit = None, cursor: Cursor = None) -> Response:
    """The streams with columns, rates, lag, watermark, and how many rows were set aside."""
    service = service_of(request)
    engine = service.engine

    def make() -> Response:
        # Streams stay, so that the place of one is its key.
        numbered = list(enumerate(engine.streams()))
        streams, following = page(numbered, lambda item: (item[0],), limit, cursor)
        return respond({"streams": [stream for _, stream in streams], "next": following})

    return await service.together.answer(f"streams {limit} {cursor}", make)


@router.get("/{name}", response_model=StreamInfo, summary="Show a stream", responses=problems(404))
def show_stream(request: Request, name: Name) -> Response:
    """One stream."""
    return respond(_stream_info(service_of(request).engine, name))


@router.get("/{name}/late", response_model=models.RowsAside, summary="Late rows", responses=problems(404))
def late_rows(request: Request, name: Name, limit: Limit = 100) -> Response:
    """The newest rows that were late or had no usable time, oldest first."""
    engine = service_of(request).engine
    info = _stream_info(engine, name)
    return _aside(engine.late, name, limit, info.late + info.untimed)


@router.get(
    "/{name}/malformed",
    response_model=models.RowsAside,
    summary="Records that could not be decoded",
    responses=problems(404),
)
def malformed_records(request: Request, name: Name, limit: Limit = 100) -> Response:
    """The newest records that do not match the schema, with their origin, oldest first."""
    engine = service_of(request).engine
    return _aside(engine.malformed, name, limit, _stream_info(engine, name).malformed)


def _aside(read: Callable[[str, int], pa.Table], name: str, limit: int, total: int) -> Response:
    table = _readable(read(name, limit))
    body = {"columns": json_values.columns(table), "rows": json_values.rows(table), "total": total}
    return Response(json_values.text(body), 200, media_type="application/json")


def _readable(table: pa.Table) -> pa.Table:
    """Binary columns as strings where they are valid text, so that a broker's value is shown as it was sent."""
    for index, field in enumerate(table.schema):
        if pa.types.is_binary(field.type):
            try:
                text = table.column(index).cast(pa.string())
            except pa.ArrowInvalid:
                continue
            table = table.set_column(index, field.name, text)
    return table
