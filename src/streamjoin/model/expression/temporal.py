"""Dates, timestamps and intervals as text: exact integers in, exact integers out.

Timestamps and intervals are whole nanoseconds, dates whole days since 1970-01-01; formatting and then parsing
gives the same integer. Intervals have a fixed length, so there are no months and years.
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import Final

from streamjoin.model.errors import ExpressionError
from streamjoin.model.time_units import UNITS, unit_ns

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
