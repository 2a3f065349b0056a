"""Binding a `JoinSpec` to two schemas; the engines run the result.

Binding reports every mistake that depends on the types of the data: unknown columns, types that don't compare, windows
in the wrong unit, clashing output names. The result is plain data: terms as word intervals, one residual expression
for the other conditions, windows in ticks of one common clock, and the output columns.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from streamjoin.model.asof import AsOf, Direction
from streamjoin.model.errors import SchemaError
from streamjoin.model.expression.aggregates import (
    Aggregate,
    aggregate_type,
    aggregates,
    is_enumerated,
    replaced,
)
from streamjoin.model.expression.canonical import conjuncts
from streamjoin.model.expression.nodes import Column, Expression, conjunction
from streamjoin.model.expression.typing_rules import check, check_condition
from streamjoin.model.keys import KeyTerm, WordKind, check_zones, fit, tick_ns
from streamjoin.model.output import OutputColumn, output, output_schema, wanted
from streamjoin.model.plain_types import plain_type
from streamjoin.model.predicates import Band, Equi, Theta
from streamjoin.model.spec import JoinSpec
from streamjoin.model.summary import Summary
from streamjoin.model.terms import split
from streamjoin.model.window import LONGEST, CountWindow, TimeWindow, Window


@dataclass(frozen=True)
class TimePlan:
    """The two time columns on one clock: `multiplier` ticks of the clock to one unit of the column."""

    left: str
    right: str
    multipliers: tuple[int, int]
    type: pa.DataType
    tick_ns: int | None


@dataclass(frozen=True)
class BoundWindow:
    """A window in the engines' units: tuples, or ticks of the common clock."""

    kind: Literal["count", "time"]
    size: int


@dataclass(frozen=True)
class BoundAsOf:
    """An as-of match: its direction, its tolerance in ticks, whether equal times count, and whether keys decide."""

    direction: Direction
    tolerance: int | None
    exact: bool
    by_equalities: bool


@dataclass(frozen=True)
class BoundSummary:
    """Summaries fitted to schemas; the bounds are ticks of the common clock, which may be negative.

    Each result column is an expression over `aggregates`, the column "s".i of which is the i-th one.
    """

    low: int
    high: int
    aggregates: tuple[Aggregate, ...]
    types: pa.Schema
    """The types of the aggregates, by number."""
    results: tuple[Expression, ...]
    schema: pa.Schema
    """The new columns."""
    by_equalities: bool
    enumerated: tuple[bool, ...]
    """For each aggregate whether it takes looking at every match."""


@dataclass(frozen=True)
class IntervalPlan:
    """Two terms that bound an interval: `l.a <= r.d` and `l.b >= r.c`, by their place among the terms."""

    upper: int
    lower: int


@dataclass(frozen=True)
class BoundSpec:
    """A spec bound to schemas. `terms` are exact on their words; `index` has the terms that find candidates."""

    spec: JoinSpec
    left_schema: pa.Schema
    right_schema: pa.Schema
    terms: tuple[KeyTerm, ...]
    index: tuple[KeyTerm, ...]
    residual: Expression | None
    time: TimePlan | None
    windows: tuple[BoundWindow, BoundWindow]
    lateness: int | None
    columns: tuple[OutputColumn, ...]
    late_columns: tuple[OutputColumn, ...]
    schema: pa.Schema
    keys: tuple[KeyTerm, ...] = ()
    """All equalities and bands, also those that only the residual tests."""
    match: BoundAsOf | None = None
    intervals: IntervalPlan | None = None
    summary: BoundSummary | None = None

    @property
    def time_field(self) -> pa.Field | None:
        """The result's time, its last column."""
        return _time_field(self.spec, self.time)

    @property
    def late_schema(self) -> pa.Schema:
        """The columns of late rows: all columns of both sides, including both keys."""
        return output_schema(self.late_columns, self.left_schema, self.right_schema)

    @property
    def settled(self) -> frozenset[int]:
        """The terms that a hit in the index decides: those whose words are the index words."""
        plain = len(self.index) == 1 and self.index[0].exact
        return frozenset([self.terms.index(self.index[0])] if plain else [])

    @property
    def by_equalities(self) -> bool:
        """Whether equal keys alone decide which tuples match, beside windows and times."""
        return all(isinstance(key.term, Equi) for key in self.keys) and self.residual == _residual(self.keys, ())

    @property
    def has_equal_roles(self) -> bool:
        """Whether a self-join's tuples have the same words as left and as right ones, and can match as both or not."""
        terms = (*self.terms, *self.index)
        return self.spec.self_join and all(term.left.name == term.right.name for term in terms)


