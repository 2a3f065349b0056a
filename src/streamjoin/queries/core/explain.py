"""The plan in force with its figures: as a tree to read, as DOT to draw, as JSON to keep.

Figures of steps are measured since the step is in the plan; costs are the optimizer's estimates for a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from streamjoin._html import column_table, fact_table
from streamjoin.model.durations import describe
from streamjoin.queries.core.changes import QueryRegistry
from streamjoin.queries.core.execution import NOTHING, Execution, StepRates
from streamjoin.queries.core.groups.partners import way_of_groups
from streamjoin.queries.core.probe_plan import Paths
from streamjoin.queries.core.running_plan import Step
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared_join import StepCounts
from streamjoin.queries.language.condition_words import readable_terms
from streamjoin.queries.language.grouping import GroupWindow
from streamjoin.queries.language.plan import Stream, query_name
from streamjoin.queries.optimizer.optimizer import Optimizer
from streamjoin.queries.optimizer.plans import Decision, Facts
from streamjoin.queries.optimizer.rules import cost_apart, plan_cost

_MOST_NAMED: Final = 3
"""Of the queries of a first step; the others are counted."""


class StepPosition(NamedTuple):
    """Where in the plan a batch is: the streams that have been joined so far, and the queries that this is for."""

    streams: tuple[str, ...]
    queries: tuple[str, ...]


class QueryCost(NamedTuple):
    """What a query costs: seconds of threads that joined for it, and the bytes that it holds.

    What queries share is divided evenly among them.
    """

    seconds: float
    bytes: int


@dataclass(frozen=True)
class StreamFigures:
    """A stream: tuples a batch, tuples held, distinct keys of indexed attributes, share that some query selects."""

    name: str
    rate: float
    held: int
    keys: Mapping[str, int]
    selected: float


@dataclass(frozen=True)
class StepFigures:
    """A shared step: who shares it, and what it did a batch; `selectivity` is pairs by candidates.

    `seconds` are those of the step without the steps after it; of several tasks together.
    """

    stream: str
    condition: str
    queries: tuple[str, ...]
    ends: tuple[str, ...]
    probes: float
    candidates: float
    pairs: float
    selectivity: float
    steps: tuple[StepFigures, ...]
    seconds: float = 0.0
    lately: StepRates = NOTHING
    """Per second, in the last ten seconds."""
    joins: bool = True
    """False where queries over one stream select its tuples: `pairs` are those, and nothing is compared."""

    def walk(self) -> Iterator[StepFigures]:
        """This step and all below it."""
        yield self
        for step in self.steps:
            yield from step.walk()


@dataclass(frozen=True)
class RootFigures:
    """A first step: the group, and the stream that drives it."""

    group: int
    driver: str
    step: StepFigures


@dataclass(frozen=True)
class LastStep:
    """What the results of shared steps still go through, outside of them: a window join, or groups.

    `left` and `stream` are what a window join joins, whose rows `unite` with those of others in a UNION ALL; groups
    have neither. Queries over one join with the same keys share groups.
    """

    queries: tuple[str, ...]
    conditions: tuple[str, ...]
    detail: str
    left: str = ""
    stream: str = ""
    unite: bool = False
    work: float = 0.0
    """Windows that a window join summarised a batch, and tuples that it looked at one by one for them."""
    way: str = ""
    """How groups of a join are made: from ranges of one side, or of pairs, and why."""
    reads: tuple[str, ...] = ()
    """The streams of groups that no shared step leads to, as no pair is enumerated."""

    def __str__(self) -> str:
        what = f"window join with {self.stream}" if self.stream else "groups"
        told = f"{self.detail}; {self.way}" if self.way else self.detail
        return f"{', '.join(self.queries)}: {what} by {', '.join(self.conditions) or 'time alone'}, {told}"


@dataclass(frozen=True)
class TaskFigures:
    """A task of the last batch: its result rows, its seconds, those by component, and whether it began from files.

    Where tasks hold a share of the tuples each: the bytes and the tuples that it holds, and the bytes of new ones.
    """

    rows: int
    seconds: float
    parts: Mapping[str, float]
    rebuilt: bool
    state_bytes: int = 0
    tuples: int = 0
    read_bytes: int = 0

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.3g}" for name, seconds in self.parts.items())
        begun = "; it made its state from files first" if self.rebuilt else ""
        return f"{self.rows:,} rows in {self.seconds:.3g} s ({parts}{begun})"


@dataclass(frozen=True)
class Explanation:
    """`str()` is the tree; `dot` and `json` are the same as a graph and as data.

    `tasks` are those of the last batch, where tasks did the joining.
    """

    sharing: str
    queries: int
    cost_shared: float
    cost_apart: float
    streams: tuple[StreamFigures, ...]
    roots: tuple[RootFigures, ...]
    decisions: tuple[Decision, ...]
    tasks: tuple[TaskFigures, ...] = ()
    last_steps: tuple[LastStep, ...] = ()

    def __str__(self) -> str:
        costs = f"{self.cost_shared:,.4g} shared, {self.cost_apart:,.4g} apart"
        lines = [f"{self.queries} queries, sharing: {self.sharing}; expected partial results a batch: {costs}"]
        for stream in self.streams:
            keys = ", ".join(f"{name} {count:,}" for name, count in stream.keys.items()) or "none"
            lines.append(
                f"stream {stream.name}: {stream.rate:,.4g} tuples a batch, {stream.held:,} held, "
                f"{stream.selected:.0%} selected by some query; keys: {keys}"
            )
        for root in self.roots:
            lines.append(f"new tuples of {root.driver}, for {_first(root.step.queries)}")
            lines += _tree(root.step, "", (root.driver,))
        lines += map(str, self.last_steps)
        lines += [f"task {number} of the last batch: {task}" for number, task in enumerate(self.tasks)]
        lines.append("last decisions:" if self.decisions else "no decisions yet")
        return "\n".join([*lines, *(f"  {decision}" for decision in self.decisions)])

    def _repr_html_(self) -> str:
        summary = fact_table(
            [
                ("queries", self.queries),
                ("sharing", self.sharing),
                ("partial results per batch", f"{self.cost_shared:,.4g} shared, {self.cost_apart:,.4g} apart"),
            ]
        )
        streams = column_table(
            ("stream", "tuples per batch", "held", "selected"),
            ((stream.name, stream.rate, stream.held, f"{stream.selected:.0%}") for stream in self.streams),
        )
        steps = column_table(
            ("join", "condition", "queries", "probes per batch", "candidates", "pairs", "selectivity"),
            (row for root in self.roots for row in _indented(root.step, (root.driver,))),
        )
        decisions = column_table(("last decisions",), ((str(decision),) for decision in self.decisions))
        return f"{summary}{streams}{steps}<details><summary>decisions</summary>{decisions}</details>"

    @property
    def json(self) -> str:
        """All figures."""
        return json.dumps(asdict(self), indent=2)

    @property
    def dot(self) -> str:
        """The steps as a graph: an edge is the flow of partial results, with how many a batch."""
        lines = ["digraph plan {", "  rankdir=LR;", "  node [shape=box];"]
        lines += [
            f"  {_quote('stream ' + stream.name)} [label={_quote(stream.name)}, shape=ellipse];"
            for stream in self.streams
        ]
        for number, root in enumerate(self.roots):
            lines += _edges(root.step, f"stream {root.driver}", f"{number}", (root.driver,))
        return "\n".join([*lines, "}"])


def explain(
    settings: Settings,
    optimizer: Optimizer,
    registry: QueryRegistry,
    execution: Execution,
    held: Mapping[str, int],
    work: Mapping[str, Mapping[str, float]],
) -> Explanation:
    """The explanation of a plan; `held` says how many tuples of each stream are, `work` what window joins did."""
    queries = registry.paths
    facts = Facts(queries, optimizer.statistics, settings)
    streams = tuple(
        StreamFigures(
            name,
            measured.rate,
            held.get(name, 0),
            {column: count for (column, _), count in sorted(measured.distinct.items(), key=str)},
            _selected_share(name, queries, facts),
        )
        for name, measured in sorted(optimizer.statistics.streams.items())
    )
    return Explanation(
        settings.sharing,
        len({query_name(name) for name in queries}),
        plan_cost(optimizer.plan, facts),
        cost_apart(optimizer.plan, facts),
        streams,
        tuple(
            RootFigures(step.key.group, step.key.driver, _figures(step, execution, first_join.directions))
            for first_join in execution.first_joins
            for step in first_join.directions
        ),
        optimizer.decisions,
        last_steps=last_steps(registry, work),
    )


def last_steps(registry: QueryRegistry, work: Mapping[str, Mapping[str, float]]) -> tuple[LastStep, ...]:
    """What rows go through after the shared steps, by query."""
    steps = [
        LastStep(
            (name,),
            tuple(map(str, step.conditions)),
            f"from {_length(step.summary.low, stream)} to {_length(step.summary.high, stream)}",
            branch.source(step.summary.anchor).stream.name,
            stream.name,
            unite=len(entry.query.branches) > 1,
            work=work.get(branch.name, {}).get(step.right, 0.0),
        )
        for name, entry in registry.queries.items()
        if not entry.paused
        for branch in entry.query.branches
        for step in branch.kind_steps
        if step.summary is not None
        for stream in [branch.source(step.right).stream]
    ]
    for feed in registry.feeds.values():
        grouped = [entry.query.grouping for entry in feed.members.values() if entry.query.grouping is not None]
        stream = feed.live.query.sources[0].stream
        sizes = {(each.window.size, each.window.slide): _every(each.window, stream) for each in grouped}
        windows = "windows of " + " and ".join(text for _, text in sorted(sizes.items()))
        keys = tuple(map(str, grouped[0].keys))
        way = way_of_groups(next(iter(feed.members.values())).query)
        reads = () if feed.partners is None else tuple(source.stream.name for source in feed.live.query.sources)
        steps.append(LastStep(tuple(sorted(feed.members)), keys, windows, way=way, reads=reads))
    return tuple(steps)


def _every(window: GroupWindow, stream: Stream) -> str:
    size = _length(window.size, stream)
    return size if window.slide == window.size else f"{size} every {_length(window.slide, stream)}"


def _length(ticks: int, stream: Stream) -> str:
    if pa.types.is_integer(stream.schema.field(stream.time).type) or ticks == 0:
        return f"{ticks:,}"
    return describe(ticks) if ticks > 0 else f"-{describe(-ticks)}"


def _selected_share(stream: str, queries: Mapping[str, Paths], facts: Facts) -> float:
    selections = [
        tuple(predicate.condition for predicate in paths.query.selection(source.alias))
        for paths in queries.values()
        for source in paths.query.sources
        if source.stream.name == stream
    ]
    return facts.statistics.of(stream).share(selections)


def _figures(step: Step, execution: Execution, directions: Iterable[Step] = ()) -> StepFigures:
    """`directions` read the same candidates, whichever of them a pair belongs to."""
    done = execution.counts.get(step.key, StepCounts())
    read = [execution.counts.get(one.key, StepCounts()) for one in directions] or [done]
    candidates, pairs = (sum(getattr(counts, name) for counts in read) for name in ("candidates", "pairs"))
    # One read of candidates finds the pairs of both directions: each has as large a part of it as of the pairs.
    own = candidates * done.pairs / pairs if len(read) > 1 and pairs else done.candidates
    batches = max(1, done.batches)
    joins = bool(step.key.steps)
    # Where nothing is compared, it is tuples of which some are selected.
    looked_at = candidates if joins else done.probes
    return StepFigures(
        step.stream,
        step.key.steps[-1].condition if joins else "selection",
        step.queries,
        step.ends,
        done.probes / batches,
        own / batches,
        done.pairs / batches,
        pairs / looked_at if looked_at else 0.0,
        tuple(_figures(child, execution) for child in step.children),
        done.seconds / batches,
        execution.recent.rates(step.key),
        joins,
    )


def _first(queries: tuple[str, ...]) -> str:
    named = ", ".join(queries[:_MOST_NAMED])
    return named if len(queries) <= _MOST_NAMED else f"{named} and {len(queries) - _MOST_NAMED:,} more"


def _condition(step: StepFigures, path: tuple[str, ...]) -> str:
    return " and ".join(readable_terms(step.condition, (*path, step.stream)))


def _shared(queries: tuple[str, ...]) -> str:
    return f"{len(queries):,} queries share it" if len(queries) > 1 else "one query uses it"


def _label(step: StepFigures, path: tuple[str, ...]) -> str:
    if not step.joins:
        return (
            f"selection: {len(step.queries)} queries read it alone; {step.pairs:,.4g} of {step.probes:,.4g} tuples "
            f"a batch ({step.selectivity:.1%})"
        )
    return (
        f"{step.stream} by {_condition(step, path)}: {_shared(step.queries)}, {len(step.ends)} end; "
        f"{step.probes:,.4g} probes, {step.candidates:,.4g} candidates, {step.pairs:,.4g} pairs a batch "
        f"({step.selectivity:.1%})"
    )


def _tree(step: StepFigures, indent: str, path: tuple[str, ...]) -> list[str]:
    lines = [f"{indent}└─ {_label(step, path)}"]
    for child in step.steps:
        lines += _tree(child, indent + "   ", (*path, step.stream))
    return lines


def _indented(step: StepFigures, path: tuple[str, ...]) -> Iterator[tuple[object, ...]]:
    depth = len(path) - 1
    name = f"{path[0]} ⋈ {step.stream}" if depth == 0 else f"{chr(0xA0) * 3 * depth}⋈ {step.stream}"
    if not step.joins:
        name = path[0]
    yield (
        name,
        _condition(step, path),
        len(step.queries),
        step.probes,
        step.candidates,
        step.pairs,
        f"{step.selectivity:.1%}",
    )
    for child in step.steps:
        yield from _indented(child, (*path, step.stream))


def _edges(step: StepFigures, source: str, name: str, path: tuple[str, ...]) -> list[str]:
    node = f"step {name}"
    text = f"{step.stream}\n{_condition(step, path)}\n{len(step.queries)} queries"
    lines = [
        f"  {_quote(node)} [label={_quote(text)}];",
        f"  {_quote(source)} -> {_quote(node)} [label={_quote(f'{step.probes:,.4g}')}];",
    ]
    for number, child in enumerate(step.steps):
        lines += _edges(child, node, f"{name}.{number}", (*path, step.stream))
    return lines


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
