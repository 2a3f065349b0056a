"""arXiv version, figure 14: the cost of one merge against the window size.

The index is filled up to the entry that would start a merge, and the merge alone is timed: unloading T_I, merging it
with what is live of T_S, and building the inner levels.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.harness import Cell, Context, Finding, Row, judge_claim
from benchmarks.papers.index_experiment import IndexExperiment, mean, pick, power
from benchmarks.papers.index_join import IndexJoin
from benchmarks.papers.index_keys import keys_for

_INDEXES = ("im_tree", "pim_tree")
_MERGE_RATIO = 1 / 8
_LEAST_ENTRIES = 1 << 20
_LINEAR = 2.0


class MergeCost(IndexExperiment):
    """Entries merged a second; both merging indexes."""

    title = "arXiv figure 14: cost of a merge against window size, merge ratio 1/8"
    claim = "arXiv figure 14 (equation 7): the cost of a merge is linear in the number of elements of the tree"
    measure = "entries_per_s"
    unit = "entries/s"
    against: ClassVar = {"index": "im_tree"}
    across, lines, log, drawn = "window", ("index",), True, "ms_a_merge"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every fourfold window and the largest."""
        windows = (12, 16) if quick else (14, 16, 18, 20, 22, 23)
        return [{"window": 1 << w, "index": index} for w in windows for index in _INDEXES]

    def make(self, cell: Cell, seed: int) -> IndexJoin:
        """The index of one side."""
        window = cell["window"]
        ratio = {"merge_ratio": _MERGE_RATIO}
        return IndexJoin(cell["index"], (window, window), keys_for("uniform", window, seed=seed), ratio, self_join=True)

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Merge until enough entries have been: small merges are short."""
        join = self.settled(cell, context)
        merges = max(1, _LEAST_ENTRIES // cell["window"])
        spent = entries = 0
        for _ in range(merges):
            join.left.merge()
            join.advance(join.period())
            entries += len(join.left)
            begin = time.thread_time_ns()
            join.left.merge()
            spent += time.thread_time_ns() - begin
        return {
            "entries_per_s": entries / spent * 1e9,
            "ms_a_merge": spent / merges / 1e6,
            "ns_an_entry": spent / entries,
        }

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Whether an entry costs the same at every size, and in both trees."""
        parts = []
        fixed, cached = "a short merge is mostly its fixed cost", "small trees merge within the cache"
        for index in _INDEXES:
            cost = {row["window"]: row["ns_an_entry"] for row in pick(rows, index=index)}
            spread = max(cost.values()) / min(cost.values())
            longest = pick(rows, index=index, window=max(cost))[0]["ms_a_merge"]
            parts.append(
                judge_claim(
                    f"{index}: a merge is linear in the elements of the tree",
                    f"{cost[min(cost)]:.1f} ns per entry at w = {power(min(cost))}, {cost[max(cost)]:.1f} at "
                    f"{power(max(cost))} ({longest:.0f} ms); most over least {spread:.2f}",
                    f"most over least at most {_LINEAR:g}",
                    spread <= _LINEAR,
                    fixed if cost[min(cost)] > cost[max(cost)] else cached,
                )
            )
        ratio = mean(row["ratio"] for row in pick(rows, index="pim_tree"))
        parts.append(
            judge_claim(
                "figure 10a: both trees merge alike",
                f"pim_tree {ratio:.2f} times as fast as im_tree",
                "within 25 %",
                0.8 <= ratio <= 1.25,
            )
        )
        return parts


EXPERIMENT = MergeCost()
