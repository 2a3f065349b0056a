"""How queries are run: for each alias of a query, the order in which its new tuples probe the other streams.

A result appears in the batch of its last tuple in gate order. That tuple, the *driver*, probes the earlier tuples of a
second alias, the pairs probe a third, and so on: a path. Each alias of a query drives one path, and together they
find each result once. No intermediate result outlives its batch, so another order or group changes no state. The path
of a query over one stream has no step.

Two queries share a step iff their paths are equal up to it: same group, same streams in the same order, same terms by
role (the place in the path). Windows, selections and other conditions don't matter; they clear bits of query-sets.
(AJoin, sections 3.3 and 4: n-way joins as shared subqueries.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Final
from weakref import WeakValueDictionary

from streamjoin.model.expression.canonical import renamed
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.terms import BandTerm, Equality, Term
from streamjoin.model.window import Window
from streamjoin.queries.language.join_key import KeyedJoin, role
from streamjoin.queries.language.plan import Query

Order = tuple[str, ...]
"""Aliases from the driver on."""


class _HashedOnce:
    """Keys are looked up often and hold deep terms: the hash is kept, not pickled, as another process's differs."""

    def __post_init__(self) -> None:
        self._keep_hash()

    def _keep_hash(self) -> None:
        object.__setattr__(self, "_hash", hash(tuple(self.__getstate__().values())))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._keep_hash()


@dataclass(frozen=True)
class StepKey(_HashedOnce):
    """One more stream of a path: its terms with the earlier roles (the new role is on the right).

    `inclusive`: the tuple may be the driver itself, as unrelated aliases of one stream may hold one tuple.
    """

    stream: str
    terms: tuple[Term, ...]
    inclusive: bool

    __hash__ = _HashedOnce.__hash__

    def __str__(self) -> str:
        return f"{self.stream}: {self.condition}"

    @property
    def condition(self) -> str:
        """The terms over roles, as text."""
        return " AND ".join(map(str, self.terms)) or "any tuple in the window"


_KNOWN: Final[WeakValueDictionary[StepKey, StepKey]] = WeakValueDictionary()
"""One object for equal keys: most comparisons end at the first look."""


@dataclass(frozen=True)
class PathKey(_HashedOnce):
    """A path up to some step: what is shared is what has an equal key."""

    group: int
    driver: str
    steps: tuple[StepKey, ...]

    __hash__ = _HashedOnce.__hash__

    @property
    def streams(self) -> tuple[str, ...]:
        """The stream of each role."""
        return (self.driver, *(step.stream for step in self.steps))

    @property
    def twin(self) -> PathKey | None:
        """The first step of the other driver, where the two meet by the same terms; None within one stream."""
        if not self.steps or self.steps[0].stream == self.driver:
            return None
        step = self.steps[0]
        terms = (_relabel(term.flipped(), {role(0): role(1), role(1): role(0)}) for term in step.terms)
        other = StepKey(self.driver, tuple(sorted(terms, key=_rank)), False)
        return PathKey(self.group, step.stream, (_KNOWN.setdefault(other, other),))

    def __str__(self) -> str:
        return " -> ".join([self.driver, *map(str, self.steps)])

    def digest(self) -> bytes:
        """A short name that is the same in every process; made anew by each call."""
        return blake2b(repr(self).encode(), digest_size=12).digest()


@dataclass(frozen=True)
class StepTests:
    """What one query adds to a step: windows against earlier roles, and conditions by role."""

    windows: tuple[tuple[int, Window], ...]
    conditions: tuple[Expression, ...]


@dataclass(frozen=True)
class Path:
    """A query's path of one driver."""

    query: str
    order: Order
    steps: tuple[StepKey, ...]
    tests: tuple[StepTests, ...]
    driver: str

    def key(self, group: int, length: int | None = None) -> PathKey:
        """The key of the first `length` steps; without steps there is nothing that a group could keep apart."""
        return PathKey(group if self.steps else 0, self.driver, self.steps[:length])


@dataclass(frozen=True)
class Choice:
    """What an optimizer chose for a query: its group, and an order for each driver."""

    group: int
    orders: tuple[Order, ...]


