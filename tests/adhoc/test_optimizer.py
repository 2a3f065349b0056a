"""Each rule of the optimizer: what it makes of a plan, and that both plans give the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import pytest

from streamjoin.adhoc.core.changes import Create, Drop
from streamjoin.adhoc.core.probe_plan import Choice
from streamjoin.adhoc.core.running_plan import steps_of
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.core.shared import Shared
from streamjoin.adhoc.optimizer.cost import GroupCost, join_cost, merged
from streamjoin.adhoc.optimizer.eager import share_eagerly
from streamjoin.adhoc.optimizer.grouping import group_by_cost
from streamjoin.adhoc.optimizer.optimizer import RULES
from streamjoin.adhoc.optimizer.ordering import cost_apart, plan_cost, reorder_joins
from streamjoin.adhoc.optimizer.plans import Facts, Plan, Rule
from streamjoin.model.errors import SpecError
from tests.adhoc.core_cases import rows_of
from tests.adhoc.optimizer_cases import CHAIN, DISJOINT, NEVER_BY_ITSELF, PAIR, SAME, running, tables


def facts_of(core: Shared, scratch: bool = True) -> Facts:
    state = core.snapshot()
    optimizer = state.optimizer.measured(state.registry, state.buckets)
    return Facts(state.registry.paths, optimizer.statistics, core.settings, scratch)


def both_forms(texts: Sequence[str], rule: Rule) -> tuple[Plan, Plan]:
    """The plans before and after a rule, which give the same rows."""
    cores = [running(texts), running(texts)]
    before = cores[0].plan
    after, decisions = rule(before, facts_of(cores[1]))
    assert decisions and all(decision.why and decision.figures and decision.queries for decision in decisions)
    cores[1].adopt(after)
    total = 0
    for batch in range(2, 4):
        found = [{n: rows_of(table) for n, table in c.process(batch, tables(batch, 100)).items()} for c in cores]
        assert found[0] == found[1]
        total += sum(sum(rows.values()) for rows in found[0].values())
    assert total > 100
    return before, after


def test_the_rules_run_in_the_order_of_the_paper() -> None:
    assert (share_eagerly, group_by_cost, reorder_joins) == RULES


def test_a_query_is_shared_on_arrival() -> None:
    core = running([CHAIN])
    core.apply([Create("new", f"{PAIR} a.p > 50"), Create("other", CHAIN.replace("a.k = b.k", "a.p = b.p"))])
    said = {decision.what.split()[0]: decision for decision in core.snapshot().optimizer.decisions}
    assert said["new"].figures == {"shared steps": 2, "steps": 2}
    assert said["other"].figures["shared steps"] > 0
    steps = list(steps_of(core._execution.meetings))
    assert len(steps) == len({step.key for step in steps})
    assert any(len(step.queries) > 1 for step in steps)


def test_disjoint_selections_get_groups_of_their_own() -> None:
    before, after = both_forms(DISJOINT, group_by_cost)
    assert len(before.groups) == 1
    assert len(after.groups) == len(DISJOINT)


def test_alike_selections_stay_together() -> None:
    apart = {f"q{n}": Choice(n, (("a", "b"), ("b", "a"))) for n in range(len(SAME))}
    core = running(SAME)
    together, decisions = group_by_cost(Plan(apart), facts_of(core))
    assert len(together.groups) == 1
    assert decisions[0].figures["cost after"] < decisions[0].figures["cost before"]
    again, decisions = group_by_cost(together, facts_of(core))
    assert again is together and decisions[0].why == "nothing is cheaper"


def test_joins_are_reordered_by_what_they_leave() -> None:
    before, after = both_forms([CHAIN], reorder_joins)
    assert ("a", "b", "c") in before.choices["q0"].orders
    assert ("a", "c", "b") in after.choices["q0"].orders


def test_a_shared_step_is_worth_a_detour() -> None:
    core = running([CHAIN] + [CHAIN.replace("a.u = c.u", f"a.u = c.u AND a.p <> c.p + {n}") for n in range(3)])
    facts = facts_of(core)
    plan, _ = reorder_joins(core.plan, facts)
    assert plan_cost(plan, facts) <= plan_cost(core.plan, facts)
    assert plan_cost(plan, facts) < cost_apart(plan, facts)


def test_a_small_gain_changes_nothing() -> None:
    core = running(DISJOINT)
    facts = facts_of(core)
    timid = replace(facts, settings=replace(core.settings, hysteresis=0.99))
    for rule in (group_by_cost, reorder_joins):
        assert rule(core.plan, timid)[0] is core.plan
    assert group_by_cost(core.plan, timid)[1][0].why == "another grouping saves too little"
    assert group_by_cost(core.plan, facts)[0] is not core.plan


def test_only_what_changed_moves_until_half_did() -> None:
    core = running(DISJOINT, replace(NEVER_BY_ITSELF, hysteresis=0.0))
    core.replan()
    assert not core.plan.changed
    before = core.plan.choices
    core.apply([Drop("q9"), Create("new", DISJOINT[9])])
    facts = facts_of(core, scratch=False)
    after, _ = group_by_cost(core.plan, facts)
    assert {name: after.choices[name] for name in before if name != "q9"} == {
        n: c for n, c in before.items() if n != "q9"
    }
    assert core.plan.changed == {"q9", "new"}


@pytest.mark.parametrize(("changes", "scratch"), [(2, False), (7, True)])
def test_half_of_the_queries_changed_is_a_plan_from_scratch(changes: int, scratch: bool) -> None:
    core = running(DISJOINT, Settings(replan_every=1, hysteresis=0.0, group_cost=0))
    core.process(2, tables(2, 50))
    assert not core.plan.changed
    core.apply([Create(f"new{n}", DISJOINT[n]) for n in range(changes)])
    core.apply([Drop(f"q{n}") for n in range(changes)])
    core.adopt(replace(core.plan, choices={name: replace(c, group=0) for name, c in core.plan.choices.items()}))
    core.process(3, tables(3, 50))
    assert not core.plan.changed
    # Those that did not change stayed in the group they had been put in, unless everything was planned anew.
    stayed = [core.plan.choices[f"q{n}"].group for n in range(changes, 10)]
    assert (set(stayed) == {0}) is not scratch


def test_tuples_that_change_move_queries_that_did_not() -> None:
    core = running(DISJOINT, Settings(replan_every=1, rebuild_every=4, hysteresis=0.0, group_cost=0))
    assert not core.plan.changed
    together = {name: replace(choice, group=0) for name, choice in core.plan.choices.items()}
    core.adopt(Plan(together))
    core.process(2, tables(2, 50))
    assert core.plan.choices == together, "the third look is for what changed"
    core.process(3, tables(3, 50))
    assert len(core.plan.groups) > 1, "the fourth for everything"


def test_sharing_everything_never_replans() -> None:
    core = running(DISJOINT, Settings(sharing="everything", replan_every=1))
    core.replan()
    assert len(core.plan.groups) == 1


def test_a_plan_that_does_not_fit_is_refused() -> None:
    core = running([CHAIN])
    for choices in (
        {},
        {"q0": Choice(0, (("a", "b", "c"),))},
        {"q0": Choice(0, (("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")))},
    ):
        with pytest.raises(SpecError):
            core.adopt(Plan(choices))


def test_the_cost_is_equation_2() -> None:
    assert join_cost((100, 50), (300, 200), (10, 20)) == 150 + 10 + 0.25 * (100 * 200 + 50 * 300) / 20
    core = running(DISJOINT)
    facts = facts_of(core)
    queries = [facts.queries[f"q{n}"] for n in range(10)]
    cost = GroupCost(queries[0].keyed.key, facts.statistics, overhead=7)
    unions = [cost.union(query.selections) for query in queries]
    apart = [cost.of(union) for union in unions]
    # Disjoint: the union has all tuples, 600 a batch and 1200 held of each stream, 5 keys; sets cost half a probe.
    whole = cost.of(reduce(merged, unions))
    assert whole == pytest.approx(7 + 600 + 1200 + 5 + 0.25 * 2 * 600 * 1200 / 5)
    assert sum(apart) < whole


def test_a_group_must_be_worth_its_overhead() -> None:
    core = running(DISJOINT, replace(NEVER_BY_ITSELF, group_cost=1_000_000))
    plan, decisions = group_by_cost(core.plan, facts_of(core))
    assert plan is core.plan and decisions[0].why == "nothing is cheaper"
