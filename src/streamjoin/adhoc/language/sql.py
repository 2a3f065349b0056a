"""A query's text to its logical plan, against the registered streams.

The dialect: `SELECT outputs FROM a JOIN b WITHIN 3 SECONDS ON a.k = b.k [JOIN c WITHIN 10 ROWS ON ...] [WHERE ...]`.
Every error is a `QueryError` that shows the place and says what is allowed; nothing in a text is ever ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from streamjoin.adhoc.language import clauses
from streamjoin.adhoc.language.clauses import Clauses, Item, JoinClause, NamedStream, QueryText, Stretch
from streamjoin.adhoc.language.plan import (
    ROW,
    JoinStep,
    Output,
    Predicate,
    Query,
    QuerySource,
    Stream,
    check_clocks,
    output_type,
)
from streamjoin.model.errors import ExpressionError, SchemaError
from streamjoin.model.expression.canonical import conjuncts, renamed
from streamjoin.model.expression.nodes import MAX_DEPTH, Column, Expression
from streamjoin.model.expression.parsing import Parsed, Scan
from streamjoin.model.expression.source_text import Span
from streamjoin.model.expression.typing_rules import check, check_condition
from streamjoin.model.terms import split
from streamjoin.model.window import TimeWindow

_WHERE: Final = "an ad-hoc join query"


def parse(text: str, streams: Mapping[str, Stream] | Iterable[Stream], name: str = "query") -> Query:
    """The plan of a query over `streams`.

    Raises:
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
    return _Planning(Scan.of(QueryText(text)), {stream.name: stream for stream in known}).query(name)


@dataclass
class _Names:
    """Which aliases an expression may use, and whose columns they are."""

    sources: Sequence[QuerySource]
    later: Sequence[str] = field(default_factory=tuple)

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
        every = [column for source in self.sources for column in source.stream.schema.names]
        near = nearest(name, every)
        hint = f"; did you mean {near}?" if near else f"; there are: {', '.join(dict.fromkeys(every))}"
        string = f"; if it is a string, write '{name}'" if quoted else ""
        raise ExpressionError(f"no stream of this query has a column {name!r}{hint}{string}")

    def _no_alias(self, qualifier: str) -> str:
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


class _Planning:
    def __init__(self, scan: Scan, streams: Mapping[str, Stream]) -> None:
        self._scan = scan
        self._streams = streams
        self._sources: list[QuerySource] = []
        self._schemas: dict[str, pa.Schema] = {}
        self._selections: dict[str, list[Expression]] = {}
        self._residual: list[Expression] = []

    def query(self, name: str) -> Query:
        frame = clauses.read(self._scan.source)
        tables = [frame.first, *(join.table for join in frame.joins)]
        for table in tables:
            self._add_source(table)
        steps = tuple(self._step(number, join) for number, join in enumerate(frame.joins))
        if frame.where is not None:
            self._where(frame.where)
        return Query(
            name=name,
            text=self._scan.source.text,
            sources=tuple(self._sources),
            steps=steps,
            selections=tuple(self._selection(source) for source in self._sources),
            residual=tuple(sorted(dict.fromkeys(self._residual), key=str)),
            outputs=self._outputs(frame),
        )

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

    def _condition(self, stretch: Stretch, names: _Names) -> tuple[tuple[Expression, ...], Span]:
        parsed = self._scan.read(stretch.first, stretch.end, names.resolve, _WHERE)
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
        later = [source.alias for source in self._sources[number + 2 :]]
        terms, span = self._condition(join.on, _Names(self._sources[: number + 2], later))
        new = join.table.alias
        related: list[Expression] = []
        for term in terms:
            aliases = {column.qualifier for column in term.columns}
            if new in aliases and len(aliases) > 1:
                related.append(term)
            else:
                self._place(term, aliases)
        if not related:
            earlier = ", ".join(source.alias for source in self._sources[: number + 1])
            raise self._error(
                f"this condition relates {new} to no stream before it ({earlier}), which makes a cross join; "
                f"compare a column of {new} with one of theirs",
                span,
            )
        equalities, bands, others = split(related, new, self._schemas)
        return JoinStep(new, join.window, equalities, bands, others)

    def _check_window(self, join: JoinClause) -> None:
        window, stream = join.window, self._sources[0].stream
        if not isinstance(window, TimeWindow) or window.is_duration == (stream.tick_ns is not None):
            return
        column = f"the time column {stream.name}.{stream.time} is {stream.time_type}"
        if window.is_duration:
            message = f"{column}, whose unit is not known: write WITHIN n UNITS, or WITHIN n ROWS"
        else:
            message = f"{column}: write the window in MILLISECONDS, SECONDS, MINUTES, HOURS, DAYS or ROWS"
        raise self._error(message, join.window_span)

    def _where(self, stretch: Stretch) -> None:
        for term in self._condition(stretch, _Names(self._sources))[0]:
            self._place(term, {column.qualifier for column in term.columns})

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
        for item in frame.items:
            for output in self._item(item):
                if any(output.name.lower() == earlier.name.lower() for earlier in outputs):
                    raise self._error(
                        f"two outputs are called {output.name!r} (upper and lower case count as the same); "
                        "name one with AS",
                        item.span,
                    )
                outputs.append(output)
        return tuple(outputs)

    def _item(self, item: Item) -> tuple[Output, ...]:
        words = self._scan.source.words[item.words.first : item.words.end]
        if words[-1].kind == "STAR" and (len(words) == 1 or (len(words) == 3 and words[1].kind == "DOT")):
            if item.name is not None:
                raise self._error("* is many columns and takes no name", item.span)
            return self._star(item, self._scan.source.of(words[0]) if len(words) == 3 else None)
        parsed = self._scan.read(item.words.first, item.words.end, _Names(self._sources).resolve, _WHERE)
        expression = parsed.expression
        if isinstance(expression, Column):
            return (Output(item.name or expression.name, expression, output_type(expression, self._schemas)),)
        self._check(parsed, condition=False)
        if item.name is None:
            raise self._error("an expression needs a name: add AS and a name", item.span)
        type_ = output_type(expression, self._schemas)
        if pa.types.is_null(type_):
            raise self._error("this is NULL in every row and has no type; leave it out", item.span)
        return (Output(item.name, expression, type_),)

    def _star(self, item: Item, alias: str | None) -> tuple[Output, ...]:
        alias = alias[1:-1].replace('""', '"') if alias and alias.startswith('"') else alias
        if alias is not None and alias not in self._schemas:
            raise self._error(_Names(self._sources)._no_alias(alias), item.span)
        chosen = [source for source in self._sources if alias in (None, source.alias)]
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