def bind(spec: JoinSpec, left: pa.Schema, right: pa.Schema | None = None) -> BoundSpec:
    """Fit `spec` to the schemas of both sides (for a self-join, to one); the bound spec has its order written out."""
    spec = spec.in_order()
    if spec.self_join:
        right = left
    if right is None:
        raise SchemaError("the schema of the right side is missing")
    terms, others = _conditions(spec, left, right)
    key_terms = [_fit(term, left, right) for term in terms]
    time = _bind_time(spec, left, right)
    # Before the windows, which an as-of join derives from its tolerance: a mistake there is the tolerance's.
    match = _bind_match(spec, others, key_terms, time)
    summary = _bind_summary(spec, others, key_terms, time, {"l": left, "r": right})
    made = None if summary is None else summary.schema
    names = output(spec, left, right)
    fields = output_schema(names.columns, left, right, _time_field(spec, time), spec.how, spec.time_columns, made)
    return BoundSpec(
        spec=spec,
        left_schema=left,
        right_schema=right,
        terms=tuple(term for term in key_terms if term.exact),
        index=_index(key_terms),
        residual=_residual(key_terms, others),
        time=time,
        windows=(_bind_window(spec.windows[0], time), _bind_window(spec.windows[1], time)),
        lateness=_bind_lateness(spec, time),
        columns=names.columns,
        late_columns=names.late_columns,
        schema=fields,
        keys=tuple(key_terms),
        match=match,
        summary=summary,
    )


def _bind_match(
    spec: JoinSpec, others: tuple[Expression, ...], keys: list[KeyTerm], time: TimePlan | None
) -> BoundAsOf | None:
    match = spec.match
    if not isinstance(match, AsOf):
        return None
    reach = match.reach
    tolerance = None
    if reach is not None:
        tolerance = _ticks(f"the tolerance of {reach}", reach.length, reach.is_duration, time)
    by_equalities = not others and all(isinstance(key.term, Equi) for key in keys)
    if tolerance is None and spec.window is None and not by_equalities:
        raise SchemaError(
            f"as-of on {spec.predicate} needs tolerance=: as the columns are typed it is not by key alone"
        )
    return BoundAsOf(match.direction, tolerance, match.exact, by_equalities)


def _bind_summary(
    spec: JoinSpec,
    others: tuple[Expression, ...],
    keys: list[KeyTerm],
    time: TimePlan | None,
    schemas: Mapping[str, pa.Schema],
) -> BoundSummary | None:
    match = spec.match
    if not isinstance(match, Summary):
        return None
    low, high = _bounds(match, time)
    found = tuple(dict.fromkeys(a for expression in match.expressions for a in aggregates(expression)))
    types = []
    for aggregate in found:
        name = next(n for n, e in zip(match.names, match.expressions, strict=True) if aggregate in aggregates(e))
        try:
            types.append(aggregate_type(aggregate, schemas))
        except SchemaError as error:
            raise SchemaError(f"the summary {name!r}: {error}") from error
    numbered = pa.schema([(str(number), type_) for number, type_ in enumerate(types)])
    results = tuple(replaced(e, lambda a: Column("s", str(found.index(a)))) for e in match.expressions)
    new = pa.schema([(name, check(e, {"s": numbered})) for name, e in zip(match.names, results, strict=True)])
    by_equalities = not others and all(isinstance(key.term, Equi) for key in keys)
    if match.prevailing and not by_equalities:
        raise SchemaError(f"Summary(prevailing=True) on {spec.predicate}: as the columns are typed it is not by key")
    enumerated = tuple(not by_equalities or is_enumerated(aggregate, schemas) for aggregate in found)
    return BoundSummary(low, high, found, numbered, results, new, by_equalities, enumerated)


