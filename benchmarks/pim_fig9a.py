"""SIGMOD paper, figure 9a: the parallel join against the insertion depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.harness import Cell, Row
from benchmarks.index_experiment import agrees, draw, pick, power, values
from benchmarks.parallel_experiment import BASELINE, PARALLEL, ParallelExperiment, best, thread_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ParallelDepth(ParallelExperiment):
    """Every depth that the tree has, all threads."""

    title = "figure 9a: pim_parallel against insertion depth, match rate 2"
    claim = (
        "figure 9a: with few sub-indexes threads wait for each other's locks; deeper is better up to a depth that "
        "grows with the window, and the deepest costs a little for searching further"
    )
    settings = ("insertion_depth",)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Depth 1 has as many sub-indexes as the root has children."""
        windows = (1 << 12,) if quick else (1 << 16, 1 << 20)
        most = thread_counts()[-1]
        cells: list[Cell] = []
        for window in windows:
            deepest = 2 if quick else 4
            cells.append({"window": window, "system": BASELINE, "threads": 1, "insertion_depth": None})
            cells += [
                {"window": window, "system": PARALLEL, "threads": most, "insertion_depth": depth}
                for depth in range(1, deepest + 1)
            ]
        return cells

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Throughput against the depth."""
        draw(figure.subplots(), rows, x="insertion_depth", by=("window", "system"))

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The best depth of each window."""
        lines = []
        for window in values(rows, "window"):
            own = pick(rows, window=window, system=PARALLEL)
            depth = best(rows, "insertion_depth", window=window, system=PARALLEL)
            speeds = {row["insertion_depth"]: row["tuples_per_s"] for row in own}
            gain = speeds[depth] / speeds[1]
            lines.append(
                f"w = {power(window)}, {own[0]['threads']} threads: depth {depth} is best, {gain:.2f} times depth 1 "
                f"(paper: deeper than 1): {agrees(depth > 1)}"
            )
        return lines


EXPERIMENT = ParallelDepth()
