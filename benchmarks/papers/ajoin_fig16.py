"""Bytes kept for a second of stream by the number of queries (AJoin, figure 16): tuples, indexes, query-sets.

A whole run takes about half a minute on two quiet cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, human, judge_claim
from benchmarks.papers.ajoin_runs import APART, SHARED, SYSTEMS, WINDOW, by_name, run, template

PARTS = ("tuples", "columns", "indexes", "sets")


class Figure16(Experiment):
    """Bytes a tuple held, two-way queries at 50 % similarity."""

    title = "bytes kept by the number of queries, two-way, 50 % similarity"
    claim = "AJoin, figure 16: with more queries more is kept, and indexes grow more than tuples, which queries share"
    measure = "queries_per_kb"
    unit = "queries a kB and tuple"
    repeats = 1
    warmups = 0

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Numbers of queries, shared and not; no sharing keeps everything once a query and ends at 100."""
        counts = (1, 5) if quick else (1, 5, 20, 100, 500)
        return [
            {"queries": count, "rate": 300 if quick else 5_000, "system": system}
            for count in counts
            for system in (SHARED, APART)
            if system == SHARED or count <= 100
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """The same queries without sharing."""
        return None if cell["system"] == APART or cell["queries"] > 100 else {**cell, "system": APART}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the windows and count."""
        workload = template(2, 50, cell["queries"], context.seed)
        found = run(workload, SYSTEMS[cell["system"]], cell["rate"], context, seconds=1.0, interval=0.5, patient=True)
        seconds = {f"{part}_mb_per_s": found.nbytes.get(part, 0) / 1e6 / WINDOW for part in PARTS}
        total = sum(found.nbytes.values())
        return {
            **seconds,
            "bytes_per_tuple": total / found.held,
            "queries_per_kb": cell["queries"] / (total / found.held / 1e3),
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Bytes of each part against queries, shared."""
        axes = figure.subplots()
        for part in PARTS:
            points = sorted((row["queries"], row[f"{part}_mb_per_s"]) for row in rows if row["system"] == SHARED)
            axes.plot(*zip(*points, strict=True), marker="o", label=part)
        axes.set(xscale="log", yscale="log", xlabel="queries", ylabel="MB a second of stream")
        axes.grid(visible=True, alpha=0.25)
        axes.legend(fontsize="small")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """What grows, and what sharing saves."""
        by_point = by_name(rows, "system", "queries")
        most = max(int(row["queries"]) for row in rows)
        one, last = by_point[SHARED, 1], by_point[SHARED, most]

        def grown(part: str) -> float:
            return float(last[f"{part}_mb_per_s"]) / max(1e-9, float(one[f"{part}_mb_per_s"]))  # type: ignore[arg-type]

        saved = max((row for row in rows if "ratio" in row), key=lambda row: row["queries"])
        tuples, indexes, sets = (grown(part) for part in ("tuples", "indexes", "sets"))
        return [
            judge_claim(
                "with more queries more tuples and indexes are kept",
                f"at {most} queries beside 1: tuples {tuples:.2f}, indexes {indexes:.2f}, sets of queries {sets:.2f} "
                "times",
                "tuples and indexes more than 1",
                min(tuples, indexes) > 1,
                "a tuple is stored and indexed once whatever the number of queries; sets of queries are what grows",
            ),
            judge_claim(
                "indexes grow more than tuples, which queries share",
                f"indexes {indexes:.2f}, tuples {tuples:.2f} times",
                "indexes more",
                indexes > tuples,
                "queries share the index of a column as they share its tuples",
            ),
            judge_claim(
                "sharing keeps less than no sharing",
                f"at {saved['queries']} queries no sharing keeps {human(saved['ratio'])} times the bytes",
                "more than 1",
                saved["ratio"] > 1,
            ),
        ]


EXPERIMENT = Figure16()
