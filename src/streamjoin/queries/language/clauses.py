"""The frame of a query: which words are the outputs, the streams, the windows, the conditions.

Words come from the SQL tokenizer; this module reads the clauses word by word, because `WITHIN` comes where no SQL
grammar knows it and because what is missing or not allowed here deserves its own message. Expressions
stay ranges of tokens, for the expression parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from streamjoin.model.durations import UNITS
from streamjoin.model.errors import ExpressionError, QueryError
from streamjoin.model.expression.source_text import SourceText, Span, Word
from streamjoin.model.window import MAX_COUNT, CountWindow, TimeWindow, Window
from streamjoin.queries.language import advice
from streamjoin.queries.language.plan import MAX_BRANCHES, MAX_SOURCES, OUTER, JoinKind

WHERE: Final = "an ad-hoc query"
SHAPE: Final = "SELECT ... FROM a [JOIN b WITHIN 3 SECONDS ON a.k = b.k] [JOIN ...] [WHERE ...] [GROUP BY ...]"
QUALIFY_SHAPE: Final = "QUALIFY row_number() OVER (PARTITION BY window_end ORDER BY n DESC) <= 10"
_WHOLE: Final = "a query's result is a stream without an end"
_FIRST: Final = f"{_WHOLE}; for the first groups of each window write {QUALIFY_SHAPE}"
_REFUSED: Final = {
    "GROUP_BY": "GROUP BY follows WHERE, once: GROUP BY t.k, TUMBLE(t.ts, INTERVAL '1' MINUTE)",
    "HAVING": "HAVING follows GROUP BY: it chooses among groups; WHERE chooses among rows",
    "DISTINCT": "DISTINCT follows SELECT: SELECT DISTINCT t.k, TUMBLE(t.ts, INTERVAL '1' MINUTE) FROM ...",
    "ORDER_BY": f"ORDER BY is not allowed here: {_FIRST}",
    "LIMIT": f"LIMIT is not allowed here: {_FIRST}",
    "OFFSET": f"OFFSET is not allowed here: {_FIRST}",
    "FETCH": f"FETCH is not allowed here: {_FIRST}",
    "QUALIFY": f"QUALIFY follows GROUP BY and HAVING: {QUALIFY_SHAPE}",
    "WINDOW": "WINDOW is not allowed here: each join has its own, JOIN b WITHIN 3 SECONDS ON ..., and groups have "
    "GROUP BY t.k, TUMBLE(t.ts, INTERVAL '1' MINUTE)",
    "UNION": "UNION is not allowed here, as it would keep every row to compare it with later ones: write UNION ALL, or "
    "SELECT DISTINCT t.k, TUMBLE(t.ts, INTERVAL '1' MINUTE) FROM ... for the different rows of each window",
    "EXCEPT": "EXCEPT is not allowed here: write ANTI JOIN b WITHIN 3 SECONDS ON ... for the tuples without a match",
    "INTERSECT": "INTERSECT is not allowed here: write SEMI JOIN b WITHIN 3 SECONDS ON ... for the tuples with a match",
    "WITH": "WITH is not allowed here: a query reads streams, not subqueries; write its conditions in place",
    "INTO": "INTO is not allowed here: the result goes to the query's sink",
    "PARTITION_BY": "PARTITION BY is not allowed here: the engine divides a query, and keys of groups follow GROUP BY",
    "LATERAL": "LATERAL is not allowed here: make rows of lists before the join: push one tuple for each element",
}
_STAR: Final = "* is all columns: write those that you want, each with its name"
_REFUSED_JOINS: Final = {
    "CROSS": "a cross join is not allowed here: write JOIN ... WITHIN ... ON with a condition",
    "NATURAL": "NATURAL is not allowed here: write the condition after ON",
    "STRAIGHT_JOIN": "STRAIGHT_JOIN is not allowed here; allowed: JOIN ... WITHIN ... ON",
}
ASOF_SHAPE: Final = "ASOF JOIN q MATCH_CONDITION (t.ts >= q.ts) ON t.k = q.k TOLERANCE 5 SECONDS"
NEAREST_SHAPE: Final = "MATCH_CONDITION (NEAREST(t.ts, q.ts))"
RANGE_SHAPE: Final = (
    "WINDOW JOIN q ON t.k = q.k RANGE BETWEEN 5 SECONDS PRECEDING AND 1 SECOND FOLLOWING EXCLUDE PREVAILING"
)
_KIND_WORDS: Final[Mapping[tuple[str, ...], JoinKind]] = {
    (): "inner",
    ("INNER",): "inner",
    ("LEFT",): "left",
    ("LEFT", "OUTER"): "left",
    ("RIGHT",): "right",
    ("RIGHT", "OUTER"): "right",
    ("FULL",): "full",
    ("FULL", "OUTER"): "full",
    ("SEMI",): "semi",
    ("LEFT", "SEMI"): "semi",
    ("ANTI",): "anti",
    ("LEFT", "ANTI"): "anti",
}
"""The words before JOIN, and the kind they say; ASOF may precede those of "inner", "left" and "anti", and WINDOW those
of "inner" and "left", or follow them."""
_KIND_STARTS: Final = frozenset({"INNER", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "ASOF"})
_KINDS_ALLOWED: Final = (
    "allowed before JOIN: INNER, LEFT, RIGHT or FULL (OUTER), LEFT SEMI, LEFT ANTI, ASOF, ASOF LEFT and ASOF ANTI, "
    "WINDOW and WINDOW INNER"
)
_STARTS: Final = frozenset({"FROM", "JOIN", "ON", "USING", "WHERE", "COMMA", *_REFUSED, *_REFUSED_JOINS, *_KIND_STARTS})
_BEFORE_COLUMN: Final = frozenset(
    ("AND", "OR", "NOT", "ON", "WHERE", "WHEN", "THEN", "ELSE", "CASE", "L_PAREN", "COMMA")
)
_MATCH, _NEAREST, _TOLERANCE = "MATCH_CONDITION", "NEAREST", "TOLERANCE"


class QueryText(SourceText):
    """A query's text: its errors know their place."""

    def error(self, message: str, start: int, end: int) -> ExpressionError:
        """An error with the line of `start` and carets under the span."""
        line, column = self.position(min(start, len(self.text)))
        return QueryError(self.shown(message, start, end), message, line, column, max(1, end - start))


