"""SIGMOD paper, figure 12a: threads, and what concurrency control costs, for two-way and self-join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.harness import Cell, Row
from benchmarks.index_experiment import agrees, draw, met, pick
from benchmarks.parallel_experiment import (
    BASELINE,
    LOCKLESS,
    PARALLEL,
    ParallelExperiment,
    by_clock_and_cpu,
    cores,
    thread_counts,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AIMS = {2: 1.6, 16: 6.0}


class Threads(ParallelExperiment):
    """From one thread to all, beside the single-threaded join; one thread without the locks of sub-indexes."""

    title = "figure 12a: pim_parallel against threads, two-way and self-join, match rate 2"
    claim = (
        "figure 12a, w = 2^20: concurrency control costs one thread 40% in a two-way and 26% in a self-join; 8 threads "
        "are 4.6 and 4 times one thread with it, 16 (hyperthreads) 5.7 and 5 times"
    )

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The paper's window and the one four times as large."""
        windows = (1 << 12,) if quick else (1 << 20, 1 << 22) if cores() > 2 else (1 << 20,)
        systems = [(BASELINE, 1), (LOCKLESS, 1), *((PARALLEL, n) for n in thread_counts())]
        return [
            {"window": window, "self_join": alone, "system": system, "threads": threads}
            for window in windows
            for alone in (False, True)
            for system, threads in systems
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """The single-threaded join on the same point."""
        return None if cell["system"] == BASELINE else {**cell, "system": BASELINE, "threads": 1}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Throughput against threads."""
        draw(figure.subplots(), rows, x="threads", by=("window", "self_join", "system"))

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The cost of one thread, and the gain of many."""
        lines = []
        for window, alone in sorted({(row["window"], row["self_join"]) for row in rows}):
            own = pick(rows, window=window, self_join=alone)
            base = pick(own, system=BASELINE)[0]
            kind = f"{'self-join' if alone else 'two-way'}, w = {window:,}"
            parallel = {row["threads"]: row for row in pick(own, system=PARALLEL)}
            cost = 1 - parallel[1]["per_cpu_s"] / base["per_cpu_s"]
            locks = 1 - parallel[1]["per_cpu_s"] / pick(own, system=LOCKLESS)[0]["per_cpu_s"]
            lines.append(
                f"{kind}: one thread with concurrency control loses {cost:.0%} (paper {0.26 if alone else 0.4:.0%}), "
                f"of which the locks of sub-indexes {locks:.0%}: {agrees(cost <= 0.4)}"
            )
            for threads, row in parallel.items():
                if threads == 1:
                    continue
                aim = _AIMS.get(threads)
                gained = row["tuples_per_s"] / base["tuples_per_s"]
                told = f"; aim {aim}: {met(gained >= aim)}" if aim and not alone else ""
                lines.append(
                    f"{kind}, {threads} threads over `indexed` `pim_tree`: {by_clock_and_cpu(row, base)}{told}"
                )
        return lines


EXPERIMENT = Threads()
