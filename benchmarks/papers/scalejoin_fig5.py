"""ScaleJoin, figure 5: comparisons and tuples a second against processing threads, three window sizes.

Windows are full from the start; both streams then come as fast as the gate takes them. Times are injected: a window is
a number of tuples here, and the rate at which it would last 5 minutes follows from the comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, ClassVar

from benchmarks.hardware import allowed
from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, human, judge_aim, judge_claim
from benchmarks.papers.index_experiment import pick, values
from benchmarks.papers.scalejoin_stream import scalejoin_comparisons, thread_grid
from benchmarks.report_lines import draw_lines
from benchmarks.spreads import spread

_TARGET = {True: 3e8, False: 4e9}
_FIVE_MINUTES = 300
_AIMS = {2: 1.8, 16: 12.0}
_AIM_ALONE, _PAPER = 1e10, 4e9


class Scalability(Experiment):
    """Throughput by threads and windows."""

    title = "ScaleJoin, figure 5: comparisons a second against threads"
    claim = (
        "figure 5: comparisons/s grow linearly with the threads, tuples/s with their square root, whatever the window; "
        "about 4 G comparisons/s on 48 cores; the work of the threads differs by 4 % at most"
    )
    measure = "comparisons_per_s"
    unit = "comparisons/s"
    against: ClassVar = {"threads": 1}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Three windows, threads up to the cores."""
        windows = (1 << 14,) if quick else (1 << 16, 1 << 18, 1 << 20)
        return [{"window": window, "threads": n} for window in windows for n in thread_grid(quick)]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """A part of the stream over full windows."""
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
        draw_lines(left, rows, x="threads", y=self.measure, by=("window",))
        draw_lines(right, rows, x="threads", y="tuples_per_s", by=("window",), log=True)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Linear growth, the square root of it, the balance, and our own aims."""
        parts = []
        windows, most = values(rows, "window"), max(row["threads"] for row in rows)
        for window in windows:
            gain = pick(rows, window=window, threads=most)[0].get("ratio", 1.0)
            parts.append(
                judge_claim(
                    f"window {window:,}: comparisons/s grow linearly with the threads",
                    f"{most} threads are {gain:.2f} times one",
                    "at least 0.75 a thread",
                    gain >= 0.75 * most,
                    allowed(most),
                )
            )
        at_most = [pick(rows, window=window, threads=most)[0][self.measure] for window in windows]
        best = max(at_most)
        parts += [
            judge_claim(
                "comparisons/s do not depend on the window, so the rate that a window of time allows grows with the "
                "square root of the threads",
                f"largest over smallest of {len(windows)} windows: {best / min(at_most):.2f}",
                "at most 1.25",
                best <= 1.25 * min(at_most),
                "a larger window no longer fits the cache of a core",
            ),
            judge_claim(
                "about 4 G comparisons/s and 5.1 k tuples/s per stream with windows of 5 minutes",
                f"{human(best)} comparisons/s, {human(sqrt(best / (2 * _FIVE_MINUTES)))} tuples/s, {most} threads",
                "as much or more",
                best >= _PAPER,
            ),
        ]
        uneven = max(row["spread_percent"] for row in rows)
        parts.append(
            judge_claim("the work of the threads differs by 4 % at most", f"{uneven:.3f} %", "at most 4 %", uneven <= 4)
        )
        alone = max(row[self.measure] for row in rows if row["threads"] == 1)
        parts.append(
            judge_aim(
                "one thread makes 10 G comparisons/s",
                human(alone),
                "at least 10 G",
                alone >= _AIM_ALONE,
                "repeats make " + ", ".join(spread(row) for row in rows if row["threads"] == 1),
            )
        )
        for threads, aim in _AIMS.items():
            gains = [row["ratio"] for row in rows if row["threads"] == threads]
            if gains:
                parts.append(
                    judge_aim(
                        f"{threads} threads are {aim:g} times one",
                        f"up to {max(gains):.2f} times",
                        f"at least {aim:g}",
                        max(gains) >= aim,
                        allowed(threads),
                    )
                )
        return parts


EXPERIMENT = Scalability()
