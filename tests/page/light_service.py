"""The service over an engine without Spark that makes a batch several times a second: on threads of this process.

`python -m tests.page.light_service FD` is the same as a process of its own, to be killed; FD is a socket that listens.
"""

from __future__ import annotations

import datetime as dt
import socket
import sys
import threading
from types import TracebackType
from typing import Self

import uvicorn

from streamjoin.service.app import create_app
from streamjoin.service.config import ServiceConfig
from streamjoin.service.server import bind
from tests.service import feeds
from tests.service.ticking import TickingEngine

NEAR = """SELECT t.sym, t.px, q.ask
FROM trades AS t
JOIN quotes AS q WITHIN 5 SECONDS ON t.sym = q.sym AND t.px = q.bid"""
NEAR_LARGE = f"{NEAR}\nWHERE t.qty > 6"
EVERY = 0.25


class LightService:
    """Starts with `with`. `engine` is at hand, so that a test can create what it does not want to type."""

    def __init__(
        self, token: str | None = None, *, attached: bool = True, listening: socket.socket | None = None
    ) -> None:
        began = dt.datetime.now(dt.UTC).replace(tzinfo=None)
        self.engine = TickingEngine(lambda number: feeds.batch(number, 40, began))
        self._config = ServiceConfig(port=0, token=token)
        self._app = create_app(self.engine if attached else None, self._config)
        self._server = uvicorn.Server(uvicorn.Config(self._app, log_level="warning", lifespan="off"))
        # Listening before the server runs: a request that comes too early waits, nobody has to.
        self._socket = listening or bind(self._config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"

    def __enter__(self) -> Self:
        self.engine.tick_every(EVERY)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._app.state.service.begin_stop()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self.engine.stop()

    def attach(self) -> None:
        """The engine has started."""
        self._app.state.service.attach(self.engine)

    def clear(self) -> None:
        """Drop all queries."""
        for info in self.engine.queries():
            self.engine.drop(info.name)


if __name__ == "__main__":
    with LightService(listening=socket.socket(fileno=int(sys.argv[1]))):
        threading.Event().wait()
