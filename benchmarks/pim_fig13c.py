"""SIGMOD paper, figure 13c: the parallel self-join while keys drift."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Finding, Row, judge_claim
from benchmarks.parallel_drift import PAPER, Drifting

_SLOW, _MODERATE = 0.2, 0.6


class DriftSpeed(Drifting):
    """Throughput during the drift as a share of before, and after it."""

    title = "figure 13c: self-join by threads on a drifting Gaussian"
    claim = (
        "figure 13c, w = 2^20, 16 threads: slow drifts (r up to 0.2) cost nothing, moderate ones (0.4, 0.6) leave 35% "
        "of the throughput and fast ones (0.8, 1) 16%, as threads wait for one sub-index's lock; afterwards it recovers"
    )

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """What each drift leaves, and whether the speed comes back."""
        parts = []
        ranges = (
            "one sub-index gets far fewer of the inserts here (figure 13b), so few threads meet at its lock; a merge "
            "moves the ranges along"
        )
        for row in rows:
            if row["drift"] == 0.0:
                continue
            kept = row["tuples_per_s"] / row["before_per_s"]
            back = row["after_per_s"] / row["before_per_s"]
            at = f"{row['layout']}, r = {row['drift']:g}, {row['threads']} threads"
            if row["layout"] == PAPER and row["threads"] > 1:
                parts.append(_kept(at, row["drift"], kept, ranges))
            parts.append(
                judge_claim(
                    f"{at}: throughput recovers once the drift has ended",
                    f"{kept:.0%} of it during the drift, {back:.0%} afterwards",
                    "at least 80 % afterwards",
                    back >= 0.8,
                )
            )
        return parts


def _kept(at: str, drift: float, kept: float, reason: str) -> Finding:
    if drift <= _SLOW:
        what, rule, holds = "costs almost nothing", "at least 85 % is left", kept >= 0.85
    elif drift <= _MODERATE:
        what, rule, holds = "leaves 35 % of the throughput", "at most 60 % is left", kept <= 0.6
    else:
        what, rule, holds = "leaves 16 % of the throughput", "at most 35 % is left", kept <= 0.35
    return judge_claim(f"{at}: {what}", f"{kept:.0%}", rule, holds, reason)


EXPERIMENT = DriftSpeed()
