"""Constants of a condition: numbers, strings, truth values, NULL, dates, timestamps and intervals.

A number written with a point or an exponent is stored as the exact decimal; the other operand decides whether it
is used as that decimal or as the nearest float64.

Dates, timestamps and intervals are exact integers, read from text and formatted. Timestamps and intervals are whole
nanoseconds, dates whole days since 1970-01-01; formatting and then parsing gives the same integer. Intervals have a
fixed length, so there are no months and years.
"""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import ClassVar, Final

from streamjoin.model.durations import UNITS, unit_ns
from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression.node import ATOM, SIGN, Expression

SECOND: Final = UNITS["second"]
DAY: Final = UNITS["day"]
MAX_INTERVAL: Final = 3_652_059 * DAY
"""The days from year 1 to year 9999: no two timestamps are further apart."""

_EPOCH: Final = datetime.date(1970, 1, 1)
_DATE: Final = r"(?P<date>\d{4}-\d\d-\d\d)"
_CLOCK: Final = r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?"
_OFFSET: Final = r"(?P<zone>Z|(?P<sign>[+-])(?P<zone_hour>\d\d)(?::?(?P<zone_minute>[0-5]\d))?)"
_TIMESTAMP: Final = re.compile(rf"{_DATE}(?:[T ]{_CLOCK}(?: ?{_OFFSET})?)?", re.ASCII)
_AMOUNT: Final = re.compile(r"\s*(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*(?P<unit>[A-Za-z]+)\s*", re.ASCII)


def parse_date(text: str) -> int:
    """Days since 1970-01-01 of ``2024-01-31``.

    Raises:
        ExpressionError: the text is no such date.
    """
    try:
        if len(text) != 10:
            raise ValueError(text)
        return (datetime.date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise ExpressionError(f"{text!r} is not a date; write DATE '2024-01-31'") from None


def parse_timestamp(text: str) -> tuple[int, bool]:
    """Nanoseconds since 1970-01-01, and whether the text names its offset from UTC.

    Raises:
        ExpressionError: the text is no timestamp, or is finer than nanoseconds.
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    hour, minute, second = (int(match[part] or 0) if match else 99 for part in ("hour", "minute", "second"))
    if match is None or hour > 23 or minute > 59 or second > 59 or int(match["zone_hour"] or 0) > 18:
        raise ExpressionError(
            f"{text!r} is not a timestamp; write TIMESTAMP '2024-01-31 12:00:00.5', "
            "with +02:00 or Z after it for an instant"
        )
    total = (parse_date(match["date"]) * 86_400 + hour * 3_600 + minute * 60 + second) * SECOND
    total += int((match["fraction"] or "").ljust(9, "0"))
    offset = (int(match["zone_hour"] or 0) * 60 + int(match["zone_minute"] or 0)) * 60 * SECOND
    return total - (-offset if match["sign"] == "-" else offset), match["zone"] is not None


def parse_interval(text: str) -> int:
    """Nanoseconds of ``5 seconds``, ``1.5 h`` or ``2 hours 3 minutes``.

    Raises:
        ExpressionError: no unit, an unknown unit, a unit without a fixed length, or a part of a nanosecond.
    """
    total, position = Decimal(0), 0
    if len(text) > 200:
        raise ExpressionError("an interval's text has at most 200 characters")
    while match := _AMOUNT.match(text, position):
        total += Decimal(match["number"]) * _unit(match["unit"])
        position = match.end()
    if position == 0 or position != len(text):
        raise ExpressionError(f"{text!r} is not an interval; write INTERVAL '5 seconds', with a unit")
    if total != int(total):
        raise ExpressionError(f"the interval {text!r} is not a whole number of nanoseconds")
    return int(total)


def _unit(name: str) -> int:
    length = unit_ns(name)
    if length is not None:
        return length
    singular = name.lower().removesuffix("s")
    if singular in ("month", "quarter", "year", "decade", "century", "millennium"):
        raise ExpressionError(f"a {singular} has no fixed length; write it in days or smaller units")
    raise ExpressionError(f"unknown interval unit {name!r}; known: {', '.join(UNITS)}")


def format_date(days: int) -> str:
    """The date as ``2024-01-31``."""
    return (_EPOCH + datetime.timedelta(days=days)).isoformat()


def format_timestamp(nanoseconds: int) -> str:
    """The timestamp as ``2024-01-31 12:00:00``, with as many decimals as it needs."""
    days, rest = divmod(nanoseconds, DAY)
    seconds, fraction = divmod(rest, SECOND)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{format_date(days)} {clock}" + (f".{fraction:09}".rstrip("0") if fraction else "")


def format_interval(nanoseconds: int) -> str:
    """The interval as ``'5' SECOND``, in the largest unit that divides it."""
    unit = next(name for name, length in UNITS.items() if name != "week" and nanoseconds % length == 0)
    return f"'{nanoseconds // UNITS[unit]}' {unit.upper()}"


MAX_DIGITS: Final = 76
"""The digits of the widest Arrow decimal: no number literal needs more."""

_EXACT: Final = Context(prec=MAX_DIGITS)
FIRST_DAY: Final = -719_162
LAST_DAY: Final = 2_932_896
"""0001-01-01 and 9999-12-31, in days since 1970-01-01."""


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
        if not _is_int(self.days) or not FIRST_DAY <= self.days <= LAST_DAY:
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
        if not _is_int(self.nanoseconds) or not FIRST_DAY <= self.nanoseconds // DAY <= LAST_DAY:
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
