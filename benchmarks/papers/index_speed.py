"""Speed of the indexes for tasks of 1, 8 and 64 tuples: one thread, match rate 2, results as position pairs.

A task is what is handled between two returns to the caller; nothing of one overlaps with another. Two callers run the
same tasks through the same fused kernel: `compiled` is a loop in a kernel, as a thread that takes tasks from a
queue would be, and `push_task` is Python. What a task takes longer from Python is the interpreter's overhead: at
tasks of one tuple it is most of the time, and hides what the index does. At the smallest window the public `push`,
Arrow tables in and out, runs beside them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Cell, Context, Figure, Row, human, met
from benchmarks.papers.index_experiment import LEAST, IndexExperiment, pick, power
from benchmarks.report_lines import draw_lines
from benchmarks.workload import BandWorkload

if TYPE_CHECKING:
    import pyarrow as pa

    from streamjoin import Join

_INDEXES = ("btree", "im_tree", "pim_tree")
_TASKS = (1, 8, 64)
_RATIO, _FROM = 1.6, 1 << 17
_OVERHEAD_US = 20.0
# Figures of a C++ B+-tree join (tlx) on a machine of the same class, tuples/s by window.
_CPP = {1 << 20: 0.68e6, 1 << 23: 0.42e6}
_TIMES_CPP = {8: 2.5, 64: 4.0}
_PUSHES = {True: 512, False: 4096}
_QUIET = 0.9
_CALLERS = {"compiled": "compiled caller", "push_task": "Python caller"}


class Speed(IndexExperiment):
    """Three indexes at three windows and three task sizes."""

    title = "tuples/s by task size, match rate 2, one thread, position pairs"
    passing = frozenset({"task", "through"})

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The windows of the aims."""
        windows = [1 << w for w in ((17,) if quick else (17, 20, 23))]
        cells: list[Cell] = [
            {"window": window, "task": task, "index": index, "through": caller}
            for window in windows
            for task in _TASKS
            for index in _INDEXES
            for caller in _CALLERS
        ]
        public = [{"window": windows[0], "task": task, "index": "pim_tree", "through": "sj.open"} for task in _TASKS]
        return cells + public

    def baseline(self, cell: Cell) -> Cell | None:
        """`btree` with tasks of the same size and the same caller; for the public `push`, called from Python."""
        direct = cell if cell["through"] in _CALLERS else {**cell, "through": "push_task"}
        return super().baseline(direct)

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """One of the three ways to drive a join."""
        if cell["through"] == "sj.open":
            return _public(cell, context)
        join = self.settled(cell, context)
        tuples = join.whole_periods(LEAST[context.quick])
        return join.run(tuples, cell["task"], compiled=cell["through"] == "compiled").answer()

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A panel a task size."""
        for axes, task in zip(figure.subplots(1, len(_TASKS), sharey=True), _TASKS, strict=True):
            draw_lines(axes, pick(rows, task=task), x="window", by=("index", "through"))
            axes.set_title(f"tasks of {task}", fontsize="small")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aims: over btree, over a C++ tree, and what the interpreter costs."""
        return [*_over_btree(rows), *_over_cpp(rows), *_overhead(rows), *_disturbance(rows)]


def _over_btree(rows: Sequence[Row]) -> list[str]:
    lines = []
    for caller, called in _CALLERS.items():
        for task in _TASKS:
            ratios = {
                row["window"]: row["ratio"]
                for row in pick(rows, task=task, index="pim_tree", through=caller)
                if row["window"] >= _FROM
            }
            listed = ", ".join(f"{ratio:.2f} at {power(window)}" for window, ratio in sorted(ratios.items()))
            lines.append(
                f"{called}, tasks of {task}: pim_tree over btree {listed}; "
                f"aim {_RATIO}: {met(min(ratios.values()) >= _RATIO)}"
            )
    return lines


