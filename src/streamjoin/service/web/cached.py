"""A short-lived response cache: identical requests within one batch are computed once.

`Kept` is called before the routes and returns the cached bytes of a response. The invariant: a response is reused only
if no batch ended and no query changed since it was started, and for at most a quarter of a second, because lags and
rates change without batches; the history, which is expensive, for up to one second unless a query changed. `Together`
lets concurrent requests wait for the same response while it is being computed. `LastKnown` is for the plan, which is
read between two batches: while a long batch runs, the last known one is the response.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamjoin.service.hub import Hub
from streamjoin.service.web.problems import Problem
from streamjoin.service.web.waiting import WaitingRequests

LONGEST: Final = 0.25
LONGEST_EXPENSIVE: Final = 1.0
OUTDATED: Final = 10.0
"""Seconds after which a last known response is waited for."""
PATIENCE: Final = 2.0
"""Seconds that a request waits for a newer response, or for the first one."""
MOST: Final = 64
LARGEST: Final = 1 << 19
_EXPENSIVE: Final = "/api/v1/history"
_KEPT: Final = ("/api/v1/queries", "/api/v1/streams", "/api/v1/history", "/api/v1/changelog")


_Key = tuple[str, bytes, bytes]
"""Path, query string, and what is accepted."""


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the cached response, or cache the one that the app sends."""
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(_KEPT):
            await self._app(scope, receive, send)
            return
        expensive = scope["path"] == _EXPENSIVE
        accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        key = (scope["path"], scope["query_string"], accept)
        # Both are read first: a change during the computation then makes the response outdated.
        version, now = self._hub.changes if expensive else self._hub.version, self._clock()
        answer = self._answers.get(key)
        longest = LONGEST_EXPENSIVE if expensive else LONGEST
        if answer is not None and answer.version == version and now - answer.at < longest:
            scope["route"] = answer.route
            await send({"type": "http.response.start", "status": 200, "headers": list(answer.headers)})
            await send({"type": "http.response.body", "body": answer.body})
            return
        recorder = _Noted(send)
        await self._app(scope, receive, recorder)
        if recorder.whole:
            self._keep(key, _Answer(version, now, recorder.headers, recorder.body, scope.get("route")))

    def _keep(self, key: _Key, answer: _Answer) -> None:
        self._answers[key] = answer
        self._answers.move_to_end(key)
        while len(self._answers) > MOST:
            self._answers.popitem(last=False)


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

    async def answer(self, key: str, make: Callable[[], Response], *, expensive: bool = False) -> Response:
        """The response under `key`; `make` runs on a thread of the pool.

        An `expensive` response is computed again after a change of queries, but not after every batch.
        """
        version = self._hub.changes if expensive else self._hub.version
        future = self._begun.get((key, version))
        if future is None:
            future = asyncio.ensure_future(run_in_threadpool(make))
            self._begun[key, version] = future
            future.add_done_callback(lambda _: self._begun.pop((key, version)))
        # A client that disconnects does not cancel the response for the others.
        return await asyncio.shield(future)


class LastKnown:
    """Responses that have to wait for the end of a batch; used on the event loop's thread only.

    A request gets a response that is new, or computed within `PATIENCE` seconds, else the last known one: it says
    itself how old it is. A computation goes on when no request waits for it any more.
    """

    def __init__(
        self,
        hub: Hub,
        waiting: WaitingRequests,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self._hub, self._waiting, self._clock, self._patience = hub, waiting, clock, patience
        self._known: dict[str, tuple[int, float, Response]] = {}
        self._begun: dict[tuple[str, int], asyncio.Future[Response]] = {}

    async def answer(self, key: str, make: Callable[[], Response]) -> Response:
        """The response under `key`; `make` runs on a thread for requests that wait.

        Raises:
            Problem: there is none yet, because a batch has been running since the start; or it can't be computed.
        """
        version = self._hub.changes
        known = self._known.get(key)
        age = self._clock() - known[1] if known is not None and known[0] == version else float("inf")
        if known is not None and age < LONGEST_EXPENSIVE:
            return known[2]
        future = self._computed(key, make)
        if known is not None and age < OUTDATED:
            return known[2]
        done, _ = await asyncio.wait([future], timeout=self._patience)
        if not done and known is not None:
            return known[2]
        if not done:
            message = "the plan is read between two batches, and one is running; try again soon"
            raise Problem(503, "engine-busy", message, headers={"Retry-After": "2"})
        return future.result()

    def _computed(self, key: str, make: Callable[[], Response]) -> asyncio.Future[Response]:
        """The response that is being computed since the last change."""
        version, at = self._hub.changes, self._clock()
        future = self._begun.get((key, version))
        if future is None:
            future = asyncio.ensure_future(self._waiting.run(make))
            self._begun[key, version] = future

            def keep(done: asyncio.Future[Response]) -> None:
                del self._begun[key, version]
                newer = key not in self._known or self._known[key][0] <= version
                if not done.cancelled() and done.exception() is None and newer:
                    self._known[key] = version, at, done.result()

            future.add_done_callback(keep)
        return future
