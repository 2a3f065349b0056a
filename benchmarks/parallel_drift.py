"""What figures 13b and 13c share: a self-join by many threads on a Gaussian whose centre drifts.

Three phases as in `pim_fig13_drift`, which shows one thread: rest, a drift by `drift` within ten windows, rest again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Cell, Context, Row
from benchmarks.index_experiment import draw
from benchmarks.index_keys import Drift, ShapedKeys, gaussian
from benchmarks.parallel_experiment import PARALLEL, ParallelExperiment, answer, thread_counts
from benchmarks.parallel_join import ParallelJoin
from streamjoin.kernels.trees.task import INSERTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REST, _DRIFT, _REST_AGAIN = 5, 10, 3  # windows
_IDLE = 0.1  # of an even share
_READINGS = 4
PAPER_FASTEST = 1.0


class Drifting(ParallelExperiment):
    """Speed before, during and after the drift, and how the inserts spread during it."""

    self_join = True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The paper's drifts, and one ten times as fast as its fastest."""
        window = 1 << (12 if quick else 17)
        drifts = (0.0, 1.0, 10.0) if quick else (0.0, 0.2, 0.6, 1.0, 10.0)
        threads = sorted({1, thread_counts()[-1]})
        return [
            {"window": window, "system": PARALLEL, "threads": n, "drift": drift} for drift in drifts for n in threads
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """The same threads at rest."""
        return None if cell["drift"] == 0.0 else {**cell, "drift": 0.0}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Go through the three phases."""
        window = cell["window"]
        begin = _REST * window
        drift = Drift(cell["drift"], begin, begin + _DRIFT * window)
        keys = ShapedKeys(window, gaussian(), seed=context.seed, drift=drift)
        join = ParallelJoin((window, window), keys, cell["threads"], self_join=True)
        try:
            join.settle()
            before = join.run(begin - window - join.arrived)
            during = join.run((_DRIFT - 2) * window)
            spread = _spread(join, 2 * window)
            join.run((_REST_AGAIN - 1) * window, op=INSERTS)
            after = join.run(window)
        finally:
            join.close()
        return {
            **answer(during),
            "before_per_s": before.answer()["tuples_per_s"],
            "before_per_cpu_s": answer(before)["per_cpu_s"],
            "after_per_cpu_s": answer(after)["per_cpu_s"],
            **spread,
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Speed against the drift, and the largest sub-index's share."""
        left, right = figure.subplots(1, 2)
        draw(left, rows, x="drift", by=("threads",))
        draw(right, rows, x="drift", by=("threads",), y="largest_share")
        for axes in (left, right):
            axes.set_xscale("symlog", linthresh=1)


def _spread(join: ParallelJoin, tuples: int) -> dict[str, float]:
    """Go on drifting and read the sizes of the sub-indexes a few times; the fullest reading counts."""
    readings = []
    step = max(1, join.period() // _READINGS)
    for done in range(0, tuples, step):
        join.run(min(step, tuples - done), op=INSERTS)
        sizes = np.array(join.sides[0].sub_index_sizes())
        total = max(1, int(sizes.sum()))
        readings.append((total, float(sizes.max()) / total, float(np.mean(sizes < _IDLE * sizes.mean()))))
    _, largest, idle = max(readings)
    return {"largest_share": largest, "idle_share": idle}
