"""SIGMOD paper, figure 13b: how the inserts of many threads spread over the sub-indexes while keys drift."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.harness import Finding, Row, judge_claim
from benchmarks.parallel_drift import PAPER, PAPER_FASTEST, Drifting


class DriftSpread(Drifting):
    """The share of the largest sub-index, and how many get almost nothing."""

    title = "figure 13b: inserts by sub-index on a drifting Gaussian, self-join by threads"
    claim = (
        "figure 13b, w = 2^20: at rest inserts spread evenly over the sub-indexes; at r = 1 one of them gets 77% and "
        "70% get almost none"
    )

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The spread at rest and at the paper's fastest drift."""
        parts = []
        moved = (
            "r within ten windows moves the centre by 0.1 r between two merges, less than the keys' deviation, so most "
            "keys fall among those of T_S"
        )
        for row in (row for row in rows if row["layout"] == PAPER):
            at = f"r = {row['drift']:g}, {row['threads']} threads"
            shares = f"the largest gets {row['largest_share']:.1%}, {row['idle_share']:.0%} get almost none"
            if row["drift"] == 0.0:
                parts.append(
                    judge_claim(
                        f"{at}: inserts spread evenly over the sub-indexes",
                        shares,
                        "the largest at most 2 %, at most a tenth idle",
                        row["largest_share"] <= 0.02 and row["idle_share"] <= 0.1,
                    )
                )
            if row["drift"] == PAPER_FASTEST:
                parts += [
                    judge_claim(
                        f"{at}: one sub-index gets 77 % of the inserts",
                        shares,
                        "at least half",
                        row["largest_share"] >= 0.5,
                        moved,
                    ),
                    judge_claim(
                        f"{at}: 70 % of the sub-indexes get almost none",
                        shares,
                        "at least half of them",
                        row["idle_share"] >= 0.5,
                        moved,
                    ),
                ]
        paced = [
            row["largest_share"]
            for row in sorted(rows, key=lambda row: float(row["drift"]))
            if row["layout"] == PAPER and row["threads"] == 1
        ]
        parts.append(
            judge_claim(
                "the faster the drift, the more skewed the inserts",
                "the largest sub-index gets " + ", ".join(f"{share:.1%}" for share in paced),
                "more with every drift",
                all(a < b for a, b in itertools.pairwise(paced)),
            )
        )
        return parts


EXPERIMENT = DriftSpread()
