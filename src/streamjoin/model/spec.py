"""`JoinSpec`: a whole join as frozen data, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from streamjoin.model import durations
from streamjoin.model.errors import NotSupportedError, SpecError
from streamjoin.model.predicates import Predicate, Theta
from streamjoin.model.window import CountWindow, TimeWindow, Window, read_length

Order = Literal["arrival", "event_time"]
How = Literal["inner", "left", "right", "full", "semi", "anti"]
Lateness = durations.Duration | durations.WholeNumber

_HOWS = ("inner", "left", "right", "full", "semi", "anti")


@dataclass(frozen=True)
class JoinSpec:
    """What to join: the condition, the windows, the time column and the order.

    Args:
        on: a predicate, several joined by `&`, or a SQL condition over `l.` and `r.` columns. Equalities and bands
            are found in SQL as well, so `"l.sym = r.sym AND abs(l.px - r.bid) <= 0.25"` is indexed like
            `Equi("sym") & Band("px", "bid", 0.25)`.
        window: one window for both sides, or a pair (left, right).
        time: the time column, or a pair of names; needed by time windows and event-time order.
        order: "arrival" (the order of `push`) or "event_time" (by time, left before right, source, position).
        how: "inner".
        self_join: one stream is both sides; a tuple never pairs with itself.
        lateness: how far behind its source's newest time a tuple may come and still be joined. Unset, it is 0
            in event-time order; in arrival order it is one window, and never less than the last 4,096 tuples.
    """

    on: Predicate | str
    window: Window | tuple[Window, Window]
    time: str | tuple[str, str] | None = None
    order: Order = "arrival"
    how: How = "inner"
    self_join: bool = False
    lateness: Lateness | None = None
    predicate: Predicate = field(init=False, repr=False, compare=False)
    windows: tuple[Window, Window] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "predicate", Theta(self.on) if isinstance(self.on, str) else self.on)
        if not isinstance(self.predicate, Predicate):
            raise SpecError(
                f"on= takes Equi, Band, Theta, a conjunction of them with &, or a SQL condition, not {self.on!r}"
            )
        object.__setattr__(self, "windows", _pair_of_windows(self.window))
        _check_time(self.time)
        if self.order not in ("arrival", "event_time"):
            raise SpecError(f"order={self.order!r}: it is 'arrival' or 'event_time'")
        if self.how not in _HOWS:
            raise SpecError(f"how={self.how!r}: it is one of {', '.join(_HOWS)}")
        if self.how != "inner":
            raise NotSupportedError(f"how={self.how!r} is not there yet; how='inner' is")
        if self.time is None and any(isinstance(w, TimeWindow) for w in self.windows):
            raise SpecError("a time window needs a time column: add time='...' or time=('left_name', 'right_name')")
        if self.time is None and self.order == "event_time":
            raise SpecError("order='event_time' needs a time column: add time='...'")
        self._check_lateness()

    def _check_lateness(self) -> None:
        if self.lateness is None:
            return
        if self.time is None:
            raise SpecError("lateness= needs a time column: add time='...'")
        object.__setattr__(self, "lateness", durations.plain_number(self.lateness))
        if read_length(self.lateness, "lateness=")[0] < 0:
            raise SpecError(f"lateness={self.lateness!r} can't be negative")

    @property
    def time_columns(self) -> tuple[str, str] | None:
        """The time column of each side, if the spec has one."""
        return (self.time, self.time) if isinstance(self.time, str) else self.time


def _pair_of_windows(window: object) -> tuple[Window, Window]:
    if isinstance(window, (CountWindow, TimeWindow)):
        return window, window
    if isinstance(window, tuple) and len(window) == 2:
        left, right = window
        if isinstance(left, (CountWindow, TimeWindow)) and isinstance(right, (CountWindow, TimeWindow)):
            return left, right
    raise SpecError(f"window= takes a CountWindow, a TimeWindow, or a pair (left, right) of them, not {window!r}")


def _check_time(time: object) -> None:
    if time is None:
        return
    names = time if isinstance(time, tuple) else (time, time)
    if len(names) != 2 or not all(isinstance(name, str) and name for name in names):
        raise SpecError(f"time= takes a column name, or a pair (left name, right name), not {time!r}")