def _over_cpp(rows: Sequence[Row]) -> list[str]:
    """The C++ join is called by compiled code, so that caller is the one to compare; Python's is printed beside it."""
    lines = []
    for window, cpp in _CPP.items():
        for row in pick(rows, window=window, task=64, index="btree", through="compiled"):
            speed = row["tuples_per_s"]
            lines.append(
                f"compiled caller, btree at w = {power(window)}: {speed / cpp:.2f} times the C++ tree; "
                f"aim 1: {met(speed >= cpp)}"
            )
    window = min(_CPP)
    for caller, called in _CALLERS.items():
        for task, times in _TIMES_CPP.items():
            for row in pick(rows, window=window, task=task, index="pim_tree", through=caller):
                speed, aim = row["tuples_per_s"], times * _CPP[window]
                lines.append(
                    f"{called}, pim_tree at w = {power(window)}, tasks of {task}: {human(speed)} tuples/s; "
                    f"aim {human(aim)} ({times} times the C++ tree): {met(speed >= aim)}"
                )
    return lines or ["the aims over a C++ tree are set at w = 2^20 and 2^23: run without --quick"]


def _overhead(rows: Sequence[Row]) -> list[str]:
    """What a task costs more from Python than from compiled code, and what a public push costs more."""
    kernel = {(row["window"], row["index"], row["task"]): _task_us(row) for row in pick(rows, through="compiled")}

    def spent(row: Row) -> float:
        return _task_us(row) - kernel[row["window"], row["index"], row["task"]]

    by_task = {task: max(spent(row) for row in pick(rows, through="push_task", task=task)) for task in _TASKS}
    listed = ", ".join(f"{us:.1f} us for {task}" for task, us in by_task.items())
    share = max(spent(row) / _task_us(row) for row in pick(rows, through="push_task", task=1))
    worst = max(by_task.values())
    said = (
        f"push_task costs of interpreter a task, at most: {listed}; aim {_OVERHEAD_US:.0f}: {met(worst < _OVERHEAD_US)}"
    )
    why = f"at tasks of 1 that is up to {share:.0%} of a task, the same for every index: it pulls their ratio towards 1"
    (public,) = (spent(row) for row in pick(rows, through="sj.open", task=1))
    pushing = f"join.push of one row, Arrow in and out, costs {public:.0f} us over the kernel; aim {_OVERHEAD_US:.0f}: "
    return [said, why, pushing + met(public < _OVERHEAD_US)]


def _disturbance(rows: Sequence[Row]) -> list[str]:
    """Time on the processor leaves out what others take of it, but not what they take of the caches."""
    least = min(row.get("on_cpu", 1.0) for row in rows)
    if least >= _QUIET:
        return []
    busy = (
        f"the machine was busy, the thread had {least:.0%} of a core at times: others' use of the shared cache slows "
    )
    return [busy + "an index down more the more memory it touches, so a quiet machine shows smaller ratios over btree"]


def _task_us(row: Row) -> float:
    return float(row["task"] / row["tuples_per_s"] * 1e6)


def _public(cell: Cell, context: Context) -> dict[str, float]:
    """`join.push` with tables of the task's rows, left and right in turn."""
    import streamjoin as sj  # needs Arrow, which the other two ways do without

    window, task, pushes = cell["window"], cell["task"], _PUSHES[context.quick]
    load = BandWorkload(window, seed=context.seed)
    spec = sj.JoinSpec(on=sj.Band("key", "key", load.band), window=sj.CountWindow(window))
    half = max(1, task // 2)
    tables = [
        (load.table("left", window + i * half, half), load.table("right", window + i * half, half))
        for i in range(pushes)
    ]
    turns = np.arange(task) % 2 == 1
    rows = 0
    with sj.open(spec, "indexed", index=cell["index"]) as join:
        join.push(load.table("left", 0, window), load.table("right", 0, window))
        clock, cpu = time.perf_counter_ns(), time.thread_time_ns()
        for i, (left, right) in enumerate(tables):
            rows += _push(join, left, right, turns, i).num_rows
        spent, passed = time.thread_time_ns() - cpu, time.perf_counter_ns() - clock
    return {
        "tuples_per_s": pushes * task / spent * 1e9,
        "match_rate": rows / (pushes * task),
        "on_cpu": min(1.0, spent / passed),
    }


def _push(join: Join, left: pa.Table, right: pa.Table, turns: np.ndarray[Any, Any], number: int) -> pa.Table:
    if turns.size > 1:
        return join.push(left, right, interleave=turns)
    return join.push(right=right) if number % 2 else join.push(left=left)


EXPERIMENT = Speed()
