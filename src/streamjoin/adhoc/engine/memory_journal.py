"""The journal of an engine without a checkpoint: nothing survives the process, so nothing is written.

What the engine reads back while it runs stays in memory: rows that wait for a sink, and the newest rows set aside.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import pyarrow as pa

from streamjoin.adhoc.core.arrivals import Arrived
from streamjoin.adhoc.engine.journal import Body, Journal, Position
from streamjoin.adhoc.sinks.base import NewestRows, PackedRows
from streamjoin.storage.places import Place

ASIDE_KEPT: Final = 10_000
"""Rows that were set aside, by stream and kind, that can still be read."""


class MemoryJournal(Journal):
    """Keeps in memory what `Journal` writes, as far as a running engine needs it."""

    batches_skipped = 0

    def __init__(self) -> None:
        self.engine = uuid.uuid4().hex
        self._aside: dict[tuple[str, str], NewestRows] = {}
        self._waiting: dict[str, dict[int, PackedRows]] = {}
        self._origins: dict[str, str] = {}

    def close(self) -> None:
        """Nothing is open."""

    def write_changes(self, serial: int, batch: int, records: list[Body]) -> None:
        """Nothing is kept."""

    def write_input(
        self,
        arrived: Arrived,
        positions: Mapping[str, Position],  # noqa: ARG002
        held: Mapping[str, Iterable[int]],  # noqa: ARG002
        serial: int,  # noqa: ARG002
    ) -> None:
        """Keep the newest of what was set aside."""
        for kind, tables in (("late", arrived.late), ("late", arrived.untimed), ("malformed", arrived.malformed)):
            for stream, rows in tables.items():
                newest = self._aside.setdefault((kind, stream), NewestRows(rows.schema, ASIDE_KEPT))
                newest.write(arrived.batch, rows)

    def write_kinds(self, batch: int, states: pa.Table) -> None:
        """Nothing is kept."""

    def write_done(self, batch: int, counts: Body) -> None:
        """Nothing is kept."""

    def write_state(self, serial: int, batch: int, state: Body) -> None:
        """Nothing is kept."""

    def write_attempt(self, batch: int, attempt: Body | None) -> None:
        """Nothing is kept."""

    def write_undelivered(self, query: str, batch: int, rows: pa.Table) -> None:
        """Keep rows that wait for a sink."""
        self._waiting.setdefault(query, {})[batch] = PackedRows(rows)

    def numbers(self, kind: str) -> list[int]:  # noqa: ARG002
        """There are no files."""
        return []

    def undelivered(self, query: str) -> list[tuple[int, pa.Table]]:
        """The rows that wait for a query's sink, by batch."""
        return sorted((batch, rows.table()) for batch, rows in self._waiting.get(query, {}).items())

    def read_undelivered(self, query: str, batch: int) -> pa.Table:
        """The rows of a batch that wait for a query's sink."""
        return self._waiting[query][batch].table()

    def aside(self, kind: Literal["late", "malformed"], stream: str, limit: int | None = None) -> pa.Table | None:
        """The newest rows set aside of a stream, oldest first; None if there are none."""
        newest = self._aside.get((kind, stream))
        return None if newest is None else newest.newest(ASIDE_KEPT if limit is None else limit)

    def write_origin(self, stream: str, origin: str) -> None:
        """Keep it for who registers a stream again."""
        self._origins[stream] = origin

    def origin(self, stream: str) -> str | None:
        """Where a stream is read from."""
        return self._origins.get(stream)

    def source_notes(self, stream: str) -> Place | None:  # noqa: ARG002
        """None: nothing is kept."""
        return None

    def forget_undelivered(self, query: str, batch: int | None = None) -> None:
        """Forget the rows of a batch, or all of a query."""
        if batch is None:
            self._waiting.pop(query, None)
        else:
            self._waiting.get(query, {}).pop(batch, None)

    def remove_unfinished(self, newest: int) -> None:
        """There is nothing."""
