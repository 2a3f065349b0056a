"""Where the time goes (AJoin, figure 19): components of the core while queries come, by ways and rate of queries.

A whole run takes about two minutes on two quiet cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, judge_claim
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_runs import SHARED, SYSTEMS, Workload, run

PARTS = ("arrive", "sets", "joins", "rows", "settle", "optimize", "changes")
_LABELS = {
    "arrive": "buckets",
    "sets": "query-sets and indexes",
    "rows": "materialization",
    "settle": "expiry, merging",
}
SCENARIOS = ((1, 20), (10, 60), (30, 120))


class Figure19(Experiment):
    """Shares of the work; scenario SC1: queries come at a rate until all run."""

    title = "time by component while queries come (SC1)"
    claim = (
        "AJoin, figure 19: source, join and materialization are alike and most of it; changes and optimizer grow with "
        "the rate of queries and with n-way joins"
    )
    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 1
    warmups = 1
    against: ClassVar = {"ways": 2}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Two- to four-way joins by queries a second and in all."""
        scenarios = SCENARIOS[:1] if quick else SCENARIOS
        return [
            {"ways": ways, "queries_per_s": rate, "queries": count, "rate": 200 if quick else 1_000}
            for ways in ((2, 3) if quick else (2, 3, 4))
            for rate, count in scenarios
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Twice as many seconds of stream as creates take; fewer where it falls far behind, as `played_s` tells."""
        generator = ajoin.QueryGenerator(cell["ways"], 50, seed=context.seed, selectivity=0.5)
        queries = generator.queries(cell["queries"])
        changes = tuple(ajoin.scenario_1(queries, cell["queries_per_s"]))
        seconds = 1.0 if context.quick else 2 * changes[-1].at + 1
        first = {changes[0].name: changes[0].query.text}
        workload = Workload(generator.streams, first, changes[1:])
        settings = replace(SYSTEMS[SHARED], replan_every=4)
        found = run(workload, settings, cell["rate"], context, seconds=seconds, interval=0.25)
        total = sum(found.parts.values())
        return {
            "tuples_per_s": found.tuples / found.worked,
            **{f"{part}_share": found.parts[part] / total for part in PARTS},
            "slowest_ms": found.slowest * 1e3,
            "change_ms": 1e3 * (found.parts["changes"] + found.parts["optimize"]) / max(1, len(changes) - 1),
            "batch_ms": 1e3 * 0.25 * (total - found.parts["changes"] - found.parts["optimize"]) / found.seconds,
            "played_s": found.seconds,
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A stacked bar for each cell."""
        axes = figure.subplots()
        names = [f"{row['ways']}-way\n{row['queries_per_s']} q/s" for row in rows]
        base = [0.0] * len(rows)
        for part in PARTS:
            shares = [row[f"{part}_share"] for row in rows]
            axes.bar(names, shares, bottom=base, label=_LABELS.get(part, part))
            base = [a + b for a, b in zip(base, shares, strict=True)]
        axes.set(ylabel="share of the work")
        axes.legend(fontsize="small")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The greatest components, and how the optimizer's and the changes' share grows."""
        parts, changing = [], {}
        for ways in sorted({row["ways"] for row in rows}):
            mine = [row for row in rows if row["ways"] == ways]
            few, many = mine[0], mine[-1]
            shares = sorted(((many[f"{part}_share"], _LABELS.get(part, part)) for part in PARTS), reverse=True)
            listed = ", ".join(f"{name} {share:.0%}" for share, name in shares[:4])
            main = sum(many[f"{part}_share"] for part in PARTS if part not in ("changes", "optimize"))
            least, changing[ways] = (row["changes_share"] + row["optimize_share"] for row in (few, many))
            parts += [
                judge_claim(
                    f"{ways}-way: source, join and materialization are most of the work",
                    f"{main:.0%}; {listed}",
                    "at least 60 %",
                    main >= 0.6,
                    f"the joins of a batch take {many['batch_ms']:.1f} ms, and {many['queries_per_s'] / 4:g} queries "
                    f"come with it at {many['change_ms']:.1f} ms each",
                ),
                judge_claim(
                    f"{ways}-way: changes and optimizer grow with the rate of queries",
                    f"{least:.0%} at {few['queries_per_s']} queries/s, {changing[ways]:.0%} at {many['queries_per_s']}",
                    "more at the highest rate",
                    changing[ways] > least,
                ),
            ]
        if len(changing) > 1:
            parts.append(
                judge_claim(
                    "changes and optimizer grow with n-way joins",
                    ", ".join(f"{ways}-way {share:.0%}" for ways, share in changing.items()),
                    "more with the most streams",
                    changing[max(changing)] > changing[min(changing)],
                    "they take longer, but joins grow faster: "
                    + ", ".join(
                        f"{row['ways']}-way {row['change_ms']:.1f} ms per query, {row['batch_ms']:.0f} per batch"
                        for row in rows
                        if row["queries_per_s"] == max(other["queries_per_s"] for other in rows)
                    ),
                )
            )
        return parts


EXPERIMENT = Figure19()
