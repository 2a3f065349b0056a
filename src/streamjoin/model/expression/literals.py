"""Constants of a condition: numbers, strings, truth values, NULL, dates, timestamps and intervals.

A number written with a point or an exponent is stored as the exact decimal; the other operand decides whether it
is used as that decimal or as the nearest float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import ClassVar, Final

from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression.node import ATOM, SIGN, Expression
from streamjoin.model.expression.temporal import DAY, MAX_INTERVAL, format_date, format_interval, format_timestamp

MAX_DIGITS: Final = 76
"""The digits of the widest Arrow decimal: no number literal needs more."""

_EXACT: Final = Context(prec=MAX_DIGITS)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31


class Constant(Expression):
    """A node without columns and operands."""


@dataclass(frozen=True, eq=False)
class Literal(Constant):
    """NULL, a truth value, an integer, a decimal or a string; a float becomes the decimal that it prints as.

    Equal means the same type and the same value, so ``Literal(1)``, ``Literal(True)`` and
    ``Literal(Decimal("1"))`` are three literals.
    """

    value: bool | int | Decimal | str | None

    def __post_init__(self) -> None:
        value: object = self.value
        if isinstance(value, float):
            value = Decimal(repr(value))
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            value = _number(value)
        elif isinstance(value, str):
            _text(value)
        elif not isinstance(value, bool | None):
            raise ExpressionError(f"a literal is NULL, a boolean, a number or a string, not {value!r}")
        object.__setattr__(self, "value", value)
        super().__post_init__()

    @property
    def boolean(self) -> bool | None:
        """True for TRUE and FALSE; NULL may have any type."""
        return None if self.value is None else isinstance(self.value, bool)

    @property
    def binding(self) -> int:
        """A minus sign binds less than a bare number."""
        return SIGN if isinstance(self.value, int | Decimal) and self.value < 0 else ATOM

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        return type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self) -> int:
        return hash((type(self.value).__name__, self.value))

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        if isinstance(self.value, Decimal):
            text = format(self.value, "f") if -20 < self.value.adjusted() < 20 else str(self.value)
            return text if "." in text or "E" in text else text + ".0"
        return "NULL" if self.value is None else str(self.value).upper()


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: int | Decimal) -> int | Decimal:
    if isinstance(value, int):
        if abs(value) >= 10**MAX_DIGITS:
            raise ExpressionError(f"a number literal has at most {MAX_DIGITS} digits")
        return int(value)
    if not value.is_finite() or len(value.as_tuple().digits) > MAX_DIGITS:
        raise ExpressionError(f"a number literal is finite and has at most {MAX_DIGITS} digits, not {value}")
    if value and not (value.adjusted() > -400 and math.isfinite(_as_float(value))):
        raise ExpressionError(f"the number {value} is outside the range of float64")
    normal = value.normalize(_EXACT)
    return normal if normal else Decimal(0)


def _as_float(value: Decimal) -> float:
    return float(value) if value.adjusted() < 400 else math.inf


def _text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ExpressionError(f"the string {value!r} is not valid Unicode") from None


@dataclass(frozen=True)
class Date(Constant):
    """A day, as the days since 1970-01-01."""

    days: int

    def __post_init__(self) -> None:
        if not _is_int(self.days) or not _FIRST_DAY <= self.days <= _LAST_DAY:
            raise ExpressionError(f"a date lies in the years 1 to 9999; day {self.days!r} does not")
        super().__post_init__()

    def __str__(self) -> str:
        return f"DATE '{format_date(self.days)}'"


@dataclass(frozen=True)
class Timestamp(Constant):
    """Nanoseconds since 1970-01-01: on the wall clock or, if ``aware``, in UTC."""

    nanoseconds: int
    aware: bool = False

    def __post_init__(self) -> None:
        if not _is_int(self.nanoseconds) or not _FIRST_DAY <= self.nanoseconds // DAY <= _LAST_DAY:
            raise ExpressionError(f"a timestamp lies in the years 1 to 9999; {self.nanoseconds!r} ns does not")
        super().__post_init__()

    def __str__(self) -> str:
        text = format_timestamp(self.nanoseconds)
        return f"TIMESTAMPTZ '{text}+00:00'" if self.aware else f"TIMESTAMP '{text}'"


@dataclass(frozen=True)
class Interval(Constant):
    """A length of time in nanoseconds; may be negative."""

    nanoseconds: int

    _binding: ClassVar[int] = ATOM

    def __post_init__(self) -> None:
        if not _is_int(self.nanoseconds) or abs(self.nanoseconds) > MAX_INTERVAL:
            raise ExpressionError(f"an interval spans at most 9999 years; {self.nanoseconds!r} ns does not")
        super().__post_init__()

    def __str__(self) -> str:
        return f"INTERVAL {format_interval(self.nanoseconds)}"
