"""`Summary`: for every left tuple one row with aggregates of the right tuples around it in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streamjoin.model import durations
from streamjoin.model.errors import ExpressionError, SpecError
from streamjoin.model.expression.node import Expression
from streamjoin.model.window import TimeWindow, read_length

Bound = durations.Duration | durations.WholeNumber
_EXAMPLE = '{"n": "count(*)", "mid": "avg(r.bid)"}'


@dataclass(frozen=True, init=False)
class Summary:
    """Summarise, for every left tuple, the right tuples for which `on` holds and that are near it in time.

    Args:
        summaries: the new columns by name, each an expression of aggregates in SQL: count(*), count(x), sum, avg, min,
            max, first and last of an expression over `r.` columns, whose cost does not grow with the matches where
            `on` is equalities or None; and by enumerating matches count(DISTINCT x), arg_min(x, y), arg_max(x, y),
            var_samp, var_pop, stddev_samp, stddev_pop, median, quantile(x, p), and any of them over `l.` columns too.
        between: the first and the last time that count, both inclusive, relative to the left tuple's: durations with
            or without a sign, or whole numbers in the unit of an integer time column. ("-10 s", "-5 s") lies before the
            left tuple, ("1 s", "5 s") after it.
        prevailing: also count the right tuple in force at the window's start: the newest before it, unless one lies
            exactly on it. For equalities, or no `on`.
        itself: in a self-join, whether a tuple counts for itself, as in a rolling window of pandas.

    >>> str(Summary({"n": "count(*)"}, between=("-5 seconds", "1 second")))
    'n from -5 s to 1 s'
    """

    summaries: tuple[tuple[str, str], ...]
    between: tuple[int, int]
    is_duration: bool
    prevailing: bool
    itself: bool
    expressions: tuple[Expression, ...] = field(repr=False, compare=False)

    def __init__(
        self,
        summaries: Mapping[str, str],
        between: tuple[Bound, Bound],
        *,
        prevailing: bool = False,
        itself: bool = False,
    ) -> None:
        """Read the expressions and the bounds."""
        if not isinstance(summaries, Mapping) or not summaries:
            raise SpecError(f"Summary takes new columns and their aggregates, such as {_EXAMPLE}, not {summaries!r}")
        for name, flag in (("prevailing", prevailing), ("itself", itself)):
            if not isinstance(flag, bool):
                raise SpecError(f"Summary({name}={flag!r}): it is True or False")
        self._fill(summaries, [_parsed(*item) for item in summaries.items()], between, prevailing, itself)

    @classmethod
    def of(
        cls, expressions: Mapping[str, Expression], between: tuple[Bound, Bound], *, prevailing: bool = False
    ) -> Summary:
        """Summaries that are expressions already."""
        summary = object.__new__(cls)
        texts = {name: str(expression) for name, expression in expressions.items()}
        summary._fill(texts, list(expressions.values()), between, prevailing, False)
        return summary

    def _fill(
        self,
        summaries: Mapping[str, str],
        expressions: Sequence[Expression],
        between: tuple[Bound, Bound],
        prevailing: bool,
        itself: bool,
    ) -> None:
        values, is_duration = _bounds(between)
        object.__setattr__(self, "summaries", tuple(summaries.items()))
        object.__setattr__(self, "expressions", tuple(expressions))
        object.__setattr__(self, "between", values)
        object.__setattr__(self, "is_duration", is_duration)
        object.__setattr__(self, "prevailing", prevailing)
        object.__setattr__(self, "itself", itself)

    @property
    def names(self) -> tuple[str, ...]:
        """The new columns."""
        return tuple(name for name, _ in self.summaries)

    @property
    def windows(self) -> tuple[TimeWindow, TimeWindow]:
        """How long a left and a right tuple can be needed."""
        lengths = [max(0, self.between[1]), max(0, -self.between[0])]
        left, right = (TimeWindow(f"{length} ns" if self.is_duration else length) for length in lengths)
        return left, right

    def columns(self, side: str) -> frozenset[str]:
        """The columns of a side, "l" or "r", that the expressions read."""
        return frozenset(c.name for expression in self.expressions for c in expression.columns if c.qualifier == side)

    def __repr__(self) -> str:
        flags = "".join(f", {name}=True" for name in ("prevailing", "itself") if getattr(self, name))
        bounds = tuple(map(self._bound, self.between)) if self.is_duration else self.between
        return f"Summary({dict(self.summaries)!r}, between={bounds!r}{flags})"

    def _bound(self, value: int) -> str:
        if not self.is_duration:
            return str(value)
        return "-" * (value < 0) + ("0 s" if value == 0 else durations.describe(abs(value)))

    def __str__(self) -> str:
        start, end = map(self._bound, self.between)
        more = [text for text, there in (("the one in force", self.prevailing), ("itself", self.itself)) if there]
        return ", ".join(self.names) + f" from {start} to {end}" + "".join(f", with {text}" for text in more)


def _parsed(name: object, text: object) -> Expression:
    from streamjoin.model.expression.parsing import parse_summary

    if not isinstance(name, str) or not name:
        raise SpecError(f"Summary: a new column's name is a text, not {name!r}")
    if not isinstance(text, str):
        raise SpecError(f"the summary {name!r} is a text such as 'avg(r.bid)', not {text!r}")
    try:
        return parse_summary(text)
    except ExpressionError as error:
        raise ExpressionError(f"the summary {name!r}: {error}") from error


def _bounds(between: object) -> tuple[tuple[int, int], bool]:
    if not isinstance(between, (tuple, list)) or len(between) != 2:
        raise SpecError(
            f"Summary(between={between!r}): give the first and the last time around the left tuple's, such as "
            "('-5 seconds', '1 second')"
        )
    (low, first), (high, second) = map(_bound, between)
    if first != second:
        raise SpecError(
            f"Summary(between={tuple(between)!r}): give two durations, or two whole numbers in the unit of an integer "
            "time column"
        )
    if low > high:
        raise SpecError(f"Summary(between={tuple(between)!r}): the first bound lies after the second one; swap them")
    return (low, high), first


def _bound(value: object) -> tuple[int, bool]:
    sign, rest = 1, value
    if isinstance(value, str):
        text = value.strip()
        sign, rest = (-1 if text.startswith("-") else 1), text.removeprefix("-" if text.startswith("-") else "+")
    try:
        length, is_duration = read_length(rest, "between=")
    except SpecError as error:
        raise SpecError(f"Summary(between=...): {error}; it may have a sign, as '-5 seconds'") from error
    return sign * length, is_duration
