"""Figures 9b and 9c are one experiment on two indexes: throughput against the merge ratio m."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from benchmarks.harness import Cell, Figure, Finding, Row, judge_aim, judge_claim
from benchmarks.papers.index_experiment import BASELINE, IndexExperiment, pick, power, speeds, values
from benchmarks.report_lines import draw_lines
from streamjoin.indexes.registry import make_index

_PAPER_BEST = {1 << 16: -3, 1 << 23: -4}
_CLOSE_ENOUGH, _COSTS = 0.9, 0.95
_SOONER = "a merge is cheap here beside the misses in a large T_I"
_LATER = "a merge weighs more here than a fuller T_I"


class MergeRatio(IndexExperiment):
    """One index at every merge ratio."""

    index: ClassVar[str]
    against: ClassVar = {"index": BASELINE, "merge_ratio": None}
    settings = ("merge_ratio",)
    repeats = 2  # a period at m = 1 and w = 2^23 is 2^24 tuples long

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The paper's ratios from 2^-6 to 1."""
        windows, exponents = ((12, 15), (-6, -3, 0)) if quick else ((16, 20, 23), range(-6, 1))
        cells: list[Cell] = []
        for window in (1 << w for w in windows):
            cells.append({"window": window, "index": "btree", "merge_ratio": None})
            cells += [{"window": window, "index": self.index, "merge_ratio": 2.0**k} for k in exponents]
        return cells

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Throughput against the ratio, a line a window."""
        draw_lines(figure.subplots(), pick(rows, index=self.index), x="merge_ratio", by=("window",))

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The best ratio by window, both ends, the spread, and the ratio that the index chooses itself."""
        parts, spreads = [], []
        for window in values(rows, "window"):
            by_ratio = speeds(rows, "merge_ratio", index=self.index, window=window)
            lowest, best, highest = min(by_ratio), max(by_ratio, key=by_ratio.__getitem__), max(by_ratio)
            spreads.append(max(by_ratio.values()) / min(by_ratio.values()))
            at = f"{self.index}, w = {power(window)}"
            if window in _PAPER_BEST:
                paper = _PAPER_BEST[window]
                parts.append(
                    judge_claim(
                        f"{at}: m = 2^{paper} is best",
                        f"m = {power(best)}",
                        "at most a factor of two apart",
                        abs(math.log2(best) - paper) <= 1,
                        _SOONER if math.log2(best) < paper else _LATER,
                    )
                )
            for end, name in ((lowest, "frequent merges"), (highest, "a large T_I")):
                parts.append(
                    judge_claim(
                        f"{at}: {name} (m = {power(end)}) cost throughput",
                        f"{by_ratio[end] / by_ratio[best]:.0%} of the best",
                        "below 95 %",
                        by_ratio[end] < _COSTS * by_ratio[best],
                    )
                )
            parts.append(self._own_choice(window, by_ratio))
        parts.append(
            judge_claim(
                "the ratio matters more in small windows",
                f"best over worst {spreads[0]:.2f} in the smallest and {spreads[-1]:.2f} in the largest window",
                "more in the smallest",
                spreads[0] > spreads[-1],
                "in a large window every search of T_I misses the caches, in a small one none does",
            )
        )
        return parts

    def _own_choice(self, window: int, by_ratio: Mapping[float, float]) -> Finding:
        chosen = make_index(self.index, window).settings()["merge_ratio"]
        measured = min(by_ratio, key=lambda ratio: abs(math.log2(ratio / chosen)))
        share = by_ratio[measured] / max(by_ratio.values())
        return judge_aim(
            f"{self.index}, w = {power(window)}: the ratio that the index chooses, {power(chosen)}, is near the best",
            f"{share:.0%} of it",
            f"at least {_CLOSE_ENOUGH:.0%}",
            share >= _CLOSE_ENOUGH,
        )
