"""What a grouped query says: the windows of time, the keys, the aggregates, and which groups come out.

A group is the rows of the join that have the same keys and whose time lies in the same window. Its values are the keys
(qualifier `KEY`), the aggregates (`VALUE`), both by number, and the window's `start` and `end` (`WINDOW`); outputs,
HAVING and QUALIFY are expressions over these three. Windows are [start, end), and start at multiples of the slide since
the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

from streamjoin.model import durations
from streamjoin.model.errors import SpecError
from streamjoin.model.expression.aggregates import Aggregate
from streamjoin.model.expression.node import Column, Expression
from streamjoin.model.keys import tick_ns

KEY, VALUE, WINDOW = "\x1fkey", "\x1fvalue", "\x1fwindow"
START, END = "window_start", "window_end"
MAX_OVERLAP: Final = 10_000
"""Windows that one row may lie in."""
_TIMESTAMPS: Final = (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))


@dataclass(frozen=True)
class GroupWindow:
    """Windows of `size` ticks, one every `slide` ticks; `alias` says whose time counts, None for the result's own.

    The time of a result is the latest of its tuples' times. `type` is that of the window's start and end.
    """

    alias: str | None
    size: int
    slide: int
    type: pa.DataType

    def __post_init__(self) -> None:
        if not 0 < self.slide <= self.size:
            size, slide = (durations.describe(n) if self._is_time else str(n) for n in (self.size, self.slide))
            raise SpecError(
                f"windows of {size} can't begin every {slide}, as rows between them would be lost: HOP takes the slide "
                "before the size"
            )
        if self.overlap > MAX_OVERLAP:
            raise SpecError(f"a row would lie in {self.overlap:,} windows, and may lie in {MAX_OVERLAP:,} at most")

    @property
    def _is_time(self) -> bool:
        return not pa.types.is_integer(self.type)

    @property
    def overlap(self) -> int:
        """How many windows a row lies in, at most."""
        return -(-self.size // self.slide)

    @property
    def tick(self) -> int:
        """The ticks of one unit of `type`."""
        return tick_ns(self.type) if self._is_time else 1

    def first_after(self, time: int) -> int:
        """The start of the first window that begins after a time."""
        return (time // self.slide + 1) * self.slide


def window_type(times: Iterable[pa.DataType], size: int, slide: int) -> pa.DataType:
    """The type of a window's ends: that of the times, as far as it can say them."""
    types = list(times)
    if any(pa.types.is_integer(type_) for type_ in types):
        return pa.int64()
    finest = min(types, key=tick_ns)
    day = durations.UNITS["day"]
    if pa.types.is_date(finest) and size % day == 0 and slide % day == 0:
        return pa.date32()
    tick = tick_ns(finest)
    unit = next(name for name, ns in _TIMESTAMPS if ns <= tick and size % ns == 0 and slide % ns == 0)
    zone = next((type_.tz for type_ in types if pa.types.is_timestamp(type_)), None)
    return pa.timestamp(unit, zone)


@dataclass(frozen=True)
class Ranking:
    """The first `most` groups of each window, or of each window and some keys, in an order.

    The keys decide between equals, or with `ties` all of them have the place of the first.
    """

    partition: tuple[int, ...]
    order: tuple[tuple[Expression, bool, bool], ...]
    """By expression: whether it descends, and whether NULLs come first."""
    most: int
    ties: bool


@dataclass(frozen=True)
class Grouping:
    """The GROUP BY of a query and what follows it; keys and aggregates are expressions over the streams."""

    window: GroupWindow
    keys: tuple[Expression, ...]
    key_types: tuple[pa.DataType, ...]
    aggregates: tuple[Aggregate, ...]
    value_types: tuple[pa.DataType, ...]
    having: Expression | None = None
    top: Ranking | None = None

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        """The columns that a group has, by qualifier."""
        return {
            KEY: pa.schema([(str(n), type_) for n, type_ in enumerate(self.key_types)]),
            VALUE: pa.schema([(str(n), type_) for n, type_ in enumerate(self.value_types)]),
            WINDOW: pa.schema([(START, self.window.type), (END, self.window.type)]),
        }

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the streams that keys and aggregates read."""
        both = (*self.keys, *self.aggregates)
        return tuple(dict.fromkeys(column for expression in both for column in expression.columns))
