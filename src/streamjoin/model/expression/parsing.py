"""SQL text to condition nodes, by way of sqlglot's tokenizer and parser.

A text is tokenized once; any range of tokens can then be read as one expression, so that a query's clauses
keep their places in the whole text. Only this module and `conversion` use sqlglot. Every error
is an :class:`ExpressionError` that shows the place in the text.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokens import Token  # type: ignore[attr-defined]

from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression.aggregates import AGGREGATES, Aggregate
from streamjoin.model.expression.conversion import Conversion, Resolve
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.expression.refusals import CONDITION, JSON, OPERATORS, REGEX, SUMMARY, subquery
from streamjoin.model.expression.source_text import SourceText, Span, Word


def parse_condition(text: str, qualifiers: tuple[str, ...] = ("l", "r")) -> Expression:
    """Parse a SQL condition over columns written ``qualifier.name``.

    Raises:
        ExpressionError: the text does not parse, uses something that a condition may not contain, or is not a boolean.
    """
    if not isinstance(text, str):
        raise ExpressionError(f"a condition is a string such as 'l.x < r.a', not {text!r}")
    scan = Scan.of(SourceText(text))
    source = scan.source
    if not source.words:
        raise source.error("the condition is empty; write for example l.x < r.a", 0, 0)
    if semicolon := source.first("SEMICOLON"):
        raise source.error("';' is not part of a condition", semicolon.start, semicolon.end)
    condition = scan.read(0, len(source.words), _qualified(qualifiers)).expression
    if condition.boolean is False:
        raise source.error("the condition is not a boolean: compare this value with another", 0, len(text))
    return condition


def parse_summary(text: str) -> Expression:
    """Parse an expression of aggregates over columns written ``l.name`` and ``r.name``.

    Raises:
        ExpressionError: the text does not parse, or a column is outside of every aggregate.
    """
    scan = Scan.of(SourceText(text))
    source = scan.source
    if not source.words:
        raise source.error("the summary is empty; write for example avg(r.bid)", 0, 0)
    if semicolon := source.first("SEMICOLON"):
        raise source.error("';' is not part of a summary", semicolon.start, semicolon.end)
    parsed = scan.read(0, len(source.words), _qualified(("l", "r")), SUMMARY)
    pending, summarised = [parsed.expression], False
    while pending:
        node = pending.pop()
        if isinstance(node, Aggregate):
            summarised = True
        elif isinstance(node, Column):
            hint = f"FIRST({node}) or MAX({node})"
            raise source.error(f"{node} is outside of every aggregate: write for example {hint}", *parsed.place(node))
        else:
            pending += node.children
    if not summarised:
        raise source.error(f"a summary has an aggregate, one of {', '.join(AGGREGATES)}", *source.span)
    return parsed.expression


def _qualified(qualifiers: tuple[str, ...]) -> Resolve:
    """A resolver for columns that always carry one of these qualifiers."""

    def resolve(qualifier: str | None, name: str, quoted: bool) -> Column:
        if qualifier is None:
            hint = f"; if it is a string, write '{name}'" if quoted else ""
            choices = " or ".join(f"{allowed}.{name}" for allowed in qualifiers)
            raise ExpressionError(f"column {name!r} has no qualifier: write {choices}{hint}")
        if qualifier not in qualifiers:
            raise ExpressionError(f"unknown qualifier {qualifier!r}; allowed: {', '.join(qualifiers)}")
        return Column(qualifier, name)

    return resolve


@dataclass(frozen=True)
class Parsed:
    """An expression and the places of its nodes in the text."""

    expression: Expression
    span: Span
    places: Mapping[int, Span]
    conversion: Conversion

    def place(self, node: Expression) -> Span:
        """The place of this node; for a node created later, the place of the whole expression."""
        return self.places.get(id(node), self.span)


@dataclass(frozen=True)
class Scan:
    """A tokenized text; any range of its tokens can be read as one expression."""

    source: SourceText
    tokens: Sequence[Token]

    @staticmethod
    def of(source: SourceText) -> Scan:
        """Tokenize the text of `source`.

        Raises:
            ExpressionError: a quote or comment is never closed, or the text nests too deeply.
        """
        try:
            with _silence():
                tokens = Dialect.get_or_raise(None).tokenize(source.text)
        except SqlglotError:
            start = source.unclosed()
            message = (
                "this quote or comment is never closed" if start < len(source.text) else "the text can't be parsed"
            )
            raise source.error(message, start, start + 1) from None
        cut = source.cut([Word(t.token_type.name, t.start, t.end + 1) for t in tokens])
        cut.reject_nesting()
        return Scan(cut, tokens)

    def read(self, first: int, end: int, resolve: Resolve, where: str = CONDITION) -> Parsed:
        """Read the tokens from `first` up to but excluding `end` as an expression.

        Raises:
            ExpressionError: they don't parse, or use something that is not allowed.
        """
        source = self.source.cut(self.source.words[first:end])
        try:
            with _silence():
                tree = self._tree(source, self.tokens[first:end], where)
            source.reject_chains()
            conversion = Conversion(source, resolve, where)
            return Parsed(conversion.convert(tree), source.span, conversion.places, conversion)
        except RecursionError:
            start = source.span[0]
            raise source.error("the text nests too deeply; use fewer parentheses", start, start + 1) from None

    def _tree(self, source: SourceText, tokens: Sequence[Token], where: str) -> exp.Expr:
        try:
            trees = Dialect.get_or_raise(None).parser().parse_into(exp.Condition, list(tokens), source.text)
        except ParseError as error:
            raise _syntax_error(source, error, where) from None
        except SqlglotError:
            raise source.error("the text can't be parsed", *source.span) from None
        if len(trees) != 1 or trees[0] is None:
            raise source.error(f"this is not {where}", *source.span)
        return trees[0]


def _syntax_error(source: SourceText, error: ParseError, where: str) -> ExpressionError:
    detail: dict[str, Any] = error.errors[0] if error.errors else {}
    # sqlglot reports the place of a token's last character.
    line, column = detail.get("line") or 1, detail.get("col") or 1
    last = sum(len(part) for part in source.text.split("\n")[: line - 1]) + line - 1 + column - 1
    word = next((w for w in source.words if w.end - 1 == last), None) or Word("", max(0, last), last + 1)
    text = source.of(word)
    description = str(detail.get("description", error))
    index = source.words.index(word) if word in source.words else 0
    near = source.text[max(0, source.words[index - 1].start - 1 if index else 0) : word.end + 1]
    operator = next((known for known in OPERATORS if known == text or (known in near and "'" not in near)), None)
    if operator is not None:
        message = OPERATORS[operator]
    elif index and source.words[index - 1].kind == "DOT":
        message = f'{text!r} is a reserved word; as a column write "{text}", with the quotes'
    elif word.kind in ("SELECT", "WITH", "VALUES"):
        message = subquery(where)
    elif word.kind == "HINT":
        message = "a hint is not allowed here: leave it out"
    elif text == ")" and source.text[word.end :].lstrip().startswith("("):
        message = "an aggregate takes its arguments in one list: write QUANTILE(x, 0.9)"
    elif text in ("~", "!") and "~" in source.text[word.start : word.end + 1]:
        message = REGEX.format(where=where)
    elif text in (":", "@"):
        message = JSON.format(where=where)
    elif "Unexpected token" in description:
        message = f"unexpected {text!r}: " + (
            "a condition is one boolean expression" if where == CONDITION else "the expression before it is complete"
        )
    elif text == ")" and "missing for" in description:
        message = "an argument is missing before ')'"
    elif "number of provided arguments" in description:
        message = "too many arguments"
    elif "'expression' missing" in description:
        message = f"something is missing after {text!r}"
    elif "missing for" in description:
        message = f"something is missing before {text!r}"
    elif description == "Expected ]":
        message = "a list is written in parentheses, and only after IN"
    elif description.startswith("Expecting"):
        message = f"expected {description.removeprefix('Expecting ')!r} after {text!r}"
    else:
        message = re.sub(r"\s*<class '.*?'>", "", description)
    return source.error(message, word.start, word.end)


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress sqlglot's log messages on this thread: it warns about texts that are rejected here anyway."""
    thread = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger = logging.getLogger("sqlglot")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
