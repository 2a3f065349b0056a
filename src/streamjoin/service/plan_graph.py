"""The current plan as one graph: sources, selections, joins, groups and sinks, with figures per batch and per second.

The engine's plan is a forest: new tuples of each stream have their own path. A join of the same streams by the same
conditions is one node here, whichever stream drives it, with the figures of its steps added up. Costs count partial
results: `cost_shared` are computed, and `cost_apart` would be if each query computed its own. A window join's are the
windows that it summarises, and the tuples that it looks at one by one for them. Rates per second are of the last ten
seconds, like those of streams and queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from streamjoin.queries.core.explain import Explanation, LastStep, RootFigures, StepFigures
from streamjoin.queries.engine.info import QueryInfo, Record, StreamInfo
from streamjoin.queries.language.condition_words import brief, readable_terms
from streamjoin.queries.optimizer.plans import Decision

NodeKind = Literal["source", "selection", "join", "window", "groups", "sink"]
_COLUMN = re.compile(r"^\w+\.(\w+)$")


@dataclass(frozen=True)
class NodeDecision(Record):
    """A decision of the optimizer about queries of a node."""

    rule: str
    """The rule: `share_eagerly`, `group_by_cost` or `reorder_joins`."""
    batch: int
    """The batch after which it was made."""
    changed: bool
    """Whether the plan became another one."""
    what: str
    """What it did or left."""
    why: str
    """Its reason."""
    figures: Mapping[str, float]
    """What it went by."""


@dataclass
class Node(Record):
    """A node of the plan; figures are per batch, where they do not say otherwise."""

    id: str
    """Its name, the same as long as the step is in the plan."""
    kind: NodeKind
    """What it does."""
    label: str
    """What it is, for people."""
    detail: str = ""
    """In few letters, what tells it from others of its streams: the condition of a join, the kind of a sink."""
    queries: list[str] = field(default_factory=list)
    """The queries that use it."""
    group: int | None = None
    """The group of queries that share its selections."""
    rate: float = 0.0
    """Rows that leave it."""
    cardinality: float = 0.0
    """Rows it holds, or found; open groups."""
    candidates: float = 0.0
    """Pairs that a join compared."""
    selectivity: float = 1.0
    """The share of rows or pairs that pass."""
    cost_shared: float = 0.0
    """Partial results that it computes; of a window join, windows, and tuples that it looked at one by one."""
    cost_apart: float = 0.0
    """Partial results if each query computed its own."""
    seconds: float = 0.0
    """The time that a join took."""
    rows_per_second: float = 0.0
    """Rows that leave it per second, in the last ten seconds."""
    candidates_per_second: float = 0.0
    """Pairs that a join compared per second, likewise."""
    load: float = 0.0
    """Seconds of threads that a join took per second, likewise."""
    reason: str = ""
    """The optimizer's decisions about its queries, one per line."""
    decisions: list[NodeDecision] = field(default_factory=list)
    """The same, in parts."""

    def used_by(self, queries: Iterable[str]) -> None:
        """Note that queries use it."""
        new = {*queries}.difference(self.queries)
        if new:
            self.queries = sorted((*self.queries, *new))

    def finish(self, decisions: Sequence[Decision]) -> None:
        """Fill what follows from the rest; `decisions` are all of the optimizer's."""
        if self.candidates:
            self.selectivity = min(1.0, self.rate / self.candidates)
        found = _about(self, decisions)
        self.reason = "\n".join(map(str, found))
        self.decisions = [NodeDecision(d.rule, d.batch, d.changed, d.what, d.why, dict(d.figures)) for d in found]


