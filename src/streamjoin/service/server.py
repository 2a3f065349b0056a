"""`streamjoin serve`: one process that owns the engine and serves it until SIGINT or SIGTERM.

The address is bound first, so that a port in use is reported before Spark starts. The interface answers at once, and
reports that the engine is starting. On a signal, event streams end, open requests and the running batch finish, and the
process exits with 0. A batch that does not end soon is left: the checkpoint has its tuples, and the next start computes
it again. If the engine fails, the process ends with an error, so that a supervisor can restart it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

import uvicorn
from fastapi import FastAPI

from streamjoin.model.errors import SetupError, StreamJoinError
from streamjoin.queries.engine.engine import Engine
from streamjoin.service.app import create_app
from streamjoin.service.config import ServiceConfig
from streamjoin.service.logs import limit_log_lines
from streamjoin.service.state import Service
from streamjoin.service.web.connections import ACCEPTED_AT_ONCE, places
from streamjoin.service.web.tls import Certificate

if TYPE_CHECKING:
    from streamjoin.queries.sinks.base import Sink

_LOG = logging.getLogger("streamjoin.service")
_WATCH: Final = 0.5
_PROGRESS_EVERY: Final = 10.0
"""Seconds between two lines about streams that catch up."""
_LONGEST_GOODBYE: Final = 5
_BACKLOG: Final = 128
LONGEST_STOP: Final = 8.0
"""Seconds after a signal within which the running batch has to end."""
_SECRETS_EVERY: Final = 1.0
"""Seconds between two looks at the files of tokens and certificate."""
_SAME_SIGNAL: Final = 1.0
"""A signal to a process group may arrive twice: directly, and from the parent process."""


class Started(Protocol):
    """The result of a launcher: an engine, its sinks, and a way to stop it."""

    @property
    def engine(self) -> Engine:
        """The engine."""

    def sink(self, name: str, query: str) -> Sink:
        """A sink of the file for a query."""

    def stop(self) -> None:
        """Wait for the running batch, and stop everything."""


Launcher = Callable[[ServiceConfig, Callable[[str], None]], Started]


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process by the signal instead of by exit code 0.

    It accepts a few connections at a time, and still lets more than that wait in the kernel.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(config: ServiceConfig) -> socket.socket:
    """The service's socket, listening.

    Raises:
        SetupError: the address is in use or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # With the protocol by its name asyncio sends small writes at once; otherwise every response waits for the client's
    # delayed acknowledgement of its first part, 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SetupError(
            f"can't listen on {config.host} port {config.port}: {reason}; "
            "take another with --port, or port = 0 in [service] for a free one"
        ) from error
    return listener


def serve(config: ServiceConfig, launcher: Launcher, report: Callable[[str], None]) -> None:
    """Serve until a signal stops it.

    Raises:
        SetupError: the address is taken, too few files may be opened, or Spark can't start.
        StreamJoinError: the engine failed.
    """
    listening = bind(config)
    with contextlib.closing(listening):
        asyncio.run(_Serving(config, launcher, report).run(listening))


