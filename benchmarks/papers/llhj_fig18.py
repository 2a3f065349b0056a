"""Average latency of both handshake joins by the number of nodes (LLHJ paper, figure 18).

Paced by the machine's clock; windows of 1 second for the paper's 15 minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Cell, Finding, Row, judge_claim
from benchmarks.papers.llhj_latency import LatencyExperiment, chain_lengths, crowded, low_latency_findings, of
from benchmarks.papers.llhj_run import HANDSHAKE, LOW_LATENCY

BATCHES = (64, 4)
WINDOWS = (1.0, 1.0)
# Four orders of magnitude with windows of 15 minutes and batches of 64 are a factor of 11 with windows of 1 second.
_FACTORS = {64: 11.0, 4: 330.0}


class Figure18(LatencyExperiment):
    """Mean latency, driver's batches of 64 and 4."""

    title = "average latency by nodes, windows of 1 s"
    claim = (
        "LLHJ, figure 18: almost four orders of magnitude between the two, with windows of 15 minutes and batches of 64"
    )
    repeats = 1
    across, lines, log = "nodes", ("system", "batch"), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Both joins with 2 nodes and the two greatest numbers: with one there is nothing to flow along."""
        cells = []
        lengths = chain_lengths(quick)
        for nodes in sorted({lengths[0], *lengths[-2:]}):
            cells.append(self.cell(HANDSHAKE, nodes, 1, WINDOWS, quick))
            cells += [self.cell(LOW_LATENCY, nodes, batch, WINDOWS, quick) for batch in BATCHES]
        return cells

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The factor between both joins, what nodes change, and the aims at batch 4."""
        parts = [part for batch in BATCHES for part in low_latency_findings(rows, batch, _FACTORS[batch])]
        chains = of(rows, system=HANDSHAKE)
        original, few, many = [row["latency_ms"] for row in chains], chains[0], chains[-1]
        parts.append(
            judge_claim(
                "the latency of handshake join hardly depends on the nodes",
                f"{min(original):.0f} to {max(original):.0f} ms",
                "most over least at most 1.5",
                max(original) <= 1.5 * min(original),
                f"with {few['nodes']} nodes many pairs meet in the node where the later tuple enters: the median is "
                f"{few['median_ms']:.0f} ms, with {many['nodes']} nodes {many['median_ms']:.0f}",
            )
        )
        first, *longer = of(rows, system=LOW_LATENCY, batch=BATCHES[0])
        last = ([row for row in longer if not crowded(row)] or longer or [first])[-1]
        rate = last["tuples_per_s"] / first["tuples_per_s"]
        parts.append(
            judge_claim(
                "the latency of the low-latency join drops with more nodes, as a higher rate fills a batch sooner",
                f"{first['latency_ms']:.2f} ms with {first['nodes']} nodes, {last['latency_ms']:.2f} with "
                f"{last['nodes']}, at {rate:.2f} times the rate",
                "lower with the most nodes that have a core each",
                last["latency_ms"] < first["latency_ms"],
                crowded(last),
            )
        )
        return parts


EXPERIMENT = Figure18()
