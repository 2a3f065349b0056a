"""Rule 1, on arrival: share a new query with what runs, whatever its selections (AJoin, section 4, phase 1).

Of the orders of each driver the one is taken whose steps the plan has most of already; the group is that of the queries
that share its steps. Costs come later, when there is something measured.
"""

from __future__ import annotations

from streamjoin.adhoc.core.probe_plan import Choice, PathKey, Paths, orders_of
from streamjoin.adhoc.language.plan import query_name
from streamjoin.adhoc.optimizer.plans import Decision, Facts, Plan


def share_eagerly(plan: Plan, facts: Facts) -> tuple[Plan, tuple[Decision, ...]]:
    """Give every query without a choice one."""
    new = [name for name in facts.queries if name not in plan.choices]
    if not new:
        return plan, ()
    known, groups = known_steps(plan, facts), set(plan.groups)
    decisions, choices = [], {}
    for name in new:
        choice, shared = _choice(facts.queries[name], known, sorted(groups) or [0])
        choices[name] = choice
        groups.add(choice.group)
        known.update(*(facts.queries[name].keys(choice.group, order) for order in choice.orders))
        total = sum(len(order) - 1 for order in choice.orders)
        why = f"{shared} of its {total} steps run already" if shared else "it has no step in common with another query"
        what = f"{query_name(name)} joins group {choice.group}"
        figures = {"shared steps": shared, "steps": total}
        decisions.append(Decision("share_eagerly", what, why, figures, queries=(name,)))
    return plan.with_choices(choices), tuple(decisions)


def known_steps(plan: Plan, facts: Facts) -> set[PathKey]:
    """The steps that the plan has."""
    return {
        key
        for name, choice in plan.choices.items()
        for order in choice.orders
        for key in facts.queries[name].keys(choice.group, order)
    }


def _choice(paths: Paths, known: set[PathKey], groups: list[int]) -> tuple[Choice, int]:
    best: tuple[int, Choice] | None = None
    for group in groups:
        orders, shared = [], 0
        for driver in paths.query.aliases:
            counted = [
                (sum(key in known for key in paths.keys(group, order)), order)
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
