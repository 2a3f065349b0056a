"""Conversion of sqlglot's nodes to streamjoin's, by allow-list.

sqlglot accepts much more than a condition may contain: a node type, or an argument of a node, that is not listed
here is an error and is never ignored. Every error shows the place in the text.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Final, ParamSpec, TypeAlias, TypeVar

from sqlglot import exp

from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression import nodes
from streamjoin.model.expression.literals import parse_date, parse_interval, parse_timestamp
from streamjoin.model.expression.nodes import Expression
from streamjoin.model.expression.refusals import CONDITION, PARAMETER, refusal
from streamjoin.model.expression.source_text import SourceText, Span

P = ParamSpec("P")
T = TypeVar("T")

Resolve: TypeAlias = Callable[[str | None, str, bool], nodes.Column]
"""The column that (qualifier or None, name, whether the name was quoted) stands for, or an `ExpressionError`."""

_Nodes: TypeAlias = "dict[type[exp.Expr], T]"

_ARITHMETIC: Final[_Nodes[str]] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_COMPARISONS: Final[_Nodes[str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
}
_FUNCTIONS: Final[_Nodes[str]] = {
    exp.Abs: "ABS",
    exp.Ceil: "CEIL",
    exp.Coalesce: "COALESCE",
    exp.Floor: "FLOOR",
    exp.Greatest: "GREATEST",
    exp.Least: "LEAST",
    exp.Length: "LENGTH",
    exp.Lower: "LOWER",
    exp.Pow: "POWER",
    exp.Round: "ROUND",
    exp.Sqrt: "SQRT",
    exp.Upper: "UPPER",
}
_CHAINS: Final[_Nodes[type[nodes.And | nodes.Or]]] = {exp.And: nodes.And, exp.Or: nodes.Or}
_LIKES: Final[_Nodes[bool]] = {exp.Like: False, exp.ILike: True}
# Arguments that sqlglot sets by default and that have no effect here.
_HARMLESS: Final = frozenset({"typed", "safe", "ignore_nulls", "fraction_in_string", "negate", "is_string"})


class Conversion:
    """Converts the nodes of one text and remembers the place of each node."""

    def __init__(self, source: SourceText, resolve: Resolve, where: str = CONDITION) -> None:
        self._source = source
        self._resolve = resolve
        self._where = where
        self._depth = 0
        self._placed: list[tuple[Expression, Span]] = []

    @property
    def places(self) -> dict[int, Span]:
        """Spans by the identity of the node; valid as long as this conversion, which holds the nodes, exists."""
        return {id(node): span for node, span in self._placed}

    def convert(self, node: exp.Expr) -> Expression:
        """The node's counterpart, or an error that points at it."""
        while type(node) is exp.Paren:
            node = node.this
        handler = _HANDLERS.get(type(node))
        if handler is None:
            raise self._refuse(node)
        self._depth += 1
        if self._depth > nodes.MAX_DEPTH:
            raise self._error(node, f"the text nests more than {nodes.MAX_DEPTH} levels deep")
        expression = handler(self, node)
        self._depth -= 1
        if node.args.get("negate"):
            expression = self._build(node, nodes.Not, expression)
        self._placed.append((expression, self._span(node)))
        return expression

    def _build(self, node: exp.Expr, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a constructor or parser; its error gets the node's place."""
        try:
            return make(*args, **kwargs)
        except ExpressionError as error:
            raise self._error(node, str(error)) from None

    def _span(self, node: exp.Expr) -> Span:
        places = [n.meta for n in node.walk() if "start" in n.meta]
        whole = self._source.span
        start = min((place["start"] for place in places), default=whole[0])
        return start, max((place["end"] + 1 for place in places), default=whole[1])

    def _error(self, node: exp.Expr, message: str) -> ExpressionError:
        return self._source.error(message, *self._span(node))

    def _refuse(self, node: exp.Expr) -> ExpressionError:
        has_sql_name = isinstance(node, exp.Func) and not isinstance(node, exp.Anonymous)
        name = type(node).sql_name() if has_sql_name else node.name  # type: ignore[attr-defined]
        message, words = refusal([base.__name__ for base in type(node).__mro__], name, self._where)
        word = self._source.first(*words)
        return self._source.error(message, word.start, word.end) if word else self._error(node, message)

    def _only(self, node: exp.Expr, *allowed: str) -> None:
        for key, value in node.args.items():
            if value and key not in allowed and key not in _HARMLESS:
                name = _FUNCTIONS.get(type(node), node.key.upper())
                raise self._error(node, f"{name} takes no argument or option {key.upper()!r} here")

    def _literal(self, node: exp.Expr) -> Expression:
        text = str(node.this)
        if node.is_string:
            return self._build(node, nodes.Literal, text)
        try:
            number = int(text) if text.isdecimal() and len(text) < 999 else Decimal(text)
        except InvalidOperation:
            raise self._error(node, f"{text} is not a number that can be read") from None
        return self._build(node, nodes.Literal, number)

    def _negative(self, node: exp.Expr) -> Expression:
        operand = self.convert(node.this)
        if type(node.this) is exp.Literal and isinstance(operand, nodes.Literal):
            if isinstance(operand.value, Decimal):
                return nodes.Literal(operand.value.copy_negate())
            if isinstance(operand.value, int):
                return nodes.Literal(-operand.value)
        return self._build(node, nodes.Negative, operand)

    def _column(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "table", "db", "catalog")
        name, qualifier = node.this, node.args.get("table")
        if not isinstance(name, exp.Identifier):
            raise self._refuse(name)
        if node.args.get("db"):
            raise self._error(node, "a column has one qualifier, not more: write qualifier.name")
        if name.name.startswith("$") and name.name[1:].isdigit() and not name.quoted:
            raise self._error(node, PARAMETER)
        alias = None if qualifier is None else qualifier.name
        return self._build(node, self._resolve, alias, name.name, bool(name.quoted))

    def _typed_string(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "to")
        kind = node.args["to"].this.name
        text = node.this.name
        if not (isinstance(node.this, exp.Literal) and node.this.is_string):
            raise self._refuse(node)
        if kind == "DATE":
            return nodes.Date(self._build(node, parse_date, text))
        if kind not in ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPNTZ", "DATETIME"):
            raise self._refuse(node)
        nanoseconds, aware = self._build(node, parse_timestamp, text)
        return self._build(node, nodes.Timestamp, nanoseconds, aware or kind == "TIMESTAMPTZ")

    def _interval(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "unit")
        unit = node.args.get("unit")
        try:
            if not isinstance(node.this, exp.Literal) or not isinstance(unit, exp.Var | None):
                raise ExpressionError("an interval is a number with a unit: INTERVAL '5 seconds'")
            text = node.this.name if unit is None else f"{node.this.name} {unit.name}"
            return nodes.Interval(parse_interval(text))
        except ExpressionError as error:
            # sqlglot splits the quoted text and loses its place.
            span = self._source.pair("INTERVAL", str(node.this.name))
            raise self._source.error(str(error), *span) if span else self._error(node, str(error)) from None

    def _binary(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "expression")
        left, right = self.convert(node.this), self.convert(node.args["expression"])
        if operator := _ARITHMETIC.get(type(node)):
            return self._build(node, nodes.Arithmetic, operator, left, right)
        return self._build(node, nodes.Compare, _COMPARISONS[type(node)], left, right)

    def _chain(self, node: exp.Expr) -> Expression:
        terms, pending = [], [node]
        while pending:
            part = pending.pop()
            if type(part) is type(node):
                self._only(part, "this", "expression")
                pending += [part.args["expression"], part.this]
            else:
                terms.append(self.convert(part))
        return self._build(node, _CHAINS[type(node)], tuple(terms))

    def _function(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "expression", "expressions")
        operands = [node.args.get("this"), node.args.get("expression"), *node.args.get("expressions", ())]
        arguments = tuple(self.convert(argument) for argument in operands if argument is not None)
        return self._build(node, nodes.Function, _FUNCTIONS[type(node)], arguments)

    def _case(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "ifs", "default")
        branches = []
        subject = self.convert(node.this) if node.this else None
        for branch in node.args["ifs"]:
            condition = self.convert(branch.this)
            if subject is not None:
                condition = self._build(branch, nodes.Compare, "=", subject, condition)
            branches.append((condition, self.convert(branch.args["true"])))
        default = node.args.get("default")
        return self._build(node, nodes.Case, tuple(branches), self.convert(default) if default else nodes.NULL)

    def _between(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "low", "high")
        return self._build(node, nodes.Between, *(self.convert(node.args[k]) for k in ("this", "low", "high")))

    def _in(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "expressions", "query", "field")
        if query := node.args.get("query"):
            raise self._refuse(query)
        if field := node.args.get("field"):
            raise self._error(field, "IN takes a list of literals in parentheses")
        operand = self.convert(node.this)
        choices = []
        for item in node.args.get("expressions", ()):
            choice = self.convert(item)
            if not isinstance(choice, nodes.Constant):
                raise self._error(item, f"IN takes a list of literals; {choice} is not one")
            choices.append(choice)
        return self._build(node, nodes.In, operand, tuple(choices))

    def _like(self, node: exp.Expr, escape: str | None = None) -> Expression:
        self._only(node, "this", "expression")
        pattern = node.args["expression"]
        if not (isinstance(pattern, exp.Literal) and pattern.is_string):
            raise self._error(pattern, "LIKE takes a string literal as its pattern")
        operand = self.convert(node.this)
        return self._build(node, nodes.Like, operand, pattern.name, escape, _LIKES[type(node)])

    def _escape(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "expression")
        like, escape = node.this, node.args["expression"]
        if type(like) not in _LIKES or not (isinstance(escape, exp.Literal) and escape.is_string):
            raise self._error(node, "ESCAPE follows LIKE or ILIKE and takes one character in quotes")
        expression = self._like(like, escape.name)
        return nodes.Not(expression) if like.args.get("negate") else expression

    def _is(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "expression")
        operand, literal = self.convert(node.this), node.args["expression"]
        if isinstance(literal, exp.Null):
            return self._build(node, nodes.IsNull, operand)
        if isinstance(literal, exp.Boolean):
            return self._build(node, nodes.IsTruth, operand, bool(literal.this))
        raise self._error(node, "IS takes [NOT] NULL, TRUE, FALSE or [NOT] DISTINCT FROM")

    def _not(self, node: exp.Expr) -> Expression:
        return self._build(node, nodes.Not, self.convert(node.this))


_HANDLERS: Final[_Nodes[Callable[[Conversion, exp.Expr], Expression]]] = {
    exp.Null: lambda _, __: nodes.NULL,
    exp.Boolean: lambda _, node: nodes.Literal(bool(node.this)),
    exp.Literal: Conversion._literal,
    exp.Neg: Conversion._negative,
    exp.Column: Conversion._column,
    exp.Cast: Conversion._typed_string,
    exp.Interval: Conversion._interval,
    exp.Case: Conversion._case,
    exp.Between: Conversion._between,
    exp.In: Conversion._in,
    exp.Escape: Conversion._escape,
    exp.Is: Conversion._is,
    exp.Not: Conversion._not,
    **dict.fromkeys((*_ARITHMETIC, *_COMPARISONS), Conversion._binary),
    **dict.fromkeys(_CHAINS, Conversion._chain),
    **dict.fromkeys(_FUNCTIONS, Conversion._function),
    **dict.fromkeys(_LIKES, Conversion._like),
}
