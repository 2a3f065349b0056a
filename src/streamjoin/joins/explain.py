"""A running join in words."""

from __future__ import annotations

from typing import Any

from streamjoin.joins.auto import Choice
from streamjoin.model.binding import BoundSpec, describe_window
from streamjoin.model.spec import JoinSpec


def explain(
    spec: JoinSpec, bound: BoundSpec | None, choice: Choice | None, workers: int, figures: dict[str, Any]
) -> str:
    """The plan, one fact a line; figures where the join has run."""
    lines = [f"join        {spec.how}{' (self-join)' if spec.self_join else ''} on {spec.on}"]
    if bound is None or choice is None:
        lines.append(f"windows     left {spec.windows[0]}, right {spec.windows[1]}")
        lines.append(f"order       {spec.order}")
        lines.append("algorithm   chosen when the schemas of both sides are known")
        return "\n".join(lines)
    windows = [describe_window(window, bound.time) for window in bound.windows]
    lines.append(f"windows     left {windows[0]}, right {windows[1]}")
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
    return "\n".join(lines)


def _lateness(bound: BoundSpec) -> str:
    if bound.spec.order == "event_time" and bound.spec.lateness is None:
        return ""
    return f", lateness {bound.spec.lateness}" if bound.spec.lateness is not None else ""
