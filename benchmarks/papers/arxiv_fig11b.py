"""arXiv version, figure 11b: streams of unequal input rates, with one thread and with all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Cell, Context, Finding, Row, judge_claim
from benchmarks.papers.index_experiment import SAME, IndexExperiment, power, speeds, values
from benchmarks.papers.index_join import IndexJoin
from benchmarks.papers.index_keys import keys_for
from benchmarks.papers.parallel_experiment import PARALLEL, run_all_threads


class InputRates(IndexExperiment):
    """`rate` tuples of the left stream come for each of the right."""

    title = "arXiv figure 11b: throughput against the ratio of input rates, match rate 2"
    claim = (
        "arXiv figure 11b: throughput rises marginally as the input rates move apart, at every window size: more "
        "inserts go to one index and more searches to the other"
    )
    across, lines = "rate", ("index", "window")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Whole ratios, so that a period of the slow side is a whole number of the fast side's."""
        windows, rates = ((12, 15), (1, 4)) if quick else ((16, 18, 20), (1, 2, 4, 9))
        return [
            {"window": 1 << w, "rate": rate, "index": index}
            for w in windows
            for rate in rates
            for index in ("btree", "pim_tree", PARALLEL)
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """One thread, or all of them over shared trees."""
        if cell["index"] != PARALLEL:
            return super().run(cell, context)
        window = cell["window"]
        keys = keys_for("uniform", window, seed=context.seed)
        return run_all_threads((window, window), keys, context, rates=(cell["rate"], 1))

    def make(self, cell: Cell, seed: int) -> IndexJoin:
        """Equal windows, unequal rates."""
        window = cell["window"]
        keys = keys_for("uniform", window, seed=seed)
        return IndexJoin(cell["index"], (window, window), keys, rates=(cell["rate"], 1))

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The steepest ratio against equal rates."""
        parts = []
        for window in values(rows, "window"):
            for index in ("pim_tree", PARALLEL):
                by_rate = speeds(rows, "rate", index=index, window=window)
                steepest = max(by_rate)
                share = by_rate[steepest] / by_rate[1]
                parts.append(
                    judge_claim(
                        f"{index}, w = {power(window)}: throughput rises marginally as the rates move apart",
                        f"at {steepest}:1 {share:.0%} of that at 1:1",
                        f"{1 - SAME / 2:.0%} to {1 + 3 * SAME:.0%}",
                        1 - SAME / 2 <= share <= 1 + 3 * SAME,
                    )
                )
        return parts


EXPERIMENT = InputRates()
