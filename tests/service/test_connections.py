"""Clients that hold connections: none of them takes what the engine or other clients need."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from streamjoin.model.errors import SetupError
from streamjoin.service import ServiceConfig
from streamjoin.service.logs import Limited
from streamjoin.service.server import bind
from streamjoin.service.web import connections as subject
from streamjoin.service.web.connections import Connection, Connections, places
from tests.service.processes import Process, running

ROOT = Path(__file__).parents[2]
TOKEN = "correct-horse-battery-staple"
HALF_A_HEADER = b"GET /api/v1/queries HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HALF_A_BODY = (
    b"POST /api/v1/queries HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{"
)


@contextlib.contextmanager
def few_files(directory: Path) -> Iterator[tuple[Process, str]]:
    """A service with a token whose engine opens many files in each batch, of the few that its process may open."""
    file = directory / "streamjoin.toml"
    file.write_text(
        f'[service]\nport = 0\ntoken = "{TOKEN}"\n[engine]\ncheckpoint = "data"\n[limits]\nrequest_time = "1 second"\n'
        '[streams.trades]\nformat = "rate"\ntime = "timestamp"\n'
    )
    with running(["-m", "tests.service.serve_program", str(file), "files"], ROOT) as service:
        url = service.until(r"listening on (http://127\.0\.0\.1:\d+)")[1]
        service.until("ready:")
        yield service, url


@pytest.mark.slow
def test_half_open_requests_without_the_token_end_neither_the_engine_nor_the_service(tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with few_files(tmp_path) as (service, url), contextlib.ExitStack() as stack:
        place = urlsplit(url).hostname, urlsplit(url).port
        # A connection for each request: the service closes one that is idle for a second, perhaps as the next begins.
        limits = httpx.Limits(max_keepalive_connections=0)
        client = stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=120, limits=limits))

        def batches() -> int:
            answer = client.get("/api/v1/history")
            assert answer.status_code == 200, answer.text
            return int(answer.json()["samples"][-1]["batch"]) if answer.json()["samples"] else 0

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < 2048:
            resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
        token = b"Authorization: Bearer " + TOKEN.encode() + b"\r\nHost"
        halves = (HALF_A_HEADER, HALF_A_BODY, HALF_A_BODY.replace(b"Host", token))
        slow = []
        for number in range(1010):
            slow.append(stack.enter_context(socket.create_connection(place)))  # type: ignore[arg-type]
            slow[-1].sendall(halves[number % 3])
            slow[-1].settimeout(30)
            if number % 250 == 50:
                assert client.get("/api/v1/ready").json()["status"] == "ready"
        before = batches()
        # All of them are let go: pushed out by those that came later, or because their time is over.
        ends = [_read_all(connection) for connection in slow]
        assert {end[:12] for end in ends} <= {b"", b"HTTP/1.1 408", b"HTTP/1.1 401"}
        while batches() <= before + 5:
            pass
        # Nobody comes after this one to push it out.
        last = stack.enter_context(socket.create_connection(place))  # type: ignore[arg-type]
        last.sendall(HALF_A_HEADER)
        last.settimeout(30)
        assert _read_all(last)[:12] == b"HTTP/1.1 408"
        figures = client.get("/metrics").text
        assert 'connections_ended_total{reason="pushed_out"}' in figures
        assert 'connections_ended_total{reason="request_too_slow"}' in figures
        stack.close()
        service.process.send_signal(signal.SIGTERM)
        assert service.ended() == 0, service.lines
    assert any("at most 32 connections" in line for line in service.lines)
    assert sum(map(len, service.lines)) < 5000, service.lines[:30]


def _read_all(connection: socket.socket) -> bytes:
    """What a connection still gives until it ends."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(4096):
            found += piece
    return found


class Transport(asyncio.Transport):
    """Notes what becomes of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.state = "open"

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.sent += data

    def is_closing(self) -> bool:
        return self.state != "open"

    def close(self) -> None:
        self.state = "closing"

    def abort(self) -> None:
        self.state = "aborted"

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Clients:
    """Connections without sockets, and a clock that the test turns."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.all = Connections(most, 20.0, lambda: self.now)
        self._config = uvicorn.Config(self._app, interface="asgi3", lifespan="off")
        self._config.load()
        self.answer = asyncio.Event()
        self._made: list[Connection] = []

    async def _app(self, _: object, receive: object, send: object) -> None:
        await self.answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]

    def connect(self, data: bytes = b"") -> tuple[Connection, Transport]:
        transport = Transport()
        made = Connection(self.all, config=self._config, server_state=ServerState(), app_state={})
        made.connection_made(transport)
        self._made.append(made)
        if data:
            made.data_received(data)
        return made, transport

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.all.sweep()


async def ended(clients: Clients) -> None:
    """Let everything end that still waits."""
    clients.answer.set()
    for connection in clients._made:
        connection.connection_lost(None)
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)


WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_client_that_keeps_the_service_waiting_is_let_go() -> None:
    async def run() -> None:
        clients = Clients(10)
        silent, header, body = (clients.connect(data)[1] for data in (b"", HALF_A_HEADER, HALF_A_BODY))
        served, answered = clients.connect(WHOLE)
        stuck, full = clients.connect(WHOLE)
        stuck.pause_writing()
        clients.after(19)
        trickle, late = clients.connect(HALF_A_HEADER)
        assert [t.state for t in (silent, header, body, answered, late)] == ["open"] * 5
        clients.after(2)
        for transport in (silent, header, body):
            assert (transport.state, transport.sent[:28]) == ("closing", b"HTTP/1.1 408 Request Timeout")
        # One byte after the other does not help; waiting for an answer costs nothing.
        for _ in range(18):
            trickle.data_received(b"x")
            clients.after(1)
        clients.after(1.5)
        assert (late.state, answered.state) == ("closing", "open")
        # What a closed connection does not take is thrown away in the end, also an answer that nobody takes.
        assert (silent.state, full.state) == ("aborted", "open")
        clients.after(30)
        assert (full.state, answered.state) == ("aborted", "open")
        # After its answer it owes the next request.
        clients.answer.set()
        while not served.cycle.response_complete:
            await asyncio.sleep(0)
        clients.after(21)
        assert answered.state == "closing"
        # A response that nobody asked for would be taken for that of the next request.
        assert answered.sent.count(b"HTTP/1.1") == 1
        await ended(clients)

    asyncio.run(run())


