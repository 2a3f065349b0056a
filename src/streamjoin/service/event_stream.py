"""Server-sent events: the rows of a query, or the events of the engine, until the client disconnects.

Each stream has a position in the shared history. A slow client suspends only its own coroutine; when it reads again, it
gets the newest rows and the number of skipped ones. A client that reads nothing for a minute is disconnected. When all
slots are in use, a new client replaces the oldest one, which can reconnect and continue at its position.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from streamjoin.model import json_values
from streamjoin.model.errors import SpecError
from streamjoin.service.contract import ServedEngine
from streamjoin.service.state import Service, find_query
from streamjoin.service.web.guard import HEAD_ONLY
from streamjoin.service.web.problems import Problem

if TYPE_CHECKING:
    from streamjoin.adhoc.sinks.base import Newest

_LOG = logging.getLogger("streamjoin.service")
HEARTBEAT: Final = 15.0
_PATIENCE: Final = 60.0
_GOODBYE: Final = 1.0
Events = AsyncGenerator[str, None]


def event(name: str, data: Any, number: int | None = None) -> str:
    r"""One event as it is sent.

    >>> event("end", {"reason": "dropped"})
    'event: end\ndata: {"reason":"dropped"}\n\n'
    """
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json_values.text(json_values.plain(data))}\n\n"


class EventStream(Response):
    """A response that ends with its events, or when its client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, events: Callable[[], Events], patience: float = _PATIENCE) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._service = service
        self._events = events
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until there are no more or the client disconnects."""
        if scope.get(HEAD_ONLY):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
            return
        with self._service.readers.place() as place:
            if place is None:
                message = f"{self._service.readers.most} event streams are open, which is the limit"
                await Problem(503, "too-many-readers", message, headers={"Retry-After": "10"}).response(scope["path"])(
                    scope, receive, send
                )
                return
            parts = self._send_all(send), _until_left(receive), place.taken.wait()
            tasks = [asyncio.create_task(part) for part in parts]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                outcome, *_ = await asyncio.gather(*tasks, return_exceptions=True)
            if place.taken.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), _GOODBYE)
            elif isinstance(outcome, Exception) and not isinstance(outcome, OSError | TimeoutError):
                _LOG.error("the events of %s failed", scope["path"], exc_info=outcome)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._events()) as events:
            # Send something at once, so that the client knows that it is connected.
            await send({"type": "http.response.body", "body": b": connected\n\n", "more_body": True})
            async for text in events:
                body = {"type": "http.response.body", "body": text.encode(), "more_body": True}
                await asyncio.wait_for(send(body), self._patience)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _news(signal: asyncio.Event, heartbeat: float) -> bool:
    """Whether there is something new; False when a heartbeat is due."""
    try:
        await asyncio.wait_for(signal.wait(), heartbeat)
    except TimeoutError:
        return False
    return True


async def row_events(
    service: Service, engine: ServedEngine, name: str, seen: int, limit: int, heartbeat: float = HEARTBEAT
) -> Events:
    """The rows of a query that come after row number `seen`."""
    first = state = None
    while not service.hub.stopping:
        signal = service.hub.signal()
        try:
            info = await run_in_threadpool(find_query, engine, name)
            newest = await run_in_threadpool(engine.newest, name, limit, seen)
        except (Problem, SpecError):
            break
        first = first or info
        if info.created_at != first.created_at:
            # Another query under the same name.
            break
        if info.state != state:
            state = info.state
            yield event("state", info)
        if newest.total > seen:
            yield await run_in_threadpool(_rows_event, service, newest, seen)
            seen = newest.total
        while not await _news(signal, heartbeat):
            yield ": alive\n\n"
    yield event("end", {"reason": "stopping" if service.hub.stopping else "dropped"})


def _rows_event(service: Service, newest: Newest, seen: int) -> str:
    table = newest.table
    skipped = newest.total - seen - table.num_rows
    service.readers.skipped += skipped
    last = service.hub.last
    data = {
        "batch": None if last is None else last.batch,
        "rows": json_values.rows(table),
        "columns": json_values.columns(table),
        "skipped": skipped,
        "total": newest.total,
    }
    return f"id: {newest.total}\nevent: rows\ndata: {json_values.text(data)}\n\n"


async def engine_events(service: Service, engine: ServedEngine, heartbeat: float = HEARTBEAT) -> Events:
    """Batches and changes from now on."""
    hub = service.hub
    position = hub.published
    serial = max((record.serial for record in engine.changelog()), default=0)
    while not hub.stopping:
        signal = hub.signal()
        fresh, gone, position = hub.since(position)
        if gone:
            yield event("skipped", {"events": gone})
        for record in await run_in_threadpool(engine.changelog, serial):
            serial = max(serial, record.serial)
            yield event("change", record, None)
        for batch in fresh:
            yield event("batch", batch)
        while not await _news(signal, heartbeat):
            yield ": alive\n\n"
    yield event("end", {"reason": "stopping"})
