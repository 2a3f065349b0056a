"""What figures 12b and 12c share: single-threaded and parallel joins against the window, both ways to merge.

Throughput is with all tuples there; latencies are with arrivals by the real clock at 40% of that, from a tuple's
arrival to when its results have been handed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Cell, Context, Row
from benchmarks.index_experiment import agrees, met, pick, power, values
from benchmarks.parallel_experiment import (
    BASELINE,
    BLOCKING,
    LEAST,
    PARALLEL,
    ParallelExperiment,
    by_clock_and_cpu,
    paced,
    thread_counts,
)
from benchmarks.parallel_join import ParallelJoin

_FAR = 4.0  # times below: what "far" means for the blocking merge's latency


class Merging(ParallelExperiment):
    """`btree`, `pim_tree`, and `pim_parallel` with all threads and both merges."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Windows from where threads hardly pay."""
        windows = (1 << 12,) if quick else (1 << 14, 1 << 17, 1 << 20)
        most = thread_counts()[-1]
        systems = (("btree", 1), (BASELINE, 1), (PARALLEL, most), (BLOCKING, most))
        return [{"window": w, "system": system, "threads": n} for w in windows for system, n in systems]

    def explain(self, join: ParallelJoin, cell: Cell, context: Context) -> Mapping[str, Any]:  # noqa: ARG002
        """Latencies at a load that the join can bear."""
        return paced(join, LEAST[context.quick])

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """Parallel over single-threaded, and one merge against the other."""
        lines = []
        for window in values(rows, "window"):
            own = {row["system"]: row for row in pick(rows, window=window)}
            parallel, blocking = own[PARALLEL], own[BLOCKING]
            kind = f"w = {power(window)}, {parallel['threads']} threads"
            lines.append(f"{kind} over `indexed` `pim_tree`: {by_clock_and_cpu(parallel, own[BASELINE])}")
            same = blocking["tuples_per_s"] / parallel["tuples_per_s"]
            lines.append(
                f"{kind}: blocking merges make {same:.2f} times the throughput (paper: slightly more): "
                + agrees(0.8 <= same <= 1.4)
            )
            apart = blocking["p999_us"] / max(1e-3, parallel["p999_us"])
            lines.append(
                f"{kind}: 99.9% latency {parallel['p999_us']:.0f} us non-blocking, {blocking['p999_us']:.0f} us "
                f"blocking, {apart:.1f} times; aim far below at w = 2^20: {met(apart >= _FAR)}"
            )
        return lines
