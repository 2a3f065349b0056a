"""Queries as who created them holds them, also before they are in force."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

import pyarrow as pa

from streamjoin.adhoc.engine.figures import columns_of
from streamjoin.adhoc.engine.info import QueryInfo
from streamjoin.adhoc.engine.stored import EngineChange
from streamjoin.adhoc.language.plan import Query
from streamjoin.adhoc.sinks.base import NewestRows
from streamjoin.model.errors import StateError

if TYPE_CHECKING:
    from streamjoin.adhoc.engine.engine import Engine


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
    return QueryInfo(
        request.name, request.sql or "", "pending", -1, request.at, 0, 0.0, None, str(request.sink), columns
    )


def in_force(done: Future[None], timeout: float | None, what: str) -> None:
    """Wait for a change.

    Raises:
        StateError: it is not in force in time.
    """
    try:
        done.result(timeout)
    except TimeoutError as error:
        raise StateError(f"{what} after {timeout} seconds; it will be at the next boundary between batches") from error
