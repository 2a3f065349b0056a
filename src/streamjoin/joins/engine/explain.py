"""The description of a running join."""

from __future__ import annotations

from typing import Any

from streamjoin._html import PlanText
from streamjoin.joins.cost import EQUATIONS, Workload, calibrate, model
from streamjoin.joins.registry import AlgorithmChoice
from streamjoin.model.binding import BoundSpec
from streamjoin.model.spec import JoinSpec
from streamjoin.model.summary import Summary


def in_short(name: str, spec: JoinSpec, algorithm: str | None, *facts: str) -> str:
    """A running join in one line, as `repr` shows it."""
    match = _match(spec)
    windows = spec.windows if spec.windows[0] != spec.windows[1] else spec.windows[:1]
    window = f", window {' and '.join(map(str, windows))}" if spec.match is None else ""
    chosen = "no algorithm yet" if algorithm is None else f"algorithm {algorithm}"
    return f"<{'; '.join([f'{name} {spec.how} on {spec.predicate}{match}{window}, {spec.runs_in}', chosen, *facts])}>"


def explain(
    spec: JoinSpec, bound: BoundSpec | None, choice: AlgorithmChoice | None, workers: int, figures: dict[str, Any]
) -> PlanText:
    """The plan, one fact per line, with measurements once the join has run."""
    match = _match(spec)
    lines = [f"join        {spec.how}{' (self-join)' if spec.self_join else ''} on {spec.predicate}{match}"]
    if spec.match is None:
        lines.append(f"windows     left {spec.windows[0]}, right {spec.windows[1]}")
    if bound is None or choice is None:
        lines.append(f"order       {spec.order}")
        lines.append("algorithm   chosen when the schemas of both sides are known")
        return PlanText("\n".join(lines))
    lines.append(f"order       {spec.order}{_lateness(bound)}")
    lines.append(f"algorithm   {choice.name}: {choice.reason}")
    lines.append(f"workers     {workers}")
    if bound.index:
        kind = "exact" if all(t.exact for t in bound.index) and len(bound.index) == 1 else "candidates only"
        lines.append(f"index word  {' with '.join(str(t.term) for t in bound.index)} ({kind})")
    rest = [str(t.term) for t in bound.terms if t not in bound.index or len(bound.index) > 1]
    rest += [str(bound.residual)] if bound.residual is not None else []
    if rest:
        lines.append(f"then tests  {' and '.join(rest)}")
    lines.append(
        f"so far      {figures['tuples_left']:,} left and {figures['tuples_right']:,} right tuples, "
        f"{figures['compared']:,} candidates, {figures['results']:,} results, {figures['expired']:,} expired"
    )
    if choice.index is not None:
        lines += _costs(choice, workers, figures)
    return PlanText("\n".join(lines))


def _costs(choice: AlgorithmChoice, workers: int, figures: dict[str, Any]) -> list[str]:
    """The papers' cost model for this window, with constants measured here, next to the measured cost."""
    tuples = max(1, figures["tuples_left"] + figures["tuples_right"])
    window = max(2.0, (figures["window_left"] + figures["window_right"]) / 2)
    work = Workload(
        window,
        matches=figures["compared"] / tuples,
        merge_ratio=choice.index_options.get("merge_ratio", Workload.merge_ratio),
        chain_length=int(choice.index_options.get("length", Workload.chain_length)),
        workers=workers,
    )
    lines = [f"cost model  ns per tuple at {window:,.0f} tuples per side: look up + delete + insert = total"]
    for name, steps in sorted(model(work, calibrate(window)).items(), key=lambda item: item[1].total):
        mark = "*" if name == choice.index else " "
        equation = f"(equation {EQUATIONS[name]})" if name in EQUATIONS else ""
        parts = f"{steps.lookup:10,.0f} + {steps.delete:4,.0f} + {steps.insert:5,.0f} = {steps.total:10,.0f}"
        lines.append(f"          {mark} {name:<12}{parts}  {equation}".rstrip())
    measured = 1e9 * figures["seconds"].get("pair", 0.0) / tuples
    lines.append(f"            measured so far for {choice.index}: {measured:,.0f} ns per tuple, including refinement")
    return lines


def _match(spec: JoinSpec) -> str:
    if spec.match is None:
        return ""
    return f", summary {spec.match}" if isinstance(spec.match, Summary) else f", as of {spec.match}"


def _lateness(bound: BoundSpec) -> str:
    return f", lateness {bound.spec.lateness}" if bound.spec.lateness is not None else ""
