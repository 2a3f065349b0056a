"""The logical plan of an ad-hoc query, as frozen nodes that refuse an illegal shape.

A result is one tuple of each source such that the selections, the residual and every step's conditions hold and, for
each step, the new tuple and each earlier tuple that its conditions relate it to lie within the step's window of
each other. So a query is a graph: aliases, conditions between them, and a window on each related pair. The steps
say how it was written; any order that applies each condition once its aliases are there gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

from streamjoin.adhoc.language.join_key import KeyedJoin, keyed
from streamjoin.model.errors import SchemaError, SpecError
from streamjoin.model.expression.canonical import renamed
from streamjoin.model.expression.nodes import Column, Expression, conjunction
from streamjoin.model.expression.typing_rules import check, check_condition
from streamjoin.model.keys import check_zones, tick_ns
from streamjoin.model.plain_types import plain_type
from streamjoin.model.terms import BandTerm, Equality, Term
from streamjoin.model.window import CountWindow, TimeWindow, Window

MIN_SOURCES: Final = 2
MAX_SOURCES: Final = 5
ROW: Final = "row"
"""The qualifier of a selection's columns, whatever the alias, so that queries can share it."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SpecError(message)


@dataclass(frozen=True)
class Stream:
    """A registered stream: its name, its columns and the column that says when."""

    name: str
    schema: pa.Schema
    time: str

    def __post_init__(self) -> None:
        _require(isinstance(self.name, str) and bool(self.name), f"a stream's name is a string, not {self.name!r}")
        if not isinstance(self.schema, pa.Schema):
            raise SpecError(f"the schema of stream {self.name!r} is a pyarrow.Schema, not {self.schema!r}")
        names = self.schema.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SchemaError(f"stream {self.name!r} has more than one column {twice[0]!r}; rename one")
        if self.time not in names:
            raise SchemaError(f"stream {self.name!r} has no time column {self.time!r}; it has: {', '.join(names)}")
        type_ = self.time_type
        whole = pa.types.is_integer(type_) and type_ != pa.uint64()
        if not (whole or pa.types.is_timestamp(type_) or pa.types.is_date(type_)):
            raise SchemaError(
                f"time column {self.time!r} of stream {self.name!r} is {type_}; a time column is a timestamp, a date "
                "or an integer (not uint64)"
            )

    @property
    def time_type(self) -> pa.DataType:
        """The type of the time column."""
        return plain_type(self.schema.field(self.time).type)

    @property
    def tick_ns(self) -> int | None:
        """The nanoseconds of one unit of the time column; None for integers, whose unit nobody knows."""
        return None if pa.types.is_integer(self.time_type) else tick_ns(self.time_type)


@dataclass(frozen=True)
class QuerySource:
    """A stream under the name by which a query reads it."""

    alias: str
    stream: Stream

    def __post_init__(self) -> None:
        _require(isinstance(self.alias, str) and bool(self.alias), f"an alias is a string, not {self.alias!r}")
        _require(isinstance(self.stream, Stream), f"source {self.alias!r} needs a Stream, not {self.stream!r}")


@dataclass(frozen=True)
class JoinStep:
    """The join of one more alias: `right` with what came before. In its terms `right`'s column stands right."""

    right: str
    window: Window
    equalities: tuple[Equality, ...] = ()
    bands: tuple[BandTerm, ...] = ()
    others: tuple[Expression, ...] = ()

    def __post_init__(self) -> None:
        _require(isinstance(self.window, TimeWindow | CountWindow), f"a step needs a window, not {self.window!r}")
        for term in self.terms:
            sides = term.left.qualifier, term.right.qualifier
            _require(
                sides[1] == self.right != sides[0],
                f"{term}: the right column of a step's term is of {self.right!r}, the left one of an earlier alias",
            )
        for other in self.others:
            aliases = _aliases(other)
            _require(self.right in aliases and len(aliases) > 1, f"{other} relates {self.right!r} to no other alias")
        _require(bool(self.related), f"nothing relates {self.right!r} to an earlier alias: a cross join")

    @property
    def terms(self) -> tuple[Term, ...]:
        """What an index can serve."""
        return (*self.equalities, *self.bands)

    @property
    def conditions(self) -> tuple[Expression, ...]:
        """All conditions as expressions."""
        return (*(term.condition for term in self.terms), *self.others)

    @property
    def related(self) -> tuple[str, ...]:
        """The earlier aliases that the window holds against, by name."""
        aliases = {alias for condition in self.conditions for alias in _aliases(condition)}
        return tuple(sorted(aliases - {self.right}))


