"""The conditions an index can serve: equalities and bands between a column of one alias and a column of another.

A band bounds the difference of two columns, in any spelling: `ABS(a.p - b.q) <= 5`, `a.p BETWEEN b.q - 2 AND
b.q + 3`, `a.p - b.q < 3 AND b.q < a.p + 2`. It means `-above <= left - right <= below` in the arithmetic of the
common type (as `streamjoin.Band` does), for floats too: there the rounding is that of the difference. An equality
of floats is no band unless it is written as one (`a.p - b.q = 0.5`): in `a.p + 0.2 = b.q` the sum is what is rounded,
and no bound on the difference covers that at every magnitude. `l <= r AND l >= r` is an equality: infinities pass.

Invariant of `split`: the terms and the others together hold for a pair iff the conditions do. If no band expresses
a range exactly (it excludes 0, or is open at one end only), a wider band finds the candidates and the conditions
stay among the others.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import pyarrow as pa

from streamjoin.model.errors import SchemaError
from streamjoin.model.expression.nodes import (
    And,
    Arithmetic,
    Between,
    Column,
    Compare,
    Expression,
    Function,
    Interval,
    Literal,
    Negative,
)
from streamjoin.model.keys import fit
from streamjoin.model.plain_types import plain_type
from streamjoin.model.predicates import Band, Equi

Number = int | Decimal
# Literals are within the range of float64, so a sum of a few needs no more digits.
_EXACT = decimal.Context(prec=1000)


@dataclass(frozen=True)
class Equality:
    """`left = right`: a key."""

    left: Column
    right: Column

    @property
    def term(self) -> Equi:
        """The predicate over the left and the right side's column names."""
        return Equi(self.left.name, self.right.name)

    @property
    def condition(self) -> Expression:
        """As an expression."""
        return Compare("=", self.left, self.right)

    def flipped(self) -> Equality:
        """The same with the sides exchanged."""
        return Equality(self.right, self.left)

    def __str__(self) -> str:
        return f"{self.left} = {self.right}"


@dataclass(frozen=True)
class BandTerm:
    """`-above <= left - right <= below`, or `<` if `strict`; in nanoseconds if `is_duration`."""

    left: Column
    right: Column
    below: Number
    above: Number
    strict: bool = False
    is_duration: bool = False

    def __post_init__(self) -> None:
        for name in ("below", "above"):
            value = getattr(self, name)
            is_integer = isinstance(value, Decimal) and value == value.to_integral_value()
            object.__setattr__(self, name, int(value) if is_integer else value)
        _ = self.term

    @property
    def term(self) -> Band:
        """The predicate over the left and the right side's column names."""
        below, above = (f"{d} ns" if self.is_duration else d for d in (self.below, self.above))
        return Band(self.left.name, self.right.name, below=below, above=above, strict=self.strict)

    @property
    def condition(self) -> Expression:
        """As an expression; equal to the term but for the rounding of float32 columns."""
        make = Interval if self.is_duration else Literal
        low, high = make(_sum(0, self.above, -1)), make(self.below)  # type: ignore[arg-type]
        difference = Arithmetic("-", self.left, self.right)
        if self.strict:
            return And((Compare(">", difference, low), Compare("<", difference, high)))
        return Between(difference, low, high)

    def flipped(self) -> BandTerm:
        """The same with the sides exchanged."""
        return BandTerm(self.right, self.left, self.above, self.below, self.strict, self.is_duration)

    def __str__(self) -> str:
        return str(self.condition)


Term = Equality | BandTerm


@dataclass(frozen=True)
class _Linear:
    """A sum of columns and a constant: the form of a comparison's side that can be part of a band."""

    columns: tuple[tuple[Column, int], ...] = ()
    number: Number = 0
    nanoseconds: int = 0

    def plus(self, other: _Linear, sign: int) -> _Linear:
        counts = dict(self.columns)
        for column, count in other.columns:
            counts[column] = counts.get(column, 0) + sign * count
        return _Linear(
            tuple((column, count) for column, count in counts.items() if count),
            _sum(self.number, other.number, sign),
            self.nanoseconds + sign * other.nanoseconds,
        )

    @property
    def difference(self) -> tuple[Column, Column] | None:
        """(plus, minus), if this is one column minus another, without mixing numbers and times."""
        if len(self.columns) != 2 or {count for _, count in self.columns} != {1, -1}:
            return None
        (a, sign), (b, _) = self.columns
        return None if self.number and self.nanoseconds else (a, b) if sign == 1 else (b, a)