def _bounds(match: Summary, time: TimePlan | None) -> tuple[int, int]:
    """The bounds in ticks: times are whole ticks, so one between two of them is the next one inside of the window."""
    low, high = match.between
    _ticks(f"the window of Summary({match})", max(abs(low), abs(high)), match.is_duration, time)
    unit = 1 if time is None else time.tick_ns or 1
    return max(-LONGEST, min(LONGEST, -(-low // unit))), max(-LONGEST, min(LONGEST, high // unit))


def column_type(schema: pa.Schema, name: str, side: str) -> pa.DataType:
    """The type of a column, or an error that names the nearest ones."""
    if len(schema.get_all_field_indices(name)) > 1:
        raise SchemaError(f"the {side} side has more than one column {name!r}; rename one")
    if name in schema.names:
        return schema.field(name).type
    near = difflib.get_close_matches(name, schema.names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(schema.names) or 'no columns'}"
    raise SchemaError(f"the {side} side has no column {name!r}; {hint}")


def _fit(term: Equi | Band, left: pa.Schema, right: pa.Schema) -> KeyTerm:
    return fit(term, column_type(left, term.left, "left"), column_type(right, term.right, "right"))


def _index(fitted: list[KeyTerm]) -> tuple[KeyTerm, ...]:
    """The terms that make the index word: a key and a band together where there are both, else the first."""
    equis = [t for t in fitted if isinstance(t.term, Equi)]
    bands = [t for t in fitted if isinstance(t.term, Band)]
    exact_first = sorted(equis, key=lambda t: t.kind is WordKind.WIDE)
    return tuple(exact_first[:1] + bands[:1]) if exact_first and bands else tuple((exact_first or bands)[:1])


def _conditions(
    spec: JoinSpec, left: pa.Schema, right: pa.Schema
) -> tuple[tuple[Equi | Band, ...], tuple[Expression, ...]]:
    """The keys and bands of a spec, including those in its SQL conditions, and the remaining conditions."""
    schemas = {"l": left, "r": right}
    terms: list[Equi | Band] = []
    conditions: list[Expression] = []
    for term in spec.predicate.terms():
        if isinstance(term, Theta):
            check_condition(term.expression, schemas)
            conditions += conjuncts(term.expression)
        else:
            terms.append(term)
    equalities, bands, others = split(conditions, "r", schemas)
    terms += [equality.term for equality in equalities]
    terms += [band.term for band in bands]
    return tuple(dict.fromkeys(terms)), others


def condition_text(bound: BoundSpec) -> str:
    """The condition as binding reads it: keys and bands found in SQL are written like those given as predicates."""
    spec = bound.spec
    terms, others = _conditions(spec, bound.left_schema, bound.right_schema)
    n_predicates = sum(not isinstance(term, Theta) for term in spec.predicate.terms())
    if len(terms) <= n_predicates:
        return str(spec.predicate)
    return " and ".join([*map(str, terms), *(f"({other})" for other in others)])


def _residual(fitted: Sequence[KeyTerm], others: tuple[Expression, ...]) -> Expression | None:
    parts = (*(term.residual for term in fitted if term.residual is not None), *others)
    return conjunction(parts) if parts else None


def _bind_time(spec: JoinSpec, left: pa.Schema, right: pa.Schema) -> TimePlan | None:
    names = spec.time_columns
    if names is None:
        return None
    types = tuple(
        plain_type(column_type(schema, name, side))
        for schema, name, side in ((left, names[0], "left"), (right, names[1], "right"))
    )
    kinds = [time_kind(name, type_) for name, type_ in zip(names, types, strict=True)]
    if kinds[0] != kinds[1]:
        raise SchemaError(
            f"time columns {names[0]!r} ({types[0]}) and {names[1]!r} ({types[1]}) count differently: cast one so "
            "that both are timestamps or dates, or durations, or uint64, or other integers"
        )
    if pa.types.is_integer(types[0]):
        return TimePlan(*names, (1, 1), pa.uint64() if types[0] == pa.uint64() else pa.int64(), None)
    check_zones(f"time columns {names[0]!r} and {names[1]!r}", *types)
    finest = min(types, key=tick_ns)
    return TimePlan(
        *names,
        (tick_ns(types[0]) // tick_ns(finest), tick_ns(types[1]) // tick_ns(finest)),
        finest,
        tick_ns(finest),
    )


def time_kind(name: str, type_: pa.DataType) -> str:
    """What a time column counts; times of one kind are on one clock."""
    if pa.types.is_integer(type_):
        return "uint64" if type_ == pa.uint64() else "integer"
    for is_kind, kind in (
        (pa.types.is_timestamp, "moment"),
        (pa.types.is_date, "moment"),
        (pa.types.is_duration, "duration"),
    ):
        if is_kind(type_):
            return kind
    why = ""
    if pa.types.is_floating(type_):
        why = (
            ": distances of floats are rounded, so a window would not be the same for all times; cast it to an integer"
        )
    raise SchemaError(
        f"time column {name!r} is {type_}; a time column is a timestamp, a date, a duration or an integer{why}"
    )


def _time_field(spec: JoinSpec, time: TimePlan | None) -> pa.Field | None:
    name = spec.result_time_name
    return None if time is None or name is None else pa.field(name, time.type)


def _bind_window(window: Window, time: TimePlan | None) -> BoundWindow:
    if isinstance(window, CountWindow):
        return BoundWindow("count", window.n)
    return BoundWindow("time", _ticks(f"the window of {window}", window.length, window.is_duration, time))


def _bind_lateness(spec: JoinSpec, time: TimePlan | None) -> int | None:
    if spec.lateness is None:
        return 0 if spec.order == "event_time" else None
    window = TimeWindow(spec.lateness)
    return _ticks(f"the lateness of {window}", window.length, window.is_duration, time)


def _ticks(what: str, length: int, is_duration: bool, time: TimePlan | None) -> int:
    if time is None:
        raise SchemaError(f"{what} needs a time column: add time='...' to the spec")
    if (time.tick_ns is not None) != is_duration:
        expectation = "a duration such as '15 minutes'" if time.tick_ns else "a whole number in the column's own unit"
        raise SchemaError(f"{what} does not fit the time column {time.left!r} ({time.type}): give {expectation}")
    # Times are whole ticks, so a difference is within the length iff it is within its whole part; and every difference
    # of two int64 is within the largest.
    return min(length // (time.tick_ns or 1), LONGEST)


def narrowed(
    bound: BoundSpec, columns: Sequence[str] | None, more: tuple[Collection[str], Collection[str]] = ((), ())
) -> BoundSpec:
    """`bound` with only the given result columns, and only the input columns that these and the join need.

    The columns keep the names that they have in the full result, and the result's time is always included. `more` are
    additional columns of each side.
    """
    if columns is None:
        return bound
    output_columns = wanted(bound.columns, columns, bound.spec.result_time_name)
    # A result of left tuples alone names no column of the right side, whose late rows have those of the same names, and
    # what the join needs.
    alone = bound.spec.left_only
    right_needs = matched_columns(bound, 1) if alone else set()
    late = tuple(
        c
        for c in bound.late_columns
        if any(k.source == c.source and (k.side == c.side or k.is_key or alone) for k in output_columns)
        or (c.side == "right" and c.source in right_needs)
    )
    schemas = []
    for side, schema in enumerate((bound.left_schema, bound.right_schema)):
        names = matched_columns(bound, side) | {c.source for c in late if (c.side == "right") == bool(side)}
        if bound.summary is not None and isinstance(bound.spec.match, Summary):
            names |= bound.spec.match.columns("r" if side else "l")
        if bound.residual is not None:
            names |= {c.name for c in bound.residual.columns if c.qualifier == ("r" if side else "l")}
        schemas.append(pa.schema([f for f in schema if f.name in names.union(more[side])], schema.metadata))
    if bound.spec.self_join:
        both = {*schemas[0].names, *schemas[1].names}
        own = bound.left_schema
        schemas = [pa.schema([field for field in own if field.name in both], own.metadata)] * 2
    left, right = schemas
    made = None if bound.summary is None else bound.summary.schema
    schema = output_schema(output_columns, left, right, bound.time_field, bound.spec.how, bound.spec.time_columns, made)
    return replace(
        bound, left_schema=left, right_schema=right, columns=output_columns, late_columns=late, schema=schema
    )


def matched_columns(bound: BoundSpec, side: int) -> set[str]:
    """The columns of one side that are never NULL in a matching row: keys and times."""
    names = {(term.right if side else term.left).name for term in (*bound.terms, *bound.index)}
    if bound.time is not None:
        names.add(bound.time.right if side else bound.time.left)
    return names
