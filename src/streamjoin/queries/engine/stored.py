"""The engine's state as its log keeps it, and what a restart finds there.

Streams, queries, the plan, and the changelog's records go to JSON and back. A restart finds the state at the newest
batch in the log, and what of that batch is still to be done. The invariant: the rows of a batch are computed from the
queries that were in force at it, so changes that came after are made only once the batch is done.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from streamjoin.model.errors import CheckpointError, reason_of
from streamjoin.queries.core.arrivals import Arrived, Aside, Clocks
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.budgets import Budget
from streamjoin.queries.core.changes import Change, LiveQuery, QueryRegistry
from streamjoin.queries.core.groups.feeds import GroupStore, WaitingState, unpacked_waiting
from streamjoin.queries.core.probe_plan import Choice
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Snapshot
from streamjoin.queries.engine.figures import RunningQuery
from streamjoin.queries.engine.info import ChangeRecord
from streamjoin.queries.engine.journal import Body, FileJournal, Position
from streamjoin.queries.language.plan import Query, Stream, query_name
from streamjoin.queries.optimizer.optimizer import Optimizer
from streamjoin.queries.optimizer.plans import Decision, Plan
from streamjoin.queries.sinks.base import Sink, Writer
from streamjoin.queries.sinks.specs import LostSink
from streamjoin.windows.clock import NEVER, Horizon


@dataclass(frozen=True)
class StreamDefinition:
    """A stream and its lateness in ticks."""

    stream: Stream
    lateness: int

    def packed(self) -> Body:
        """As JSON has it."""
        schema = base64.b64encode(self.stream.schema.serialize()).decode()
        return {"name": self.stream.name, "schema": schema, "time": self.stream.time, "lateness": self.lateness}

    @classmethod
    def unpacked(cls, body: Body) -> StreamDefinition:
        """What `packed` gave."""
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body["schema"])))
        return cls(Stream(body["name"], schema, body["time"]), int(body["lateness"]))


_NOT_MADE: Final = ChangeRecord(0, "create", "", None, -1, 0.0)


@dataclass(frozen=True, eq=False)
class EngineChange(Change):
    """A change to a query, or a stream to register: as it is asked for, and as the journal has it.

    `done` is resolved when it is in force; `record` says so from then on. `writer` is that of `sink`, if it is open.
    """

    sink: Sink | None = None
    writer: Writer | None = None
    stream: StreamDefinition | None = None
    at: float = field(default_factory=time.time)
    record: ChangeRecord = _NOT_MADE
    done: Future[None] = field(default_factory=Future, repr=False)
    owner: str | None = field(default=None, kw_only=True)
    """Who asked for a query."""

    @property
    def sql(self) -> str | None:
        """The text of a query to create."""
        return self.query.text if isinstance(self.query, Query) else self.query

    def as_made(self, serial: int, batch: int, at: float) -> EngineChange:
        """This change, in force from `batch` on since the Unix time `at`."""
        return replace(self, record=ChangeRecord(serial, self.action, self.name, self.sql, batch, at))

    def packed(self) -> Body:
        """As JSON has it."""
        return {
            **asdict(self.record),
            "sink": self.sink.spec() if self.sink is not None else None,
            "stream": self.stream.packed() if self.stream is not None else None,
            "budget": asdict(self.budget),
            "owner": self.owner,
            **({"releases": True} if self.releases else {}),
            **({} if self.reached is None else {"reached": self.reached}),
        }

    @classmethod
    def unpacked(cls, body: Body) -> EngineChange:
        """What `packed` gave; its sink is opened only if the query is still there after all changes."""
        record = ChangeRecord(**{name: body[name] for name in ChangeRecord.__dataclass_fields__})
        stream = StreamDefinition.unpacked(body["stream"]) if body["stream"] is not None else None
        sink = LostSink(record.name, "not opened yet", body["sink"])
        budget = Budget(**body.get("budget", {}))
        given = record.action, record.name, record.sql, sink, None, stream, record.at, record
        more = {"releases": body.get("releases", False), "reached": body.get("reached")}
        return cls(*given, budget=budget, owner=body.get("owner"), **more)


@dataclass(frozen=True)
class StoredState:
    """Everything but the tuples; changes give a new one. Queries that come from the log have no sink yet."""

    streams: Mapping[str, StreamDefinition]
    registry: QueryRegistry
    queries: Mapping[str, RunningQuery]
    plan: Plan
    decisions: tuple[Decision, ...] = ()
    serial: int = 0

    @classmethod
    def empty(cls) -> StoredState:
        """Nothing yet."""
        return cls({}, QueryRegistry(), {}, Plan())

    def changed(self, changes: Iterable[EngineChange]) -> StoredState:
        """With changes made, each in force from its batch on."""
        streams, queries, registry, serial = dict(self.streams), dict(self.queries), self.registry, self.serial
        choices, unplanned = dict(self.plan.choices), set(self.plan.changed)
        for change in changes:
            record, name = change.record, change.record.name
            serial = record.serial
            if change.stream is not None:
                streams[name] = change.stream
                registry = registry.read_again(name, {key: stored.stream for key, stored in streams.items()})
                for query, entry in registry.queries.items():
                    queries[query] = replace(queries[query], query=entry.query)
                continue
            catalog = {key: stored.stream for key, stored in streams.items()}
            registry = registry.changed([change], catalog, record.batch)
            if record.action == "create":
                queries[name] = _without_sink(registry.queries[name], record.at, change.sink, change.owner)
            elif record.action == "drop":
                del queries[name]
                # A query of this name that comes later is another: what was chosen for this one may not fit it.
                for part in [part for part in choices if query_name(part) == name]:
                    del choices[part]
                    unplanned.add(part)
            else:
                queries[name] = replace(queries[name])
                queries[name].changed(record.action, record.reason)
        plan = Plan(choices, frozenset(unplanned))
        return StoredState(streams, registry, queries, plan, self.decisions, serial)

    def optimizer(self, empty: Optimizer, batch: int) -> Optimizer:
        """An optimizer with the plan; queries that came after it are placed anew."""
        begun = replace(empty, plan=self.plan, decisions=self.decisions)
        return begun.after_changes(self.registry.paths, batch)

    def packed(self) -> Body:
        """As JSON has it."""
        queries = [
            {
                "name": name,
                "serial": entry.serial,
                "created": entry.created,
                "paused": entry.paused,
                "released": entry.released,
                "reached": entry.reached,
                "budget": asdict(entry.budget),
                "sql": entry.query.text,
                "created_at": self.queries[name].created_at,
                "sink": self.queries[name].sink.spec(),
                "state": self.queries[name].state,
                "error": self.queries[name].error,
                "owner": self.queries[name].owner,
            }
            for name, entry in self.registry.queries.items()
        ]
        return {
            "streams": [stored.packed() for stored in self.streams.values()],
            "queries": queries,
            "next_serial": self.registry.next_serial,
            "plan": {name: [choice.group, choice.orders] for name, choice in self.plan.choices.items()},
            "unplanned": sorted(self.plan.changed),
            "decisions": [{**asdict(decision), "figures": dict(decision.figures)} for decision in self.decisions],
        }

    @classmethod
    def unpacked(cls, body: Body, serial: int) -> StoredState:
        """What `packed` gave."""
        streams = {one["name"]: StreamDefinition.unpacked(one) for one in body["streams"]}
        catalog = {name: stored.stream for name, stored in streams.items()}
        registry, queries = QueryRegistry(), {}
        for one in body["queries"]:
            name = one["name"]
            registry = replace(registry, next_serial=one["serial"])
            budget = Budget(**one.get("budget", {}))
            create = Change("create", name, one["sql"], budget=budget, reached=one.get("reached"))
            registry = registry.changed([create], catalog, one["created"])
            if one["paused"]:
                pause = Change("pause", name, releases=one.get("released", False))
                registry = registry.changed([pause], catalog, one["created"])
            sink = LostSink(name, "not opened yet", one["sink"])
            queries[name] = _without_sink(registry.queries[name], one["created_at"], sink, one.get("owner"))
            queries[name].state, queries[name].error = one["state"], one["error"]
        registry = replace(registry, next_serial=body["next_serial"])
        orders = {name: tuple(map(tuple, chosen[1])) for name, chosen in body["plan"].items()}
        choices = {name: Choice(chosen[0], orders[name]) for name, chosen in body["plan"].items()}
        # Checkpoints of earlier versions have decisions without their queries.
        decisions = tuple(Decision(**{**one, "queries": tuple(one.get("queries", ()))}) for one in body["decisions"])
        return cls(streams, registry, queries, Plan(choices, frozenset(body["unplanned"])), decisions, serial)


def _without_sink(entry: LiveQuery, created_at: float, sink: Sink | None, owner: str | None) -> RunningQuery:
    """A query of the journal; its sink is not opened yet."""
    sink = sink or LostSink(entry.query.name, "not opened yet")
    return RunningQuery(entry.query, entry.created, created_at, sink, owner=owner)


def unpacked_clocks(body: Body, streams: Mapping[str, StreamDefinition]) -> Clocks:
    """What `packed_clocks` gave; streams that came later have not begun."""
    begun = Clocks.start({name: stored.lateness for name, stored in streams.items()})
    horizons, counts = dict(begun.horizons), dict(begun.counts)
    for name, (clock, count, *before) in body["streams"].items():
        # Earlier versions wrote no lateness, as it could not change.
        lateness = streams[name].lateness
        horizons[name] = Horizon.resumed(before[0] if before else lateness, clock).with_lateness(lateness)
        counts[name] = count
    return Clocks(horizons, counts, body["gate"])


@dataclass(frozen=True)
class RecoveredState:
    """What the log holds; `later` are the changes to make after `unfinished`, the newest batch if it is not done.

    `aside` says how many rows were set aside in that batch: they are in the log, and not yet in `counts`.
    """

    state: StoredState
    snapshot: Snapshot
    unfinished: Arrived | None
    later: tuple[EngineChange, ...]
    changelog: tuple[ChangeRecord, ...]
    positions: Mapping[str, Position]
    counts: Body
    counted: int
    """The batch after which `counts` were written; -1 if nothing was counted."""
    aside: Mapping[str, Aside] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    """Queries that can't go on, and why."""
    attempt: Body = field(default_factory=dict)
    """What an earlier restart noted of computing `unfinished` again."""

    @classmethod
    def nothing(cls, settings: Settings) -> RecoveredState:
        """What there is without a checkpoint."""
        state = StoredState.empty()
        snapshot = Snapshot(-1, state.registry, {}, Clocks.start({}), state.optimizer(Optimizer(settings), -1))
        return cls(state, snapshot, None, (), (), {}, {}, -1)


