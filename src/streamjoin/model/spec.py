"""`JoinSpec`: a whole join as frozen data, checked when it is created."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from streamjoin.model import durations
from streamjoin.model.errors import NotSupportedError, SpecError
from streamjoin.model.predicates import JoinPredicate, Theta
from streamjoin.model.window import CountWindow, TimeWindow, Window, read_length

Order = Literal["arrival", "event_time"]
How = Literal["inner"]
Lateness = durations.Duration | durations.WholeNumber

_NOT_YET = ("left", "right", "full", "semi", "anti")
_RESULT_TIME = "result_time"


@dataclass(frozen=True)
class JoinSpec:
    """What to join: the condition, the windows, the time column and the order.

    Args:
        on: a predicate, several joined by `&`, or a SQL condition over `l.` and `r.` columns. Equalities and bands
            are found in SQL as well, so `"l.sym = r.sym AND abs(l.px - r.bid) <= 0.25"` is indexed like
            `Equi("sym") & Band("px", "bid", 0.25)`.
        window: one window for both sides, or a pair (left, right).
        time: the time column, or a pair of names; needed by time windows and event-time order.
        order: "arrival" (the order of `push`) or "event_time" (by time, left before right, source, position). Unset,
            it is "arrival" for `open` and "event_time" on Spark.
        how: "inner", the only kind so far.
        self_join: one stream is both sides; a tuple never pairs with itself.
        lateness: how far behind its source's newest time a tuple may be and still be joined. If unset, it is 0
            in event-time order; in arrival order it is one window, and never less than the last 4,096 tuples.
        suffixes: what is added to the names of columns that both sides have: a left and a right one.
        both_keys: keep both columns of an equality whose columns have the same name, with suffixes. Without it they
            appear once, with the left side's values.
        result_time: the name of the result's time, the later one of the pair. Unset, it is the time column's name where
            both sides have the same, whose own columns get suffixes, and otherwise "result_time".
    """

    on: JoinPredicate | str
    window: Window | tuple[Window, Window]
    time: str | tuple[str, str] | None = None
    order: Order | None = None
    how: How = "inner"
    self_join: bool = False
    lateness: Lateness | None = None
    suffixes: tuple[str, str] = ("_left", "_right")
    both_keys: bool = False
    result_time: str | None = None
    predicate: JoinPredicate = field(init=False, repr=False, compare=False)
    windows: tuple[Window, Window] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "predicate", Theta(self.on) if isinstance(self.on, str) else self.on)
        if not isinstance(self.predicate, JoinPredicate):
            raise SpecError(
                f"on= takes Equi, Band, Theta, a conjunction of them with &, or a SQL condition, not {self.on!r}"
            )
        object.__setattr__(self, "windows", _pair_of_windows(self.window))
        _check_time(self.time)
        if self.order not in (None, "arrival", "event_time"):
            raise SpecError(f"order={self.order!r}: it is 'arrival' or 'event_time'")
        check_how(self.how)
        if self.time is None and any(isinstance(w, TimeWindow) for w in self.windows):
            raise SpecError("a time window needs a time column: add time='...' or time=('left_name', 'right_name')")
        if self.time is None and self.order == "event_time":
            raise SpecError("order='event_time' needs a time column: add time='...'")
        self._check_lateness()
        self._check_names()

    def _check_lateness(self) -> None:
        if self.lateness is None:
            return
        if self.time is None:
            raise SpecError("lateness= needs a time column: add time='...'")
        object.__setattr__(self, "lateness", durations.plain_number(self.lateness))
        if read_length(self.lateness, "lateness=")[0] < 0:
            raise SpecError(f"lateness={self.lateness!r} can't be negative")

    def _check_names(self) -> None:
        object.__setattr__(self, "suffixes", as_suffixes(self.suffixes))
        if not isinstance(self.both_keys, bool):
            raise SpecError(f"both_keys={self.both_keys!r}: it is True or False")
        if self.result_time is None:
            return
        if not isinstance(self.result_time, str) or not self.result_time:
            raise SpecError(f"result_time={self.result_time!r}: give the name of a column")
        if self.time is None:
            raise SpecError("result_time= needs a time column: add time='...'")

    def in_order(self, default: Order) -> JoinSpec:
        """The spec with an order: its own, or the runtime's default."""
        return self if self.order is not None else replace(self, order=default)

    @property
    def result_time_name(self) -> str | None:
        """The name of the result's time; None without a time column."""
        if self.time_columns is None or self.result_time is not None:
            return self.result_time
        left, right = self.time_columns
        # Without a suffix one side's column keeps the name.
        return left if left == right and all(self.suffixes) else _RESULT_TIME

    @property
    def time_columns(self) -> tuple[str, str] | None:
        """The time column of each side, if the spec has one."""
        return (self.time, self.time) if isinstance(self.time, str) else self.time


def check_how(how: object) -> None:
    """Reject kinds of join that are not supported."""
    if how in _NOT_YET:
        raise NotSupportedError(f"how={how!r} is not supported yet; use how='inner'")
    if how != "inner":
        raise SpecError(f"how={how!r}: it is 'inner'")


def as_suffixes(suffixes: object) -> tuple[str, str]:
    """A left and a right suffix; one of them may be empty."""
    pair = tuple(suffixes) if isinstance(suffixes, (list, tuple)) else ()
    if len(pair) != 2 or not all(isinstance(suffix, str) for suffix in pair) or pair[0] == pair[1]:
        raise SpecError(f"suffixes={suffixes!r}: give two different texts, such as ('_left', '_right')")
    return pair


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
