"""SIGMOD paper, figure 13b: how the inserts of many threads spread over the sub-indexes while keys drift."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Row
from benchmarks.index_experiment import agrees
from benchmarks.parallel_drift import PAPER_FASTEST, Drifting


class DriftSpread(Drifting):
    """The share of the largest sub-index, and how many get almost nothing."""

    title = "figure 13b: inserts by sub-index on a drifting Gaussian, self-join by threads"
    claim = (
        "figure 13b, w = 2^20: at rest inserts spread evenly over the sub-indexes; at r = 1 one of them gets 77% and "
        "70% get almost none"
    )

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The spread at rest, at the paper's fastest drift and at ten times that."""
        lines = []
        moved = (
            "r within ten windows moves the centre by less than the keys' deviation between two merges, which come "
            "eight times a window"
        )
        for row in rows:
            even = row["largest_share"] < 0.1
            wanted = even if row["drift"] == 0.0 else not even
            told = agrees(wanted, moved) if row["drift"] in (0.0, PAPER_FASTEST) else "not in the paper"
            lines.append(
                f"r = {row['drift']:g}, {row['threads']} threads: the largest gets {row['largest_share']:.1%} "
                f"of the inserts, {row['idle_share']:.0%} get almost none: {told}"
            )
        return lines


EXPERIMENT = DriftSpread()
