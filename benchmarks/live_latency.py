"""Latency through `sj.live`, from a tuple's push until the consumer has the row, by load.

Each algorithm is saturated first; then its sources push 10, 50 and 80 % of that, each a batch every half millisecond.
Windows hold 16,384 tuples per side. ScaleJoin runs in event-time order with four sources, the others as tuples arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Cell, Context, Experiment, Row
from benchmarks.live_feed import LiveLoad, pace, saturate
from benchmarks.parallel_experiment import cores
from benchmarks.report import plot_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALGORITHMS = ("handshake", "low_latency_handshake", "scalejoin", "auto")
_LOADS = (10, 50, 80)
_PUSH_MS = 0.5


def load_of(algorithm: str, window: int) -> LiveLoad:
    """The join of one algorithm, on all processors."""
    workers = min(4, cores())
    if algorithm == "scalejoin":
        return LiveLoad(algorithm, workers, window, "event_time", sources=4)
    return LiveLoad(algorithm, 1 if algorithm == "auto" else workers, window)


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
        window, seconds = (1 << 10, 0.5) if quick else (1 << 14, 6.0)
        loads = _LOADS[-1:] if quick else _LOADS
        return [
            {"algorithm": algorithm, "load": load, "window": window, "seconds": seconds}
            for load in loads
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
            self._most[key] = saturate(load, 1_024, cell["seconds"] / 3, context.seed)
        most = self._most[key]
        rate = most * cell["load"] / 100
        seen = pace(load, rate, _PUSH_MS, cell["seconds"], context.seed)
        # The original join finds the last pairs only when the next tuples move them on, or at the end of the input.
        moving = min(cell["seconds"] / 2, 2 * cell["window"] / rate)
        return {**seen.summary(cell["seconds"] / 5, cell["seconds"] - moving), "most_tuples_per_s": most}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Median latency by load."""
        plot_lines(figure, rows, x="load", y=self.measure, by=["algorithm"], ylabel=self.unit)

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aims at 80 % load."""
        at = {row["algorithm"]: row for row in rows if row["load"] == _LOADS[-1]}
        lines = []
        if (low := at.get("low_latency_handshake")) is not None:
            lines.append(_aim("low_latency_handshake p50", low["p50_ms"], 1))
            lines.append(_aim("low_latency_handshake p99", low["p99_ms"], 5))
            if (original := at.get("handshake")) is not None:
                ratio = original["p50_ms"] / low["p50_ms"]
                lines.append(
                    f"handshake takes {ratio:,.0f} times as long (p50 {original['p50_ms']:,.1f} ms); aim 100: "
                    f"{'met' if ratio >= 100 else 'missed'}"
                )
        if (scale := at.get("scalejoin")) is not None:
            lines.append(_aim("scalejoin p99", scale["p99_ms"], 20))
        return lines


def _aim(what: str, value: float, most: float) -> str:
    return f"{what} {value:.2f} ms at 80 % load; aim {most} ms: {'met' if value <= most else 'missed'}"


EXPERIMENT = LiveLatency()
