"""Descriptions of error responses for OpenAPI."""

from __future__ import annotations

from typing import Any, Final

from streamjoin.service.routes.models import ProblemDetails
from streamjoin.service.web.problems import MEDIA_TYPE

_ABOUT: Final = {
    400: "The body can't be read.",
    401: "The token is missing or wrong.",
    403: "Not allowed for pages of another origin.",
    404: "Not found.",
    405: "Method not allowed.",
    409: "Conflict: the name is in use, there are too many queries, or the query's state does not allow it.",
    413: "The body is too large.",
    415: "The body is no JSON.",
    421: "The Host header names another machine.",
    422: "The request or the query is wrong; `places` gives the positions in the text.",
    503: "The engine is starting, stopping or has failed, or too many event streams are open.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses for the OpenAPI description."""
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {"model": ProblemDetails, "description": _ABOUT[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


ERRORS: Final = problems(400, 401, 403, 415, 421, 422, 503)
