"""Conversion of sqlglot's nodes to streamjoin's, by allow-list.

sqlglot accepts much more than a condition may contain: a node type, or an argument of a node, that is not listed
here is an error and is never ignored. Every error shows the place in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final, ParamSpec, TypeAlias, TypeVar

from sqlglot import exp

from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression import nodes
from streamjoin.model.expression.aggregates import Aggregate
from streamjoin.model.expression.json_paths import path_text
from streamjoin.model.expression.literals import parse_date, parse_interval, parse_timestamp
from streamjoin.model.expression.nodes import Expression
from streamjoin.model.expression.refusals import CONDITION, GROUPED, PARAMETER, SUMMARY, refusal
from streamjoin.model.expression.signatures import NAMES
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
_FUNCTIONS: Final[_Nodes[tuple[str, tuple[str, ...]]]] = {
    exp.Abs: ("ABS", ("this",)),
    exp.Acos: ("ACOS", ("this",)),
    exp.Asin: ("ASIN", ("this",)),
    exp.Atan: ("ATAN", ("this",)),
    exp.Atan2: ("ATAN2", ("this", "expression")),
    exp.Ceil: ("CEIL", ("this",)),
    exp.Coalesce: ("COALESCE", ("this", "expressions")),
    exp.Concat: ("CONCAT", ("expressions",)),
    exp.Contains: ("CONTAINS", ("this", "expression")),
    exp.Cos: ("COS", ("this",)),
    exp.DPipe: ("||", ("this", "expression")),
    exp.Degrees: ("DEGREES", ("this",)),
    exp.EndsWith: ("ENDS_WITH", ("this", "expression")),
    exp.Exp: ("EXP", ("this",)),
    exp.Floor: ("FLOOR", ("this",)),
    exp.Greatest: ("GREATEST", ("this", "expressions")),
    exp.Least: ("LEAST", ("this", "expressions")),
    exp.Left: ("LEFT", ("this", "expression")),
    exp.Length: ("LENGTH", ("this",)),
    exp.Ln: ("LN", ("this",)),
    exp.Lower: ("LOWER", ("this",)),
    exp.Pow: ("POWER", ("this", "expression")),
    exp.Radians: ("RADIANS", ("this",)),
    exp.RegexpExtract: ("REGEXP_EXTRACT", ("this", "expression", "position")),
    exp.RegexpLike: ("REGEXP_MATCHES", ("this", "expression", "flag")),
    exp.RegexpReplace: ("REGEXP_REPLACE", ("this", "expression", "replacement", "position")),
    exp.Replace: ("REPLACE", ("this", "expression", "replacement")),
    exp.Reverse: ("REVERSE", ("this",)),
    exp.Right: ("RIGHT", ("this", "expression")),
    exp.Round: ("ROUND", ("this", "decimals")),
    exp.Sign: ("SIGN", ("this",)),
    exp.Sin: ("SIN", ("this",)),
    exp.SplitPart: ("SPLIT_PART", ("this", "delimiter", "part_index")),
    exp.Sqrt: ("SQRT", ("this",)),
    exp.StartsWith: ("STARTS_WITH", ("this", "expression")),
    exp.StrPosition: ("STRPOS", ("this", "substr")),
    exp.Substring: ("SUBSTR", ("this", "start", "length")),
    exp.Tan: ("TAN", ("this",)),
    exp.Trunc: ("TRUNC", ("this",)),
    exp.Upper: ("UPPER", ("this",)),
}
"""The functions that sqlglot has a node for, with its arguments in the order of ours."""
_NAMED: Final = {
    "ENDSWITH": "ENDS_WITH",
    "GET_JSON_OBJECT": "JSON_EXTRACT_STRING",
    "JSON_VALUE": "JSON_EXTRACT_STRING",
    "PREFIX": "STARTS_WITH",
    "SUFFIX": "ENDS_WITH",
}
"""Names that sqlglot has no node for, and what they are called here."""
_AGGREGATES: Final[_Nodes[str]] = {
    exp.Count: "COUNT",
    exp.Sum: "SUM",
    exp.Avg: "AVG",
    exp.Min: "MIN",
    exp.Max: "MAX",
    exp.First: "FIRST",
    exp.Last: "LAST",
    exp.ArgMin: "ARG_MIN",
    exp.ArgMax: "ARG_MAX",
    exp.Variance: "VAR_SAMP",
    exp.VariancePop: "VAR_POP",
    exp.Stddev: "STDDEV_SAMP",
    exp.StddevSamp: "STDDEV_SAMP",
    exp.StddevPop: "STDDEV_POP",
    exp.Median: "MEDIAN",
    exp.Quantile: "QUANTILE",
    exp.LogicalOr: "MAX",
    exp.LogicalAnd: "MIN",
}
_CHAINS: Final[_Nodes[type[nodes.And | nodes.Or]]] = {exp.And: nodes.And, exp.Or: nodes.Or}
_LIKES: Final[_Nodes[bool]] = {exp.Like: False, exp.ILike: True}
_TYPES: Final = {
    "INT": "INTEGER",
    "FLOAT": "REAL",
    "TEXT": "VARCHAR",
    "CHAR": "VARCHAR",
    "NVARCHAR": "VARCHAR",
    "DATETIME": "TIMESTAMP",
    "TIMESTAMPNTZ": "TIMESTAMP",
}
"""The types that sqlglot calls otherwise."""
_BY_PART: Final = frozenset({"DATE_PART", "DATE_TRUNC"})
_PART_FUNCTIONS: Final = (exp.Year, exp.Quarter, exp.Month, exp.Week, exp.Day, exp.Hour, exp.Minute, exp.Second)
_JSON_STEPS: Final = (exp.JSONPathKey, exp.JSONPathSubscript)
_MOMENTS: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMPTZ"})
# Arguments that sqlglot sets by default and that have no effect here.
_HARMLESS: Final = frozenset(
    {"typed", "safe", "ignore_nulls", "fraction_in_string", "negate", "is_string", "is_left", "big_int"}
)


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
        if self._where in (SUMMARY, GROUPED):
            handler = Conversion._aggregate if type(node) in _AGGREGATES else _SUMMARISING.get(type(node), handler)
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
                name = _AGGREGATES.get(type(node), node.key.upper())
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

    def _cast(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "to")
        name = self._type_name(node.args["to"])
        if isinstance(node.this, exp.Literal) and node.this.is_string and name in _MOMENTS and type(node) is exp.Cast:
            return self._moment(node, name, node.this.name)
        operand = self.convert(node.this)
        return self._build(node, nodes.Cast, operand, name, isinstance(node, exp.TryCast))

    def _moment(self, node: exp.Expr, kind: str, text: str) -> Expression:
        if kind == "DATE":
            return nodes.Date(self._build(node, parse_date, text))
        nanoseconds, aware = self._build(node, parse_timestamp, text)
        return self._build(node, nodes.Timestamp, nanoseconds, aware or kind == "TIMESTAMPTZ")

    def _type_name(self, type_: exp.Expr) -> str:
        """A type as `cast_type` takes it."""
        name = type_.this.name if isinstance(type_, exp.DataType) else type_.name
        details = ", ".join(detail.name for detail in type_.args.get("expressions") or ())
        name = _TYPES.get(name, name)
        if name == "DECIMAL":
            return f"DECIMAL({details if ', ' in details else f'{details or 18}, {0 if details else 3}'})"
        return f"{name}({details})" if details else name

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
        name, keys = _FUNCTIONS[type(node)]
        self._only(node, *keys)
        return self._call(node, name, [node.args.get(key) for key in keys])

    def _call(self, node: exp.Expr, name: str, operands: Sequence[object]) -> Expression:
        """A call with these arguments: nodes, lists of nodes, texts, or None for what is left out."""
        arguments: list[Expression] = []
        for operand in operands:
            if isinstance(operand, str):
                arguments.append(nodes.Literal(operand))
            elif isinstance(operand, list):
                arguments += map(self.convert, operand)
            elif isinstance(operand, exp.Expr):
                arguments.append(self.convert(operand))
        return self._build(node, nodes.Function, name, tuple(arguments))

    def _named_function(self, node: exp.Expr) -> Expression:
        name = _NAMED.get(node.name.upper(), node.name.upper())
        if name not in NAMES:
            raise self._refuse(node)
        operands = list(node.args.get("expressions") or ())
        if name in _BY_PART and operands and isinstance(operands[0], exp.Literal):
            operands[0] = operands[0].name.lower()
        return self._call(node, name, operands)

    def _by_part(self, node: exp.Expr) -> Expression:
        """DATE_TRUNC, EXTRACT and functions such as YEAR."""
        self._only(node, "this", "unit", "expression")
        if isinstance(node, exp.DateTrunc):
            unit = node.args["unit"]
            return self._call(node, "DATE_TRUNC", [unit.name.lower() if unit.is_string else unit, node.this])
        if not isinstance(node, exp.Extract):
            return self._call(node, "DATE_PART", [node.key, node.this])
        part = node.this.name.lower()
        if part == "epoch":
            return self._call(node, "EPOCH", [node.args["expression"]])
        return self._call(node, "DATE_PART", [part, node.args["expression"]])

    def _trim(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "expression", "position")
        name = {"LEADING": "LTRIM", "TRAILING": "RTRIM"}.get(str(node.args.get("position") or ""), "TRIM")
        return self._call(node, name, [node.this, node.args.get("expression")])

    def _log(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "expression")
        number, base = node.args.get("expression"), node.this.name if isinstance(node.this, exp.Literal) else ""
        if number is None or base not in ("2", "10"):
            raise self._error(node, "databases disagree about the base of LOG: write LN(x), LOG2(x) or LOG10(x)")
        return self._call(node, f"LOG{base}", [number])

    def _json(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "expression", "only_json_types", "scalar_only")
        name = "JSON_EXTRACT_STRING" if isinstance(node, exp.JSONExtractScalar) else "JSON_EXTRACT"
        path = node.args["expression"]
        if isinstance(path, exp.JSONPath):
            steps = path.expressions[1:]
            if not all(type(step) in _JSON_STEPS and isinstance(step.this, str | int) for step in steps):
                raise self._error(node, "a path into JSON has keys and places in lists, such as '$.key.list[0]'")
            return self._call(node, name, [node.this, path_text(tuple(step.this for step in steps))])
        return self._call(node, name, [node.this, path])

    def _nullif(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "expression")
        value, other = self.convert(node.this), self.convert(node.args["expression"])
        equal = self._build(node, nodes.Compare, "=", value, other)
        return self._build(node, nodes.Case, ((equal, nodes.NULL),), value)

    def _if(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "true", "false")
        default = node.args.get("false")
        branch = self.convert(node.this), self.convert(node.args["true"])
        return self._build(node, nodes.Case, (branch,), self.convert(default) if default else nodes.NULL)

    def _date(self, node: exp.Expr) -> Expression:
        self._only(node, "this")
        return self._build(node, nodes.Cast, self.convert(node.this), node.key.upper())

    def _moved(self, node: exp.Expr) -> Expression:
        """DATE_ADD and DATE_SUB of an interval."""
        self._only(node, "this", "expression")
        if not isinstance(node.args.get("expression"), exp.Interval):
            raise self._error(node, "a time is moved by an interval: write x + INTERVAL '1 day'")
        sign = "+" if isinstance(node, exp.DateAdd) else "-"
        operands = self.convert(node.this), self.convert(node.args["expression"])
        return self._build(node, nodes.Arithmetic, sign, *operands)

    def _aggregate(self, node: exp.Expr) -> Expression:
        self._only(node, "this", "expression", "quantile")
        operands = [node.args[key] for key in ("this", "expression", "quantile") if node.args.get(key) is not None]
        distinct = operands[0] if operands and isinstance(operands[0], exp.Distinct) else None
        if distinct is not None:
            self._only(distinct, "expressions")
            operands = distinct.expressions
        arguments = tuple(self.convert(operand) for operand in operands if not isinstance(operand, exp.Star))
        return self._build(node, Aggregate, _AGGREGATES[type(node)], arguments, distinct is not None)

    def _filtered(self, node: exp.Expr) -> Expression:
        """FILTER (WHERE condition): of other rows the argument is NULL, and left out."""
        aggregate = self.convert(node.this)
        if not isinstance(aggregate, Aggregate):
            raise self._refuse(node)
        return self._given(node, aggregate, node.args["expression"].this)

    def _count_if(self, node: exp.Expr) -> Expression:
        self._only(node, "this")
        return self._given(node, Aggregate("COUNT"), node.this)

    def _given(self, node: exp.Expr, aggregate: Aggregate, condition: exp.Expr) -> Expression:
        value, *others = aggregate.arguments or (nodes.Literal(1),)
        chosen = self._build(node, nodes.Case, ((self.convert(condition), value),))
        return self._build(node, Aggregate, aggregate.function, (chosen, *others), aggregate.distinct)

    def _within_group(self, node: exp.Expr) -> Expression:
        """PERCENTILE_CONT(p) WITHIN GROUP (ORDER BY x)."""
        order = node.args["expression"].expressions
        if not isinstance(node.this, exp.PercentileCont) or len(order) != 1 or order[0].args.get("desc"):
            raise self._error(node, "WITHIN GROUP is for PERCENTILE_CONT(p) WITHIN GROUP (ORDER BY x) alone")
        return self._build(node, Aggregate, "QUANTILE", (self.convert(order[0].this), self.convert(node.this.this)))

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


_SUMMARISING: Final[_Nodes[Callable[[Conversion, exp.Expr], Expression]]] = {
    exp.Filter: Conversion._filtered,
    exp.CountIf: Conversion._count_if,
    exp.WithinGroup: Conversion._within_group,
}
"""What only stands where aggregates do."""
_HANDLERS: Final[_Nodes[Callable[[Conversion, exp.Expr], Expression]]] = {
    exp.Null: lambda _, __: nodes.NULL,
    exp.Boolean: lambda _, node: nodes.Literal(bool(node.this)),
    exp.Literal: Conversion._literal,
    exp.Neg: Conversion._negative,
    exp.Column: Conversion._column,
    exp.Cast: Conversion._cast,
    exp.TryCast: Conversion._cast,
    exp.Anonymous: Conversion._named_function,
    exp.Trim: Conversion._trim,
    exp.Log: Conversion._log,
    exp.Nullif: Conversion._nullif,
    exp.If: Conversion._if,
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
    **dict.fromkeys((exp.DateTrunc, exp.Extract, *_PART_FUNCTIONS), Conversion._by_part),
    **dict.fromkeys((exp.JSONExtract, exp.JSONExtractScalar), Conversion._json),
    **dict.fromkeys((exp.DateAdd, exp.DateSub), Conversion._moved),
    **dict.fromkeys((exp.Date, exp.Timestamp), Conversion._date),
    **dict.fromkeys(_LIKES, Conversion._like),
}
