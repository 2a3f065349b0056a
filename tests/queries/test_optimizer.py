"""Each rule of the optimizer: what it makes of a plan, and that both plans give the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.model.errors import SpecError
from streamjoin.queries.core.changes import Create, Drop
from streamjoin.queries.core.probe_plan import Choice, Order, Paths, orders_of
from streamjoin.queries.core.running_plan import steps_of
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.optimizer.cost import GroupCost, Statistics, StreamStatistics, join_cost, path_rows, unite
from streamjoin.queries.optimizer.optimizer import RULES
from streamjoin.queries.optimizer.plans import Facts, Plan, Rule, check_plan
from streamjoin.queries.optimizer.rules import (
    _options,
    choose_orders,
    cost_apart,
    group_by_cost,
    plan_cost,
    reorder_joins,
    share_eagerly,
)
from tests.queries.core_cases import rows_of
from tests.queries.optimizer_cases import CHAIN, DISJOINT, NEVER_BY_ITSELF, PAIR, SAME, STREAMS, running, tables
from tests.seeds import examples


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
    steps = list(steps_of(core._execution.first_joins))
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


FOUR = (
    "SELECT a.p AS x FROM a JOIN b WITHIN 9 UNITS ON a.k = b.k JOIN c WITHIN 9 UNITS ON a.k = c.k AND b.k = c.k "
    "JOIN b d WITHIN 9 UNITS ON d.u = c.u"
)
CHAINS = (
    "SELECT a.p AS x FROM a JOIN b WITHIN 9 UNITS ON a.k = b.k JOIN c WITHIN 9 UNITS ON b.u = c.u",
    "SELECT a.p AS x FROM a JOIN b WITHIN 9 UNITS ON a.k = b.k AND a.u = b.u JOIN c WITHIN 9 UNITS ON a.k = c.k",
    "SELECT a.p AS x FROM a JOIN b WITHIN 9 UNITS ON a.k = b.k",
    FOUR,
)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(CHAINS), st.integers(0, 1), st.integers(0, 90)), min_size=1, max_size=3),
    st.lists(st.integers(1, 1000), min_size=9, max_size=9),
    st.sets(st.integers(0, 2)),
)
def test_orders_are_the_best_there_are(
    drawn: list[tuple[str, int, int]], numbers: list[int], changed: set[int]
) -> None:
    """Against all plans of up to three queries, by cost; from scratch, and for some while the others stay."""
    core = Shared(STREAMS, NEVER_BY_ITSELF)
    core.apply([Create(f"q{n}", f"{text} WHERE a.p >= {least}") for n, (text, _, least) in enumerate(drawn)])
    statistics = Statistics(
        {
            stream.name: StreamStatistics(
                rate, 10 * rate, 100, distinct={("k", "integer"): few, ("u", "integer"): many}
            )
            for stream, rate, few, many in zip(STREAMS, numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        },
        1,
    )
    groups = {f"q{n}": group for n, (_, group, _) in enumerate(drawn)}
    plan = Plan(
        {name: replace(choice, group=groups[name]) for name, choice in core.plan.choices.items()},
        frozenset(f"q{n}" for n in changed),
    )
    queries = core.snapshot().registry.paths
    eager = replace(core.settings, hysteresis=0.0)
    for scratch in (True, False):
        facts = Facts(queries, statistics, eager, scratch)
        planned, _ = reorder_joins(plan, facts)
        check_plan(planned, queries)
        open_names = [n for n in queries if scratch or n in plan.changed]
        paths = [(name, alias) for name in open_names for alias in queries[name].query.aliases]
        # Paths of different streams or groups share nothing: each such part of a plan is tried on its own.
        parts: dict[object, list[tuple[str, str]]] = {}
        for name, alias in paths:
            where = queries[name].query.source(alias).stream.name, groups[name]
            parts.setdefault(where, []).append((name, alias))
        best = planned
        for part in parts.values():
            every = [orders_of(queries[name].query, alias) for name, alias in part]
            best = min(
                (with_orders(best, dict(zip(part, orders, strict=True)), queries) for orders in product(*every)),
                key=lambda other: plan_cost(other, facts),
            )
        assert plan_cost(planned, facts) == pytest.approx(plan_cost(best, facts))


def with_orders(plan: Plan, orders: dict[tuple[str, str], Order], queries: Mapping[str, Paths]) -> Plan:
    return plan.with_choices(
        {
            name: Choice(
                plan.choices[name].group,
                tuple(orders.get((name, order[0]), order) for order in plan.choices[name].orders),
            )
            for name in queries
        }
    )


def test_with_too_many_states_the_least_shared_cost_goes_on() -> None:
    core = running([CHAIN, CHAIN.replace("a.u = c.u", "a.u = c.u AND b.u = c.u")])
    facts = facts_of(core)
    queries = {name: paths.query for name, paths in facts.queries.items()}
    options = {
        (name, alias): _options(core.plan, facts, name, alias)
        for name, query in queries.items()
        for alias in query.aliases
    }
    for most in (1, 2, 1000):
        chosen = choose_orders(options, {}, most)
        check_plan(
            Plan({n: Choice(0, tuple(chosen[n, a] for a in query.aliases)) for n, query in queries.items()}),
            facts.queries,
        )


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
    whole = cost.of(reduce(unite, unions))
    assert whole == pytest.approx(7 + 600 + 1200 + 5 + 0.25 * 2 * 600 * 1200 / 5)
    assert sum(apart) < whole


def test_all_are_together_where_no_two_would_be() -> None:
    """Independent halves: two share too little to go together, and all of them are everything, eight times over."""
    halves = [", ".join(map(str, np.random.default_rng(n).permutation(100)[:50].tolist())) for n in range(8)]
    core = running([f"{PAIR} a.p IN ({half}) AND b.p IN ({half})" for half in halves])
    apart = Plan({name: replace(choice, group=n) for n, (name, choice) in enumerate(core.plan.choices.items())})
    facts = facts_of(core)
    one = facts.queries["q0"].keyed.key
    cost = GroupCost(one, facts.statistics, overhead=0)
    unions = [cost.union(facts.queries[f"q{n}"].selections) for n in range(8)]
    assert cost.of(unite(*unions[:2])) > cost.of(unions[0]) + cost.of(unions[1])
    plan, (decision,) = group_by_cost(apart, facts)
    assert set(plan.groups) == {0}
    assert decision.figures["cost after"] < 0.6 * decision.figures["cost before"]
    assert group_by_cost(core.plan, facts)[0] is core.plan


def test_bands_hold_what_samples_say() -> None:
    wide, narrow = "a.p - b.p BETWEEN -10 AND 10", "b.u - a.u BETWEEN 0 AND 2"
    texts = [f"SELECT a.p AS x FROM a JOIN b WITHIN 900 UNITS ON {band}" for band in (wide, narrow)]
    core = running(texts)
    facts = facts_of(core)
    for name, values, least, most in (("q0", 100, -10, 10), ("q1", 300, -2, 0)):
        key = facts.queries[name].keyed.key
        (band,) = key.bands
        a, b = np.divmod(np.arange(values * values), values)
        true = np.mean((a - b >= least) & (a - b <= most))
        assert facts.statistics.band_share((band, *key.streams)) == pytest.approx(true, rel=0.25)
        assert facts.statistics.band_share((band.flipped(), *key.streams[::-1])) == pytest.approx(true, rel=0.25)
        rows = sum(path_rows(facts.queries[name].of(("a", "b")), facts.queries[name].query, facts.statistics))
        assert rows == pytest.approx(600 * 1200 * true, rel=0.25)
    core.apply([Drop("q1"), Create("q1", texts[1].replace("AND 2", "AND 9"))])
    again = core.snapshot()
    later = again.optimizer.measured(again.registry, again.buckets).statistics.bands
    assert len(later) == 2 and set(later) != set(facts.statistics.bands)


def test_a_group_must_be_worth_its_overhead() -> None:
    core = running(DISJOINT, replace(NEVER_BY_ITSELF, group_cost=1_000_000))
    plan, decisions = group_by_cost(core.plan, facts_of(core))
    assert plan is core.plan and decisions[0].why == "nothing is cheaper"
