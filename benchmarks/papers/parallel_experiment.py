"""What the experiments on the parallel PIM-Tree join share: settled joins, threads by the machine, words for verdicts.

The baseline is `indexed` over `pim_tree`, one thread in tasks of 64. Figures are by the clock; beside each stands
`per_cpu_s`, the tuples in a second of every thread's processor time: on a machine that others use, that is nearer to
what a quiet one would show. A join is settled once and goes on from repeat to repeat with other threads and tasks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.harness import Cell, Context, Experiment, Row
from benchmarks.papers.index_join import TASK, IndexJoin
from benchmarks.papers.index_keys import Keys, keys_for
from benchmarks.papers.parallel_join import ParallelJoin, Run

BASELINE = "pim_tree"
PARALLEL = "pim_parallel"
BLOCKING = "pim_parallel, blocking merge"
PAPER_MERGE = "pim_parallel, the paper's merge"
MERGES = {BLOCKING: "blocking", PAPER_MERGE: "one_thread"}
LOCKLESS = "pim_parallel, no sub-index locks"
LEAST = {True: 1 << 16, False: 1 << 20}
"""Tuples measured at least, in a quick run and in a whole one."""
LOAD = 0.4
"""The rate of paced arrivals, of what the same join does when all are there: a merge takes one of two cores away."""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_counts(most: int = 16) -> list[int]:
    """1, 2, 4, ... up to what the machine has."""
    return [n for n in (1, 2, 4, 8, 16) if n <= min(most, cores())]


class ParallelExperiment(Experiment):
    """Throughput of a band join; a cell has at least `window`, `system` and `threads`."""

    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 3
    warmups = 0  # settling a join warms it up

    settings: ClassVar[Sequence[str]] = ()
    """The parameters of a cell that are settings of the trees."""
    self_join: ClassVar[bool] = False
    across = "window"
    lines: ClassVar[Sequence[str]] = ("system", "threads")

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], ParallelJoin | IndexJoin] = {}

    def baseline(self, cell: Cell) -> Cell | None:
        """The single-threaded join on the same point."""
        if cell["system"] == BASELINE:
            return None
        same = {key: None for key in cell if key not in ("window", "self_join", "drift")}
        return {**cell, **same, "system": BASELINE, "threads": 1}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Measure the next whole periods of the settled join."""
        if cell["system"] not in (PARALLEL, LOCKLESS, *MERGES):
            return single_answer(self.single(cell, context), LEAST[context.quick])
        join = self.parallel(cell, context)
        return {**answer(self.measured(join, context)), **self.explain(join, cell, context)}

    def measured(self, join: ParallelJoin, context: Context) -> Run:
        """The sample that the throughput is taken from."""
        return join.run(join.whole_periods(LEAST[context.quick]))

    def explain(self, join: ParallelJoin, cell: Cell, context: Context) -> Mapping[str, Any]:  # noqa: ARG002
        """What a row says besides speed and match rate."""
        return {}

    def is_self_join(self, cell: Cell) -> bool:
        """Whether a cell joins one stream with itself."""
        return bool(cell.get("self_join", self.self_join))

    def single(self, cell: Cell, context: Context) -> IndexJoin:
        """The settled single-threaded join of a cell, over the index that its system names."""
        window, alone = cell["window"], self.is_self_join(cell)
        state = (context.seed, cell["system"], window, alone)
        kept = self._kept.get(state)
        if not isinstance(kept, IndexJoin):
            keys = keys_for("uniform", window, seed=context.seed)
            kept = self._kept[state] = IndexJoin(cell["system"], (window, window), keys, self_join=alone)
            kept.settle()
        return kept

    def parallel(self, cell: Cell, context: Context) -> ParallelJoin:
        """The settled parallel join of a cell, with the cell's threads and tasks from here on."""
        window, alone, locks = cell["window"], self.is_self_join(cell), cell["system"] != LOCKLESS
        chosen = {name: cell[name] for name in self.settings if cell.get(name) is not None}
        state = (context.seed, PARALLEL, window, alone, locks, *chosen.items())
        kept = self._kept.get(state)
        if not isinstance(kept, ParallelJoin):
            keys = keys_for("uniform", window, seed=context.seed)
            kept = ParallelJoin((window, window), keys, 1, chosen, self_join=alone, locks=locks)
            self._kept[state] = kept
            kept.settle()
        kept.use(cell["threads"], cell.get("task") or TASK, MERGES.get(cell["system"], "nonblocking"))
        return kept

    def close(self) -> None:
        """Let go of the joins and their threads."""
        for join in self._kept.values():
            if isinstance(join, ParallelJoin):
                join.close()
        self._kept.clear()


def run_all_threads(
    windows: tuple[int, int], keys: Keys, context: Context, rates: tuple[int, int] = (1, 1)
) -> dict[str, float]:
    """A join by all threads of the machine, settled and measured once."""
    join = ParallelJoin(windows, keys, thread_counts()[-1], rates=rates)
    try:
        join.settle()
        figures = join.run(join.whole_periods(LEAST[context.quick])).answer()
    finally:
        join.close()
    return {name: figures[name] for name in ("tuples_per_s", "match_rate", "on_cpu")}


def single_answer(join: IndexJoin, least: int) -> dict[str, float]:
    """The figures of a single-threaded join, by the clock."""
    measured = join.run(join.whole_periods(least))
    return {
        "tuples_per_s": measured.tuples / measured.clock_ns * 1e9,
        "per_cpu_s": measured.tuples / measured.cpu_ns * 1e9,
        "match_rate": measured.matches / measured.tuples,
        "on_cpu": min(1.0, measured.cpu_ns / measured.clock_ns),
    }


def answer(run: Run) -> dict[str, float]:
    """The figures of a parallel run, by the clock, and by the processor time of its threads."""
    return {**run.answer(), "per_cpu_s": run.tuples * run.threads / run.cpu_ns * 1e9}


def latencies(join: ParallelJoin, least: int, speed: float) -> dict[str, float]:
    """Latencies when tuples arrive by the clock, at a rate per second."""
    figures = join.run(join.whole_periods(least), gap_ns=1e9 / speed).answer()
    return {"arrivals_per_s": speed, **{name: value for name, value in figures.items() if name.endswith("_us")}}


def by_clock_and_cpu(row: Row, base: Row) -> str:
    """Both ratios."""
    return (
        f"{row['tuples_per_s'] / base['tuples_per_s']:.2f} times by the clock, "
        f"{row['per_cpu_s'] / base['per_cpu_s']:.2f} by processor time"
    )
