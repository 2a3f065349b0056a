"""`WITHIN 3 SECONDS`, `WITHIN 100 ROWS`, `WITHIN 5 UNITS`: windows as a query writes them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Final

from streamjoin.model.errors import ExpressionError
from streamjoin.model.window import MAX_COUNT, CountWindow, TimeWindow, Window

_UNITS: Final = {
    "MILLISECOND": 10**6,
    "SECOND": 10**9,
    "MINUTE": 60 * 10**9,
    "HOUR": 3_600 * 10**9,
    "DAY": 86_400 * 10**9,
}
MAX_DAYS: Final = 366
_MAX_NS: Final = MAX_DAYS * _UNITS["DAY"]
MAX_UNITS: Final = 1 << 53
ALLOWED: Final = (
    "write WITHIN, a number and a unit: MILLISECONDS, SECONDS, MINUTES, HOURS, DAYS, ROWS, "
    "or UNITS for integer time columns"
)


def read_window(written: str | None, unit: str, error: Callable[[str], ExpressionError]) -> Window:
    """The window that the number and the unit after WITHIN say; `error` makes an error at their place."""
    if written is None:
        raise error(f"WITHIN needs a number: {ALLOWED}")
    number, singular = Decimal(written), unit.upper().removesuffix("S")
    if singular not in (*_UNITS, "ROW", "UNIT"):
        raise error(f"{'a unit is missing' if not unit else f'{unit!r} is no unit of a window'}: {ALLOWED}")
    if number <= 0:
        raise error("a window of zero joins nothing across time or rows; it must be longer")
    if singular in _UNITS:
        return _duration(number * _UNITS[singular], error)
    if number != int(number):
        raise error(f"{unit.upper()} are counted in whole numbers, not {number}")
    if singular == "ROW":
        if number > MAX_COUNT:
            raise error(f"a window has at most {MAX_COUNT:,} rows")
        return CountWindow(int(number))
    if number > MAX_UNITS:
        raise error(f"a window has at most {MAX_UNITS:,} units")
    return TimeWindow(int(number))


def _duration(nanoseconds: Decimal, error: Callable[[str], ExpressionError]) -> Window:
    if nanoseconds > _MAX_NS:
        raise error(f"the window is too long: tuples are kept as long as it, and at most {MAX_DAYS} DAYS")
    if nanoseconds != int(nanoseconds):
        raise error("a window is a whole number of nanoseconds")
    return TimeWindow(f"{int(nanoseconds)} ns")
