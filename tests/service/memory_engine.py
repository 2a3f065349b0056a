"""An engine without Spark over the ad-hoc core: batches are made by hand (`tick`), or by a thread for the preview.

It keeps the contract of `streamjoin.adhoc.Engine` that the service relies on, so that the service's own tests are
fast and turn the clock themselves; the real engine is behind the same service in test_serve.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from streamjoin.adhoc.core.changes import Change, Create, Drop, Pause, Resume
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.core.shared import Shared
from streamjoin.adhoc.engine.info import BatchEvent, ChangeRecord, Preview, QueryInfo, StreamInfo
from streamjoin.adhoc.language.plan import Query, Stream
from streamjoin.adhoc.language.sql import parse
from streamjoin.adhoc.sinks.base import Newest, NewestRows
from streamjoin.model.errors import SpecError


@dataclass(frozen=True)
class Handle:
    name: str


class MemoryEngine:
    """See the module. `source(batch)` gives the tables of a batch."""

    def __init__(
        self,
        streams: list[Stream],
        source: Callable[[int], Mapping[str, pa.Table]],
        *,
        rows_kept: int = 1000,
        clock: Callable[[], float] = time.time,
        settings: Settings | None = None,
        together: bool = False,
    ) -> None:
        self._together = together
        self._waiting: list[Change] = []
        self._core = Shared(streams, settings)
        self._streams = streams
        self._source = source
        self._clock = clock
        self._kept_rows = rows_kept
        self._lock = threading.RLock()
        self._batch = -1
        self._infos: dict[str, QueryInfo] = {}
        self._kept: dict[str, NewestRows] = {}
        self._rows_in = {stream.name: 0 for stream in streams}
        self._late: dict[str, pa.Table] = {}
        self.bad: dict[str, pa.Table] = {}
        """The malformed records of streams, as a test says."""
        self.failing: dict[str, str] = {}
        """Why streams can't be read, likewise."""
        self._last_in: Mapping[str, int] = {}
        self._changes: list[ChangeRecord] = []
        self._fresh: list[ChangeRecord] = []
        self._listeners: list[Callable[[BatchEvent], None]] = []
        self._ticking: threading.Thread | None = None
        self._end = threading.Event()
        self.error: Exception | None = None
        self.stopped = False

    # Changes: in force at once, since there is always a boundary between two ticks; or all together at the next one.

    def _change(self, change: Change) -> None:
        with self._lock:
            if self._together:
                self._waiting.append(change)
            else:
                self._core.apply([change])
            sql = change.query.text if isinstance(change.query, Query) else None
            record = ChangeRecord(
                len(self._changes) + 1, change.action, change.name, sql, self._batch + 1, self._clock()
            )
            self._changes.append(record)
            self._fresh.append(record)

    def create(
        self, sql: str, name: str | None = None, sink: Any = None, wait: bool = True, timeout: float = 30.0
    ) -> Handle:
        with self._lock:
            name = name or f"q{len(self._changes) + 1}"
            query = parse(sql, self._streams, name)
            self._change(Create(name, query))
            schema = query.schema
            columns = tuple((field.name, str(field.type)) for field in schema)
            self._infos[name] = QueryInfo(
                name, sql, "running", self._batch + 1, self._clock(), 0, 0.0, None, str(sink or "memory"), columns
            )
            self._kept[name] = NewestRows(schema, self._kept_rows)
        return Handle(name)

    def drop(self, name: str, wait: bool = True) -> None:
        with self._lock:
            self._change(Drop(name))
            del self._infos[name], self._kept[name]

    def pause(self, name: str) -> None:
        with self._lock:
            self._change(Pause(name))
            self._infos[name] = replace(self._infos[name], state="paused")

    def resume(self, name: str) -> None:
        with self._lock:
            self._change(Resume(name))
            self._infos[name] = replace(self._infos[name], state="running")

    # What there is

    def queries(self) -> list[QueryInfo]:
        with self._lock:
            return list(self._infos.values())

    def query(self, name: str) -> QueryInfo:
        with self._lock:
            if name not in self._infos:
                raise SpecError(f"there is no query {name!r}")
            return self._infos[name]

    def streams(self) -> list[StreamInfo]:
        with self._lock:
            return [
                StreamInfo(
                    stream.name,
                    stream.time,
                    tuple((field.name, str(field.type)) for field in stream.schema),
                    self._rows_in[stream.name],
                    float(self._last_in.get(stream.name, 0)),
                    None,
                    None,
                    self.late(stream.name).num_rows,
                    error=self.failing.get(stream.name),
                    malformed=self.malformed(stream.name).num_rows,
                    failures=3 if stream.name in self.failing else 0,
                    retry_at=1_767_225_600.0 if stream.name in self.failing else None,
                )
                for stream in self._streams
            ]

    def late(self, stream: str, limit: int | None = None) -> pa.Table:
        found = self._late.get(stream, next(s.schema.empty_table() for s in self._streams if s.name == stream))
        return found if limit is None else found.slice(max(0, found.num_rows - limit))

    def set_aside(self, stream: str, rows: pa.Table) -> None:
        """Late rows, also such as a test makes up."""
        self._late[stream] = pa.concat_tables([self.late(stream), rows])

    def malformed(self, stream: str, limit: int | None = None) -> pa.Table:
        found = self.bad.get(stream, pa.table({}))
        return found if limit is None else found.slice(max(0, found.num_rows - limit))

    def changelog(self, since: int = 0) -> list[ChangeRecord]:
        with self._lock:
            return [record for record in self._changes if record.serial > since]

    def explain(self) -> Any:
        with self._lock:
            return self._core.explain()

    def preview(self, sql: str) -> Preview:
        with self._lock:
            query = parse(sql, self._streams)
            key = query.join_key().key
            shares = [name for name, entry in self._core.queries.items() if entry.query.join_key().key == key]
        columns = tuple((field.name, str(field.type)) for field in query.schema)
        streams = tuple(source.stream.name for source in query.sources)
        return Preview(columns, streams, tuple(shares), 0 if shares else 1, 1 if shares else 0, 1.0, 2.0, str(key))

    def newest(self, name: str, limit: int = 100, after: int | None = None) -> Newest:
        with self._lock:
            if name not in self._kept:
                raise SpecError(f"there is no query {name!r}")
            return self._kept[name].after(after or 0, limit)

    @property
    def batch(self) -> int:
        """The last batch."""
        return self._batch

    def on_batch(self, callback: Callable[[BatchEvent], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    # Batches

    def tick(self) -> BatchEvent:
        """One batch."""
        begin = time.perf_counter()
        with self._lock:
            self._core.apply(self._waiting)
            self._waiting = []
            self._batch += 1
            tables = self._source(self._batch)
            outputs = self._core.process(self._batch, tables)
            for name, rows in outputs.items():
                self._kept[name].write(self._batch, rows)
                info = self._infos[name]
                self._infos[name] = replace(info, rows=info.rows + rows.num_rows, rows_per_second=float(rows.num_rows))
            for name, rows in self._core.report.late.items():
                self.set_aside(name, rows)
            for name, table in tables.items():
                self._rows_in[name] += table.num_rows
            self._last_in = {name: table.num_rows for name, table in tables.items()}
            changes, self._fresh = tuple(self._fresh), []
            event = BatchEvent(
                self._batch,
                self._clock(),
                time.perf_counter() - begin,
                {name: table.num_rows for name, table in tables.items()},
                {name: rows.num_rows for name, rows in outputs.items()},
                sum(self._core.nbytes.values()),
                1,
                changes,
                latency_ms=40.0 if any(rows.num_rows for rows in outputs.values()) else None,
            )
        for listener in list(self._listeners):
            listener(event)
        return event

    def start(self, every: float) -> None:
        """Tick on a thread, for the preview."""

        def run() -> None:
            while not self._end.wait(every):
                self.tick()

        self._ticking = threading.Thread(target=run, daemon=True)
        self._ticking.start()

    def stop(self) -> None:
        self._end.set()
        if self._ticking is not None:
            self._ticking.join()
        self.stopped = True
