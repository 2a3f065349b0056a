"""Each optimisation switched off, in a workload that it is for and in the paper's (AJoin, figure 21).

Runs of small batches are merged in a window of a hundred and fifty of them, filled as it is in service. A whole run
takes about two and a half minutes on two quiet cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final

import pyarrow as pa

from benchmarks.harness import Cell, Context, Figure, Finding, Row, judge_aim, judge_claim
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_fig20 import grouped
from benchmarks.papers.ajoin_rate import RateExperiment
from benchmarks.papers.ajoin_runs import APART, SHARED, SYSTEMS, Workload, template
from streamjoin.adhoc import Settings

ON = "all on"
WITHOUT: Final[dict[str, Settings]] = {
    ON: SYSTEMS[SHARED],
    "no grouping": replace(SYSTEMS[SHARED], grouping=False),
    "no reordering": replace(SYSTEMS[SHARED], reordering=False),
    "no merging of runs": replace(SYSTEMS[SHARED], merging=False),
    "no sharing": SYSTEMS[APART],
}
GROUPS, SKEW, SMALL, PAPER = "disjoint groups", "skewed three-way", "small batches", "the paper's, three-way"
FOR: Final = {GROUPS: "no grouping", SKEW: "no reordering", SMALL: "no merging of runs", PAPER: "no sharing"}
"""The optimisation that each workload shows."""


def _skewed(stream: int, count: int, seed: int, rate: float, first: int) -> pa.Table:
    """Five values of `a0`, 500 of all others: what joins by `a0` leaves many pairs."""
    table = ajoin.tuples(stream, count, seed, rate=rate, first=first)
    return table.set_column(0, "a0", pa.array(table["a0"].to_numpy() % 5))


def skewed(count: int) -> Workload:
    """Triangles, written so that the first join is the worst."""
    texts = {
        f"q{n}": f"SELECT * FROM S1 JOIN S2 WITHIN {1 + n % 3} SECONDS ON S1.a0 = S2.a0 "
        f"JOIN S3 WITHIN {1 + n % 3} SECONDS ON S1.a1 = S3.a1 AND S2.a2 = S3.a2 WHERE S1.a5 < {200 + 10 * n}"
        for n in range(count)
    }
    return Workload(("S1", "S2", "S3"), texts, tuples=_skewed)


class Figure21(RateExperiment):
    """The highest rate with everything on, and with one thing off."""

    title = "what each optimisation is worth"
    claim = (
        "AJoin, figure 21: join reordering and sharing of sub-joins matter more with more joins, grouping where "
        "queries have little in common"
    )
    against: ClassVar = {"system": ON}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every optimisation off in its own workload and in the paper's."""
        cells: list[Cell] = []
        for workload, off in FOR.items():
            tried = [ON, off] if quick or workload != PAPER else list(WITHOUT)
            cells += [{"workload": workload, "system": system} for system in tried]
        return cells

    def settings(self, cell: Cell) -> Settings:
        """With something switched off."""
        return WITHOUT[cell["system"]]

    def workload(self, cell: Cell, context: Context) -> Workload:
        """The workload by its name."""
        if cell["workload"] == GROUPS:
            return grouped(10, 20)
        if cell["workload"] == SKEW:
            return skewed(20)
        if cell["workload"] == SMALL:
            return template(2, 50, 5, context.seed, selectivity=0.1)
        return template(3, 75, 20, context.seed, selectivity=0.5)

    def interval(self, cell: Cell, quick: bool) -> float:
        """Small batches are of a fiftieth of a second: a hundred and fifty of them in the longest window."""
        return 0.02 if cell["workload"] == SMALL else super().interval(cell, quick)

    def by_batches(self, cell: Cell) -> bool:
        """A window that one great batch has filled is one run, merged or not."""
        return bool(cell["workload"] == SMALL)

    def by_engine(self, cell: Cell) -> bool:
        """All but small batches, of which an engine's journal would take most."""
        return bool(cell["workload"] != SMALL)

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Bars: the rate without something, as a share of that with everything."""
        axes = figure.subplots()
        off = [row for row in rows if "ratio" in row]
        names = [f"{row['workload']}\n{row['system']}" for row in off]
        axes.barh(names, [row["ratio"] for row in off])
        axes.axvline(1.0, color="grey")
        axes.set(xlabel="rate, all on = 1")
        axes.tick_params(labelsize="small")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Whether each optimisation pays in its own workload, and costs nothing in the others."""
        parts = []
        for row in rows:
            if "ratio" not in row:
                continue
            what = f"{row['workload']}, {row['system']}"
            seen = f"{row['ratio']:.2f} of the rate with everything on"
            if FOR[row["workload"]] == row["system"]:
                parts.append(
                    judge_claim(f"{what}: it pays in its own workload", seen, "below 0.95", row["ratio"] < 0.95)
                )
            else:
                parts.append(judge_aim(f"{what}: it costs nothing elsewhere", seen, "at most 1.1", row["ratio"] <= 1.1))
        return parts


EXPERIMENT = Figure21()
