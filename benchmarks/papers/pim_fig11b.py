"""SIGMOD paper, figure 11b: latency against the size of a task.

Tuples arrive by the real clock, in all cells at the same rate: 40% of what tasks of one tuple can do in the largest
window. Latency is from a tuple's arrival to when its results have been handed on. What each size of task can do is
measured beside it: at one rate, tasks that can do more bear less load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Cell, Context, Finding, Row, judge_claim
from benchmarks.papers.index_experiment import pick, power, values
from benchmarks.papers.parallel_experiment import LEAST, LOAD, PARALLEL, ParallelExperiment, latencies, thread_counts


class TaskLatency(ParallelExperiment):
    """Mean and 99.9th percentile by task size."""

    title = "figure 11b: latency of pim_parallel against task size, match rate 2, arrivals by the real clock"
    claim = "figure 11b: latency grows with the size of a task, and with the window, whose merges take longer"
    measure = "per_mean_latency"
    unit = "1/s"
    across, lines, log, drawn = "task", ("window",), True, "mean_us"

    def __init__(self) -> None:
        super().__init__()
        self._rate = 0.0

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Two windows, the larger first."""
        windows = (1 << 12,) if quick else (1 << 20, 1 << 17)
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
        """Pace the arrivals by what the slowest cell can do, which comes first in the grid."""
        join, least = self.parallel(cell, context), LEAST[context.quick]
        able = join.run(join.whole_periods(least)).answer()["tuples_per_s"]
        self._rate = self._rate or LOAD * able
        figures = latencies(join, least, self._rate)
        return {"per_mean_latency": 1e6 / max(1e-3, figures["mean_us"]), "load": self._rate / able, **figures}

    def close(self) -> None:
        """Let go of the joins, and measure the rate anew next time."""
        super().close()
        self._rate = 0.0

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """How latency grows with tasks and with the window."""
        parts = []
        windows = values(rows, "window")
        by_window = {w: {row["task"]: row for row in pick(rows, window=w)} for w in windows}
        for window, own in by_window.items():
            small, large = own[min(own)], own[max(own)]
            least = min(own.values(), key=lambda row: row["mean_us"])
            parts += [
                judge_claim(
                    f"w = {power(window)}: latency grows with the size of a task, from the smallest on",
                    f"mean {_latency(small)}, {_latency(large)}",
                    "more at the largest task, by a half at least",
                    large["mean_us"] >= 1.5 * small["mean_us"],
                    f"the same arrivals are {small['load']:.0%} of what tasks of {small['task']} can do and "
                    f"{large['load']:.0%} of what those of {large['task']} can: small tasks wait for the queue",
                ),
                judge_claim(
                    f"w = {power(window)}: it grows from the size on that has the least",
                    f"mean {_latency(least)}, {_latency(large)}",
                    "more at the largest task, by a quarter at least",
                    large["mean_us"] >= 1.25 * least["mean_us"],
                    f"a task takes the tuples that have arrived, up to its size: {large['task']} arrive in "
                    f"{1e6 * large['task'] / large['arrivals_per_s']:.0f} us, and half of "
                    f"them wait {large['p50_us']:.0f}",
                ),
            ]
        if len(windows) > 1:
            task = max(by_window[windows[0]])
            small, large = (by_window[w][task] for w in (windows[0], windows[-1]))
            parts.append(
                judge_claim(
                    "latency is higher in larger windows, whose merges take longer",
                    f"tasks of {task}: mean {small['mean_us']:.0f} us at w = {power(windows[0])}, "
                    f"{large['mean_us']:.0f} at {power(windows[-1])}",
                    "more in the largest window",
                    large["mean_us"] > small["mean_us"],
                    "all threads merge, in slices, and tuples that come meanwhile are indexed beside the merge",
                )
            )
        return parts


def _latency(row: Row) -> str:
    return f"{row['mean_us']:.0f} us at tasks of {row['task']} (99.9 %: {row['p999_us']:.0f})"


EXPERIMENT = TaskLatency()
