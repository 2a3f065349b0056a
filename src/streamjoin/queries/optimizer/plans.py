"""What rules take and give: a plan, the facts it is judged by, and decisions with their figures.

A plan chooses a group and the orders of probing for each query. Every plan gives the same rows: rules
change costs only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from streamjoin.model.errors import SpecError
from streamjoin.queries.core.probe_plan import Choice, Paths, orders_of
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.optimizer.cost import Statistics


@dataclass(frozen=True)
class Plan:
    """The choice for each query; `changed` are the queries created or dropped since the last plan from scratch."""

    choices: Mapping[str, Choice] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()

    def with_choices(self, choices: Mapping[str, Choice]) -> Plan:
        """The plan with some choices replaced."""
        return Plan({**self.choices, **choices}, self.changed)

    @property
    def groups(self) -> dict[int, tuple[str, ...]]:
        """The queries of each group."""
        members: dict[int, list[str]] = {}
        for name, choice in self.choices.items():
            members.setdefault(choice.group, []).append(name)
        return {group: tuple(names) for group, names in sorted(members.items())}


def check_plan(plan: Plan, queries: Mapping[str, Paths]) -> None:
    """Refuse a plan that does not fit the queries.

    Raises:
        SpecError: a query has no choice, a choice has no query, or an order is none of its query.
    """
    if set(plan.choices) != set(queries):
        raise SpecError(f"the plan has choices for {sorted(plan.choices)}, but there are {sorted(queries)}")
    for name, choice in plan.choices.items():
        query = queries[name].query
        if tuple(order[0] for order in choice.orders) != query.aliases:
            raise SpecError(f"query {name!r} needs one order for each of {query.aliases}, not {choice.orders}")
        for order in choice.orders:
            if order not in orders_of(query, order[0]):
                raise SpecError(f"query {name!r} can't be joined in the order {order}")


@dataclass(frozen=True)
class Decision:
    """What a rule did or left, for which queries, why, and the figures that it went by."""

    rule: str
    what: str
    why: str
    figures: Mapping[str, float] = field(default_factory=dict)
    batch: int = -1
    queries: tuple[str, ...] = ()
    changed: bool = True
    """Whether the plan is another one now."""

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value:,.4g}" for name, value in self.figures.items())
        return f"batch {self.batch}: {self.what}, because {self.why}" + (f" ({figures})" if figures else "")


@dataclass(frozen=True)
class Facts:
    """What a rule may look at."""

    queries: Mapping[str, Paths]
    statistics: Statistics
    settings: Settings
    scratch: bool = False
    """Whether everything is planned anew, not only what changed."""


Rule = Callable[[Plan, Facts], tuple[Plan, tuple[Decision, ...]]]
