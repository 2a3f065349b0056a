"""SIGMOD paper, figure 9a: the parallel join against the insertion depth.

A merge keeps what expired since the one before, for tuples under way: T_S holds the window and a quarter more. The
window whose root has the most children is therefore three quarters of the paper's 2^20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Cell, Context, Finding, Row, human, judge_claim
from benchmarks.papers.index_experiment import pick, power, speeds, values
from benchmarks.papers.parallel_experiment import BASELINE, PARALLEL, ParallelExperiment, thread_counts
from benchmarks.papers.parallel_join import ParallelJoin
from benchmarks.papers.pim_fig8c import depths

_WIDTH = 16  # what the tree itself chooses for its merge ratio
_WIDEST, _DEEPER = 3 << 18, 1 << 21
_CONGESTED = 1.5


class ParallelDepth(ParallelExperiment):
    """Every depth that the tree has, all threads."""

    title = "figure 9a: pim_parallel against insertion depth, match rate 2"
    claim = (
        "figure 9a: with the few sub-indexes of depth 1 threads wait for each other's locks; there throughput grows "
        "from w = 2^16 to 2^20 with the children of the root and falls at 2^21, where the tree gets a level; depths "
        "3 and 4 are no better than the one before"
    )
    settings = ("insertion_depth", "width")
    across, lines = "insertion_depth", ("window", "system")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every depth of each window; the width of chunks is the same at all, so that only the depth differs."""
        windows = (1 << 12,) if quick else (1 << 16, 1 << 18, _WIDEST, _DEEPER)
        most = thread_counts()[-1]
        cells: list[Cell] = []
        for window in windows:
            base = {"window": window, "threads": 1, "insertion_depth": None, "width": None}
            cells.append({**base, "system": BASELINE})
            cells += [
                {**base, "system": PARALLEL, "threads": most, "insertion_depth": depth, "width": _WIDTH}
                for depth in depths(window + window // 4)
            ]
        return cells

    def explain(self, join: ParallelJoin, cell: Cell, context: Context) -> Mapping[str, Any]:  # noqa: ARG002
        """How many sub-indexes the depth gives."""
        return {"sub_indexes": len(join.sides[0].sub_index_sizes())}

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """What few sub-indexes cost, by window, and where more no longer help."""
        windows = values(rows, "window")
        by_depth = {w: speeds(rows, "insertion_depth", window=w, system=PARALLEL) for w in windows}
        threads = pick(rows, system=PARALLEL)[0]["threads"]
        few = by_depth[windows[0]]
        gain = max(few.values()) / few[1]
        parts = [
            judge_claim(
                f"{threads} threads, w = {power(windows[0])}: with the few sub-indexes of depth 1 threads wait for "
                "each other's locks",
                f"the best depth is {gain:.2f} times depth 1",
                "at least 1.5 times",
                gain >= _CONGESTED,
                "" if threads > 2 else "two threads seldom meet in one of even two sub-indexes",
            )
        ]
        for window, speed in by_depth.items():
            deepest = max(speed)
            between = [speed[depth] for depth in speed if 1 < depth < deepest]
            if not between:
                continue
            more = speed[deepest] / max(between)
            parts.append(
                judge_claim(
                    f"w = {_size(window)}: the deepest does not improve on the others beyond depth 1",
                    f"depth {deepest}: {more:.2f} times the best of them",
                    "at most 1.1 times",
                    more <= 1.1,
                    "under a leaf a sub-index is one cache line, above it a tree",
                )
            )
        return parts + _by_children(rows)


def _by_children(rows: Sequence[Row]) -> list[Finding]:
    """Depth 1 has as many sub-indexes as the root has children."""
    shallow = {row["window"]: row for row in pick(rows, insertion_depth=1) if "sub_indexes" in row}
    if _WIDEST not in shallow or _DEEPER not in shallow:
        return []
    first, widest, deeper = shallow[min(shallow)], shallow[_WIDEST], shallow[_DEEPER]
    seen = ", ".join(
        f"{row['sub_indexes']} sub-indexes at w = {_size(window)}: {human(row['tuples_per_s'])}"
        for window, row in sorted(shallow.items())
    )
    return [
        judge_claim(
            "depth 1: throughput grows from w = 2^16 to 2^20 with the children of the root",
            f"{seen} tuples/s",
            f"more at {_size(_WIDEST)} than at {power(min(shallow))}",
            widest["tuples_per_s"] > first["tuples_per_s"],
        ),
        judge_claim(
            "depth 1: throughput falls at w = 2^21, where the tree gets a level and the root few children",
            f"{deeper['tuples_per_s'] / widest['tuples_per_s']:.0%} of that at {_size(_WIDEST)}",
            "below 90 %",
            deeper["tuples_per_s"] < 0.9 * widest["tuples_per_s"],
        ),
    ]


def _size(window: int) -> str:
    return "3 x 2^18" if window == _WIDEST else power(window)


EXPERIMENT = ParallelDepth()
