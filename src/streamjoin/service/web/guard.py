"""Checks before every request (host, origin, token, size), security headers, and a count of responses.

The invariants: no request that fails a check reaches a route; the token is compared in constant time and is in no
message; checks never read the body, so a large one costs nothing. CORS is off: no header ever allows a foreign
page to read, and unsafe requests that a foreign page could send are rejected.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamjoin.service.clients import ApiClient, Clients
from streamjoin.service.config import ServiceConfig, is_loopback
from streamjoin.service.metrics import Requests
from streamjoin.service.web.problems import Problem, unexpected

OPEN: Final = frozenset({"/", "/api/v1/health", "/api/v1/ready"})
"""Paths that need no token: the page has no data, and probes send no header."""
_OPEN_PREFIX: Final = "/static/"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
JSON: Final = "application/json"
HEAD_ONLY: Final = "streamjoin.head"
"""A key of the scope of a request whose response is only headers."""
CLIENT: Final = "streamjoin.client"
"""A key of the scope: the `ApiClient` that sent the request, or None where no token is needed."""
_LONGEST_LENGTH: Final = 15
_SINGLE: Final = frozenset({b"host", b"authorization", b"content-length", b"origin", b"sec-fetch-site"})
"""Headers that are checked here. If one is repeated, a proxy or a route may read another value than was checked."""
_POLICY: Final = (
    b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'"
)
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", _POLICY),
)


class Guard:
    """ASGI middleware that checks every request and adds security headers."""

    def __init__(self, app: ASGIApp, config: ServiceConfig, requests: Requests, clients: Clients) -> None:
        self._app = app
        self._clients = clients
        self._limit = config.limits.request_bytes
        self._requests = requests
        self._hosts = _hosts(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, forward it, and count the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = 500
        method = scope["method"]
        if method == "HEAD":
            # Routes answer GET; the body is left out.
            scope = {**scope, "method": "GET", HEAD_ONLY: True}

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(message, scope["path"])
            elif method == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        try:
            headers: dict[bytes, bytes] = dict(scope["headers"])
            client = self._client(headers)
            scope[CLIENT] = client
            refused = _doubled(scope["headers"]) or self._refusal(method, scope["path"], headers, client)
            if refused is not None:
                await refused.response(scope["path"])(scope, receive, noted)
            else:
                await self._within_size(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._requests.count(method, route, status, time.perf_counter() - begin)

    def _client(self, headers: dict[bytes, bytes]) -> ApiClient | None:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        return self._clients.find(token.strip()) if scheme.lower() == b"bearer" else None

    def _refusal(self, method: str, path: str, headers: dict[bytes, bytes], client: ApiClient | None) -> Problem | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts is not None and host_name(host) not in self._hosts:
            return Problem(421, "wrong-host", "the Host header names another machine; add it to allowed_hosts")
        if self._clients.required and client is None and not (path in OPEN or path.startswith(_OPEN_PREFIX)):
            message = "send the service's token: Authorization: Bearer ..."
            return Problem(401, "unauthorized", message, headers={"WWW-Authenticate": "Bearer"})
        if method not in _SAFE and _is_foreign(headers, host):
            return Problem(403, "foreign-origin", "pages of another origin may not change anything here")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > _LONGEST_LENGTH or int(length) > self._limit:
            return self._too_large()
        has_body = length.strip(b"0") != b"" or b"transfer-encoding" in headers
        if method not in _SAFE and has_body and _media_type(headers) != JSON:
            return Problem(415, "unsupported-media-type", f"send JSON: Content-Type: {JSON}", headers={"Accept": JSON})
        return None

    def _too_large(self) -> Problem:
        return Problem(413, "too-large", f"a request's body is at most {self._limit:,} bytes")

    async def _within_size(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, and count the bytes of a body without a length."""
        size = 0
        started = False

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                if size > self._limit:
                    raise _TooLarge
            return message

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, counted, noted)
        except _TooLarge:
            if not started:
                await self._too_large().response(scope["path"])(scope, receive, send)
        except Exception as error:
            problem = unexpected(scope["method"], scope["path"], error)
            if not started:
                await problem.response(scope["path"])(scope, receive, send)


def _media_type(headers: dict[bytes, bytes]) -> str:
    return headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()


class _TooLarge(BaseException):
    """Not an `Exception`, so that handlers of `Exception` don't turn it into an internal error."""


def _doubled(headers: Iterable[tuple[bytes, bytes]]) -> Problem | None:
    names = [name for name, _ in headers if name in _SINGLE]
    if len(names) == len(set(names)):
        return None
    twice = next(name for name in names if names.count(name) > 1).decode("ascii")
    return Problem(400, "doubled-header", f"the header {twice} is given more than once")


def host_name(host: str) -> str:
    """A Host header without its port.

    >>> host_name("localhost:8765"), host_name("[::1]:8765"), host_name("::1")
    ('localhost', '::1', '::1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.lower() if host.count(":") > 1 else host.partition(":")[0].lower()


def _hosts(config: ServiceConfig) -> frozenset[str] | None:
    """The accepted values of the Host header; None for any.

    On loopback anything else is a foreign page whose name was made to lead here (DNS rebinding).
    """
    if is_loopback(config.host):
        hosts = {"localhost", "127.0.0.1", "::1", host_name(config.host)}
        return frozenset(hosts | {host.lower() for host in config.allowed_hosts})
    return frozenset(host.lower() for host in config.allowed_hosts) or None


def _is_foreign(headers: dict[bytes, bytes], host: str) -> bool:
    if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
        return True
    origin = headers.get(b"origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin.decode("latin-1")).netloc.lower() != host.lower()
    except ValueError:
        return True


def _add_headers(message: MutableMapping[str, Any], path: str) -> None:
    added = [*_HEADERS]
    if path.startswith("/api/"):
        added.append((b"cache-control", b"no-store"))
    elif path.startswith(_OPEN_PREFIX):
        # After an upgrade the page and its modules must have the same version.
        added.append((b"cache-control", b"no-cache"))
    message["headers"] = [*message.get("headers", []), *added]
