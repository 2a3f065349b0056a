"""Experiments that ask for the highest rate an ad-hoc workload is kept up with, system by system."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, ClassVar

from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, describe, judge_claim, not_tested
from benchmarks.papers.ajoin_runs import ALL, SYSTEMS, Outcome, Workload, run, sustained
from benchmarks.report_lines import draw_lines
from streamjoin.adhoc import Settings


class RateExperiment(Experiment):
    """Give the cells, with a `system` each, and the workload of one; everything else is here."""

    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 1
    warmups = 0
    start = 1_000.0
    """The first rate tried, of each stream."""
    against: ClassVar = {"system": ALL}

    def __init__(self) -> None:
        self._found: dict[tuple[tuple[str, Any], ...], float] = {}

    @abstractmethod
    def workload(self, cell: Cell, context: Context) -> Workload:
        """Queries, streams and tuples of a cell."""

    def settings(self, cell: Cell) -> Settings:
        """How the cell's system runs."""
        return SYSTEMS[cell["system"]]

    def planned(self, cell: Cell) -> bool:  # noqa: ARG002 - for those that vary it
        """Whether the optimizer has looked before it counts."""
        return True

    def interval(self, cell: Cell, quick: bool) -> float:  # noqa: ARG002 - for those that vary it
        """The seconds of stream in a batch."""
        return 0.05 if quick else 0.2

    def by_batches(self, cell: Cell) -> bool:  # noqa: ARG002 - for those that vary it
        """Whether windows are filled by batches like those that count, and not by one."""
        return False

    def by_engine(self, cell: Cell) -> bool:  # noqa: ARG002 - for those that vary it
        """Whether tuples go through an engine, with its journal and sinks, or to the core alone."""
        return False

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Find the rate; results and slowest batch are those of the run at it."""
        workload, settings, engine = self.workload(cell, context), self.settings(cell), self.by_engine(cell)
        interval = self.interval(cell, context.quick)
        seconds = 2 * interval if context.quick else max(1.6, 8 * interval)

        def at(rate: float) -> Outcome:
            return run(
                workload,
                settings,
                rate,
                context,
                seconds=seconds,
                interval=interval,
                planned=self.planned(cell),
                by_batches=self.by_batches(cell) and not context.quick,
                engine=engine,
            )

        # Once before it counts: what is compiled on first use, and memory that grows.
        run(workload, settings, self.start / 10, context, seconds=interval, interval=interval, engine=engine)
        # Repeats begin where the one before ended.
        point = tuple(sorted(cell.items()))
        found = at(self.start / 4) if context.quick else sustained(at, self._found.get(point, self.start), 9)
        self._found[point] = found.rate
        # A quick run tries one rate and tells what its load promises; a slow system may keep up with no rate tried.
        promised = 1.0 / max(found.load, 1e-9)
        tuples = found.rate * len(workload.streams) * (promised if context.quick else min(1.0, promised))
        return {
            "tuples_per_s": tuples,
            "overall_per_s": tuples * len(workload.queries),
            "rows_per_tuple": found.rows / max(1, found.tuples),
            "rows_per_s": found.rows / max(found.worked, 1e-9),
            "load": found.load,
            "slowest_ms": found.slowest * 1e3,
            **{f"{part}_share": found.parts[part] / max(1e-9, found.worked) for part in ("joins", "rows", "optimize")},
            "reading_share": found.reading,
        }

    def draw(self, rows: Sequence[Row], figure: Figure, *across: str) -> None:
        """A panel for each of these columns that the rows have, a line for each system."""
        panels = [key for key in across if any(key in row for row in rows)]
        for axes, key in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            draw_lines(axes, [row for row in rows if key in row], x=key, y="tuples_per_s", by=("system",), log=True)


def ratio(
    rows: Sequence[Row], one: Mapping[str, Any], two: Mapping[str, Any], measure: str = "tuples_per_s"
) -> float | None:
    """How many times the rate, or another measure, of one point is that of another; None without both."""

    def rate(point: Mapping[str, Any]) -> float | None:
        rates = [float(row[measure]) for row in rows if all(row.get(key) == value for key, value in point.items())]
        return rates[0] if rates else None

    first, second = rate(one), rate(two)
    return None if first is None or second is None else first / second


def of_each(rows: Sequence[Row], measure: str, *points: Mapping[str, Any]) -> str:
    """A measure at some points, for a reason; no text without all of them."""
    found = [[row for row in rows if all(row.get(key) == value for key, value in point.items())] for point in points]
    if not all(found):
        return ""
    names = [{key: value for key, value in point.items() if key != "system"} for point in points]
    return ", ".join(f"{own[0][measure]:.3g} at {describe(name)}" for own, name in zip(found, names, strict=True))


def judge_ratio(claim: str, figure: float | None, at_least: float, at_most: float = inf, reason: str = "") -> Finding:
    """A claim about such a ratio; not tested without it."""
    if figure is None:
        return not_tested(claim, "the points that it needs are not in the grid: run without --quick")
    rule = f"at least {at_least:g} times" if at_most == inf else f"{at_least:g} to {at_most:g} times"
    return judge_claim(claim, f"{figure:.2f} times", rule, at_least <= figure <= at_most, reason)
