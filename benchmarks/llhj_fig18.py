"""Average latency of both handshake joins by the number of nodes (LLHJ paper, figure 18).

Paced by the machine's clock; windows of 3 seconds for the paper's 15 minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.harness import Cell, Row
from benchmarks.llhj_latency import LatencyExperiment, chain_lengths, low_latency_verdict
from benchmarks.llhj_run import HANDSHAKE, LOW_LATENCY
from benchmarks.report_lines import draw_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCHES = (64, 4)
WINDOWS = (3.0, 3.0)


class Figure18(LatencyExperiment):
    """Mean latency, driver's batches of 64 and 4."""

    title = "average latency by nodes, windows of 3 s"
    claim = (
        "LLHJ, figure 18: almost four orders of magnitude between the two, with windows of 15 minutes and batches of 64"
    )
    repeats = 1

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Both joins at every number of nodes from 2 on: with one there is nothing to flow along."""
        cells = []
        for nodes in chain_lengths(quick):
            cells.append(self.cell(HANDSHAKE, nodes, 1, WINDOWS, quick))
            cells += [self.cell(LOW_LATENCY, nodes, batch, WINDOWS, quick) for batch in BATCHES]
        return cells

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Mean latency against nodes."""
        draw_lines(figure.subplots(), rows, x="nodes", y="latency_ms", by=("system", "batch"), log=True)

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aims at batch 4, the paper's shape at 64."""
        return [line for batch in BATCHES for line in low_latency_verdict(rows, batch)]


EXPERIMENT = Figure18()