def recover(
    journal: FileJournal, settings: Settings, read_bucket: Callable[[str, int], Any] | None = None
) -> RecoveredState:
    """Read the log; `read_bucket` gives the bucket of a stream and a batch, where the log has only a list of files.

    Raises:
        CheckpointError: a file is missing, damaged, foreign or of another format.
    """
    newest = max(journal.numbers("batches"), default=-1)
    journal.remove_unfinished(newest)
    record = journal.read("batches", newest) if newest >= 0 else None
    base, base_batch = _base(journal)
    changes = _changes(journal)
    numbers = [change.record.serial for change in changes]
    first, last = (numbers[0], numbers[-1]) if numbers else (1, 0)
    known = max(base.serial, record["serial"] if record is not None else 0)
    if numbers != list(range(first, last + 1)) or known > last or first > base.serial + 1:
        raise CheckpointError(
            f"records of the changelog are missing in {journal.root / 'changes'}: restore it from a copy"
        )
    done = newest < 0 or base_batch >= newest or newest in journal.numbers("done")
    due = [change for change in changes if change.record.serial > base.serial]
    now = [change for change in due if done or change.record.batch <= newest]
    state = base.changed(now)
    # Batches without tuples are not in the log, but changes may be in force since one.
    last = max([newest, *(change.record.batch - 1 for change in changes)])
    optimizer = state.optimizer(Optimizer(settings), newest)
    kinds, refused = _kinds(journal, state, newest if done else newest - 1)
    snapshot = Snapshot(last, state.registry, {}, _clocks(record, state), optimizer, kinds)
    unfinished = None
    if record is not None:
        held = _buckets(read_bucket or journal.read_bucket, record, state)
        snapshot = replace(snapshot, buckets=held)
        if not done:
            snapshot, unfinished = _before(snapshot, newest, record)
    return RecoveredState(
        state,
        snapshot,
        unfinished,
        tuple(due[len(now) :]),
        tuple(change.record for change in changes),
        {} if record is None else record["consumed"],
        *_counts(journal),
        {} if record is None else {name: Aside(*counted) for name, counted in record.get("aside", {}).items()},
        refused,
        journal.read("attempts", newest) if newest in journal.numbers("attempts") else {},
    )


