"""The logical plan of an ad-hoc query, as frozen nodes that refuse an illegal shape.

A result is one tuple of each source such that the selections, the residual and every step's conditions hold and, for
each step, the new tuple and each earlier tuple that its conditions relate it to lie within the step's window of
each other. So a query is a graph: aliases, conditions between them, and a window on each related pair. The steps
say how it was written; any order that applies each condition once its aliases are there gives the same rows.

Outer, semi, anti and as-of joins come after the inner ones, which are the *core*. Such a query is made of inner
*parts*: the core, and for each of these joins the core with the alias that it adds. What they find decides the rows.
Window joins follow a core of one stream, which is all that is a part: no pairs are found for them. In the result the
columns of the alias that a window join adds are its aggregates, whose names are their numbers.

A query of one source has no step: its results are the tuples that pass the selection.

UNION ALL adds the rows of further queries. Such a query and those that it unites are its *branches*, each planned and
run on its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import pyarrow as pa

from streamjoin.model.asof import Direction
from streamjoin.model.errors import SchemaError, SpecError
from streamjoin.model.expression.canonical import renamed
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.expression.typing_rules import check, check_condition
from streamjoin.model.keys import check_zones, tick_ns
from streamjoin.model.plain_types import plain_type
from streamjoin.model.terms import BandTerm, Equality, Term
from streamjoin.model.window import CountWindow, TimeWindow, Window
from streamjoin.queries.language.grouping import Grouping
from streamjoin.queries.language.join_key import KeyedJoin, keyed
from streamjoin.queries.language.summaries import SummaryRule

MAX_SOURCES: Final = 5
MAX_BRANCHES: Final = 20
JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
OUTER: Final = frozenset[JoinKind](("left", "right", "full"))
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
                f"time column {self.time!r} of stream {self.name!r} is {type_}; for a stream a time column is a "
                "timestamp, a date or an integer (not uint64), as all streams share one clock: cast it"
            )

    @property
    def time_type(self) -> pa.DataType:
        """The type of the time column."""
        return plain_type(self.schema.field(self.time).type)

    @property
    def tick_ns(self) -> int | None:
        """The nanoseconds of one unit of the time column; None for integers, whose unit is unknown."""
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
class NearestRule:
    """Of an as-of join: the partner is the nearest in time to the tuple of `anchor`, before it, after it, or either.

    Equal times count if `exact`. Of partners with equal times the last is taken, if "forward" the first; of two that
    are equally near the one before. Without `bounded` there is no tolerance, and the newest tuple of each key is kept.
    """

    anchor: str
    direction: Direction = "backward"
    exact: bool = True
    bounded: bool = True


@dataclass(frozen=True)
class JoinStep:
    """The join of one more alias: `right` with what came before. In its terms `right`'s column is on the right.

    `own` are conditions of its ON that don't relate `right` to another alias and yet say only whether a pair matches,
    as those on a tuple that comes out without a match. `against`, if given, are the aliases that the window is about.
    """

    right: str
    window: Window
    equalities: tuple[Equality, ...] = ()
    bands: tuple[BandTerm, ...] = ()
    others: tuple[Expression, ...] = ()
    kind: JoinKind = "inner"
    nearest: NearestRule | None = None
    own: tuple[Expression, ...] = ()
    against: tuple[str, ...] = ()
    summary: SummaryRule | None = None

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
        _require(
            self.nearest is None or self.kind in ("inner", "left", "anti"), f"an as-of join can't be {self.kind!r}"
        )
        _require(
            self.is_bounded or (self.nearest is not None and self.nearest.direction == "backward" and self.by_key),
            "an as-of join without a tolerance looks back, by equalities",
        )
        _require(self.nearest is None or isinstance(self.window, TimeWindow), "an as-of join has a tolerance in time")
        _require(self.is_inner is False or not self.own, "the conditions of an inner join are selections")
        _require(
            self.summary is None or (self.nearest is None and self.kind in ("inner", "left")),
            f"a window join can't be {self.kind!r}, nor an as-of join",
        )

    @property
    def is_inner(self) -> bool:
        """Whether its rows are the pairs."""
        return self.kind == "inner" and self.nearest is None and self.summary is None

    @property
    def is_outer(self) -> bool:
        """Whether its rows are the pairs, and tuples without a partner."""
        return self.kind in OUTER and self.nearest is None and self.summary is None

    @property
    def is_bounded(self) -> bool:
        """Whether a window or a tolerance bounds how far apart tuples are."""
        return self.nearest is None or self.nearest.bounded

    @property
    def by_key(self) -> bool:
        """Whether equalities alone relate the two sides."""
        return not self.bands and not self.others

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
        rule = self.nearest or self.summary
        if self.against or rule is not None:
            return self.against if rule is None else (rule.anchor,)
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
    """A whole query. `selections` holds one conjunction for each source, `residual` conditions across aliases.

    `filters` are tested on result rows, in which the tuple of an alias may be missing. With a `grouping` the results
    are rows of groups, which come out once their window has passed, and the outputs are made of groups. `union` are
    queries with the same columns, whose rows come too.
    """

    name: str
    text: str
    sources: tuple[QuerySource, ...]
    steps: tuple[JoinStep, ...]
    selections: tuple[tuple[Predicate, ...], ...]
    residual: tuple[Expression, ...]
    outputs: tuple[Output, ...]
    filters: tuple[Expression, ...] = ()
    grouping: Grouping | None = None
    union: tuple[Query, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.sources)
        _require(1 <= count <= MAX_SOURCES, f"a query reads one stream, or joins up to {MAX_SOURCES}, not {count}")
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
        self._check_kinds()
        self._check_rest()
        self._check_clock()
        self._check_union()

    def _check_kinds(self) -> None:
        core, kinds = set(self.core), self.kind_steps
        _require(not any(step.is_inner for step in kinds), "inner joins come before outer, semi, anti and as-of joins")
        outer = any(step.is_outer for step in kinds)
        _require(not outer or len(kinds) == 1, "an outer join is the only join after the inner ones")
        windows = [step for step in kinds if step.summary is not None]
        _require(not windows or (len(core) == 1 and windows == [*kinds]), "window joins follow one stream alone")
        for step in kinds:
            known = core | {step.right}
            _require(
                all(_aliases(condition) <= known for condition in (*step.conditions, *step.own))
                and set(step.related) <= core,
                f"the join with {step.right!r} may only use the aliases of the inner joins, {', '.join(self.core)}",
            )
        hidden = self.hidden
        used = [*self.filters, *self.residual, *(output.expression for output in self.outputs)]
        _require(not any(_aliases(one) & hidden for one in used), f"{hidden} are not in the result")
        _require(bool(kinds) or not self.filters, "the filters of inner joins are selections and the residual")

    def _check_rest(self) -> None:
        _require(len(self.selections) == len(self.sources), "a query has one selection for each source")
        for source, selection in zip(self.sources, self.selections, strict=True):
            for predicate in selection:
                name = source.stream.name
                _require(predicate.stream == name, f"{predicate.condition} selects from {predicate.stream}, not {name}")
                check_condition(predicate.condition, {ROW: source.stream.schema})
        for condition in (*self.residual, *self.filters, *(own for step in self.steps for own in step.own)):
            check_condition(condition, self.schemas)
        _require(bool(self.outputs), "a query has at least one output")
        names = [output.name.lower() for output in self.outputs]
        _require(len(set(names)) == len(names), f"output names must differ: {', '.join(names)}")
        schemas = self.result_schemas if self.grouping is None else self.grouping.schemas
        for output in self.outputs:
            type_ = output_type(output.expression, schemas)
            _require(output.type == type_, f"output {output.name!r}: wrong type")
        _require(
            self.grouping is None or not self.kind_steps, "groups are of the rows of inner joins, or of one stream"
        )

    def _check_clock(self) -> None:
        first = self.sources[0].stream
        for source in self.sources[1:]:
            check_clocks(first, source.stream)
        for step in self.steps:
            if isinstance(step.window, TimeWindow) and step.window.is_duration != (first.tick_ns is not None):
                raise SchemaError(f"the window of {step.right!r} does not fit the time columns ({first.time_type})")

    def _check_union(self) -> None:
        _require(len(self.union) < MAX_BRANCHES, f"UNION ALL takes at most {MAX_BRANCHES} queries")
        for other in self.union:
            _require(other.schema == self.schema, f"UNION ALL of other columns: {other.schema}, not {self.schema}")
            _require(not other.union, "a branch of a UNION ALL has none itself")
            _require(self.grouping is None and other.grouping is None, "a branch of a UNION ALL has no groups")

    @cached_property
    def branches(self) -> tuple[Query, ...]:
        """What a UNION ALL unites, the first by its own name: a query without one is its only branch."""
        if not self.union:
            return (self,)
        further = (replace(one, name=f"{self.name}{_BRANCH}{n}") for n, one in enumerate(self.union, 1))
        return (replace(self, union=()), *further)

    @cached_property
    def streams(self) -> dict[str, Stream]:
        """The streams that it reads, by name."""
        return {source.stream.name: source.stream for one in (self, *self.union) for source in one.sources}

    @property
    def aliases(self) -> tuple[str, ...]:
        """The aliases in the order of the text."""
        return tuple(source.alias for source in self.sources)

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        """The columns of each alias."""
        return {source.alias: source.stream.schema for source in self.sources}

    @cached_property
    def result_schemas(self) -> dict[str, pa.Schema]:
        """The columns of each alias as outputs read them: of one that is summarised the aggregates."""
        rules = {step.right: step.summary for step in self.steps}
        return {
            alias: schema if (rule := rules.get(alias)) is None else rule.schema(self.schemas)
            for alias, schema in self.schemas.items()
        }

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return pa.schema([(output.name, output.type) for output in self.outputs])

    @property
    def pairs(self) -> tuple[PairWindow, ...]:
        """Every pair of aliases that a step relates, once, with its window."""
        return tuple(PairWindow(left, step.right, step.window) for step in self.steps for left in step.related)

    @cached_property
    def kind_steps(self) -> tuple[JoinStep, ...]:
        """The steps from the first that is no inner join on."""
        first = next((number for number, step in enumerate(self.steps) if not step.is_inner), len(self.steps))
        return self.steps[first:]

    @property
    def core(self) -> tuple[str, ...]:
        """The aliases of the inner joins; the first alone where there are none."""
        return self.aliases[: len(self.aliases) - len(self.kind_steps)]

    @property
    def hidden(self) -> set[str]:
        """The aliases whose columns are not in the result."""
        return {step.right for step in self.kind_steps if step.kind in ("semi", "anti")}

    @cached_property
    def parts(self) -> tuple[Query, ...]:
        """The inner queries that it is made of: one for each kind step, then the core if that is a join itself.

        A query of inner joins is its own part. All but the first have names that no query can have.
        """
        kinds, core = self.kind_steps, self.core
        if not kinds:
            return (self,)
        inner = self.steps[: len(core) - 1]
        if kinds[0].summary is not None:
            return (self._part(core, inner, self.residual),)
        parts = []
        for step in kinds:
            against = () if step.nearest is None else (step.nearest.anchor,)
            plain = replace(step, kind="inner", nearest=None, own=(), against=against)
            parts.append(self._part((*core, step.right), (*inner, plain), (*self.residual, *step.own)))
        if len(core) > 1:
            parts.append(self._part(core, inner, self.residual))
        return tuple(replace(part, name=part_name(self.name, number)) for number, part in enumerate(parts))

    def _part(self, aliases: tuple[str, ...], steps: tuple[JoinStep, ...], residual: tuple[Expression, ...]) -> Query:
        sources = tuple(self.source(alias) for alias in aliases)
        selections = tuple(self.selection(alias) for alias in aliases)
        time = Column(aliases[0], sources[0].stream.time)
        output = Output(time.name, time, output_type(time, self.schemas))
        ordered = tuple(sorted(dict.fromkeys(residual), key=str))
        return Query(self.name, self.text, sources, steps, selections, ordered, (output,))

    @cached_property
    def feed(self) -> Query:
        """The rows that groups are made of: the columns that keys and aggregates read, and the times of the window."""
        if self.grouping is None:
            return self
        alias = self.grouping.window.alias
        times = [Column(one.alias, one.stream.time) for one in self.sources if alias in (None, one.alias)]
        return self.fed_with((*times, *self.grouping.columns))

    def fed_with(self, columns: Iterable[Column]) -> Query:
        """The query with these columns instead of groups."""
        chosen = sorted(dict.fromkeys(columns), key=lambda column: (self.aliases.index(column.qualifier), column.name))
        outputs = [Output(str(n), one, output_type(one, self.schemas)) for n, one in enumerate(chosen)]
        return replace(self, outputs=tuple(outputs), grouping=None)

    def source(self, alias: str) -> QuerySource:
        """The source of this alias."""
        return self.sources[self.aliases.index(alias)]

    def selection(self, alias: str) -> tuple[Predicate, ...]:
        """What a tuple of this alias must pass."""
        return self.selections[self.aliases.index(alias)]

    def join_key(self) -> KeyedJoin:
        """The shared identity of the join: what an index serves of it, so that more queries share it."""
        streams = {source.alias: source.stream.name for source in self.sources}
        return keyed(streams, [term for step in self.steps for term in step.terms])


_PART: Final = "\x1f"
_BRANCH: Final = f"{_PART}|"


def part_name(query: str, number: int) -> str:
    """The name of a query's part; the first has the query's own."""
    return f"{query}{_PART}{number}" if number else query


def query_name(part: str) -> str:
    """The name of the query that a part or a branch belongs to."""
    return part.partition(_PART)[0]


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


def _aliases(expression: Expression) -> set[str]:
    return {column.qualifier for column in expression.columns}