@dataclass(frozen=True)
class TokenRange:
    """The tokens of the text from `first` to before `end`."""

    first: int
    end: int


@dataclass(frozen=True)
class NamedStream:
    """A stream as the text names it, and its alias."""

    stream: str
    alias: str
    span: Span


@dataclass(frozen=True)
class Item:
    """An output: its words and the name that AS gives it."""

    words: TokenRange
    name: str | None
    span: Span


@dataclass(frozen=True)
class MatchClause:
    """What MATCH_CONDITION says: a comparison of two times, or NEAREST with the two times, perhaps AND a comparison."""

    comparison: TokenRange | None
    nearest: tuple[TokenRange, ...] = ()


@dataclass(frozen=True)
class RangeClause:
    """`RANGE BETWEEN low AND high INCLUDE | EXCLUDE PREVAILING`: around a left tuple's time, nanoseconds or units."""

    low: int
    high: int
    is_duration: bool
    prevailing: bool
    span: Span


@dataclass(frozen=True)
class JoinClause:
    """`[kind] JOIN table WITHIN window ON condition`, or an as-of join, whose window is its tolerance, if it has one.

    A window join has a `range` instead.

    `kind_span` is where the words up to JOIN are.
    """

    table: NamedStream
    window: Window | None
    window_span: Span
    on: TokenRange | None
    kind: JoinKind
    kind_span: Span
    match: MatchClause | None = None
    range: RangeClause | None = None

    @property
    def is_inner(self) -> bool:
        """Whether its rows are the pairs."""
        return self.kind == "inner" and self.match is None and self.range is None

    @property
    def is_outer(self) -> bool:
        """Whether its rows are the pairs, and tuples without a partner."""
        return self.kind in OUTER and self.match is None and self.range is None


