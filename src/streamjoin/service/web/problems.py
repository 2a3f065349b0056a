"""Errors as problem details (RFC 9457): one format for all errors, with positions in SQL texts.

Invariants: a problem says what is wrong and what to do, and never contains a stack trace, a path of the server or a
secret. An unexpected error is a 500 without details and is logged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from streamjoin.model.errors import (
    BackPressureError,
    CursorGoneError,
    InputError,
    QueryError,
    SetupError,
    SpecError,
    StateError,
    StreamJoinError,
    UnknownQueryError,
)

MEDIA_TYPE: Final = "application/problem+json"
_URN: Final = "urn:streamjoin:problem:"
_EXPECTED: Final = frozenset({"starting", "stopping", "too-many-readers", "internal"})
"""Kinds that clients cause or wait for, and one that is logged with its details."""
_LOG = logging.getLogger("streamjoin.service")


class Problem(Exception):  # noqa: N818 - the name that RFC 9457 gives it
    """An error response. `kind` is its name for programs; `more` are further members."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """A problem with the given status, kind and detail."""
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.more = more

    @property
    def title(self) -> str:
        """The phrase of the status."""
        return HTTPStatus(self.status).phrase

    def body(self, instance: str = "") -> dict[str, Any]:
        """The problem as data."""
        return {
            "type": _URN + self.kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            **({"instance": instance} if instance else {}),
            **self.more,
        }

    def response(self, instance: str = "") -> Response:
        """The problem as a response; a failure of the service is logged."""
        if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR and self.kind not in _EXPECTED:
            _LOG.warning("%s answered %d: %s", instance, self.status, self.detail)
        return Response(json.dumps(self.body(instance)), self.status, self.headers, MEDIA_TYPE)


def query_problem(error: QueryError, sql: str) -> Problem:
    """The problem of an invalid query, with the position in its text."""
    place = place_of(error, sql)
    return Problem(422, "invalid-query", f"{error.message} (line {error.line}, column {error.column})", places=[place])


def place_of(error: QueryError, sql: str) -> dict[str, Any]:
    """The position of an error in the text; lines and columns count from 1, the end is exclusive."""
    lines = sql.split("\n")
    start = sum(len(line) + 1 for line in lines[: error.line - 1]) + error.column - 1
    before = sql[: min(len(sql), start + error.length)]
    end_line = before.count("\n") + 1
    end_column = len(before) - before.rfind("\n")
    if (end_line, end_column) <= (error.line, error.column):
        end_line, end_column = error.line, error.column + 1
    return {
        "line": error.line,
        "column": error.column,
        "end_line": end_line,
        "end_column": end_column,
        "message": error.message,
    }


def problem_of(error: StreamJoinError, sql: str = "") -> Problem:
    """The response for one of streamjoin's errors."""
    if isinstance(error, QueryError):
        return query_problem(error, sql)
    if isinstance(error, CursorGoneError):
        return Problem(410, "cursor-gone", str(error))
    if isinstance(error, UnknownQueryError):
        return Problem(404, "no-such-query", str(error).partition(";")[0])
    if isinstance(error, BackPressureError):
        return Problem(503, "engine-busy", str(error), headers={"Retry-After": "2"})
    if isinstance(error, StateError | SetupError):
        return Problem(409, "wrong-moment", str(error))
    if isinstance(error, SpecError | InputError):
        return Problem(422, "invalid-request", str(error))
    return Problem(503, "engine-failed", str(error))


def install(app: FastAPI) -> None:
    """Turn every error of the app into a problem."""

    @app.exception_handler(Problem)
    async def of_problem(request: Request, error: Problem) -> Response:
        return error.response(request.url.path)

    @app.exception_handler(StreamJoinError)
    async def of_ours(request: Request, error: StreamJoinError) -> Response:
        return problem_of(error).response(request.url.path)

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        kind = "not-found" if error.status_code == 404 else "http"
        headers = dict(error.headers or {})
        detail = str(error.detail)
        if error.status_code == 404:
            detail = f"nothing is served at {request.url.path}; /api/v1/openapi.json lists what is"
        elif error.status_code == 405:
            detail = f"{request.method} is not for {request.url.path}, which takes {headers.get('Allow', 'others')}"
        if "GET" in headers.get("Allow", ""):
            headers["Allow"] += ", HEAD"
        return Problem(error.status_code, kind, detail, headers=headers).response(request.url.path)

    @app.exception_handler(RequestValidationError)
    async def of_validation(request: Request, error: RequestValidationError) -> Response:
        errors = [{"at": ".".join(map(str, item["loc"])), "message": str(item["msg"])} for item in error.errors()]
        detail = "; ".join(f"{item['at']}: {item['message']}" for item in errors[:5])
        return Problem(422, "invalid-request", detail, errors=errors).response(request.url.path)


def unexpected(method: str, path: str, error: Exception) -> Problem:
    """The response to an unexpected error; the log has the details."""
    _LOG.error("%s %s failed", method, path, exc_info=error)
    return Problem(500, "internal", "internal error; see the log of the service")
