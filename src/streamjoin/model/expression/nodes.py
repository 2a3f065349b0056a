"""Conditions as data: the nodes that the parser builds and that checking, evaluation and planning read.

Nodes are independent of streams: a :class:`Column` carries any qualifier, so the two sides of a join (``l``,
``r``) and the stream aliases of an ad-hoc query use the same nodes. Chains of AND and of OR are always flat.

In LIKE patterns ``%`` stands for any run of characters, ``_`` for one. A pattern compiles to a regular expression that
never backtracks over more than one ``%``: each middle piece is matched where it first occurs, which loses no match
because pieces have a fixed length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression.cast_types import CastType, cast_type
from streamjoin.model.expression.literals import Constant, Date, Interval, Literal, Timestamp
from streamjoin.model.expression.node import (
    AND,
    ATOM,
    MAX_DEPTH,
    OR,
    PREDICATE,
    PRODUCT,
    SIGN,
    SUM,
    Column,
    Expression,
    require_boolean,
    require_value,
)
from streamjoin.model.expression.signatures import FUNCTIONS, NAMES
from streamjoin.model.expression.value_kinds import ValueKind, common_kind

ANY_RUN: Final = -1
ANY_ONE: Final = -2

Piece = str | int


def split_pattern(pattern: str, escape: str | None) -> list[Piece]:
    """The pattern's characters, with the wildcards as :data:`ANY_RUN` and :data:`ANY_ONE`.

    Raises:
        ExpressionError: the escape is not one character, or precedes a character that it cannot escape.
    """
    if escape is not None and (not isinstance(escape, str) or len(escape) != 1):
        raise ExpressionError(f"ESCAPE takes one character, not {escape!r}")
    pieces: list[Piece] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                raise ExpressionError(
                    f"in the pattern {pattern!r} the escape character {escape!r} stands before "
                    f"{'the end' if escaped is None else repr(escaped)}, but only %, _ or itself may follow"
                )
            pieces.append(escaped)
        else:
            pieces.append({"%": ANY_RUN, "_": ANY_ONE}.get(character, character))
    return pieces


def matcher(pattern: str, escape: str | None, *, ignore_case: bool) -> Callable[[str], bool]:
    """A function that tests whether a whole string matches; ``ignore_case`` compares lower-case forms."""
    pieces = split_pattern(pattern, escape)
    runs: list[list[Piece]] = [[]]
    for piece in pieces:
        if piece == ANY_RUN:
            runs.append([])
        else:
            runs[-1].append(piece.lower() if ignore_case and isinstance(piece, str) else piece)
    texts = [_regex(run) for run in runs]
    if len(texts) == 1:
        body = texts[0]
    else:
        middle = "".join(f"(?>.*?{text})" for text in texts[1:-1] if text)
        body = f"{texts[0]}{middle}.*{texts[-1]}"
    match = re.compile(body, re.DOTALL).fullmatch
    if ignore_case:
        return lambda text: match(text.lower()) is not None
    return lambda text: match(text) is not None


def _regex(run: list[Piece]) -> str:
    return "".join("." if piece == ANY_ONE else re.escape(str(piece)) for piece in run)


__all__ = [
    "COMPARISONS",
    "FUNCTIONS",
    "MAX_DEPTH",
    "NULL",
    "OPERATORS",
    "And",
    "Arithmetic",
    "Between",
    "Case",
    "Cast",
    "Column",
    "Compare",
    "Constant",
    "Date",
    "Expression",
    "Function",
    "In",
    "Interval",
    "IsNull",
    "IsTruth",
    "Like",
    "Literal",
    "Negative",
    "Not",
    "Or",
    "Timestamp",
    "conjunction",
]

NULL: Final = Literal(None)

COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
OPERATORS: Final = ("+", "-", "*", "/", "%")


@dataclass(frozen=True)
class Negative(Expression):
    """Unary minus."""

    operand: Expression

    _operands: ClassVar[tuple[str, ...]] = ("operand",)
    _binding: ClassVar[int] = SIGN

    def __post_init__(self) -> None:
        require_value(self.operand, "unary minus")
        super().__post_init__()

    def __str__(self) -> str:
        # Without parentheses -5 would be read as a literal and --5 as a comment.
        return f"-{self.operand}" if isinstance(self.operand, Column | Function | Cast) else f"-({self.operand})"


@dataclass(frozen=True)
class Arithmetic(Expression):
    """``left`` + - * / % ``right``."""

    operator: str
    left: Expression
    right: Expression

    _operands: ClassVar[tuple[str, ...]] = ("left", "right")

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise ExpressionError(f"unknown operator {self.operator!r}; known: {' '.join(OPERATORS)}")
        require_value(self.left, self.operator)
        require_value(self.right, self.operator)
        super().__post_init__()

    @property
    def binding(self) -> int:
        """Products bind tighter than sums."""
        return SUM if self.operator in "+-" else PRODUCT

    def __str__(self) -> str:
        return f"{self.left.within(self.binding)} {self.operator} {self.right.within(self.binding + 1)}"


@dataclass(frozen=True)
class Function(Expression):
    """A call of one of :data:`FUNCTIONS`; literal arguments are checked."""

    name: str
    arguments: tuple[Expression, ...]

    _operands: ClassVar[tuple[str, ...]] = ("arguments",)

    def __post_init__(self) -> None:
        if self.name not in FUNCTIONS:
            raise ExpressionError(f"unknown function {self.name}; known: {', '.join(NAMES)}")
        object.__setattr__(self, "arguments", tuple(self.arguments))
        self._check_count()
        self._check_literals()
        if self.boolean is not None:
            for argument in self.arguments:
                require_value(argument, self.name)
        super().__post_init__()

    def _check_count(self) -> None:
        least, most = FUNCTIONS[self.name].least, FUNCTIONS[self.name].most
        count = len(self.arguments)
        if count < least or (most is not None and count > most):
            more = f"{least} or more" if most is None else f"{least}" if least == most else f"{least} to {most}"
            arity = f"{more} argument{'s' * (more != '1')}"
            raise ExpressionError(f"{self.name} takes {arity}, not {count}")

    def _check_literals(self) -> None:
        signature = FUNCTIONS[self.name]
        values: list[object] = []
        for place in (place for place in signature.literals if place < len(self.arguments)):
            argument = self.arguments[place]
            is_whole = ValueKind.INTEGER in signature.takes[min(place, len(signature.takes) - 1)]
            value = argument.value if isinstance(argument, Literal) else None
            if not isinstance(value, int if is_whole else str) or isinstance(value, bool):
                what = "a whole number" if is_whole else "a string"
                raise ExpressionError(f"argument {place + 1} of {self.name} is {what} that is written out")
            values.append(value)
        if signature.check is not None:
            signature.check(*values)

    @property
    def boolean(self) -> bool | None:
        """Whether it is a test; COALESCE, LEAST and GREATEST have the type of their arguments."""
        gives = FUNCTIONS[self.name].gives
        return None if gives is common_kind else gives is ValueKind.BOOLEAN

    def __str__(self) -> str:
        if self.name == "||":
            return f"({self.arguments[0]} || {self.arguments[1]})"
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class Cast(Expression):
    """CAST to a type, by its name; TRY_CAST if `safe`, which may give NULL."""

    operand: Expression
    type: str
    safe: bool = False

    _operands: ClassVar[tuple[str, ...]] = ("operand",)

    def __post_init__(self) -> None:
        cast_type(self.type)
        super().__post_init__()

    @property
    def target(self) -> CastType:
        """The type that its name says."""
        return cast_type(self.type)

    @property
    def boolean(self) -> bool | None:
        """Whether its values are truth values."""
        return self.target.kind is ValueKind.BOOLEAN

    def __str__(self) -> str:
        return f"{'TRY_CAST' if self.safe else 'CAST'}({self.operand} AS {self.type})"


@dataclass(frozen=True)
class Case(Expression):
    """CASE WHEN: the value of the first branch whose condition is true, else ``default``."""

    branches: tuple[tuple[Expression, Expression], ...]
    default: Expression = NULL

    _boolean: ClassVar[bool | None] = None

    def __post_init__(self) -> None:
        branches = tuple((condition, value) for condition, value in self.branches)
        object.__setattr__(self, "branches", branches)
        if not branches:
            raise ExpressionError("CASE needs at least one WHEN ... THEN ...")
        for condition, _ in branches:
            require_boolean(condition, "WHEN")
        super().__post_init__()

    @property
    def children(self) -> tuple[Expression, ...]:
        """Condition, value, condition, value, ..., default."""
        return (*(node for branch in self.branches for node in branch), self.default)

    def rebuilt(self, change: Callable[[Expression], Expression]) -> Expression:
        """The same CASE over changed conditions and values."""
        return Case(tuple((change(when), change(then)) for when, then in self.branches), change(self.default))

    def __str__(self) -> str:
        branches = " ".join(f"WHEN {condition} THEN {value}" for condition, value in self.branches)
        default = "" if self.default == NULL else f" ELSE {self.default}"
        return f"CASE {branches}{default} END"


@dataclass(frozen=True)
class _Predicate(Expression):
    _binding: ClassVar[int] = PREDICATE
    _boolean: ClassVar[bool | None] = True


@dataclass(frozen=True)
class Compare(_Predicate):
    """A comparison, one of :data:`COMPARISONS`."""

    operator: str
    left: Expression
    right: Expression

    _operands: ClassVar[tuple[str, ...]] = ("left", "right")

    def __post_init__(self) -> None:
        if self.operator not in COMPARISONS:
            raise ExpressionError(f"unknown comparison {self.operator!r}; known: {', '.join(COMPARISONS)}")
        super().__post_init__()

    def __str__(self) -> str:
        return f"{self.left.within(SUM)} {self.operator} {self.right.within(SUM)}"


@dataclass(frozen=True)
class Between(_Predicate):
    """``low <= operand AND operand <= high``, with the operand computed once."""

    operand: Expression
    low: Expression
    high: Expression

    _operands: ClassVar[tuple[str, ...]] = ("operand", "low", "high")

    def __str__(self) -> str:
        return f"{self.operand.within(SUM)} BETWEEN {self.low.within(SUM)} AND {self.high.within(SUM)}"


@dataclass(frozen=True)
class In(_Predicate):
    """Whether the operand equals one of the constants; NULL among them turns "no" into NULL."""

    operand: Expression
    choices: tuple[Constant, ...]

    _operands: ClassVar[tuple[str, ...]] = ("operand", "choices")

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))
        if not self.choices:
            raise ExpressionError("IN needs at least one value in its list")
        for choice in self.choices:
            if not isinstance(choice, Constant):
                raise ExpressionError(f"IN takes a list of literals; {choice} is not one")
        super().__post_init__()

    def __str__(self) -> str:
        return f"{self.operand.within(SUM)} IN ({', '.join(map(str, self.choices))})"


@dataclass(frozen=True)
class Like(_Predicate):
    """LIKE, or ILIKE if ``ignore_case``. Without ``escape`` no character is special but ``%`` and ``_``."""

    operand: Expression
    pattern: str
    escape: str | None = None
    ignore_case: bool = False

    _operands: ClassVar[tuple[str, ...]] = ("operand",)

    def __post_init__(self) -> None:
        Literal(self.pattern)
        if not isinstance(self.pattern, str):
            raise ExpressionError(f"LIKE takes a string as its pattern, not {self.pattern!r}")
        require_value(self.operand, "LIKE")
        split_pattern(self.pattern, self.escape)
        super().__post_init__()

    def __str__(self) -> str:
        word = "ILIKE" if self.ignore_case else "LIKE"
        escape = "" if self.escape is None else f" ESCAPE {Literal(self.escape)}"
        return f"{self.operand.within(SUM)} {word} {Literal(self.pattern)}{escape}"


@dataclass(frozen=True)
class IsNull(_Predicate):
    """IS NULL: never NULL itself. NaN counts as NULL."""

    operand: Expression

    _operands: ClassVar[tuple[str, ...]] = ("operand",)

    def __str__(self) -> str:
        return f"{self.operand.within(SUM)} IS NULL"


@dataclass(frozen=True)
class IsTruth(_Predicate):
    """IS TRUE or IS FALSE: false for NULL."""

    operand: Expression
    value: bool

    _operands: ClassVar[tuple[str, ...]] = ("operand",)

    def __post_init__(self) -> None:
        if not isinstance(self.value, bool):
            raise ExpressionError(f"IS takes TRUE or FALSE, not {self.value!r}")
        require_boolean(self.operand, "IS TRUE and IS FALSE")
        super().__post_init__()

    def __str__(self) -> str:
        return f"{self.operand.within(SUM)} IS {'TRUE' if self.value else 'FALSE'}"


@dataclass(frozen=True)
class Not(_Predicate):
    """NOT: NULL stays NULL."""

    operand: Expression

    _operands: ClassVar[tuple[str, ...]] = ("operand",)

    def __post_init__(self) -> None:
        require_boolean(self.operand, "NOT")
        super().__post_init__()

    def __str__(self) -> str:
        return f"NOT {self.operand.within(ATOM)}"


@dataclass(frozen=True)
class _Chain(Expression):
    terms: tuple[Expression, ...]

    _operands: ClassVar[tuple[str, ...]] = ("terms",)
    _boolean: ClassVar[bool | None] = True
    _word: ClassVar[str]

    def __post_init__(self) -> None:
        flat: list[Expression] = []
        for term in self.terms:
            require_boolean(term, self._word)
            flat.extend(term.terms) if isinstance(term, type(self)) else flat.append(term)
        if len(flat) < 2:
            raise ExpressionError(f"{self._word} needs at least two terms, not {len(flat)}")
        object.__setattr__(self, "terms", tuple(flat))
        super().__post_init__()

    def __str__(self) -> str:
        return f" {self._word} ".join(term.within(PREDICATE) for term in self.terms)


@dataclass(frozen=True)
class And(_Chain):
    """All terms: false if one is false, else NULL if one is NULL."""

    _binding: ClassVar[int] = AND
    _word: ClassVar[str] = "AND"


@dataclass(frozen=True)
class Or(_Chain):
    """Any term: true if one is true, else NULL if one is NULL."""

    _binding: ClassVar[int] = OR
    _word: ClassVar[str] = "OR"


def conjunction(terms: tuple[Expression, ...]) -> Expression:
    """The AND of any number of terms: TRUE for none, the term itself for one."""
    return And(terms) if len(terms) > 1 else terms[0] if terms else Literal(True)
