"""ScaleJoin, figure 7b: how long after its later tuple a result comes out, near the highest rate.

The highest rate is measured first, unpaced; then tuples come in real time at four fifths of it. A delay counts from
when the tuple was due, not from when the gate had room for it, to when the consumer has read the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from benchmarks.harness import Cell, Context, Experiment, Finding, Row, judge_claim
from benchmarks.papers.index_experiment import values
from benchmarks.papers.scalejoin_stream import alternating, run_stream, scalejoin_comparisons, thread_grid

_LOAD = 0.8
_TARGET = {True: 2e8, False: 2e9}
_SECONDS = {True: 0.4, False: 2.0}
_PAPER_MS = 70.0
_LATE = 1.05


class Latency(Experiment):
    """Latency by threads and windows."""

    title = "ScaleJoin, figure 7b: latency near full rate, real time"
    claim = "figures 7b and 7c: the latency does not exceed 70 ms and grows with the threads"
    measure = "quickness"
    unit = "1 / mean latency in s"
    repeats = 2
    against: ClassVar = {"threads": 1}
    across, lines, log, drawn = "threads", ("window",), True, "mean_ms"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Two windows, threads up to the cores."""
        windows = (1 << 14,) if quick else (1 << 16, 1 << 18)
        return [{"window": window, "threads": n} for window in windows for n in thread_grid(quick)]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Full rate, then four fifths of it in real time."""
        threads, window, quick = cell["threads"], cell["window"], context.quick
        full = scalejoin_comparisons(threads, window, target=_TARGET[quick], seed=context.seed)
        rate = _LOAD * full.tuples / full.seconds
        n = max(1024, int(rate * _SECONDS[quick]) // 2 * 2)
        ran = run_stream(threads, alternating(n), 2 * window, held=window, rate=rate, seed=context.seed)
        delays = ran.delays_ms if ran.delays_ms.size else np.array([np.inf])
        return {
            self.measure: 1e3 / float(delays.mean()),
            "mean_ms": float(delays.mean()),
            "p50_ms": float(np.median(delays)),
            "p99_ms": float(np.quantile(delays, 0.99)),
            "tuples_per_s": rate,
            "overran": ran.seconds / (n / rate),
            "results": ran.results,
        }

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The paper's bound, the growth with threads, and whether the machine kept up."""
        slow = max(row["mean_ms"] for row in rows)
        behind = max(row["overran"] for row in rows)
        late = f"the slowest run took {behind:.2f} times its schedule"
        parts = [
            judge_claim(
                "latency does not exceed 70 ms near the highest rate",
                f"mean {min(row['mean_ms'] for row in rows):.2f} to {slow:.2f} ms, 99th percentile up to "
                f"{max(row['p99_ms'] for row in rows):.2f} ms, at {_LOAD:.0%} of the highest rate",
                "means of at most 70 ms, on schedule",
                slow <= _PAPER_MS and behind <= _LATE,
                late,
            )
        ]
        for window in values(rows, "window"):
            own = {row["threads"]: row for row in rows if row["window"] == window}
            by_threads = {threads: row["mean_ms"] for threads, row in own.items()}
            fewest, most = min(own), max(own)
            parts.append(
                judge_claim(
                    f"window {window:,}: latency grows with the threads",
                    ", ".join(f"{n}: {ms:.2f} ms" for n, ms in sorted(by_threads.items())),
                    "more with the most threads than with one",
                    by_threads[most] > by_threads[fewest],
                    f"threads share a tuple's comparisons: they take {_tuple_us(own[fewest]):.0f} us with {fewest} and "
                    f"{_tuple_us(own[most]):.0f} us with {most}, and near the highest rate a tuple waits for those "
                    "before it",
                )
            )
        return parts


def _tuple_us(row: Row) -> float:
    """What one tuple takes at the highest rate."""
    return float(1e6 * _LOAD / row["tuples_per_s"])


EXPERIMENT = Latency()
