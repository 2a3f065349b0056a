"""What the service needs of an engine: `streamjoin.adhoc.Engine` has it, and so has the tests' engine without Spark.

All methods may be called from any thread. Records are frozen dataclasses of plain fields (`adhoc/engine/info.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa


class Newest(Protocol):
    """The newest rows of a query: the table's last row is row number `total`."""

    @property
    def total(self) -> int:
        """How many rows the query gave so far."""

    @property
    def table(self) -> pa.Table:
        """The newest of them."""


class ServedEngine(Protocol):
    """See the module."""

    def create(
        self, sql: str, name: str | None = None, sink: Any = None, wait: bool = True, timeout: float = 30.0
    ) -> Any:
        """Create a query; the answer's `name` is its name."""

    def drop(self, name: str, wait: bool = True) -> None:
        """Drop a query."""

    def pause(self, name: str) -> None:
        """Pause a query."""

    def resume(self, name: str) -> None:
        """Resume a query."""

    def queries(self) -> Sequence[Any]:
        """The queries there are, as `QueryInfo`."""

    def query(self, name: str) -> Any:
        """One query's `QueryInfo`."""

    def streams(self) -> Sequence[Any]:
        """The streams, as `StreamInfo`."""

    def late(self, stream: str, limit: int | None = None) -> pa.Table:
        """The newest rows of a stream that came too late or had no time."""

    def malformed(self, stream: str, limit: int | None = None) -> pa.Table:
        """The newest records of a stream that could not be decoded."""

    def changelog(self, since: int = 0) -> Sequence[Any]:
        """The changes after a serial number, as `ChangeRecord`."""

    def explain(self) -> Any:
        """The plan in force."""

    def preview(self, sql: str) -> Any:
        """What a query would be, without creating it."""

    def newest(self, name: str, limit: int = 100, after: int | None = None) -> Newest:
        """The newest rows of a query and their number, taken together."""

    def on_batch(self, callback: Callable[[Any], None]) -> Callable[[], None]:
        """Call back after each batch, off its path; the answer ends it."""

    @property
    def error(self) -> Any:
        """Why the stream stopped, if it did."""

    def stop(self) -> None:
        """Let the batch that runs end, and stop."""
