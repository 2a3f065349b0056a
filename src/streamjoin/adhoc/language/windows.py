"""`WITHIN 3 SECONDS`, `WITHIN 100 ROWS`, `WITHIN 5 UNITS`: windows as a query writes them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Final

from streamjoin.model.errors import ExpressionError
from streamjoin.model.time_units import UNITS
from streamjoin.model.window import MAX_COUNT, CountWindow, TimeWindow, Window

_UNITS: Final = {name.upper(): UNITS[name] for name in ("millisecond", "second", "minute", "hour", "day")}
MAX_DAYS: Final = 366
_MAX_NS: Final = MAX_DAYS * _UNITS["DAY"]
MAX_UNITS: Final = 1 << 53
_MOST_DECIMALS: Final = 30
_ALLOWED: Final = (
    "write {clause}, a number and a unit: MILLISECONDS, SECONDS, MINUTES, HOURS, DAYS, ROWS, "
    "or UNITS for integer time columns"
)


def read_window(
    written: str | None, unit: str, error: Callable[[str], ExpressionError], clause: str = "WITHIN"
) -> Window:
    """The window that the number and the unit after a clause say; `error` makes an error at their place."""
    allowed = _ALLOWED.format(clause=clause)
    if written is None:
        raise error(f"{clause} needs a number: {allowed}")
    number, singular = Decimal(written), unit.upper().removesuffix("S")
    if singular not in (*_UNITS, "ROW", "UNIT"):
        raise error(f"{'a unit is missing' if not unit else f'{unit!r} is no unit of a window'}: {allowed}")
    if number <= 0:
        raise error("a window of zero joins nothing across time or rows; it must be longer")
    if singular in _UNITS:
        # Compared before it is multiplied: a text may hold numbers that no decimal arithmetic takes.
        if number > Decimal(_MAX_NS) / _UNITS[singular]:
            raise error(f"the window is too long: tuples are kept as long as it, and at most {MAX_DAYS} DAYS")
        return _duration(number, _UNITS[singular], error)
    most = MAX_COUNT if singular == "ROW" else MAX_UNITS
    if number > most:
        raise error(f"the window is too long: at most {most:,} {unit.upper()}")
    if number != int(number):
        raise error(f"{unit.upper()} are counted in whole numbers, not {number}")
    return CountWindow(int(number)) if singular == "ROW" else TimeWindow(int(number))


def _duration(number: Decimal, unit: int, error: Callable[[str], ExpressionError]) -> Window:
    exponent = number.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= -_MOST_DECIMALS:
        nanoseconds = Fraction(number) * unit
        if nanoseconds.denominator == 1:
            return TimeWindow(f"{nanoseconds} ns")
    raise error("a window is a whole number of nanoseconds")
