"""The units of time: one table for durations, intervals in SQL, `WITHIN`, and the units of Arrow and NumPy."""

from __future__ import annotations

from typing import Final

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
