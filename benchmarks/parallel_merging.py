"""What figures 12b and 12c share: single-threaded and parallel joins against the window, three ways to merge.

Throughput is with all tuples there; latencies are with arrivals by the real clock at 40% of that, from a tuple's
arrival to when its results have been handed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.bw_tree_join import BW_TREE, OLDER, ratio, settled
from benchmarks.hardware import allowed
from benchmarks.harness import Cell, Context, Finding, Row, judge_aim, judge_claim, not_tested
from benchmarks.index_experiment import mean, pick, power, values
from benchmarks.parallel_experiment import (
    BASELINE,
    BLOCKING,
    LEAST,
    PAPER_MERGE,
    PARALLEL,
    ParallelExperiment,
    answer,
    paced,
    thread_counts,
)
from benchmarks.parallel_join import ParallelJoin

_BW_FROM = 1 << 14
_BW_GAIN = 2.2
_BW_OVER_ONE = 1.8


class Merging(ParallelExperiment):
    """`btree`, `pim_tree`, `pim_parallel` with all threads and its merges, and where the paper has it a Bw-Tree."""

    paper_from: ClassVar[int]
    """The smallest window of the paper's averages."""
    paper_gains: ClassVar[Mapping[str, float]]
    """What 16 threads are in the paper, times one over these indexes."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Windows from where threads hardly pay."""
        windows = (1 << 12,) if quick else (1 << 14, 1 << 17, 1 << 20)
        most = thread_counts()[-1]
        systems = [("btree", 1), (BASELINE, 1), (PARALLEL, most), (PAPER_MERGE, most), (BLOCKING, most)]
        if not self.self_join:
            systems.append((BW_TREE, most))
        return [{"window": w, "system": system, "threads": n} for w in windows for system, n in systems]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Measure the join over the Bw-Trees as the others are."""
        if cell["system"] != BW_TREE:
            return super().run(cell, context)
        window = cell["window"]
        join = settled(self._kept, (context.seed, BW_TREE, window), window, context.seed, cell["threads"])
        return {**answer(self.measured(join, context)), **self.explain(join, cell, context)}

    def explain(self, join: ParallelJoin, cell: Cell, context: Context) -> Mapping[str, Any]:  # noqa: ARG002
        """Latencies at a load that the join can bear."""
        return paced(join, LEAST[context.quick])

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Parallel over single-threaded, one merge against the others, and over a Bw-Tree."""
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
                *_against_bw_tree(rows),
            ]
        return parts


def _against_bw_tree(rows: Sequence[Row]) -> list[Finding]:
    """The parallel join over PIM-Trees beside that over Bw-Trees, at each of the paper's windows and on average."""
    on_average = (
        f"from w = {power(_BW_FROM)} on PIM-Tree is {_BW_GAIN} times a Bw-Tree with as many threads, on average"
    )
    over_one = f"from w = {power(_BW_FROM)} on 16 threads over a Bw-Tree are 1.8 times one over a PIM-Tree, on average"
    threads = pick(rows, system=PARALLEL)[0]["threads"]
    ratios = {window: ratio(rows, window, PARALLEL, BW_TREE, threads) for window in values(rows, "window")}
    known = {window: times for window, times in ratios.items() if times is not None and window >= _BW_FROM}
    if not known:
        measured = any(row["system"] == BW_TREE for row in rows)
        reason = f"the windows here are smaller than {power(_BW_FROM)}" if measured else OLDER
        return [not_tested(on_average, reason), not_tested(over_one, reason)]
    findings = [
        judge_claim(
            f"w = {power(window)}, {threads} threads: PIM-Tree is ahead of a Bw-Tree",
            f"{times:.2f} times",
            "more than once",
            times > 1,
        )
        for window, times in known.items()
    ]
    gains = [
        pick(rows, window=window, system=BW_TREE)[0]["tuples_per_s"]
        / pick(rows, window=window, system=BASELINE)[0]["tuples_per_s"]
        for window in known
    ]
    return [
        *findings,
        judge_claim(
            on_average,
            f"{threads} threads: {mean(list(known.values())):.2f} times",
            "as much or more",
            mean(list(known.values())) >= _BW_GAIN,
        ),
        judge_claim(
            over_one,
            f"{threads} threads: {mean(gains):.2f} times",
            "as much or more",
            mean(gains) >= _BW_OVER_ONE,
            allowed(threads),
        ),
    ]


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
            f"99.9 %: {_paced(as_in_paper)} and {_paced(blocking)}",
            "blocking at least 1.5 times",
            apart >= 1.5,
            "during the paper's merge, which one thread writes, tuples not indexed yet are scanned: that takes "
            f"{1 / max(1e-3, apart):.1f} times as long as the blocking merge of all threads",
        ),
        judge_aim(
            f"{at}: our merge is as fast as the paper's",
            f"{gained:.2f} times the throughput",
            "at least 0.95 times",
            gained >= 0.95,
        ),
        judge_aim(
            f"{at}: our merge keeps latency at or below that of the paper's",
            f"99.9 %: {_paced(parallel)}, the paper's {_paced(as_in_paper)}: {waits:.1f} times that",
            "at least 0.95 times",
            waits >= 0.95,
        ),
    ]


def _paced(row: Row) -> str:
    return f"{row['p999_us']:.0f} us at {row['arrivals_per_s'] / 1e6:.1f} M arrivals/s"