class Paths:
    """A query's paths, each made once."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self._made: dict[Order, Path] = {}
        self._keys: dict[tuple[int, Order], tuple[PathKey, ...]] = {}

    @cached_property
    def keyed(self) -> KeyedJoin:
        """The whole join, by what an index serves."""
        return self.query.join_key()

    @cached_property
    def selections(self) -> tuple[tuple[Expression, ...], ...]:
        """The selections by role of the key."""
        return tuple(tuple(p.condition for p in self.query.selection(alias)) for alias in self.keyed.aliases)

    def of(self, order: Order) -> Path:
        """The path of an order."""
        if order not in self._made:
            self._made[order] = path_of(self.query, order)
        return self._made[order]

    def keys(self, group: int, order: Order) -> tuple[PathKey, ...]:
        """The keys of an order's path in a group, step by step; of a path without steps its own."""
        if (group, order) not in self._keys:
            path = self.of(order)
            lengths = range(1, len(path.steps) + 1) if path.steps else (0,)
            self._keys[group, order] = tuple(path.key(group, length) for length in lengths)
        return self._keys[group, order]


def shared_steps(queries: Iterable[Paths], choices: Mapping[str, Choice]) -> dict[PathKey, set[str]]:
    """Every step of every path, with the queries that take it."""
    takers: dict[PathKey, set[str]] = {}
    for paths in queries:
        choice = choices[paths.query.name]
        for order in choice.orders:
            for key in paths.keys(choice.group, order):
                takers.setdefault(key, set()).add(paths.query.name)
    return takers


def orders_of(query: Query, driver: str) -> list[Order]:
    """Every order from a driver in which each alias is related to one before it; by terms, where there are any."""
    related = {frozenset((pair.left, pair.right)) for pair in query.pairs}
    keyed = {frozenset((t.left.qualifier, t.right.qualifier)) for step in query.steps for t in step.terms}

    def extend(order: Order) -> Iterator[Order]:
        rest = [alias for alias in query.aliases if alias not in order]
        if not rest:
            yield order
        for links in (keyed, related):
            near = [alias for alias in rest if any(frozenset((alias, other)) in links for other in order)]
            if near:
                for alias in near:
                    yield from extend((*order, alias))
                return

    return list(extend((driver,)))


def path_of(query: Query, order: Order) -> Path:
    """The path that an order makes of a query."""
    streams = {source.alias: source.stream.name for source in query.sources}
    roles = {alias: role(number) for number, alias in enumerate(order)}
    windows = {frozenset((pair.left, pair.right)): pair.window for pair in query.pairs}
    steps, tests = [], []
    for number in range(1, len(order)):
        alias, known = order[number], order[: number + 1]
        terms = [_place_term(t, roles, alias) for step in query.steps for t in step.terms if _new(t, alias, known)]
        inclusive = (
            streams[alias] == streams[order[0]]
            and frozenset((alias, order[0])) not in windows
            and query.aliases.index(alias) > query.aliases.index(order[0])
        )
        step = StepKey(streams[alias], tuple(sorted(dict.fromkeys(terms), key=_rank)), inclusive)
        steps.append(_KNOWN.setdefault(step, step))
        pairs = [
            (earlier, windows[frozenset((alias, other))])
            for earlier, other in enumerate(order[:number])
            if frozenset((alias, other)) in windows
        ]
        tests.append(StepTests(tuple(pairs), tuple(_conditions(query, known, roles))))
    return Path(query.name, order, tuple(steps), tuple(tests), streams[order[0]])


def _conditions(query: Query, known: Sequence[str], roles: Mapping[str, str]) -> Iterator[Expression]:
    """The conditions besides terms that can be tested first when the last alias of `known` is there."""
    alias, first = known[-1], len(known) == 2
    for condition in (*(other for step in query.steps for other in step.others), *query.residual):
        aliases = {column.qualifier for column in condition.columns}
        if aliases <= set(known) and (alias in aliases or (first and len(aliases) < 2)):
            yield renamed(condition, roles)


def _new(term: Term, alias: str, known: Sequence[str]) -> bool:
    sides = {term.left.qualifier, term.right.qualifier}
    return alias in sides and sides <= set(known)


def _place_term(term: Term, roles: Mapping[str, str], alias: str) -> Term:
    if term.left.qualifier == alias:
        term = term.flipped()
    return _relabel(term, roles)


def _relabel(term: Term, roles: Mapping[str, str]) -> Term:
    left, right = (Column(roles[column.qualifier], column.name) for column in (term.left, term.right))
    if isinstance(term, Equality):
        return Equality(left, right)
    return BandTerm(left, right, term.below, term.above, term.strict, term.is_duration)


def _rank(term: Term) -> tuple[bool, str]:
    """Equalities first: the first term is the one that is looked up."""
    return isinstance(term, BandTerm), str(term)
