"""arXiv version, figure 11b: streams of unequal input rates; here with one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.harness import Cell, Row
from benchmarks.index_experiment import SAME, IndexExperiment, agrees, draw, pick, power, speeds, values
from benchmarks.index_join import IndexJoin
from benchmarks.index_keys import keys_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class InputRates(IndexExperiment):
    """`rate` tuples of the left stream come for each of the right."""

    title = "arXiv figure 11b: throughput against the ratio of input rates, match rate 2"
    claim = (
        "arXiv figure 11b: throughput rises marginally as the input rates move apart, at every window size: more "
        "inserts go to one index and more searches to the other (the paper runs it with 16 threads)"
    )

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Whole ratios, so that a period of the slow side is a whole number of the fast side's."""
        windows, rates = ((12, 15), (1, 4)) if quick else ((16, 18, 20), (1, 2, 4, 9))
        return [
            {"window": 1 << w, "rate": rate, "index": index}
            for w in windows
            for rate in rates
            for index in ("btree", "pim_tree")
        ]

    def make(self, cell: Cell, seed: int) -> IndexJoin:
        """Equal windows, unequal rates."""
        window = cell["window"]
        keys = keys_for("uniform", window, seed=seed)
        return IndexJoin(cell["index"], (window, window), keys, rates=(cell["rate"], 1))

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Throughput against the ratio of the rates."""
        draw(figure.subplots(), rows, x="rate", by=("index", "window"))

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The steepest ratio against equal rates."""
        lines = []
        for window in values(rows, "window"):
            shares = {}
            for index in ("btree", "pim_tree"):
                by_rate = speeds(rows, "rate", index=index, window=window)
                shares[index] = by_rate[max(by_rate)] / by_rate[1]
            worst = min(row["ratio"] for row in pick(rows, window=window, index="pim_tree"))
            lines.append(
                f"w = {power(window)}: at {max(values(rows, 'rate'))}:1 pim_tree runs at {shares['pim_tree']:.0%} of "
                f"its speed at 1:1 (paper: slightly above 100%): {agrees(shares['pim_tree'] >= 1 - SAME)}; btree at "
                f"{shares['btree']:.0%}; pim_tree is {worst:.2f} times btree at the least"
            )
        return lines


EXPERIMENT = InputRates()
