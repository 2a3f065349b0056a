"""What creating a query would do, found on copies: its steps of the plan, what it shares with whom, and the costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from streamjoin.adhoc.core.probe_plan import PathKey, Paths, shared_steps
from streamjoin.adhoc.core.shared import Snapshot
from streamjoin.adhoc.engine.figures import columns_of
from streamjoin.adhoc.engine.info import Preview
from streamjoin.adhoc.language.plan import Query, query_name
from streamjoin.adhoc.optimizer.optimizer import Optimizer
from streamjoin.adhoc.optimizer.ordering import cost_apart, plan_cost
from streamjoin.adhoc.optimizer.plans import Facts

_NAME = "\x01this query"
"""No query has this name."""


def preview(query: Query, snapshot: Snapshot) -> Preview:
    """The preview of a query against the queries there are; nothing changes.

    A join counts once for each stream whose new tuples drive it.
    """
    query = replace(query, name=_NAME)
    known = snapshot.registry.paths
    paths = {**known, **{part.name: Paths(part) for part in query.parts}}
    measured = snapshot.optimizer.measured(snapshot.registry, snapshot.buckets)
    optimizer = measured.after_changes(paths, snapshot.batch + 1)
    active = [entry.paths for entry in snapshot.registry.running.values() if not entry.paused]
    steps = shared_steps([*active, *(paths[part.name] for part in query.parts)], optimizer.plan.choices)
    takers = {key: {query_name(part) for part in parts} for key, parts in steps.items()}
    own = [key for key, queries in takers.items() if _NAME in queries]
    others = [takers[key] - {_NAME} for key in own]
    shared, apart = _costs(optimizer, paths)
    shared_before, apart_before = _costs(measured, known)
    return Preview(
        columns_of(query.schema),
        tuple(dict.fromkeys(source.stream.name for source in query.sources)),
        tuple(sorted(set().union(*others))),
        sum(not sharers for sharers in others),
        sum(bool(sharers) for sharers in others),
        shared - shared_before,
        apart - apart_before,
        "\n".join(_line(key, found) for key, found in zip(own, others, strict=True)),
    )


def _costs(optimizer: Optimizer, paths: Mapping[str, Paths]) -> tuple[float, float]:
    facts = Facts(paths, optimizer.statistics, optimizer.settings)
    return plan_cost(optimizer.plan, facts), cost_apart(optimizer.plan, facts)


def _line(key: PathKey, others: set[str]) -> str:
    step = "   " * (len(key.steps) - 1) + f"└─ {key.steps[-1]}"
    sharing = f"shared with {len(others)} queries" if others else "new"
    return (f"new tuples of {key.driver}\n" if len(key.steps) == 1 else "") + f"{step}: {sharing}"
