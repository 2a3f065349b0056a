"""JSON responses from records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from streamjoin.model import json_values


def respond(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response; records may be anywhere in `value`."""
    return Response(json_values.text(json_values.plain(value)), status, dict(headers or {}), "application/json")
