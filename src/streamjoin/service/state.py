"""The service as one object: its engine, once it runs, the hub of events, and the rules for changing queries.

The engine owns the names of queries and their limit, also where several are created at once; no lock is held while it
waits for a batch to end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from streamjoin.model.errors import SpecError, StateError, StreamJoinError
from streamjoin.model.expression.parsing import Scan
from streamjoin.model.expression.source_text import SourceText
from streamjoin.model.window import CountWindow, TimeWindow, Window
from streamjoin.queries.engine.engine import Engine
from streamjoin.queries.engine.info import CatchingUp
from streamjoin.queries.language import clauses
from streamjoin.queries.language.clauses import JoinClause, QueryText
from streamjoin.queries.language.parameters import with_values
from streamjoin.service.clients import ApiClient, Clients
from streamjoin.service.config import Limits, ServiceConfig
from streamjoin.service.hub import Hub
from streamjoin.service.metrics import Requests
from streamjoin.service.web.cached import LastKnown, Together
from streamjoin.service.web.connections import Connections
from streamjoin.service.web.problems import Problem, problem_of
from streamjoin.service.web.readers import Readers
from streamjoin.service.web.waiting import WaitingRequests

if TYPE_CHECKING:
    from fastapi import Request

    from streamjoin.queries.engine.info import Preview, QueryInfo, RunningBatch
    from streamjoin.queries.sinks.base import Sink

Phase = Literal["starting", "running", "stuck", "failed", "stopping"]
MOST_WORDS: Final = 5000
"""The largest number of tokens of a query, which bounds the cost of parsing it."""
_LONGEST_CREATE: Final = 30.0
_LONGEST_PREVIEW: Final = 10.0
SinkMaker = Callable[[str, str], "Sink"]
"""A sink of the engine, from the name of the sink in the file and the name of the query."""


class Service:
    """One service: engine, hub, limits and request threads."""

    def __init__(self, config: ServiceConfig, clock: Callable[[], float] = time.time) -> None:
        self.config = config
        self.clients = Clients(config)
        self.hub = Hub()
        self.together = Together(self.hub)
        self.requests = Requests()
        self.readers = Readers(config.limits.readers)
        self.questions = WaitingRequests("requests for the plan")
        self.previews = WaitingRequests("dry runs")
        self.plans = LastKnown(self.hub, self.questions)
        self.changes = WaitingRequests("changes of queries")
        self.connections = Connections(config.limits.connections, config.limits.request_seconds)
        self.started_at = clock()
        self.phase: Phase = "starting"
        self.reason: str | None = None
        self._engine: Engine | None = None
        self._make_sink: SinkMaker | None = None

    def attach(self, engine: Engine, make_sink: SinkMaker | None = None) -> None:
        """Attach the running engine."""
        engine.on_batch(self.hub.publish)
        engine.on_state(self.hub.stir)
        self._engine, self._make_sink = engine, make_sink
        self.phase = "running"

    def fail(self, reason: str) -> None:
        """Record that the engine has failed."""
        self.phase, self.reason = "failed", reason
        self.hub.poke()

    def begin_stop(self) -> None:
        """Accept no more requests and end all event streams."""
        self.phase = "stopping"
        self.hub.close()

    @property
    def ready(self) -> tuple[Phase, str | None]:
        """The phase of the service, and the reason if it failed."""
        if self.phase == "running" and self._engine is not None and self._engine.error is not None:
            return "failed", str(self._engine.error)
        batch = self.stuck_batch
        return (self.phase, self.reason) if batch is None else ("stuck", str(batch))

    @property
    def catching_up(self) -> CatchingUp | None:
        """The streams that catch up with their sources, and how far they are."""
        running = self.phase == "running" and self._engine is not None
        return CatchingUp.of(self._engine.streams()) if running and self._engine is not None else None

    @property
    def stuck_batch(self) -> RunningBatch | None:
        """The batch that runs, if it has been running for too long."""
        batch = self._engine.activity() if self.phase == "running" and self._engine is not None else None
        return batch if batch is not None and batch.seconds > self.config.limits.batch_seconds else None

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            Problem: it has not started yet, or has failed.
        """
        if self._engine is None or self.phase in ("starting", "stopping"):
            message = (
                "the service is stopping" if self.phase == "stopping" else "the engine is starting; try again soon"
            )
            kind = "starting" if self.phase == "starting" else "stopping"
            if self.phase == "failed":
                kind, message = "engine-failed", f"the engine stopped: {self.reason}"
            raise Problem(503, kind, message, headers={"Retry-After": "2"})
        return self._engine

    # Queries ------------------------------------------------------------------------------------------------------

    def query(self, name: str) -> QueryInfo:
        """One query's record.

        Raises:
            Problem: there is none of this name.
        """
        return find_query(self.engine, name)

    def preview(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Preview:
        """The plan of a query, without creating it."""
        engine, sql = self.engine, _text(sql, parameters)
        with _as_problem(sql):
            check_limits(sql, self.config.limits)
            try:
                return engine.preview(sql, _LONGEST_PREVIEW)
            except StateError as error:
                raise Problem(503, "engine-busy", str(error), headers={"Retry-After": "2"}) from error

    def create(
        self,
        sql: str,
        name: str | None,
        sink: str | None,
        allow_scan: bool = False,
        client: ApiClient | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> QueryInfo:
        """Create a query for a client and return its record once it is in force."""
        engine, sql = self.engine, _text(sql, parameters)
        if sink is not None and sink not in self.config.sinks:
            sinks = ", ".join(self.config.sinks) or "none"
            raise Problem(422, "unknown-sink", f"there is no sink {sink!r}; the service's file has: {sinks}")
        make_sink = self._make_sink
        to_sink = None if sink is None or make_sink is None else partial(make_sink, sink)
        with _as_problem(sql):
            check_limits(sql, self.config.limits)
            self._refuse(engine, name, client)
            owner, quota = (None, None) if client is None else (client.name, client.queries)
            try:
                created = engine.create(
                    sql, name=name, sink=to_sink, wait=False, allow_scan=allow_scan, owner=owner, quota=quota
                )
                with _pending_is_fine(engine, created.name):
                    created.wait(_LONGEST_CREATE)
            except SpecError:
                # Another one may have come first.
                self._refuse(engine, name, client)
                raise
            self.hub.poke()
            # It was created, also if somebody has dropped it meanwhile.
            return created.info()

    def _refuse(self, engine: Engine, name: str | None, client: ApiClient | None) -> None:
        """Refuse a create for which there is no room; the engine itself decides where several come at once."""
        queries = engine.queries()
        names = {query.name for query in queries}
        if name is not None and name in names:
            raise Problem(409, "name-taken", f"there is a query {name!r} already; drop it, or take another name")
        if len(names) >= self.config.limits.queries:
            raise Problem(
                409, "too-many-queries", f"there are {len(names)} queries, which is the limit; drop one first"
            )
        if client is not None and client.queries is not None:
            owned = sum(query.owner == client.name for query in queries)
            if owned >= client.queries:
                message = f"{client.name} has {owned} queries, which is its quota; drop one first"
                raise Problem(409, "quota-exceeded", message)

    def change(self, name: str, change: Callable[[Engine, str], None]) -> QueryInfo | None:
        """Drop, pause or resume a query; returns its new record, or None if it was dropped."""
        engine = self.engine
        find_query(engine, name)
        with _as_problem(""):
            change(engine, name)
        self.hub.poke()
        return next((query for query in engine.queries() if query.name == name), None)


def service_of(request: Request) -> Service:
    """The service that answers a request."""
    service: Service = request.app.state.service
    return service


def find_query(engine: Engine, name: str) -> QueryInfo:
    """One query's record.

    Raises:
        Problem: there is none of this name.
    """
    query_ = next((query for query in engine.queries() if query.name == name), None)
    if query_ is None:
        raise Problem(404, "no-such-query", f"there is no query {name!r}")
    return query_


@contextlib.contextmanager
def _pending_is_fine(engine: Engine, name: str) -> Iterator[None]:
    """Ignore the timeout of a create: the query stays, and its record says that it is pending."""
    try:
        yield
    except StateError:
        if not any(query.name == name and query.state == "pending" for query in engine.queries()):
            raise


def _text(sql: str, parameters: Mapping[str, Any] | None) -> str:
    """The text of a query with the values of its parameters, in which errors have their places."""
    with _as_problem(sql):
        return with_values(QueryText(sql), parameters)


@contextlib.contextmanager
def _as_problem(sql: str) -> Iterator[None]:
    try:
        yield
    except StreamJoinError as error:
        raise problem_of(error, sql) from error


def check_limits(sql: str, limits: Limits) -> None:
    """Reject a query that exceeds the limits, before the engine sees it; the engine checks names and types.

    Raises:
        QueryError: it has too many words, joins too many streams, or a window is too long; or its text is no query.
    """
    source = Scan.of(QueryText(sql)).source
    if len(source.words) > MOST_WORDS:
        extra = source.words[MOST_WORDS]
        message = f"a query of this service has at most {MOST_WORDS:,} tokens, not {len(source.words):,}"
        raise source.error(message, extra.start, extra.end)
    for frame in clauses.read(source):
        _check_joins(source, frame.joins, limits)


def _check_joins(source: SourceText, joins: Sequence[JoinClause], limits: Limits) -> None:
    if len(joins) + 1 > limits.streams_in_query:
        excess = joins[limits.streams_in_query - 1]
        raise source.error(
            f"this service joins at most {limits.streams_in_query} streams in a query, not {len(joins) + 1}",
            *excess.table.span,
        )
    for join in joins:
        reason = _too_long(join, limits)
        if reason is not None:
            raise source.error(reason, *(join.window_span if join.range is None else join.range.span))


def _too_long(join: JoinClause, limits: Limits) -> str | None:
    window: Window | None = join.window
    if join.range is not None:
        reach = max(abs(join.range.low), abs(join.range.high))
        window = TimeWindow(f"{reach} ns" if join.range.is_duration else reach)
    if window is None:
        # The engine bounds what an as-of join without a tolerance keeps.
        return None
    if isinstance(window, TimeWindow) and window.is_duration:
        if window.length > limits.window_seconds * 1e9:
            return f"a window of this service is at most {limits.window_seconds:,g} seconds"
        return None
    size = window.n if isinstance(window, CountWindow) else window.length
    return (
        f"a window of this service is at most {limits.window_rows:,} rows or units"
        if size > limits.window_rows
        else None
    )