class PlanGraph:
    """Builds the graph of an explanation."""

    def __init__(
        self,
        explanation: Explanation,
        streams: Iterable[StreamInfo],
        queries: Iterable[QueryInfo],
        given: Mapping[str, int],
    ) -> None:
        """`given` are the rows that each query produced in the last batch."""
        self._explanation = explanation
        self._nodes: dict[str, Node] = {}
        self._edges: dict[tuple[str, str], float] = {}
        self._per_second: dict[tuple[str, str], float] = {}
        self._united: set[str] = set()
        for info in streams:
            self._node(f"source:{info.name}", "source", info.name).rows_per_second = info.rows_per_second
        for stream in explanation.streams:
            node = self._node(f"source:{stream.name}", "source", stream.name)
            node.rate, node.cardinality, node.selectivity = stream.rate, stream.held, stream.selected
        for root in explanation.roots:
            self._add(root)
        for last in explanation.last_steps:
            self._last(last)
        for query in queries:
            # A paused query has no step, but still has a sink.
            node = self._node(f"sink:{query.name}", "sink", query.name)
            node.label, node.queries = f"{query.name} → {query.sink}", [query.name]
            node.detail = re.split(r"[ ,]", query.sink, maxsplit=1)[0]
            node.rate = node.cardinality = float(given.get(query.name, 0))
            node.rows_per_second = query.rows_per_second
            self._given(node, query)
        for node in self._nodes.values():
            node.finish(explanation.decisions)

    def as_data(self) -> dict[str, Any]:
        """The graph as data for the REST interface, of records and plain values."""
        explanation = self._explanation
        return {
            "nodes": [vars(node) for node in self._nodes.values()],
            "edges": [
                {"from": edge[0], "to": edge[1], "rate": rate, "rows_per_second": self._per_second.get(edge, 0.0)}
                for edge, rate in self._edges.items()
            ],
            "decisions": list(map(str, explanation.decisions)),
            "sharing": explanation.sharing,
            "cost_shared": explanation.cost_shared,
            "cost_apart": explanation.cost_apart,
        }

    def _node(self, id_: str, kind: NodeKind, label: str) -> Node:
        return self._nodes.setdefault(id_, Node(id_, kind, label))

    def _edge(self, one: str, two: str, rate: float, per_second: float) -> None:
        self._edges[one, two] = self._edges.get((one, two), 0.0) + rate
        self._per_second[one, two] = self._per_second.get((one, two), 0.0) + per_second

    def _selection(self, stream: str, group: int, queries: Iterable[str]) -> str:
        id_ = f"selection:{group}:{stream}"
        self._edges.setdefault((f"source:{stream}", id_), 0.0)
        source = self._node(f"source:{stream}", "source", stream)
        node = self._node(id_, "selection", stream)
        node.group = group
        node.used_by(queries)
        figures = next((figure for figure in self._explanation.streams if figure.name == stream), None)
        if figures is not None:
            node.rate, node.selectivity = figures.rate * figures.selected, figures.selected
            node.cardinality = figures.held * figures.selected
            node.rows_per_second = source.rows_per_second * figures.selected
            node.detail = "all rows" if figures.selected >= 1 else f"{100 * figures.selected:.3g} % of the rows"
            self._edges[source.id, id_] = figures.rate
            self._per_second[source.id, id_] = source.rows_per_second
        source.used_by(queries)
        return id_

    def _add(self, root: RootFigures) -> None:
        driver = self._selection(root.driver, root.group, root.step.queries)
        if root.step.joins:
            self._step(root.step, driver, root.group, [root.driver], [])
            return
        # Without a row that is held, the stream itself may have no figures yet.
        node, step = self._nodes[driver], root.step
        node.rate, node.seconds = max(node.rate, step.pairs), node.seconds + step.seconds
        node.rows_per_second = max(node.rows_per_second, step.lately.pairs)
        node.load += step.lately.load
        self._ends(step, driver)

    def _ends(self, step: StepFigures, id_: str) -> None:
        for name in step.ends:
            self._node(f"sink:{name}", "sink", name).queries = [name]
            self._edge(id_, f"sink:{name}", 0.0, 0.0)

    def _last(self, last: LastStep) -> None:
        """Put a step between what leads to the sinks of its queries and these; window joins are side by side."""
        sinks = {f"sink:{name}" for name in last.queries}
        terms = ", ".join(_COLUMN.sub(r"\1", brief(condition)) for condition in last.conditions)
        if last.stream:
            by = " and ".join(last.conditions) or "time alone"
            label = f"{last.left} ⋈ {last.stream}: window join by {by}, {last.detail}"
            before = {n.id for n in self._nodes.values() if n.label == last.left and last.queries[0] in n.queries}
            into = {edge for edge in self._edges if edge[1] in sinks and edge[0] in before}
            into |= {(id_, sink) for id_ in before for sink in sinks if self._nodes[id_].kind == "selection"}
        else:
            label = f"by {terms or 'window alone'}: {last.detail}" + (f"; {last.way}" if last.way else "")
            into = {edge for edge in self._edges if edge[1] in sinks}
            # Where no pair is enumerated, no shared step leads there.
            before = {self._selection(stream, 0, last.queries) for stream in last.reads}
            into |= {(id_, sink) for id_ in before for sink in sinks}
        if not into:
            return
        kind: NodeKind = "window" if last.stream else "groups"
        node = self._node(f"{kind}:{last.queries[0]}:{label}", kind, label)
        node.detail = f"{terms}, {last.detail}" if last.stream and terms else last.detail
        node.used_by(last.queries)
        # No other query could share it.
        node.cost_shared, node.cost_apart = node.cost_shared + last.work, node.cost_apart + last.work
        for edge in sorted(into):
            previous = self._nodes[edge[0]]
            self._edges.pop(edge, None)
            self._edges[edge[0], node.id], self._per_second[edge[0], node.id] = previous.rate, previous.rows_per_second
            self._edges[node.id, edge[1]] = 0.0
            node.group = previous.group
        if last.stream:
            self._edge(self._selection(last.stream, node.group or 0, last.queries), node.id, 0.0, 0.0)
        if last.unite:
            self._united.add(node.id)

    def _given(self, sink: Node, query: QueryInfo) -> None:
        """Put the rows of a query on what leads to its sink; no other figures say what its last steps let pass."""
        edges = [edge for edge in self._edges if edge[1] == sink.id]
        for edge, share in zip(edges, self._shares([edge[0] for edge in edges]), strict=True):
            self._edges[edge], self._per_second[edge] = share * sink.rate, share * query.rows_per_second
            before = self._nodes[edge[0]]
            if before.kind in ("window", "groups"):
                before.rate += share * sink.rate
                before.rows_per_second += share * query.rows_per_second
                before.cardinality += query.groups.groups if query.groups is not None else 0

    def _shares(self, last: Sequence[str]) -> list[float]:
        """The shares of a query's rows that come from each of its last steps."""
        if (
            len(last) > 1
            and not self._united.intersection(last)
            and all(self._nodes[id_].kind == "window" for id_ in last)
        ):
            # Window joins side by side: every row has aggregates of each.
            return [1.0] * len(last)
        # Of a union, or of a join with several orders, a row comes from one: about as many as it lets pass.
        passing = [max(self._nodes[id_].rate, self._into(id_)) for id_ in last]
        return [one / sum(passing) if sum(passing) else 1 / len(last) for one in passing]

    def _into(self, id_: str) -> float:
        return sum(rate for (_, after), rate in self._edges.items() if after == id_)

    def _step(self, step: StepFigures, before: str, group: int, path: list[str], conditions: list[str]) -> None:
        path = [*path, step.stream]
        terms = readable_terms(step.condition, path)
        own = " and ".join(terms)
        conditions = [*conditions, own]
        id_ = f"join:{group}:{'+'.join(sorted(path))}:{' & '.join(sorted(conditions))}"
        node = self._node(id_, "join", f"{' ⋈ '.join(sorted(path))}: {own}")
        node.group = group
        node.detail = ", ".join(sorted(map(brief, terms), key=lambda text: text.isidentifier()))
        node.used_by(step.queries)
        node.rows_per_second += step.lately.pairs
        node.candidates_per_second += step.lately.candidates
        node.load += step.lately.load
        node.rate += step.pairs
        node.candidates += step.candidates
        node.seconds += step.seconds
        node.cardinality += step.pairs
        node.cost_shared += step.pairs
        node.cost_apart += step.pairs * max(1, len(step.queries))
        self._edge(before, id_, step.probes, step.lately.probes)
        selection = self._selection(step.stream, group, step.queries)
        self._edge(selection, id_, 0.0, 0.0)
        self._ends(step, id_)
        for child in step.steps:
            self._step(child, id_, group, path, conditions)


def _about(node: Node, decisions: Sequence[Decision]) -> list[Decision]:
    """The newest decision of each rule about one of the node's queries, oldest first."""
    if node.kind not in ("join", "selection"):
        return []
    newest = {decision.rule: decision for decision in decisions if {*node.queries} & {*decision.queries}}
    return sorted(newest.values(), key=lambda decision: decision.batch)
