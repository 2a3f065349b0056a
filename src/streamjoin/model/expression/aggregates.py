"""Aggregates: nodes that summarise many rows in one value, and the types of their values.

An expression of aggregates is read like a condition, with the same functions and operators around them; `Aggregate`
stands where a column could. Invariant: an aggregate is never inside of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

import pyarrow as pa

from streamjoin.model.errors import ExpressionError, SchemaError
from streamjoin.model.expression.node import Column, Expression, shorten
from streamjoin.model.expression.nodes import Literal
from streamjoin.model.expression.typing_rules import check
from streamjoin.model.expression.value_kinds import NUMBERS, ValueKind, arrow_kind

AGGREGATES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "COUNT": (0, 1),
        "SUM": (1, 1),
        "AVG": (1, 1),
        "MIN": (1, 1),
        "MAX": (1, 1),
        "FIRST": (1, 1),
        "LAST": (1, 1),
        "ARG_MIN": (2, 2),
        "ARG_MAX": (2, 2),
        "VAR_SAMP": (1, 1),
        "VAR_POP": (1, 1),
        "STDDEV_SAMP": (1, 1),
        "STDDEV_POP": (1, 1),
        "MEDIAN": (1, 1),
        "QUANTILE": (2, 2),
    }
)
"""Every aggregate, with the least and the greatest number of its arguments."""
PLAIN: Final = ("COUNT", "SUM", "AVG", "MIN", "MAX", "FIRST", "LAST")
"""Those that a window's ends decide: nothing is enumerated for them."""
_DIGITS_OF_A_WORD: Final = 18
_NUMERIC: Final = ("AVG", "VAR_SAMP", "VAR_POP", "STDDEV_SAMP", "STDDEV_POP", "MEDIAN", "QUANTILE")


@dataclass(frozen=True)
class Aggregate(Expression):
    """A call of one of `AGGREGATES`; COUNT without an argument is count(*)."""

    function: str
    arguments: tuple[Expression, ...] = ()
    distinct: bool = False

    _operands: ClassVar[tuple[str, ...]] = ("arguments",)
    _boolean: ClassVar[bool | None] = None

    def __post_init__(self) -> None:
        if self.function not in AGGREGATES:
            raise ExpressionError(f"unknown aggregate {self.function}; known: {', '.join(AGGREGATES)}")
        object.__setattr__(self, "arguments", tuple(self.arguments))
        least, most = AGGREGATES[self.function]
        count = len(self.arguments)
        if not least <= count <= most:
            raise ExpressionError(f"{self.function} takes {most} argument{'s' * (most > 1)}, not {count}")
        if self.distinct and (self.function != "COUNT" or not self.arguments):
            raise ExpressionError(f"DISTINCT is only for COUNT(DISTINCT x), not for {self.function}")
        super().__post_init__()
        for argument in self.arguments:
            inner = next((node for node in argument.walk() if isinstance(node, Aggregate)), None)
            if inner is not None:
                raise ExpressionError(f"{self.function} can't summarise another aggregate, {shorten(inner)}")
        if self.function == "QUANTILE":
            self._check_fraction()

    def _check_fraction(self) -> None:
        fraction = self.arguments[1]
        value = fraction.value if isinstance(fraction, Literal) else None
        if value is None or isinstance(value, str | bool) or not 0 <= value <= 1:
            raise ExpressionError(f"QUANTILE(x, p) takes a number from 0 to 1 as p, not {shorten(fraction)}")

    @property
    def fraction(self) -> float:
        """The p of QUANTILE(x, p); 0.5 for MEDIAN."""
        literal = self.arguments[-1]
        return float(literal.value) if isinstance(literal, Literal) and self.function == "QUANTILE" else 0.5  # type: ignore[arg-type]

    @property
    def values(self) -> tuple[Expression, ...]:
        """The arguments that are computed for every row."""
        return self.arguments[:1] if self.function == "QUANTILE" else self.arguments

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.arguments)) or "*"
        return f"{self.function}({'DISTINCT ' * self.distinct}{inner})"


def aggregates(expression: Expression) -> tuple[Aggregate, ...]:
    """The aggregates of an expression, once each, in the order of the text."""
    return tuple(dict.fromkeys(node for node in expression.walk() if isinstance(node, Aggregate)))


def replaced(expression: Expression, column: Callable[[Aggregate], Column]) -> Expression:
    """The expression with each aggregate as a column."""

    def change(node: Expression) -> Expression:
        return column(node) if isinstance(node, Aggregate) else node.rebuilt(change)

    return change(expression)


def aggregate_type(aggregate: Aggregate, schemas: Mapping[str, pa.Schema]) -> pa.DataType:
    """The type of an aggregate's values.

    Raises:
        SchemaError: a column is unknown, or the aggregate does not take such values.
    """
    types = [check(argument, schemas) for argument in aggregate.values]
    name = aggregate.function
    if name == "COUNT":
        return pa.int64()
    kind = (arrow_kind(types[0]) or (ValueKind.NULL, 0))[0]
    if isinstance(types[0], pa.BaseExtensionType):
        # Of Arrow's own ones only the boolean of 8 bits would count as a number.
        kind = ValueKind.NULL
    if name in _NUMERIC:
        if kind not in NUMBERS:
            raise SchemaError(f"{name} takes numbers; {shorten(aggregate.arguments[0])} is {types[0]}")
        return pa.float64()
    return _sum_type(aggregate, types[0], kind) if name == "SUM" else types[0]


def _sum_type(aggregate: Aggregate, type_: pa.DataType, kind: ValueKind) -> pa.DataType:
    if kind is ValueKind.INTEGER:
        return pa.int64() if pa.types.is_signed_integer(type_) else pa.uint64()
    if kind is ValueKind.DECIMAL:
        wide = pa.types.is_decimal256(type_)
        return pa.decimal256(76, type_.scale) if wide else pa.decimal128(38, type_.scale)
    if kind in NUMBERS:
        return pa.float64()
    if kind is ValueKind.INTERVAL:
        return type_
    raise SchemaError(f"SUM takes numbers and durations; {shorten(aggregate.arguments[0])} is {type_}")


def is_enumerated(aggregate: Aggregate, schemas: Mapping[str, pa.Schema]) -> bool:
    """Whether every match has to be looked at, also where keys alone decide which rows match.

    Extremes are kept by the order of words, which texts and long decimals do not have.
    """
    if aggregate.function not in PLAIN or aggregate.distinct or any(c.qualifier != "r" for c in aggregate.columns):
        return True
    if aggregate.function not in ("MIN", "MAX"):
        return False
    type_ = check(aggregate.arguments[0], schemas)
    kind, _ = arrow_kind(type_) or (ValueKind.STRING, 0)
    long = pa.types.is_decimal(type_) and type_.precision > _DIGITS_OF_A_WORD
    return long or kind in (ValueKind.STRING, ValueKind.BINARY, ValueKind.NULL)
