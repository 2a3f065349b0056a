"""The queries and streams of an engine as they run, and the changes to them, each logged before it is told as made.

The invariant: core, entries and log agree: a change is checked, made in the core, logged, and then acknowledged. One
that can't be made, for whatever reason, is refused alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from streamjoin.model.errors import SpecError, StateError, StreamJoinError, reason_of
from streamjoin.queries.core.budgets import UNLIMITED
from streamjoin.queries.core.changes import Action, Change, check_name, names_after, no_such_query
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import failure_of
from streamjoin.queries.engine.deliveries import Deliveries, close_writer
from streamjoin.queries.engine.executor import QueryCore
from streamjoin.queries.engine.figures import RunningQuery, RunningStream
from streamjoin.queries.engine.info import ChangeRecord
from streamjoin.queries.engine.journal import Body, Journal
from streamjoin.queries.engine.stored import EngineChange, RecoveredState, StoredState, StreamDefinition
from streamjoin.queries.language.plan import Query
from streamjoin.queries.optimizer.plans import Plan
from streamjoin.queries.sinks.base import KeptBytes, MemorySink, NewestRows, Sink, Target, Writer, capabilities
from streamjoin.queries.sinks.specs import NamedSinks, OpenedLater, sink_of

_DROPPED_KEPT: Final = 100
_STATE_EVERY: Final = 64
_log = logging.getLogger("streamjoin.adhoc")


@dataclass(frozen=True)
class _Accepted:
    """A change that can be made: its new query, the open writer of its sink, and its record in the log."""

    request: EngineChange
    entry: RunningQuery | None
    writer: Writer | None
    record: ChangeRecord
    body: Body


class Catalog:
    """Owns the running queries and streams by name; `named` gives the sinks that the log has only the name of."""

    def __init__(
        self,
        core: QueryCore,
        journal: Journal,
        settings: Settings,
        spark: Any,
        named: NamedSinks | None = None,
        stir: Callable[[], None] = lambda: None,
    ) -> None:
        self.core, self.journal, self.settings, self.spark = core, journal, settings, spark
        self.stir = stir
        """Tells that a query may have become degraded, or is not any more."""
        self.deliveries = Deliveries(journal, settings, stir)
        self.entries: dict[str, RunningQuery] = {}
        self.streams: dict[str, RunningStream] = {}
        self.dropped: dict[str, RunningQuery] = {}
        """The queries that were dropped last, by name."""
        self.changelog: list[ChangeRecord] = []
        """The newest records, as many as the log keeps."""
        self.deploy_ms: float | None = None
        self._newest_rows, self._named = settings.newest_rows, named
        self.kept = KeptBytes(settings.rows_bytes) if settings.rows_bytes else None
        self._stored_serial = 0
        self._stored_plan: Plan | None = None

    # Restarting ---------------------------------------------------------------------------------------------------

    def restore(self, recovery: RecoveredState) -> dict[str, str]:
        """Take over what a restart finds, up to its unfinished batch; returns the queries that can't go on, and why."""
        refused: dict[str, str] = {}
        counts = recovery.counts.get("streams", {})
        for name, stored in recovery.state.streams.items():
            figures = self.streams[name] = RunningStream(stored.stream, stored.lateness)
            # A checkpoint of an earlier version has no count of malformed records.
            counted = (*counts.get(name, ()), 0, 0, 0, 0)[:4]
            figures.rows, figures.late, figures.untimed, figures.malformed = counted
            figures.bound = recovery.snapshot.clocks.horizons[name].bound
        for name, entry in recovery.state.queries.items():
            self.entries[name] = entry
            # A query that came after the count may have the name of another before it.
            counts = recovery.counts if entry.created_batch <= recovery.counted else {}
            try:
                entry.sink = sink_of(entry.sink.spec(), name, self._named)
                _restore_counts(entry, counts, self.journal)
                entry.newest = self._newest(entry)
                self._serve_sink(entry)
            except StreamJoinError:
                raise
            except Exception as error:
                refused[name] = f"it can't be brought back: {reason_of(error)}"
        self._note(recovery.changelog)
        self._stored_serial, self._stored_plan = recovery.state.serial, recovery.state.plan
        return refused

    def make_again(self, changes: Sequence[EngineChange]) -> dict[str, str]:
        """Make changes that are in the log already; returns the queries that can't be run, which are paused."""
        refused: dict[str, str] = {}
        for change in changes:
            record = change.record
            entry = None
            if change.stream is not None:
                refused |= self._add_stream(change.stream)
            else:
                try:
                    self.core.apply([change])
                    refused.pop(record.name, None)
                except Exception as error:
                    if record.action not in ("create", "resume"):
                        raise
                    # It is there, as the log says, and has no part in the plan.
                    self.core.apply([*([change] if record.action == "create" else []), Change("pause", record.name)])
                    refused[record.name] = str(failure_of(error))
            if record.action == "create":
                query = self.core.queries[record.name].query
                spec = change.sink.spec() if change.sink is not None else None
                sink = sink_of(spec, record.name, self._named)
                entry = RunningQuery(query, record.batch, record.at, sink, owner=change.owner)
                entry.newest = self._newest(entry)
            self._settle(record.action, record.name, record.at, entry, record.reason)
        return {name: why for name, why in refused.items() if name in self.entries}

    def is_running(self, name: str) -> bool:
        """Whether there is a query of this name that is not paused."""
        return name in self.entries and self.entries[name].state == "running"

    # Changes ------------------------------------------------------------------------------------------------------

    def change(self, requests: Sequence[EngineChange], batch: int) -> list[ChangeRecord]:
        """Make the changes that can be made, in force from `batch` on, and refuse the others one by one."""
        accepted: list[_Accepted] = []
        failures: dict[str, str] = {}
        names = set(self.entries)
        for request in requests:
            try:
                failures |= self._check(request, names)
                coming = [one.entry for one in accepted if one.entry is not None]
                accepted.append(self._prepared(request, batch, coming))
            except Exception as error:
                self._refuse(request, error)
                continue
            names = names_after(names, [request])
        # While the log still has the queries: what waits would be forgotten with them.
        self.deliveries.drain({one.request.name for one in accepted if one.request.action == "drop"})
        accepted = self._applied(accepted)
        now = time.time()
        records = [
            replace(one.record, serial=serial, batch=batch, at=now)
            for serial, one in enumerate(accepted, self.serial + 1)
        ]
        # What the core has made can't be refused any more: nothing that can fail is done for each of them.
        queries = self.core.queries
        begun = [queries.get(r.name) if r.action in ("create", "resume") else None for r in records]
        bodies = [
            {**one.body, **asdict(r), **({} if live is None else {"reached": live.reached})}
            for r, one, live in zip(records, accepted, begun, strict=True)
        ]
        self._log(batch, records, bodies)
        for one in accepted:
            request = one.request
            if one.entry is not None:
                one.entry.created_at = now
            try:
                self._settle(request.action, request.name, request.at, one.entry, writer=one.writer)
            except (StreamJoinError, OSError):
                raise
            except Exception as error:
                _log.error("the %s of %r is not complete", request.action, request.name, exc_info=error)
                failures[request.name] = str(failure_of(error))
                # The core has made the change: what is there is there, and what is gone is gone.
                if one.entry is not None:
                    self.entries[request.name] = one.entry
                elif request.action == "drop":
                    self.entries.pop(request.name, None)
            request.done.set_result(None)
        return records + self.refused({name: why for name, why in failures.items() if name in self.entries}, batch)

    def refused(self, failures: Mapping[str, str], batch: int) -> list[ChangeRecord]:
        """Pause queries that can't be run, outside of a batch, from `batch` on."""
        if not failures:
            return []
        for name, why in failures.items():
            _log.error("query %r is paused: %s", name, why)
        self.core.apply([Change("pause", name) for name in failures if not self.core.queries[name].paused])
        return self.failed(failures, batch)

    def _prepared(self, request: EngineChange, batch: int, coming: Sequence[RunningQuery]) -> _Accepted:
        """All of a change that can fail because of its query, before anything is changed; `coming` come before it."""
        entry, writer = None, request.writer
        if isinstance(request.query, Query):
            sink = request.sink or MemorySink()
            self._check_directory(request.name, sink, coming)
            entry = RunningQuery(request.query, batch, request.at, sink, owner=request.owner)
            entry.newest = self._newest(entry)
            writer = writer or self.open_sink(request.query, entry.sink)
        try:
            made = request.as_made(0, batch, request.at)
            return _Accepted(request, entry, writer, made.record, made.packed())
        except BaseException:
            if writer is not None and writer is not request.writer:
                close_writer(writer, request.name)
            raise

    def _applied(self, accepted: list[_Accepted]) -> list[_Accepted]:
        """The changes that the core makes: all at once, or, if one of them can't be made, those that can."""
        changes = [one.request for one in accepted if one.request.action != "register"]
        try:
            if changes:
                self.core.apply(changes)
            return accepted
        except Exception as error:
            if len(accepted) > 1:
                return [made for one in accepted for made in self._applied([one])]
            self._refuse(accepted[0].request, error, accepted[0].writer)
            return []

    def _refuse(self, request: EngineChange, error: Exception, writer: Writer | None = None) -> None:
        writer = writer or request.writer
        if writer is not None:
            close_writer(writer, request.name)
        if not isinstance(error, StreamJoinError):
            _log.error("the %s of %r can't be made", request.action, request.name, exc_info=error)
            error = StateError(f"the {request.action} of {request.name!r} can't be made: {reason_of(error)}")
        request.done.set_exception(error)

    def failed(self, failures: Mapping[str, str], batch: int, releases: bool = False) -> list[ChangeRecord]:
        """Log that queries failed and are paused from `batch` on; `releases` says that no tuples are held for them."""
        paused = {record.name for record in self.changelog if record.action == "pause" and record.batch == batch}
        # A batch that is computed again fails again: that is in the log already.
        new = [name for name in failures if name not in paused]
        now = time.time()
        records = [
            ChangeRecord(serial, "pause", name, None, batch, now, failures[name])
            for serial, name in enumerate(new, self.serial + 1)
        ]
        more: Body = {
            "sink": None,
            "stream": None,
            "budget": asdict(UNLIMITED),
            **({"releases": True} if releases else {}),
        }
        bodies = [{**asdict(record), **more} for record in records]
        self._log(batch, records, bodies)
        for name, error in failures.items():
            self.entries[name].state, self.entries[name].error = "failed", error
        return records

    def _log(self, batch: int, records: Sequence[ChangeRecord], bodies: list[Body]) -> None:
        if records:
            self.journal.write_changes(records[0].serial, batch, bodies)
            self._note(records)

    @property
    def serial(self) -> int:
        """Of the newest record."""
        return self.changelog[-1].serial if self.changelog else 0

    def _note(self, records: Sequence[ChangeRecord]) -> None:
        # Another list each time: who asks for the changelog reads it on a thread of its own.
        self.changelog = [*self.changelog, *records][-self.journal.changes_kept :]

    def _check(self, request: EngineChange, names: Set[str]) -> dict[str, str]:
        """Refuse a change that can't be made, where `names` are those of the queries before it; add a stream.

        Returns the queries that can't be run over a stream that has changed.
        """
        if request.action == "register":
            if request.stream is None:
                raise AssertionError("a register without its stream")
            return self._add_stream(request.stream)
        check_name(request, names)
        return {}

    def _add_stream(self, stored: StreamDefinition) -> dict[str, str]:
        """Make a stream known, or change it; returns the queries that can't be run then."""
        figures = self.streams.get(stored.stream.name)
        if figures is None:
            self.core.add_stream(stored.stream, stored.lateness)
            self.streams[stored.stream.name] = RunningStream(stored.stream, stored.lateness)
            return {}
        failures = self.core.change_stream(stored.stream, stored.lateness)
        figures.stream, figures.lateness = stored.stream, stored.lateness
        for name, entry in self.entries.items():
            entry.query = self.core.queries[name].query
        return {name: str(error) for name, error in failures.items()}

    def _settle(
        self,
        action: Action,
        name: str,
        at: float,
        entry: RunningQuery | None,
        reason: str | None = None,
        writer: Writer | None = None,
    ) -> None:
        """The engine's side of a change that the core has made; `entry` is the new query, `writer` that of its sink."""
        if entry is not None:
            self.deploy_ms = (time.time() - at) * 1000
            self.entries[name] = entry
            self._serve_sink(entry, writer)
        elif action == "drop":
            self._drop(name)
        elif action in ("pause", "resume"):
            self.entries[name].changed(action, reason)
            if action == "resume":
                self.deliveries.retry(name)

    def _drop(self, name: str) -> None:
        entry = self.entries[name]
        entry.state = "dropped"
        before = self.dropped.pop(name, None)
        if before is not None:
            before.newest.forget()
        self.dropped[name] = entry
        while len(self.dropped) > _DROPPED_KEPT:
            self.dropped.pop(next(iter(self.dropped))).newest.forget()
        del self.entries[name]
        entry.newest.close()
        self.deliveries.remove(name)

    # Entries ------------------------------------------------------------------------------------------------------

    def _newest(self, entry: RunningQuery) -> NewestRows:
        """A place for the newest rows of a query."""
        limit = max((entry.able.kept_by_engine and entry.able.newest_only) or 0, self._newest_rows)
        return NewestRows(entry.query.schema, limit, entry.produced, self.kept)

    def _serve_sink(self, entry: RunningQuery, writer: Writer | None = None) -> None:
        """Have rows written by a writer; without one the sink is opened at the first rows."""
        if not entry.able.kept_by_engine:
            later = OpenedLater(entry.sink, self._target(entry.query))
            self.deliveries.add(entry, writer or later, entry.able.together if self.spark else None)

    def _target(self, query: Query) -> Target:
        return Target(query.name, query.schema, self.journal.engine, self.spark, query.text)

    def open_sink(self, query: Query, sink: Sink) -> Writer | None:
        """The writer of a sink for a query; None where the newest rows in memory are the sink.

        Raises:
            SpecError: it can't be opened, or another query writes to the same directory.
        """
        self._check_directory(query.name, sink)
        return None if capabilities(sink).kept_by_engine else sink.open(self._target(query))

    def _check_directory(self, name: str, sink: Sink, coming: Sequence[RunningQuery] = ()) -> None:
        """Refuse the directory of another query, which may have no file in it yet."""
        wanted = capabilities(sink).files
        if wanted is None or wanted.shared:
            return
        for entry in (*tuple(self.entries.values()), *coming):
            other = entry.able.files
            if entry.name != name and other is not None and other.resolved == wanted.resolved:
                raise SpecError(
                    f"query {entry.name!r} writes to {wanted.path}, and a directory belongs to one query: take "
                    "another one"
                )

    def attach(self, name: str, sink: Sink) -> None:
        """Give a query another sink of the same kind, one that a restart could not bring back."""
        entry = self.entries.get(name)
        if entry is None:
            raise no_such_query(name, self.entries)
        if entry.sink.spec() is not None and entry.able.lost is None:
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
        try:
            body = state.packed()
        except Exception as error:
            # It only spares a restart some work: the log has all changes.
            _log.error("the state after batch %d can't be stored: %s", batch, reason_of(error), exc_info=error)
            return
        self.journal.write_state(serial, batch, body)
        self._stored_serial, self._stored_plan = serial, plan

    def counts(self) -> dict[str, Any]:
        """What was counted so far."""
        return {
            "produced": {name: entry.produced for name, entry in self.entries.items()},
            "missed": {name: entry.missed for name, entry in self.entries.items() if entry.missed},
            "overflowed": {name: entry.overflowed for name, entry in self.entries.items() if entry.overflowed},
            "streams": {name: [f.rows, f.late, f.untimed, f.malformed] for name, f in self.streams.items()},
        }


def _restore_counts(entry: RunningQuery, counts: Body, journal: Journal) -> None:
    """What was counted of a query; checkpoints of earlier versions have only the rows that its sink took."""
    name = entry.name
    entry.missed, entry.overflowed = (counts.get(what, {}).get(name, 0) for what in ("missed", "overflowed"))
    entry.undelivered = sum(rows.num_rows for _, rows in journal.undelivered(name))
    taken = counts.get("rows", {}).get(name, 0)
    entry.produced = counts.get("produced", {}).get(name, taken + entry.undelivered)
