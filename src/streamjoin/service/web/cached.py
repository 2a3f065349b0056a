"""A short-lived response cache: identical requests within one batch are computed once.

`Kept` is called before the routes and returns the cached bytes of a response. The invariant: a response is reused only
if no batch ended and no query changed since it was started, and for at most a quarter of a second, because lags and
rates change without batches. Expensive responses, the plan and the history, are reused for up to one second; after that
they are computed anew in the background, because the plan is only read between two batches, and the old response serves
meanwhile, up to ten seconds. `Together` lets concurrent requests wait for the same response while it is being computed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamjoin.service.hub import Hub
from streamjoin.service.web.waiting import WaitingRequests

LONGEST: Final = 0.25
LONGEST_EXPENSIVE: Final = 1.0
LONGEST_OUTDATED: Final = 10.0
MOST: Final = 64
LARGEST: Final = 1 << 19
_EXPENSIVE: Final = frozenset({"/api/v1/plan", "/api/v1/history"})
_KEPT: Final = ("/api/v1/queries", "/api/v1/streams", "/api/v1/plan", "/api/v1/history", "/api/v1/changelog")


_Key = tuple[str, bytes, bytes]
"""Path, query string, and what is accepted."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Answer:
    """A cached response: its bytes, the version and time at which it was started, and its route."""

    version: int
    at: float
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    route: Any


class Kept:
    """ASGI middleware that caches responses; used on the event loop's thread only."""

    def __init__(self, app: ASGIApp, hub: Hub, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._hub, self._clock = app, hub, clock
        self._answers: OrderedDict[_Key, _Answer] = OrderedDict()
        self.renewals: dict[_Key, asyncio.Task[None]] = {}
        """The responses that are computed in the background."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the cached response, or cache the one that the app sends."""
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(_KEPT):
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        expensive = path in _EXPENSIVE
        accept = next((value for name, value in scope["headers"] if name == b"accept"), b"") if expensive else b""
        key = (path, scope["query_string"], accept)
        # Both are read first: a change during the computation then makes the response outdated.
        version, now = self._hub.changes if expensive else self._hub.version, self._clock()
        answer = self._answers.get(key)
        age = now - answer.at if answer is not None and answer.version == version else float("inf")
        if answer is not None and age < (LONGEST_OUTDATED if expensive else LONGEST):
            if age >= LONGEST_EXPENSIVE and key not in self.renewals:
                self.renewals[key] = asyncio.create_task(self._renew(key, dict(scope), version, now))
            scope["route"] = answer.route
            await send({"type": "http.response.start", "status": 200, "headers": list(answer.headers)})
            await send({"type": "http.response.body", "body": answer.body})
            return
        recorder = _Noted(send)
        await self._app(scope, receive, recorder)
        if recorder.whole:
            self._keep(key, _Answer(version, now, recorder.headers, recorder.body, scope.get("route")))

    async def _renew(self, key: _Key, scope: Scope, version: int, now: float) -> None:
        """Compute a response again; if that fails, the next request without one is told why."""
        recorder = _Noted(_send_nowhere)
        try:
            await self._app(scope, _nothing_more, recorder)
            if recorder.whole:
                self._keep(key, _Answer(version, now, recorder.headers, recorder.body, scope.get("route")))
        except Exception:
            _log.info("%s can't be computed again", key[0], exc_info=True)
        finally:
            del self.renewals[key]

    def _keep(self, key: _Key, answer: _Answer) -> None:
        self._answers[key] = answer
        self._answers.move_to_end(key)
        while len(self._answers) > MOST:
            self._answers.popitem(last=False)


async def _send_nowhere(message: Message) -> None:
    """Nobody waits for it."""


async def _nothing_more() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


class _Noted:
    """Forwards a response and records it, if it has one part, status 200 and a limited size."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._status = 0
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.body = b""
        self.whole = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self.headers = message["status"], tuple(message.get("headers", ()))
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.body = message.get("body", b"")
            # Only a response in one part has a length.
            has_length = any(
                name == b"content-length" and value == b"%d" % len(self.body) for name, value in self.headers
            )
            self.whole = self._status == 200 and has_length and len(self.body) <= LARGEST
        await self._send(message)


class Together:
    """Shares one computation among concurrent requests; used on the event loop's thread only."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._begun: dict[tuple[str, int], asyncio.Future[Response]] = {}

    async def answer(
        self, key: str, make: Callable[[], Response], *, expensive: bool = False, waiting: WaitingRequests | None = None
    ) -> Response:
        """The response under `key`; `make` runs on a thread of the pool, or of `waiting` if it waits for the engine.

        An `expensive` response is computed again after a change of queries, but not after every batch.
        """
        version = self._hub.changes if expensive else self._hub.version
        future = self._begun.get((key, version))
        if future is None:
            future = asyncio.ensure_future(run_in_threadpool(make) if waiting is None else waiting.run(make))
            self._begun[key, version] = future
            future.add_done_callback(lambda _: self._begun.pop((key, version)))
        # A client that disconnects does not cancel the response for the others.
        return await asyncio.shield(future)
