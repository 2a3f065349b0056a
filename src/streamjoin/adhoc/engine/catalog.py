"""The queries and streams of an engine as they run, and the changes to them, each logged before it is told as made.

The invariant: core, entries and log agree: a change is checked, made in the core, logged, and then acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from streamjoin.adhoc.core.changes import check_name, names_after, no_such_query
from streamjoin.adhoc.core.contract import Action, Core
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.engine.deliveries import Deliveries
from streamjoin.adhoc.engine.figures import RunningQuery, RunningStream
from streamjoin.adhoc.engine.info import ChangeRecord
from streamjoin.adhoc.engine.journal import Body, Journal
from streamjoin.adhoc.engine.recovery import RecoveredState
from streamjoin.adhoc.engine.stored import EngineChange, StoredState, StreamDefinition
from streamjoin.adhoc.language.plan import Query
from streamjoin.adhoc.optimizer.plans import Plan
from streamjoin.adhoc.sinks.base import MemorySink, NewestRows, Sink, Target, Writer
from streamjoin.adhoc.sinks.specs import LostSink, NamedSinks, OpenedLater, sink_of
from streamjoin.model.errors import SpecError, StreamJoinError

_DROPPED_KEPT: Final = 100
_STATE_EVERY: Final = 64


class Catalog:
    """Owns the running queries and streams by name; `named` gives the sinks that the log has only the name of."""

    def __init__(
        self, core: Core, journal: Journal, settings: Settings, spark: Any, named: NamedSinks | None = None
    ) -> None:
        self.core, self.journal, self.settings, self.spark = core, journal, settings, spark
        self.deliveries = Deliveries(journal, settings)
        self.entries: dict[str, RunningQuery] = {}
        self.streams: dict[str, RunningStream] = {}
        self.dropped: dict[str, RunningQuery] = {}
        """The queries that were dropped last, by name."""
        self.changelog: list[ChangeRecord] = []
        """The newest records, as many as the log keeps."""
        self.deploy_ms: float | None = None
        self._newest_rows, self._named = settings.newest_rows, named
        self._stored_serial = 0
        self._stored_plan: Plan | None = None

    # Restarting ---------------------------------------------------------------------------------------------------

    def restore(self, recovery: RecoveredState) -> None:
        """Take over what a restart finds, up to its unfinished batch."""
        counts = recovery.counts.get("streams", {})
        for name, stored in recovery.state.streams.items():
            figures = self.streams[name] = RunningStream(stored.stream, stored.lateness)
            # A checkpoint of an earlier version has no count of malformed records.
            counted = (*counts.get(name, ()), 0, 0, 0, 0)[:4]
            figures.rows, figures.late, figures.untimed, figures.malformed = counted
            figures.bound = recovery.snapshot.clocks.horizons[name].bound
        for name, entry in recovery.state.queries.items():
            entry.sink = sink_of(entry.sink.spec(), name, self._named)
            # A query that came after the count may have the name of another before it.
            counts = recovery.counts if entry.created_batch <= recovery.counted else {}
            _restore_counts(entry, counts, self.journal)
            self.entries[name] = self._opened(entry)
        self._note(recovery.changelog)
        self._stored_serial, self._stored_plan = recovery.state.serial, recovery.state.plan

    def make_again(self, changes: Sequence[EngineChange]) -> None:
        """Make changes that are in the log already."""
        for change in changes:
            record = change.record
            entry = None
            if change.stream is not None:
                self._add_stream(change.stream)
            else:
                self.core.apply([change])
            if record.action == "create":
                query = self.core.queries[record.name].query
                spec = change.sink.spec() if change.sink is not None else None
                sink = sink_of(spec, record.name, self._named)
                entry = self._opened(RunningQuery(query, record.batch, record.at, sink))
            self._settle(record.action, record.name, record.at, entry, record.reason)

    def is_running(self, name: str) -> bool:
        """Whether there is a query of this name that is not paused."""
        return name in self.entries and self.entries[name].state == "running"

    # Changes ------------------------------------------------------------------------------------------------------

    def change(self, requests: Sequence[EngineChange], batch: int) -> list[ChangeRecord]:
        """Make the changes that can be made, in force from `batch` on, and refuse the others one by one."""
        accepted: list[tuple[EngineChange, RunningQuery | None]] = []
        names = set(self.entries)
        for request in requests:
            entry = None
            try:
                self._check(request, names)
                if isinstance(request.query, Query):
                    sink = request.sink or MemorySink()
                    writer = request.writer or self.open_sink(request.query, sink)
                    entry = self._opened(RunningQuery(request.query, batch, request.at, sink), writer)
            except StreamJoinError as error:
                if request.writer is not None:
                    request.writer.close()
                request.done.set_exception(error)
                continue
            accepted.append((request, entry))
            names = names_after(names, [request])
        changes = [request for request, _ in accepted if request.action != "register"]
        if changes:
            self.core.apply(changes)
        now = time.time()
        stored = [request.as_made(serial, batch, now) for serial, (request, _) in enumerate(accepted, self.serial + 1)]
        self._log(batch, stored)
        for request, entry in accepted:
            if entry is not None:
                entry.created_at = now
            self._settle(request.action, request.name, request.at, entry)
            request.done.set_result(None)
        return [change.record for change in stored]

    def failed(self, failures: Mapping[str, str], batch: int) -> list[ChangeRecord]:
        """Log that queries failed and are paused from `batch` on."""
        paused = {record.name for record in self.changelog if record.action == "pause" and record.batch == batch}
        stored = [
            EngineChange("pause", name).as_made(serial, batch, time.time(), failures[name])
            for serial, name in enumerate(
                # A batch that is computed again fails again: that is in the log already.
                (name for name in failures if name not in paused),
                self.serial + 1,
            )
        ]
        self._log(batch, stored)
        for name, error in failures.items():
            self.entries[name].changed("pause", error)
        return [change.record for change in stored]

    def _log(self, batch: int, stored: Sequence[EngineChange]) -> None:
        if stored:
            self.journal.write_changes(stored[0].record.serial, batch, [change.packed() for change in stored])
            self._note([change.record for change in stored])

    @property
    def serial(self) -> int:
        """Of the newest record."""
        return self.changelog[-1].serial if self.changelog else 0

    def _note(self, records: Sequence[ChangeRecord]) -> None:
        # Another list each time: who asks for the changelog reads it on a thread of its own.
        self.changelog = [*self.changelog, *records][-self.journal.changes_kept :]

    def _check(self, request: EngineChange, names: Set[str]) -> None:
        """Refuse a change that can't be made, where `names` are those of the queries before it; add a stream."""
        if request.action == "register":
            if request.stream is None:
                raise AssertionError("a register without its stream")
            self._add_stream(request.stream)
            return
        check_name(request, names)

    def _add_stream(self, stored: StreamDefinition) -> None:
        self.core.add_stream(stored.stream, stored.lateness)
        self.streams[stored.stream.name] = RunningStream(stored.stream, stored.lateness)

    def _settle(
        self, action: Action, name: str, at: float, entry: RunningQuery | None, reason: str | None = None
    ) -> None:
        """The engine's side of a change that the core has made; `entry` is the new query."""
        if entry is not None:
            self.deploy_ms = (time.time() - at) * 1000
            self.entries[name] = entry
        elif action == "drop":
            self._drop(name)
        elif action in ("pause", "resume"):
            self.entries[name].changed(action, reason)
            if action == "resume":
                self.deliveries.retry(name)

    def _drop(self, name: str) -> None:
        entry = self.entries[name]
        entry.state = "dropped"
        self.dropped.pop(name, None)
        self.dropped[name] = entry
        while len(self.dropped) > _DROPPED_KEPT:
            self.dropped.pop(next(iter(self.dropped)))
        del self.entries[name]
        entry.newest.close()
        self.deliveries.remove(name)

    # Entries ------------------------------------------------------------------------------------------------------

    def _opened(self, entry: RunningQuery, writer: Writer | None = None) -> RunningQuery:
        """With a place for its newest rows and the writer of its sink, which otherwise is opened at the first rows."""
        limit = max(entry.sink.limit if isinstance(entry.sink, MemorySink) else 0, self._newest_rows)
        entry.newest = NewestRows(entry.query.schema, limit, entry.produced)
        if not isinstance(entry.sink, MemorySink):
            later = OpenedLater(entry.sink, self._target(entry.query))
            self.deliveries.add(entry, writer or later, getattr(entry.sink, "together", None) if self.spark else None)
        return entry

    def _target(self, query: Query) -> Target:
        return Target(query.name, query.schema, self.journal.engine, self.spark)

    def open_sink(self, query: Query, sink: Sink) -> Writer | None:
        """The writer of a sink for a query; None where the newest rows in memory are the sink."""
        return None if isinstance(sink, MemorySink) else sink.open(self._target(query))

    def attach(self, name: str, sink: Sink) -> None:
        """Give a query another sink of the same kind, one that a restart could not bring back."""
        entry = self.entries.get(name)
        if entry is None:
            raise no_such_query(name, self.entries)
        if entry.sink.spec() is not None and not isinstance(entry.sink, LostSink):
            raise SpecError(f"query {name!r} writes to {entry.sink}, which a restart brings back; drop and create it")
        entry.sink = sink
        writer = self.open_sink(entry.query, sink)
        if writer is None:
            self.deliveries.remove(name)
        else:
            self.deliveries.replace(entry, writer)

    def close(self) -> None:
        """End all iterators and close the writers of all sinks."""
        for entry in self.entries.values():
            entry.newest.close()
        self.deliveries.close()

    # State --------------------------------------------------------------------------------------------------------

    def keep_state(self, batch: int, *, now: bool = False) -> None:
        """Write the whole state if much has changed since, so that a restart has little to make again."""
        snapshot = self.core.snapshot()
        plan = snapshot.optimizer.plan
        changes = self.serial - self._stored_serial
        replanned = plan is not self._stored_plan and not changes
        if not (now or replanned or changes > max(_STATE_EVERY, len(self.entries))):
            return
        streams = {name: StreamDefinition(f.stream, f.lateness) for name, f in self.streams.items()}
        serial = self.serial
        state = StoredState(streams, snapshot.registry, self.entries, plan, snapshot.optimizer.decisions, serial)
        self.journal.write_state(serial, batch, state.packed())
        self._stored_serial, self._stored_plan = serial, plan

    def counts(self) -> dict[str, Any]:
        """What was counted so far."""
        return {
            "produced": {name: entry.produced for name, entry in self.entries.items()},
            "missed": {name: entry.missed for name, entry in self.entries.items() if entry.missed},
            "streams": {name: [f.rows, f.late, f.untimed, f.malformed] for name, f in self.streams.items()},
        }


def _restore_counts(entry: RunningQuery, counts: Body, journal: Journal) -> None:
    """What was counted of a query; checkpoints of earlier versions have only the rows that its sink took."""
    name = entry.name
    entry.missed = counts.get("missed", {}).get(name, 0)
    entry.undelivered = sum(rows.num_rows for _, rows in journal.undelivered(name))
    taken = counts.get("rows", {}).get(name, 0)
    entry.produced = counts.get("produced", {}).get(name, taken + entry.undelivered)
