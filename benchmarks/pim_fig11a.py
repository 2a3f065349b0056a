"""SIGMOD paper, figure 11a: the parallel join against the size of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.harness import Cell, Row
from benchmarks.index_experiment import agrees, draw, pick, power, speeds, values
from benchmarks.parallel_experiment import BASELINE, PARALLEL, ParallelExperiment, thread_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZES = (1, 2, 4, 8, 16, 64, 256)
_PAPER_ENOUGH = 8


class TaskSize(ParallelExperiment):
    """Tasks of 1 to 256 tuples, all threads."""

    title = "figure 11a: pim_parallel against task size, match rate 2"
    claim = (
        "figure 11a: throughput grows steadily up to tasks of four tuples and hardly beyond eight; very small tasks "
        "pay for the queue's lock"
    )

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Two windows."""
        windows = (1 << 12,) if quick else (1 << 17, 1 << 20)
        most = thread_counts()[-1]
        sizes = (1, 8, 64) if quick else _SIZES
        return [
            {"window": window, "system": system, "threads": threads, "task": size}
            for window in windows
            for system, threads, each in ((BASELINE, 1, (None,)), (PARALLEL, most, sizes))
            for size in each
        ]

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Throughput against the task size."""
        draw(figure.subplots(), rows, x="task", by=("window", "system"))

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """Where throughput stops growing, and what small tasks cost."""
        lines = []
        for window in values(rows, "window"):
            by_size = speeds(rows, "task", window=window, system=PARALLEL)
            threads = pick(rows, window=window, system=PARALLEL)[0]["threads"]
            most = max(by_size.values())
            enough = next(size for size, speed in by_size.items() if speed >= 0.9 * most)
            overlap = "the tuples of a task are located together, so larger tasks hide more cache misses"
            lines.append(
                f"w = {power(window)}, {threads} threads: tasks of {enough} reach 90% of the best (paper: 4 to 8), "
                f"tasks of 1 {by_size[1] / most:.0%}: {agrees(enough <= _PAPER_ENOUGH, overlap)}"
            )
        return lines


EXPERIMENT = TaskSize()
