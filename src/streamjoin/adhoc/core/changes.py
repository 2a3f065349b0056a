"""The changelog's records, and the queries that are there after them.

The invariant: a registry never changes; a list of changes gives a new one, or an error and nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from streamjoin.adhoc.core.gathering import Gatherer
from streamjoin.adhoc.core.probe_plan import Paths
from streamjoin.adhoc.core.retention import Shape, shape_of
from streamjoin.adhoc.core.selection_tables import Selected
from streamjoin.adhoc.language.plan import Query, Stream
from streamjoin.adhoc.language.sql import parse
from streamjoin.model.errors import SpecError
from streamjoin.model.expression import Expression


@dataclass(frozen=True)
class Create:
    """A new query, by its text or its plan."""

    name: str
    query: str | Query


@dataclass(frozen=True)
class Drop:
    """The end of a query."""

    name: str


@dataclass(frozen=True)
class Pause:
    """A query gives no rows for the batches until `Resume`; the tuples of these batches stay joinable."""

    name: str


@dataclass(frozen=True)
class Resume:
    """The end of a pause; results whose last tuple came during the pause are not made up for."""

    name: str


Change = Create | Drop | Pause | Resume


def change_of(action: str, name: str, query: str | Query | None = None) -> Change:
    """The change that an action on a query is."""
    if action == "create":
        if query is None:
            raise AssertionError("a create without its query")
        return Create(name, query)
    kinds: dict[str, type[Drop | Pause | Resume]] = {"drop": Drop, "pause": Pause, "resume": Resume}
    return kinds[action](name)


def check_name(change: Change, names: Collection[str]) -> None:
    """Refuse a change that does not fit the names of the queries there are.

    Raises:
        SpecError: a created query's name is taken or no name, or there is no query of the name.
    """
    if not isinstance(change, Create):
        if change.name not in names:
            raise SpecError(f"there is no query {change.name!r}; there are: {', '.join(sorted(names)) or 'none'}")
    elif change.name in names:
        raise SpecError(f"there is a query {change.name!r} already; drop it, or take another name")
    elif not isinstance(change.name, str) or not change.name or not change.name.isprintable():
        raise SpecError(f"a query's name is a printable text, not {change.name!r}")


def names_after(names: Iterable[str], changes: Iterable[Change]) -> set[str]:
    """The names of the queries there are after changes."""
    left = set(names)
    for change in changes:
        if isinstance(change, Create):
            left.add(change.name)
        elif isinstance(change, Drop):
            left.discard(change.name)
    return left


@dataclass(frozen=True)
class LiveQuery:
    """A query in force since the batch `created`; `serial` tells two of the same name apart."""

    serial: int
    query: Query
    created: int
    paths: Paths
    gatherer: Gatherer
    paused: bool = False

    @classmethod
    def of(cls, serial: int, query: Query, created: int, paused: bool = False) -> LiveQuery:
        """With what is derived from the query."""
        return cls(serial, query, created, Paths(query), Gatherer(query), paused)

    def __reduce__(self) -> tuple[object, ...]:
        # What is derived is large, and made again where it is unpickled.
        return LiveQuery.of, (self.serial, self.query, self.created, self.paused)

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

    @cached_property
    def shape(self) -> Shape:
        """What retention needs of it."""
        return shape_of(self.query)


@dataclass(frozen=True)
class QueryRegistry:
    """The queries that are there."""

    queries: Mapping[str, LiveQuery] = field(default_factory=dict)
    next_serial: int = 0

    def changed(self, changes: Sequence[Change], streams: Mapping[str, Stream], batch: int) -> QueryRegistry:
        """With changes made, in force from `batch` on.

        Raises:
            SpecError: a name is taken, or there is no such query.
        """
        found = dict(self.queries)
        serial = self.next_serial
        for change in changes:
            check_name(change, found)
            if isinstance(change, Create):
                query = change.query if isinstance(change.query, Query) else parse(change.query, streams, change.name)
                query = replace(query, name=change.name)
                found[change.name] = LiveQuery.of(serial, query, batch)
                serial += 1
                continue
            if isinstance(change, Drop):
                del found[change.name]
            else:
                found[change.name] = replace(found[change.name], paused=isinstance(change, Pause))
        return QueryRegistry(found, serial)

    def paused(self, names: Iterable[str]) -> QueryRegistry:
        """With some queries paused."""
        paused = {name: replace(self.queries[name], paused=True) for name in names}
        return replace(self, queries={**self.queries, **paused})

    def gone_since(self, before: QueryRegistry) -> set[str]:
        """The queries of an earlier registry that are no more; another may have the name of one."""
        now = self.queries
        return {name for name, entry in before.queries.items() if name not in now or now[name].serial != entry.serial}

    @property
    def paths(self) -> dict[str, Paths]:
        """The paths of each query."""
        return {name: entry.paths for name, entry in self.queries.items()}

    @cached_property
    def shapes(self) -> dict[Shape, int]:
        """The shapes of the queries with the earliest create of each."""
        found: dict[Shape, int] = {}
        for entry in self.queries.values():
            found[entry.shape] = min(entry.created, found.get(entry.shape, entry.created))
        return found

    def selections(self) -> dict[str, list[tuple[Expression, ...]]]:
        """The selections on each stream."""
        found: dict[str, list[tuple[Expression, ...]]] = {}
        for entry in self.queries.values():
            for source in entry.query.sources:
                conditions = tuple(p.condition for p in entry.query.selection(source.alias))
                found.setdefault(source.stream.name, []).append(conditions)
        return found
