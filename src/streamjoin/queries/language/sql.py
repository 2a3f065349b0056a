"""A query's text to its logical plan, against the registered streams.

The dialect: `SELECT outputs FROM a [JOIN b WITHIN 3 SECONDS ON a.k = b.k] [JOIN c WITHIN 10 ROWS ON ...] [WHERE ...]`.
One outer join, or any number of semi, anti and as-of joins, may follow the inner joins. GROUP BY is in `groups`.
UNION ALL puts several of them together.
Every error is a `QueryError` that shows the place and says what is allowed; nothing in a text is ever ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from streamjoin.model.errors import ExpressionError, SchemaError
from streamjoin.model.expression.aggregates import Aggregate, aggregate_type, aggregates, replaced
from streamjoin.model.expression.canonical import conjuncts, renamed
from streamjoin.model.expression.nodes import MAX_DEPTH, Column, Compare, Expression
from streamjoin.model.expression.parsing import Parsed, Scan
from streamjoin.model.expression.refusals import SUMMARY
from streamjoin.model.expression.source_text import Span
from streamjoin.model.expression.typing_rules import check, check_condition
from streamjoin.model.terms import split
from streamjoin.model.window import CountWindow, TimeWindow, Window
from streamjoin.queries.language import clauses
from streamjoin.queries.language.clauses import (
    Clauses,
    Item,
    JoinClause,
    MatchClause,
    NamedStream,
    QueryText,
    RangeClause,
    TokenRange,
)
from streamjoin.queries.language.groups import GroupPlanning
from streamjoin.queries.language.parameters import with_values
from streamjoin.queries.language.plan import (
    ROW,
    JoinKind,
    JoinStep,
    NearestRule,
    Output,
    Predicate,
    Query,
    QuerySource,
    Stream,
    check_clocks,
    output_type,
)
from streamjoin.queries.language.summaries import SummaryRule


def parse(
    text: str,
    streams: Mapping[str, Stream] | Iterable[Stream],
    name: str = "query",
    parameters: Mapping[str, Any] | None = None,
) -> Query:
    """The plan of a query over `streams`, with the values of its `:name` parameters.

    Raises:
        SpecError: a value can't be written in SQL, or belongs to no parameter.
        QueryError: the text does not parse, does not fit the streams, or asks for what an ad-hoc query can't do.

    >>> trades = Stream("trades", pa.schema({"sym": pa.string(), "px": pa.int64(), "ts": pa.timestamp("us")}), "ts")
    >>> query = parse("SELECT a.sym, b.px - a.px AS rise FROM trades a JOIN trades b WITHIN 3 SECONDS "
    ...               "ON a.sym = b.sym AND b.px BETWEEN a.px AND a.px + 5 WHERE a.px > 10", [trades])
    >>> [str(term) for term in query.steps[0].terms]
    ['a.sym = b.sym', 'a.px - b.px BETWEEN -5 AND 0']
    >>> str(query.join_key().key)
    '[trades s0, trades s1: s0.sym = s1.sym AND s0.px - s1.px BETWEEN -5 AND 0]'
    """
    if not isinstance(text, str):
        raise ExpressionError(f"a query is a text such as {clauses.SHAPE!r}, not {text!r}")
    known = streams.values() if isinstance(streams, Mapping) else streams
    source = QueryText(with_values(QueryText(text), parameters))
    scan, by_name = Scan.of(source), {stream.name: stream for stream in known}
    first, *others = frames = clauses.read(scan.source)
    grouped = next((frame.groups for frame in frames if frame.groups is not None), None)
    if others and grouped is not None:
        raise scan.source.error(
            "the groups of a query come out by themselves, and not with UNION ALL: create one query for each SELECT; "
            "they may write to one table or topic",
            *grouped.span,
        )
    query = _Planning(scan, by_name).query(name, first)
    union = tuple(_Planning(scan, by_name, query.schema).query(name, frame) for frame in others)
    return replace(query, union=union) if union else query


@dataclass
class _Names:
    """Which aliases an expression may use, and whose columns they are."""

    sources: Sequence[QuerySource]
    later: Sequence[str] = field(default_factory=tuple)
    hidden: Mapping[str, str] = field(default_factory=dict)
    """Why other aliases of the query can't be used."""
    outputs: Sequence[str | None] = ()
    """What SELECT gives a name; a condition can't use it."""

    def resolve(self, qualifier: str | None, name: str, quoted: bool) -> Column:
        if qualifier is None:
            return self._bare(name, quoted)
        source = next((source for source in self.sources if source.alias == qualifier), None)
        if source is None:
            raise ExpressionError(self._no_alias(qualifier))
        names = source.stream.schema.names
        if name not in names:
            near = nearest(name, names)
            hint = f"did you mean {qualifier}.{near}? " if near else ""
            raise ExpressionError(f"{qualifier} has no column {name!r}; {hint}it has: {', '.join(names)}")
        return Column(qualifier, name)

    def _bare(self, name: str, quoted: bool) -> Column:
        holders = [source.alias for source in self.sources if name in source.stream.schema.names]
        if len(holders) == 1:
            return Column(holders[0], name)
        if holders:
            choices = " or ".join(f"{alias}.{name}" for alias in holders)
            raise ExpressionError(f"column {name!r} is ambiguous: write {choices}")
        if name in self.outputs:
            raise ExpressionError(
                f"{name} is a name that SELECT gives, and WHERE chooses before: write its expression; HAVING chooses "
                "by aggregates"
            )
        every = [column for source in self.sources for column in source.stream.schema.names]
        near = nearest(name, every)
        hint = f"; did you mean {near}?" if near else f"; there are: {', '.join(dict.fromkeys(every))}"
        string = f"; if it is a string, write '{name}'" if quoted else ""
        raise ExpressionError(f"no stream of this query has a column {name!r}{hint}{string}")

    def _no_alias(self, qualifier: str) -> str:
        if qualifier in self.hidden:
            return self.hidden[qualifier]
        if qualifier in self.later:
            return f"{qualifier} is joined later: a condition may use the streams before it and its own"
        aliases = [source.alias for source in self.sources]
        aliased = [source.alias for source in self.sources if source.stream.name == qualifier]
        if aliased:
            return f"{qualifier} is called {' and '.join(aliased)} here: write {aliased[0]}. before the column"
        near = nearest(qualifier, aliases)
        hint = f"did you mean {near}? " if near else ""
        return f"unknown stream or alias {qualifier!r}; {hint}here are: {', '.join(aliases)}"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant."""
    known = list(names)
    near = difflib.get_close_matches(name, known, n=1) or [n for n in known if n.lower() == name.lower()]
    return near[0] if near else None


def _earlier(new: str, operands: Sequence[Expression], times: Mapping[str, str]) -> str | None:
    """The earlier alias of two time columns, of which one is that of `new`; None if they are something else."""
    columns = [one for one in operands if isinstance(one, Column) and times[one.qualifier] == one.name]
    aliases = [column.qualifier for column in columns]
    if len(aliases) != 2 or aliases.count(new) != 1:
        return None
    return aliases[0] if aliases[1] == new else aliases[1]


class _Planning:
    def __init__(self, scan: Scan, streams: Mapping[str, Stream], first: pa.Schema | None = None) -> None:
        self._scan = scan
        self._streams = streams
        self._first = first
        """The columns of the SELECT that this one follows after UNION ALL."""
        self._sources: list[QuerySource] = []
        self._schemas: dict[str, pa.Schema] = {}
        self._selections: dict[str, list[Expression]] = {}
        self._residual: list[Expression] = []
        self._filters: list[Expression] = []
        self._core = 0
        """How many of the sources are joined by inner joins."""
        self._windows: list[Window | None] = []
        """Those of the joins so far."""
        self._kinds: list[JoinKind] = []
        """Those of the joins after them."""
        self._rules: dict[str, list[Aggregate]] = {}
        """The aggregates of each window join, by the alias that it adds."""

    def query(self, name: str, frame: Clauses) -> Query:
        tables = [frame.first, *(join.table for join in frame.joins)]
        for table in tables:
            self._add_source(table)
        self._note_kinds(frame)
        steps = tuple(self._step(number, join) for number, join in enumerate(frame.joins))
        if frame.where is not None:
            self._where(frame.where, [item.name for item in frame.items])
        grouping, outputs = None, None
        if frame.groups is not None:
            reader = GroupPlanning(self._scan, self._visible.resolve, self._sources, self._schemas, steps)
            grouping, outputs = reader.read(frame, frame.groups)
        if outputs is None:
            outputs = self._outputs(frame)
        return Query(
            name=name,
            text=self._scan.source.text,
            sources=tuple(self._sources),
            steps=tuple(self._with_aggregates(*pair) for pair in zip(steps, frame.joins, strict=True)),
            selections=tuple(self._selection(source) for source in self._sources),
            residual=tuple(sorted(dict.fromkeys(self._residual), key=str)),
            outputs=outputs,
            filters=tuple(sorted(dict.fromkeys(self._filters), key=str)),
            grouping=grouping,
        )

    def _note_kinds(self, frame: Clauses) -> None:
        """Find the core, and refuse joins that may not follow each other."""
        plain = [join.is_inner for join in frame.joins]
        first = plain.index(False) if False in plain else len(plain)
        self._core, kinds = first + 1, frame.joins[first:]
        windows = [join for join in frame.joins if join.range is not None]
        if windows and len(windows) < len(frame.joins):
            other = next(join for join in frame.joins if join.range is None)
            raise self._error(
                "a window join follows one stream, or other window joins: create another query for this join",
                other.kind_span,
            )
        for number, join in enumerate(kinds):
            outer = join.is_outer
            if join.is_inner:
                raise self._error(
                    "an inner join after an outer, semi, anti or as-of join is not allowed: write it before",
                    join.kind_span,
                )
            if number and (outer or kinds[0].is_outer):
                raise self._error(
                    "an outer join is the only join after the inner ones: create another query for this one",
                    join.kind_span,
                )
            counted = [one for one in frame.joins if isinstance(one.window, CountWindow)]
            if join.kind in ("right", "full") and first and counted:
                raise self._error(
                    f"a {join.kind.upper()} JOIN after other joins needs windows in time: it is unknown when a window "
                    "of ROWS over several streams has passed",
                    counted[0].window_span,
                )
        self._kinds = [join.kind for join in kinds]

    @property
    def _visible(self) -> _Names:
        """What SELECT and WHERE may use."""
        joins = zip(self._sources[self._core :], self._kinds, strict=True)
        hidden = {
            source.alias: f"{source.alias} is joined by {kind.upper()} JOIN: its columns are not in the result"
            for source, kind in joins
            if kind in ("semi", "anti")
        }
        hidden |= {
            alias: f"{alias} is summarised: a condition on its columns belongs in ON of its WINDOW JOIN"
            for alias in self._rules
        }
        return _Names([source for source in self._sources if source.alias not in hidden], hidden=hidden)

    def _error(self, message: str, span: Span) -> ExpressionError:
        return self._scan.source.error(message, *span)

    def _add_source(self, table: NamedStream) -> None:
        stream = self._streams.get(table.stream)
        if stream is None:
            near = nearest(table.stream, self._streams)
            hint = f"did you mean {near}? " if near else ""
            known = ", ".join(self._streams) or "none yet"
            raise self._error(f"unknown stream {table.stream!r}; {hint}there are: {known}", table.span)
        if table.alias in self._schemas:
            hint = " (a self-join needs an alias for each: FROM a AS x JOIN a AS y ...)" * (table.alias == table.stream)
            raise self._error(f"the name {table.alias!r} is taken{hint}; give this stream another alias", table.span)
        try:
            for earlier in self._sources[:1]:
                check_clocks(earlier.stream, stream)
        except SchemaError as error:
            raise self._error(str(error), table.span) from None
        self._sources.append(QuerySource(table.alias, stream))
        self._schemas[table.alias] = stream.schema
        self._selections[table.alias] = []

    # Conditions ---------------------------------------------------------------------------------------------------

    def _condition(self, tokens: TokenRange, names: _Names) -> tuple[tuple[Expression, ...], Span]:
        parsed = self._scan.read(tokens.first, tokens.end, names.resolve, clauses.WHERE)
        self._check(parsed, condition=True)
        return conjuncts(parsed.expression), parsed.span

    def _check(self, parsed: Parsed, *, condition: bool) -> None:
        """Check the types; an error is shown at the smallest part that has it."""
        if parsed.expression.depth > MAX_DEPTH // 2:
            raise self._error(f"the text nests more than {MAX_DEPTH // 2} levels deep", parsed.span)
        try:
            (check_condition if condition else check)(parsed.expression, self._schemas)
        except SchemaError as error:
            for node in reversed(list(parsed.expression.walk())):
                try:
                    check(node, self._schemas)
                except SchemaError as smaller:
                    raise self._error(str(smaller), parsed.place(node)) from None
            raise self._error(str(error), parsed.span) from None

    def _step(self, number: int, join: JoinClause) -> JoinStep:
        self._check_window(join)
        new = join.table.alias
        names = self._names_of_step(number)
        nearest = None if join.match is None else self._nearest(join, join.match, names)
        summary = None if join.range is None else self._rule(join.range, new)
        terms, span = ((), join.kind_span) if join.on is None else self._condition(join.on, names)
        related: list[Expression] = []
        own: list[Expression] = []
        for term in terms:
            aliases = {column.qualifier for column in term.columns}
            if new in aliases and len(aliases) > 1:
                related.append(term)
            elif number + 1 < self._core or (aliases == {new} and join.kind not in ("right", "full")):
                self._place(term, aliases)
            else:
                # What comes out without a match must not be left out because of it.
                own.append(term)
        if not related and nearest is None and summary is None:
            earlier = ", ".join(source.alias for source in names.sources[:-1])
            raise self._error(
                f"this condition relates {new} to no stream before it ({earlier}), which makes a cross join; "
                f"compare a column of {new} with one of theirs",
                span,
            )
        equalities, bands, others = split(related, new, self._schemas)
        if nearest is not None and not nearest.bounded:
            self._check_unbounded(join, nearest, by_key=not bands and not others)
        if summary is not None:
            self._check_in_force(join, summary, by_key=not bands and not others)
        window = self._no_time if summary is None else summary.window
        return JoinStep(
            new, join.window or window, equalities, bands, others, join.kind, nearest, tuple(own), (), summary
        )

    @property
    def _no_time(self) -> TimeWindow:
        """A window of equal times."""
        return TimeWindow(0 if self._sources[0].stream.tick_ns is None else "0 seconds")

    def _check_unbounded(self, join: JoinClause, nearest: NearestRule, *, by_key: bool) -> None:
        """Refuse an as-of join without a tolerance whose state would have no bound."""
        reason = None
        if nearest.direction != "backward":
            reason = "looking ahead a tuple would wait for ever"
        elif not by_key:
            reason = "with more than equalities in ON every tuple would have to be kept"
        elif any(isinstance(window, CountWindow) for window in self._windows[: self._core - 1]):
            reason = "after a join WITHIN ROWS it is not known how old the tuples to come are"
        if reason is not None:
            message = f"TOLERANCE is missing: {reason}; say how far apart the two times may be, as in "
            raise self._error(message + clauses.ASOF_SHAPE, join.kind_span)

    def _rule(self, clause: RangeClause, new: str) -> SummaryRule:
        """The rule of a window join, still without its aggregates."""
        stream = self._sources[0].stream
        is_duration = clause.is_duration if clause.low or clause.high else stream.tick_ns is not None
        if is_duration != (stream.tick_ns is not None):
            units = "n UNITS" if is_duration else "MILLISECONDS, SECONDS, MINUTES, HOURS or DAYS"
            column = f"the time column {stream.name}.{stream.time} is {stream.time_type}"
            raise self._error(f"{column}: write the bounds in {units}", clause.span)
        rule = SummaryRule(self._sources[0].alias, clause.low, clause.high, is_duration, clause.prevailing)
        self._rules[new] = []
        return rule

    def _check_in_force(self, join: JoinClause, rule: SummaryRule, *, by_key: bool) -> None:
        if rule.prevailing and not by_key and join.range is not None:
            raise self._error(
                "INCLUDE PREVAILING takes equalities of columns alone in ON: which tuple is in force is not known by "
                "other conditions; write EXCLUDE PREVAILING",
                join.range.span,
            )

    def _names_of_step(self, number: int) -> _Names:
        """The aliases that the ON of a join may use: those of the inner joins up to it, and its own."""
        known = [*self._sources[: min(number + 1, self._core)], self._sources[number + 1]]
        between = [source.alias for source in self._sources[self._core : number + 1]]
        why = "{} is joined after the inner joins: this condition may use the streams of those, and its own"
        later = [source.alias for source in self._sources[number + 2 :]]
        return _Names(known, later, {alias: why.format(alias) for alias in between})

    def _nearest(self, join: JoinClause, match: MatchClause, names: _Names) -> NearestRule:
        """The rule of MATCH_CONDITION: how the time of an earlier stream and that of the new one are compared."""
        new, bounded = join.table.alias, join.window is not None
        times = {source.alias: source.stream.time for source in names.sources}
        example = f"{names.sources[0].alias}.{times[names.sources[0].alias]}", f"{new}.{times[new]}"
        if match.nearest:
            parts = [self._scan.read(part.first, part.end, names.resolve, clauses.WHERE) for part in match.nearest]
            earlier = _earlier(new, [part.expression for part in parts], times)
            if earlier is None:
                raise self._error(
                    f"NEAREST takes the time column of an earlier stream and that of {new}, as in NEAREST"
                    f"({', '.join(example)})",
                    (parts[0].span[0], parts[1].span[1]),
                )
            exact = match.comparison is None
            if match.comparison is not None:
                self._compared(match.comparison, names, new, ("<>",), f"{example[0]} <> {example[1]}")
            return NearestRule(earlier, "nearest", exact, bounded)
        if match.comparison is None:
            raise AssertionError("a MATCH_CONDITION of nothing")
        allowed = (">=", ">", "<=", "<")
        operator, earlier, turned = self._compared(match.comparison, names, new, allowed, " >= ".join(example))
        backward = operator.startswith(">") != turned
        return NearestRule(earlier, "backward" if backward else "forward", operator.endswith("="), bounded)

    def _compared(
        self, tokens: TokenRange, names: _Names, new: str, allowed: Sequence[str], example: str
    ) -> tuple[str, str, bool]:
        """The operator, the earlier alias, and whether the new alias is on the left."""
        parsed = self._scan.read(tokens.first, tokens.end, names.resolve, clauses.WHERE)
        comparison = parsed.expression
        times = {source.alias: source.stream.time for source in names.sources}
        if isinstance(comparison, Compare) and comparison.operator in allowed:
            earlier = _earlier(new, [comparison.left, comparison.right], times)
            if earlier is not None:
                return comparison.operator, earlier, comparison.left == Column(new, times[new])
        operators = " or ".join(", ".join(allowed).rsplit(", ", 1))
        raise self._error(
            f"MATCH_CONDITION compares the time column of an earlier stream with that of {new} by {operators}, "
            f"as in {example}",
            parsed.span,
        )

    def _check_window(self, join: JoinClause) -> None:
        window, stream = join.window, self._sources[0].stream
        self._windows.append(window)
        if not isinstance(window, TimeWindow) or window.is_duration == (stream.tick_ns is not None):
            return
        column = f"the time column {stream.name}.{stream.time} is {stream.time_type}"
        if window.is_duration:
            message = f"{column}, whose unit is not known: write WITHIN n UNITS, or WITHIN n ROWS"
            if join.match is not None:
                message = f"{column}, whose unit is not known: write TOLERANCE n UNITS"
        else:
            rows = " or ROWS" if join.match is None else ""
            message = f"{column}: write the window in MILLISECONDS, SECONDS, MINUTES, HOURS, DAYS{rows}"
        raise self._error(message, join.window_span)

    def _where(self, tokens: TokenRange, outputs: Sequence[str | None]) -> None:
        core = {source.alias for source in self._sources[: self._core]}
        preserved = core if not {"right", "full"} & set(self._kinds) else set()
        if self._kinds == ["right"]:
            preserved = {self._sources[-1].alias}
        for term in self._condition(tokens, replace(self._visible, outputs=outputs))[0]:
            aliases = {column.qualifier for column in term.columns}
            if not self._kinds or (aliases <= preserved and (aliases or preserved == core)):
                self._place(term, aliases)
            else:
                self._filters.append(term)

    def _place(self, term: Expression, aliases: set[str]) -> None:
        """A condition that no step relates by: on one alias it is a selection (one on none is the first's)."""
        if len(aliases) > 1:
            self._residual.append(term)
        else:
            self._selections[next(iter(aliases), self._sources[0].alias)].append(term)

    def _selection(self, source: QuerySource) -> tuple[Predicate, ...]:
        terms = [renamed(term, {source.alias: ROW}) for term in self._selections[source.alias]]
        return tuple(Predicate(source.stream.name, term) for term in sorted(dict.fromkeys(terms), key=str))

    # Outputs ------------------------------------------------------------------------------------------------------

    def _outputs(self, frame: Clauses) -> tuple[Output, ...]:
        outputs: list[Output] = []
        places: list[Span] = []
        for item in frame.items:
            for output in self._item(item):
                if self._first is None and any(output.name.lower() == one.name.lower() for one in outputs):
                    raise self._error(
                        f"two outputs are called {output.name!r} (upper and lower case count as the same); "
                        "name one with AS",
                        item.span,
                    )
                outputs.append(output)
                places.append(item.span)
        if self._first is not None:
            outputs = self._united(self._first, outputs, places)
        return tuple(outputs)

    def _united(self, first: pa.Schema, outputs: Sequence[Output], places: Sequence[Span]) -> list[Output]:
        """Outputs after UNION ALL: by position, and with the names of the first SELECT's."""
        span, own = (places[0][0], places[-1][1]), [output.name for output in outputs]
        if own != first.names and sorted(own) == sorted(first.names):
            raise self._error(
                f"these columns are in another order than those of the first SELECT ({', '.join(first.names)}), and "
                "UNION ALL goes by position: write them in its order",
                span,
            )
        if len(own) != len(first):
            counts = f"{len(own)} column{'s' * (len(own) > 1)}, and the first has {len(first)}"
            raise self._error(f"the SELECTs of UNION ALL have equal columns: this one has {counts}", span)
        for output, field_, place in zip(outputs, first, places, strict=True):
            if output.type != field_.type:
                raise self._error(
                    f"this column is {output.type}, and {field_.name} of the first SELECT is {field_.type}: write "
                    "CAST(x AS type) in one of them",
                    place,
                )
        return [replace(output, name=name) for output, name in zip(outputs, first.names, strict=True)]

    def _item(self, item: Item) -> tuple[Output, ...]:
        words = self._scan.source.words[item.words.first : item.words.end]
        if words[-1].kind == "STAR" and (len(words) == 1 or (len(words) == 3 and words[1].kind == "DOT")):
            if item.name is not None:
                raise self._error("* is many columns and takes no name", item.span)
            return self._star(item, self._scan.source.of(words[0]) if len(words) == 3 else None)
        if self._rules:
            return (self._summary(item),)
        parsed = self._scan.read(item.words.first, item.words.end, self._visible.resolve, clauses.WHERE)
        expression = parsed.expression
        if isinstance(expression, Column):
            return (Output(item.name or expression.name, expression, output_type(expression, self._schemas)),)
        self._check(parsed, condition=False)
        item = self._named(item)
        type_ = output_type(expression, self._schemas)
        if pa.types.is_null(type_):
            raise self._error("this is NULL in every row and has no type; leave it out", item.span)
        return (Output(str(item.name), expression, type_),)

    def _named(self, item: Item) -> Item:
        """An item with the name that an expression needs; after UNION ALL the first SELECT has it."""
        if item.name is None and self._first is None:
            raise self._error("an expression needs a name: add AS and a name", item.span)
        return replace(item, name=item.name or "")

    def _summary(self, item: Item) -> Output:
        """An output of window joins: over columns of the left stream, and aggregates of the others."""
        names = _Names(self._sources)
        parsed = self._scan.read(item.words.first, item.words.end, names.resolve, SUMMARY)
        pending = [parsed.expression]
        while pending:
            node = pending.pop()
            if isinstance(node, Column) and node.qualifier in self._rules:
                raise self._error(
                    f"{node} is a column of many tuples: write for example LAST({node}) or MAX({node})",
                    parsed.place(node),
                )
            pending += () if isinstance(node, Aggregate) else node.children
        for aggregate in aggregates(parsed.expression):
            self._note(aggregate, parsed)
        expression = replaced(parsed.expression, self._column_of)
        if isinstance(expression, Column) and expression.qualifier not in self._rules:
            return Output(item.name or expression.name, expression, output_type(expression, self._schemas))
        item = self._named(item)
        numbered = {
            alias: pa.schema([(str(n), aggregate_type(one, self._schemas)) for n, one in enumerate(found)])
            for alias, found in self._rules.items()
        }
        try:
            return Output(str(item.name), expression, check(expression, {**self._schemas, **numbered}))
        except SchemaError as error:
            message = str(error)
            for column in expression.columns:
                if column.qualifier in self._rules:
                    message = message.replace(str(column), str(self._rules[column.qualifier][int(column.name)]))
            raise self._error(message, parsed.span) from None

    def _note(self, aggregate: Aggregate, parsed: Parsed) -> None:
        """Add an aggregate to those of its window join."""
        found = {column.qualifier for column in aggregate.columns} & self._rules.keys()
        if len(found) > 1 or (not found and len(self._rules) > 1):
            of = " and ".join(sorted(found)) or "no stream"
            raise self._error(
                f"{aggregate} is of {of}: an aggregate summarises the tuples of one window join, here of "
                f"{' or '.join(self._rules)}; of one that is not NULL, such as its time, COUNT counts all",
                parsed.place(aggregate),
            )
        try:
            aggregate_type(aggregate, self._schemas)
        except SchemaError as error:
            raise self._error(str(error), parsed.place(aggregate)) from None
        known = self._rules[next(iter(found or self._rules))]
        if aggregate not in known:
            known.append(aggregate)

    def _column_of(self, aggregate: Aggregate) -> Column:
        alias = next(alias for alias, known in self._rules.items() if aggregate in known)
        return Column(alias, str(self._rules[alias].index(aggregate)))

    def _with_aggregates(self, step: JoinStep, join: JoinClause) -> JoinStep:
        """A step with what the outputs ask of it."""
        if step.summary is None:
            return step
        known = tuple(self._rules[step.right])
        if not known:
            raise self._error(
                f"nothing of {step.right} is in the result: SELECT an aggregate of its columns AS a name; SEMI JOIN "
                "and ANTI JOIN say whether there is a tuple",
                join.table.span,
            )
        return replace(step, summary=replace(step.summary, aggregates=known))

    def _star(self, item: Item, alias: str | None) -> tuple[Output, ...]:
        alias = alias[1:-1].replace('""', '"') if alias and alias.startswith('"') else alias
        visible = self._visible
        chosen = [source for source in visible.sources if alias in (None, source.alias)]
        if alias is not None and not chosen:
            raise self._error(visible._no_alias(alias), item.span)
        columns = [(source.alias, column) for source in chosen for column in source.stream.schema.names]
        lower = [column.lower() for _, column in columns]
        return tuple(
            Output(
                f"{column}_{owner}" if lower.count(column.lower()) > 1 else column,
                Column(owner, column),
                self._schemas[owner].field(column).type,
            )
            for owner, column in columns
        )
