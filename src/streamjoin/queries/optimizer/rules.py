"""The rules that improve a shared plan: pure functions of a plan and of what was measured (AJoin, section 4).

Rule 1, on arrival (phase 1): share a new query with what runs, whatever its selections. Of the orders of each driver
the one is taken whose steps the plan has most of already; the group is that of the queries that share its steps. Costs
come later, when there is something measured.

Rule 2, query grouping: groups of queries that are cheaper together than apart. Queries with one join key are compared.
Each in turn joins the group where it saves most, if it saves anything, or opens its own. From scratch all are placed;
otherwise those that changed, and the rest stays. One at a time they may not get to where all are together, so that is
looked at as well, and taken unless groups save enough beside it. Groups are numbered anew for each join key, so queries
with different joins and the same number still share the steps that they have in common.

Rule 3, join reordering: the order of joins, by iterative dynamic programming with shared cost. The cost of a plan is
the expected partial results of its steps, each shared step counted once; finding the cheapest plan of many queries is
NP-hard. Dynamic programming over the paths finds it where few steps can be shared in few ways. Where there are more
states than `STATES` allows, it goes on from those with the least shared cost, as the paper does: what a step leaves,
divided by the paths that could take it. The whole is taken if it saves enough of what the plan in force costs besides
its results, which are the same in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from streamjoin.queries.core.probe_plan import Choice, Order, PathKey, Paths, orders_of
from streamjoin.queries.language.condition_words import readable
from streamjoin.queries.language.join_key import JoinKey
from streamjoin.queries.language.plan import query_name
from streamjoin.queries.optimizer.cost import GroupCost, Union, path_rows, unite
from streamjoin.queries.optimizer.plans import Decision, Facts, Plan


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
        decisions.append(_joined(facts.queries[name], choice, shared))
    return plan.with_choices(choices), tuple(decisions)


def _joined(paths: Paths, choice: Choice, shared: int) -> Decision:
    """What to say of a query that has got its choice; `shared` of its steps run already."""
    name, total = paths.query.name, sum(len(order) - 1 for order in choice.orders)
    if not total:
        what = f"{query_name(name)} selects from {paths.query.sources[0].stream.name}"
        why = "other queries do, and values are looked up once for all" if shared else "it has no join step to share"
        return Decision("share_eagerly", what, why, queries=(name,))
    what = f"{query_name(name)} {'uses join steps of other queries' if shared else 'computes its own join steps'}"
    why = f"{shared} of its {total} steps run already" if shared else "no other query has them"
    return Decision("share_eagerly", what, why, {"shared steps": shared, "steps": total}, queries=(name,))


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


def group_by_cost(plan: Plan, facts: Facts) -> tuple[Plan, tuple[Decision, ...]]:
    """The plan with groups by cost; before anything is measured it stays."""
    if not facts.settings.grouping or not facts.statistics.streams:
        return plan, ()
    classes: dict[JoinKey, list[str]] = {}
    for name, paths in facts.queries.items():
        if paths.query.steps:
            classes.setdefault(paths.keyed.key, []).append(name)
    decisions: list[Decision] = []
    for key, names in classes.items():
        moving = [name for name in names if facts.scratch or name in plan.changed]
        if len(names) > 1 and moving:
            plan, decision = _regroup(plan, facts, key, names, moving)
            decisions.append(decision)
    return plan, tuple(decisions)


def _regroup(plan: Plan, facts: Facts, key: JoinKey, names: list[str], moving: list[str]) -> tuple[Plan, Decision]:
    cost = GroupCost(key, facts.statistics, facts.settings.group_cost)
    members = {name: cost.union(facts.queries[name].selections) for name in names}
    now = {name: plan.choices[name].group for name in names}
    alone = {name: cost.of(union) for name, union in members.items()}
    chosen = set(moving)
    staying = {name: group for name, group in now.items() if name not in chosen}
    found = _place_queries(staying, {name: alone[name] for name in moving}, members, cost)
    together = dict.fromkeys(names, min(now.values()))
    before = _total(now, members, cost)
    grouped, united = (before if groups == now else _total(groups, members, cost) for groups in (found, together))
    enough = 1 - facts.settings.hysteresis
    placed, after = (found, grouped) if grouped <= enough * united else (together, united)
    figures = {
        "cost before": before,
        "cost after": after,
        "cost apart": sum(alone.values()),
        "queries": len(names),
    }
    count, join = len(set(placed.values())), _named(key)
    if placed == now or after > before * (1.0 if placed is together else enough):
        why = "another grouping saves too little" if grouped < before else "nothing is cheaper"
        return plan, Decision(
            "group_by_cost", f"{join}: groups stay", why, figures, queries=tuple(names), changed=False
        )
    choices = {name: replace(plan.choices[name], group=group) for name, group in placed.items()}
    what = f"{join}: {len(names)} queries in {count} group{'s' if count > 1 else ''}"
    why = "it is cheaper than the groups before"
    return plan.with_choices(choices), Decision("group_by_cost", what, why, figures, queries=tuple(names))


def _named(key: JoinKey) -> str:
    terms = " and ".join(readable(str(term), key.streams) for term in (*key.equalities, *key.bands))
    return f"{' ⋈ '.join(key.streams)} by {terms or 'time alone'}"


def _place_queries(
    groups: dict[str, int], moving: dict[str, float], members: dict[str, Union], cost: GroupCost
) -> dict[str, int]:
    """The groups with those that move placed one by one; what each of these costs alone is known."""
    held = _unions(groups, members)
    costs = {group: cost.of(union) for group, union in held.items()}
    placed = dict(groups)
    for name, alone in moving.items():
        own = members[name]
        joined = {group: unite(union, own) for group, union in held.items()}
        after = {group: cost.of(union) for group, union in joined.items()}
        best = max(after, key=lambda group: costs[group] + alone - after[group], default=None)
        if best is None or costs[best] + alone <= after[best]:
            best = next(number for number in range(len(held) + 1) if number not in held)
        held[best], costs[best] = joined.get(best, own), after.get(best, alone)
        placed[name] = best
    return placed


def _total(groups: dict[str, int], members: dict[str, Union], cost: GroupCost) -> float:
    return sum(map(cost.of, _unions(groups, members).values()))


def _unions(groups: dict[str, int], members: dict[str, Union]) -> dict[int, Union]:
    held: dict[int, Union] = {}
    for name, group in groups.items():
        held[group] = unite(held[group], members[name]) if group in held else members[name]
    return held


_Driver = tuple[str, str]
"""A path: the query and the alias that drives."""
STATES: Final = 5_000
"""The most states that planning looks at, over all paths and their orders."""


def reorder_joins(plan: Plan, facts: Facts) -> tuple[Plan, tuple[Decision, ...]]:
    """The plan with orders by shared cost; before anything is measured it stays."""
    if not facts.settings.reordering or not facts.statistics.streams:
        return plan, ()
    options = {
        (name, driver): _options(plan, facts, name, driver)
        for name, paths in facts.queries.items()
        if len(paths.query.aliases) > 2 and (facts.scratch or name in plan.changed)
        for driver in paths.query.aliases
    }
    if not options:
        return plan, ()
    staying = {name: choice for name, choice in plan.choices.items() if (name, choice.orders[0][0]) not in options}
    most = max(1, STATES // sum(map(len, options.values())))
    chosen = choose_orders(options, _step_rows(staying, facts), most)
    names = dict.fromkeys(name for name, _ in chosen)
    reordered = plan.with_choices(
        {
            name: Choice(
                plan.choices[name].group, tuple(chosen[name, driver] for driver in facts.queries[name].query.aliases)
            )
            for name in names
        }
    )
    before, after = (plan_cost(p, facts) for p in (plan, reordered))
    figures = {"cost before": before, "cost after": after, "queries": len(names)}
    enough = facts.settings.hysteresis * (before - _result_rows(plan, facts))
    if reordered.choices == plan.choices or after >= before or before - after < enough:
        why = "nothing is cheaper" if reordered.choices == plan.choices else "another order saves too little"
        return plan, (Decision("reorder_joins", "orders stay", why, figures, queries=tuple(names), changed=False),)
    moved = tuple(name for name in names if reordered.choices[name] != plan.choices[name])
    what = f"{len(moved)} queries join in another order"
    return reordered, (Decision("reorder_joins", what, "its shared cost is less", figures, queries=moved),)


def plan_cost(plan: Plan, facts: Facts) -> float:
    """The expected partial results of a batch, each shared step once, at the most that one of its queries expects."""
    return sum(_step_rows(plan.choices, facts).values())


def _result_rows(plan: Plan, facts: Facts) -> float:
    """The part of the cost that are results."""
    last: dict[PathKey, float] = {}
    for name, choice in plan.choices.items():
        paths = facts.queries[name]
        for order in choice.orders:
            key = paths.keys(choice.group, order)[-1]
            rows = path_rows(paths.of(order), paths.query, facts.statistics)[-1]
            last[key] = max(rows, last.get(key, 0.0))
    return sum(last.values())


def cost_apart(plan: Plan, facts: Facts) -> float:
    """The same with every query on its own."""
    return sum(
        sum(path_rows(facts.queries[name].of(order), facts.queries[name].query, facts.statistics))
        for name, choice in plan.choices.items()
        for order in choice.orders
    )


def _step_rows(choices: Mapping[str, Choice], facts: Facts) -> dict[PathKey, float]:
    expected_rows: dict[PathKey, float] = {}
    for name, choice in choices.items():
        paths = facts.queries[name]
        for order in choice.orders:
            path = paths.of(order)
            expected = path_rows(path, paths.query, facts.statistics)
            for key, rows in zip(paths.keys(choice.group, order), expected, strict=True):
                expected_rows[key] = max(rows, expected_rows.get(key, 0.0))
    return expected_rows


def choose_orders(
    options: Mapping[_Driver, Sequence[Option]], paid: Mapping[PathKey, float], most: int
) -> dict[_Driver, Order]:
    """An order for every path, such that the steps of all together are cheapest; `paid` are those that run anyway.

    Paths come one after the other. A state holds the orders of the paths so far, their cost, and the steps among
    theirs that later paths could take as well; of states with the same such steps the cheapest is kept. With no more
    than `most` states at any time the choice is the best there is. Beyond that the most promising go on: those
    whose shared cost is least, in which an open step counts by the paths that may still take it.
    """
    takers = Counter(key for choices in options.values() for key in {k for o in choices for k, _ in o.steps})
    states = [_State(0.0, {key: rows for key, rows in paid.items() if takers[key]}, None)]
    for driver in _by_neighbours(options):
        choices = options[driver]
        takers.subtract({key for option in choices for key, _ in option.steps})
        cheapest: dict[frozenset[tuple[PathKey, float]], _State] = {}
        for state in states:
            for option in choices:
                after = state.after(driver, option, takers)
                key = frozenset(after.steps.items())
                if key not in cheapest or after.cost < cheapest[key].cost:
                    cheapest[key] = after
        states = list(cheapest.values())
        if len(states) > most:
            states = sorted(states, key=lambda state: state.shared_cost(takers))[:most]
    return dict(min(states, key=lambda state: state.cost).chosen())


@dataclass(frozen=True)
class Option:
    """An order of a path: its steps, with the partial results that each is expected to leave."""

    order: Order
    steps: tuple[tuple[PathKey, float], ...]


@dataclass(frozen=True)
class _State:
    """Paths with their orders, the last first: the cost of their steps, and those that others may take."""

    cost: float
    steps: Mapping[PathKey, float]
    last: tuple[_Driver, Order, _State] | None

    def after(self, driver: _Driver, option: Option, takers: Mapping[PathKey, int]) -> _State:
        steps, cost = dict(self.steps), self.cost
        for key, rows in option.steps:
            known = steps.get(key, 0.0)
            cost += max(0.0, rows - known)
            steps[key] = max(rows, known)
        return _State(cost, {key: rows for key, rows in steps.items() if takers[key]}, (driver, option.order, self))

    def shared_cost(self, takers: Mapping[PathKey, int]) -> float:
        saved = sum(rows * (1 - 1 / (1 + takers[key])) for key, rows in self.steps.items())
        return self.cost - saved

    def chosen(self) -> Iterator[tuple[_Driver, Order]]:
        state: _State = self
        while state.last is not None:
            driver, order, state = state.last
            yield driver, order


def _by_neighbours(options: Mapping[_Driver, Sequence[Option]]) -> list[_Driver]:
    """The paths, those that can share steps next to each other: the sooner a step is closed, the fewer states."""
    numbers: dict[PathKey, int] = {}
    first = {
        driver: min(numbers.setdefault(option.steps[0][0], len(numbers)) for option in choices)
        for driver, choices in options.items()
    }
    return sorted(options, key=lambda driver: first[driver])


def _options(plan: Plan, facts: Facts, name: str, driver: str) -> tuple[Option, ...]:
    paths, group = facts.queries[name], plan.choices[name].group
    options: dict[tuple[PathKey, ...], Option] = {}
    for order in orders_of(paths.query, driver):
        rows = path_rows(paths.of(order), paths.query, facts.statistics)
        keys = paths.keys(group, order)
        # Orders that differ only by equal aliases are the same.
        options.setdefault(keys, Option(order, tuple(zip(keys, rows, strict=True))))
    return tuple(options.values())
