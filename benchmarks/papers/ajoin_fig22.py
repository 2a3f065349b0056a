"""The share of tuples that queries share, and how often to re-plan (AJoin, figure 22): three-way queries.

The paper's latency threshold decides when its optimizer acts; here it acts every few batches, and only where
another plan is cheaper by the hysteresis. Both ask what re-planning too often or too seldom costs.

A whole run takes about two and a half minutes on two quiet cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.harness import Cell, Context, Figure, Finding, Row
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_fig21 import skewed
from benchmarks.papers.ajoin_rate import RateExperiment, judge_ratio, of_each, ratio
from benchmarks.papers.ajoin_runs import ALL, SHARED, SYSTEMS, Workload
from streamjoin.adhoc import Settings

QUERIES = 20
SHARES, EVERY = (5, 25, 50, 75), (1, 3, 8, 24)


def overlapping(percent: int, count: int, seed: int) -> Workload:
    """Three-way queries with one join; every tuple is in the selections of `percent` of them."""
    random = np.random.default_rng([seed, percent])
    width = ajoin.ATTRIBUTE_MAX * percent // 100
    texts = {}
    for number in range(count):
        low = int(random.integers(0, ajoin.ATTRIBUTE_MAX))
        parts = [(low, low + width - 1), (low - ajoin.ATTRIBUTE_MAX, low + width - 1 - ajoin.ATTRIBUTE_MAX)]
        chosen = " AND ".join(
            "(" + " OR ".join(f"{stream}.a5 BETWEEN {a} AND {b}" for a, b in parts) + ")"
            for stream in ("S1", "S2", "S3")
        )
        texts[f"q{number}"] = (
            "SELECT S1.a1 AS x, S2.a1 AS y, S3.a1 AS z FROM S1 JOIN S2 WITHIN 1 SECONDS ON S1.a0 = S2.a0 "
            f"JOIN S3 WITHIN 1 SECONDS ON S2.a2 = S3.a2 WHERE {chosen}"
        )
    return Workload(("S1", "S2", "S3"), texts)


class Figure22(RateExperiment):
    """Two panels: the share of shared tuples, and batches between looks at the plan."""

    title = "the share of shared tuples, and re-planning: 20 three-way queries"
    claim = (
        "AJoin, figure 22: the less is shared, the more grouping gains over sharing everything; re-planning too often "
        "costs, too seldom loses"
    )

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Shares by system; numbers of batches between looks with queries that a first plan joins badly."""
        shares, every = ((25,), (1, 8)) if quick else (SHARES, EVERY)
        cells: list[Cell] = [{"shared": share, "system": system} for share in shares for system in (SHARED, ALL)]
        return [*cells, *({"every": number, "system": SHARED} for number in every)]

    def baseline(self, cell: Cell) -> Cell | None:
        """Sharing everything, or a look every eight batches."""
        if "every" in cell:
            return None if cell["every"] == 8 else {**cell, "every": 8}
        return super().baseline(cell)

    def settings(self, cell: Cell) -> Settings:
        """With the cell's number of batches between looks."""
        return replace(SYSTEMS[cell["system"]], replan_every=cell.get("every", 8))

    def planned(self, cell: Cell) -> bool:
        """When to plan is what is asked for."""
        return "every" not in cell

    def workload(self, cell: Cell, context: Context) -> Workload:
        """Overlapping selections, or triangles."""
        if "every" in cell:
            return skewed(QUERIES)
        return overlapping(cell["shared"], QUERIES, context.seed)

    def by_engine(self, cell: Cell) -> bool:  # noqa: ARG002 - all
        """As the paper's user has it."""
        return True

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A panel each."""
        self.draw(rows, figure, "shared", "every")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """By cost beside sharing everything at each share; re-planning too often and too seldom."""
        shares = sorted({row["shared"] for row in rows if "shared" in row})
        gains = [ratio(rows, {"shared": s, "system": SHARED}, {"shared": s, "system": ALL}) for s in shares]
        listed = ", ".join(f"{s} %: {g:.2f}" for s, g in zip(shares, gains, strict=True) if g is not None)
        least, most = gains[0], gains[-1]
        every = sorted({row["every"] for row in rows if "every" in row})
        parts = [
            judge_ratio(
                f"{shares[0]} % shared: grouping gains over sharing everything (by share, {listed})", least, 1.05
            ),
            judge_ratio(
                "the less is shared, the more it gains: the gain at the least share beside the greatest",
                None if least is None or most is None or len(shares) < 2 else least / most,
                1.0,
            ),
        ]
        for n, what in ((every[0], "often"), (every[-1], "seldom")) if len(every) > 2 else ():
            parts.append(
                judge_ratio(
                    f"re-planning too {what} costs (every {n} batches beside every 8)",
                    ratio(rows, {"every": n}, {"every": 8}),
                    0.0,
                    0.95,
                    "the sooner a bad first plan goes the better, and a look costs little: of the time, planning takes "
                    + of_each(rows, "optimize_share", {"every": n}, {"every": 8}),
                )
            )
        return parts


EXPERIMENT = Figure22()
