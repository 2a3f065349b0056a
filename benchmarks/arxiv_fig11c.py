"""arXiv version, figure 11c: windows of unequal sizes; here with one thread.

The band is set so that the mean over both sides is two matches a tuple: where the right window is the larger, a left
tuple meets more partners than a right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.harness import Cell, Row
from benchmarks.index_experiment import SAME, IndexExperiment, agrees, draw, power, speeds, values
from benchmarks.index_join import IndexJoin
from benchmarks.index_keys import keys_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class WindowSizes(IndexExperiment):
    """All pairs of windows with the left one no larger; the join is symmetric."""

    title = "arXiv figure 11c: throughput for windows of unequal sizes, match rate 2"
    claim = (
        "arXiv figure 11c: with one window fixed, throughput falls as the other grows, and less than when both grow "
        "(the paper runs it with 16 threads)"
    )

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every fourfold size."""
        sizes = [1 << w for w in ((12, 16) if quick else (16, 18, 20, 22))]
        return [
            {"window": left, "right_window": right, "index": index}
            for left in sizes
            for right in sizes
            if left <= right
            for index in ("btree", "pim_tree")
        ]

    def make(self, cell: Cell, seed: int) -> IndexJoin:
        """Equal rates, unequal windows."""
        left, right = cell["window"], cell["right_window"]
        return IndexJoin(cell["index"], (left, right), keys_for("uniform", (left + right) // 2, seed=seed))

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Throughput against the larger window, a line a smaller one."""
        draw(figure.subplots(), rows, x="right_window", by=("index", "window"))

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The fall along each line, and against the line where both grow."""
        lines = []
        small = "windows that fit the cache cost about the same whatever their size"
        for index in ("btree", "pim_tree"):
            both = {w: speeds(rows, "right_window", index=index, window=w)[w] for w in values(rows, "window")}
            falls, less = [], []
            for left in values(rows, "window")[:-1]:
                one = speeds(rows, "right_window", index=index, window=left)
                falls.append(one[max(one)] / one[left])
                less.append(one[max(one)] >= (1 - SAME) * both[max(both)])
            smallest = min(both)
            lines.append(
                f"{index}: beside a left window of {power(smallest)}, growing the right one to {power(max(both))} "
                f"leaves {falls[0]:.0%} of the speed, growing both {both[max(both)] / both[smallest]:.0%} (paper: it "
                f"falls, and less when one grows): {agrees(max(falls) < 1 and all(less), small)}"
            )
        return lines


EXPERIMENT = WindowSizes()