@dataclass
class _Range:
    """The range of left - right that the conditions on one pair of columns allow."""

    low: tuple[Number, bool] | None = None
    high: tuple[Number, bool] | None = None
    conditions: list[Expression] = field(default_factory=list)

    @property
    def is_equality(self) -> bool:
        """Whether these are comparisons of the columns themselves, `l <= r AND l >= r`, that hold for equal values."""
        plain = all(
            isinstance(one, Compare) and isinstance(one.left, Column) and isinstance(one.right, Column)
            for one in self.conditions
        )
        return plain and self.low == self.high == (0, False)

    def narrow(self, upper: bool, value: Number, strict: bool) -> None:
        if upper:
            # Of two equal bounds the strict one is tighter.
            self.high = min(self.high or (value, strict), (value, strict), key=lambda b: (b[0], not b[1]))
        else:
            self.low = max(self.low or (value, strict), (value, strict), key=lambda b: (b[0], b[1]))


def split(
    conditions: Sequence[Expression], new: str, schemas: Mapping[str, pa.Schema]
) -> tuple[tuple[Equality, ...], tuple[BandTerm, ...], tuple[Expression, ...]]:
    """The keys, bands and other conditions of a join with the alias `new`, the right side of the terms."""
    equalities: list[Equality] = []
    others: list[Expression] = []
    ranges: dict[tuple[Column, Column], _Range] = {}
    for condition in conditions:
        equality = _equality(condition, new, schemas)
        if equality is not None:
            equalities.append(equality)
        elif _rounds_a_sum(condition, schemas) or not _collect(condition, new, ranges):
            others.append(condition)
    bands = []
    for (left, right), interval in ranges.items():
        if interval.is_equality and _fits(Equality(left, right), schemas):
            # As keys infinities are equal, and their difference is not 0.
            equalities.append(Equality(left, right))
            continue
        band, exact = _band(left, right, interval, schemas)
        bands += [band] if band else []
        others += [] if exact else interval.conditions
    return (
        tuple(sorted(set(equalities), key=str)),
        tuple(sorted(set(bands), key=str)),
        tuple(sorted(dict.fromkeys(others), key=str)),
    )


def _equality(condition: Expression, new: str, schemas: Mapping[str, pa.Schema]) -> Equality | None:
    if not isinstance(condition, Compare) or condition.operator != "=":
        return None
    left, right = condition.left, condition.right
    if not isinstance(left, Column) or not isinstance(right, Column) or left.qualifier == right.qualifier:
        return None
    equality = Equality(left, right) if right.qualifier == new else Equality(right, left)
    return equality if equality.right.qualifier == new and _fits(equality, schemas) else None


def _fits(term: Term, schemas: Mapping[str, pa.Schema]) -> bool:
    types = (schemas[column.qualifier].field(column.name).type for column in (term.left, term.right))
    try:
        fit(term.term, *types)
    except SchemaError:
        return False
    return True


def _rounds_a_sum(condition: Expression, schemas: Mapping[str, pa.Schema]) -> bool:
    """Whether this is an equality over float columns that is not written as a difference of two of them."""
    if not isinstance(condition, Compare) or condition.operator != "=":
        return False
    types = (plain_type(schemas[column.qualifier].field(column.name).type) for column in condition.columns)
    if not any(map(pa.types.is_floating, types)):
        return False
    sides = ((condition.left, condition.right), (condition.right, condition.left))
    return not any(_is_difference(side) and not other.columns for side, other in sides)


def _is_difference(expr: Expression) -> bool:
    return isinstance(expr, Arithmetic) and expr.operator == "-" and {type(expr.left), type(expr.right)} == {Column}


