"""What figures 12b and 12c share: single-threaded and parallel joins against the window, three ways to merge.

Throughput is with all tuples there; latencies are with arrivals by the real clock at 40% of that, from a tuple's
arrival to when its results have been handed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.hardware import allowed
from benchmarks.harness import Cell, Context, Finding, Row, judge_aim, judge_claim, not_tested
from benchmarks.index_experiment import mean, pick, power, values
from benchmarks.parallel_experiment import (
    BASELINE,
    BLOCKING,
    LEAST,
    NO_BW_TREE,
    PAPER_MERGE,
    PARALLEL,
    ParallelExperiment,
    paced,
    thread_counts,
)
from benchmarks.parallel_join import ParallelJoin


class Merging(ParallelExperiment):
    """`btree`, `pim_tree`, and `pim_parallel` with all threads and its merges."""

    paper_from: ClassVar[int]
    """The smallest window of the paper's averages."""
    paper_gains: ClassVar[Mapping[str, float]]
    """What 16 threads are in the paper, times one over these indexes."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Windows from where threads hardly pay."""
        windows = (1 << 12,) if quick else (1 << 14, 1 << 17, 1 << 20)
        most = thread_counts()[-1]
        systems = (("btree", 1), (BASELINE, 1), (PARALLEL, most), (PAPER_MERGE, most), (BLOCKING, most))
        return [{"window": w, "system": system, "threads": n} for w in windows for system, n in systems]

    def explain(self, join: ParallelJoin, cell: Cell, context: Context) -> Mapping[str, Any]:  # noqa: ARG002
        """Latencies at a load that the join can bear."""
        return paced(join, LEAST[context.quick])

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Parallel over single-threaded, one merge against the others, and what is not here."""
        parts = []
        for window in values(rows, "window"):
            own = {row["system"]: row for row in pick(rows, window=window)}
            parts += _compared(f"w = {power(window)}, {own[PARALLEL]['threads']} threads", own)
        large = [row for row in rows if row["window"] >= self.paper_from]
        for system, gain in self.paper_gains.items() if large else ():
            ratios = [
                pick(large, window=window, system=PARALLEL)[0]["tuples_per_s"]
                / pick(large, window=window, system=system)[0]["tuples_per_s"]
                for window in values(large, "window")
            ]
            threads = pick(large, system=PARALLEL)[0]["threads"]
            parts.append(
                judge_claim(
                    f"from w = {power(self.paper_from)} on 16 threads are {gain} times one thread over {system}, on "
                    "average",
                    f"{threads} threads: {mean(ratios):.2f} times",
                    "as much or more",
                    mean(ratios) >= gain,
                    allowed(threads),
                )
            )
        if not self.self_join:
            parts += [
                not_tested("at w = 2^25 they are 12 and 5.3 times", "the largest window here is 2^20"),
                not_tested("PIM-Tree is 2.2 times a Bw-Tree with as many threads, from w = 2^14 on", NO_BW_TREE),
            ]
        return parts


def _compared(at: str, own: Mapping[str, Row]) -> list[Finding]:
    parallel, blocking, as_in_paper = own[PARALLEL], own[BLOCKING], own[PAPER_MERGE]
    same = blocking["tuples_per_s"] / as_in_paper["tuples_per_s"]
    apart = blocking["p999_us"] / max(1e-3, as_in_paper["p999_us"])
    gained = parallel["tuples_per_s"] / as_in_paper["tuples_per_s"]
    waits = as_in_paper["p999_us"] / max(1e-3, parallel["p999_us"])
    return [
        judge_claim(
            f"{at}: blocking merges are slightly faster than the paper's non-blocking ones",
            f"{same:.2f} times the throughput",
            "0.95 to 1.4 times",
            0.95 <= same <= 1.4,
            "all threads write a blocking merge, one thread the paper's non-blocking one",
        ),
        judge_claim(
            f"{at}: the paper's non-blocking merge keeps latency below that of the blocking one",
            f"99.9 %: {as_in_paper['p999_us']:.0f} and {blocking['p999_us']:.0f} us",
            "blocking at least 1.5 times",
            apart >= 1.5,
            "at this load the scans of what is not indexed during the paper's merge take as long as the blocking merge "
            "of all threads",
        ),
        judge_aim(
            f"{at}: our merge is as fast as the paper's",
            f"{gained:.2f} times the throughput",
            "at least 0.95 times",
            gained >= 0.95,
        ),
        judge_aim(
            f"{at}: our merge keeps latency at or below that of the paper's",
            f"99.9 %: {parallel['p999_us']:.0f} us, the paper's {waits:.1f} times that",
            "at least 0.95 times",
            waits >= 0.95,
        ),
    ]
