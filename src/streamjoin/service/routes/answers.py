"""JSON responses from records, and the descriptions of error responses for OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from streamjoin.model import json_values
from streamjoin.service.routes.models import ProblemDetails
from streamjoin.service.web.problems import MEDIA_TYPE


def respond(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response; records may be anywhere in `value`."""
    return Response(json_values.text(json_values.plain(value)), status, dict(headers or {}), "application/json")


_ABOUT: Final = {
    400: "The body can't be read.",
    401: "The token is missing or wrong.",
    403: "Not allowed for pages of another origin.",
    404: "Not found.",
    405: "Method not allowed.",
    409: "Conflict: the name is in use, there are too many queries, or the query's state does not allow it.",
    410: "The cursor is one of a query that was dropped, or of another checkpoint.",
    413: "The body is too large.",
    415: "The body is no JSON.",
    421: "The Host header names another machine.",
    422: "The request or the query is wrong; `places` gives the positions in the text.",
    503: "The engine is starting, stopping or has failed, or too many readers wait.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses for the OpenAPI description."""
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {"model": ProblemDetails, "description": _ABOUT[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


ERRORS: Final = problems(400, 401, 403, 415, 421, 422, 503)
