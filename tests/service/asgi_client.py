"""The shortest way to ask an application: no socket, no client library, for tests that ask thousands of times."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import ASGIApp

HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]


async def ask(app: ASGIApp, method: str, path: str, body: object = None, query: str = "") -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    raw = b"" if body is None else json.dumps(body).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [*HEADERS, (b"content-length", str(len(raw)).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    sent: list[Any] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(content) if content else None
