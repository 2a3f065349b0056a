"""The changelog's records, and the queries that are there after them.

The invariant: a registry never changes; a list of changes gives a new one, or an error and nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

import pyarrow as pa

from streamjoin.model.errors import SpecError, UnknownQueryError
from streamjoin.model.expression.nodes import Expression
from streamjoin.model.terms import BandTerm
from streamjoin.queries.core.budgets import UNLIMITED, Budget
from streamjoin.queries.core.gathering import Gatherer, reference_schema
from streamjoin.queries.core.groups.feeds import FeedKey, GroupFeed, GroupMember, feed_key, feeds_of, first_window
from streamjoin.queries.core.probe_plan import Paths
from streamjoin.queries.core.retention import Shape, shape_of, shape_of_windows
from streamjoin.queries.core.selection_tables import Selected
from streamjoin.queries.language.plan import Query, Stream, query_name
from streamjoin.queries.language.sql import parse
from streamjoin.windows.clock import NEVER

Action = Literal["create", "drop", "pause", "resume", "register"]
"""What a change does; a core makes all but the last, by which an engine gets a stream."""


@dataclass(frozen=True, eq=False)
class Change:
    """A query's create, drop, pause or resume; one to create has its text or plan as `query`, and a `budget`.

    A paused query gives no rows, but the tuples of these batches stay joinable. Results whose last tuple came during
    the pause are not made up for after it. A pause that `releases` holds no tuples: after it the query begins anew.
    """

    action: Action
    name: str
    query: str | Query | None = None
    budget: Budget = field(default=UNLIMITED, kw_only=True)
    releases: bool = field(default=False, kw_only=True)
    reached: int | None = field(default=None, kw_only=True)
    """Where the streams of a query that is created or resumed were, if that is known: the newest time, in ticks."""


Create = partial(Change, "create")
Drop = partial(Change, "drop")
Pause = partial(Change, "pause")
Resume = partial(Change, "resume")


def check_name(change: Change, names: Collection[str]) -> None:
    """Refuse a change that does not fit the names of the queries there are.

    Raises:
        SpecError: a created query's name is taken or no name, or there is no query of the name.
    """
    if change.action != "create":
        if change.name not in names:
            raise no_such_query(change.name, names)
    elif change.name in names:
        raise SpecError(f"there is a query {change.name!r} already; drop it, or take another name")
    elif not isinstance(change.name, str) or not change.name or not change.name.isprintable():
        raise SpecError(f"a query's name is a printable text, not {change.name!r}")


def no_such_query(name: str, names: Iterable[str]) -> UnknownQueryError:
    """What to raise for a name that no query has."""
    return UnknownQueryError(f"there is no query {name!r}; there are: {', '.join(sorted(names)) or 'none'}")


def names_after(names: Iterable[str], changes: Iterable[Change]) -> set[str]:
    """The names of the queries there are after changes."""
    remaining = set(names)
    for change in changes:
        if change.action == "create":
            remaining.add(change.name)
        elif change.action == "drop":
            remaining.discard(change.name)
    return remaining


PartRole = Literal["all", "once"]


@dataclass(frozen=True)
class LiveQuery:
    """A query in force since the batch `created`; `serial` tells two of the same name apart.

    A `part` of a query with outer, semi, anti or as-of joins gives the numbers of tuples: of all its results, or, where
    only matters that there is one, each tuple of the core once.
    """

    serial: int
    query: Query
    created: int
    paths: Paths
    gatherer: Gatherer
    shape: Shape
    """What retention needs of it, also while it is paused."""
    paused: bool = False
    budget: Budget = UNLIMITED
    part: PartRole | None = None
    released: bool = False
    """Whether no tuples are held for it, because it is paused and they took too much memory."""
    inner: tuple[LiveQuery, ...] = ()
    """The parts of a query with other than inner joins, or the branches of a UNION ALL."""
    reached: int = NEVER
    """The newest time of its streams when it was created or resumed, in ticks."""
    stands_for: tuple[str, ...] = ()
    """The queries that group the rows of this one."""

    @classmethod
    def of(
        cls,
        serial: int,
        query: Query,
        created: int,
        paused: bool = False,
        budget: Budget = UNLIMITED,
        part: PartRole | None = None,
        released: bool = False,
        reached: int = NEVER,
    ) -> LiveQuery:
        """With all that is derived from the query: one that can't be run is refused, and can't fail later by it."""
        inner: tuple[LiveQuery, ...] = ()
        if query.union:
            more = created, paused, budget, part, released, reached
            inner = tuple(LiveQuery.of(serial + n, one, *more) for n, one in enumerate(query.branches))
        elif query.kind_steps:
            roles: list[PartRole] = [
                "once" if s.kind in ("semi", "anti") and s.nearest is None else "all" for s in query.kind_steps
            ]
            roles += ["all"] * (len(query.parts) - len(roles))
            pairs = zip(query.parts, roles[: len(query.parts)], strict=True)
            inner = tuple(LiveQuery.of(serial, one, created, paused, budget, role) for one, role in pairs)
            if query.kind_steps[0].summary is not None:
                # What is summarised is in no part.
                inner = (replace(inner[0], shape=shape_of_windows(query)),)
        about = Paths(query.feed), Gatherer(query.feed), shape_of(query)
        return cls(serial, query, created, *about, paused, budget, part, released, inner, reached)

    def __reduce__(self) -> tuple[object, ...]:
        # What is derived is large, and made again where it is unpickled.
        return LiveQuery.of, (
            self.serial,
            self.query,
            self.created,
            self.paused,
            self.budget,
            self.part,
            self.released,
            self.reached,
        )

    @cached_property
    def parts(self) -> dict[str, LiveQuery]:
        """What the shared plan runs of it: the query itself, or its parts by their names."""
        if not self.inner:
            return {self.query.name: self}
        if self.query.union:
            return {name: part for branch in self.branches.values() for name, part in branch.parts.items()}
        return {part.query.name: replace(part, created=self.created, paused=self.paused) for part in self.inner}

    @cached_property
    def branches(self) -> dict[str, LiveQuery]:
        """What a UNION ALL unites, by name; itself if it is none."""
        if not self.query.union:
            return {self.query.name: self}
        now = {name: getattr(self, name) for name in ("created", "paused", "released", "reached")}
        return {branch.query.name: replace(branch, **now) for branch in self.inner}

    @property
    def names(self) -> tuple[str, ...]:
        """The queries that what it does is for."""
        return self.stands_for or (query_name(self.query.name),)

    @property
    def lets_go(self) -> bool:
        """Whether nothing is held for it, as it begins anew once it is resumed."""
        return self.released or (self.paused and self.query.grouping is not None)

    @cached_property
    def feed_key(self) -> FeedKey:
        """What it has in common with other grouped queries that can share its rows."""
        return feed_key(self)

    @cached_property
    def member(self) -> GroupMember:
        """What it asks of groups."""
        return GroupMember(self)

    @cached_property
    def first_window(self) -> int:
        """The start of the first window whose groups it gives, in ticks; `NEVER` if that is the first there is."""
        return first_window(self.query, self.reached)

    @property
    def schema(self) -> pa.Schema:
        """The columns of what it gives: of a part the numbers of tuples, by alias."""
        return self.query.schema if self.part is None else reference_schema(self.query)

    @cached_property
    def selected(self) -> dict[str, Selected]:
        """What a tuple must be for each alias."""
        return {
            alias: Selected(self.serial, alias, self.created, tuple(p.condition for p in self.query.selection(alias)))
            for alias in self.query.aliases
        }

    @cached_property
    def plan(self) -> Query:
        """The query without its name: what it has in common with others that are the same."""
        return replace(self.query, name="", text="")


@dataclass(frozen=True)
class QueryRegistry:
    """The queries that are there."""

    queries: Mapping[str, LiveQuery] = field(default_factory=dict)
    next_serial: int = 0
    known_feeds: Mapping[FeedKey, GroupFeed] = field(default_factory=dict, compare=False, repr=False)
    """The feeds of the registry before, of which some can go on."""

    def changed(
        self,
        changes: Sequence[Change],
        streams: Mapping[str, Stream],
        batch: int,
        reached: Mapping[str, int] | None = None,
    ) -> QueryRegistry:
        """With changes made, in force from `batch` on; `reached` says where streams are, if a change doesn't.

        Raises:
            SpecError: a name is taken, or there is no such query.
        """
        queries = dict(self.queries)
        serial = self.next_serial
        for change in changes:
            name = change.name
            check_name(change, queries)
            if change.action == "create":
                if change.query is None:
                    raise AssertionError("a create without its query")
                query = change.query if isinstance(change.query, Query) else parse(change.query, streams, name)
                at = _reached(change, query, reached)
                queries[name] = LiveQuery.of(serial, replace(query, name=name), batch, budget=change.budget, reached=at)
                serial += len(query.branches)
            elif change.action == "drop":
                del queries[name]
            elif change.action == "pause":
                released = queries[name].released or change.releases
                queries[name] = replace(queries[name], paused=True, released=released)
            else:
                entry = queries[name]
                # Of what came before the end of such a pause, only some may be there; groups begin anew after any.
                created = batch if entry.lets_go else entry.created
                at = _reached(change, entry.query, reached) if entry.lets_go else entry.reached
                queries[name] = replace(entry, paused=False, released=False, created=created, reached=at)
        return QueryRegistry(queries, serial, self.feeds)

    def read_again(self, stream: str, streams: Mapping[str, Stream]) -> QueryRegistry:
        """With the queries over a stream read again, because it has changed."""
        queries = dict(self.queries)
        for name, entry in queries.items():
            if stream in entry.query.streams:
                query = replace(parse(entry.query.text, streams, name), name=name)
                queries[name] = LiveQuery.of(
                    entry.serial, query, entry.created, entry.paused, entry.budget, None, entry.released, entry.reached
                )
        return replace(self, queries=queries, known_feeds=self.feeds)

    def paused(self, names: Iterable[str]) -> QueryRegistry:
        """With some queries paused."""
        wanted = set(names)
        paused = {n: replace(one, paused=True) for n, one in self.queries.items() if query_name(n) in wanted}
        return replace(self, queries={**self.queries, **paused}, known_feeds=self.feeds)

    def only(self, names: Collection[str]) -> QueryRegistry:
        """With some of the queries alone."""
        chosen = {name: entry for name, entry in self.queries.items() if query_name(name) in names}
        return replace(self, queries=chosen, known_feeds=self.feeds)

    @cached_property
    def branches(self) -> dict[str, LiveQuery]:
        """The queries as each is run: of a UNION ALL every branch by its name."""
        return {name: branch for entry in self.queries.values() for name, branch in entry.branches.items()}

    @cached_property
    def feeds(self) -> dict[FeedKey, GroupFeed]:
        """What the plan runs for the grouped queries, for all that can share at once."""
        return feeds_of(self.queries, self.known_feeds)

    def gone_since(self, before: QueryRegistry) -> set[str]:
        """The queries of an earlier registry that are no more; another may have the name of one."""
        now = self.queries
        return {name for name, entry in before.queries.items() if name not in now or now[name].serial != entry.serial}

    @cached_property
    def running(self) -> dict[str, LiveQuery]:
        """What the shared plan runs: every query that is not paused, or its parts, or what feeds its groups.

        Of feeds that need no rows there is nothing.
        """
        active = (entry for entry in self.queries.values() if not entry.paused and entry.query.grouping is None)
        parts = {name: part for entry in active for name, part in entry.parts.items()}
        return parts | {feed.name: feed.live for feed in self.feeds.values() if feed.partners is None}

    @property
    def held(self) -> dict[str, LiveQuery]:
        """Every query that tuples are held for, or its parts: those that run, and those that are paused.

        None are held for a grouped query that is paused, as it begins anew.
        """
        held = (entry for entry in self.queries.values() if not entry.lets_go)
        return {name: part for entry in held for name, part in entry.parts.items()}

    @property
    def paths(self) -> dict[str, Paths]:
        """The paths of what the shared plan runs."""
        return {name: entry.paths for name, entry in self.running.items()}

    @cached_property
    def shapes(self) -> dict[Shape, int]:
        """The shapes of all queries that tuples are held for, also paused ones, with the earliest create of each."""
        shapes: dict[Shape, int] = {}
        for entry in self.held.values():
            shapes[entry.shape] = min(entry.created, shapes.get(entry.shape, entry.created))
        return shapes

    @cached_property
    def partners(self) -> dict[str, set[str]]:
        """For each stream, the others that some query joins it with."""
        partners: dict[str, set[str]] = {}
        for shape in self.shapes:
            for stream in shape.streams:
                partners.setdefault(stream, set()).update(set(shape.streams) - {stream})
        return partners

    def bands(self) -> list[tuple[BandTerm, str, str]]:
        """The bands of all joins, with the streams of their columns."""
        keys = dict.fromkeys(entry.paths.keyed.key for entry in self.running.values() if entry.query.steps)
        return [
            (band, key.streams[int(band.left.qualifier[1:])], key.streams[int(band.right.qualifier[1:])])
            for key in keys
            for band in key.bands
        ]

    def selections(self) -> dict[str, list[tuple[Expression, ...]]]:
        """The selections on each stream."""
        selections: dict[str, list[tuple[Expression, ...]]] = {}
        for entry in self.running.values():
            for source in entry.query.sources:
                conditions = tuple(p.condition for p in entry.query.selection(source.alias))
                selections.setdefault(source.stream.name, []).append(conditions)
        return selections


def _reached(change: Change, query: Query, reached: Mapping[str, int] | None) -> int:
    """The newest time of a query's streams."""
    if change.reached is not None:
        return change.reached
    return max((reached or {}).get(stream, NEVER) for stream in query.streams)