@dataclass(frozen=True)
class GroupClauses:
    """GROUP BY with its expressions, or SELECT DISTINCT, whose outputs they are; `span` is where these words are."""

    span: Span
    by: tuple[TokenRange, ...] = ()
    having: TokenRange | None = None
    qualify: TokenRange | None = None

    @property
    def distinct(self) -> bool:
        """Whether these are the groups of a SELECT DISTINCT."""
        return not self.by


@dataclass(frozen=True)
class Clauses:
    """A query's frame."""

    items: tuple[Item, ...]
    first: NamedStream
    joins: tuple[JoinClause, ...]
    where: TokenRange | None
    groups: GroupClauses | None = None


def read(source: SourceText) -> tuple[Clauses, ...]:
    """The clauses of each SELECT of a query; UNION ALL is between them.

    Raises:
        QueryError: a clause is missing, out of place or not allowed.
    """
    return tuple(_Reader(source).queries())


class _Reader:
    def __init__(self, source: SourceText) -> None:
        self._source = source
        words = list(source.words)
        while words and words[-1].kind == "SEMICOLON":
            words.pop()
        self._words = words
        self._at = 0

    def queries(self) -> Iterator[Clauses]:
        yield self._query()
        for _ in range(1, MAX_BRANCHES):
            if self._kind() != "UNION" or self._kind(1) != "ALL":
                break
            self._at += 2
            if self._text().upper() == "BY":
                raise self._error("UNION ALL goes by position: leave BY NAME out, and write the columns in one order")
            if self._kind() == "L_PAREN":
                raise self._error("write the SELECT after UNION ALL without parentheses around it")
            yield self._query()
        if self._kind() == "UNION" and self._kind(1) == "ALL":
            raise self._error(f"UNION ALL takes at most {MAX_BRANCHES} SELECTs: create another query for the others")
        if self._at < len(self._words):
            raise self._unexpected()

    def _query(self) -> Clauses:
        if not self._words:
            raise self._source.error(f"the query is empty; write {SHAPE}", 0, 0)
        semicolon = next((word for word in self._words if word.kind == "SEMICOLON"), None)
        if semicolon is not None:
            raise self._error("';' ends a query: give one query at a time", semicolon)
        if self._kind() in _REFUSED:
            raise self._refused()
        if not self._take("SELECT"):
            raise self._error(advice.of_statement(self._text()) or f"a query starts with SELECT: {SHAPE}")
        distinct = self._words[self._at] if self._kind() == "DISTINCT" else None
        self._at += distinct is not None
        items = self._items()
        first = self._table()
        joins: list[JoinClause] = []
        while (words := self._join_words()) is not None:
            joins.append(self._join(len(joins) + 2, words))
        where = self._token_range("WHERE") if self._take("WHERE") else None
        groups = self._groups(distinct)
        return Clauses(items, first, tuple(joins), where, groups)

    def _groups(self, distinct: Word | None) -> GroupClauses | None:
        """GROUP BY, HAVING and QUALIFY."""
        by: list[TokenRange] = []
        if self._kind() == "GROUP_BY":
            word = self._words[self._at]
            if distinct is not None:
                raise self._error("GROUP BY gives each group once: leave DISTINCT out", distinct)
            while self._take("GROUP_BY" if not by else "COMMA"):
                by.append(self._token_range("GROUP BY", commas=True))
        elif distinct is not None:
            word = distinct
        else:
            return None
        having = self._token_range("HAVING") if self._take("HAVING") else None
        qualify = self._token_range("QUALIFY") if self._take("QUALIFY") else None
        return GroupClauses((word.start, word.end), tuple(by), having, qualify)

    # Words --------------------------------------------------------------------------------------------------------

    def _kind(self, ahead: int = 0) -> str:
        place = self._at + ahead
        return self._words[place].kind if place < len(self._words) else ""

    def _text(self, ahead: int = 0) -> str:
        place = self._at + ahead
        return self._source.of(self._words[place]) if place < len(self._words) else ""

    def _take(self, kind: str) -> bool:
        is_next = self._kind() == kind
        self._at += is_next
        return is_next

    def _error(self, message: str, word: Word | None = None) -> ExpressionError:
        if word is None:
            if self._at >= len(self._words):
                last = self._words[-1]
                return self._source.error(message, last.end, last.end + 1)
            word = self._words[self._at]
        return self._source.error(message, word.start, word.end)

    def _refused(self) -> ExpressionError:
        return self._error(_REFUSED[self._kind()])

    def _unexpected(self) -> ExpressionError:
        if self._kind() == "EXCEPT" and self._kind(-1) == "STAR":
            return self._error(_STAR)
        if self._kind() in _REFUSED:
            return self._refused()
        for word in self._words[self._at - 1 : self._at + 1][::-1]:
            # It may have been read as the stream's alias.
            if (foreign := advice.of_clause([self._source.of(word)])) is not None:
                return self._error(foreign, word)
        if self._kind() == "USING" and self._text(1).upper() == "SAMPLE":
            return self._error(str(advice.of_clause(["TABLESAMPLE"])).replace("TABLESAMPLE", "USING SAMPLE"))
        if self._kind() in ("ON", "USING"):
            return self._error(f"{self._text().upper()} follows JOIN ... WITHIN ...: {SHAPE}")
        return self._error(f"unexpected {self._text()!r}; a query is {SHAPE}")

    def _end(self, *, commas: bool = False, stop: str | None = None) -> int:
        """Where the range that starts here ends: at the next clause outside parentheses, or the word `stop`."""
        depth, place = 0, self._at
        while place < len(self._words):
            kind = self._words[place].kind
            depth += (kind == "L_PAREN") - (kind == "R_PAREN")
            if depth <= 0 and (self._starts_clause(place, commas) or self._is_word(place, stop)):
                break
            place += 1
        return place

    def _is_word(self, place: int, text: str | None) -> bool:
        """Whether a word that a number follows is `text`."""
        after = self._words[place + 1].kind if place + 1 < len(self._words) else ""
        return text is not None and self._source.of(self._words[place]).upper() == text and after == "NUMBER"

    def _starts_clause(self, place: int, commas: bool) -> bool:
        kind = self._words[place].kind
        before = self._words[place - 1].kind if place else ""
        after = self._words[place + 1].kind if place + 1 < len(self._words) else ""
        if before == "DOT" or after == "DOT":
            return False
        if kind == "RANGE":
            # Otherwise it is a column.
            return after == "BETWEEN" and before not in _BEFORE_COLUMN
        if kind == "VAR" and after and before not in (*_BEFORE_COLUMN, "SELECT"):
            texts = [self._source.of(word).upper() for word in self._words[place : place + 2]]
            return texts in (["EMIT", "CHANGES"], ["EMIT", "FINAL"])
        if kind not in _STARTS:
            return False
        if kind == "COMMA":
            return commas
        if kind in ("LEFT", "RIGHT", "WINDOW", "OFFSET") and after in ("L_PAREN", "") and before != "R_PAREN":
            return False
        if kind == "DISTINCT" or (kind == "WINDOW" and after in ("COMMA", "FROM")):
            return False
        return not (kind == "FROM" and before == "DISTINCT")

    def _token_range(self, after: str, *, commas: bool = False, stop: str | None = None) -> TokenRange:
        first = self._at
        self._at = self._end(commas=commas, stop=stop)
        if self._at == first:
            raise self._error(f"something is missing after {after}", self._words[first - 1])
        return TokenRange(first, self._at)

    # Clauses ------------------------------------------------------------------------------------------------------

    def _items(self) -> tuple[Item, ...]:
        if self._kind() == "DISTINCT":
            raise self._error(_REFUSED["DISTINCT"])
        if self._kind() == "ALL":
            raise self._error("leave ALL out: SELECT gives all rows")
        items = [self._item()]
        while self._take("COMMA"):
            items.append(self._item())
        if not self._take("FROM"):
            raise self._error("FROM is missing: " + SHAPE) if not self._kind() else self._unexpected()
        return tuple(items)

    def _item(self) -> Item:
        tokens = self._token_range(self._text(-1), commas=True)
        words = self._words[tokens.first : tokens.end]
        span = words[0].start, words[-1].end
        if len(words) > 1 and words[0].kind == "STAR" and words[1].kind != "ALIAS":
            raise self._source.error(_STAR, *span)
        if (
            words[0].kind == "VAR"
            and self._source.of(words[0]).upper() == "TOP"
            and words[1:2]
            and words[1].kind == "NUMBER"
        ):
            raise self._error(_REFUSED["LIMIT"].replace("LIMIT", "TOP"), words[0])
        if len(words) > 2 and words[-2].kind == "ALIAS":
            return Item(TokenRange(tokens.first, tokens.end - 2), self._name(words[-1], "an output"), span)
        if words[-1].kind == "ALIAS":
            raise self._error("a name is missing after AS", words[-1])
        kinds = [word.kind for word in words[-3:]]
        named = kinds[-1] in ("VAR", "IDENTIFIER") and "INTERVAL" not in kinds
        if named and len(kinds) > 1 and kinds[-2] in ("VAR", "IDENTIFIER", "NUMBER", "STRING", "R_PAREN", "END"):
            return Item(TokenRange(tokens.first, tokens.end - 1), self._name(words[-1], "an output"), span)
        return Item(tokens, None, span)

    def _name(self, word: Word, what: str) -> str:
        text = self._source.of(word)
        if word.kind == "IDENTIFIER":
            return text[1:-1].replace('""', '"')
        if word.kind in _STARTS or not text.replace("_", "a").isalnum() or text[0].isdigit():
            raise self._error(f"{what} needs a name here, not {text!r}; put an odd name in double quotes", word)
        return text

    def _table(self) -> NamedStream:
        if self._kind() in ("L_PAREN", "SELECT", "VALUES", "LATERAL", "UNNEST"):
            if (foreign := advice.of_clause([self._text()])) is not None:
                raise self._error(foreign)
            raise self._error(
                "a subquery is not allowed here: name a stream, and write its conditions and outputs in place"
            )
        if not self._kind():
            raise self._error("the name of a stream is missing")
        word = self._words[self._at]
        stream = self._name(word, "a stream")
        self._at += 1
        if self._kind() == "DOT":
            raise self._error("a stream has a plain name, without a catalog or database before it")
        if self._kind() == "L_PAREN" and stream.upper() in ("TABLE", "TUMBLE", "HOP", "CUMULATE", "SESSION"):
            raise self._error(
                "windows of time are not tables here: write FROM t ... GROUP BY t.k, TUMBLE(t.ts, INTERVAL '1' MINUTE) "
                "and window_start and window_end in SELECT",
                word,
            )
        if self._kind() == "L_PAREN":
            raise self._error(
                "a table function is not allowed here: name a stream; files are read by a source that is registered",
                word,
            )
        alias, last = stream, word
        if self._take("ALIAS") or (self._kind() and not self._clause_follows()):
            if not self._kind():
                raise self._error("a name is missing after AS")
            last = self._words[self._at]
            alias = self._name(last, "a stream's alias")
            self._at += 1
        return NamedStream(stream, alias, (word.start, last.end))

    def _clause_follows(self) -> bool:
        text = self._text().upper()
        return (
            self._kind() in _STARTS
            or text == "WITHIN"
            or (text == "RANGE" and self._kind(1) == "BETWEEN")
            or (text == _MATCH and self._kind(1) == "L_PAREN")
            or (text == _TOLERANCE and self._kind(1) == "NUMBER")
        )

    def _join_words(self) -> tuple[Word, ...] | None:
        """The words up to JOIN, which are taken; None where no join follows."""
        if self._kind() == "COMMA":
            if (foreign := advice.of_clause([self._text(1)])) is not None:
                raise self._error(foreign, self._words[self._at + 1])
            raise self._error(f"a comma between streams is not allowed here: write {SHAPE}")
        if self._kind() in _REFUSED_JOINS:
            raise self._error(advice.of_clause([self._text(1), self._text(2)]) or _REFUSED_JOINS[self._kind()])
        first = self._at
        while self._kind() in _KIND_STARTS or (self._kind() == "WINDOW" and self._kind(1) in ("JOIN", *_KIND_STARTS)):
            self._at += 1
        if self._take("JOIN"):
            return tuple(self._words[first : self._at])
        if self._at > first:
            if (foreign := advice.of_clause([self._text()])) is not None:
                raise self._error(foreign)
            raise self._error(f"JOIN is missing; {_KINDS_ALLOWED}", self._words[self._at - 1])
        return None

    def _join(self, number: int, words: tuple[Word, ...]) -> JoinClause:
        span = words[0].start, words[-1].end
        if number > MAX_SOURCES:
            raise self._error(f"a query joins at most {MAX_SOURCES} streams; this is number {number}")
        kinds = tuple(word.kind for word in words[:-1])
        if "WINDOW" in kinds:
            return self._window_join(kinds, span)
        nearest = kinds[:1] == ("ASOF",)
        kind = _KIND_WORDS.get(kinds[1:] if nearest else kinds)
        if kind is None or (nearest and kind not in ("inner", "left", "anti")):
            raise self._source.error(_KINDS_ALLOWED, *span)
        table = self._table()
        if nearest:
            return self._nearest_join(table, kind, span)
        if self._text().upper() == _MATCH:
            raise self._error(f"{_MATCH} belongs to an as-of join: {ASOF_SHAPE}")
        if self._text().upper() != "WITHIN":
            raise self._no_window(table)
        window, window_span = self._window("WITHIN")
        if self._kind() == "USING":
            raise self._error("USING is not allowed here: write the condition after ON")
        if not self._take("ON"):
            if (foreign := advice.of_clause([self._text()])) is not None:
                raise self._error(foreign)
            message = (
                f"a join needs a condition: ON is missing, as in ON a.k = {table.alias}.k; cross joins are not allowed"
            )
            raise self._error(message)
        return JoinClause(table, window, window_span, self._token_range("ON"), kind, span)

    def _window_join(self, kinds: tuple[str, ...], span: Span) -> JoinClause:
        place = kinds.index("WINDOW")
        kind = _KIND_WORDS.get(kinds[:place] + kinds[place + 1 :])
        if kind not in ("inner", "left") or 0 < place < len(kinds) - 1:
            raise self._source.error(f"a window join is LEFT, as WINDOW JOIN alone, or INNER: {RANGE_SHAPE}", *span)
        # As in kdb and QuestDB there is a row for every left tuple, unless INNER is written.
        kind = "inner" if "INNER" in kinds else "left"
        table = self._table()
        if self._text().upper() == "WITHIN":
            raise self._error(f"a window join has a RANGE and no WITHIN: {RANGE_SHAPE}")
        on = self._token_range("ON") if self._take("ON") else None
        if self._kind() == "USING":
            raise self._error("USING is not allowed here: write the condition after ON")
        if self._kind() != "RANGE" or self._kind(1) != "BETWEEN":
            raise self._source.error(f"RANGE BETWEEN is missing: {RANGE_SHAPE}", *table.span)
        clause = self._range()
        if on is None and self._take("ON"):
            on = self._token_range("ON")
        return JoinClause(table, None, clause.span, on, kind, span, None, clause)

    def _range(self) -> RangeClause:
        """The range that begins here."""
        first = self._words[self._at]
        self._at += 2
        low, unit = self._offset()
        if not self._take("AND"):
            raise self._error(f"AND is missing between the two bounds: {RANGE_SHAPE}")
        high, other = self._offset()
        span = first.start, self._words[self._at - 1].end
        if None not in (unit, other) and unit != other:
            raise self._source.error("both bounds are durations, or both are UNITS", *span)
        if low > high:
            raise self._source.error(
                "the first bound lies after the second one: a window that lies before the left tuple is BETWEEN 10 "
                "SECONDS PRECEDING AND 5 SECONDS PRECEDING",
                *span,
            )
        word = self._text().upper()
        if word not in ("INCLUDE", "EXCLUDE") or self._text(1).upper() != "PREVAILING":
            raise self._source.error(
                "write EXCLUDE PREVAILING or INCLUDE PREVAILING after the range: whether the tuple in force at its "
                "start counts too, as in wj of kdb and by default in QuestDB",
                *span,
            )
        self._at += 2
        both = unit if other is None else other
        return RangeClause(low, high, True if both is None else both, word == "INCLUDE", span)

    def _offset(self) -> tuple[int, bool | None]:
        """A bound of a range: a distance with a sign, and whether it is a duration, where it has a unit."""
        word, begin = self._text().upper(), self._at
        if word == "CURRENT" and self._text(1).upper() == "ROW":
            self._at += 2
            return 0, None
        end = self._words[min(self._at + 2, len(self._words) - 1)]
        place = self._words[min(begin, len(self._words) - 1)].start, end.end

        def error(message: str) -> ExpressionError:
            return self._source.error(message, *place)

        if word == "UNBOUNDED":
            raise error("a window has two ends, as tuples are kept as long as it: write 5 SECONDS PRECEDING")
        written, unit, direction = self._text(), self._text(1).upper(), self._text(2).upper()
        if self._kind() != "NUMBER" or direction not in ("PRECEDING", "FOLLOWING"):
            raise error("a bound is a number, a unit and PRECEDING or FOLLOWING, as in 5 SECONDS PRECEDING")
        if unit.removesuffix("S") not in (*_UNITS, "UNIT"):
            raise error(
                f"{self._text(1)!r} is no unit of a range: write MILLISECONDS, SECONDS, MINUTES, HOURS, DAYS, or UNITS "
                "for integer time columns"
            )
        length, is_duration = 0, unit.removesuffix("S") in _UNITS
        if Decimal(written):
            window = read_window(written, unit, error, "RANGE BETWEEN")
            length = window.length if isinstance(window, TimeWindow) else 0
        self._at += 3
        return (-length if direction == "PRECEDING" else length), is_duration

    def _nearest_join(self, table: NamedStream, kind: JoinKind, span: Span) -> JoinClause:
        if self._text().upper() == "WITHIN":
            raise self._error(f"an as-of join has a TOLERANCE and no WITHIN: {ASOF_SHAPE}")
        if self._text().upper() != _MATCH or self._kind(1) != "L_PAREN":
            raise self._source.error(f"{_MATCH} is missing: {ASOF_SHAPE}", *table.span)
        self._at += 2
        depth, first = 1, self._at
        while self._at < len(self._words):
            depth += (self._kind() == "L_PAREN") - (self._kind() == "R_PAREN")
            if not depth:
                break
            self._at += 1
        end = self._at
        if first == end or not self._take("R_PAREN"):
            raise self._error(f"{_MATCH} needs a comparison of two times in parentheses: {ASOF_SHAPE}")
        match = self._match(first, end)
        on = self._token_range("ON", stop=_TOLERANCE) if self._take("ON") else None
        if self._text().upper() != _TOLERANCE:
            if self._kind() == "USING":
                raise self._error("USING is not allowed here: write the condition after ON")
            return JoinClause(table, None, span, on, kind, span, match)
        window, window_span = self._window(_TOLERANCE)
        if isinstance(window, CountWindow):
            raise self._source.error("a TOLERANCE is a distance in time: write SECONDS, ... or UNITS", *window_span)
        return JoinClause(table, window, window_span, on, kind, span, match)

    def _match(self, first: int, end: int) -> MatchClause:
        """The words of MATCH_CONDITION between its parentheses."""
        words = self._words[first:end]
        if self._source.of(words[0]).upper() != _NEAREST or len(words) < 2 or words[1].kind != "L_PAREN":
            return MatchClause(TokenRange(first, end))
        kinds = [word.kind for word in words]
        close = kinds.index("R_PAREN") if "R_PAREN" in kinds else len(kinds)
        comma = kinds.index("COMMA") if "COMMA" in kinds else close
        rest = kinds[close + 1 :]
        if not 2 < comma < close - 1 or (rest and (rest[0] != "AND" or len(rest) < 2)):
            raise self._source.error(
                f"NEAREST takes the two times, as in {NEAREST_SHAPE}; AND t.ts <> q.ts after it leaves out equal times",
                words[0].start,
                words[-1].end,
            )
        times = TokenRange(first + 2, first + comma), TokenRange(first + comma + 1, first + close)
        return MatchClause(TokenRange(first + close + 2, end) if rest else None, times)

    def _window(self, clause: str) -> tuple[Window, Span]:
        """The window that the clause here says."""
        word = self._words[self._at]
        self._at += 1
        written = self._text() if self._kind() == "NUMBER" else None
        if self._kind() == "L_PAREN":
            raise self._error(
                f"a window reaches both ways: write {clause} 3 SECONDS, and for one way a condition in ON, such as AND "
                "b.ts >= a.ts"
            )
        unit = "" if self._kind(1) in _STARTS else self._text(1)
        window = read_window(written, unit, self._window_error(word), clause)
        last = self._words[self._at + 1]
        self._at += 2
        return window, (word.start, last.end)

    def _window_error(self, within: Word) -> Callable[[str], ExpressionError]:
        """An error at WITHIN and the two words after it, as far as they are there."""
        last = within
        for word in self._words[self._at : self._at + 2]:
            if word.kind in _STARTS:
                break
            last = word
        return lambda message: self._source.error(message, within.start, last.end)

    def _no_window(self, table: NamedStream) -> ExpressionError:
        foreign = advice.of_clause([self._text()])
        if foreign is not None:
            return self._error(foreign)
        later = [word for word in self._words[self._at :] if self._source.of(word).upper() == "WITHIN"]
        if self._kind() == "ON" and later and later[0].kind == "VAR":
            return self._error(f"WITHIN comes before ON: JOIN {table.stream} WITHIN 3 SECONDS ON ...", later[0])
        if self._kind() and self._kind() not in _STARTS:
            return self._error(f"unexpected {self._text()!r}: after the stream and its alias comes WITHIN")
        message = (
            f"WITHIN is missing: say how far apart joined tuples may be, as in JOIN {table.stream} WITHIN 3 SECONDS "
            "ON ... or WITHIN 100 ROWS"
        )
        return self._source.error(message, *table.span)


