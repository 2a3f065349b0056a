"""Rule 3: the order of joins, by iterative dynamic programming with shared cost (AJoin, section 4, join reordering).

In iteration i every path chooses its step i: the one whose expected partial results, divided by the paths that could
take the very same step, are fewest. Chosen steps are fixed, the next iteration builds on them. The whole is taken if
its cost, each distinct step counted once, is lower than that of the plan in force.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from streamjoin.adhoc.core.probe_plan import Choice, Order, PathKey, orders_of
from streamjoin.adhoc.optimizer.cost import path_rows
from streamjoin.adhoc.optimizer.plans import Decision, Facts, Plan

_Driver = tuple[str, str]


def reorder_joins(plan: Plan, facts: Facts) -> tuple[Plan, tuple[Decision, ...]]:
    """The plan with orders by shared cost; before anything is measured it stays."""
    if not facts.settings.reordering or not facts.statistics.streams:
        return plan, ()
    open_orders = {
        (name, driver): orders_of(paths.query, driver)
        for name, paths in facts.queries.items()
        if len(paths.query.aliases) > 2 and (facts.scratch or name in plan.changed)
        for driver in paths.query.aliases
    }
    if not open_orders:
        return plan, ()
    chosen = _iterated(plan, facts, open_orders)
    names = dict.fromkeys(name for name, _ in chosen)
    found = plan.with_choices(
        {
            name: Choice(
                plan.choices[name].group, tuple(chosen[name, driver] for driver in facts.queries[name].query.aliases)
            )
            for name in names
        }
    )
    before, after = (plan_cost(p, facts, results=False) for p in (plan, found))
    figures = {"cost before": before, "cost after": after, "queries": len(names)}
    if found.choices == plan.choices or after > before * (1 - facts.settings.hysteresis):
        why = "nothing is cheaper" if found.choices == plan.choices else "another order saves too little"
        return plan, (Decision("reorder_joins", "orders stay", why, figures, queries=tuple(names)),)
    moved = tuple(name for name in names if found.choices[name] != plan.choices[name])
    what = f"{len(moved)} queries join in another order"
    return found, (Decision("reorder_joins", what, "its shared cost is less", figures, queries=moved),)


def plan_cost(plan: Plan, facts: Facts, *, results: bool = True) -> float:
    """The expected partial results of a batch, each shared step once, at the most that one of its queries expects.

    Without `results` the last steps of paths don't count: what they leave is the same in every order.
    """
    return sum(_step_rows(plan.choices, facts, results).values())


def cost_apart(plan: Plan, facts: Facts) -> float:
    """The same with every query on its own."""
    return sum(
        sum(path_rows(facts.queries[name].of(order), facts.queries[name].query, facts.statistics))
        for name, choice in plan.choices.items()
        for order in choice.orders
    )


def _step_rows(choices: Mapping[str, Choice], facts: Facts, results: bool) -> dict[PathKey, float]:
    found: dict[PathKey, float] = {}
    for name, choice in choices.items():
        paths = facts.queries[name]
        for order in choice.orders:
            path = paths.of(order)
            expected = path_rows(path, paths.query, facts.statistics)
            for length, rows in enumerate(expected if results else expected[:-1], 1):
                key = path.key(choice.group, length)
                found[key] = max(rows, found.get(key, 0.0))
    return found


def _iterated(plan: Plan, facts: Facts, open_orders: dict[_Driver, list[Order]]) -> dict[_Driver, Order]:
    left = dict(open_orders)
    longest = max(len(orders[0]) for orders in left.values())
    for length in range(1, longest):
        takers = Counter(
            key for (name, _), orders in left.items() for key in dict.fromkeys(_keys(plan, facts, name, orders, length))
        )
        # What runs already and stays is shared too.
        for name, choice in plan.choices.items():
            if (name, facts.queries[name].query.aliases[0]) not in left:
                takers.update(_keys(plan, facts, name, choice.orders, length))
        for driver, orders in left.items():
            left[driver] = _cheapest(plan, facts, driver[0], orders, length, takers)
    return {driver: orders[0] for driver, orders in left.items()}


def _keys(plan: Plan, facts: Facts, name: str, orders: Iterable[Order], length: int) -> Iterable[PathKey]:
    paths, group = facts.queries[name], plan.choices[name].group
    return (paths.of(order).key(group, length) for order in orders if length < len(order))


def _cheapest(
    plan: Plan, facts: Facts, name: str, orders: list[Order], length: int, takers: Counter[PathKey]
) -> list[Order]:
    """The orders that have the cheapest step at this length; all, where paths are shorter."""
    if length >= len(orders[0]):
        return orders
    paths, group = facts.queries[name], plan.choices[name].group
    costs: dict[PathKey, float] = {}
    for order in orders:
        path = paths.of(order)
        key = path.key(group, length)
        if key not in costs:
            costs[key] = path_rows(path, paths.query, facts.statistics)[length - 1] / takers[key]
    best = min(costs, key=lambda key: costs[key])
    return [order for order in orders if paths.of(order).key(group, length) == best]
