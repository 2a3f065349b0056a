"""How long the original handshake join takes to find a pair, against the model (LLHJ paper, figure 5).

Paced by the machine's clock; windows of 3 and 1.5 seconds for the paper's 200 and 100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.harness import Cell, Context, Figure, Finding, Row, judge_claim
from benchmarks.papers.llhj_latency import LatencyExperiment, draw_over_time, model, of
from benchmarks.papers.llhj_run import HANDSHAKE

WINDOWS = ((3.0, 3.0), (1.5, 3.0))
_NODES = 8
_MODEL = "model"
_NEAR = 0.25


class Figure5(LatencyExperiment):
    """Mean and greatest latency over time, for equal and for unequal windows."""

    title = "handshake: latency against the model |W_R||W_S| / (|W_R| + |W_S|)"
    claim = (
        "LLHJ, figure 5: the greatest latency settles slightly below 100 s for windows of 200 s and 66.6 s for 100 and "
        "200 s, once the windows are full"
    )
    measure = "max_ms"
    repeats = 2
    against: ClassVar = {"system": _MODEL}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The paper's two pairs of windows; the model beside each."""
        return [
            {**self.cell(HANDSHAKE, _NODES, 1, windows, quick), "system": system}
            for windows in WINDOWS
            for system in (_MODEL, HANDSHAKE)
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """What the model says, or what a paced run does."""
        if cell["system"] == HANDSHAKE:
            return super().run(cell, context)
        most = 1e3 * model(cell["window_r"], cell["window_s"])
        # The later tuple of a pair is as likely to meet the other anywhere up to there.
        return {"latency_ms": most / 2, "median_ms": most / 2, "p99_ms": 0.99 * most, "max_ms": most}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Latency against time."""
        draw_over_time(rows, figure, log=False)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Near the model, and slightly below it."""
        parts = []
        for row in of(rows, system=HANDSHAKE):
            base = of(rows, system=_MODEL, window_r=row["window_r"], window_s=row["window_s"])[0]
            share = row["p99_ms"] / base["max_ms"]
            mean = row["latency_ms"] / base["latency_ms"]
            where = f"windows of {row['window_r']:g} and {row['window_s']:g} s"
            parts += [
                judge_claim(
                    f"{where}: the greatest latency settles slightly below the model's {base['max_ms']:.0f} ms",
                    f"99th percentile {row['p99_ms']:.0f} ms, {share:.2f} of it; {row['max_ms']:.0f} at most",
                    f"the 99th percentile within {_NEAR:.0%}",
                    1 - _NEAR <= share <= 1 + _NEAR,
                ),
                judge_claim(
                    f"{where}: the mean lies halfway",
                    f"{row['latency_ms']:.0f} ms, {mean:.2f} of the model's",
                    f"within {_NEAR:.0%}",
                    1 - _NEAR <= mean <= 1 + _NEAR,
                ),
            ]
        return parts


EXPERIMENT = Figure5()