@dataclass(frozen=True)
class Predicate:
    """A condition on single tuples of a stream, canonical and over columns `row.x`, so that queries can share it."""

    stream: str
    condition: Expression

    def __post_init__(self) -> None:
        _require(_aliases(self.condition) <= {ROW}, f"{self.condition}: the columns of a predicate are row.*")
        object.__setattr__(self, "condition", renamed(self.condition, {}))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads."""
        return tuple(column.name for column in self.condition.columns)


@dataclass(frozen=True)
class Output:
    """A column of the result."""

    name: str
    expression: Expression
    type: pa.DataType


@dataclass(frozen=True)
class PairWindow:
    """Two aliases whose tuples must lie within a window of each other (and differ, if of one stream)."""

    left: str
    right: str
    window: Window


@dataclass(frozen=True)
class Query:
    """A whole query. `selections` holds one conjunction for each source, `residual` conditions across aliases."""

    name: str
    text: str
    sources: tuple[QuerySource, ...]
    steps: tuple[JoinStep, ...]
    selections: tuple[tuple[Predicate, ...], ...]
    residual: tuple[Expression, ...]
    outputs: tuple[Output, ...]

    def __post_init__(self) -> None:
        count = len(self.sources)
        _require(
            MIN_SOURCES <= count <= MAX_SOURCES, f"a query joins {MIN_SOURCES} to {MAX_SOURCES} streams, not {count}"
        )
        _require(len(set(self.aliases)) == count, f"aliases must differ: {', '.join(self.aliases)}")
        rights = tuple(step.right for step in self.steps)
        _require(rights == self.aliases[1:], f"the steps join {rights}, but the sources are {self.aliases}")
        for number, step in enumerate(self.steps):
            known = {*self.aliases[: number + 1]}
            _require(
                set(step.related) <= known, f"step {step.right!r} relates to {step.related}, known: {sorted(known)}"
            )
            for condition in step.conditions:
                check_condition(condition, self.schemas)
        self._check_rest()
        self._check_clock()

    def _check_rest(self) -> None:
        _require(len(self.selections) == len(self.sources), "a query has one selection for each source")
        for source, selection in zip(self.sources, self.selections, strict=True):
            for predicate in selection:
                name = source.stream.name
                _require(predicate.stream == name, f"{predicate.condition} selects from {predicate.stream}, not {name}")
                check_condition(predicate.condition, {ROW: source.stream.schema})
        for condition in self.residual:
            check_condition(condition, self.schemas)
        _require(bool(self.outputs), "a query has at least one output")
        names = [output.name.lower() for output in self.outputs]
        _require(len(set(names)) == len(names), f"output names must differ: {', '.join(names)}")
        for output in self.outputs:
            _require(output.type == output_type(output.expression, self.schemas), f"output {output.name!r}: wrong type")

    def _check_clock(self) -> None:
        first = self.sources[0].stream
        for source in self.sources[1:]:
            check_clocks(first, source.stream)
        for step in self.steps:
            if isinstance(step.window, TimeWindow) and step.window.is_duration != (first.tick_ns is not None):
                raise SchemaError(f"the window of {step.right!r} does not fit the time columns ({first.time_type})")

    @property
    def aliases(self) -> tuple[str, ...]:
        """The aliases in the order of the text."""
        return tuple(source.alias for source in self.sources)

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        """The columns of each alias."""
        return {source.alias: source.stream.schema for source in self.sources}

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return pa.schema([(output.name, output.type) for output in self.outputs])

    @property
    def tick_ns(self) -> int | None:
        """The finest tick of the time columns, in nanoseconds; None for integer times."""
        ticks = [source.stream.tick_ns for source in self.sources]
        return None if None in ticks else min(tick for tick in ticks if tick is not None)

    @property
    def pairs(self) -> tuple[PairWindow, ...]:
        """Every pair of aliases that a step relates, once, with its window."""
        return tuple(PairWindow(left, step.right, step.window) for step in self.steps for left in step.related)

    def source(self, alias: str) -> QuerySource:
        """The source of this alias."""
        return self.sources[self.aliases.index(alias)]

    def selection(self, alias: str) -> tuple[Predicate, ...]:
        """What a tuple of this alias must pass."""
        return self.selections[self.aliases.index(alias)]

    def join_key(self, aliases: Iterable[str] | None = None, *, others: bool = True) -> KeyedJoin:
        """The shared identity of the join of `aliases` (all, if not given): what steps say about these alone.

        With `others=False` it is only what an index can serve, so that more queries share it.
        """
        chosen = set(self.aliases if aliases is None else aliases)
        inside = [s for s in self.steps if s.right in chosen]
        terms = [term for step in inside for term in step.terms if term.left.qualifier in chosen]
        rest = [c for step in inside for c in step.others if _aliases(c) <= chosen] if others else []
        streams = {source.alias: source.stream.name for source in self.sources}
        return keyed(streams, terms, rest, [alias for alias in self.aliases if alias in chosen])

    def connected(self, aliases: Iterable[str]) -> bool:
        """Whether these aliases hang together by terms or other conditions between themselves."""
        left = set(aliases)
        reached = {left.pop()} if left else set()
        groups = [_aliases(c) for step in self.steps for c in step.conditions if _aliases(c) <= reached | left]
        while grown := {a for group in groups if group & reached for a in group} - reached:
            reached |= grown
        return left <= reached

    def condition_of(self, alias: str) -> Expression:
        """The selection of an alias as one expression over `row.*`."""
        return conjunction(tuple(predicate.condition for predicate in self.selection(alias)))


def output_type(expression: Expression, schemas: dict[str, pa.Schema]) -> pa.DataType:
    """The type of an output: a plain column keeps its own, even one that a condition can't use."""
    if isinstance(expression, Column) and expression.name in schemas[expression.qualifier].names:
        return schemas[expression.qualifier].field(expression.name).type
    return check(expression, schemas)


def check_clocks(first: Stream, second: Stream) -> None:
    """Refuse two streams whose times can't be compared.

    Raises:
        SchemaError: one counts units and the other is a date or timestamp, or one has a time zone and one has not.
    """
    what = f"the time columns {first.name}.{first.time} and {second.name}.{second.time}"
    if (first.tick_ns is None) != (second.tick_ns is None):
        raise SchemaError(f"{what} don't compare: {first.time_type} and {second.time_type}")
    if first.tick_ns is not None:
        check_zones(what, first.time_type, second.time_type)


def window_ticks(window: TimeWindow, tick: int | None) -> int:
    """A time window in whole ticks of `tick` nanoseconds (None: of the integer column's own unit)."""
    return window.length if tick is None else window.length // tick


def _aliases(expression: Expression) -> set[str]:
    return {column.qualifier for column in expression.columns}
