"""`JoinSpec`: a whole join as frozen data, checked when it is created."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from streamjoin.model import durations
from streamjoin.model.asof import AsOf
from streamjoin.model.errors import NotSupportedError, SpecError
from streamjoin.model.expression.canonical import conjuncts
from streamjoin.model.expression.nodes import Column, Compare, Expression
from streamjoin.model.predicates import Conjunction, Equi, JoinPredicate, Theta, as_predicate
from streamjoin.model.summary import Summary
from streamjoin.model.window import MAX_COUNT, CountWindow, TimeWindow, Window, as_window, read_length

Order = Literal["arrival", "event_time"]
How = Literal["inner", "left", "right", "full", "semi", "anti"]
Lateness = durations.Duration | durations.WholeNumber
Condition = JoinPredicate | str
"""One condition as users write it: see `as_predicate`."""
WindowLike = Window | durations.Duration
"""A window as users write it: see `as_window`."""

HOWS = ("inner", "left", "right", "full", "semi", "anti")
_OTHER_NAMES = {
    "outer": "'full'",
    "fullouter": "'full'",
    "leftouter": "'left'",
    "rightouter": "'right'",
    "leftsemi": "'semi'",
    "leftanti": "'anti'",
    "asof": "match='backward', beside how=",
    "cross": "on='1 = 1', beside how='inner'",
}
"""What pandas, Polars, Spark and DuckDB call them, without signs."""
_ASOF_HOWS = ("inner", "left", "anti")
_RESULT_TIME = "result_time"
_OTHER_DEFAULT = (
    "with time= the default order is now event time, in which rows may differ and come out once no earlier tuple can "
    "follow; before it was the order of push. Write order='event_time' to keep the new default without this warning, "
    "or order='arrival' for the old one"
)


@dataclass(frozen=True)
class JoinSpec:
    """What to join: the condition, the windows, the time column and the order.

    Args:
        on: the name of a column that both sides have ("sym"), a SQL condition over `l.` and `r.` columns, a predicate,
            or a list of these, which must all hold. A text that could be the name of a Python variable is a column,
            any other is SQL; a column with another name is `Equi("trade id")`. Equalities and bands are found in SQL
            as well, so `"l.sym = r.sym AND abs(l.px - r.bid) <= 0.25"` is indexed like
            `Equi("sym") & Band("px", "bid", 0.25)`. None, for an as-of join: every right tuple counts.
        window: how long a tuple can be joined: a time ("5 seconds", a timedelta, `TimeWindow(5)` for an integer time
            column), or a number of tuples ("1000 rows", `CountWindow(1000)`), or a pair (left, right). An as-of join in
            event-time order has none.
        time: the time column, or a pair of names; needed by time windows and event-time order.
        order: "arrival" (the order of `push`) or "event_time" (by time, left before right, source, position). Unset,
            it is "event_time" with a time column and "arrival" without one, wherever the join runs.
        how: "inner"; "left", "right" and "full" add each unmatched tuple of that side once, with NULLs for the other;
            "semi" and "anti" give the matched or the unmatched left tuples once, with the left columns alone.
        self_join: one stream is both sides; a tuple never pairs with itself.
        lateness: how far behind its source's newest time a tuple may be and still be joined. If unset, it is 0
            in event-time order; in arrival order it is one window, and never less than the last 4,096 tuples.
        suffixes: what is added to the names of columns that both sides have, also in another case: a left and a right
            one.
        both_keys: keep both columns of an equality whose columns have the same name, with suffixes. Without it they
            appear once, with the left side's values.
        result_time: the name of the result's time, the later one of the pair. Unset, it is the time column's name where
            both sides have the same, whose own columns get suffixes, and otherwise "result_time".
        match: `AsOf(...)` gives every left tuple at most one right tuple, the nearest in time; `Summary(...)` gives
            every left tuple one row with aggregates of the right tuples around it.

    >>> JoinSpec(on="sym", window="5 s", time="ts") == JoinSpec(on=Equi("sym"), window=TimeWindow("5 s"), time="ts")
    True
    """

    on: Condition | Sequence[Condition] | None
    window: WindowLike | tuple[WindowLike, WindowLike] | None = None
    time: str | tuple[str, str] | None = None
    order: Order | None = None
    how: How = "inner"
    self_join: bool = False
    lateness: Lateness | None = None
    suffixes: tuple[str, str] = ("_left", "_right")
    both_keys: bool = False
    result_time: str | None = None
    match: AsOf | Summary | None = None
    predicate: JoinPredicate = field(init=False, repr=False, compare=False)
    windows: tuple[Window, Window] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "predicate", self._condition())
        if not isinstance(self.on, str) or isinstance(self.predicate, Equi):
            # What means the same is the same spec.
            object.__setattr__(self, "on", None if self.on is None else self.predicate)
        if self.window is not None:
            object.__setattr__(self, "window", _as_windows(self.window))
        _check_time(self.time)
        if self.order not in (None, "arrival", "event_time"):
            raise SpecError(f"order={self.order!r}: it is 'arrival' or 'event_time'")
        check_how(self.how)
        if self.match is not None and not isinstance(self.match, AsOf | Summary):
            raise SpecError(f"match= takes AsOf(...) or Summary(...), not {self.match!r}")
        object.__setattr__(self, "windows", self._pair_of_windows())
        if self.time is None and any(isinstance(w, TimeWindow) for w in self.windows):
            raise SpecError("a time window needs a time column: add time='...' or time=('left_name', 'right_name')")
        if self.time is None and self.runs_in == "event_time":
            raise SpecError("order='event_time' needs a time column: add time='...'")
        self._check_lateness()
        self._check_names()
        self._check_kind()

    def _condition(self) -> JoinPredicate:
        return Conjunction(()) if self.on is None and self.match is not None else as_predicate(self.on)

    def _pair_of_windows(self) -> tuple[Window, Window]:
        if self.match is None:
            windows = _as_windows(self.window)
            return windows if isinstance(windows, tuple) else (windows, windows)
        if isinstance(self.match, Summary):
            if self.window is not None:
                raise SpecError("Summary(between=...) is the window of this join: leave out window=")
            return self.match.windows
        if self.window is None:
            return _reach(self.match)
        if self.runs_in == "event_time":
            raise SpecError(
                "an as-of join in event-time order, the default with time=, has no window=: AsOf(tolerance=...) bounds "
                "the distance; in arrival order, order='arrival', window= does"
            )
        if not isinstance(self.window, (CountWindow, TimeWindow)):
            raise SpecError("an as-of join in arrival order has one window, that of the right side")
        return CountWindow(1), self.window

    def _check_kind(self) -> None:
        if isinstance(self.match, Summary):
            self._check_summary(self.match)
            return
        if self.how in ("semi", "anti") and self.result_time is not None:
            raise SpecError(f"how={self.how!r} gives the left columns alone: leave out result_time=")
        if self.self_join and self.how in ("left", "right", "full"):
            raise NotSupportedError(
                f"how={self.how!r} is not for a self-join: both sides are one stream, so a tuple without a partner "
                "would come out as either; use how='anti' for the tuples without a partner"
            )
        if self.match is not None:
            self._check_asof(self.match)
        elif self.runs_in == "arrival" and self.lateness is None:
            for side, window in zip(("left", "right"), self.windows, strict=True):
                if isinstance(window, TimeWindow) and side in self.preserved:
                    raise SpecError(
                        f"how={self.how!r} in arrival order with a time window needs lateness=: it says when no tuple "
                        f"can still match an unmatched {side} one; or use order='event_time'"
                    )

    def _check_summary(self, match: Summary) -> None:
        if self.how not in ("inner", "left"):
            raise SpecError(
                f"how={self.how!r} with match=Summary: it is 'left', a row for every left tuple, or 'inner', only "
                "those with a match"
            )
        if self.runs_in == "arrival":
            raise SpecError(
                "match=Summary looks at times before and after a left tuple: add time= and leave out order='arrival'"
            )
        if self.result_time is not None:
            raise SpecError("match=Summary gives the left columns and the summaries: leave out result_time=")
        if match.prevailing and not self.by_equalities:
            raise SpecError(
                f"Summary(prevailing=True) on {self.predicate}: which right tuple is in force is known for equalities, "
                "or no on=, alone"
            )
        if match.itself and not self.self_join:
            raise SpecError("Summary(itself=True) is for a self-join: add self_join=True")

    def _check_asof(self, match: AsOf) -> None:
        if self.how not in _ASOF_HOWS:
            raise SpecError(f"how={self.how!r} with match=AsOf: it is 'inner', 'left' or 'anti'")
        if self.self_join:
            raise NotSupportedError("an as-of join takes two streams: push one stream as both sides instead")
        if self.runs_in == "arrival":
            self._check_asof_arrival(match)
            return
        if match.tolerance is None and (match.direction != "backward" or not self.by_equalities):
            why = f"AsOf({match.direction!r})" if match.direction != "backward" else f"as-of on {self.predicate}"
            raise SpecError(f"{why} needs tolerance=: without it no tuple could ever be forgotten or decided")

    def _check_asof_arrival(self, match: AsOf) -> None:
        if match.direction != "backward":
            raise SpecError(
                f"AsOf({match.direction!r}) waits for later times: add order='event_time'; in arrival order as-of is "
                "'backward', the newest right tuple that is there"
            )
        if match.tolerance is not None or not match.exact:
            raise SpecError(
                "in arrival order as-of takes neither tolerance= nor exact=: bound the age with window=, or add "
                "order='event_time'"
            )
        if self.window is None and not self.by_equalities:
            raise SpecError(f"as-of on {self.predicate} in arrival order needs window=: nothing could be forgotten")

    @property
    def by_equalities(self) -> bool:
        """Whether the condition is equalities of columns alone, or there is none."""
        return all(
            isinstance(term, Equi) or (isinstance(term, Theta) and all(map(_is_equality, conjuncts(term.expression))))
            for term in self.predicate.terms()
        )

    @property
    def preserved(self) -> tuple[str, ...]:
        """The sides whose unmatched tuples come out."""
        return {"left": ("left",), "anti": ("left",), "right": ("right",), "full": ("left", "right")}.get(self.how, ())

    @property
    def left_only(self) -> bool:
        """Whether the result has the left side's columns alone, beside summaries."""
        return self.how in ("semi", "anti") or isinstance(self.match, Summary)

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

    @property
    def runs_in(self) -> Order:
        """The order in which the tuples are joined: `order`, or the default, which every runtime takes from here."""
        return self.order or ("arrival" if self.time is None else "event_time")

    def in_order(self) -> JoinSpec:
        """The spec with its order written out."""
        return self if self.order is not None else replace(self, order=self.runs_in)

    def warn_of_order(self, stacklevel: int) -> None:
        """Warn where the default order gives other rows than it did when it was that of arrival.

        A spec that is not valid in arrival order has never had another meaning.
        """
        if self.order is not None or self.time is None:
            return
        try:
            replace(self, order="arrival")
        except SpecError:
            return
        warnings.warn(_OTHER_DEFAULT, FutureWarning, stacklevel=stacklevel + 1)

    @property
    def result_time_name(self) -> str | None:
        """The name of the result's time; None without a time column, and where the left columns are all there is."""
        if self.left_only:
            return None
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
    """Reject an unknown kind of join."""
    if how not in HOWS:
        meant = _OTHER_NAMES.get(re.sub(r"[^a-z]", "", str(how).lower()))
        hint = "" if meant is None else f"; here it is {meant}"
        raise SpecError(f"how={how!r}: it is one of {', '.join(map(repr, HOWS))}{hint}")