_UNITS: Final = {name.upper(): UNITS[name] for name in ("millisecond", "second", "minute", "hour", "day")}
MAX_DAYS: Final = 366
_MAX_NS: Final = MAX_DAYS * _UNITS["DAY"]
MAX_UNITS: Final = 1 << 53
_MOST_DECIMALS: Final = 30
_ALLOWED: Final = (
    "write {clause}, a number and a unit: MILLISECONDS, SECONDS, MINUTES, HOURS, DAYS, ROWS, "
    "or UNITS for integer time columns"
)


def read_window(
    written: str | None, unit: str, error: Callable[[str], ExpressionError], clause: str = "WITHIN"
) -> Window:
    """The window that the number and the unit after a clause say; `error` makes an error at their place."""
    allowed = _ALLOWED.format(clause=clause)
    if written is None:
        raise error(f"{clause} needs a number: {allowed}")
    number, singular = Decimal(written), unit.upper().removesuffix("S")
    if singular not in (*_UNITS, "ROW", "UNIT"):
        raise error(f"{'a unit is missing' if not unit else f'{unit!r} is no unit of a window'}: {allowed}")
    if number <= 0:
        raise error("a window of zero joins nothing across time or rows; it must be longer")
    if singular in _UNITS:
        # Compared before it is multiplied: a text may hold numbers that no decimal arithmetic takes.
        if number > Decimal(_MAX_NS) / _UNITS[singular]:
            raise error(f"the window is too long: tuples are kept as long as it, and at most {MAX_DAYS} DAYS")
        return _duration(number, _UNITS[singular], error)
    most = MAX_COUNT if singular == "ROW" else MAX_UNITS
    if number > most:
        raise error(f"the window is too long: at most {most:,} {unit.upper()}")
    if number != int(number):
        raise error(f"{unit.upper()} are counted in whole numbers, not {number}")
    return CountWindow(int(number)) if singular == "ROW" else TimeWindow(int(number))


def _duration(number: Decimal, unit: int, error: Callable[[str], ExpressionError]) -> Window:
    exponent = number.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= -_MOST_DECIMALS:
        nanoseconds = Fraction(number) * unit
        if nanoseconds.denominator == 1:
            return TimeWindow(f"{nanoseconds} ns")
    raise error("a window is a whole number of nanoseconds")
