"""The functions of times, over values; times with a zone are cut and divided in UTC.

Values count seconds with `scale` decimals. Days are counted by the Gregorian calendar, also before it was introduced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.expression.calculation import rescale, to_float
from streamjoin.model.expression.literals import FIRST_DAY, LAST_DAY
from streamjoin.model.expression.text_functions import constant
from streamjoin.model.expression.value_kinds import ValueKind
from streamjoin.model.expression.values import DAY_SECONDS, INT64, Mask, Values, both_valid

_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": DAY_SECONDS}
_DECIMALS: Final = {"millisecond": 3, "microsecond": 6}
_MICROSECONDS: Final = 6
_LONGEST: Final = 366
"""No month, quarter or year begins this many days before any of its days, or more."""


@dataclass(frozen=True)
class _Day:
    """Days since 1970-01-01."""

    days: Array

    @property
    def months(self) -> Array:
        return self.days.astype("M8[D]").astype("M8[M]").astype(np.int64)

    @property
    def year(self) -> Array:
        return 1970 + self.months // 12

    @property
    def weekday(self) -> Array:
        """Days since Monday."""
        return (self.days + 3) % 7

    @property
    def thursday(self) -> _Day:
        """The Thursday of its week, which says what year the week belongs to."""
        return _Day(self.days - self.weekday + 3)

    @property
    def of_year(self) -> Array:
        """Days since the first of January."""
        return self.days - _first_days((self.year - 1970) * 12)


def _first_days(months: Array) -> Array:
    """The first days of months, which are counted since January 1970."""
    first: Array = months.astype("M8[M]").astype("M8[D]").astype(np.int64)
    return first


_PARTS: Final[dict[str, Callable[[_Day], Array]]] = {
    "day": lambda day: day.days - _first_days(day.months) + 1,
    "week": lambda day: day.thursday.of_year // 7 + 1,
    "month": lambda day: day.months % 12 + 1,
    "quarter": lambda day: day.months % 12 // 3 + 1,
    "year": lambda day: day.year,
    "dow": lambda day: (day.weekday + 1) % 7,
    "isodow": lambda day: day.weekday + 1,
    "doy": lambda day: day.of_year + 1,
    "isoyear": lambda day: day.thursday.year,
}
_FIRST: Final[dict[str, Callable[[_Day], Array]]] = {
    "week": lambda day: day.days - day.weekday,
    "month": lambda day: _first_days(day.months),
    "quarter": lambda day: _first_days(day.months // 3 * 3),
    "year": lambda day: _first_days(day.months // 12 * 12),
}


def _whole(data: Array) -> Array:
    """Numbers that were divided, as int64 again."""
    return np.clip(data, INT64.min, INT64.max).astype(np.int64)


def part(name: Values, moment: Values) -> Values:
    """A part of each time, by its name; a second's decimals belong to milliseconds and microseconds."""
    unit, power = constant(name), 10**moment.scale
    seconds = _whole(moment.data // power)
    if unit in _PARTS:
        data = _PARTS[unit](_Day(seconds // DAY_SECONDS))
    elif unit in _DECIMALS:
        fine = 10 ** _DECIMALS[unit]
        data = seconds % 60 * fine + _whole(moment.data % power) * fine // power
    else:
        ranges = {"second": 60, "minute": 60, "hour": 24}
        data = seconds // _SECONDS[unit] % ranges[unit]
    return Values(data, moment.valid, ValueKind.INTEGER)


def truncated(name: Values, moment: Values) -> Values:
    """Each time, cut to a unit."""
    unit, power = constant(name), 10**moment.scale
    kind = ValueKind.INSTANT if moment.kind is ValueKind.INSTANT else ValueKind.TIMESTAMP
    data = moment.data
    if int(moment.bounds[0]) < INT64.min + _LONGEST * DAY_SECONDS * power:
        data = data.astype(object)
    if unit in _FIRST:
        days = _FIRST[unit](_Day(_whole(data // (DAY_SECONDS * power))))
        data = days.astype(data.dtype) * (DAY_SECONDS * power)
    else:
        finer = moment.scale - _DECIMALS.get(unit, 0)
        step = 10 ** max(0, finer) if unit in _DECIMALS else _SECONDS[unit] * power
        data = data // step * step
    return Values(data, moment.valid, kind, moment.scale)


def epoch(moment: Values) -> Values:
    """Seconds since 1970, or of a length of time, as floats."""
    return to_float(replace(moment, kind=ValueKind.DECIMAL))


def epoch_ms(moment: Values) -> Values:
    """Milliseconds since 1970, or of a length of time, rounded down."""
    places = _DECIMALS["millisecond"]
    value = replace(moment, kind=ValueKind.INTEGER)
    if moment.scale <= places:
        return replace(rescale(value, places), scale=0)
    return Values(moment.data // 10 ** (moment.scale - places), moment.valid, ValueKind.INTEGER)


def to_timestamp(seconds: Values) -> Values:
    """The time a number of seconds after 1970, to the microsecond; NULL outside of the years 1 to 9999."""
    low, high = FIRST_DAY * DAY_SECONDS, (LAST_DAY + 1) * DAY_SECONDS
    number = seconds if seconds.kind is ValueKind.INTEGER else to_float(seconds)
    there: Mask = np.asarray((number.data >= low) & (number.data < high), np.bool_)
    kept = np.where(there, number.data, 0)
    if number.kind is ValueKind.INTEGER:
        data = kept.astype(np.int64) * 10**_MICROSECONDS
    else:
        data = np.rint(kept * 10.0**_MICROSECONDS).astype(np.int64)
    return Values(data, both_valid(seconds.valid, there), ValueKind.INSTANT, _MICROSECONDS)


TIME_FUNCTIONS: Final[dict[str, Callable[..., Values]]] = {
    "DATE_PART": part,
    "DATE_TRUNC": truncated,
    "EPOCH": epoch,
    "EPOCH_MS": epoch_ms,
    "TO_TIMESTAMP": to_timestamp,
}
