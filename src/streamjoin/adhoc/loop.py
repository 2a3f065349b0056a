"""The one thread that runs batches: changes first, then tuples, then rows to the sinks, then the next.

The invariants: changes take effect in the order they were asked for, at a boundary between two batches; a change is
told as done once it is in the log; a sink that fails pauses its own query and touches nothing else; any other error
ends the engine with its reason, and what the log has is what a restart goes on from.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from streamjoin.adhoc.arrivals import Arrived
from streamjoin.adhoc.changes import Change, Create, Drop, Pause, Resume
from streamjoin.adhoc.figures import QueryEntry, StreamFigures, mean_event_time
from streamjoin.adhoc.inbox import Inbox, Portion, Request, Work
from streamjoin.adhoc.info import BatchEvent, ChangeRecord
from streamjoin.adhoc.sinks import MemorySink, NewestRows, Sink, Target
from streamjoin.model.errors import InputError, SpecError, StreamJoinError

_DROPPED_KEPT: Final = 100
_log = logging.getLogger(__name__)


class BatchLoop:
    """See the module. `core` is a `Shared` or an `Apart`; `publish` is given every batch's event."""

    def __init__(self, core: Any, inbox: Inbox, newest_rows: int, publish: Callable[[BatchEvent], None]) -> None:
        self.core = core
        self.inbox = inbox
        self.entries: dict[str, QueryEntry] = {}
        self.streams: dict[str, StreamFigures] = {}
        self.dropped: dict[str, QueryEntry] = {}
        """The queries that were dropped last, by name."""
        self.changelog: list[ChangeRecord] = []
        self.state_bytes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.batches = self.rows_in = self.rows_out = 0
        self.last_event: BatchEvent | None = None
        self.deploy_ms: float | None = None
        self.spark: Any = None
        self._newest_rows = newest_rows
        self._publish = publish
        self._batch = -1

    def run(self) -> None:
        """Until the inbox is closed and empty."""
        while (work := self.inbox.take()) is not None:
            if work.requests or work.portions:
                self._boundary(work)
            for question in work.questions:
                question()

    def close(self) -> None:
        """Close the writers of all sinks."""
        for entry in self.entries.values():
            _close(entry)

    # A batch ------------------------------------------------------------------------------------------------------

    def _boundary(self, work: Work) -> None:
        began = time.perf_counter()
        self._batch += 1
        with self._timed("changes"):
            changes = self._change(work.requests)
        with self._timed("arrivals"):
            arrived = self.core.arrive(self._batch, {name: part.table for name, part in work.portions.items()})
        with self._timed("storing"):
            self._store(arrived, work.portions)
        with self._timed("joining"):
            outputs, failures = self.core.results(arrived)
        with self._timed("sinks"):
            for name, error in failures.items():
                self.entries[name].fail(str(error))
            counts, refused = self._deliver(outputs, arrived)
        with self._timed("finishing"):
            self.core.finish(arrived, {**failures, **refused})
            self._count(arrived, work.portions)
        self._tell(began, work, changes, counts)

    @contextmanager
    def _timed(self, component: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[component] = self.seconds.get(component, 0.0) + time.perf_counter() - began

    def _store(self, arrived: Arrived, portions: Mapping[str, Portion]) -> None:  # noqa: ARG002
        for portion in portions.values():
            portion.safe.set_result(None)

    def _deliver(
        self, outputs: Mapping[str, pa.Table], arrived: Arrived
    ) -> tuple[dict[str, int], dict[str, InputError]]:
        """The rows to their sinks; what was found for each query, and which sinks refused theirs."""
        counts: dict[str, int] = {}
        refused: dict[str, InputError] = {}
        streams = {name: figures.stream for name, figures in self.streams.items()}
        for name, rows in outputs.items():
            if not rows.num_rows:
                continue
            entry = self.entries[name]
            counts[name] = rows.num_rows
            entry.newest.write(self._batch, rows)
            try:
                if entry.writer is not None:
                    entry.writer.write(self._batch, rows)
            except Exception as error:
                entry.fail(f"{type(error).__name__}: {error}", rows.num_rows)
                refused[name] = InputError(f"the sink of query {name!r} failed: {error}")
                continue
            buckets = [bucket for stream, bucket in arrived.buckets.items() if stream in entry.streams]
            entry.delivered(rows.num_rows, mean_event_time(buckets, streams))
        return counts, refused

    def _count(self, arrived: Arrived, portions: Mapping[str, Portion]) -> None:
        for name in portions:
            late, untimed = (found[name].num_rows if name in found else 0 for found in (arrived.late, arrived.untimed))
            bound = arrived.clocks.horizons[name].bound
            self.streams[name].arrived(arrived.buckets.get(name), late, untimed, bound)

    def _tell(self, began: float, work: Work, changes: list[ChangeRecord], counts: dict[str, int]) -> None:
        rows_in = {name: part.table.num_rows for name, part in work.portions.items()}
        self.batches += 1
        self.rows_in += sum(rows_in.values())
        self.rows_out += sum(counts.values())
        self.state_bytes = self.core.nbytes
        decisions = self.core.snapshot().optimizer.decisions
        self.last_event = BatchEvent(
            self._batch,
            time.time(),
            time.perf_counter() - began,
            rows_in,
            counts,
            sum(self.state_bytes.values()),
            0,
            tuple(changes),
            tuple(str(decision) for decision in decisions if decision.batch == self._batch),
        )
        self._publish(self.last_event)

    # Changes ------------------------------------------------------------------------------------------------------

    def _change(self, requests: list[Request]) -> list[ChangeRecord]:
        """Make the changes that can be made, and refuse the others one by one."""
        made: list[Request] = []
        changes: list[Change] = []
        for request in requests:
            try:
                change = self._checked(request, made)
            except StreamJoinError as error:
                request.done.set_exception(error)
                continue
            made.append(request)
            if change is not None:
                changes.append(change)
        if changes:
            self.core.apply(changes)
        first = len(self.changelog) + 1
        records = [self._record(serial, request) for serial, request in enumerate(made, first)]
        self.changelog += records
        for request in made:
            self._settle(request)
            request.done.set_result(None)
        return records

    def _checked(self, request: Request, made: list[Request]) -> Change | None:
        if request.action == "register":
            self._register(request)
            return None
        there = set(self.entries)
        for earlier in made:
            if earlier.action in ("create", "drop"):
                (there.add if earlier.action == "create" else there.discard)(earlier.name)
        if request.action == "create":
            if request.name in there:
                raise SpecError(f"there is a query {request.name!r} already; drop it, or take another name")
            if request.query is None:
                raise AssertionError("a create without its query")
            return Create(request.name, request.query)
        if request.name not in there:
            raise SpecError(f"there is no query {request.name!r}; there are: {', '.join(sorted(there)) or 'none'}")
        if request.action == "drop":
            return Drop(request.name)
        return Pause(request.name) if request.action == "pause" else Resume(request.name)

    def _register(self, request: Request) -> None:
        if request.stream is None:
            raise AssertionError("a register without its stream")
        self.core.add_stream(request.stream, request.lateness)
        self.streams[request.name] = StreamFigures(request.stream, request.lateness)

    def _record(self, serial: int, request: Request) -> ChangeRecord:
        return ChangeRecord(serial, request.action, request.name, request.sql, self._batch, time.time())

    def _settle(self, request: Request) -> None:
        """The engine's side of a change that the core has made."""
        name = request.name
        if request.action == "create":
            self.deploy_ms = (time.time() - request.at) * 1000
            self.entries[name] = self._entry(request)
        elif request.action == "drop":
            entry = self.entries[name]
            entry.state = "dropped"
            self.dropped.pop(name, None)
            self.dropped[name] = entry
            while len(self.dropped) > _DROPPED_KEPT:
                self.dropped.pop(next(iter(self.dropped)))
            del self.entries[name]
            _close(entry)
        elif request.action in ("pause", "resume"):
            entry = self.entries[name]
            entry.state = "paused" if request.action == "pause" else "running"
            entry.error = None

    def _entry(self, request: Request) -> QueryEntry:
        query, sink = request.query, request.sink
        if query is None:
            raise AssertionError("a create without its query")
        sink = MemorySink() if sink is None else sink
        newest, writer = self._opened(request.name, query.schema, sink)
        return QueryEntry(
            request.name,
            query.text,
            query.schema,
            frozenset(source.stream.name for source in query.sources),
            self._batch,
            request.at,
            sink,
            writer,
            newest,
        )

    def _opened(self, name: str, schema: pa.Schema, sink: Sink) -> tuple[NewestRows, Any]:
        if isinstance(sink, MemorySink):
            return NewestRows(schema, max(sink.limit, self._newest_rows)), None
        return NewestRows(schema, self._newest_rows), sink.open(Target(name, schema, "", self.spark))


def _close(entry: QueryEntry) -> None:
    if entry.writer is not None:
        try:
            entry.writer.close()
        except Exception:
            _log.exception("the sink of query %r can't be closed", entry.name)
        entry.writer = None