class _Progress:
    """Reports that streams catch up with their sources, now and then, and when they have."""

    def __init__(
        self, service: Service, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._service, self._report, self._clock = service, report, clock
        self._told_at: float | None = None
        self._seen_at: float | None = None

    def tell(self) -> None:
        """Look now; a moment's delay is not reported."""
        behind, now = self._service.catching_up, self._clock()
        if behind is None:
            if self._told_at is not None:
                self._report("the streams have caught up")
            self._told_at = self._seen_at = None
            return
        if self._seen_at is None:
            self._seen_at = now
        elif now - (self._told_at or self._seen_at - _PROGRESS_EVERY + 1) >= _PROGRESS_EVERY:
            self._told_at = now
            self._report(f"{behind} ({', '.join(behind.streams)})")


class _Serving:
    def __init__(self, config: ServiceConfig, launcher: Launcher, report: Callable[[str], None]) -> None:
        self._config = config
        self._launcher = launcher
        self._report = report
        self._app: FastAPI = create_app(None, config)
        self._service: Service = self._app.state.service
        self._stopped_at: float | None = None
        self._failure: BaseException | None = None
        self._make_room()
        self._certificate: Certificate | None = None
        if config.certificate is not None and config.key is not None:
            self._certificate = self._service.connections.certificate = Certificate(config.certificate, config.key)
        self._hangup = asyncio.Event()
        settings = uvicorn.Config(
            self._app,
            http=self._service.connections.protocol,
            ws="none",
            backlog=ACCEPTED_AT_ONCE,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_LONGEST_GOODBYE,
        )
        self._server = _Server(settings)
        limit_log_lines()

    def _make_room(self) -> None:
        """Adjust the limit on connections to the limit on open files, half of which the engine uses."""
        limits = self._config.limits
        # Event streams must not use all connections.
        connections = max(limits.connections, 2 * limits.readers)
        room = places(connections)
        self._service.connections.most = room
        self._service.readers.most = min(limits.readers, room // 2)
        if room < connections:
            self._report(
                f"at most {room} connections and {self._service.readers.most} event streams, because of the limit "
                "on open files; raise it with ulimit -n"
            )

    async def run(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGHUP, self._hangup.set)
        host, port = listening.getsockname()[:2]
        self._report(f"listening on {self._config.url_of(host, port)}; starting the engine ...")
        self._report(self._config.engine_words)
        engine = asyncio.create_task(self._run_engine())
        watches = [asyncio.create_task(one) for one in (self._service.connections.watch(), self._watch_secrets())]
        try:
            await self._server.serve(sockets=[listening])
        finally:
            for watch in watches:
                watch.cancel()
            self._service.begin_stop()
            await engine
        if self._failure is not None:
            raise self._failure

    async def _watch_secrets(self) -> None:
        """Read tokens and certificate again when their files change, and at once after SIGHUP."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hangup.wait(), _SECRETS_EVERY)
            now = self._hangup.is_set()
            self._hangup.clear()
            if now:
                self._report("SIGHUP: tokens and certificate are read again")
            for part in (self._service.clients, self._certificate):
                if part is None:
                    continue
                try:
                    # On a thread: the files may be on a network.
                    line = await asyncio.to_thread(part.refresh, now=now)
                except StreamJoinError as error:
                    _LOG.error("%s; the service goes on with what it had", error)
                else:
                    if line is not None:
                        self._report(line)

    def _signalled(self, number: int) -> None:
        now = time.monotonic()
        if self._stopped_at is None:
            self._stopped_at = now
            self._report("stopping after the current batch ...")
            # On a thread: neither the event loop nor a thread that waits for the engine can hold it up.
            deadline = threading.Timer(LONGEST_STOP, self._leave)
            deadline.daemon = True
            deadline.start()
            self._service.begin_stop()
            self._server.should_exit = True
        elif number == signal.SIGINT and now - self._stopped_at > _SAME_SIGNAL:
            # A supervisor kills the process; only a user at the terminal sends a second SIGINT.
            self._report("stopping at once")
            os._exit(130)

    def _leave(self) -> None:
        self._report(f"the current batch did not end within {LONGEST_STOP:g} seconds; the next start computes it again")
        os._exit(0)

    async def _run_engine(self) -> None:
        """Start the engine, watch it, and stop it once the service ends."""
        running: Started | None = None
        try:
            running = await asyncio.to_thread(self._launcher, self._config, self._report)
            if not self._server.should_exit:
                self._service.attach(running.engine, running.sink)
                self._report(f"ready: streams {', '.join(stream.name for stream in running.engine.streams())}")
            reported = -1
            progress = _Progress(self._service, self._report)
            while not self._server.should_exit:
                await asyncio.sleep(_WATCH)
                if running.engine.error is not None:
                    raise StreamJoinError(f"the engine stopped: {running.engine.error}")
                progress.tell()
                stuck = self._service.stuck_batch
                if stuck is not None and stuck.batch != reported:
                    reported = stuck.batch
                    _LOG.warning("not ready: %s", stuck)
        except Exception as error:  # raised after everything has stopped
            self._failure = error
            _LOG.error("%s", error, exc_info=None if isinstance(error, StreamJoinError) else error)
            self._service.fail(str(error) if isinstance(error, StreamJoinError) else type(error).__name__)
            self._server.should_exit = True
        finally:
            # Requests that wait for a batch need the engine until they have a response.
            while not self._served():
                await asyncio.sleep(_WATCH / 10)
            if running is not None:
                await asyncio.to_thread(running.stop)

    def _served(self) -> bool:
        state = self._server.server_state
        return self._server.should_exit and not state.tasks