def _collect(condition: Expression, new: str, ranges: dict[tuple[Column, Column], _Range]) -> bool:
    """Record how a condition bounds the difference of two columns; False if it does not."""
    bounds = _bounds(condition)
    if bounds is None:
        return False
    (plus, minus), shift, limits = bounds
    if plus.qualifier == minus.qualifier or new not in (plus.qualifier, minus.qualifier):
        return False
    ahead = minus.qualifier == new
    key = (plus, minus) if ahead else (minus, plus)
    interval = ranges.setdefault(key, _Range())
    interval.conditions.append(condition)
    for upper, limit, strict in limits:
        # plus - minus + shift is bounded by limit; the roles of the ends change with the sign.
        value = _sum(limit, shift, -1)
        interval.narrow(upper == ahead, value if ahead else _sum(0, value, -1), strict)
    return True


_Limits = list[tuple[bool, Number, bool]]


def _bounds(condition: Expression) -> tuple[tuple[Column, Column], Number, _Limits] | None:
    """The difference of two columns, the constant added to it, and the sum's bounds as (upper, limit, strict)."""
    if not isinstance(condition, Compare) or condition.operator not in ("=", "<", "<=", ">", ">="):
        return None
    operator, left, right = condition.operator, condition.left, condition.right
    distance = isinstance(left, Function) and left.name == "ABS"
    inner = _linear(left.arguments[0]) if isinstance(left, Function) and distance else _linear(left)
    limit = _linear(right)
    if inner is None or limit is None:
        return None
    if distance:
        if limit.columns or operator not in ("<", "<=") or inner.difference is None:
            return None
        reach = limit.nanoseconds or limit.number
        if (limit.number and inner.nanoseconds) or (limit.nanoseconds and inner.number):
            return None
        shift = inner.nanoseconds or inner.number
        strict = operator == "<"
        return inner.difference, shift, [(True, reach, strict), (False, _sum(0, reach, -1), strict)]
    whole = inner.plus(limit, -1)
    if whole.difference is None:
        return None
    uppers = {"=": (True, False), "<": (True,), "<=": (True,)}.get(operator, (False,))
    limits: _Limits = [(upper, 0, operator in ("<", ">")) for upper in uppers]
    return whole.difference, whole.nanoseconds or whole.number, limits


def _linear(expr: Expression) -> _Linear | None:
    if isinstance(expr, Column):
        return _Linear(((expr, 1),))
    if isinstance(expr, Interval):
        return _Linear(nanoseconds=expr.nanoseconds)
    if isinstance(expr, Literal) and type(expr.value) in (int, Decimal):
        return _Linear(number=expr.value)  # type: ignore[arg-type]
    if isinstance(expr, Negative):
        operand = _linear(expr.operand)
        return None if operand is None else _Linear().plus(operand, -1)
    if isinstance(expr, Arithmetic) and expr.operator in "+-":
        left, right = _linear(expr.left), _linear(expr.right)
        return None if left is None or right is None else left.plus(right, 1 if expr.operator == "+" else -1)
    return None


def _sum(a: Number, b: Number, sign: int) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a + sign * b
    return _EXACT.add(Decimal(a), _EXACT.multiply(Decimal(b), Decimal(sign)))


def _band(
    left: Column, right: Column, interval: _Range, schemas: Mapping[str, pa.Schema]
) -> tuple[BandTerm | None, bool]:
    """The band that covers a range, if there is one, and whether it is exact."""
    if interval.low is None or interval.high is None:
        return None, False
    (low, low_strict), (high, high_strict) = interval.low, interval.high
    if low > high or (low == high and (low_strict or high_strict)):
        return None, False
    exact = low <= 0 <= high and low_strict == high_strict
    strict = exact and low_strict
    type_ = plain_type(schemas[left.qualifier].field(left.name).type)
    is_duration = bool(pa.types.is_timestamp(type_) or pa.types.is_date(type_))
    band = BandTerm(left, right, max(high, 0), max(_sum(0, low, -1), 0), strict, is_duration)
    return (band, exact) if _fits(band, schemas) else (None, False)
