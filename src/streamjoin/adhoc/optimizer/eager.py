"""Rule 1, on arrival: share a new query with what runs, whatever its selections (AJoin, section 4, phase 1).

Of the orders of each driver the one is taken whose steps the plan has most of already; the group is that of the queries
that share its steps. Costs come later, when there is something measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from streamjoin.adhoc.optimizer.plans import Decision, Facts, Plan
from streamjoin.adhoc.probe_plan import Choice, Order, PathKey, Paths, StepKey, orders_of

_Known = Counter[tuple[int, str, tuple[StepKey, ...]]]


def share_eagerly(plan: Plan, facts: Facts) -> tuple[Plan, tuple[Decision, ...]]:
    """Give every query without a choice one."""
    new = [name for name in facts.queries if name not in plan.choices]
    if not new:
        return plan, ()
    known = known_steps(plan, facts)
    decisions = []
    for name in new:
        choice, shared = _choice(facts.queries[name], known, sorted(plan.groups) or [0])
        plan = plan.with_choices({name: choice})
        count_steps(facts.queries[name], choice, known)
        total = sum(len(order) - 1 for order in choice.orders)
        why = f"{shared} of its {total} steps run already" if shared else "it has no step in common with another query"
        what = f"{name} joins group {choice.group}"
        decisions.append(Decision("share_eagerly", what, why, {"shared steps": shared, "steps": total}))
    return plan, tuple(decisions)


def known_steps(plan: Plan, facts: Facts) -> _Known:
    """How many paths pass through each step of the plan."""
    known: _Known = Counter()
    for name, choice in plan.choices.items():
        count_steps(facts.queries[name], choice, known)
    return known


def count_steps(paths: Paths, choice: Choice, known: _Known) -> None:
    """Add the steps of a choice."""
    for order in choice.orders:
        for key in _keys(paths, order, choice.group):
            known[key.group, key.driver, key.steps] += 1


def _keys(paths: Paths, order: Order, group: int) -> Iterable[PathKey]:
    path = paths.of(order)
    return (path.key(group, length) for length in range(1, len(path.steps) + 1))


def _choice(paths: Paths, known: _Known, groups: list[int]) -> tuple[Choice, int]:
    best: tuple[int, Choice] | None = None
    for group in groups:
        orders, shared = [], 0
        for driver in paths.query.aliases:
            counted = [
                (sum((key.group, key.driver, key.steps) in known for key in _keys(paths, order, group)), order)
                for order in orders_of(paths.query, driver)
            ]
            most = max(count for count, _ in counted)
            shared += most
            orders.append(next(order for count, order in counted if count == most))
        if best is None or shared > best[0]:
            best = shared, Choice(group, tuple(orders))
    if best is None:
        raise AssertionError("a query without a group to join")
    return best[1], best[0]
