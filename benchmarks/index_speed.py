"""Speed of the indexes for tasks of 1, 8 and 64 tuples: one thread, match rate 2, results as position pairs.

A task is what is handled between two returns to the caller. Where it is one tuple, the same join also runs with the
loop over tasks compiled: what a task takes longer from Python is the interpreter's overhead. At the smallest window
the public `push`, Arrow tables in and out, runs beside it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Row, human
from benchmarks.index_experiment import IndexExperiment, draw, met, pick, power, values
from benchmarks.index_join import IndexJoin, stretches
from benchmarks.workload import BandWorkload
from streamjoin.indexes.base import I64, Matches, Task
from streamjoin.kernels.task import DONE, INSERTS, MAINTAIN_LEFT, PROBES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INDEXES = ("btree", "im_tree", "pim_tree")
_TASKS = (1, 8, 64)
_RATIO, _FROM = 1.6, 1 << 17
_OVERHEAD_US = 20.0
# Figures of a C++ B+-tree join (tlx) on a machine of the same class, tuples/s by window.
_CPP = {1 << 20: 0.68e6, 1 << 23: 0.42e6}
_TIMES_CPP = {8: 2.5, 64: 4.0}
_PUSHES = {True: 512, False: 4096}
_ONE_BY_ONE = {True: 1 << 15, False: 1 << 17}


class Speed(IndexExperiment):
    """Three indexes at three windows and three task sizes."""

    title = "tuples/s by task size, match rate 2, one thread, position pairs"
    passing = frozenset({"task", "through"})

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The windows of the aims."""
        windows = [1 << w for w in ((17,) if quick else (17, 20, 23))]
        cells: list[Cell] = [
            {"window": window, "task": task, "index": index, "through": "push_task"}
            for window in windows
            for task in _TASKS
            for index in _INDEXES
        ]
        public = [{"window": windows[0], "task": task, "index": "pim_tree", "through": "sj.open"} for task in _TASKS]
        return cells + public

    def baseline(self, cell: Cell) -> Cell | None:
        """`btree` with tasks of the same size, called as directly as it can be."""
        return super().baseline({**cell, "through": "push_task"})

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """One of the three ways to drive a join."""
        if cell["through"] == "sj.open":
            return _public(cell, context)
        answer = dict(super().run(cell, context))
        if cell["task"] == 1:
            kernel_us = _compiled_us(self.settled(cell, context), _ONE_BY_ONE[context.quick])
            answer["kernel_us"] = kernel_us
            answer["interpreter_us"] = 1e6 / answer["tuples_per_s"] - kernel_us
        return answer

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A panel a task size."""
        for axes, task in zip(figure.subplots(1, len(_TASKS), sharey=True), _TASKS, strict=True):
            draw(axes, pick(rows, task=task), x="window", by=("index", "through"))
            axes.set_title(f"tasks of {task}", fontsize="small")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aims: over btree, over a C++ tree, and what the interpreter costs."""
        direct = pick(rows, through="push_task")
        return [*_over_btree(direct), *_over_cpp(direct), *_overhead(rows)]


def _over_btree(rows: Sequence[Row]) -> list[str]:
    lines = []
    for task in _TASKS:
        ratios = {
            row["window"]: row["ratio"] for row in pick(rows, task=task, index="pim_tree") if row["window"] >= _FROM
        }
        listed = ", ".join(f"{ratio:.2f} at {power(window)}" for window, ratio in sorted(ratios.items()))
        lines.append(
            f"tasks of {task}: pim_tree over btree {listed}; aim {_RATIO}: {met(min(ratios.values()) >= _RATIO)}"
        )
    kernel = {(row["index"], row["window"]): row["kernel_us"] for row in pick(rows, task=1)}
    listed = ", ".join(
        f"{kernel['btree', window] / kernel['pim_tree', window]:.2f} at {power(window)}"
        for window in values(rows, "window")
    )
    return [*lines, f"tasks of 1 without the interpreter's share: {listed}"]


def _over_cpp(rows: Sequence[Row]) -> list[str]:
    lines = []
    for window, cpp in _CPP.items():
        for row in pick(rows, window=window, task=64, index="btree"):
            speed = row["tuples_per_s"]
            lines.append(
                f"btree at w = {power(window)}: {speed / cpp:.2f} times the C++ tree; aim 1: {met(speed >= cpp)}"
            )
    window = min(_CPP)
    for task, times in _TIMES_CPP.items():
        for row in pick(rows, window=window, task=task, index="pim_tree"):
            speed, aim = row["tuples_per_s"], times * _CPP[window]
            lines.append(
                f"pim_tree at w = {power(window)}, tasks of {task}: {human(speed)} tuples/s; aim {human(aim)} "
                f"({times} times the C++ tree): {met(speed >= aim)}"
            )
    return lines or ["the aims over a C++ tree are set at w = 2^20 and 2^23: run without --quick"]


def _overhead(rows: Sequence[Row]) -> list[str]:
    ones = pick(rows, task=1)
    direct = max(row["interpreter_us"] for row in pick(ones, through="push_task"))
    said = f"push_task costs {direct:.1f} us of interpreter a task at most; aim {_OVERHEAD_US:.0f}: "
    lines = [said + met(direct < _OVERHEAD_US)]
    for row in pick(ones, through="sj.open"):
        (kernel,) = pick(ones, through="push_task", index=row["index"], window=row["window"])
        spent = 1e6 / row["tuples_per_s"] - kernel["kernel_us"]
        lines.append(
            f"join.push of one row, Arrow in and out, costs {spent:.0f} us over the kernel; aim {_OVERHEAD_US:.0f}: "
            + met(spent < _OVERHEAD_US)
        )
    return lines


@numba.njit(nogil=True)
def _tasks_of_one(
    task: Task, left: I64, right: I64, columns: tuple[I64, ...], out_probe: I64, out_seq: I64, start: int, stop: int
) -> tuple[int, int]:
    ops, word, lo, hi, seq, min_seq, own_min = columns
    for at in range(start, stop):
        code, _, _ = task(left, right, ops, word, lo, hi, seq, min_seq, own_min, out_probe, out_seq, at, at + 1)
        if code != DONE:
            return code, at
    return DONE, stop


def _compiled_us(join: IndexJoin, tuples: int) -> float:
    """Microseconds a task of one tuple takes without Python between the tasks; merges are paid for as they come."""
    _run_compiled(join, 64)  # compiles
    tuples = join.whole_periods(tuples)
    return sum(_run_compiled(join, count) for count in stretches(tuples)) / tuples / 1e3


def _run_compiled(join: IndexJoin, count: int) -> int:
    left, right, out = join.left, join.right, Matches(1 << 12)
    columns = join.columns(count, PROBES | INSERTS)
    at = 0
    begin = time.thread_time_ns()
    while at < count:
        code, at = _tasks_of_one(type(left).task, left.mem, right.mem, columns, out.probe, out.seq, at, count)
        if code != DONE:
            (left if code == MAINTAIN_LEFT else right).maintain()
    return time.thread_time_ns() - begin


def _public(cell: Cell, context: Context) -> dict[str, float]:
    """`join.push` with tables of the task's rows, left and right in turn."""
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


def _push(join: sj.Join, left: pa.Table, right: pa.Table, turns: np.ndarray[Any, Any], number: int) -> pa.Table:
    if turns.size > 1:
        return join.push(left, right, interleave=turns)
    return join.push(right=right) if number % 2 else join.push(left=left)


EXPERIMENT = Speed()
