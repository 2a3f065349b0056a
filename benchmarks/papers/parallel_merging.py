"""What figures 12b and 12c share: single-threaded and parallel joins against the window, three ways to merge.

Throughput is with all tuples there; latencies are with arrivals by the real clock, from a tuple's arrival to when its
results have been handed on. All three ways to merge get the same arrivals: 40% of what the paper's can do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.hardware import allowed
from benchmarks.harness import Cell, Context, Finding, Row, judge_aim, judge_claim, not_tested
from benchmarks.papers.bw_tree_join import BW_TREE, OLDER, ratio, settled
from benchmarks.papers.index_experiment import mean, pick, power, values
from benchmarks.papers.parallel_experiment import (
    BASELINE,
    BLOCKING,
    LEAST,
    LOAD,
    PAPER_MERGE,
    PARALLEL,
    ParallelExperiment,
    answer,
    cores,
    latencies,
    thread_counts,
)

_BW_FROM = 1 << 14
_BW_GAIN = 2.2
_BW_OVER_ONE = 1.8
_LARGEST = 1 << 23
"""Where gains are greatest: the paper's largest window is 2^25, which takes minutes to fill here."""


class Merging(ParallelExperiment):
    """`btree`, `pim_tree`, `pim_parallel` with all threads and its merges, and where the paper has it a Bw-Tree."""

    paper_from: ClassVar[int]
    """The smallest window of the paper's averages."""
    paper_gains: ClassVar[Mapping[str, float]]
    """What 16 threads are in the paper, times one over these indexes."""
    largest_gains: ClassVar[Mapping[str, float]] = {}
    """Likewise at the paper's largest window."""

    def __init__(self) -> None:
        super().__init__()
        self._arrivals: dict[int, float] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Windows from where threads hardly pay."""
        windows = (1 << 12,) if quick else (1 << 14, 1 << 17, 1 << 20)
        most = thread_counts()[-1]
        # The paper's merge, the slowest, is ahead of the others: it sets their arrivals.
        systems = [("btree", 1), (BASELINE, 1), (PAPER_MERGE, most), (PARALLEL, most), (BLOCKING, most)]
        if not self.self_join:
            systems.append((BW_TREE, most))
        cells = [{"window": w, "system": system, "threads": n} for w in windows for system, n in systems]
        if self.largest_gains and not quick and cores() > 2:
            largest = [*((system, 1) for system in self.largest_gains), (PARALLEL, most)]
            cells += [{"window": _LARGEST, "system": system, "threads": n} for system, n in largest]
        return cells

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Throughput; where ways to merge are compared also latencies."""
        window = cell["window"]
        if cell["system"] == BW_TREE:
            join = settled(self._kept, (context.seed, BW_TREE, window), window, context.seed, cell["threads"])
            return answer(self.measured(join, context))
        row = super().run(cell, context)
        if cell["threads"] == 1 or window == _LARGEST:
            return row
        arrivals = self._arrivals.setdefault(window, LOAD * row["tuples_per_s"])
        return {**row, **latencies(self.parallel(cell, context), LEAST[context.quick], arrivals)}

    def close(self) -> None:
        """Let go of the joins, and measure the arrivals anew next time."""
        super().close()
        self._arrivals.clear()

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Parallel over single-threaded, one merge against the others, and over a Bw-Tree."""
        parts = []
        threads = pick(rows, system=PARALLEL)[0]["threads"]
        for window in values(rows, "window"):
            own = {row["system"]: row for row in pick(rows, window=window)}
            if PAPER_MERGE in own:
                parts += _compared(f"w = {power(window)}, {threads} threads", own)
        large = [window for window in values(rows, "window") if window >= self.paper_from]
        for system, gain in self.paper_gains.items() if large else ():
            ratios = [_gain(rows, window, system) for window in large]
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
        for system, gain in self.largest_gains.items():
            what = f"at w = 2^25 they are {gain:g} times one over {system}"
            if _LARGEST not in large:
                parts.append(not_tested(what, f"the largest window here is {power(max(values(rows, 'window')))}"))
                continue
            ours = _gain(rows, _LARGEST, system)
            parts.append(
                judge_claim(
                    what,
                    f"w = {power(_LARGEST)}, {threads} threads: {ours:.2f} times",
                    "as much or more",
                    ours >= gain,
                    allowed(threads),
                )
            )
        if not self.self_join:
            parts += _against_bw_tree(rows)
        return parts


def _gain(rows: Sequence[Row], window: int, system: str) -> float:
    """All threads over one with this index."""
    own = {row["system"]: row["tuples_per_s"] for row in pick(rows, window=window)}
    return float(own[PARALLEL] / own[system])


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
    ahead = [
        pick(rows, window=window, system=BASELINE)[0]["tuples_per_s"]
        / pick(rows, window=window, system="btree")[0]["tuples_per_s"]
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
            f"one thread over a PIM-Tree is {mean(ahead):.1f} times one over a B+-tree here, 2.0 in the paper",
        ),
    ]


def _compared(at: str, own: Mapping[str, Row]) -> list[Finding]:
    parallel, blocking, as_in_paper = own[PARALLEL], own[BLOCKING], own[PAPER_MERGE]
    same = blocking["tuples_per_s"] / as_in_paper["tuples_per_s"]
    apart = blocking["p999_us"] / max(1e-3, as_in_paper["p999_us"])
    gained = parallel["tuples_per_s"] / as_in_paper["tuples_per_s"]
    waits = as_in_paper["p999_us"] / max(1e-3, parallel["p999_us"])
    arrivals = f"{parallel['arrivals_per_s'] / 1e6:.1f} M arrivals/s"
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
            f"99.9 %: {as_in_paper['p999_us']:.0f} and {blocking['p999_us']:.0f} us at {arrivals}",
            "blocking at least 1.5 times",
            apart >= 1.5,
            "during the paper's merge, which one thread writes, tuples that come are not indexed but scanned, and all "
            f"threads write the blocking one: on average a tuple takes {as_in_paper['mean_us']:.0f} us and "
            f"{blocking['mean_us']:.0f} us",
        ),
        judge_aim(
            f"{at}: our merge is as fast as the paper's",
            f"{gained:.2f} times the throughput",
            "at least 0.95 times",
            gained >= 0.95,
        ),
        judge_aim(
            f"{at}: our merge keeps latency at or below that of the paper's",
            f"99.9 %: {parallel['p999_us']:.0f} us, the paper's {waits:.1f} times that, at {arrivals}",
            "at least 0.95 times",
            waits >= 0.95,
            "all threads write our merge, in slices between tasks, and one thread writes the paper's: on average a "
            f"tuple takes {parallel['mean_us']:.1f} us with ours and {as_in_paper['mean_us']:.1f} with the paper's",
        ),
    ]
