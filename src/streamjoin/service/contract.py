"""The engine's interface for the service, implemented by `streamjoin.adhoc.Engine` and by a test engine without Spark.

All methods may be called from any thread. Records are frozen dataclasses of plain fields (`adhoc/engine/info.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from streamjoin.adhoc.core.explain import Explanation
    from streamjoin.adhoc.engine.info import BatchEvent, ChangeRecord, Preview, QueryInfo, RunningBatch, StreamInfo
    from streamjoin.adhoc.sinks.base import Newest, Sink


class CreatedQuery(Protocol):
    """A query that was created."""

    @property
    def name(self) -> str:
        """Its name."""

    def wait(self, timeout: float | None = None) -> None:
        """Return when it is in force."""


class ServedEngine(Protocol):
    """The methods of `streamjoin.adhoc.Engine` that the service calls."""

    def create(
        self,
        sql: str,
        name: str | None = None,
        sink: Sink | Callable[[str], Sink] | None = None,
        wait: bool = True,
        timeout: float = 30.0,
        *,
        allow_scan: bool = False,
    ) -> CreatedQuery:
        """Create a query."""

    def drop(self, name: str, wait: bool = True) -> None:
        """Drop a query."""

    def pause(self, name: str) -> None:
        """Pause a query."""

    def resume(self, name: str) -> None:
        """Resume a query."""

    def queries(self) -> Sequence[QueryInfo]:
        """All queries."""

    def query(self, name: str) -> QueryInfo:
        """One query."""

    def streams(self) -> Sequence[StreamInfo]:
        """All streams."""

    def late(self, stream: str, limit: int | None = None) -> pa.Table:
        """The newest rows of a stream that came too late or had no time."""

    def malformed(self, stream: str, limit: int | None = None) -> pa.Table:
        """The newest records of a stream that could not be decoded."""

    def changelog(self, since: int = 0) -> Sequence[ChangeRecord]:
        """The changes after a serial number."""

    def activity(self) -> RunningBatch | None:
        """The batch that runs now."""

    def explain(self, timeout: float | None = None) -> Explanation:
        """The plan in force."""

    def preview(self, sql: str, timeout: float | None = None) -> Preview:
        """The plan of a query, without creating it."""

    def newest(self, name: str, limit: int = 100, after: int | None = None) -> Newest:
        """The newest rows of a query and their number, taken together."""

    def on_batch(self, callback: Callable[[BatchEvent], object]) -> Callable[[], None]:
        """Call a function after each batch, on another thread; returns a function that ends it."""

    @property
    def error(self) -> Exception | None:
        """Why the engine stopped, if it did."""

    def stop(self) -> None:
        """Finish the running batch and stop."""
