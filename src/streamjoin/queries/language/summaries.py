"""Window joins as a query says them: which tuples of a stream a left tuple's row summarises, and by which aggregates.

`bound` makes of a rule what the embedded engine makes of `sj.Summary`, so that both compute the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from streamjoin.model.binding import BoundSpec, bind
from streamjoin.model.errors import SpecError
from streamjoin.model.expression.aggregates import Aggregate, aggregate_type
from streamjoin.model.expression.canonical import renamed
from streamjoin.model.expression.nodes import And, Expression
from streamjoin.model.predicates import Theta
from streamjoin.model.spec import JoinSpec
from streamjoin.model.summary import Summary
from streamjoin.model.window import TimeWindow


@dataclass(frozen=True)
class SummaryRule:
    """Of a window join: the tuples from `low` to `high` around the time of `anchor`'s are summarised, both inclusive.

    The bounds are nanoseconds, or units of an integer time column. With `prevailing` the tuple in force at the window's
    start counts too.
    """

    anchor: str
    low: int
    high: int
    is_duration: bool
    prevailing: bool
    aggregates: tuple[Aggregate, ...] = ()

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise SpecError(f"a window from {self.low} to {self.high} ends before it begins")

    @property
    def before(self) -> int:
        """How much earlier than a left tuple its window may begin."""
        return max(0, -self.low)

    @property
    def after(self) -> int:
        """How much later than a left tuple its window may end."""
        return max(0, self.high)

    @property
    def window(self) -> TimeWindow:
        """How far apart in time a tuple and one that is summarised for it can be."""
        return self.reach(max(self.before, self.after))

    def reach(self, length: int) -> TimeWindow:
        """A window as long as this, in the unit of the bounds."""
        return TimeWindow(f"{length} ns" if self.is_duration else length)

    def schema(self, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
        """The types of the aggregates, whose names are their numbers; `schemas` are those of the aliases.

        Raises:
            SchemaError: an aggregate does not take such values.
        """
        return pa.schema([(str(n), aggregate_type(one, schemas)) for n, one in enumerate(self.aggregates)])


def bound(
    rule: SummaryRule,
    right: str,
    conditions: Sequence[Expression],
    schemas: Mapping[str, pa.Schema],
    times: tuple[str, str],
) -> BoundSpec:
    """The join that finds the summaries; its i-th new column is the i-th aggregate.

    Raises:
        SchemaError: the tuple in force is not known by `conditions`.
    """
    names = {rule.anchor: "l", right: "r"}
    own = {names[alias]: schemas[alias] for alias in (rule.anchor, right)}
    # Names that no column of the left side has.
    fields = own["l"].names
    prefix = "#"
    while any(name.startswith(prefix) for name in fields):
        prefix += "#"
    low, high = (f"{value} ns" if rule.is_duration else value for value in (rule.low, rule.high))
    spec = JoinSpec(
        on=_condition([renamed(one, names) for one in conditions]),
        time=times,
        how="left",
        match=Summary.of(
            {f"{prefix}{number}": renamed(one, names) for number, one in enumerate(rule.aggregates)},
            (low, high),
            prevailing=rule.prevailing,
        ),
    )
    return bind(spec, own["l"], own["r"])


def is_listed(join: BoundSpec) -> bool:
    """Whether the matches of a window join are looked at one by one."""
    plan = join.summary
    return plan is not None and (any(plan.enumerated) or not plan.by_equalities)


def _condition(conditions: Sequence[Expression]) -> Theta | None:
    if not conditions:
        return None
    return Theta.of(conditions[0] if len(conditions) == 1 else And(tuple(conditions)))
