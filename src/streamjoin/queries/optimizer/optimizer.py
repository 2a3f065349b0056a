"""When rules run, and what came of them: the plan in force, the statistics, the last decisions.

On a change new queries are shared eagerly. Every few batches the costs are looked at: for what changed since, or for
everything once half of the queries changed (AJoin, section 4), and now and then because tuples change too. The
invariant: an optimizer never changes; each call gives a new one, whose `plan` is the same object iff nothing has to be
built anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.changes import QueryRegistry
from streamjoin.queries.core.probe_plan import Paths
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.language.plan import query_name
from streamjoin.queries.optimizer.cost import Statistics, measure
from streamjoin.queries.optimizer.plans import Decision, Facts, Plan, Rule
from streamjoin.queries.optimizer.rules import group_by_cost, reorder_joins, share_eagerly

RULES: Final[tuple[Rule, ...]] = (share_eagerly, group_by_cost, reorder_joins)
"""All rules, in the order in which they run."""


@dataclass(frozen=True)
class Optimizer:
    """The plan in force, with the statistics and decisions that led to it."""

    settings: Settings
    plan: Plan = field(default_factory=Plan)
    statistics: Statistics = field(default_factory=Statistics)
    decisions: tuple[Decision, ...] = ()

    def after_changes(self, queries: Mapping[str, Paths], batch: int, gone: Set[str] = frozenset()) -> Optimizer:
        """With queries that came placed, and those that went taken out.

        What is `gone` is taken out though a query of its name is there: the choice for the one may not fit the other.
        """
        choices = self.plan.choices
        kept = {name: choice for name, choice in choices.items() if name in queries and name not in gone}
        gone = set(choices) - set(kept)
        came = set(queries) - set(kept)
        plan = Plan(kept, self.plan.changed | gone | came)
        plan, decisions = share_eagerly(plan, Facts(queries, self.statistics, self.settings))
        return self._with(plan, decisions, batch)

    def after_batch(self, registry: QueryRegistry, buckets: Mapping[str, tuple[Bucket, ...]], batch: int) -> Optimizer:
        """With the batch measured, and a new plan if it is time for one and one is better."""
        if not self.settings.replans:
            return self
        turn = (self.statistics.batches + 1) % self.settings.replan_every == 0
        if not turn or not (self.plan.changed or self._scratch(len(registry.queries), 1)):
            return replace(self, statistics=replace(self.statistics, batches=self.statistics.batches + 1))
        return self.measured(registry, buckets).replanned(registry.paths, batch)

    def measured(self, registry: QueryRegistry, buckets: Mapping[str, tuple[Bucket, ...]]) -> Optimizer:
        """With the statistics of what is held."""
        return replace(self, statistics=measure(buckets, registry.selections(), registry.bands(), self.statistics))

    def replanned(self, queries: Mapping[str, Paths], batch: int, *, forced: bool = False) -> Optimizer:
        """The rules run over the plan."""
        scratch = forced or self._scratch(len(queries), 0)
        settings = replace(self.settings, hysteresis=0.0) if forced else self.settings
        facts = Facts(queries, self.statistics, settings, scratch)
        plan = self.plan
        decisions: tuple[Decision, ...] = ()
        for rule in RULES:
            plan, taken = rule(plan, facts)
            decisions += taken
        if self.statistics.streams and plan.changed:
            plan = replace(plan, changed=frozenset())
        return self._with(plan, decisions, batch)

    def _scratch(self, queries: int, ahead: int) -> bool:
        """Whether it is time to plan everything anew, `ahead` batches from the last one measured."""
        looks = (self.statistics.batches + ahead) // self.settings.replan_every
        changed = len(self.plan.changed) > self.settings.rebuild_share * max(1, queries)
        return changed or looks % self.settings.rebuild_every == 0

    def _with(self, plan: Plan, decisions: tuple[Decision, ...], batch: int) -> Optimizer:
        dated = tuple(
            replace(decision, batch=batch, queries=tuple(dict.fromkeys(map(query_name, decision.queries))))
            for decision in decisions
        )
        kept = (*self.decisions, *dated)[-self.settings.decisions_kept :]
        same = plan.choices == self.plan.choices and plan.changed == self.plan.changed
        return replace(self, plan=self.plan if same else plan, decisions=kept)
