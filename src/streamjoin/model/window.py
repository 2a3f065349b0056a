"""Windows: how long a tuple can be joined.

A tuple is in its window while fewer than `n` tuples of its own side arrived after it (`CountWindow`), or while
the arriving tuple is at most `d` later (`TimeWindow`). The two sides may have different windows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamjoin.model import durations
from streamjoin.model.errors import SpecError

MAX_COUNT = 1 << 40
LONGEST = (1 << 64) - 1
"""The longest window, tolerance or lateness in ticks: no two int64 times are further apart."""
_ROWS = re.compile(r"(\d+)\s*(?:rows?|tuples?)", re.IGNORECASE)


@dataclass(frozen=True)
class CountWindow:
    """The newest `n` tuples of a side."""

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", durations.plain_number(self.n))
        if isinstance(self.n, bool) or not isinstance(self.n, int):
            raise SpecError(f"CountWindow takes a whole number of tuples, not {self.n!r}")
        if not 1 <= self.n <= MAX_COUNT:
            raise SpecError(f"CountWindow({self.n}): the number of tuples must be from 1 to {MAX_COUNT:,}")

    def __str__(self) -> str:
        return f"{self.n:,} tuples"


@dataclass(frozen=True, init=False)
class TimeWindow:
    """Tuples at most `length` older than the arriving tuple.

    `length` is a duration ("15 minutes", a timedelta of Python, pandas or NumPy) for timestamp and date columns, or
    a whole number in the column's own unit for integer time columns.
    """

    length: int
    is_duration: bool

    def __init__(self, length: durations.Duration | durations.WholeNumber) -> None:
        """Read `length` as a duration, or as a number of the time column's own units."""
        value, is_duration = read_length(length, "TimeWindow")
        if value < 0:
            raise SpecError(f"TimeWindow({length!r}): a window can't be negative")
        object.__setattr__(self, "length", value)
        object.__setattr__(self, "is_duration", is_duration)

    def __repr__(self) -> str:
        return f"TimeWindow({durations.describe(self.length)!r})" if self.is_duration else f"TimeWindow({self.length})"

    def __str__(self) -> str:
        if self.is_duration:
            return durations.describe(self.length)
        return "1 time unit" if self.length == 1 else f"{self.length} time units"


def read_length(length: object, what: str) -> tuple[int, bool]:
    """The length in nanoseconds for a duration, else in units of the time column; and whether it is a duration."""
    if durations.is_duration(length):
        return durations.nanoseconds(length), True
    number = durations.plain_number(length)
    if isinstance(number, bool) or not isinstance(number, int):
        raise SpecError(
            f"{what} takes a duration such as '15 minutes' or a timedelta, or a whole number for "
            f"an integer time column, not {length!r}"
        )
    return number, False


Window = CountWindow | TimeWindow


def as_window(value: object) -> Window:
    """A window as it is written: "5 seconds" or a timedelta, "1000 rows", or a window itself.

    >>> as_window("5 s"), as_window("1000 rows")
    (TimeWindow('5 s'), CountWindow(n=1000))
    """
    if isinstance(value, CountWindow | TimeWindow):
        return value
    number = durations.plain_number(value)
    if isinstance(value, str) and (rows := _ROWS.fullmatch(value.strip())):
        return CountWindow(int(rows[1]))
    if isinstance(value, str) and value.strip().isdigit():
        number = int(value)
    if isinstance(number, int) and not isinstance(number, bool):
        raise SpecError(
            f"window={value!r} has two meanings: write CountWindow({number}) for the newest {number:,} tuples of a "
            f"side, or TimeWindow({number}) for {number:,} units of an integer time column"
        )
    if not durations.is_duration(value):
        raise SpecError(
            "window= takes a duration such as '5 seconds', a number of rows such as '1000 rows', a CountWindow, a "
            f"TimeWindow, or a pair (left, right) of these, not {value!r}"
        )
    return TimeWindow(value)
