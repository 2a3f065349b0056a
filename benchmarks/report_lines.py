"""Lines of a plot by the columns of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_lines(
    axes: Axes,
    rows: Iterable[Mapping[str, Any]],
    *,
    x: str,
    by: Sequence[str],
    y: str = "tuples_per_s",
    log: bool = False,
) -> None:
    """A line for each combination of the `by` columns; a row that has no `x` becomes a level across."""
    lines: dict[str, list[tuple[float | None, float]]] = {}
    for row in rows:
        lines.setdefault(", ".join(str(row[name]) for name in by), []).append((row[x], row[y]))
    for label, points in lines.items():
        placed = sorted((at, value) for at, value in points if at is not None)
        if placed:
            axes.plot(*zip(*placed, strict=True), marker="o", label=label)
        for at, value in points:
            if at is None:
                axes.axhline(value, linestyle="--", color="grey", label=label)
    axes.set(xlabel=x, ylabel=y.replace("_per_s", "/s").replace("_", " "))
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    places = [at for points in lines.values() for at, _ in points if at is not None]
    if all(isinstance(at, (int, float)) and at > 0 for at in places):
        axes.set_xscale("log", base=2)
    axes.grid(visible=True, alpha=0.25)
    axes.legend(fontsize="small")