def _is_equality(condition: Expression) -> bool:
    if not isinstance(condition, Compare) or condition.operator != "=":
        return False
    left, right = condition.left, condition.right
    return isinstance(left, Column) and isinstance(right, Column) and left.qualifier != right.qualifier


def as_suffixes(suffixes: object) -> tuple[str, str]:
    """A left and a right suffix; one of them may be empty."""
    pair = tuple(suffixes) if isinstance(suffixes, (list, tuple)) else ()
    if len(pair) != 2 or not all(isinstance(suffix, str) for suffix in pair) or pair[0] == pair[1]:
        raise SpecError(f"suffixes={suffixes!r}: give two different texts, such as ('_left', '_right')")
    return pair


def _reach(match: AsOf) -> tuple[Window, Window]:
    """How long a left and a right tuple can be needed by an as-of join."""
    if match.reach is None:
        return CountWindow(1), CountWindow(MAX_COUNT)
    now = TimeWindow("0 s" if match.reach.is_duration else 0)
    return (now if match.direction == "backward" else match.reach, now if match.direction == "forward" else match.reach)


def _as_windows(window: object) -> Window | tuple[Window, Window]:
    if isinstance(window, (tuple, list)) and len(window) == 2:
        return as_window(window[0]), as_window(window[1])
    return as_window(window)


def _check_time(time: object) -> None:
    if time is None:
        return
    names = time if isinstance(time, tuple) else (time, time)
    if len(names) != 2 or not all(isinstance(name, str) and name for name in names):
        raise SpecError(f"time= takes a column name, or a pair (left name, right name), not {time!r}")
