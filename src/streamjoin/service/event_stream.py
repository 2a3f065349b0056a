"""Server-sent events: the rows of a query, or the events of the engine, until the client disconnects.

Each stream has a position in the shared history. A slow client suspends only its own coroutine; when it reads again, it
gets the newest rows and the number of skipped ones. A client that reads nothing for a minute is disconnected. When all
slots are in use, a new client replaces the oldest one, which can reconnect and continue at its position.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from streamjoin.model import json_values
from streamjoin.model.errors import SpecError
from streamjoin.queries.engine.engine import Engine
from streamjoin.service.state import Service, find_query
from streamjoin.service.web.guard import HEAD_ONLY
from streamjoin.service.web.problems import Problem

if TYPE_CHECKING:
    import pyarrow as pa

    from streamjoin.queries.engine.cursors import RowsPage

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
                await too_many_readers(self._service).response(scope["path"])(scope, receive, send)
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


async def next_page(service: Service, read: Callable[[], RowsPage], wait: float, receive: Receive) -> RowsPage:
    """A page of rows, as soon as there are any: after at most `wait` seconds, or when the client disconnects.

    Raises:
        Problem: all slots of readers are in use.
    """
    signal = service.hub.signal()
    page = await run_in_threadpool(read)
    if not wait or not _is_awaited(page):
        return page
    until = asyncio.get_running_loop().time() + wait
    with service.readers.place() as place:
        if place is None:
            raise too_many_readers(service)
        ends = [asyncio.create_task(_until_left(receive)), asyncio.create_task(place.taken.wait())]
        try:
            while _is_awaited(page) and not service.hub.stopping and not any(end.done() for end in ends):
                news = asyncio.create_task(signal.wait())
                left = until - asyncio.get_running_loop().time()
                done, _ = await asyncio.wait([news, *ends], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if not done:
                    break
                signal = service.hub.signal()
                page = await run_in_threadpool(read)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
    return page


def _is_awaited(page: RowsPage) -> bool:
    """Whether rows may come, and none have."""
    return not page.table.num_rows and not page.missed and page.state != "dropped"


def too_many_readers(service: Service) -> Problem:
    """What a reader is told for which there is no slot."""
    message = f"{service.readers.most} readers wait for rows or events, which is the limit"
    return Problem(503, "too-many-readers", message, headers={"Retry-After": "10"})


async def row_events(
    service: Service, engine: Engine, name: str, seen: int, limit: int, heartbeat: float = HEARTBEAT
) -> Events:
    """The rows of a query that come after row number `seen`; a reader that is behind gets the newest ones."""
    first = told = None
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
        if told != (told := (info.state, info.error)):
            yield event("state", info)
        if newest.total > seen:
            skipped = newest.total - seen - newest.table.num_rows
            yield await run_in_threadpool(_rows_event, service, newest.table, skipped, newest.total)
            seen = newest.total
        while not await _news(signal, heartbeat):
            yield ": alive\n\n"
    yield event("end", {"reason": "stopping" if service.hub.stopping else "dropped"})


async def every_row_events(
    service: Service, engine: Engine, name: str, seen: int, limit: int, heartbeat: float = HEARTBEAT
) -> Events:
    """All rows of a query after row number `seen` that are kept, in order, also the last ones before a drop."""
    after: str | int = seen
    told = None
    while not service.hub.stopping:
        signal = service.hub.signal()
        try:
            page = await run_in_threadpool(engine.page, name, after, limit)
        except SpecError:
            break
        after = page.next
        with contextlib.suppress(Problem):
            info = await run_in_threadpool(find_query, engine, name)
            if info.created_at == page.created_at and told != (told := (info.state, info.error)):
                yield event("state", info)
        if page.table.num_rows or page.missed:
            total = page.total - page.remaining
            yield await run_in_threadpool(_rows_event, service, page.table, page.missed, total)
        if page.state == "dropped" and not page.remaining:
            break
        while not page.remaining and not await _news(signal, heartbeat):
            yield ": alive\n\n"
    yield event("end", {"reason": "stopping" if service.hub.stopping else "dropped"})


def _rows_event(service: Service, table: pa.Table, skipped: int, total: int) -> str:
    service.readers.skipped += skipped
    last = service.hub.last
    data = {
        "batch": None if last is None else last.batch,
        "rows": json_values.rows(table),
        "columns": json_values.columns(table),
        "skipped": skipped,
        "total": total,
    }
    return f"id: {total}\nevent: rows\ndata: {json_values.text(data)}\n\n"


async def engine_events(service: Service, engine: Engine, heartbeat: float = HEARTBEAT) -> Events:
    """Batches, changes, and queries that become degraded or recover, from now on."""
    hub = service.hub
    position = hub.published
    serial = max((record.serial for record in engine.changelog()), default=0)
    known: Mapping[str, str] = {}
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
        degraded = await run_in_threadpool(engine.degraded)
        changed = {name for name, _ in known.items() ^ degraded.items()}
        if changed:
            for info in await run_in_threadpool(engine.queries):
                if info.name in changed:
                    yield event("state", info)
        known = degraded
        while not await _news(signal, heartbeat):
            yield ": alive\n\n"
    yield event("end", {"reason": "stopping"})
