"""GROUP BY, HAVING, QUALIFY and SELECT DISTINCT: from words to a `Grouping` and the outputs of its groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from streamjoin.model import durations
from streamjoin.model.errors import ExpressionError, SchemaError, SpecError
from streamjoin.model.expression.aggregates import Aggregate, aggregate_type
from streamjoin.model.expression.canonical import canonical
from streamjoin.model.expression.nodes import MAX_DEPTH, Column, Expression
from streamjoin.model.expression.parsing import Parsed, Scan
from streamjoin.model.expression.refusals import GROUPED
from streamjoin.model.expression.source_text import Span, Word
from streamjoin.model.expression.typing_rules import check, check_condition
from streamjoin.model.plain_types import plain_type
from streamjoin.model.window import CountWindow
from streamjoin.queries.language import clauses
from streamjoin.queries.language.clauses import Clauses, GroupClauses, Item, TokenRange
from streamjoin.queries.language.grouping import (
    END,
    KEY,
    START,
    VALUE,
    WINDOW,
    Grouping,
    GroupWindow,
    Ranking,
    window_type,
)
from streamjoin.queries.language.plan import JoinStep, Output, QuerySource

Resolver = Callable[[str | None, str, bool], Column]
WINDOWS: Final = ("TUMBLE", "HOP", "WINDOW")
WINDOW_SHAPE: Final = "GROUP BY t.k, TUMBLE(t.ts, INTERVAL '1' MINUTE)"
QUALIFY_SHAPE: Final = clauses.QUALIFY_SHAPE
_OUTPUT: Final = "\x1foutput"
_UNORDERED: Final = ("FIRST", "LAST")


class GroupPlanning:
    """Reads the grouping of one query; `resolve` finds the columns that SELECT may use."""

    def __init__(
        self,
        scan: Scan,
        resolve: Resolver,
        sources: Sequence[QuerySource],
        schemas: Mapping[str, pa.Schema],
        steps: Sequence[JoinStep],
    ) -> None:
        self._scan, self._resolve = scan, resolve
        self._sources, self._schemas, self._steps = sources, schemas, steps
        self._keys: list[Expression] = []
        self._key_types: list[pa.DataType] = []
        self._aggregates: list[Aggregate] = []
        self._value_types: list[pa.DataType] = []
        self._outputs: dict[str, Output] = {}
        self._window: GroupWindow | None = None
        self._selects = False
        """Whether it reads an output."""

    def read(self, frame: Clauses, groups: GroupClauses) -> tuple[Grouping, tuple[Output, ...]]:
        """The grouping and the outputs.

        Raises:
            QueryError: something is missing, out of place or not allowed.
        """
        kind = next((step for step in self._steps if not step.is_inner), None)
        if kind is not None:
            raise self._error(
                f"GROUP BY takes the rows of inner joins or of one stream, not of the join with {kind.right}: create a "
                "query without GROUP BY, and group its rows where they are read",
                groups.span,
            )
        by = [item.words for item in frame.items] if groups.distinct else groups.by
        by = [tokens for tokens in by if not self._is_end(tokens)]
        for tokens in (self._meant(frame, one) for one in by):
            if self._call(tokens) is None:
                self._key(frame, tokens)
            else:
                self._window = self._windows(tokens)
        if self._window is None:
            raise self._error(
                "groups need a window of time, as a stream has no end: write " + WINDOW_SHAPE
                if not groups.distinct
                else "DISTINCT needs a window of time, as a stream has no end: SELECT DISTINCT t.k, TUMBLE(t.ts, "
                "INTERVAL '1' MINUTE) FROM ...",
                groups.span,
            )
        self._selects = True
        outputs = [output for item in frame.items for output in self._item(item)]
        self._selects = False
        having = None if groups.having is None else self._having(groups.having)
        top = None if groups.qualify is None else self._ranking(groups.qualify)
        grouping = Grouping(
            self._window,
            tuple(self._keys),
            tuple(self._key_types),
            tuple(self._aggregates),
            tuple(self._value_types),
            having,
            top,
        )
        return grouping, tuple(outputs)

    def _error(self, message: str, span: Span) -> ExpressionError:
        return self._scan.source.error(message, *span)

    def _words(self, tokens: TokenRange) -> Sequence[Word]:
        return self._scan.source.words[tokens.first : tokens.end]

    def _span(self, tokens: TokenRange) -> Span:
        words = self._words(tokens)
        return words[0].start, words[-1].end

    # Windows ------------------------------------------------------------------------------------------------------

    def _is_end(self, tokens: TokenRange) -> bool:
        """Whether a key is the start or the end of the window, which every group has, and no column."""
        words = self._words(tokens)
        name = self._scan.source.of(words[0])
        return len(words) == 1 and name.lower() in (START, END) and not self._is_column(name)

    def _is_column(self, name: str) -> bool:
        try:
            self._resolve(None, name, False)
        except ExpressionError:
            return False
        return True

    def _call(self, tokens: TokenRange) -> str | None:
        """The window function that words call; None if they are something else."""
        words = self._words(tokens)
        name = self._scan.source.of(words[0]).upper()
        if len(words) < 3 or words[1].kind != "L_PAREN" or words[-1].kind != "R_PAREN":
            return None
        if name in ("SESSION", "SESSION_WINDOW", "CUMULATE"):
            what = "windows that grow are" if name == "CUMULATE" else "sessions are"
            why = "" if name == "CUMULATE" else ", as one may last for ever"
            raise self._error(
                f"{what} not offered{why}: write TUMBLE(t.ts, INTERVAL '1' MINUTE) or "
                "HOP(t.ts, INTERVAL '10' SECOND, INTERVAL '1' MINUTE)",
                self._span(tokens),
            )
        return name if name in WINDOWS else None

    def _windows(self, tokens: TokenRange) -> GroupWindow:
        """The window that a call of TUMBLE, HOP or window says."""
        span, name = self._span(tokens), self._call(tokens)
        if self._window is not None:
            raise self._error("a query has one window of time: leave this one out", span)
        arguments = self._arguments(tokens)
        column = None
        if arguments and not self._is_length(arguments[0]):
            column = arguments.pop(0)
        wanted = {"TUMBLE": (1, 1), "HOP": (2, 2), "WINDOW": (1, 2)}[str(name)]
        if not wanted[0] <= len(arguments) <= wanted[1]:
            raise self._error(
                "write TUMBLE(t.ts, size), HOP(t.ts, slide, size) or window(t.ts, size, slide), with lengths such as "
                "INTERVAL '1' MINUTE; without a column the time is that of the result",
                span,
            )
        alias = None if column is None else self._alias(column)
        lengths = [self._length(argument) for argument in arguments]
        size, slide = (lengths[-1], lengths[0]) if name == "HOP" else (lengths[0], lengths[-1])
        times = [source.stream.time_type for source in self._sources if alias in (None, source.alias)]
        try:
            return GroupWindow(alias, size, slide, window_type(times, size, slide))
        except SpecError as error:
            raise self._error(str(error), span) from None

    def _arguments(self, tokens: TokenRange) -> list[TokenRange]:
        """What stands between commas in a call."""
        found, depth, first = [], 0, tokens.first + 2
        for place in range(first, tokens.end):
            kind = self._scan.source.words[place].kind
            if (kind == "COMMA" and not depth) or place == tokens.end - 1:
                if place > first:
                    found.append(TokenRange(first, place))
                first = place + 1
            depth += (kind == "L_PAREN") - (kind == "R_PAREN")
        return found

    def _is_length(self, tokens: TokenRange) -> bool:
        return self._words(tokens)[0].kind in ("INTERVAL", "STRING", "NUMBER")

    def _alias(self, tokens: TokenRange) -> str:
        """Whose time a column is."""
        parsed = self._scan.read(tokens.first, tokens.end, self._resolve, clauses.WHERE)
        column = parsed.expression
        times = {Column(source.alias, source.stream.time): source.alias for source in self._sources}
        if not isinstance(column, Column) or column not in times:
            known = " or ".join(map(str, times))
            raise self._error(
                f"a window is over the time of a stream, {known}; or leave the column out for that of the result",
                parsed.span,
            )
        if any(isinstance(step.window, CountWindow) for step in self._steps):
            raise self._error(
                f"after a join WITHIN ROWS it is unknown when the last row of a window of {column} has come: leave the "
                "column out, and the time is that of the result",
                parsed.span,
            )
        return times[column]

    def _length(self, tokens: TokenRange) -> int:
        """A length in ticks."""
        words, span = self._words(tokens), self._span(tokens)
        texts = [self._scan.source.of(word).strip("'") for word in words if word.kind != "INTERVAL"]
        units = self._sources[0].stream.tick_ns is None
        try:
            if units:
                if [word.kind for word in words] != ["NUMBER"]:
                    time = self._sources[0].stream
                    raise SpecError(f"the time column {time.name}.{time.time} is a number: write a length such as 60")
                length = int(texts[0])
            else:
                if words[0].kind == "NUMBER":
                    raise SpecError("a length of time is written INTERVAL '1' MINUTE")
                length = durations.nanoseconds(" ".join(texts))
        except (SpecError, ValueError) as error:
            raise self._error(f"this is no length of a window: {error}", span) from None
        if not 0 < length <= 366 * durations.UNITS["day"]:
            raise self._error("a window is longer than 0 and at most 366 days long", span)
        return length

    # Keys ---------------------------------------------------------------------------------------------------------

    def _meant(self, frame: Clauses, tokens: TokenRange) -> TokenRange:
        """The words of a key, which may be the place of an output."""
        words, text = self._words(tokens), self._scan.source.of(self._words(tokens)[0])
        if len(words) == 1 and words[0].kind == "NUMBER" and text.isdecimal() and 0 < int(text) <= len(frame.items):
            return frame.items[int(text) - 1].words
        if text.upper() in ("ROLLUP", "CUBE", "GROUPING") and len(words) > 1:
            raise self._error(
                f"{text.upper()} is not allowed: create one query for each set of keys", self._span(tokens)
            )
        if text.upper() == "ALL" and len(words) == 1:
            raise self._error("GROUP BY ALL is not allowed: name the keys, and the window of time", self._span(tokens))
        return tokens

    def _key(self, frame: Clauses, tokens: TokenRange) -> None:
        words = self._words(tokens)
        if len(words) == 1 and words[0].kind in ("VAR", "IDENTIFIER"):
            tokens = self._named(frame, words[0]) or tokens
        parsed = self._scan.read(tokens.first, tokens.end, self._resolve, clauses.WHERE)
        if not parsed.expression.columns:
            raise self._error("a key is over columns: name one, or the expression itself", parsed.span)
        type_ = self._checked(parsed, parsed.expression, self._schemas)
        if pa.types.is_null(type_) or pa.types.is_nested(type_):
            raise self._error(f"groups can't be told apart by {type_}", parsed.span)
        key = canonical(parsed.expression)
        if key not in self._keys:
            self._keys.append(key)
            self._key_types.append(type_)

    def _named(self, frame: Clauses, word: Word) -> TokenRange | None:
        """The output that a word names, where no column has the name."""
        name = self._scan.source.of(word).strip('"')
        if self._is_column(name):
            return None
        return next((item.words for item in frame.items if item.name == name), None)

    def _checked(self, parsed: Parsed, expression: Expression, schemas: Mapping[str, pa.Schema]) -> pa.DataType:
        if expression.depth > MAX_DEPTH // 2:
            raise self._error(f"the text nests more than {MAX_DEPTH // 2} levels deep", parsed.span)
        try:
            return plain_type(check(expression, schemas))
        except SchemaError as error:
            raise self._error(str(error), parsed.span) from None

    # Values -------------------------------------------------------------------------------------------------------

    @property
    def _group_schemas(self) -> dict[str, pa.Schema]:
        if self._window is None:
            raise AssertionError("groups without a window")
        given = self._window, tuple(self._keys), tuple(self._key_types)
        return Grouping(*given, tuple(self._aggregates), tuple(self._value_types)).schemas

    def _resolve_value(self, qualifier: str | None, name: str, quoted: bool) -> Column:
        known = {source.alias for source in self._sources}
        if qualifier is None and name.lower() in (START, END):
            return Column(WINDOW, name.lower())
        if (
            qualifier is not None
            and qualifier.lower() == "window"
            and qualifier not in known
            and name in ("start", "end")
        ):
            return Column(WINDOW, f"window_{name}")
        # In SELECT a column comes before an output of its name, in HAVING and QUALIFY after it.
        if qualifier is None and name in self._outputs and not (self._selects and self._is_column(name)):
            return Column(_OUTPUT, name)
        try:
            return self._resolve(qualifier, name, quoted)
        except ExpressionError:
            if qualifier is None and name.lower() in ("window", "windowstart", "windowend"):
                raise ExpressionError(f"{name} is not allowed: write {START} or {END}") from None
            raise

    def _value(self, tokens: TokenRange) -> tuple[Expression, Parsed]:
        """An expression over the values of a group."""
        parsed = self._scan.read(tokens.first, tokens.end, self._resolve_value, GROUPED)

        def change(node: Expression) -> Expression:
            if isinstance(node, Aggregate):
                return Column(VALUE, str(self._aggregate(node, parsed)))
            form = canonical(node)
            if form in self._keys:
                return Column(KEY, str(self._keys.index(form)))
            if isinstance(node, Column):
                if node.qualifier == WINDOW:
                    return node
                if node.qualifier == _OUTPUT:
                    return self._outputs[node.name].expression
                raise self._error(
                    f"{node} is neither in GROUP BY nor inside an aggregate: add it to GROUP BY, or write MAX({node})",
                    parsed.place(node),
                )
            return node.rebuilt(change)

        return change(parsed.expression), parsed

    def _over_columns(self, node: Expression, parsed: Parsed) -> Expression:
        """What stands in an aggregate: names are those of columns there, never of outputs."""
        if not isinstance(node, Column) or node.qualifier != _OUTPUT:
            return node.rebuilt(lambda child: self._over_columns(child, parsed))
        if not self._is_column(node.name):
            raise self._error(
                f"{node.name} is a value of a group, and an aggregate is over columns: leave the aggregate out",
                parsed.place(node),
            )
        return self._resolve(None, node.name, False)

    def _aggregate(self, node: Aggregate, parsed: Parsed) -> int:
        """The number of an aggregate."""
        if node.function in _UNORDERED:
            which = "MIN" if node.function == "FIRST" else "MAX"
            time = f"{self._sources[0].alias}.{self._sources[0].stream.time}"
            raise self._error(
                f"{node.function} is not offered in a group, whose rows have no order: write ARG_{which}"
                f"({', '.join(map(str, node.arguments))}, {time})",
                parsed.place(node),
            )
        form = canonical(self._over_columns(node, parsed))
        if not isinstance(form, Aggregate):
            raise AssertionError("an aggregate in canonical form is one")
        if form not in self._aggregates:
            try:
                type_ = aggregate_type(form, self._schemas)
                types = [check(argument, self._schemas) for argument in form.arguments]
            except SchemaError as error:
                raise self._error(str(error), parsed.place(node)) from None
            if any(pa.types.is_nested(one) for one in types):
                raise self._error(f"{node.function} can't compare {types[0]}", parsed.place(node))
            self._aggregates.append(form)
            self._value_types.append(plain_type(type_))
        return self._aggregates.index(form)

    def _item(self, item: Item) -> tuple[Output, ...]:
        words = self._words(item.words)
        if words[-1].kind == "STAR" and (len(words) == 1 or words[-2].kind == "DOT"):
            raise self._error("* has no place beside GROUP BY: name the keys and the aggregates", item.span)
        if self._call(item.words) is not None:
            if self._written(item.words) not in (None, self._window):
                raise self._error("this is not the window that GROUP BY names", item.span)
            if item.name is not None:
                raise self._error(f"a window is two columns, {START} and {END}, and takes no name", item.span)
            columns = [Column(WINDOW, name) for name in (START, END)]
            return tuple(self._output(column.name, column, item, None) for column in columns)
        expression, parsed = self._value(item.words)
        written = parsed.expression
        if item.name is None and not isinstance(written, Column):
            raise self._error("an expression needs a name: add AS and a name", item.span)
        name = item.name or (written.name if isinstance(written, Column) else "")
        return (self._output(name, expression, item, parsed),)

    def _written(self, tokens: TokenRange) -> GroupWindow | None:
        """The window that a call in SELECT says."""
        own, self._window = self._window, None
        try:
            return self._windows(tokens)
        finally:
            self._window = own

    def _output(self, name: str, expression: Expression, item: Item, parsed: Parsed | None) -> Output:
        if any(name.lower() == earlier.lower() for earlier in self._outputs):
            raise self._error(
                f"two outputs are called {name!r} (upper and lower case count as the same); name one with AS", item.span
            )
        try:
            type_ = check(expression, self._group_schemas)
        except SchemaError as error:
            raise self._error(str(error), item.span if parsed is None else parsed.span) from None
        if pa.types.is_null(type_):
            raise self._error("this is NULL in every row and has no type; leave it out", item.span)
        output = self._outputs[name] = Output(name, expression, type_)
        return output

    def _having(self, tokens: TokenRange) -> Expression:
        expression, parsed = self._value(tokens)
        try:
            check_condition(expression, self._group_schemas)
        except SchemaError as error:
            raise self._error(str(error), parsed.span) from None
        return expression

    # QUALIFY ------------------------------------------------------------------------------------------------------

    def _ranking(self, tokens: TokenRange) -> Ranking:
        """row_number() or rank() OVER (PARTITION BY window_end, key ORDER BY value DESC, ...) <= n."""
        words, first = self._words(tokens), tokens.first
        kinds = [word.kind for word in words]
        texts = [self._scan.source.of(word).upper() for word in words]
        head = texts[:1] in (["ROW_NUMBER"], ["RANK"]) and texts[1:5] == ["(", ")", "OVER", "("]
        close = len(words) - 3
        if not head or close < 6 or kinds[close] != "R_PAREN" or kinds[5] != "PARTITION_BY" or "ORDER_BY" not in kinds:
            raise self._shape(tokens)
        order = kinds.index("ORDER_BY")
        partition = self._partition(self._split(TokenRange(first + 6, first + order)))
        ranked = tuple(self._ordered(part) for part in self._split(TokenRange(first + order + 1, first + close)))
        operator, number = texts[close + 1], texts[close + 2]
        if kinds[close + 2] != "NUMBER" or not number.isdecimal() or operator not in ("<=", "<", "="):
            raise self._shape(tokens)
        most = int(number) - (operator == "<")
        if most < 1 or (operator == "=" and most != 1):
            raise self._shape(tokens)
        return Ranking(partition, ranked, most, ties=texts[0] == "RANK")

    def _shape(self, tokens: TokenRange) -> ExpressionError:
        return self._error(f"QUALIFY chooses the first groups of each window: {QUALIFY_SHAPE}", self._span(tokens))

    def _split(self, tokens: TokenRange) -> list[TokenRange]:
        # As the arguments of a call, whose words begin two before and end one after.
        return self._arguments(TokenRange(tokens.first - 2, tokens.end + 1))

    def _partition(self, parts: Sequence[TokenRange]) -> tuple[int, ...]:
        keys, has_window = [], False
        for part in parts:
            expression, parsed = self._value(part)
            if isinstance(expression, Column) and expression.qualifier == WINDOW:
                has_window = True
            elif isinstance(expression, Column) and expression.qualifier == KEY:
                keys.append(int(expression.name))
            else:
                raise self._error("PARTITION BY takes window_end and keys of GROUP BY", parsed.span)
        if not has_window:
            span = self._span(parts[0]) if parts else self._scan.source.span
            raise self._error(f"PARTITION BY needs {END}, as a stream has no end: {QUALIFY_SHAPE}", span)
        return tuple(keys)

    def _ordered(self, tokens: TokenRange) -> tuple[Expression, bool, bool]:
        words = list(self._words(tokens))
        texts = [self._scan.source.of(word).upper() for word in words]
        first_nulls = None
        if len(texts) > 2 and texts[-2] == "NULLS" and texts[-1] in ("FIRST", "LAST"):
            first_nulls, texts = texts[-1] == "FIRST", texts[:-2]
        descends = texts[-1] == "DESC"
        if len(texts) > 1 and texts[-1] in ("ASC", "DESC"):
            texts = texts[:-1]
        expression, parsed = self._value(TokenRange(tokens.first, tokens.first + len(texts)))
        type_ = self._checked(parsed, expression, self._group_schemas)
        if pa.types.is_null(type_) or pa.types.is_nested(type_):
            raise self._error(f"groups have no order by {type_}", parsed.span)
        return expression, descends, bool(first_nulls)