def _base(journal: FileJournal) -> tuple[StoredState, int]:
    numbers = journal.numbers("state")
    if not numbers:
        return StoredState.empty(), -1
    body = journal.read("state", numbers[-1])
    return StoredState.unpacked(body, numbers[-1]), int(body["batch"])


def _changes(journal: FileJournal) -> list[EngineChange]:
    groups = [journal.read("changes", number) for number in journal.numbers("changes")]
    return [EngineChange.unpacked(body) for group in groups for body in group["records"]]


def _counts(journal: FileJournal) -> tuple[Body, int]:
    numbers = journal.numbers("done")
    return (journal.read("done", numbers[-1]), numbers[-1]) if numbers else ({}, -1)


def _kinds(journal: FileJournal, state: StoredState, newest: int) -> tuple[dict[str, WaitingState], dict[str, str]]:
    """What waited after the batch `newest`, of the queries that were there, and of which it can't be read."""
    stored = journal.read_kinds(newest)
    if stored is None:
        return {}, {}
    batch, table = stored
    kinds: dict[str, WaitingState] = {}
    stores: dict[str, GroupStore] = {}
    refused: dict[str, str] = {}
    for name, entry in state.registry.branches.items():
        waits = bool(entry.query.kind_steps) or entry.query.grouping is not None
        if waits and entry.created <= batch and not entry.lets_go:
            try:
                found = unpacked_waiting(table, entry.query, stores)
                kinds |= {} if found is None else {name: found}
            except Exception as error:
                refused[query_name(name)] = f"what waits of it can't be read back: {reason_of(error)}"
    return kinds, refused


def _clocks(record: Body | None, state: StoredState) -> Clocks:
    if record is None:
        return Clocks.start({name: stored.lateness for name, stored in state.streams.items()})
    return unpacked_clocks(record["clocks"], state.streams)


def _buckets(read_bucket: Callable[[str, int], Any], record: Body, state: StoredState) -> dict[str, tuple[Bucket, ...]]:
    return {
        name: tuple(read_bucket(name, batch).aligned(state.streams[name].stream.schema) for batch in batches)
        for name, batches in record["held"].items()
    }


def _before(snapshot: Snapshot, newest: int, record: Body) -> tuple[Snapshot, Arrived]:
    """The state before the newest batch, and that batch."""
    # Streams that came later had not begun, and earlier versions did not write how far others were.
    bounds = dict.fromkeys(snapshot.clocks.horizons, NEVER) | record.get("before", {})
    fresh = {s: held[-1] for s, held in snapshot.buckets.items() if held and held[-1].batch == newest}
    before = {stream: tuple(b for b in held if b.batch < newest) for stream, held in snapshot.buckets.items()}
    return replace(snapshot, batch=newest - 1, buckets=before), Arrived(
        fresh, {}, {}, snapshot.clocks, newest, before=bounds
    )
