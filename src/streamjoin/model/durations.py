"""Lengths of time as users write them: "15 minutes", "1h 30m", a timedelta. Held as whole nanoseconds."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

from streamjoin.model.errors import SpecError

_UNITS: dict[str, int] = {}
for _names, _ns in (
    ("ns nanosecond nanoseconds", 1),
    ("us µs microsecond microseconds", 1_000),
    ("ms millisecond milliseconds", 1_000_000),
    ("s sec secs second seconds", 1_000_000_000),
    ("m min mins minute minutes", 60_000_000_000),
    ("h hour hours", 3_600_000_000_000),
    ("d day days", 86_400_000_000_000),
    ("w week weeks", 604_800_000_000_000),
):
    for _name in _names.split():
        _UNITS[_name] = _ns

_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*(?:,|and\b)?", re.IGNORECASE)


def nanoseconds(value: str | timedelta) -> int:
    """The length of `value` in nanoseconds.

    >>> nanoseconds("15 minutes")
    900000000000
    >>> nanoseconds("1h 30m") == nanoseconds("1.5 hours")
    True
    """
    if isinstance(value, timedelta):
        return (value.days * 86_400 + value.seconds) * 1_000_000_000 + value.microseconds * 1_000
    total = Fraction(0)
    position = 0
    text = value.strip()
    while position < len(text):
        part = _PART.match(text, position)
        unit = part and _UNITS.get(part[2].lower())
        if not part or not unit:
            raise SpecError(
                f"{value!r} is not a duration: write a number and a unit, such as '15 minutes', "
                "'1.5 h' or '1h 30m' (units: ns us ms s min h d w)"
            )
        total += Fraction(part[1]) * unit
        position = part.end()
    if not text or total.denominator != 1:
        raise SpecError(f"{value!r} is not a duration of whole nanoseconds: write one such as '15 minutes'")
    return int(total)


def describe(ns: int) -> str:
    """`ns` in the largest unit that holds it exactly, for messages and plans.

    >>> describe(900_000_000_000)
    '15 min'
    """
    for unit in ("w", "d", "h", "min", "s", "ms", "us"):
        if ns and ns % _UNITS[unit] == 0:
            return f"{ns // _UNITS[unit]} {unit}"
    return f"{ns} ns"
