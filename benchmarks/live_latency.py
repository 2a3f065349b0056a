"""Latency through `sj.live`, from a tuple's push until the consumer has the row, by load.

Sources push a batch every half millisecond each, at 10, 50 and 80 % of the rate that the algorithm sustains with such
pushes. Windows hold 65,536 tuples per side, and 16,384 once more at 80 %. The
original handshake join finds a pair up to a window late. Windows of 16,384 tuples pass in some 40 ms at these rates,
too little to show what the papers show with windows of minutes. ScaleJoin runs in event-time order with four sources,
the others as tuples arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Cell, Context, Experiment, Finding, Row, human, judge_aim
from benchmarks.live_feed import LiveLoad, pace, saturate
from benchmarks.parallel_experiment import cores
from benchmarks.report import plot_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALGORITHMS = ("handshake", "low_latency_handshake", "scalejoin", "auto")
_LOADS = (10, 50, 80)
_PUSH_MS = 0.5
_WINDOW = 1 << 16
# A rate is sustained if at most so many seconds of tuples wait at the end, and the sources could push them.
_WAITING, _PUSHED, _STEP = 0.02, 0.98, 0.9


def load_of(algorithm: str, window: int) -> LiveLoad:
    """The join of one algorithm, on all processors."""
    workers = min(4, cores())
    # A short run needs more matches.
    values = 10_000 if window >= 1 << 14 else 1_000
    if algorithm == "scalejoin":
        return LiveLoad(algorithm, workers, window, "event_time", sources=4, values=values)
    return LiveLoad(algorithm, 1 if algorithm == "auto" else workers, window, values=values)


def maximum(load: LiveLoad, seconds: float, seed: int) -> float:
    """The tuples per second that the join sustains in pushes every half millisecond from each source.

    It begins with what large pushes reach and goes down until hardly anything waits when the sources have ended.
    """
    rate = saturate(load, 1_024, seconds, seed)
    while True:
        seen = pace(load, rate, _PUSH_MS, seconds, seed)
        if seen.waiting <= _WAITING * rate and seen.tuples_per_s >= _PUSHED * rate:
            return rate
        rate *= _STEP


class LiveLatency(Experiment):
    """Milliseconds from push to consumer, by algorithm and load."""

    title = "sj.live: latency from push to consumer, at parts of each algorithm's own maximum"
    measure = "p50_ms"
    unit = "ms (less is better)"
    repeats = 3
    warmups = 0

    def __init__(self) -> None:
        self._most: dict[tuple[str, int], float] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every algorithm at every load."""
        seconds = 0.5 if quick else 5.0
        settings = [(1 << 10, _LOADS[-1])] if quick else [(_WINDOW, load) for load in _LOADS] + [(1 << 14, _LOADS[-1])]
        return [
            {"algorithm": algorithm, "load": load, "window": window, "seconds": seconds}
            for window, load in settings
            for algorithm in ALGORITHMS
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """The original handshake join at the same load."""
        return None if cell["algorithm"] == "handshake" else {**cell, "algorithm": "handshake"}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Pace the sources; the first part of a run is not measured."""
        load = load_of(cell["algorithm"], cell["window"])
        key = cell["algorithm"], cell["window"]
        if key not in self._most:
            self._most[key] = maximum(load, cell["seconds"] / 3, context.seed)
        most = self._most[key]
        rate = most * cell["load"] / 100
        seen = pace(load, rate, _PUSH_MS, cell["seconds"], context.seed)
        # The original join finds the last pairs only when the next tuples move them on, or at the end of the input.
        moving = min(cell["seconds"] / 2, 2 * cell["window"] / rate)
        return {**seen.summary(cell["seconds"] / 5, cell["seconds"] - moving), "most_tuples_per_s": most}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Median latency by load."""
        plot_lines(figure, rows, x="load", y=self.measure, by=["algorithm"], ylabel=self.unit)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The aims at 80 % load."""
        findings = []
        for window in sorted({row["window"] for row in rows}, reverse=True):
            at = {row["algorithm"]: row for row in rows if row["load"] == _LOADS[-1] and row["window"] == window}
            for algorithm, percentile, most in _AIMS:
                if algorithm in at:
                    value = at[algorithm][f"{percentile}_ms"]
                    findings.append(
                        judge_aim(
                            f"{algorithm}, {percentile} at 80 % load, windows of {window:,}: at most {most} ms",
                            f"{value:,.2f} ms of {human(at[algorithm]['most_tuples_per_s'])} tuples/s at the most",
                            f"at most {most} ms",
                            value <= most,
                        )
                    )
            if {"handshake", "low_latency_handshake"} <= at.keys():
                original, low = (at[name]["p50_ms"] for name in ("handshake", "low_latency_handshake"))
                passes = window / (at["handshake"]["tuples_per_s"] / 2) * 1e3
                findings.append(
                    judge_aim(
                        f"handshake at least 100 times as long as low_latency_handshake, windows of {window:,}",
                        f"{original / low:,.0f} times, {original:,.1f} ms; its window passes in {passes:,.0f} ms",
                        "at least 100 times",
                        original >= 100 * low,
                    )
                )
        return findings


_AIMS = (("low_latency_handshake", "p50", 1), ("low_latency_handshake", "p99", 5), ("scalejoin", "p99", 20))
EXPERIMENT = LiveLatency()
