"""Join predicates: `Equi`, `Band`, `Within`, `Overlaps`, `Theta`, and conjunctions of them with `&`.

Predicates are frozen and check what can be checked without data; `streamjoin.model.binding` fits them to
two schemas. A `Band` bounds the difference left - right: -above <= left - right <= below, so `below` is how
far the right value may lie below the left one, and `above` how far above it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NoReturn

import numpy as np

from streamjoin.model import durations
from streamjoin.model.errors import SpecError
from streamjoin.model.expression.nodes import And, Column, Compare, Expression

Distance = int | float | Decimal | np.integer[Any] | np.floating[Any] | durations.Duration


class JoinPredicate:
    """A condition on a pair of tuples; `&` builds a conjunction, and `Theta` covers all other conditions."""

    def __and__(self, other: object) -> Conjunction:
        if not isinstance(other, JoinPredicate):
            raise SpecError(f"can't combine a predicate with {other!r}: use predicates on both sides of &")
        return Conjunction((*self.terms(), *other.terms()))

    def __bool__(self) -> NoReturn:
        # Otherwise `a and b` would be b alone, and `a or b` a.
        raise SpecError(
            f"{self} is neither true nor false before there are rows: join conditions with &, not with `and`, such as "
            "Equi('a') & Equi('b'); write OR and NOT in a Theta, such as Theta('l.a = r.a OR l.b = r.b')"
        )

    def __or__(self, other: object) -> NoReturn:
        raise SpecError(
            f"{self} can't be joined with {other} by |: write both in one Theta, such as "
            "Theta('l.a = r.a OR l.b = r.b')"
        )

    __ror__ = __or__

    def __invert__(self) -> NoReturn:
        raise SpecError(f"{self} can't be negated by ~: write it as a Theta, such as Theta('NOT l.a = r.a')")

    def terms(self) -> tuple[Term, ...]:
        """The single conditions that must all hold."""
        raise NotImplementedError


def _column(role: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise SpecError(f"the {role} column must be a column name, not {name!r}")


@dataclass(frozen=True)
class Equi(JoinPredicate):
    """`left` equals `right`; NULL and NaN equal nothing."""

    left: str
    right: str = ""

    def __post_init__(self) -> None:
        if self.right == "":
            object.__setattr__(self, "right", self.left)
        _column("left", self.left)
        _column("right", self.right)

    def terms(self) -> tuple[Term, ...]:
        """The predicate itself."""
        return (self,)

    def __str__(self) -> str:
        return f"l.{self.left} = r.{self.right}"


@dataclass(frozen=True, init=False)
class Band(JoinPredicate):
    """`left` and `right` differ by no more than a distance.

    Either one symmetric `distance`, or `below=` and `above=` (a missing one is 0). For time columns a distance
    is a duration ("5 seconds", a timedelta of Python, pandas or NumPy). `strict=True` excludes the bounds.
    """

    left: str
    right: str
    below: int | float | Decimal
    above: int | float | Decimal
    strict: bool
    is_duration: bool

    def __init__(
        self,
        left: str,
        right: str,
        distance: Distance | None = None,
        *,
        below: Distance | None = None,
        above: Distance | None = None,
        strict: bool = False,
    ) -> None:
        """Bound left - right by `distance` both ways, or by `below` and `above`."""
        _column("left", left)
        _column("right", right)
        if (distance is None) == (below is None and above is None):
            raise SpecError(f"Band({left!r}, {right!r}): give one distance, or below= and/or above=, and not both")
        lower, lower_is_time = _distance("distance" if below is None else "below", distance if below is None else below)
        upper, upper_is_time = _distance("distance" if above is None else "above", distance if above is None else above)
        if below is None and above is not None:
            lower, lower_is_time = 0, upper_is_time
        if above is None and below is not None:
            upper, upper_is_time = 0, lower_is_time
        if lower_is_time != upper_is_time and lower != 0 and upper != 0:
            raise SpecError(f"Band({left!r}, {right!r}): below and above must both be durations or both numbers")
        if strict and lower == 0 and upper == 0:
            raise SpecError(f"Band({left!r}, {right!r}): a strict band of width 0 matches nothing; drop strict")
        for name, value in (
            ("left", left),
            ("right", right),
            ("below", lower),
            ("above", upper),
            ("strict", bool(strict)),
            ("is_duration", lower_is_time or upper_is_time),
        ):
            object.__setattr__(self, name, value)

    def terms(self) -> tuple[Term, ...]:
        """The predicate itself."""
        return (self,)

    def __str__(self) -> str:
        lower, upper = (durations.describe(int(d)) if self.is_duration else str(d) for d in (self.below, self.above))
        less = "<" if self.strict else "<="
        if self.below == self.above:
            return f"|l.{self.left} - r.{self.right}| {less} {lower}"
        return f"-{upper} {less} l.{self.left} - r.{self.right} {less} {lower}"


def _distance(name: str, value: Distance | None) -> tuple[int | float | Decimal, bool]:
    if value is None:
        return 0, False
    if durations.is_duration(value):
        ns = durations.nanoseconds(value)
        if ns < 0:
            raise SpecError(f"{name} {value!r} is negative; a band's width can't be")
        return ns, True
    number = durations.plain_number(value)
    if isinstance(number, bool) or not isinstance(number, (int, float, Decimal)):
        raise SpecError(f"{name} must be a number, or a duration such as '5 seconds', not {value!r}")
    if not math.isfinite(number):
        raise SpecError(f"{name} {value!r} is not finite; for a one-sided comparison use Theta('l.x < r.y')")
    if number < 0:
        raise SpecError(f"{name} {value!r} is negative; a band's width can't be")
    return number, False


@dataclass(frozen=True, init=False)
class Theta(JoinPredicate):
    """Any SQL condition over `l.` and `r.` columns, such as "l.x < r.a AND l.kind <> r.kind".

    NaN counts as NULL: `l.x IS NULL` is true for it, unlike in Spark or DuckDB.
    """

    text: str
    expression: Expression

    def __init__(self, text: str) -> None:
        """Parse `text`; it must be a boolean expression."""
        if not isinstance(text, str):
            raise SpecError(f"Theta takes a SQL condition as text, not {text!r}")
        object.__setattr__(self, "text", text)
        # A join by key or band needs no SQL parser, which is slow to load.
        from streamjoin.model.expression.parsing import parse_condition

        object.__setattr__(self, "expression", parse_condition(text, ("l", "r")))

    @classmethod
    def of(cls, expression: Expression) -> Theta:
        """A condition that is an expression already."""
        theta = object.__new__(cls)
        object.__setattr__(theta, "text", str(expression))
        object.__setattr__(theta, "expression", expression)
        return theta

    def terms(self) -> tuple[Term, ...]:
        """The predicate itself."""
        return (self,)

    def __repr__(self) -> str:
        return f"Theta({self.text!r})"

    def __str__(self) -> str:
        return f"({self.text})"


@dataclass(frozen=True)
class Within(JoinPredicate):
    """A point of one side lies in a closed interval of the other: `r.low <= l.point <= r.high`.

    `interval="left"` says that the left side has the interval: `l.low <= r.point <= l.high`. The same condition in SQL,
    such as "l.t BETWEEN r.lo AND r.hi", is served by the same index.
    """

    point: str
    low: str
    high: str
    interval: Literal["left", "right"] = "right"

    def __post_init__(self) -> None:
        for role, name in (("point", self.point), ("low", self.low), ("high", self.high)):
            _column(role, name)
        if self.interval not in ("left", "right"):
            raise SpecError(f"Within(interval={self.interval!r}): it is 'left' or 'right', the side of the interval")

    def terms(self) -> tuple[Term, ...]:
        """The two comparisons."""
        point, ends = ("l", "r") if self.interval == "right" else ("r", "l")
        low, high, column = Column(ends, self.low), Column(ends, self.high), Column(point, self.point)
        return (Theta.of(And((Compare("<=", low, column), Compare("<=", column, high)))),)

    def __str__(self) -> str:
        return str(self.terms()[0])


@dataclass(frozen=True)
class Overlaps(JoinPredicate):
    """Two closed intervals share a point: the columns of the left and of the right interval, each (start, end).

    An interval that ends before it starts is empty and overlaps nothing.
    """

    left: tuple[str, str]
    right: tuple[str, str]

    def __post_init__(self) -> None:
        for side in ("left", "right"):
            names = getattr(self, side)
            if not isinstance(names, (tuple, list)) or len(names) != 2:
                raise SpecError(f"Overlaps: the {side} interval is a pair of column names, not {names!r}")
            object.__setattr__(self, side, tuple(names))
            for name in names:
                _column(side, name)

    def terms(self) -> tuple[Term, ...]:
        """The comparisons of every start with every end."""
        starts = [Column("l", self.left[0]), Column("r", self.right[0])]
        ends = [Column("l", self.left[1]), Column("r", self.right[1])]
        return (Theta.of(And(tuple(Compare("<=", start, end) for start in starts for end in ends))),)

    def __str__(self) -> str:
        (a, b), (c, d) = self.left, self.right
        return f"[l.{a}, l.{b}] overlaps [r.{c}, r.{d}]"


@dataclass(frozen=True)
class Conjunction(JoinPredicate):
    """All of `parts` hold; written `a & b`."""

    parts: tuple[Term, ...]

    def terms(self) -> tuple[Term, ...]:
        """The terms of all parts."""
        return self.parts

    def __iter__(self) -> Iterator[Term]:
        return iter(self.parts)

    def __str__(self) -> str:
        return " and ".join(str(part) for part in self.parts) or "every pair"


Term = Equi | Band | Theta
# Words that are conditions by themselves.
_CONSTANTS = ("true", "false", "null")


def as_predicate(on: object) -> JoinPredicate:
    """A condition as it is written: the name of a column that both sides have, SQL text, or a list of these.

    A text that could be the name of a Python variable is a column, any other is SQL: `Equi("trade id")` for a name that
    could not.

    >>> print(as_predicate("sym"), "|", as_predicate(["sym", "abs(l.px - r.bid) <= 0.25"]))
    l.sym = r.sym | l.sym = r.sym and (abs(l.px - r.bid) <= 0.25)
    """
    if isinstance(on, JoinPredicate):
        return on
    if isinstance(on, str):
        return Equi(on) if on.isidentifier() and on.lower() not in _CONSTANTS else Theta(on)
    if isinstance(on, Sequence) and on and not isinstance(on, bytes):
        parts = [as_predicate(part) for part in on]
        return parts[0] if len(parts) == 1 else Conjunction(tuple(term for part in parts for term in part.terms()))
    raise SpecError(
        "on= takes a column that both sides have, a SQL condition such as 'abs(l.px - r.bid) <= 0.25', Equi, Band, "
        f"Within, Overlaps or Theta, or a list of these, not {on!r}"
    )
