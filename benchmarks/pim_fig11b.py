"""SIGMOD paper, figure 11b: latency against the size of a task.

Tuples arrive by the real clock at 40% of what the join can do; latency is from a tuple's arrival to when its results
have been handed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Cell, Context, Row
from benchmarks.index_experiment import agrees, draw, pick, power, values
from benchmarks.parallel_experiment import LEAST, PARALLEL, ParallelExperiment, paced, thread_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TaskLatency(ParallelExperiment):
    """Mean and 99.9th percentile by task size."""

    title = "figure 11b: latency of pim_parallel against task size, match rate 2, arrivals by the real clock"
    claim = "figure 11b: latency grows with the size of a task, and with the window, whose merges take longer"
    measure = "per_mean_latency"
    unit = "1/s"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Two windows."""
        windows = (1 << 12,) if quick else (1 << 17, 1 << 20)
        most = thread_counts()[-1]
        return [
            {"window": window, "system": PARALLEL, "threads": most, "task": size}
            for window in windows
            for size in ((1, 64) if quick else (1, 4, 16, 64, 256))
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """Tasks of one tuple."""
        return None if cell["task"] == 1 else {**cell, "task": 1}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Pace the arrivals by what the join can do."""
        found = paced(self.parallel(cell, context), LEAST[context.quick])
        return {"per_mean_latency": 1e6 / max(1e-3, found["mean_us"]), **found}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Latency against the task size."""
        draw(figure.subplots(), rows, x="task", by=("window",), y="mean_us", log=True)

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """How latency grows with tasks and with the window."""
        lines = []
        for window in values(rows, "window"):
            own = {row["task"]: row for row in pick(rows, window=window)}
            told = ", ".join(f"{task}: {row['p50_us']:.0f}/{row['p999_us']:.0f}" for task, row in sorted(own.items()))
            grows = own[max(own)]["p50_us"] > own[min(own)]["p50_us"]
            paces = "at one rate a larger task takes what has arrived and waits for no more"
            lines.append(
                f"w = {power(window)}: median and 99.9% latency in us by task size {told}: {agrees(grows, paces)}"
            )
        return lines


EXPERIMENT = TaskLatency()
