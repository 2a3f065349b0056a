"""Lines of a plot by the columns of rows, with one linear axis: for grids of few points such as numbers of threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from benchmarks.harness import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_lines(axes: Axes, rows: Iterable[Row], *, x: str, y: str, by: Sequence[str], log: bool = False) -> None:
    """A line for each combination of the `by` columns."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lines.setdefault(", ".join(str(row[name]) for name in by), []).append((row[x], row[y]))
    for label, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=label)
    axes.set(xlabel=x, ylabel=y.replace("_per_s", "/s").replace("_", " "))
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.25)
    axes.legend(fontsize="small")
