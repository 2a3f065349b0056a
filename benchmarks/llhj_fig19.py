"""Latency of the low-latency handshake join over time, driver's batches of 64 (LLHJ paper, figure 19).

Paced by the machine's clock; windows of 3 and 1.5 seconds for the paper's 200 and 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from benchmarks.harness import Cell, Row
from benchmarks.llhj_fig5 import WINDOWS
from benchmarks.llhj_latency import LatencyExperiment, chain_lengths, draw_over_time, low_latency_verdict
from benchmarks.llhj_run import HANDSHAKE, LOW_LATENCY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NODES = 8


class OverTime(LatencyExperiment):
    """Both joins on both pairs of windows, at one batch of the driver."""

    repeats = 2
    batch: ClassVar[int]

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Eight nodes, so that the original join is near its model."""
        nodes = chain_lengths(quick)[-1] if quick else _NODES
        return [
            self.cell(system, nodes, self.batch, windows, quick)
            for windows in WINDOWS
            for system in (HANDSHAKE, LOW_LATENCY)
        ]

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Latency against time, on a logarithmic scale."""
        draw_over_time(rows, figure, log=True)

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aims, and whether the windows matter."""
        lines = low_latency_verdict(rows, self.batch)
        median = [row["median_ms"] for row in rows if row["system"] == LOW_LATENCY]
        same = max(median) <= 1.5 * min(median)
        lines.append(
            f"median latency with the two pairs of windows: {median[0]:.2f} and {median[1]:.2f} ms; the paper: windows "
            f"hardly matter: {'agrees' if same else 'differs'}"
        )
        return lines


class Figure19(OverTime):
    """Batches of 64."""

    title = "low_latency_handshake: latency over time, batch 64"
    claim = "LLHJ, figure 19: below 10 ms on average and 30 ms at most, most of it waiting for the driver's batch"
    batch = 64


EXPERIMENT = Figure19()
