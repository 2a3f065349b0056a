"""SIGMOD paper, figure 11a: the parallel join against the size of a task."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.harness import Cell, Finding, Row, human, judge_claim
from benchmarks.papers.index_experiment import pick, power, speeds, values
from benchmarks.papers.parallel_experiment import BASELINE, PARALLEL, ParallelExperiment, thread_counts

_SIZES = (1, 2, 4, 8, 16, 64, 256)
_PAPER_GROWS, _PAPER_ENOUGH = 4, 8


class TaskSize(ParallelExperiment):
    """Tasks of 1 to 256 tuples, all threads."""

    title = "figure 11a: pim_parallel against task size, match rate 2"
    claim = (
        "figure 11a: throughput grows steadily up to tasks of four tuples and hardly beyond eight; very small tasks "
        "pay for the queue's lock"
    )
    across, lines = "task", ("window", "system")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Two windows."""
        windows = (1 << 12,) if quick else (1 << 17, 1 << 20)
        most = thread_counts()[-1]
        sizes = (1, 8, 64) if quick else _SIZES
        return [
            {"window": window, "system": system, "threads": threads, "task": size}
            for window in windows
            for system, threads, each in ((BASELINE, 1, (None,)), (PARALLEL, most, sizes))
            for size in each
        ]

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Where throughput stops growing, and what small tasks cost."""
        parts = []
        for window in values(rows, "window"):
            by_size = speeds(rows, "task", window=window, system=PARALLEL)
            threads = pick(rows, window=window, system=PARALLEL)[0]["threads"]
            at = f"w = {power(window)}, {threads} threads"
            most = max(by_size.values())
            small = [size for size in by_size if size <= _PAPER_GROWS]
            steady = all(by_size[a] <= by_size[b] for a, b in itertools.pairwise(small))
            listed = ", ".join(f"{size}: {human(by_size[size])}" for size in small)
            parts += [
                judge_claim(
                    f"{at}: throughput grows steadily up to tasks of four",
                    f"tuples/s by task {listed}",
                    "more with every size",
                    steady,
                ),
                judge_claim(
                    f"{at}: tasks of 1 pay for scheduling",
                    f"{by_size[1] / most:.0%} of the best",
                    "below 75 %",
                    by_size[1] < 0.75 * most,
                ),
                judge_claim(
                    f"{at}: tasks of eight are enough",
                    f"{by_size[_PAPER_ENOUGH] / most:.0%} of the best",
                    "at least 80 %",
                    by_size[_PAPER_ENOUGH] >= 0.8 * most,
                    "results are handed on task by task, by one thread at a time",
                ),
                judge_claim(
                    f"{at}: larger ones do not make much of a difference",
                    f"tasks of {max(by_size)} give {by_size[max(by_size)] / most:.0%} of the best",
                    "at least 80 %",
                    by_size[max(by_size)] >= 0.8 * most,
                    "a lookup scans what is not indexed yet, and that is a task per thread",
                ),
            ]
        return parts


EXPERIMENT = TaskSize()
