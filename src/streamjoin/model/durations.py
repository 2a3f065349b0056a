"""Lengths of time as users write them: "15 minutes", "1h 30m", a timedelta. Stored as integer nanoseconds.

A timedelta is Python's, pandas' or NumPy's. The units of time are one table for durations, intervals in SQL, `WITHIN`,
and the units of Arrow and NumPy.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import Any, Final, TypeGuard

import numpy as np

from streamjoin.model.errors import SpecError

_TABLE: Final = (
    ("week", 604_800 * 10**9, "w weeks"),
    ("day", 86_400 * 10**9, "d days"),
    ("hour", 3_600 * 10**9, "h hr hrs hours"),
    ("minute", 60 * 10**9, "m min mins minutes"),
    ("second", 10**9, "s sec secs seconds"),
    ("millisecond", 10**6, "ms milliseconds"),
    ("microsecond", 10**3, "us µs microseconds"),
    ("nanosecond", 1, "ns nanoseconds"),
)

UNITS: Final = {name: length for name, length, _ in _TABLE}
"""Nanoseconds by the full name of a unit, the longest unit first."""

_SPELLINGS: Final = {spelling: length for name, length, others in _TABLE for spelling in (name, *others.split())}

DECIMALS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""The units of Arrow's times, as decimal places of a second."""


def unit_ns(spelling: str) -> int | None:
    """The nanoseconds in a unit, however it is spelled; None if there is no such unit.

    >>> unit_ns("Hours"), unit_ns("min"), unit_ns("fortnight")
    (3600000000000, 60000000000, None)
    """
    return _SPELLINGS.get(spelling.lower())


Duration = str | timedelta | np.timedelta64
WholeNumber = int | np.integer[Any]

_NUMPY_UNITS = ("ns", "us", "ms", "s", "m", "h", "D", "W")

_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*(?:,|and\b)?", re.IGNORECASE)


def plain_number(value: object) -> object:
    """A NumPy number as a Python number; any other value unchanged.

    >>> plain_number(np.int64(5)), plain_number(np.float32(0.5)), plain_number("5 s")
    (5, 0.5, '5 s')
    """
    return value.item() if isinstance(value, np.integer | np.floating) and not is_duration(value) else value


def is_duration(value: object) -> TypeGuard[Duration]:
    """Whether `nanoseconds` accepts `value`."""
    return isinstance(value, str | timedelta | np.timedelta64)


def nanoseconds(value: Duration) -> int:
    """The length of `value` in nanoseconds.

    >>> nanoseconds("15 minutes")
    900000000000
    >>> nanoseconds("1h 30m") == nanoseconds("1.5 hours")
    True
    """
    if isinstance(value, timedelta):
        # A pandas Timedelta is a Python timedelta with an additional nanoseconds field.
        rest = value.microseconds * 1_000 + int(getattr(value, "nanoseconds", 0))
        return value.days * UNITS["day"] + value.seconds * UNITS["second"] + rest
    if isinstance(value, np.timedelta64):
        return _numpy_nanoseconds(value)
    total = Fraction(0)
    position = 0
    text = value.strip()
    while position < len(text):
        part = _PART.match(text, position)
        unit = part and unit_ns(part[2])
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


def _numpy_nanoseconds(value: np.timedelta64) -> int:
    unit, count = np.datetime_data(value.dtype)
    length = unit_ns(unit) if unit in _NUMPY_UNITS else None
    if np.isnat(value) or length is None:
        raise SpecError(
            f"{value!r} is not a duration: it needs a number and a unit from nanoseconds to weeks, such as "
            "np.timedelta64(5, 's')"
        )
    return int(value.astype(np.int64)) * count * length


def describe(ns: int) -> str:
    """`ns` in the largest unit that holds it exactly, for messages and plans.

    >>> describe(900_000_000_000)
    '15 min'
    """
    for unit in ("w", "d", "h", "min", "s", "ms", "us"):
        length = unit_ns(unit)
        if length and ns and ns % length == 0:
            return f"{ns // length} {unit}"
    return f"{ns} ns"
