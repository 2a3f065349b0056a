"""SIGMOD paper, figures 13b and 13c: a Gaussian that drifts, as far as one thread shows it.

A self-join over one stream in three phases: the centre of the keys rests, moves by `drift` within ten windows, and
rests again. In the second phase the sizes of the sub-indexes say how the inserts were spread over them. `pim_tree` runs
as it comes and, as "figure 13", with merge ratio 1 and 1,024 sub-indexes. The window is smaller than the paper's 2^20:
what counts is how far the centre moves between two merges, and that is set in windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from benchmarks.harness import Cell, Context, Figure, Finding, Row, judge_claim, not_tested
from benchmarks.papers.index_experiment import BASELINE, SAME, IndexExperiment, pick
from benchmarks.papers.index_join import IndexJoin
from benchmarks.papers.index_keys import Drift, ShapedKeys, gaussian
from benchmarks.report_lines import draw_lines
from streamjoin.pim_tree.pim_tree import PimTreeIndex

_FIGURE_13 = {"merge_ratio": 1.0, "leaf_size": 8, "fanout": 32, "insertion_depth": 2}
_REST, _DRIFT, _REST_AGAIN = 5, 10, 3  # windows; settling takes up to three of the first five
_SLOW, _PAPER_FASTEST = 0.2, 1.0
_IDLE = 0.1  # of an even share
_READ = 2  # of the drift's ten windows: reading sub-indexes empties the caches, so it comes after the timed ones
_READINGS, _FULL = 4, 0.75


class ShiftingGaussian(IndexExperiment):
    """Speed before, during and after the drift; spread of the inserts during it."""

    title = "figures 13b and 13c: self-join on a drifting Gaussian, one thread"
    claim = (
        "figures 13b and 13c, w = 2^20, 16 threads: at rest inserts spread evenly over the sub-indexes; at r = 1 one "
        "of them gets 77% and 70% get almost none; slow drifts (r up to 0.2) cost nothing, fast ones (0.8, 1) leave "
        "16% of the throughput, as threads queue for one sub-index's lock; once the drift ends, throughput recovers"
    )
    against: ClassVar = {"index": BASELINE, "layout": None}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The paper's drifts, and one ten times as fast as its fastest."""
        window = 1 << (13 if quick else 18)
        drifts = (0.0, 1.0, 10.0) if quick else (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 10.0)
        systems = (("btree", None), ("pim_tree", "chosen"), ("pim_tree", "figure 13"))
        return [
            {"window": window, "drift": drift, "index": index, "layout": layout}
            for drift in drifts
            for index, layout in systems
        ]

    def make(self, cell: Cell, seed: int) -> IndexJoin:
        """A self-join; the first window of the stream fills the index."""
        window = cell["window"]
        begin = _REST * window
        drift = Drift(cell["drift"], begin, begin + _DRIFT * window)
        keys = ShapedKeys(window, gaussian(), seed=seed, drift=drift)
        settings = _FIGURE_13 if cell["layout"] == "figure 13" else {}
        return IndexJoin(cell["index"], (window, window), keys, settings, self_join=True)

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """All three phases of a new stream."""
        window = cell["window"]
        join = self.make(cell, context.seed)
        join.settle()
        before = join.run(_REST * window - window - join.arrived)
        during = join.run((_DRIFT - _READ) * window)
        spread = _insert_spread(join, _READ * window)
        join.run(_REST_AGAIN * window - window)
        after = join.run(window)
        return {
            **during.answer(),
            "before_per_s": before.answer()["tuples_per_s"],
            "after_per_s": after.answer()["tuples_per_s"],
            **spread,
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Speed during and after the drift as a share of before; the largest sub-index."""
        left, right = figure.subplots(1, 2)
        shares = [
            {
                **row,
                "system": f"{row['index']} {row['layout'] or ''}",
                "during": row["tuples_per_s"] / row["before_per_s"],
            }
            for row in rows
        ]
        draw_lines(left, shares, x="drift", by=("system",), y="during")
        draw_lines(right, pick(shares, index="pim_tree"), x="drift", by=("system",), y="largest_share")
        for axes in (left, right):
            axes.set_xscale("symlog", linthresh=1)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The spread of inserts at rest and at the paper's fastest drift, the cost of drifting, the recovery."""
        return [part for layout in ("figure 13", "chosen") for part in _judged(layout, pick(rows, layout=layout))]


def _judged(layout: str, rows: Sequence[Row]) -> list[Finding]:
    own = {row["drift"]: row for row in rows}
    rest, fast = own[0.0], own[_PAPER_FASTEST]
    kept = {drift: row["tuples_per_s"] / row["before_per_s"] for drift, row in own.items()}
    slow = min(share for drift, share in kept.items() if drift <= _SLOW)
    back = min(row["after_per_s"] / row["before_per_s"] for row in own.values())
    beyond = _spread(own[max(own)])
    return [
        judge_claim(
            f"{layout}: at rest inserts spread evenly",
            _spread(rest),
            "at most a tenth idle",
            rest["idle_share"] <= SAME,
        ),
        judge_claim(
            f"{layout}: at r = 1 one sub-index gets 77 % and 70 % get almost none",
            _spread(fast),
            "at least half each",
            fast["largest_share"] >= 0.5 and fast["idle_share"] >= 0.5,
            "r within ten windows moves the centre by 0.1 r between two merges, less than its deviation of 0.125, so "
            f"most keys fall among those of T_S; at r = {max(own):g} {beyond}",
        ),
        judge_claim(f"{layout}: slow drifts cost nothing", f"{slow:.0%} is left", "at least 90 %", slow >= 1 - SAME),
        not_tested(
            f"{layout}: at r = 1 16 % of the throughput of 16 threads is left",
            f"with one thread nobody waits for a lock: {kept[_PAPER_FASTEST]:.0%} is left; figure 13c has the threads",
        ),
        judge_claim(
            f"{layout}: throughput recovers once the drift has ended", f"{back:.0%}", "at least 90 %", back >= 0.9
        ),
    ]


def _insert_spread(join: IndexJoin, tuples: int) -> dict[str, float]:
    """Go on drifting, reading the sub-indexes four times between merges; the fullest readings count.

    Skew can bring a merge forward, so it is not known ahead which reading is the last before one.
    """
    index = join.left
    if not isinstance(index, PimTreeIndex):
        join.advance(tuples)
        return {"largest_share": 1.0, "idle_share": 0.0}
    readings = []
    step = join.period() // _READINGS
    for done in range(0, tuples, step):
        join.advance(min(step, tuples - done))
        sizes = np.array(index.sub_index_sizes())
        readings.append((int(sizes.sum()), int(sizes.max()), float(np.mean(sizes < _IDLE * sizes.mean()))))
    full = [reading for reading in readings if reading[0] >= _FULL * max(readings)[0]]
    inserts, largest, idle = (sum(column) for column in zip(*full, strict=True))
    return {"largest_share": largest / inserts, "idle_share": idle / len(full)}


def _spread(row: Row) -> str:
    return (
        f"the largest sub-index gets {row['largest_share']:.1%} of the inserts, {row['idle_share']:.0%} get almost none"
    )


EXPERIMENT = ShiftingGaussian()
