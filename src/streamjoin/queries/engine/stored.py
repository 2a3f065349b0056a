"""The engine's state as its log keeps it: streams, queries, the plan, and the changelog's records, to JSON and back."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import pyarrow as pa

from streamjoin.adhoc.core.arrivals import Clocks
from streamjoin.adhoc.core.budgets import Budget
from streamjoin.adhoc.core.changes import Change, LiveQuery, QueryRegistry
from streamjoin.adhoc.core.probe_plan import Choice
from streamjoin.adhoc.engine.figures import RunningQuery
from streamjoin.adhoc.engine.info import ChangeRecord
from streamjoin.adhoc.engine.journal import Body
from streamjoin.adhoc.language.plan import Query, Stream, query_name
from streamjoin.adhoc.optimizer.optimizer import Optimizer
from streamjoin.adhoc.optimizer.plans import Decision, Plan
from streamjoin.adhoc.sinks.base import Sink, Writer
from streamjoin.adhoc.sinks.specs import LostSink
from streamjoin.windows.clock import Horizon


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

    @property
    def sql(self) -> str | None:
        """The text of a query to create."""
        return self.query.text if isinstance(self.query, Query) else self.query

    def as_made(self, serial: int, batch: int, at: float, reason: str | None = None) -> EngineChange:
        """This change, in force from `batch` on since the Unix time `at`."""
        return replace(self, record=ChangeRecord(serial, self.action, self.name, self.sql, batch, at, reason))

    def packed(self) -> Body:
        """As JSON has it."""
        return {
            **asdict(self.record),
            "sink": self.sink.spec() if self.sink is not None else None,
            "stream": self.stream.packed() if self.stream is not None else None,
            "budget": asdict(self.budget),
        }

    @classmethod
    def unpacked(cls, body: Body) -> EngineChange:
        """What `packed` gave; its sink is opened only if the query is still there after all changes."""
        record = ChangeRecord(**{name: body[name] for name in ChangeRecord.__dataclass_fields__})
        stream = StreamDefinition.unpacked(body["stream"]) if body["stream"] is not None else None
        sink = LostSink(record.name, "not opened yet", body["sink"])
        budget = Budget(**body.get("budget", {}))
        return cls(record.action, record.name, record.sql, sink, None, stream, record.at, record, budget=budget)


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
                continue
            catalog = {key: stored.stream for key, stored in streams.items()}
            registry = registry.changed([change], catalog, record.batch)
            if record.action == "create":
                queries[name] = _without_sink(registry.queries[name], record.at, change.sink)
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
                "budget": asdict(entry.budget),
                "sql": entry.query.text,
                "created_at": self.queries[name].created_at,
                "sink": self.queries[name].sink.spec(),
                "state": self.queries[name].state,
                "error": self.queries[name].error,
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
            registry = registry.changed([Change("create", name, one["sql"], budget=budget)], catalog, one["created"])
            registry = registry.paused([name] if one["paused"] else [])
            sink = LostSink(name, "not opened yet", one["sink"])
            queries[name] = _without_sink(registry.queries[name], one["created_at"], sink)
            queries[name].state, queries[name].error = one["state"], one["error"]
        registry = replace(registry, next_serial=body["next_serial"])
        orders = {name: tuple(map(tuple, chosen[1])) for name, chosen in body["plan"].items()}
        choices = {name: Choice(chosen[0], orders[name]) for name, chosen in body["plan"].items()}
        # Checkpoints of earlier versions have decisions without their queries.
        decisions = tuple(Decision(**{**one, "queries": tuple(one.get("queries", ()))}) for one in body["decisions"])
        return cls(streams, registry, queries, Plan(choices, frozenset(body["unplanned"])), decisions, serial)


def _without_sink(entry: LiveQuery, created_at: float, sink: Sink | None) -> RunningQuery:
    """A query of the journal; its sink is not opened yet."""
    return RunningQuery(entry.query, entry.created, created_at, sink or LostSink(entry.query.name, "not opened yet"))


def unpacked_clocks(body: Body, streams: Mapping[str, StreamDefinition]) -> Clocks:
    """What `packed_clocks` gave; streams that came later have not begun."""
    begun = Clocks.start({name: stored.lateness for name, stored in streams.items()})
    horizons, counts = dict(begun.horizons), dict(begun.counts)
    for name, (clock, count) in body["streams"].items():
        horizons[name] = Horizon.resumed(streams[name].lateness, clock)
        counts[name] = count
    return Clocks(horizons, counts, body["gate"])
