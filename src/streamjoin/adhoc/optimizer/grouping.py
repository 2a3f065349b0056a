"""Rule 2: groups of queries that are cheaper together than apart (AJoin, section 4, query grouping).

Queries with one join key are compared. Each in turn joins the group where it saves most, if it saves anything, or opens
its own. From scratch all are placed; otherwise those that changed, and the rest stays. Groups are numbered anew for
each join key, so queries with different joins and the same number still share the steps that they have in common.
"""

from __future__ import annotations

from dataclasses import replace

from streamjoin.adhoc.language.join_key import JoinKey
from streamjoin.adhoc.optimizer.cost import GroupCost, Union, unite
from streamjoin.adhoc.optimizer.plans import Decision, Facts, Plan


def group_by_cost(plan: Plan, facts: Facts) -> tuple[Plan, tuple[Decision, ...]]:
    """The plan with groups by cost; before anything is measured it stays."""
    if not facts.settings.grouping or not facts.statistics.streams:
        return plan, ()
    classes: dict[JoinKey, list[str]] = {}
    for name, paths in facts.queries.items():
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
    placed = _place_queries({name: group for name, group in now.items() if name not in moving}, moving, members, cost)
    before, after = (_total(groups, members, cost) for groups in (now, placed))
    apart = sum(map(cost.of, members.values()))
    figures = {"cost before": before, "cost after": after, "cost apart": apart, "queries": len(names)}
    count = len(set(placed.values()))
    if placed == now or after > before * (1 - facts.settings.hysteresis):
        why = "nothing is cheaper" if placed == now else "another grouping saves too little"
        return plan, Decision("group_by_cost", f"{key}: groups stay", why, figures, queries=tuple(names), changed=False)
    choices = {name: replace(plan.choices[name], group=group) for name, group in placed.items()}
    what = f"{key}: {len(names)} queries in {count} group{'s' if count > 1 else ''}"
    why = "it is cheaper by equation 2"
    return plan.with_choices(choices), Decision("group_by_cost", what, why, figures, queries=tuple(names))


def _place_queries(
    groups: dict[str, int], moving: list[str], members: dict[str, Union], cost: GroupCost
) -> dict[str, int]:
    held = _unions(groups, members)
    costs = {group: cost.of(union) for group, union in held.items()}
    placed = dict(groups)
    for name in moving:
        own = members[name]
        alone = cost.of(own)
        saved = {group: costs[group] + alone - cost.of(unite(union, own)) for group, union in held.items()}
        best = max(saved, key=lambda group: saved[group], default=None)
        if best is None or saved[best] <= 0:
            best = next(number for number in range(len(held) + 1) if number not in held)
        held[best] = unite(held[best], own) if best in held else own
        costs[best] = cost.of(held[best])
        placed[name] = best
    return placed


def _total(groups: dict[str, int], members: dict[str, Union], cost: GroupCost) -> float:
    return sum(map(cost.of, _unions(groups, members).values()))


def _unions(groups: dict[str, int], members: dict[str, Union]) -> dict[int, Union]:
    held: dict[int, Union] = {}
    for name, group in groups.items():
        held[group] = unite(held[group], members[name]) if group in held else members[name]
    return held
