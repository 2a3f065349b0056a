"""Ways, groups and similarity (AJoin, figure 20): the highest rate of 20 queries, by what they have in common.

A whole run takes about four minutes on two quiet cores: some twelve seconds a cell.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Cell, Context, Figure, Finding, Row
from benchmarks.papers.ajoin_rate import RateExperiment, judge_ratio, of_each, ratio
from benchmarks.papers.ajoin_runs import ALL, APART, SHARED, Workload, template

QUERIES = 20
WAYS, GROUPS, SIMILARITIES = (2, 3, 4, 5), (1, 2, 10), (0, 50, 100)


def grouped(groups: int, count: int) -> Workload:
    """Wide bands, selections that overlap within a group and not at all between groups: figure 6's case."""
    texts = {}
    for number in range(count):
        low, high = (500 * (number % groups + step) // groups - step for step in (0, 1))
        chosen = " AND ".join(f"{stream}.a5 BETWEEN {low} AND {high}" for stream in ("S1", "S2"))
        texts[f"q{number}"] = (
            f"SELECT S1.a1 AS x, S2.a1 AS y FROM S1 JOIN S2 WITHIN {1 + number % 3} SECONDS "
            f"ON S1.a0 BETWEEN S2.a0 - 50 AND S2.a0 + 50 WHERE {chosen} AND S1.a4 >= {490 - number}"
        )
    return Workload(("S1", "S2"), texts)


class Figure20(RateExperiment):
    """Three panels: n-way joins, disjoint groups of queries, similarity."""

    title = "n-way joins, groups and similarity: 20 queries"
    claim = (
        "AJoin, figure 20: the rate drops from two-way to three-way joins and less after; it drops with more groups, "
        "and rises with similarity, more than where everything is shared"
    )

    def cells(self, quick: bool) -> Sequence[Cell]:
        """A cell varies one of the three; no sharing only for similarity, where it is the paper's Flink."""
        ways, groups, similar = ((2, 3), (2,), (50,)) if quick else (WAYS, GROUPS, SIMILARITIES)
        points: list[Cell] = [
            *({"ways": way} for way in ways),
            *({"groups": group} for group in groups),
            *({"similarity": percent} for percent in similar),
        ]
        return [
            {**point, "system": system}
            for point in points
            for system in (SHARED, ALL, *([APART] if "similarity" in point else []))
        ]

    def workload(self, cell: Cell, context: Context) -> Workload:
        """Selections keep a half, so that 5-way joins have results."""
        if "groups" in cell:
            return grouped(cell["groups"], QUERIES)
        ways, percent = cell.get("ways", 2), cell.get("similarity", 50)
        return template(ways, percent, QUERIES, context.seed, selectivity=0.5)

    def by_engine(self, cell: Cell) -> bool:  # noqa: ARG002 - all
        """As the paper's user has it."""
        return True

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A panel each."""
        self.draw(rows, figure, "ways", "groups", "similarity")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The paper's curves."""
        falls = {
            b: ratio(rows, {"system": SHARED, "ways": b}, {"system": SHARED, "ways": a}) for a, b in ((2, 3), (3, 4))
        }
        parts = [
            judge_ratio(f"the rate drops from {n - 1}-way to {n}-way joins", fall, 0.0, 1.0)
            for n, fall in falls.items()
        ]
        sharp, mild = falls[3], falls[4]
        parts.append(
            judge_ratio(
                "the first drop is sharp, the second smaller: what is left of the rate after the second, beside the "
                "first",
                None if sharp is None or mild is None else mild / sharp,
                1.0,
                reason="every way adds rows: per tuple "
                + of_each(rows, "rows_per_tuple", *({"system": SHARED, "ways": n} for n in WAYS[:3])),
            )
        )
        groups = sorted({row["groups"] for row in rows if "groups" in row})
        similar = sorted({row["similarity"] for row in rows if "similarity" in row})
        ends = [{"system": SHARED, "similarity": percent} for percent in (similar[-1], similar[0])]
        parts += [
            judge_ratio(
                f"the rate drops with more groups of queries ({groups[-1]} beside {groups[0]})",
                None
                if len(groups) < 2
                else ratio(rows, {"system": SHARED, "groups": groups[-1]}, {"system": SHARED, "groups": groups[0]}),
                0.0,
                1.0,
                "the more groups, the fewer tuples each selects: rows per tuple "
                + of_each(rows, "rows_per_tuple", *({"system": SHARED, "groups": n} for n in (groups[0], groups[-1]))),
            ),
            judge_ratio(
                f"{groups[-1]} groups: grouping by cost beside sharing everything",
                ratio(rows, {"system": SHARED, "groups": groups[-1]}, {"system": ALL, "groups": groups[-1]}),
                1.0,
            ),
            judge_ratio(
                f"the rate rises with similarity ({similar[-1]} % beside {similar[0]} %)",
                None if len(similar) < 2 else ratio(rows, ends[0], ends[1]),
                1.0,
                reason=_rows_too(ratio(rows, ends[0], ends[1], "rows_per_s")),
            ),
        ]
        gains = [
            ratio(rows, {"system": SHARED, "similarity": n}, {"system": APART, "similarity": n})
            for n in (similar[-1], similar[0])
        ]
        parts.append(
            judge_ratio(
                "sharing gains more over no sharing the more similar queries are: the gain at the highest beside the "
                "lowest similarity",
                None if len(similar) < 2 or gains[0] is None or gains[1] is None else gains[0] / gains[1],
                1.0,
            )
        )
        return parts


def _rows_too(figure: float | None) -> str:
    return "" if figure is None else f"similar queries give more rows: {figure:.2f} times as many per second"


EXPERIMENT = Figure20()
