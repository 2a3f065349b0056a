"""A running service over an engine without Spark: uvicorn on a thread, batches when the test says so."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from streamjoin.queries.core.settings import Settings
from streamjoin.service.app import create_app
from streamjoin.service.config import ServiceConfig
from tests.service import feeds
from tests.service.processes import command
from tests.service.ticking import TickingEngine

NEAR = (
    "SELECT t.sym, t.px, q.bid FROM trades t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym AND abs(t.px - q.bid) <= 1"
)


@dataclass
class Live:
    """A service that listens."""

    engine: TickingEngine
    app: FastAPI
    url: str
    clients: list[httpx.Client] = field(default_factory=list)

    def client(self, **options: object) -> httpx.Client:
        made = httpx.Client(base_url=self.url, timeout=120, **options)  # type: ignore[arg-type]
        self.clients.append(made)
        return made

    def create(self, sql: str = NEAR, **more: object) -> str:
        answer = httpx.post(f"{self.url}/api/v1/queries", json={"sql": sql, **more}, timeout=120)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["name"])


@contextlib.contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The app on a free port of loopback."""
    listening = socket.create_server(("127.0.0.1", 0))
    # Small, so that a reader that takes nothing is felt after kilobytes and not after megabytes.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    settings = uvicorn.Config(
        app, http=app.state.service.connections.protocol, log_level="warning", access_log=False, lifespan="off"
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        app.state.service.begin_stop()
        server.should_exit = True
        thread.join(120)
        listening.close()
        assert not thread.is_alive(), "the service did not stop"


Start = Callable[..., Live]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services; options go to the engine (rows, rows_kept, rows_bytes) and to the config."""
    with contextlib.ExitStack() as stack:

        def begin(
            *, rows: int = 20, rows_kept: int = 1000, rows_bytes: int = 0, config: ServiceConfig | None = None
        ) -> Live:
            settings = Settings(newest_rows=rows_kept, rows_bytes=rows_bytes)
            most = None if config is None else config.limits.queries
            engine = TickingEngine(lambda number: feeds.batch(number, rows), settings, most)
            stack.callback(engine.stop)
            app = create_app(engine, config)
            live = Live(engine, app, stack.enter_context(serving(app)))
            stack.callback(lambda: [client.close() for client in live.clients])
            return live

        yield begin


@pytest.fixture
def live(start: Start) -> Live:
    return start()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A service file as `streamjoin init` writes it."""
    command(tmp_path, "init")
    return tmp_path / "streamjoin.toml"
