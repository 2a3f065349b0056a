"""ScaleJoin, figure 5: comparisons and tuples a second against processing threads, three window sizes.

Windows are full from the start; both streams then come as fast as the gate takes them. Times are injected: a window is
a number of tuples here, and the rate at which it would last 5 minutes follows from the comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from benchmarks.hardware import explained
from benchmarks.harness import Cell, Context, Experiment, Row, human
from benchmarks.index_experiment import draw, met
from benchmarks.scalejoin_stream import scalejoin_comparisons, thread_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TARGET = {True: 3e8, False: 4e9}
_FIVE_MINUTES = 300
_AIMS = {2: 1.8, 16: 12.0}


class Scalability(Experiment):
    """Throughput by threads and windows."""

    title = "ScaleJoin, figure 5: comparisons a second against threads"
    claim = (
        "figure 5: comparisons/s grow linearly with the threads, tuples/s with their square root, whatever the window; "
        "about 4 G comparisons/s on 48 cores; the work of the threads differs by 4 % at most"
    )
    measure = "comparisons_per_s"
    unit = "comparisons/s"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Three windows, threads up to the cores."""
        windows = (1 << 14,) if quick else (1 << 16, 1 << 18, 1 << 20)
        return [{"window": window, "threads": n} for window in windows for n in thread_grid(quick)]

    def baseline(self, cell: Cell) -> Cell | None:
        """One thread."""
        return None if cell["threads"] == 1 else {**cell, "threads": 1}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """A stretch of the stream over full windows."""
        ran = scalejoin_comparisons(cell["threads"], cell["window"], target=_TARGET[context.quick], seed=context.seed)
        return {
            self.measure: ran.comparisons_per_s,
            "tuples_per_s": ran.tuples / ran.seconds,
            "rate_for_5_min": sqrt(ran.comparisons_per_s / (2 * _FIVE_MINUTES)),
            "spread_percent": ran.spread,
            "results": ran.results,
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Comparisons and tuples a second against threads."""
        left, right = figure.subplots(1, 2)
        draw(left, rows, x="threads", y=self.measure, by=("window",))
        draw(right, rows, x="threads", y="tuples_per_s", by=("window",), log=True)

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aim a core, the gain of threads, the spread of their work."""
        best = max(row[self.measure] for row in rows if row["threads"] == 1)
        lines = [f"one thread: {human(best)} comparisons/s; aim 10 G: {met(best >= 1e10)}"]
        for threads, aim in _AIMS.items():
            gains = [row["ratio"] for row in rows if row["threads"] == threads]
            if gains:
                word = explained(max(gains), aim, threads)
                lines.append(f"{threads} threads are up to {max(gains):.2f} times one; aim {aim:g}: {word}")
        most = max(rows, key=lambda row: float(row[self.measure]))
        lines.append(
            f"{most['threads']} threads make {human(most[self.measure])} comparisons/s (paper: 4 G on 48 cores); "
            f"windows of 5 minutes at {human(most['rate_for_5_min'])} tuples/s a stream (paper: 5.1 k)"
        )
        spread = max(row["spread_percent"] for row in rows)
        lines.append(f"the work of threads spreads by {spread:.3f} % at most (paper: 4 %); aim 1 %: {met(spread <= 1)}")
        return lines


EXPERIMENT = Scalability()
