"""The open connections of the service: their number, and how long a client may delay one.

A connection costs file descriptors, and the engine needs some of the same process to write. Invariants: connections
never use more than half of the descriptors; a client that sends no complete request, or reads nothing of its
response, is disconnected after a fixed time, with or without a token. When all are in use, a new connection replaces
the client that has been idle for the longest time (those that never got a response first); it is refused only
if every client is waiting for a response. Everything here runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from streamjoin.model.errors import SetupError
from streamjoin.service.web.problems import MEDIA_TYPE, Problem
from streamjoin.service.web.tls import Certificate, TlsHandshake

ACCEPTED_AT_ONCE: Final = 16
"""Connections that the event loop accepts in one round."""
_NOT_YET_COUNTED: Final = 4 * ACCEPTED_AT_ONCE
"""Connections that may be open but not counted yet: counting and closing take a few rounds of the event loop."""
_HANDSHAKES: Final = 2 * ACCEPTED_AT_ONCE
"""TLS handshakes at a time; they are among the connections that are not counted yet."""
_DESCRIPTORS: Final = 2
"""File descriptors per connection: its socket, and the file of the page that is being sent."""
_FEWEST: Final = 16
MOST_HEADER_BYTES: Final = 65_536
_AROUND_HEADER: Final = 4
"""The colon, the space and the end of a line."""
PATIENCE: Final = 60.0
"""Seconds after which a client that reads nothing of its response is disconnected."""
_GOODBYE: Final = 5.0
"""Seconds that a closing connection has to send the rest of its response."""
_EVERY: Final = 0.5
_LOG = logging.getLogger("streamjoin.service")


def places(wanted: int) -> int:
    """The number of connections that the limit on open files allows, at most `wanted`; raises the soft limit if needed.

    Raises:
        SetupError: the limit on open files is too low for any connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * (_DESCRIPTORS * wanted + _NOT_YET_COUNTED)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < needed and soft != hard:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError):  # pragma: no cover - systems that refuse what they promise
            pass
    room = (soft // 2 - _NOT_YET_COUNTED) // _DESCRIPTORS
    if room < _FEWEST:
        least = 2 * (_DESCRIPTORS * _FEWEST + _NOT_YET_COUNTED)
        raise SetupError(
            f"this process may open {soft} files, but the service needs at least {least}: raise it with ulimit -n"
        )
    return min(wanted, room)


class Connections:
    """At most `most` connections at a time; each request must arrive completely within `request_seconds`."""

    def __init__(self, most: int, request_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.request_seconds = request_seconds
        self.clock = clock
        self.ended: Counter[str] = Counter()
        """The number of connections that the service ended, by reason."""
        self.certificate: Certificate | None = None
        """With it connections begin with a handshake."""
        self._open: set[Connection] = set()
        self._handshakes: dict[TlsHandshake, None] = {}

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self._open)

    @property
    def protocol(self) -> type[asyncio.Protocol]:
        """Create the protocol of a new connection, for uvicorn."""
        made = partial(Connection, self) if self.certificate is None else self._secured
        return cast("type[asyncio.Protocol]", made)

    def _secured(self, **options: Any) -> TlsHandshake:
        if self.certificate is None:
            raise AssertionError("a handshake without a certificate")
        if len(self._handshakes) >= _HANDSHAKES:
            slowest = next(iter(self._handshakes))
            self._note("pushed_out")
            slowest.abort()
            self._handshakes.pop(slowest, None)
        begin = partial(Connection, self, **options)
        handshake = TlsHandshake(self.certificate.context, self.request_seconds, begin, self._shaken)
        self._handshakes[handshake] = None
        return handshake

    def _shaken(self, handshake: TlsHandshake) -> None:
        self._handshakes.pop(handshake, None)

    def opened(self, connection: Connection) -> None:
        """Admit a new connection, or reject it."""
        if len(self._open) >= self.most:
            idle = [other for other in self._open if other.waiting_since is not None]
            if not idle:
                self._note("full")
                message = f"{self.most} connections are open, which is the limit"
                connection.refuse(Problem(503, "too-many-connections", message, headers={"Retry-After": "5"}))
                return
            # A client that already got a response may be about to send another request.
            slowest = min(idle, key=lambda other: (other.answered, other.waiting_since or 0.0))
            self._note("pushed_out")
            slowest.transport.abort()
            # It is closed a moment later, and must not be chosen again until then.
            self._open.discard(slowest)
        self._open.add(connection)

    def closed(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._open.discard(connection)

    def _note(self, reason: str) -> None:
        self.ended[reason] += 1
        _LOG.warning("the service closed a connection: %s", reason.replace("_", " "))

    def sweep(self) -> None:
        """End the connections whose clients took too long."""
        now = self.clock()
        for connection in tuple(self._open):
            if _older(connection.closing_since, now, _GOODBYE) or _older(connection.paused_since, now, PATIENCE):
                self._note("answer_not_taken")
                connection.transport.abort()
                self._open.discard(connection)
            elif connection.transport.is_closing():
                connection.closing_since = connection.closing_since or now
            elif _older(connection.waiting_since, now, self.request_seconds):
                if connection.is_idle:
                    # No request has begun: a response would be taken for that of the next one.
                    connection.transport.close()
                    continue
                self._note("request_too_slow")
                message = f"a request must arrive completely within {self.request_seconds:g} seconds"
                connection.refuse(Problem(408, "request-too-slow", message))

    async def watch(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(_EVERY)
            self.sweep()


def _older(since: float | None, now: float, seconds: float) -> bool:
    return since is not None and now - since > seconds


class Connection(HttpToolsProtocol):
    """A client's connection, with the times since which it waits for the client."""

    def __init__(self, connections: Connections, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._all = connections
        self._in_header, self._header_bytes, self._parsed_bytes = False, 0, 0
        self.waiting_since: float | None = None
        """Since when the client has not sent a complete request."""
        self.paused_since: float | None = None
        """Since when the client reads nothing of a response."""
        self.closing_since: float | None = None
        self.answered = False
        """Whether the client has had a response."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self.waiting_since = self._all.clock()
        self._all.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        self._all.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The client has sent data."""
        if self.transport.is_closing():
            return
        before = self._in_header
        super().data_received(data)
        # The data after a rejected request is the rest of its body, and may be longer.
        if before and self._in_header:
            self._header_bytes += len(data)
            if self._header_bytes > MOST_HEADER_BYTES:
                self._refuse_headers()
        self._note_request()

    def _refuse_headers(self) -> None:
        message = f"a request's headers are at most {MOST_HEADER_BYTES:,} bytes"
        self.refuse(Problem(431, "headers-too-large", message))

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_header, self._header_bytes, self._parsed_bytes = True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """The path has come, or a part of it."""
        self._parsed_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has come."""
        self._parsed_bytes += len(name) + len(value) + _AROUND_HEADER
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The headers are complete."""
        self._in_header = False
        if self._parsed_bytes > MOST_HEADER_BYTES:
            # They may have come in one piece, which is larger than the limit.
            self._refuse_headers()
            raise ValueError("headers too large")
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, unless the request is refused already."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """A response is complete."""
        self.answered = True
        super().on_response_complete()
        self._note_request()

    def _note_request(self) -> None:
        cycle = self.cycle
        whole = cycle is not None and not cycle.response_complete and not cycle.more_body
        # While the service itself does not read, the client is not late.
        if whole or self.flow.read_paused:
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = self._all.clock()

    @property
    def is_idle(self) -> bool:
        """Whether the client has had its response and has not begun another request."""
        return self.answered and not self._in_header and (self.cycle is None or self.cycle.response_complete)

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self.paused_since = self._all.clock()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self.paused_since = None

    def refuse(self, problem: Problem) -> None:
        """End the connection, with a response if none was started."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps(problem.body()).encode()
            more = "".join(f"{name}: {value}\r\n" for name, value in problem.headers.items())
            head = (
                f"HTTP/1.1 {problem.status} {problem.title}\r\ncontent-type: {MEDIA_TYPE}\r\n"
                f"content-length: {len(body)}\r\n{more}connection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
        if self.cycle is not None:
            # A later response of the route must not follow this one.
            self.cycle.disconnected = True
        self.transport.close()
