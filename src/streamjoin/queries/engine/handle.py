"""What callers hold of an engine: queries, also before they are in force, their rows, and callbacks.

Callbacks are told of batches, and of queries whose state may have changed, off the path of the next batch: one that is
slow misses the oldest events, one that fails is logged; neither reaches the stream.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from streamjoin.model.errors import StateError
from streamjoin.queries.engine.figures import columns_of
from streamjoin.queries.engine.info import BatchEvent, QueryInfo
from streamjoin.queries.engine.stored import EngineChange
from streamjoin.queries.language.plan import Query
from streamjoin.queries.sinks.base import NewestRows

if TYPE_CHECKING:
    from streamjoin.queries.engine.engine import Engine


class QueryHandle:
    """A query that was created."""

    def __init__(self, engine: Engine, name: str, done: Future[None]) -> None:
        self.name = name
        self._engine = engine
        self._done = done

    def wait(self, timeout: float | None = None) -> None:
        """Return when the query is in force.

        Raises:
            SpecError: it was refused.
            StateError: it is not in force yet after `timeout` seconds, or the engine stopped before.
        """
        in_force(self._done, timeout, f"query {self.name!r} is not in force")

    def info(self) -> QueryInfo:
        """The query as it is now."""
        return self._engine.query(self.name)

    def rows(self, limit: int = 100) -> pa.Table:
        """The newest rows."""
        return self._engine.rows(self.name, limit)

    def __iter__(self) -> ResultIterator:
        """The rows as they come; see `Engine.iterate`."""
        return self._engine.iterate(self.name)

    def drop(self, wait: bool = True) -> None:
        """Drop it."""
        self._engine.drop(self.name, wait=wait)

    def __repr__(self) -> str:
        return f"QueryHandle({self.name!r})"

    def _repr_html_(self) -> str:
        return self.info()._repr_html_()


class ResultIterator:
    """The rows of a query as they come, a table at a time."""

    def __init__(self, newest: NewestRows, timeout: float | None = None) -> None:
        self.skipped = 0
        """Rows that came and went between two steps."""
        self._newest, self._timeout = newest, timeout
        self._position = newest.oldest

    def __iter__(self) -> ResultIterator:
        return self

    def __next__(self) -> pa.Table:
        rows = self._newest.wait_after(self._position, self._timeout)
        if rows is None:
            raise StopIteration
        self.skipped += rows.total - self._position - rows.table.num_rows
        self._position = rows.total
        return rows.table


def pending_info(request: EngineChange) -> QueryInfo:
    """The record of a query that is asked for."""
    columns = columns_of(request.query.schema) if isinstance(request.query, Query) else ()
    sql, sink, owner = request.sql or "", str(request.sink), request.owner
    return QueryInfo(request.name, sql, "pending", -1, request.at, 0, 0.0, None, sink, columns, owner=owner)


def in_force(done: Future[None], timeout: float | None, what: str) -> None:
    """Wait for a change.

    Raises:
        StateError: it is not in force in time.
    """
    try:
        done.result(timeout)
    except TimeoutError as error:
        raise StateError(f"{what} after {timeout} seconds; it will be at the next boundary between batches") from error


MOST: Final = 1000
"""Events that wait for slow callbacks."""

_log = logging.getLogger("streamjoin.adhoc")
_Callback = TypeVar("_Callback", bound=Callable[..., Any])


class Notices:
    """Passes batch events to callbacks on a thread of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[BatchEvent] = deque(maxlen=MOST)
        self._callbacks: list[Callable[[BatchEvent], object]] = []
        self._state_callbacks: list[Callable[[], object]] = []
        self._stirred = False
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, callback: Callable[[BatchEvent], object]) -> Callable[[], None]:
        """Call back after each batch; returns what ends that."""
        return self._added(self._callbacks, callback)

    def add_state(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back when the state of a query may have changed between batches; returns what ends that."""
        return self._added(self._state_callbacks, callback)

    def _added(self, callbacks: list[_Callback], callback: _Callback) -> Callable[[], None]:
        with self._changed:
            callbacks.append(callback)

        def cancel() -> None:
            with self._changed:
                if callback in callbacks:
                    callbacks.remove(callback)

        return cancel

    def publish(self, event: BatchEvent) -> None:
        """Tell of a batch."""
        with self._changed:
            if not self._callbacks or self._closed:
                return
            self._events.append(event)
            self._wake()

    def stir(self) -> None:
        """Tell that the state of a query may have changed."""
        with self._changed:
            if not self._state_callbacks or self._closed:
                return
            self._stirred = True
            self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="adhoc notices")
            self._thread.start()
        self._changed.notify_all()

    def close(self) -> None:
        """Tell of what is there and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._events and not self._stirred and not self._closed:
                    self._changed.wait()
                if not self._events and not self._stirred:
                    return
                event = self._events.popleft() if self._events else None
                callbacks = list(self._callbacks)
                stirred, self._stirred = self._stirred, False
                state_callbacks = list(self._state_callbacks) if stirred else []
            for state_callback in state_callbacks:
                try:
                    state_callback()
                except Exception:
                    _log.exception("a callback of on_state failed")
            if event is None:
                continue
            for callback in callbacks:
                try:
                    callback(event)
                except Exception:
                    _log.exception("a callback of on_batch failed at batch %d", event.batch)
