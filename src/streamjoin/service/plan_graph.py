"""The current plan as one graph: sources, selections, joins and sinks, with figures per batch.

The engine's plan is a forest: new tuples of each stream have their own path. A join of the same streams by the same
conditions is one node here, whichever stream drives it, with the figures of its steps added up. Costs count partial
results: `cost_shared` are computed, and `cost_apart` would be if each query computed its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamjoin.adhoc.core.explain import Explanation, RootFigures, StepFigures
from streamjoin.adhoc.optimizer.plans import Decision

_ROLE = re.compile(r"\bs(\d+)\.")
_NEXT_TERM = re.compile(r" AND (?=s\d+\.)")
_BAND = re.compile(r"^(\S+) - (\S+) BETWEEN (\S+) AND (\S+)$")


@dataclass
class _Node:
    id: str
    kind: str
    label: str
    group: int | None = None
    queries: set[str] = field(default_factory=set)
    rate: float = 0.0
    candidates: float = 0.0
    cardinality: float = 0.0
    selectivity: float | None = None
    cost: float = 0.0
    cost_apart: float = 0.0
    seconds: float = 0.0

    def as_data(self, decisions: Sequence[Decision]) -> dict[str, Any]:
        share = self.selectivity
        if share is None:
            share = min(1.0, self.rate / self.candidates) if self.candidates else 1.0
        return {
            "id": self.id,
            "kind": self.kind,
            "label": self.label,
            "queries": sorted(self.queries),
            "group": self.group,
            "rate": self.rate,
            "cardinality": self.cardinality,
            "candidates": self.candidates,
            "selectivity": share,
            "cost_shared": self.cost,
            "cost_apart": self.cost_apart,
            "seconds": self.seconds,
            "reason": _reason(self, decisions),
        }


class PlanGraph:
    """Builds the graph of an explanation."""

    def __init__(
        self, explanation: Explanation, streams: Iterable[str], sinks: Mapping[str, str], given: Mapping[str, int]
    ) -> None:
        """`sinks` are those of the queries, `given` the rows that each query produced in the last batch."""
        self._explanation = explanation
        self._nodes: dict[str, _Node] = {}
        self._edges: dict[tuple[str, str], float] = {}
        for name in streams:
            self._node(f"source:{name}", "source", name)
        for stream in explanation.streams:
            node = self._node(f"source:{stream.name}", "source", stream.name)
            node.rate, node.cardinality, node.selectivity = stream.rate, stream.held, stream.selected
        for root in explanation.roots:
            self._add(root)
        for name, sink in sinks.items():
            # A paused query has no step, but still has a sink.
            node = self._node(f"sink:{name}", "sink", name)
            node.label, node.queries = f"{name} → {sink}", {name}
            node.rate = node.cardinality = float(given.get(name, 0))
            for edge in self._edges:
                if edge[1] == node.id:
                    self._edges[edge] = node.rate

    def as_data(self) -> dict[str, Any]:
        """The graph as JSON data for the REST interface."""
        explanation = self._explanation
        return {
            "nodes": [node.as_data(explanation.decisions) for node in self._nodes.values()],
            "edges": [{"from": one, "to": two, "rate": rate} for (one, two), rate in self._edges.items()],
            "decisions": list(map(str, explanation.decisions)),
            "sharing": explanation.sharing,
            "cost_shared": explanation.cost_shared,
            "cost_apart": explanation.cost_apart,
        }

    def _node(self, id_: str, kind: str, label: str) -> _Node:
        return self._nodes.setdefault(id_, _Node(id_, kind, label))

    def _edge(self, one: str, two: str, rate: float) -> None:
        self._edges[one, two] = self._edges.get((one, two), 0.0) + rate

    def _selection(self, stream: str, group: int, queries: Iterable[str]) -> str:
        id_ = f"selection:{group}:{stream}"
        self._edges.setdefault((f"source:{stream}", id_), 0.0)
        node = self._node(id_, "selection", f"{stream}, group {group}")
        node.group = group
        node.queries |= set(queries)
        figures = next((figure for figure in self._explanation.streams if figure.name == stream), None)
        if figures is not None:
            node.rate, node.selectivity = figures.rate * figures.selected, figures.selected
            node.cardinality = figures.held * figures.selected
            self._edges[f"source:{stream}", id_] = figures.rate
        self._node(f"source:{stream}", "source", stream).queries |= set(queries)
        return id_

    def _add(self, root: RootFigures) -> None:
        driver = self._selection(root.driver, root.group, root.step.queries)
        self._step(root.step, driver, root.group, [root.driver], [])

    def _step(self, step: StepFigures, before: str, group: int, path: list[str], conditions: list[str]) -> None:
        path = [*path, step.stream]
        own = " and ".join(sorted(readable(term, path) for term in _NEXT_TERM.split(step.condition)))
        conditions = [*conditions, own]
        id_ = f"join:{group}:{'+'.join(sorted(path))}:{' & '.join(sorted(conditions))}"
        node = self._node(id_, "join", f"{' ⋈ '.join(sorted(path))}: {own}")
        node.group = group
        node.queries |= set(step.queries)
        node.rate += step.pairs
        node.candidates += step.candidates
        node.seconds += step.seconds
        node.cardinality += step.pairs
        node.cost += step.pairs
        node.cost_apart += step.pairs * max(1, len(step.queries))
        self._edge(before, id_, step.probes)
        selection = self._selection(step.stream, group, step.queries)
        self._edge(selection, id_, 0.0)
        for name in step.ends:
            self._node(f"sink:{name}", "sink", name).queries = {name}
            self._edge(id_, f"sink:{name}", 0.0)
        for child in step.steps:
            self._step(child, id_, group, path, conditions)


def readable(condition: str, path: list[str]) -> str:
    """A step's condition with the streams' names in place of their roles, the same whichever side drives it.

    >>> readable("s0.k = s1.k", ["b", "a"]), readable("s0.x - s1.y BETWEEN -5 AND 0", ["b", "a"])
    ('a.k = b.k', 'a.y - b.x BETWEEN 0 AND 5')
    """

    def name(role: re.Match[str]) -> str:
        number = int(role[1])
        return f"{path[number]}." if number < len(path) else role[0]

    text = _ROLE.sub(name, condition)
    left, equals, right = text.partition(" = ")
    if equals and " " not in left + right:
        return " = ".join(sorted((left, right)))
    band = _BAND.match(text)
    if band is not None and band[1] > band[2]:
        return f"{band[2]} - {band[1]} BETWEEN {_negated(band[4])} AND {_negated(band[3])}"
    return text


def _negated(number: str) -> str:
    if number in ("0", "0.0"):
        return number
    return number[1:] if number.startswith("-") else f"-{number}"


def _reason(node: _Node, decisions: Sequence[Decision]) -> str:
    """The newest decision of each rule about one of the node's queries, one per line, oldest first."""
    if node.kind not in ("join", "selection"):
        return ""
    newest = {decision.rule: decision for decision in decisions if node.queries & {*decision.queries}}
    return "\n".join(str(decision) for decision in sorted(newest.values(), key=lambda decision: decision.batch))
