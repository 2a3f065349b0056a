"""The cost model that `auto` chooses by, beside what each algorithm takes: windows, pushes and workers.

A band with match rate 2. Each join is filled by large pushes and then gets pushes of every size in turn, through the
public API, rows gathered. Time is that of the clock: workers wait for each other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Any, ClassVar

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, describe, judge_aim
from benchmarks.papers.parallel_experiment import thread_counts
from benchmarks.report_lines import draw_lines
from benchmarks.workload import BandWorkload
from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.cost import algorithm_cost
from streamjoin.joins.engine.settings import OpenSettings

_FILL = 1 << 17
_SECONDS = {True: 0.02, False: 0.15}
_SETTLING = 2  # pushes that are not counted
_POOL = 8
_WITHIN, _SHARE_WITHIN = 2.0, 0.8
_REGRET = 1.2
INDEXED, SWEEP, PARALLEL = "indexed", "sweep", "pim_parallel"


class CostModel(Experiment):
    """Measured and predicted nanoseconds per tuple."""

    title = "cost model: predicted and measured ns per tuple, band, match rate 2"
    measure = "tuples_per_s"
    unit = "tuples/s"
    against: ClassVar = {"algorithm": SWEEP, "workers": 1}
    repeats = 3
    warmups = 0

    def __init__(self) -> None:
        self._joins: dict[tuple[str, int, int], tuple[sj.Join, BandWorkload]] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Pushes count the tuples of both sides; an index has one worker."""
        windows = (1 << 12,) if quick else (1 << 14, 1 << 17, 1 << 20)
        pushes = (64, 4096) if quick else (64, 1024, 8192, 1 << 16, 1 << 18)
        counts = thread_counts()
        workers = sorted({1, counts[len(counts) // 2], counts[-1]})
        systems = [(INDEXED, 1), *((name, n) for name in (SWEEP, PARALLEL) for n in workers)]
        return [
            {"window": window, "algorithm": name, "workers": n, "push": push}
            for window in windows
            for name, n in systems
            for push in pushes
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Push for a while."""
        join, load = self._filled(cell, context)
        half = cell["push"] // 2
        pool = [(load.table("left", at, half), load.table("right", at, half)) for at in range(0, _POOL * half, half)]
        spent: list[float] = []
        while len(spent) < _SETTLING + 2 or sum(spent[_SETTLING:]) < _SECONDS[context.quick]:
            left, right = pool[len(spent) % _POOL]
            begin = time.perf_counter()
            join.push(left, right)
            spent.append(time.perf_counter() - begin)
        counted = spent[_SETTLING:]
        predicted = algorithm_cost(cell["algorithm"], cell["window"], cell["push"], cell["workers"])
        measured = sum(counted) / len(counted) / cell["push"] * 1e9
        return {
            self.measure: 1e9 / measured,
            "measured_ns": measured,
            "predicted_ns": predicted,
            "predicted_over_measured": predicted / measured,
        }

    def _filled(self, cell: Cell, context: Context) -> tuple[sj.Join, BandWorkload]:
        """The join of a cell with full windows, kept for all sizes of pushes."""
        if _key(cell) not in self._joins:
            self._close([key for key in self._joins if key[1] != cell["window"]])
            load = BandWorkload(cell["window"], seed=context.seed)
            spec = sj.JoinSpec(on=sj.Band("key", "key", load.band), window=sj.CountWindow(cell["window"]))
            index = "pim_tree" if cell["algorithm"] == INDEXED else None
            # The steps of small pushes are compiled at once, not after thousands of pushes.
            request = AlgorithmRequest(cell["algorithm"], index)
            join = sj.Join(spec, OpenSettings(request, cell["workers"], max_rows=None, general_pushes=0))
            for at in range(0, cell["window"], _FILL):
                rows = min(_FILL, cell["window"] - at)
                join.push(load.table("left", at, rows), load.table("right", at, rows))
            self._joins[_key(cell)] = join, load
        return self._joins[_key(cell)]

    def _close(self, keys: Sequence[tuple[str, int, int]]) -> None:
        for key in keys:
            self._joins.pop(key)[0].close()

    def close(self) -> None:
        """End the joins."""
        self._close(list(self._joins))

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Predicted against measured, a point a cell."""
        axes = figure.subplots()
        draw_lines(axes, sorted(rows, key=lambda row: float(row["measured_ns"])), x="measured_ns", y="predicted_ns",
             by=("algorithm",), log=True)  # fmt: skip
        ends = [min(row["measured_ns"] for row in rows), max(row["measured_ns"] for row in rows)]
        axes.plot(ends, ends, linestyle=":", color="grey")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """How near the predictions are, and what choosing by them costs."""
        parts = []
        for name in (INDEXED, SWEEP, PARALLEL):
            ratios = [row["predicted_over_measured"] for row in rows if row["algorithm"] == name]
            near = sum(1 / _WITHIN <= ratio <= _WITHIN for ratio in ratios) / len(ratios)
            mean = exp(statistics.mean(log(ratio) for ratio in ratios))
            parts.append(
                judge_aim(
                    f"{name}: predictions within a factor of {_WITHIN:g} of what is measured",
                    f"{near:.0%} of {len(ratios)} points; on average {mean:.2f} times, {min(ratios):.2f} to "
                    f"{max(ratios):.2f}",
                    f"at least {_SHARE_WITHIN:.0%} of the points",
                    near >= _SHARE_WITHIN,
                )
            )
        regrets = {}
        for point in {(row["window"], row["push"], row["workers"]) for row in rows}:
            window, push, workers = point
            able = [
                row
                for row in rows
                if row["window"] == window
                and row["push"] == push
                and (row["workers"] == workers or row["algorithm"] == INDEXED)
            ]
            chosen = min(able, key=lambda row: float(row["predicted_ns"]))
            best = min(able, key=lambda row: float(row["measured_ns"]))
            regrets[point] = chosen["measured_ns"] / best["measured_ns"], chosen, best
        bad = sorted((item for item in regrets.values() if item[0] > _REGRET), key=lambda item: -item[0])
        worst = "; ".join(
            f"{regret:.2f} times, {row['algorithm']} for {best['algorithm']} at "
            f"{describe({name: best[name] for name in ('window', 'push')})}, {row['workers']} workers"
            for regret, row, best in bad[:4]
        )
        parts.append(
            judge_aim(
                f"choosing by the prediction costs at most {_REGRET} times the best of the three",
                f"at {len(regrets) - len(bad)} of {len(regrets)} points" + (f"; {worst}" if worst else ""),
                "at all points",
                not bad,
            )
        )
        return parts


def _key(cell: Cell) -> tuple[str, int, int]:
    return cell["algorithm"], cell["window"], cell["workers"]


EXPERIMENT = CostModel()
