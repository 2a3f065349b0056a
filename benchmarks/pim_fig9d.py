"""SIGMOD paper, figure 9d: the parallel join against the merge ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Cell, Context, Row
from benchmarks.index_experiment import agrees, draw, pick, power, values
from benchmarks.parallel_experiment import BASELINE, PARALLEL, ParallelExperiment, best, thread_counts
from benchmarks.parallel_join import ParallelJoin

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ParallelMergeRatio(ParallelExperiment):
    """Merge ratios from 2^-6 to 1, all threads."""

    title = "figure 9d: pim_parallel against merge ratio, match rate 2"
    claim = (
        "figure 9d: with many threads merge ratio 1 is best in every window, since a merge costs a parallel join more "
        "than a single-threaded one; the ratio matters most in small windows"
    )
    settings = ("merge_ratio",)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The paper's ratios."""
        windows = (1 << 12,) if quick else (1 << 16, 1 << 20)
        ratios = (1 / 8, 1.0) if quick else (1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
        most = thread_counts()[-1]
        return [
            {"window": window, "system": system, "threads": threads, "merge_ratio": ratio}
            for window in windows
            for system, threads, each in ((BASELINE, 1, (None,)), (PARALLEL, most, ratios))
            for ratio in each
        ]

    def explain(self, join: ParallelJoin, cell: Cell, context: Context) -> Mapping[str, Any]:  # noqa: ARG002
        """The chunks that go with the ratio."""
        return {"width": join.sides[0].settings()["width"]}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Throughput against the ratio."""
        draw(figure.subplots(), rows, x="merge_ratio", by=("window", "system"))

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The best ratio of each window."""
        lines = []
        for window in values(rows, "window"):
            ratio = best(rows, "merge_ratio", window=window, system=PARALLEL)
            own = pick(rows, window=window, system=PARALLEL)
            speeds = [row["tuples_per_s"] for row in own]
            why = "a sub-index here is a cache line, not a tree: it is full long before the window is"
            lines.append(
                f"w = {power(window)}, {own[0]['threads']} threads: merge ratio {power(ratio)} is best (paper 1), "
                f"{max(speeds) / min(speeds):.2f} times the worst: {agrees(ratio == 1.0, why)}"
            )
        return lines


EXPERIMENT = ParallelMergeRatio()
