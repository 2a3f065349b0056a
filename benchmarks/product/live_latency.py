"""Latency through `sj.live`, from a tuple's push until the consumer has the row, by load.

Sources push a batch every half millisecond each, the four of ScaleJoin every two, at 10, 50 and 80 % of the rate that
the algorithm sustains with such pushes. That rate is measured right before; if a run falls behind although it should
not, the machine has become slower meanwhile, and both are measured again. Windows hold 65,536 tuples per side; the
handshake joins run once more with 16,384 at 80 %. The original handshake join finds a pair up to a window late, so it
is measured at 80 % only: a window of 65,536 tuples takes longer than a run at lower loads, and one of 16,384 passes in
some 40 ms, too little to show what the papers show with windows of minutes. ScaleJoin runs in event-time order with
four sources, the others as tuples arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Cell, Context, Experiment, Finding, Judgement, Row, human, judge_aim
from benchmarks.papers.parallel_experiment import cores
from benchmarks.product.live_feed import LiveLoad, Seen, pace, saturate
from benchmarks.report import plot_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HANDSHAKES = ("handshake", "low_latency_handshake")
_LOADS = (10, 50, 80)
_PUSH_MS = 0.5
# Four threads that push every half millisecond have not enough of the interpreter on two cores, whatever they push.
_SCALEJOIN_PUSH_MS = 2.0
_WINDOW = 1 << 16
# A rate is sustained if at most so many seconds of tuples wait at the end, and the sources could push them.
_WAITING, _PUSHED, _STEP = 0.02, 0.98, 0.9
# Seconds of a run, and of one that looks for the maximum; how often both are measured if a run falls behind.
_SECONDS, _SEARCH, _TRIES = 4.0, 1.0, 3


def load_of(algorithm: str, window: int) -> LiveLoad:
    """The join of one algorithm, on all processors."""
    workers = min(4, cores())
    # A short run needs more matches.
    values = 10_000 if window >= 1 << 14 else 1_000
    if algorithm == "scalejoin":
        return LiveLoad(algorithm, workers, window, "event_time", sources=4, values=values)
    return LiveLoad(algorithm, 1 if algorithm == "auto" else workers, window, values=values)


def push_ms(load: LiveLoad) -> float:
    """The milliseconds between two pushes of a source."""
    return _SCALEJOIN_PUSH_MS if load.algorithm == "scalejoin" else _PUSH_MS


def maximum(load: LiveLoad, seconds: float, seed: int) -> float:
    """The tuples per second that the join sustains in pushes every `push_ms` from each source.

    It begins with what large pushes reach and goes down until hardly anything waits when the sources have ended.
    """
    rate = saturate(load, 1_024, seconds, seed)
    while True:
        if is_sustained(pace(load, rate, push_ms(load), seconds, seed), rate):
            return rate
        rate *= _STEP


def is_sustained(seen: Seen, rate: float) -> bool:
    """Whether a join has kept up with its sources, and they with the rate."""
    return seen.waiting <= _WAITING * rate and seen.tuples_per_s >= _PUSHED * rate


class LiveLatency(Experiment):
    """Milliseconds from push to consumer, by algorithm and load."""

    title = "sj.live: latency from push to consumer, at parts of each algorithm's own maximum"
    measure = "p50_ms"
    unit = "ms (less is better)"
    repeats = 1
    warmups = 0

    def __init__(self) -> None:
        self._most: dict[tuple[str, int], float] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every algorithm at every load that says something about it."""
        seconds = 0.5 if quick else _SECONDS
        if quick:
            settings = [(name, 1 << 10, _LOADS[-1]) for name in (*_HANDSHAKES, "scalejoin", "auto")]
        else:
            settings = [(name, _WINDOW, load) for name in (_HANDSHAKES[1], "scalejoin", "auto") for load in _LOADS]
            settings += [(name, window, _LOADS[-1]) for window in (_WINDOW, 1 << 14) for name in _HANDSHAKES]
        return [
            {"algorithm": algorithm, "load": load, "window": window, "seconds": seconds}
            for algorithm, window, load in dict.fromkeys(settings)
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """The original handshake join at the same load."""
        if cell["algorithm"] == "low_latency_handshake" and cell["load"] == _LOADS[-1]:
            return {**cell, "algorithm": "handshake"}
        return None

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Pace the sources; the first part of a run is not measured."""
        load, key = load_of(cell["algorithm"], cell["window"]), (cell["algorithm"], cell["window"])
        seconds, seed = cell["seconds"], context.seed
        for _ in range(_TRIES):
            if key not in self._most:
                self._most[key] = maximum(load, min(_SEARCH, seconds / 2), seed)
            most = self._most[key]
            rate = most * cell["load"] / 100
            seen = pace(load, rate, push_ms(load), seconds, seed)
            is_kept = is_sustained(seen, rate)
            if is_kept:
                break
            del self._most[key]
        # The original join finds the last pairs only when the next tuples move them on, or at the end of the input.
        moving = min(seconds / 2, 2 * cell["window"] / rate) if cell["algorithm"] == "handshake" else 0.0
        figures = {"most_tuples_per_s": most, "sustained": is_kept}
        return {**seen.summary(seconds / 5, seconds - moving), **figures}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Median latency by load."""
        plot_lines(figure, rows, x="load", y=self.measure, by=["algorithm"], ylabel=self.unit)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The aims at 80 % load; latencies without one are told as such."""
        findings = [
            Finding(
                f"{row['algorithm']} at {row['load']} % load, windows of {row['window']:,}",
                f"p50 {row['p50_ms']:,.2f} ms, p99 {row['p99_ms']:,.2f} ms at {human(row['tuples_per_s'])} tuples/s",
                "no aim",
                Judgement.NOT_TESTED,
                "" if row["sustained"] else "it fell behind: the machine is too uneven",
            )
            for row in rows
        ]
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