def test_a_new_client_gets_the_place_of_the_slowest_or_is_refused() -> None:
    async def run() -> None:
        clients = Clients(2)
        first = clients.connect(HALF_A_HEADER)[1]
        clients.after(1)
        second = clients.connect(WHOLE)[1]
        third = clients.connect(WHOLE)[1]
        assert (first.state, second.state, third.state) == ("aborted", "open", "open")
        refused = clients.connect()[1]
        assert refused.state == "closing"
        assert refused.sent.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"2 connections are open, which is the limit" in refused.sent
        assert clients.all.ended == {"pushed_out": 1, "full": 1}
        assert clients.all.open == 2
        await ended(clients)

    asyncio.run(run())


def test_endless_headers_are_refused_and_the_rest_of_a_body_is_no_header() -> None:
    async def run() -> None:
        clients = Clients(2)
        clients.answer.set()
        answered, open_ = clients.connect(HALF_A_BODY.replace(b"100", b"1000000"))
        while not answered.cycle.response_complete:
            await asyncio.sleep(0)
        for _ in range(20):
            answered.data_received(b"x" * 8192)
        assert open_.state == "open"
        await ended(clients)
        connection, transport = Clients(2).connect(HALF_A_HEADER)
        for _ in range(9):
            connection.data_received(b"x" * 8192)
        assert transport.state == "closing"
        assert transport.sent.startswith(b"HTTP/1.1 431 ")

    asyncio.run(run())


def _with_headers(size: int) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x-more: yes\r\n" * (size // 13) + b"\r\n"


@pytest.mark.parametrize(
    "data",
    [
        _with_headers(70_000),
        WHOLE.replace(b"Host", b"X: " + b"x" * 70_000 + b"\r\nHost"),
        WHOLE.replace(b"GET /", b"GET /" + b"x" * 70_000),
        b"POST / HTTP/1.1\r\ncontent-length: 2\r\nX: " + b"x" * 70_000 + b"\r\n\r\n{}",
    ],
)
@pytest.mark.parametrize("piece", [1 << 20, 40_000])
def test_headers_over_the_limit_are_refused_however_they_come(data: bytes, piece: int) -> None:
    """In one piece, too, and only once; the application does not see them."""

    async def run() -> None:
        clients = Clients(2)
        clients.answer.set()
        connection, transport = clients.connect()
        for start in range(0, len(data), piece):
            connection.data_received(data[start : start + piece])
        for _ in range(10):
            await asyncio.sleep(0)
        assert transport.state == "closing"
        assert transport.sent.startswith(b"HTTP/1.1 431 ")
        assert transport.sent.count(b"HTTP/1.1") == 1
        connection, transport = clients.connect(_with_headers(60_000) + _with_headers(60_000))
        while transport.sent.count(b"HTTP/1.1 204") < 2:
            await asyncio.sleep(0)
        assert transport.state == "open"
        await ended(clients)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("limits", "room", "raised"),
    [((256, 256), 32, None), ((256, -1), 512, (2176, -1)), ((1024, 1500), 343, (1500, 1500)), ((-1, -1), 512, None)],
)
def test_half_of_the_descriptors_are_the_engines(
    limits: tuple[int, int], room: int, raised: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(subject.resource, "getrlimit", lambda _: limits)  # type: ignore[attr-defined]
    monkeypatch.setattr(subject.resource, "setrlimit", lambda _, pair: given.append(pair))  # type: ignore[attr-defined]
    assert places(512) == room
    assert given == ([] if raised is None else [raised])


def test_too_few_descriptors_are_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject.resource, "getrlimit", lambda _: (128, 128))  # type: ignore[attr-defined]
    monkeypatch.setattr(subject.resource, "setrlimit", lambda _, __: None)  # type: ignore[attr-defined]
    with pytest.raises(SetupError, match="open 128 files, but the service needs at least 192: raise it"):
        places(512)


def test_lines_that_clients_cause_are_counted_instead_of_written() -> None:
    now = 0.0
    limited = Limited(most=2, clock=lambda: now)

    def written(text: str) -> str | None:
        record = logging.LogRecord("asyncio", logging.ERROR, "", 0, text, None, None)
        return record.getMessage() if limited.filter(record) else None

    assert [written(f"out of files\nsocket {n}") for n in range(1000)] == [
        "out of files\nsocket 0",
        "out of files\nsocket 1",
    ] + [None] * 998
    assert written("another") == "another"
    now = 61.0
    assert written("out of files\nsocket 9") == "out of files\nsocket 9 (998 more like this were not written)"


def test_a_response_is_sent_without_waiting_for_acknowledgements() -> None:
    """A response is two writes; with Nagle's algorithm the second waits 40 ms for the client."""

    async def option() -> int:
        no_delay: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            no_delay.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with contextlib.closing(bind(ServiceConfig(port=0))) as listening:
            async with await asyncio.start_server(answer, sock=listening):
                _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
                writer.close()
                return await no_delay

    assert asyncio.run(option()) == 1
