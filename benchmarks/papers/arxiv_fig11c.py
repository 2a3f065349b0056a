"""arXiv version, figure 11c: windows of unequal sizes, with one thread and with all.

The band is set so that the mean over both sides is two matches a tuple: where the right window is the larger, a left
tuple meets more partners than a right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Cell, Context, Finding, Row, judge_claim
from benchmarks.papers.index_experiment import IndexExperiment, power, speeds, values
from benchmarks.papers.index_join import IndexJoin
from benchmarks.papers.index_keys import keys_for
from benchmarks.papers.parallel_experiment import PARALLEL, run_all_threads


class WindowSizes(IndexExperiment):
    """All pairs of windows with the left one no larger; the join is symmetric."""

    title = "arXiv figure 11c: throughput for windows of unequal sizes, match rate 2"
    claim = "arXiv figure 11c: with one window fixed, throughput falls as the other grows, and less than when both grow"
    across, lines = "right_window", ("index", "window")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every fourfold size."""
        sizes = [1 << w for w in ((12, 16) if quick else (16, 18, 20, 22))]
        return [
            {"window": left, "right_window": right, "index": index}
            for left in sizes
            for right in sizes
            if left <= right
            for index in ("btree", "pim_tree", PARALLEL)
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """One thread, or all of them over shared trees."""
        if cell["index"] != PARALLEL:
            return super().run(cell, context)
        left, right = cell["window"], cell["right_window"]
        return run_all_threads((left, right), keys_for("uniform", (left + right) // 2, seed=context.seed), context)

    def make(self, cell: Cell, seed: int) -> IndexJoin:
        """Equal rates, unequal windows."""
        left, right = cell["window"], cell["right_window"]
        return IndexJoin(cell["index"], (left, right), keys_for("uniform", (left + right) // 2, seed=seed))

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The fall along each line, and against the line where both grow."""
        parts = []
        for index in ("pim_tree", PARALLEL):
            both = {w: speeds(rows, "right_window", index=index, window=w)[w] for w in values(rows, "window")}
            smallest, largest = min(both), max(both)
            together = both[largest] / both[smallest]
            for left in values(rows, "window")[:-1]:
                one = speeds(rows, "right_window", index=index, window=left)
                fall = one[largest] / one[left]
                parts.append(
                    judge_claim(
                        f"{index}, left window {power(left)}: throughput falls as the right one grows",
                        f"{fall:.0%} is left at {power(largest)}",
                        "less than all",
                        fall < 1,
                        "windows that fit the cache cost about the same whatever their size",
                    )
                )
            alone = speeds(rows, "right_window", index=index, window=smallest)[largest] / both[smallest]
            parts.append(
                judge_claim(
                    f"{index}: it falls less than when both grow",
                    f"from {power(smallest)} to {power(largest)}: one {alone:.0%}, both {together:.0%}",
                    "more is left when one grows",
                    alone > together,
                )
            )
        return parts


EXPERIMENT = WindowSizes()
