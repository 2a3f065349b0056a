"""Distinct keys and the selectivity of selections (AJoin, figure 17): 20 two-way queries at 50 % similarity.

A whole run takes about three minutes on two quiet cores: some twelve seconds a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from benchmarks.harness import Cell, Context, Figure, Finding, Row, judge_aim, not_tested
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_rate import RateExperiment, judge_ratio, of_each, ratio
from benchmarks.papers.ajoin_runs import ALL, APART, SHARED, Workload

QUERIES = 20
LISTING = 0.25
"""The share of the time that dealing out results may take."""
KEYS, SHARES = (50, 500, 5_000), (0.1, 0.5, 0.9)


def _tuples(keys: int, stream: int, count: int, seed: int, rate: float, first: int) -> pa.Table:
    return ajoin.tuples(stream, count, seed, rate=rate, first=first, keys=keys)


class Figure17(RateExperiment):
    """The highest rate by keys and by selectivity."""

    title = "distinct keys and selectivity: 20 two-way queries, 50 % similarity"
    claim = "AJoin, figure 17: the rate falls with more distinct keys, and as selections keep more"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Keys at a selectivity of a half, and selectivities at 500 keys."""
        points = [(500, 0.5)] if quick else [*((keys, 0.5) for keys in KEYS), *((500, s) for s in SHARES if s != 0.5)]
        systems = (SHARED, ALL) if quick else (SHARED, ALL, APART)
        return [{"keys": keys, "selectivity": share, "system": system} for keys, share in points for system in systems]

    def workload(self, cell: Cell, context: Context) -> Workload:
        """Constants are spread over the keys, so that selections keep their share whatever the number of keys."""
        generator = ajoin.QueryGenerator(2, 50, seed=context.seed, selectivity=cell["selectivity"])
        scale = cell["keys"] / ajoin.ATTRIBUTE_MAX
        texts = {}
        for number, query in enumerate(generator.queries(QUERIES)):
            spread = tuple(replace(found, value=round(found.value * scale)) for found in query.selections)
            texts[f"q{number}"] = replace(query, selections=spread).text
        return Workload(generator.pattern.streams, texts, tuples=partial(_tuples, cell["keys"]))

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A panel for keys, one for selectivity."""
        self.draw(rows, figure, "keys", "selectivity")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The direction of both curves, and what sharing is worth."""
        half = {"keys": 500, "selectivity": 0.5}
        ends = [{"system": SHARED, "keys": keys, "selectivity": 0.5} for keys in (KEYS[0], KEYS[-1])]
        shares = [of_each(rows, f"{part}_share", {"system": SHARED, **half}) for part in ("joins", "rows")]
        return [
            judge_ratio(
                f"the rate falls with more distinct keys ({KEYS[-1]} beside {KEYS[0]})",
                ratio(rows, {"system": SHARED, "keys": KEYS[-1]}, {"system": SHARED, "keys": KEYS[0]}),
                0.0,
                1.0,
                "every pair is a row here, and more keys make fewer: rows per tuple "
                + of_each(rows, "rows_per_tuple", *ends),
            ),
            judge_ratio(
                f"the rate falls as selections keep more ({SHARES[-1]:.0%} beside {SHARES[0]:.0%})",
                ratio(
                    rows,
                    {"system": SHARED, "keys": 500, "selectivity": SHARES[-1]},
                    {"system": SHARED, "keys": 500, "selectivity": SHARES[0]},
                ),
                0.0,
                1.0,
            ),
            judge_ratio(
                "sharing is faster than no sharing at 500 keys and one half",
                ratio(rows, {"system": SHARED, **half}, {"system": APART, **half}),
                1.0,
                reason="every query has rows of its own, which sharing does not make fewer: of the time, their pairs "
                f"take {shares[0]}, their lists {shares[1]}",
            ),
            *_listing(rows),
            not_tested(
                "the same curves of AStream, Spark and Flink",
                "figure 15 has Spark and Flink beside the engine; AStream is not public",
            ),
        ]


def _listing(rows: Sequence[Row]) -> list[Finding]:
    """What rows take that are not read, and what reading them all would."""
    shared = [row for row in rows if row["system"] == SHARED and "reading_share" in row]
    if not shared:
        return []
    most, reading = (max(float(row[key]) for row in shared) for key in ("rows_share", "reading_share"))
    figure = f"{most:.0%} at the most; to read every row would take {reading:.2f} times the batch besides"
    return [
        judge_aim(
            "rows are listed, and gathered where they are read",
            figure,
            f"at most {LISTING:.0%} of the time",
            most <= LISTING,
        )
    ]


EXPERIMENT = Figure17()
